"""Ranges of activations by their effect on the outputs of the model, for inputs that calibration has not seen.

A tensor is rounded alone in the float model, once with a range that holds all its values and once with a narrower one that clips
some. The noise at the outputs tells how much more a clipped value hurts than a rounded one of the same squared error:

    clip weight = (noise by clipping / clipped energy) / (noise by rounding / rounding energy)

It differs by orders of magnitude from tensor to tensor: behind a channel that the next layer ignores it is near 0, and in the last
blocks of a ResNet it is above 100, so that a wide range costs nothing there and a narrow one ruins single images. With this weight
`calibrators.unseen_range` finds the range with the least expected noise. It is measured on the samples with the largest values.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators import Peaks, Sketch, unseen_range
from calibrators.tails import FEWEST_PEAKS
from quantkit.model.ops.float_ops import FIXED_RANGES, MOVES
from quantkit.model.ops.view import View
from quantkit.quantize.plan import Plan
from quantkit.quantize.plan.model import ActivationPlan
from quantkit.quantize.solve.losses import Meter
from quantkit.runtime.taps import TensorReader

Feeds = Sequence[Mapping[str, NDArray[Any]]]
Ranges = dict[str, tuple[float, float]]
Weights = Mapping[str, float]
Statistics = tuple[Sketch, Peaks]
Observed = Mapping[str, Statistics]

_NARROW = 0.6  # of the range of a sample, to see the effect of clipping
_LEAST, _MOST = 1e-5, 1000.0  # weights beyond are errors of measurement
_LIGHT = 0.1  # a smaller weight is believed only if other samples show it, too
_TRIALS = 4  # samples on which it is measured then
_SAME = 1.1  # ends closer than this are one range, whatever the weight
_MEASURED = 48  # tensors, of which the range depends most on the weight
_LOUDEST = 8  # samples on which weights are measured
_BITS = 8


def is_open(tensor: str, view: View, plan: Plan) -> bool:
    """Return whether a tensor has 8 bits and a range of its own: no formula and no other tensor fixes it."""
    decided, producer = plan.activation[tensor], view.maker(tensor)
    if decided.dtype.bits != _BITS or decided.shares or decided.converted is not None:
        return False
    if tensor in view.constants:
        return False
    if producer is None:
        return True
    if producer.op_type in MOVES:
        return producer.inputs[0] not in plan.activation
    return producer.op_type not in FIXED_RANGES


def fit_ranges(observed: Observed, weights: Weights) -> Ranges:
    """Return the range of each tensor with the least expected noise; none where too few samples were seen.

    Args:
        observed: Values and peaks by tensor.
        weights: Clip weights; tensors without one have weight 1.
    """
    return {
        tensor: unseen_range(sketch, peaks, clip_weight=weights.get(tensor, 1.0))
        for tensor, (sketch, peaks) in observed.items()
        if peaks.count >= FEWEST_PEAKS and not sketch.empty
    }


def loudest_samples(holders: Iterable[int], most: int = _LOUDEST) -> list[int]:
    """Return the samples that hold the extremes of most tensors.

    Args:
        holders: For each extreme of a tensor the sample that holds it.
        most: How many samples to return.
    """
    return [sample for sample, _ in Counter(holders).most_common(most)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """One sample of one tensor: how wide its range is, and what rounding and clipping do to it.

    Attributes:
        sample: Which of the samples.
        scale: The step of a range that holds all values.
        rounding: Squared error of rounding by that step.
        clipping: Squared error of clipping at `_NARROW` of that range.
    """

    sample: int
    scale: float
    rounding: float
    clipping: float


def clip_weights(
    meter: Meter, reader: TensorReader, plan: Plan, observed: Observed, feeds: Feeds
) -> dict[str, float]:
    """Measure the clip weight of each tensor whose best range depends on it.

    Args:
        meter: Of the same model, plan and samples.
        reader: Reads the observed tensors of the float model.
        plan: Which tensors are rounded, and their numbers so far.
        observed: Tensors that have an open range, with their values and peaks.
        feeds: Samples with large values.
    """
    light = fit_ranges(observed, dict.fromkeys(observed, 1 / 64))
    heavy = fit_ranges(observed, dict.fromkeys(observed, 64.0))
    open_ends = [t for t in heavy if t in meter.adjustable and not _are_same(light[t], heavy[t])]
    open_ends.sort(key=lambda t: _width(light[t]) / _width(heavy[t]))
    asked = set(open_ends[:_MEASURED])
    trials: dict[str, list[_Trial]] = {}
    for number, values in enumerate(reader.read(feeds)):
        for tensor in asked & values.keys():
            found = _trial(number, values[tensor], plan.activation[tensor])
            if found:
                trials.setdefault(tensor, []).append(found)
    tensors = list(trials)
    weights = meter.at_once(lambda t: _weight(meter, plan.activation[t], trials[t]), tensors)
    return {t: weight for t, weight in zip(tensors, weights, strict=True) if weight}


def _width(ends: tuple[float, float]) -> float:
    return ends[1] - ends[0]


def _are_same(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return all(
        abs(a) <= _SAME * abs(b) <= _SAME**2 * abs(a) for a, b in zip(one, other, strict=True)
    )


def _trial(sample: int, array: NDArray[Any], decided: ActivationPlan) -> _Trial | None:
    """Describe a tensor on one sample; None if it has no values to clip."""
    values = np.asarray(array, np.float64)
    lowest, highest = (
        decided.dtype.qmin - decided.zero_point,
        decided.dtype.qmax - decided.zero_point,
    )
    ends = [(values.max(initial=0), highest), (-values.min(initial=0), -lowest)]
    scale = max((end / steps for end, steps in ends if steps > 0), default=0.0)
    if not 0 < scale < np.inf:
        return None
    rounded = np.clip(np.rint(values / scale), lowest, highest) * scale
    clipped = np.clip(values, _NARROW * lowest * scale, _NARROW * highest * scale)
    rounding, clipping = (float(np.square(values - x).sum()) for x in (rounded, clipped))
    if not (rounding > 0 and clipping > 0):
        return None
    return _Trial(sample=sample, scale=scale, rounding=rounding, clipping=clipping)


def _weight(meter: Meter, decided: ActivationPlan, trials: Sequence[_Trial]) -> float | None:
    """Return the clip weight of a tensor, on the sample with its largest values; None where no noise comes out."""
    weight, widest = None, max(one.scale for one in trials)
    # Samples with small values have others to clip.
    loud = (one for one in trials if one.scale >= widest / 2)
    for trial in sorted(loud, key=lambda one: -one.scale)[:_TRIALS]:
        found = _weight_on(meter, decided, trial)
        if found is not None:
            weight = max(found, weight or 0.0)
        # A Clip or MaxPool behind the tensor may hide the clipping of single samples.
        if weight is not None and weight >= _LIGHT:
            break
    return weight


def _weight_on(meter: Meter, decided: ActivationPlan, trial: _Trial) -> float | None:
    """Run the model twice with one tensor rounded: with a range that holds all values, and with a narrower one."""
    wide, narrow = (
        meter.noise_alone(decided.tensor, trial.sample, scale, decided.zero_point)
        for scale in (trial.scale, _NARROW * trial.scale)
    )
    if not (0 < wide < np.inf and narrow < np.inf):
        return None
    by_clipping = max(narrow - _NARROW**2 * wide, 0.0)  # finer steps leave less noise by rounding
    weight = by_clipping / trial.clipping / (wide / trial.rounding)
    return float(np.clip(weight, _LEAST, _MOST))


Parts = Mapping[str, Sequence[Statistics]]
"""What was observed of a tensor on each part of the samples; sample number n belongs to part n modulo their number."""
