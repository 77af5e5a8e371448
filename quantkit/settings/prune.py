"""The table [prune]: channels, neurons, heads and layers that are removed."""

from dataclasses import dataclass
from typing import Literal

from quantkit.errors import UsageError
from quantkit.settings.declare import Drop, FileSize, Names, Percent, Settings, Share, setting

_USUAL_DROP = Percent(0.01)


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneSettings(Settings):
    """How much of a model is removed: to a time, to a size, or as far as accuracy allows. None of them: a `max_drop` of 1 %."""

    speed: Share | None = setting(
        "Latency to reach, as a multiple of the float model's: 0.85.", "X", gt=0, lt=1
    )
    size: FileSize | None = setting("File size to reach: 70% of float's, or 14.6MB.", "SIZE", gt=0)
    max_drop: Drop | None = setting(
        "Remove as much as this drop allows: 1% is one point of the metric, or, without labels, 1% of the decisions or of "
        "the outputs' power. Default, if neither --speed nor --size is given: 1%.",
        "X",
        gt=0,
    )
    sparsity: Share | None = setting(
        "Set this share of the weights to zero instead: 50%. For runtimes that use zeros, and for zipped files; onnxruntime's CPU gains no time.",
        "X",
        gt=0,
        lt=1,
    )
    pattern: Literal["2:4", "1:4", "4:8"] | None = setting(
        "Zeros in groups: of every 4 neighbours 2 are left.", "N:M"
    )
    low_rank: bool = setting(
        "Instead, write layers as two thin ones, where that loses less than 4 bits of the same size and gains time.",
        default=False,
        flag="--low-rank",
    )
    metric: str | None = setting("What --max-drop bounds, as for evaluate. Default: by the labels.")
    force: bool = setting(
        "Prune even if int8 gains less than 10 % of its latency from it.",
        default=False,
        flag="--force",
    )
    exclude: Names = setting(
        "Remove nothing that this node computes or consumes (name or pattern). May be repeated.",
        "NODE",
        default=(),
    )

    def _check(self) -> None:
        ways = (self.speed, self.size, self.max_drop, self.sparsity, self.pattern)
        if sum(one is not None for one in ways) + self.low_rank > 1:
            raise UsageError(
                "speed, size, max_drop, sparsity, pattern and low_rank are ways to have fewer weights: give one."
            )

    @property
    def drop(self) -> float | None:
        """The drop that is allowed; None: a time or a size is asked for."""
        if self.speed is None and self.size is None:
            return _USUAL_DROP if self.max_drop is None else self.max_drop
        return None
