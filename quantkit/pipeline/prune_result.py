"""What pruning plans and reports: units and blocks that are removed, the frontier, and what the written file loses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quantkit.pipeline.result import FormResult
from quantkit.pipeline.split import Split
from quantkit.reduce.prune.widths import Widths
from quantkit.result import Interval

LEAST_GAIN = 0.1  # of int8's time: below, int8 alone is the better choice


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """What a file loses against float.

    Attributes:
        drop: Of the metric, or, without labels, the share of the decisions that differ, or of the outputs' power that is noise.
        interval: Of it; None: not known.
        samples: How many it was judged on.
        sentence: The same in words.
    """

    drop: float
    interval: Interval | None
    samples: int
    sentence: str

    def text(self) -> str:
        """Return "1.2 % [0.4, 2.0] (n=225)"."""
        inside = self.interval
        bounds = f" [{100 * inside.low:.1f}, {100 * inside.high:.1f}]" if inside else ""
        return f"{100 * self.drop:.1f} %{bounds} (n={self.samples:,})"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedFile:
    """A pruned file that was timed next to float.

    Attributes:
        widths: What is left.
        speed: Its latency as a multiple of float's.
        speed_interval: Of it; None: it is not known.
        size: Of float's file.
        noise: Of the outputs, relative to their power, as predicted from each group by itself.
        path: The file, as long as the run lasts.
        judged: What it loses; None: not run.
    """

    widths: Widths
    speed: float
    speed_interval: Interval | None
    size: float
    noise: float
    path: Path
    judged: HeldOut | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "widths": self.widths.to_json(),
            "speed": round(self.speed, 4),
            "size": round(self.size, 4),
            "noise": self.noise,
            "drop": None if self.judged is None else self.judged.drop,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunePlan:
    """What is removed from a model, and what that was chosen from.

    Attributes:
        units: How many units each group has, by name: channels, neurons or heads.
        blocks: The names of the blocks that a map can replace.
        widths: What is left of them.
        frontier: Candidates from slow to fast, before their weights are fitted in order: empty where it was not asked for.
        split: Which samples did what; None: decided in an earlier run.
        int8: What int8 takes of float's time, and int8 of the pruned model of that; None: not measured.
    """

    units: Mapping[str, int]
    blocks: tuple[str, ...]
    widths: Widths
    frontier: tuple[PrunedFile, ...] = ()
    split: Split | None = None
    int8: tuple[float, float] | None = None

    @property
    def changes(self) -> bool:
        """Whether anything is removed."""
        return self.widths.changes

    @property
    def refusal(self) -> str:
        """Why int8 alone is the better choice, with the number; "" if it is not, or nobody knows."""
        if self.int8 is None or self.int8[1] <= 1 - LEAST_GAIN:
            return ""
        alone, on_top = self.int8
        return (
            f"Pruning does not pay here: int8 alone takes {alone:.2f} of float's latency, and int8 of the pruned model {on_top:.2f} of "
            f"that (at least {LEAST_GAIN:.0%} less is wanted); use `quantkit quantize static`, or --force."
        )

    def __str__(self) -> str:
        listed = [f"{name} {kept} of {self.units[name]}" for name, kept in self.widths.kept.items()]
        listed += [f"{name} -> affine map" for name in sorted(self.widths.mapped)]
        return (
            f"removed from {len(listed)} of {len(self.units) + len(self.blocks)} groups and blocks"
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "units": dict(self.units),
            "blocks": list(self.blocks),
            "widths": self.widths.to_json(),
            "frontier": [one.to_json() for one in self.frontier],
            "split": None if self.split is None else str(self.split),
            "int8": None if self.int8 is None else [round(one, 4) for one in self.int8],
        }


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PruneResult(FormResult):
    """What was pruned, and what that loses and gains, as measured.

    Attributes:
        judged: The drop on samples that neither fitted nor chose anything; None: not measured.
        speed: Latency as a multiple of float's; None: not measured.
        speed_interval: Of it.
    """

    plan: PrunePlan
    judged: HeldOut | None = None
    speed: float | None = None
    speed_interval: Interval | None = field(default=None)

    def _runs(self) -> list[str]:
        return list(self.measured)

    @property
    def measured(self) -> Sequence[str]:
        """What was measured, line by line."""
        found = []
        if self.judged is not None:
            found.append(f"drop on held-out samples: {self.judged.text()}. {self.judged.sentence}")
        if self.speed is not None:
            inside = self.speed_interval
            bounds = f" [{inside.low:.2f}, {inside.high:.2f}]" if inside else ""
            found.append(f"latency: {self.speed:.2f}{bounds} of float")
        if self.plan.int8 is not None:
            alone, on_top = self.plan.int8
            found.append(
                f"int8: {alone:.2f} of float's latency; of the pruned model {on_top:.2f} of that"
            )
        return found

    def _inside(self) -> dict[str, Any]:
        drop = self.judged
        return {
            "drop": None if drop is None else drop.drop,
            "drop_interval": None
            if drop is None or drop.interval is None
            else [drop.interval.low, drop.interval.high],
            "samples": None if drop is None else drop.samples,
            "speed": self.speed,
            "speed_interval": None
            if self.speed_interval is None
            else [self.speed_interval.low, self.speed_interval.high],
        }
