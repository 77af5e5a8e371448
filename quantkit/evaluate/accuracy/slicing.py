"""Which slices are looked at, and by which figure."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from quantkit.evaluate.accuracy.figures import Figure, Mean
from quantkit.evaluate.accuracy.measuring import Measuring
from quantkit.evaluate.accuracy.slices import Group, groups_by_class, groups_by_range, worst_slices
from quantkit.result import Slice

__all__ = ["slices_of"]


def slices_of(
    measuring: Measuring, figures: Sequence[Figure], model: int, *, confidence: float, seed: int
) -> tuple[Slice, ...]:
    """Return where the main metric drops most; of classes, where hits do; without labels, where answers change."""
    scorer, decisions = measuring.scorer, measuring.decisions
    groups = list(_groups(measuring))
    common: dict[str, Any] = {"confidence": confidence, "seed": seed}
    if scorer is not None:
        # F1 of one class alone says little: hits are looked at instead.
        wanted = "top-1" if scorer.main == "f1" else scorer.main
        figure = next(f for f in figures if f.name == wanted)
        return worst_slices(figure, model, groups, **common)
    if decisions is None:
        return ()
    rows = [decisions.of(0) == decisions.of(m) for m in range(len(measuring.candidates) + 1)]
    agreement = Mean(name="agreement", scores=np.stack(rows).astype(np.float64))
    found = worst_slices(agreement, model, groups, **common)
    # That float agrees with itself is no hypothesis to test.
    return tuple(replace(one, p_value=None) for one in found)


def _groups(measuring: Measuring) -> Iterator[Group]:
    scorer, decisions = measuring.scorer, measuring.decisions
    classes = None if scorer is None else scorer.classes()
    if classes is not None:
        for group in groups_by_class(classes):
            yield replace(group, name=measuring.name(int(group.name)))
    elif scorer is None and decisions is not None:
        for group in groups_by_class(decisions.of(0)):
            yield replace(group, name=f"float says {measuring.name(int(group.name))}")
    numbers = None if scorer is None else scorer.numbers()
    if numbers is not None:
        yield from groups_by_range("label", numbers)
    lengths = measuring.lengths(1 if scorer is None else scorer.together)
    yield from groups_by_range("length", lengths, "tokens" if measuring.text else "long")
