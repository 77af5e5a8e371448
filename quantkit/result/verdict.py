"""The verdict: rules, what came of each, and what stands against the evidence itself."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["Judged", "Objection", "ObjectionKind", "Outcome", "Rule", "Verdict"]

Outcome = Literal["pass", "fail", "undecided", "invalid"]
"""undecided: too few samples to tell, or the figure was not measured. invalid: the figures prove nothing, whatever
they are; only verdicts are, rules are not."""

ObjectionKind = Literal[
    "guessing",
    "contradiction",
    "calibrated",
    "copies",
    "preprocessing",
    "incomparable",
    "identical",
    "swapped",
    "outdated",
]
"""guessing: float itself is no better than an answer without looking.
contradiction: no rule is broken, yet the outputs are noise, not finite, or most decisions differ.
calibrated: most samples are those that the candidate was calibrated with.
copies: most samples are copies of others, so that intervals are too narrow.
preprocessing: samples were prepared otherwise than for calibration.
incomparable: no value of an output could be compared with float's.
identical: the candidate is the float model's file.
swapped: the reference is quantized.
outdated: an older quantkit made the result, and did not look for the above."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One line of [gate].

    Attributes:
        key: "max_drop", "min_size_reduction", "max_latency_ratio", "min_int8_share", "max_flips", "min_sqnr_db",
            "min_sqnr_p1_db".
        limit: The bound.
        confidence: Judge the bad end of the interval; None: the estimate.
        relative: The limit was written in per cent: of a metric that is no share of the samples it is a share of float's
            own value.
    """

    key: str
    limit: float
    confidence: float | None = None
    relative: bool = False


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
class Objection:
    """Why the figures of a candidate prove nothing, whatever they are.

    Attributes:
        kind: Which one.
        title: In a few words: "Float itself is guessing".
        sentence: What was found, and what to do.
        allowed: Whether it was said beforehand that this may be: then it is told and does not count.
    """

    kind: ObjectionKind
    title: str
    sentence: str
    allowed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What came of all rules for one candidate.

    Attributes:
        candidate: Its name.
        outcome: "invalid" if an objection counts, else "fail" if any rule fails, else "undecided" if any is, else "pass".
        rules: One by one.
        objections: What stands against the evidence, the gravest first.
    """

    candidate: str
    outcome: Outcome
    rules: tuple[Judged, ...]
    objections: tuple[Objection, ...] = ()
