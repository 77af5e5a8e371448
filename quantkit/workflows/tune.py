"""The best plan of a model within a budget: prepared once, made and run as files, chosen on some samples and judged on others.

    load -> split the samples -> prepare -> [choose what to make -> make -> run -> record] ... -> judge -> write

What is made next is decided by what is recorded (`quantkit.workflows.tune_search`), so that a search that was killed goes on
where it was, and comes to the same answer.
"""

from dataclasses import dataclass
from pathlib import Path

from quantkit.result import Interval, Result
from quantkit.workflows.tune_search import Choice

__all__ = ["Candidate", "Split", "Tuned"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Which samples do what: no sample, and no copy of one, does two things.

    Attributes:
        calibration: Places of the samples that ranges and roundings are found with.
        choosing: Of those that candidates are compared on, in a random order.
        judging: Of those that only the last judgement sees.
        available: How many samples there are.
        copies: How many were left out because they are copies of samples that are calibrated with.
    """

    calibration: tuple[int, ...]
    choosing: tuple[int, ...]
    judging: tuple[int, ...]
    available: int
    copies: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A file that was made and run, and what it does on the choosing samples.

    Attributes:
        name: "01", "02", ... in the order in which they were made.
        choice: What makes it.
        path: The file; None where it could not be made.
        sha256: Of the file.
        modes: How many nodes run in each mode.
        size: As a share of float's file.
        latency: As a multiple of float's time; None where it was not timed.
        latency_interval: Of it.
        predicted: The same by the costs of its nodes; None: not known.
        drop: How much it loses against float, in the units of the budget; None where it could not be made.
        drop_interval: Of it; None: not known.
        samples: How many it was run on, before that was clear.
        verdict: "in": within the budget of what may be lost; "out"; "failed": it could not be made.
        sqnr_db: Signal to noise of the worst output; None: nothing changed.
        seconds: That it took to make and run.
        note: Why it could not be made; else "".
    """

    name: str
    choice: Choice
    path: Path | None
    sha256: str = ""
    modes: dict[str, int]
    size: float = 1.0
    latency: float | None = None
    latency_interval: Interval | None = None
    predicted: float | None = None
    drop: float | None = None
    drop_interval: Interval | None = None
    samples: int = 0
    verdict: str = "failed"
    sqnr_db: float | None = None
    seconds: float = 0.0
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What a search found.

    Attributes:
        folder: Where everything was written.
        candidates: All that were made, in order.
        chosen: The name of the best; None where none could be made.
        frontier: Names of those that no other beats in what it loses, its time and its size, the fastest first.
        met: Whether the chosen one keeps the budget, by the samples that chose and by those that judge.
        outcome: Of the judgement: "pass", "undecided", "fail", "invalid".
        result: The evaluation of the frontier on the judging samples; its candidates are called as here.
        split: Which samples did what.
        measure: What is lost, in words: "top-1", "decisions that differ from float's", ...
        sentence: What limits the chosen one, or why the budget cannot be met.
        notes: What a reader should know.
        stopped: Whether time ran out before the border of the budget was found.
        seconds: That the search took, earlier runs included.
    """

    folder: Path
    candidates: tuple[Candidate, ...]
    chosen: str | None
    frontier: tuple[str, ...]
    met: bool
    outcome: str
    result: Result | None
    split: Split
    measure: str
    sentence: str
    notes: tuple[str, ...] = ()
    stopped: bool = False
    seconds: float = 0.0
