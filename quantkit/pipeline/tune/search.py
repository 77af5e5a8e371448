"""Which candidates a search makes next, and which is best: decided by stored figures alone, so that a search can be taken up again.

The family is a list of plans from the fastest to the most exact, found by measured costs and losses before anything is
made. The fastest is tried first. If it loses too much, the choices that cost no time at all are tried on it (how
ranges are estimated, how weights are rounded); with the best of these the border of the budget is looked for along the
family: first where the losses predict it, then in the middle of what is left. Then come the steps of the table
(`quantkit.pipeline.tune.moves`), of which `tune` has none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

from quantkit.pipeline.tune.choice import BASES, Budget, Choice, Figures, drop_of
from quantkit.pipeline.tune.moves import Moves, Step

_NEAR, _LITTLE = 4.0, 0.02  # times the budget, and beyond it: more is not won back without time
_PREDICTED = 2  # probes that follow the prediction; then the middle


def next_choices(
    known: Mapping[Choice, Figures],
    noises: Sequence[float],
    budget: Budget,
    together: int = 1,
    *,
    dynamic: bool = True,
    steps: Sequence[Step] | None = None,
) -> tuple[Choice, ...]:
    """Return what to make next; nothing where the border is found.

    Args:
        known: What was made so far.
        noises: What each plan of the family is predicted to lose, relative to each other; descending.
        budget: What must be kept.
        together: How many can be made at once.
        dynamic: Whether products can run in integers that are found while they run: else that is the stored form.
        steps: What may be done to the float model first; None: nothing, and weights keep their 8 bits.
    """
    left = inf if budget.most is None else budget.most - len(known)
    wanted = [
        c for c in _wanted(known, noises, budget, together, dynamic=dynamic) if c not in known
    ]
    if steps is not None and not wanted:
        wanted = [c for c in Moves(known, budget, steps).wanted() if c not in known]
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
    base = min(tried, key=lambda c: (drop_of(known[c]), BASES.index(c)))
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
    far = drop_of(known[tried[0]]) > max(_NEAR * limit, limit + _LITTLE)
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
        points = [_predicted(between, noises, drop_of(tried[low]), low, budget)]
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
