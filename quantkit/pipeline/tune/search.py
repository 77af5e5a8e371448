"""Which candidates a search makes next, and which is best: decided by stored figures alone, so that a search can be taken up again.

The family is a list of plans from the fastest to the most exact, found by measured costs and losses before anything is
made. The fastest is tried first. If it loses too much, the choices that cost no time at all are tried on it (how
ranges are estimated, how weights are rounded); with the best of these the border of the budget is looked for along the
family: first where the losses predict it, then in the middle of what is left.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Literal

Form = Literal["static", "dynamic", "stored"]
Recovery = Literal["usual", "thorough"]
Verdict = Literal["in", "out", "failed"]

_CLOSE = 0.02  # of float's time: less is within what timing is off by
_NEAR, _LITTLE = 4.0, 0.02  # times the budget, and beyond it: more is not won back without time
_PREDICTED = 2  # probes that follow the prediction; then the middle


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What makes a candidate of a prepared model.

    Attributes:
        form: How products run: in calibrated integers as far as the family's plan has it, in integers that are found while
            it runs, or in float from weights that are stored in 8 bits.
        point: Number in the family, 0 the fastest; of the form "static" only.
        method: How ranges are estimated; "": as usual.
        recovery: How much is done to win back accuracy.
    """

    form: Form = "static"
    point: int = 0
    method: str = ""
    recovery: Recovery = "usual"

    def __str__(self) -> str:
        if self.form != "static":
            return {"dynamic": "dynamic int8", "stored": "weights only"}[self.form]
        said = [f"static, plan {self.point}"]
        said += [f"ranges by {self.method}"] if self.method else []
        said += ["thorough recovery"] if self.recovery != "usual" else []
        return ", ".join(said)


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
    """

    drop: float | None = None
    latency: float | None = None
    size: float | None = None
    most: int | None = None


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


def next_choices(
    known: Mapping[Choice, Figures],
    noises: Sequence[float],
    budget: Budget,
    together: int = 1,
    *,
    dynamic: bool = True,
) -> tuple[Choice, ...]:
    """Return what to make next; nothing where the border is found.

    Args:
        known: What was made so far.
        noises: What each plan of the family is predicted to lose, relative to each other; descending.
        budget: What must be kept.
        together: How many can be made at once.
        dynamic: Whether products can run in integers that are found while they run: else that is the stored form.
    """
    left = inf if budget.most is None else budget.most - len(known)
    wanted = [
        c for c in _wanted(known, noises, budget, together, dynamic=dynamic) if c not in known
    ]
    return tuple(wanted[: int(min(left, max(1, together)))]) if left > 0 else ()


def _wanted(
    known: Mapping[Choice, Figures],
    noises: Sequence[float],
    budget: Budget,
    together: int,
    *,
    dynamic: bool,
) -> list[Choice]:
    others = [Choice(form="dynamic"), Choice(form="stored")] if dynamic else [Choice(form="stored")]
    tried = [base for base in BASES if base in known]
    if BASES[0] not in known:
        return [BASES[0], *others]
    if any(_is_in(known, base) for base in tried):
        return others
    if not moves_on(known, budget):
        return [base for base in BASES if base not in known] + others
    base = min(tried, key=lambda c: (_drop(known[c]), BASES.index(c)))
    return _bisected(known, base, noises, budget, together) or others


def moves_on(known: Mapping[Choice, Figures], budget: Budget) -> bool:
    """Say whether plans further along the family are needed: all that costs no time was tried, or could not suffice.

    Args:
        known: What was made so far.
        budget: What must be kept.
    """
    tried = [base for base in BASES if base in known]
    if not tried or any(_is_in(known, base) for base in tried):
        return False
    limit = budget.drop or 0.0
    far = _drop(known[tried[0]]) > max(_NEAR * limit, limit + _LITTLE)
    return far or len(tried) == len(BASES)


def _bisected(
    known: Mapping[Choice, Figures],
    base: Choice,
    noises: Sequence[float],
    budget: Budget,
    together: int,
) -> list[Choice]:
    """Return the points of the family to try between the last that loses too much and the first that does not."""
    tried = {
        c.point: f
        for c, f in known.items()
        if c == replace(base, point=c.point) and c.form == "static"
    }
    inside = [p for p, f in tried.items() if f.verdict == "in"]
    top = min(inside, default=len(noises))
    low = max((p for p, f in tried.items() if f.verdict != "in" and p < top), default=0)
    between = range(low + 1, top)
    if not between:
        return []
    points = [between[(k + 1) * len(between) // (together + 1)] for k in range(together)]
    if len(tried) <= _PREDICTED and together == 1:
        points = [_predicted(between, noises, _drop(tried[low]), low, budget)]
    return [replace(base, point=p) for p in dict.fromkeys(points)]


def _predicted(
    between: Sequence[int], noises: Sequence[float], lost: float, low: int, budget: Budget
) -> int:
    """Return the first point that is predicted to keep the budget: what is lost grows as the noise does."""
    limit = budget.drop
    if limit is None or not 0 < lost < inf or noises[low] <= 0:
        return between[len(between) // 2]
    enough = [p for p in between if lost * noises[p] / noises[low] <= limit]
    return enough[0] if enough else between[-1]


def _is_in(known: Mapping[Choice, Figures], choice: Choice) -> bool:
    return choice in known and known[choice].verdict == "in"


def _drop(figures: Figures) -> float:
    return inf if figures.drop is None else figures.drop


def keeps(figures: Figures, budget: Budget) -> bool:
    """Say whether a candidate keeps the whole budget."""
    return (
        figures.verdict == "in"
        and (budget.latency is None or figures.cost <= budget.latency)
        and (budget.size is None or figures.size <= budget.size)
    )


def best_of(known: Mapping[Choice, Figures], budget: Budget) -> Choice | None:
    """Return the best candidate: the fastest that keeps the budget; else the one that misses it least. None: there is none.

    Of those that are about as fast, the one that loses least, then the fastest, the smallest, the first.
    """
    made = {c: f for c, f in known.items() if f.verdict != "failed"}
    if not made:
        return None
    kept = {c: f for c, f in made.items() if keeps(f, budget)}
    if not kept:
        order = list(made)
        return min(made, key=lambda c: (_missed(made[c], budget), made[c].cost, order.index(c)))
    fastest = min(f.cost for f in kept.values())
    close = [c for c, f in kept.items() if f.cost <= fastest + _CLOSE]
    order = list(known)
    return min(close, key=lambda c: (_drop(kept[c]), kept[c].cost, kept[c].size, order.index(c)))


def _missed(figures: Figures, budget: Budget) -> float:
    """Return by how much of itself the limit that is missed most is missed."""
    pairs = (
        (_drop(figures), budget.drop),
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
    return tuple(sorted(found, key=lambda c: (made[c].cost, _drop(made[c]))))


def _beats(one: Figures, other: Figures) -> bool:
    ours = (_drop(one), one.cost, one.size)
    theirs = (_drop(other), other.cost, other.size)
    return ours != theirs and all(a <= b for a, b in zip(ours, theirs, strict=True))


def limits(
    known: Mapping[Choice, Figures], chosen: Choice, budget: Budget
) -> tuple[float, float] | None:
    """Return how much more would have to be lost for how much of the time: the best exchange there is; None: there is none.

    Args:
        known: What was made.
        chosen: The best that keeps the budget.
        budget: The budget.
    """
    own = known[chosen]
    if budget.drop is None or not 0 < own.cost < inf:
        return None
    found = [
        (_drop(f) - budget.drop, 1 - f.cost / own.cost)
        for f in known.values()
        if f.verdict == "out" and f.cost < own.cost * (1 - _CLOSE) and budget.drop < _drop(f) < inf
    ]
    return min(found, key=lambda pair: (pair[0] / pair[1], pair[0]), default=None)
