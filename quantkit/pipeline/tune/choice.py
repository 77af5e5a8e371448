"""What a candidate of a search is, what is known of it, and which of several is better."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Literal

Form = Literal["static", "dynamic", "stored", "weights", "float16"]
Goal = Literal["speed", "size"]
Recovery = Literal["usual", "thorough"]
Verdict = Literal["in", "out", "failed"]

_CLOSE = {"speed": 0.02, "size": 0.002}  # of float's: less is within what timing is off by


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What makes a candidate: the steps before it is quantized, and how it is quantized.

    Attributes:
        form: How products run: in calibrated integers as far as the family's plan has it, in integers that are found while
            it runs, or in float from weights that are stored in 8 bits, in blocks of few bits, in 16 bits.
        point: Number in the family, 0 the fastest; of the form "static" only.
        method: How ranges are estimated; "": as usual.
        recovery: How much is done to win back accuracy.
        bits: Of a weight in the file.
        before: Names of the steps that change the float model first, in order.
        after: Of those that change the quantized one.
    """

    form: Form = "static"
    point: int = 0
    method: str = ""
    recovery: Recovery = "usual"
    bits: int = 8
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " + ".join((*self.before, self._quantized(), *self.after))

    def _quantized(self) -> str:
        few = f", {self.bits} bits" if self.bits < WHOLE else ""
        if self.form != "static":
            return _WORDS[self.form] + few
        said = ["static" if self.before or few else f"static, plan {self.point}"]
        said += [f"ranges by {self.method}"] if self.method else []
        said += ["thorough recovery"] if self.recovery != "usual" else []
        return ", ".join(said) + few

    @property
    def follows_plan(self) -> bool:
        """Whether a plan of the float model's own preparation makes it, instead of settings."""
        return (
            not self.before and self.bits == WHOLE and self.form in {"static", "dynamic", "stored"}
        )


WHOLE = 8  # bits
_WORDS: Mapping[str, str] = {
    "dynamic": "dynamic int8",
    "stored": "weights only",
    "weights": "blocks of weights",
    "float16": "float16",
}


BASES: tuple[Choice, ...] = (
    Choice(),
    Choice(recovery="thorough"),
    Choice(method="percentile"),
)
"""Choices that change what is lost and not how long a run takes, the usual one first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a candidate must keep; None: no such limit.

    Attributes:
        drop: In units of what is lost.
        latency: As a multiple of float's time.
        size: As a share of float's file.
        most: Candidates that may be made.
        goal: What the best of those that keep it has least of: time or size.
    """

    drop: float | None = None
    latency: float | None = None
    size: float | None = None
    most: int | None = None
    goal: Goal = "speed"

    @property
    def close(self) -> float:
        """Differences in what counts that are too small to count."""
        return _CLOSE[self.goal]

    def worth(self, figures: "Figures") -> float:
        """Return what counts of a candidate, less is better: its time or its size, as a share of float's."""
        return figures.cost if self.goal == "speed" else figures.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What is known of a candidate, by samples that only choose.

    Attributes:
        drop: How much it loses; None where it could not be made.
        verdict: Whether that is within the budget; "failed": it could not be made.
        cost: Its time as a multiple of float's, measured, or predicted where nothing is timed.
        size: As a share of float's file.
    """

    drop: float | None
    verdict: Verdict
    cost: float = inf
    size: float = inf


def drop_of(figures: Figures) -> float:
    """Return what a candidate loses; infinity where it could not be made."""
    return inf if figures.drop is None else figures.drop


def keeps(figures: Figures, budget: Budget) -> bool:
    """Say whether a candidate keeps the whole budget."""
    return (
        figures.verdict == "in"
        and (budget.latency is None or figures.cost <= budget.latency)
        and (budget.size is None or figures.size <= budget.size)
    )


def best_of(known: Mapping[Choice, Figures], budget: Budget) -> Choice | None:
    """Return the best candidate: the fastest or smallest that keeps the budget; else the one that misses it least. None: there is none.

    Of those that are about as fast or small, the one that loses least, then the fastest, the smallest, the first.
    """
    made = {c: f for c, f in known.items() if f.verdict != "failed"}
    if not made:
        return None
    kept = {c: f for c, f in made.items() if keeps(f, budget)}
    if not kept:
        order = list(made)
        return min(made, key=lambda c: (_missed(made[c], budget), made[c].cost, order.index(c)))
    least = min(map(budget.worth, kept.values()))
    close = [c for c, f in kept.items() if budget.worth(f) <= least + budget.close]
    order = list(known)
    return min(close, key=lambda c: (drop_of(kept[c]), kept[c].cost, kept[c].size, order.index(c)))


def _missed(figures: Figures, budget: Budget) -> float:
    """Return by how much of itself the limit that is missed most is missed."""
    pairs = (
        (drop_of(figures), budget.drop),
        (figures.cost, budget.latency),
        (figures.size, budget.size),
    )
    return max(
        ((value - limit) / max(limit, 1e-9) for value, limit in pairs if limit is not None),
        default=0.0,
    )


def frontier_of(known: Mapping[Choice, Figures]) -> tuple[Choice, ...]:
    """Return the candidates that no other beats in what it loses, its time and its size together; the fastest first."""
    made = {c: f for c, f in known.items() if f.verdict != "failed"}
    found = [c for c in made if not any(_beats(made[o], made[c]) for o in made if o != c)]
    return tuple(sorted(found, key=lambda c: (made[c].cost, drop_of(made[c]))))


def _beats(one: Figures, other: Figures) -> bool:
    ours = (drop_of(one), one.cost, one.size)
    theirs = (drop_of(other), other.cost, other.size)
    return ours != theirs and all(a <= b for a, b in zip(ours, theirs, strict=True))


def limits(
    known: Mapping[Choice, Figures], chosen: Choice, budget: Budget
) -> tuple[float, float] | None:
    """Return how much more would have to be lost for how much of the time or size: the best exchange there is; None: there is none.

    Args:
        known: What was made.
        chosen: The best that keeps the budget.
        budget: The budget.
    """
    own = budget.worth(known[chosen])
    if budget.drop is None or not 0 < own < inf:
        return None
    found = [
        (drop_of(f) - budget.drop, 1 - budget.worth(f) / own)
        for f in known.values()
        if f.verdict == "out"
        and budget.worth(f) < own * (1 - budget.close)
        and budget.drop < drop_of(f) < inf
    ]
    return min(found, key=lambda pair: (pair[0] / pair[1], pair[0]), default=None)
