"""The table [gate]: what a candidate must keep to be released."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import get_args

from quantkit.errors import UsageError
from quantkit.settings.checks import check_choice
from quantkit.settings.values import Values, flag, names, number, number_or_percent

__all__ = ["GateSettings", "objections"]

GATE_VALUES: Values = {
    "max_drop": number_or_percent,
    "min_size_reduction": number,
    "max_latency_ratio": number,
    "min_int8_share": number,
    "max_flips": number,
    "min_sqnr_db": number,
    "confidence": number,
    "estimate": flag,
    "allow_undecided": flag,
    "allow": names,
}

_ALLOWED: Mapping[str, tuple[Callable[[float], bool], str]] = {
    "max_drop": (lambda v: v >= 0, "a number of at least 0"),
    "min_size_reduction": (lambda v: 0 <= v < 1, "a fraction of at least 0 and below 1"),
    "max_latency_ratio": (lambda v: v > 0, "a number above 0"),
    "min_int8_share": (lambda v: 0 <= v <= 1, "a fraction of at least 0 and at most 1"),
    "max_flips": (lambda v: 0 <= v < 1, "a fraction of at least 0 and below 1"),
    "min_sqnr_db": (lambda v: v > 0, "a number above 0"),
    "confidence": (lambda v: 0.5 < v < 1, "a fraction above 0.5 and below 1"),  # noqa: PLR2004
}
"""What each value may be, and how that is said."""

_PERCENT = 100
_USUAL = 0.95


def objections() -> tuple[str, ...]:
    """Return why a gate may take an evaluation for no evidence; each may be allowed."""
    from quantkit.result import ObjectionKind  # half of the time in which settings are imported

    return get_args(ObjectionKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSettings:
    """The rules of a release. None: no such rule.

    Attributes:
        max_drop: How much worse than float the metric may be, in its units: 0.01 of top-1 is one point. A `Percent` of a
            metric that is no share of the samples (mse, perplexity) is one of float's own value.
        min_size_reduction: How much smaller the file must be, 0.7: at most 30 % of float's size.
        max_latency_ratio: How slow it may be, as a multiple of float's time, at the worst batch size and number of threads.
        min_int8_share: How many of the products onnxruntime must run in integers, 0 to 1.
        max_flips: How many decisions may differ from float's, 0 to 1.
        min_sqnr_db: How far signal must stand above noise at the worst output, in dB; needs neither labels nor decisions.
        confidence: Judge the bad end of the interval at this confidence; None: at 95 %.
        estimate: Judge what was measured, however few samples it was measured on.
        allow_undecided: Whether "not enough samples to decide" passes.
        allow: Of `objections`, those that do not count.
    """

    max_drop: float | None = None
    min_size_reduction: float | None = None
    max_latency_ratio: float | None = None
    min_int8_share: float | None = None
    max_flips: float | None = None
    min_sqnr_db: float | None = None
    confidence: float | None = None
    estimate: bool = False
    allow_undecided: bool = False
    allow: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.estimate and self.confidence is not None:
            raise UsageError(
                "estimate judges what was measured, confidence the worst end of its interval: leave out one of the two."
            )
        for kind in self.allow:
            check_choice("allow", kind, objections())
        for key, (holds, allowed) in _ALLOWED.items():
            value = getattr(self, key)
            if value is not None and not (isfinite(value) and holds(value)):
                percent = "fraction" in allowed and 1 < value < _PERCENT
                meant = f" ({value / _PERCENT:g} is {value:g} %)" if percent else ""
                raise UsageError(f"{key} '{value:g}' is out of range: use {allowed}{meant}.")

    @property
    def judged_at(self) -> float | None:
        """The confidence that rules are judged at; None: by the estimate."""
        return None if self.estimate else self.confidence or _USUAL
