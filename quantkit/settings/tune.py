"""The table [tune]: the budget that a search for the best plan keeps, and what it may spend."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from quantkit.settings.declare import Settings, setting
from quantkit.settings.gate import GateSettings
from quantkit.settings.values import Drop, Share

__all__ = ["TuneSettings"]

# More is a slip: a month of search, or more files than a folder should hold.
_MOST_MINUTES = 31 * 24 * 60
_MOST_CANDIDATES = 10_000

_budget = partial(setting, metavar="X", panel="Budget")
_search = partial(setting, panel="Search")


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneSettings(Settings):
    """What a model may lose, cost and weigh, and how long the search for the best one may take. None: no such limit.

    `max_drop` is in the metric's units, as the gate's: 0.005 of top-1 and "0.5%" are both half a point. `max_latency`
    and `max_size` are shares of float's. `rules` are the same limits for a gate.
    """

    max_drop: Drop | None = _budget(
        "Largest allowed metric drop: 0.5% is half a point (for errors such as MSE, 0.5% of the float value).",
        ge=0,
    )
    max_latency: Share | None = _budget("How slow, as a multiple of float: 0.7.", gt=0)
    max_size: Share | None = _budget("How large, as a share of float's file: 30%.", gt=0, le=1)
    minutes: float = _search(
        "How long to search. Default: 10.", "N", default=10.0, gt=0, le=_MOST_MINUTES
    )
    candidates: int | None = _search(
        "Make at most N files. Default: as many as the time allows.", "N", ge=1, le=_MOST_CANDIDATES
    )
    seed: int = _search(
        "Of the order of samples and of the split. Default: 0.", "N", default=0, ge=0
    )
    confidence: Share = _search(
        "How sure a candidate is in or out before it is stopped. Default: 95%.",
        "C",
        default=0.95,
        gt=0.5,
        lt=1,
    )
    output: Path | None = setting("Where to write. Default: tuned.", "DIR", flag="--output -o")

    @property
    def has_budget(self) -> bool:
        """Whether there is any limit to keep."""
        return any(limit is not None for limit in (self.max_drop, self.max_latency, self.max_size))

    def rules(self, gate: GateSettings) -> GateSettings:
        """Return a gate's settings with this budget in their place, as far as there is one."""
        # 1 - 0.7 is 0.30000000000000004, which no user wrote.
        smaller = None if self.max_size is None else round(1 - self.max_size, 12)
        return replace(
            gate,
            max_drop=gate.max_drop if self.max_drop is None else self.max_drop,
            max_latency_ratio=gate.max_latency_ratio
            if self.max_latency is None
            else self.max_latency,
            min_size_reduction=gate.min_size_reduction if smaller is None else smaller,
        )
