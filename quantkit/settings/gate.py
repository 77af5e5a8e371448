"""The table [gate]: what a candidate must keep to be released."""

from dataclasses import dataclass
from functools import partial
from typing import get_args

from quantkit.errors import UsageError
from quantkit.settings.declare import Settings, setting
from quantkit.settings.values import Drop, Names, Share

__all__ = ["LIVE_RULES", "GateSettings", "objections"]

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
