"""The verdict: rules, and what came of each."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["Judged", "Outcome", "Rule", "Verdict"]

Outcome = Literal["pass", "fail", "undecided"]
"""undecided: too few samples to tell, or the figure was not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One line of [gate].

    Attributes:
        key: "max_drop", "min_size_reduction", "max_latency_ratio", "min_int8_share", "max_flips", "min_sqnr_db".
        limit: The bound.
        confidence: Judge the bad end of the interval; None: the estimate.
    """

    key: str
    limit: float
    confidence: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What came of a rule for one candidate.

    Attributes:
        rule: The rule.
        outcome: Whether it is kept.
        figure: What was judged: the estimate, or the bad end of its interval; None: not measured.
        estimate: The estimate.
        margin: How much room is left (negative: how much too much); None: not measured.
        sentence: For people.
    """

    rule: Rule
    outcome: Outcome
    figure: float | None
    estimate: float | None
    margin: float | None
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What came of all rules for one candidate.

    Attributes:
        candidate: Its name.
        outcome: "fail" if any rule fails, else "undecided" if any is, else "pass".
        rules: One by one.
    """

    candidate: str
    outcome: Outcome
    rules: tuple[Judged, ...]
