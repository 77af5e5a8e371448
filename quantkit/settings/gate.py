"""The tables [gate] and [tune]: the limits of a release, and the budget that a search for the best plan keeps."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, get_args

from quantkit.errors import UsageError
from quantkit.settings.declare import Drop, Names, Settings, Share, setting

LIVE_RULES = ("max_latency_ratio", "max_flips", "min_sqnr_db")
"""The rules that live requests can decide: they need neither labels nor files."""

_USUAL = 0.95
_PANEL = "Gate"
_rule = partial(setting, metavar="X", panel=_PANEL)


def objections() -> tuple[str, ...]:
    """Return why a gate takes an evaluation for no evidence; each may be allowed."""
    from quantkit.result import (
        ObjectionKind,
    )  # reads and writes results, which --help has no time for

    return get_args(ObjectionKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSettings(Settings):
    """The rules of a release. None: no such rule.

    Limits are in the metric's units: a `max_drop` of 0.01 of top-1 is one point; a `Percent` of a metric that is no share
    of the samples (mse, perplexity) is one of float's own value. `max_latency_ratio` is judged at the worst batch size and
    number of threads; `min_sqnr_db` needs neither labels nor decisions. `min_sqnr_p1_db` is judged by a lower bound of the
    1st percentile of the samples' SQNR, which takes 299 samples at 95 %; of up to 100 the worst one fails it. Rules are judged by the bound of the interval
    at `confidence`, or at 95 %; with `estimate` by what was measured, however few samples it was measured on.
    """

    max_drop: Drop | None = _rule(
        "Largest allowed drop. 1% = one percentage point (top-k, F1, mAP), or 1 % of the float value (MSE and similar).",
        ge=0,
    )
    min_size_reduction: Share | None = _rule("How much smaller the file must be: 70%.", ge=0, lt=1)
    max_latency_ratio: Share | None = _rule("How slow, as a multiple of float: 0.8.", gt=0)
    min_int8_share: Share | None = _rule(
        "Share of layers (Conv, Gemm, MatMul, ...) in integers: 90%.", ge=0, le=1
    )
    max_flips: Share | None = _rule("Decisions that may differ from float's: 1%.", ge=0, lt=1)
    min_sqnr_db: float | None = _rule("Signal to noise of the worst output, in dB: 20.", gt=0)
    min_sqnr_p1_db: float | None = _rule(
        "Signal to noise that 99 of 100 samples must have, each on its own, in dB: 15. Takes 299 samples.",
        gt=0,
    )
    confidence: Share | None = setting(
        "Judge the bound of each interval at this confidence. Default: 95%.", "C", gt=0.5, lt=1
    )
    estimate: bool = setting(
        "Judge the estimate, not its 95% bound.", default=False, flag="--estimate", panel=_PANEL
    )
    allow_undecided: bool = setting(
        "Too few samples to decide passes.", default=False, flag="--allow-undecided"
    )
    allow: Names = setting(
        "Ignore this validity check: preprocessing, calibrated, ... May be repeated.",
        "OBJECTION",
        default=(),
        panel=_PANEL,
        choices=objections,
    )

    def _check(self) -> None:
        if self.estimate and self.confidence is not None:
            raise UsageError(
                "estimate judges what was measured, confidence the bound of its interval: leave out one of the two."
            )

    @property
    def judged_at(self) -> float | None:
        """The confidence that rules are judged at; None: by the estimate."""
        return None if self.estimate else self.confidence or _USUAL


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
    def folder(self) -> Path:
        """Where to write."""
        return self.output or Path("tuned")

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


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressSettings(TuneSettings):
    """The same for a search that may also change the model before it is quantized, and use fewer bits.

    `goal` says what the best of the files that keep the budget has least of.
    """

    goal: Literal["speed", "size"] = _search(
        "What counts within the budget: speed (default) or size.", "WHAT", default="speed"
    )
    minutes: float = _search(
        "How long to search. Default: 30.", "N", default=30.0, gt=0, le=_MOST_MINUTES
    )
    output: Path | None = setting("Where to write. Default: compressed.", "DIR", flag="--output -o")

    @property
    def folder(self) -> Path:
        """Where to write."""
        return self.output or Path("compressed")
