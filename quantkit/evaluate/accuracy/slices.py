"""Where the drop is: the same metric on some of the samples, by class, by label, by length.

Looking at many slices finds a bad one by chance; p-values are corrected for their number (Holm).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from quantkit.evaluate.accuracy.measuring import Measuring
from quantkit.evaluate.accuracy.scorer import Figure, Indices, Mean, as_interval
from quantkit.numerics.statistics import holm, mcnemar_exact
from quantkit.result import Slice

_SHOWN = 10
_FEWEST = 5  # samples in a slice
_BINS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Some of the samples.

    Attributes:
        by: "class", "label" or "length".
        name: Which.
        chosen: Their numbers.
    """

    by: str
    name: str
    chosen: Indices


def slices_of(
    measuring: Measuring, figures: Sequence[Figure], model: int, *, confidence: float, seed: int
) -> tuple[Slice, ...]:
    """Return where the main metric drops most; of classes, where hits do; without labels, where answers change.

    Args:
        measuring: What was counted.
        figures: The metrics, the main one first.
        model: The candidate's number.
        confidence: Of the intervals.
        seed: Of the redraws.
    """
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


def _groups(measuring: Measuring) -> Iterator[_Group]:
    scorer, decisions, together = measuring.scorer, measuring.decisions, 1
    if scorer is not None:
        together = scorer.together
        if (classes := scorer.classes()) is not None:
            for group in groups_by_class(classes):
                yield replace(group, name=measuring.name(int(group.name)))
        if (numbers := scorer.numbers()) is not None:
            yield from groups_by_range("label", numbers)
    elif decisions is not None:
        for group in groups_by_class(decisions.of(0)):
            yield replace(group, name=f"float says {measuring.name(int(group.name))}")
    lengths = measuring.lengths(together)
    yield from groups_by_range("length", lengths, "tokens" if measuring.text else "long")


def groups_by_class(classes: Indices) -> Iterator[_Group]:
    """Yield the samples of each class."""
    order = np.argsort(classes, kind="stable")
    found, starts = np.unique(classes[order], return_index=True)
    for value, chosen in zip(found.tolist(), np.split(order, starts[1:]), strict=True):
        yield _Group(by="class", name=str(value), chosen=chosen)


def groups_by_range(by: str, values: NDArray[np.float64], unit: str = "") -> Iterator[_Group]:
    """Yield up to four groups of about as many samples, by ascending value; none where all are the same.

    Equal values are never divided.

    Args:
        by: What is grouped by, in a word.
        values: One number per sample.
        unit: Of the values, for the groups' names.
    """
    edges = np.unique(np.quantile(values, np.arange(1, _BINS) / _BINS, method="higher"))
    least = values.min()
    if values.max() == least:
        return
    # Where most values are the least one, the next value is where the second group begins.
    edges = edges[edges > least] if edges[-1] > least else values[values > least].min(keepdims=True)
    place = np.searchsorted(edges, values, side="right")
    for number in np.unique(place).tolist():
        chosen = np.flatnonzero(place == number)
        low, high = float(values[chosen].min()), float(values[chosen].max())
        span = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        yield _Group(by=by, name=f"{span} {unit}".rstrip(), chosen=chosen)


def worst_slices(
    figure: Figure, model: int, groups: Sequence[_Group], *, confidence: float, seed: int
) -> tuple[Slice, ...]:
    """Return the ten slices with the largest drop, worst first; those under five samples are left out.

    Args:
        figure: What drops.
        model: The candidate's number.
        groups: Which samples make a slice; they may overlap.
        confidence: Of the intervals.
        seed: Of the redraws.
    """
    large = [group for group in groups if group.chosen.size >= _FEWEST]
    parts = [figure.only(group.chosen) for group in large]
    corrected = holm([_p_value(part, model) for part in parts]) if parts else ()
    drops = [part.drop(model) for part in parts]
    order = sorted(range(len(large)), key=lambda i: (-drops[i], corrected[i]))[:_SHOWN]
    return tuple(
        Slice(
            by=large[i].by,
            name=large[i].name,
            samples=parts[i].samples,
            float_value=parts[i].value(0),
            value=parts[i].value(model),
            drop=drops[i],
            interval=as_interval(parts[i].drop_interval(model, confidence, seed), confidence),
            p_value=corrected[i],
        )
        for i in order
    )


def _p_value(figure: Figure, model: int) -> float:
    """Return the probability of such a mean of the samples' own drops by chance: McNemar's for hits, else Student's t."""
    drops = figure.contributions(model)
    if np.isin(drops, (-1.0, 0.0, 1.0)).all():
        return mcnemar_exact(int((drops < 0).sum()), int((drops > 0).sum()))
    spread = float(drops.std(ddof=1))
    if spread == 0:
        return 1.0 if drops[0] == 0 else 0.0
    t = abs(float(drops.mean())) / (spread / np.sqrt(drops.size))
    return float(2 * stdtr(drops.size - 1, -t))
