"""Scales of activations without some of the samples, to judge a result on samples that calibrate as well."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from calibrators import Peaks, Sketch
from quantkit.numerics.affine import affine_from_range
from quantkit.quantize.plan import Plan
from quantkit.quantize.plan.model import ActivationPlan
from quantkit.quantize.solve.ranges import Feeds, Observed, Parts, Ranges, Statistics
from quantkit.runtime.taps import TensorReader

_FOLDS = 4


def observe_parts(reader: TensorReader, tensors: Iterable[str], feeds: Feeds) -> Parts:
    """Observe tensors of a model, which the reader reads, on a few parts of the samples."""
    folds = min(_FOLDS, len(feeds))
    parts = {t: [(Sketch(), Peaks()) for _ in range(folds)] for t in tensors}
    for number, values in enumerate(reader.read(feeds)):
        for tensor in parts.keys() & values.keys():
            for statistic in parts[tensor][number % folds]:
                statistic.observe(values[tensor])
    return parts


def numbers_without(
    part: int, plan: Plan, fit: Callable[[Observed], Ranges], observed: Observed, parts: Parts
) -> dict[str, tuple[float, int]]:
    """Return scales and zero points by tensor, fitted without one part of the samples.

    Args:
        part: Its number.
        plan: With the ranges that all samples set.
        fit: Finds the ranges of tensors.
        observed: Values and peaks of the tensors, on all samples.
        parts: The same on some samples or all.
    """
    others = {t: _left_out(observed[t], own, part) for t, own in parts.items()}
    return {t: _numbers(plan.activation[t], ends) for t, ends in fit(others).items()}


def _left_out(whole: Statistics, parts: Sequence[Statistics], fold: int) -> Statistics:
    """Return what was observed of a tensor on other samples than those of one part."""
    sketch, peaks = whole
    if peaks.count > sum(own.count for _, own in parts):
        # Of many samples, some make little difference to a distribution, and all to its ends.
        return sketch, peaks.without(parts[fold][1])
    return _merged([own for number, own in enumerate(parts) if number != fold])


def _merged(parts: Sequence[Statistics]) -> Statistics:
    sketch, peaks = Sketch(), Peaks()
    for own_sketch, own_peaks in parts:
        sketch.merge(own_sketch)
        peaks.merge(own_peaks)
    return sketch, peaks


def _numbers(decided: ActivationPlan, ends: tuple[float, float]) -> tuple[float, int]:
    """Return scale and zero point of a range, of the type and symmetry of a plan."""
    kind = decided.dtype
    found = affine_from_range(
        np.array([ends[0]]),
        np.array([ends[1]]),
        qmin=kind.qmin,
        qmax=kind.qmax,
        symmetric=kind.signed and decided.zero_point == 0,
    )
    return float(found.scale[0]), int(found.zero_point[0])
