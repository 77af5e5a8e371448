"""What a search for the best plan tried: every file that was made and run, the budget, and which one was chosen."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from quantkit.result.accuracy import Interval

__all__ = ["Trial", "Tuning"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A file that was made and run. Its figures are those of the samples that choose, not of those that judge.

    Attributes:
        name: Short and unique; candidates of the result have the same.
        made: How, in words: "static, 3 of 53 layers float".
        verdict: Whether it loses no more than the budget allows: "in", "out"; "open": not tested to the end; "failed":
            no file could be made.
        drop: How much it loses against float, positive is worse, in units of the measure; None: not known.
        drop_interval: Of it; wide where it was stopped early, because it was clear by then.
        size: As a share of float's file; None: not known.
        latency: As a multiple of float's time, of a candidate of the result as measured there; None: not timed.
        latency_interval: Of it.
        samples: That it was run on.
        modes: How many nodes run in each mode.
        seconds: To make and run it.
        note: Why it failed; else "".
    """

    name: str
    made: str
    verdict: Literal["in", "out", "open", "failed"]
    drop: float | None = None
    drop_interval: Interval | None = None
    size: float | None = None
    latency: float | None = None
    latency_interval: Interval | None = None
    samples: int = 0
    modes: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """The search. The candidates of the result are its frontier, run on samples that had no part in choosing.

    Attributes:
        measure: What is lost: "top-1", "decisions that differ from float's".
        is_fraction: Whether that is a share, shown times 100: in points of the metric, else in per cent.
        max_drop: What may be lost, in units of the measure; None: no limit.
        max_latency: How slow, as a multiple of float's time; None: no limit.
        max_size: How large, as a share of float's file; None: no limit.
        trials: In the order in which they were made.
        chosen: The name of the one to use; "": there is none.
        met: Whether the chosen one keeps the budget, as far as can be told.
        sentence: What limits it, or why the budget cannot be met.
        calibration: Samples that ranges and roundings were found with.
        choosing: Samples that candidates were compared on.
        judging: Samples that only the chosen ones were run on, at the end.
        seed: Of the order of samples.
        confidence: Of each early stop.
        seconds: That the search took.
        stopped: Whether time ran out before the border of the budget was found.
    """

    measure: str
    is_fraction: bool
    trials: tuple[Trial, ...]
    chosen: str
    met: bool
    sentence: str
    calibration: int
    choosing: int
    judging: int
    max_drop: float | None = None
    max_latency: float | None = None
    max_size: float | None = None
    seed: int = 0
    confidence: float = 0.95
    seconds: float = 0.0
    stopped: bool = False

    @property
    def evaluations(self) -> float:
        """What was run, in runs over all the samples that choose: a candidate that was stopped at half of them is half a run."""
        return sum(trial.samples for trial in self.trials) / max(self.choosing, 1)
