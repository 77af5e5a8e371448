"""Which units and blocks to remove first: where least noise is added for the time, or the bytes, that it saves."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from quantkit.reduce.prune.widths import PruneCosts, Widths

_AHEAD = 4  # steps of a group that are looked at together: a single one may save nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A point on the way from the whole model to the least of it.

    Attributes:
        widths: What is left.
        seconds: What it takes, by the times of nodes.
        nbytes: Of its weights.
        noise: Of the outputs, relative to their power, as the sum of what each group adds.
    """

    widths: Widths
    seconds: float
    nbytes: float
    noise: float


def removal_path(costs: PruneCosts, *, by_size: bool = False) -> list[Step]:
    """Return all steps from the whole model on, each the one that adds least noise for what it saves.

    Args:
        costs: What widths take, weigh and lose.
        by_size: Save bytes, not time.
    """
    here = _steps(costs, [Widths()])[0]
    path = [here]
    while moves := list(_moves(costs, here.widths)):
        best, gain = here, 0.0
        for one in _steps(costs, moves):
            saved = here.nbytes - one.nbytes if by_size else here.seconds - one.seconds
            rate = saved / max(one.noise - here.noise, 1e-12)
            if saved > 0 and rate > gain:
                best, gain = one, rate
        if best is here:
            break
        here = best
        path.append(here)
    return path


def _steps(costs: PruneCosts, states: list[Widths]) -> list[Step]:
    return [
        Step(widths=one, seconds=float(s), nbytes=float(n), noise=float(d))
        for one, s, n, d in zip(states, *costs.of(states), strict=True)
    ]


def _moves(costs: PruneCosts, now: Widths) -> Iterator[Widths]:
    """Yield what can be removed next: a few steps of a group, or a whole block."""
    covered = costs.covered(now.mapped)
    for group in costs.groups:
        if group.name in covered:
            continue
        kept = now.kept.get(group.name, group.size)
        for level in [n for n in group.levels if n < kept][:_AHEAD]:
            yield replace(now, kept={**now.kept, group.name: level})
    for block in costs.blocks:
        if block.name not in now.mapped:
            mapped = now.mapped | {block.name}
            gone = costs.covered(mapped)
            kept_left = {name: n for name, n in now.kept.items() if name not in gone}
            yield Widths(kept=kept_left, mapped=mapped)


def first_below(
    path: Sequence[Step], *, seconds: float = np.inf, nbytes: float = np.inf
) -> Step | None:
    """Return the first step of a path that takes and weighs no more than this; None: there is none."""
    return next((one for one in path if one.seconds <= seconds and one.nbytes <= nbytes), None)
