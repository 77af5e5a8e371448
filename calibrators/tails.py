"""Ranges for inputs that calibration has not seen: rounding against clipping, with a model of the tail.

A range that fits the calibration samples is too narrow for the next thousand. `Peaks` keeps the largest and smallest values of
single samples; a generalized Pareto distribution fitted to them says how far other samples reach. `unseen_range` weighs what a
range is expected to cost on a sample that did not set it:

    J(low, high) = R(step) + w (C(high) + C(-low)),   step = (high - low) / levels

R is the squared error of rounding. C(t) is the expected squared error of clipping at t: below the threshold u of the tail it is
that of the observed values, beyond it

    C(t) = kappa P(M > t) E[(M - t)^2 | M > t] = kappa (k / n) z^(-1/xi) 2 s^2 / ((1 - xi)(1 - 2 xi))
    z = 1 + xi (t - u) / sigma,   s = sigma + xi (t - u)

where k of n samples have a peak M beyond u, and kappa is the clipped energy of a sample over (M - t)^2: it falls from what it is
at u to what it is beyond the highest quarter of these peaks, as fewer values of a sample lie beyond a higher end. The weight w says how
much more a clipped value hurts the outputs of the model than a rounded one; `quantkit.quantize.solve.ranges` measures it.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from calibrators._tally import as_float32
from calibrators.protocol import State
from calibrators.sketch import Sketch

Floats = NDArray[np.float64]

_KEPT = 33  # peaks per side: 32 beyond the threshold, and the threshold
FEWEST_PEAKS = 3  # samples below which nothing can be said about a tail
# The shape xi of tails of activations is estimated from few peaks, so it is drawn towards a light tail, as if ten more peaks
# had shown it. From 1/2 on the expected square is infinite.
_SHAPE, _SHAPE_COUNT, _HEAVIEST, _LIGHTEST = 0.1, 10, 0.45, -0.5
# Ends that are tried, relative to the largest value seen.
_ENDS = np.concatenate([2.0 ** (-np.arange(24)[::-1] / 4), 2.0 ** (np.arange(1, 9) / 8)])


class Peaks:
    """The largest and the smallest values of single samples: the 33 most extreme on each side, exactly.

    Args:
        rows: Samples in an array, along its first axis; an array that cannot be cut into that many counts as one sample.
    """

    ordered: ClassVar[bool] = False
    exact: ClassVar[bool] = True

    __slots__ = ("count", "high", "low", "rows")

    def __init__(self, *, rows: int = 1) -> None:
        self.rows = rows
        self.count = 0
        self.low: NDArray[np.float32] = np.empty(0, np.float32)  # ascending
        self.high: NDArray[np.float32] = np.empty(0, np.float32)  # descending

    def observe(self, array: NDArray[Any]) -> None:
        """Take in the extremes of each sample of an array; NaN and infinities are not values."""
        if not array.size:
            return
        flat = as_float32(array)
        samples = self._samples(flat)
        low, high = samples.min(axis=1), samples.max(axis=1)
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            finite = np.isfinite(samples)
            low = np.min(samples, axis=1, where=finite, initial=np.inf)
            high = np.max(samples, axis=1, where=finite, initial=-np.inf)
            seen = low <= high
            low, high = low[seen], high[seen]
        self._add(low.size, low + np.float32(0), high + np.float32(0))

    def _samples(self, array: NDArray[np.float32]) -> NDArray[np.float32]:
        # The last batch may be short; then its leading extent is the number of samples.
        extent = array.shape[0] if array.ndim > 1 else 1
        rows = self.rows if extent % self.rows == 0 else extent if extent < self.rows else 1
        return array.reshape(rows, -1)

    def _add(self, count: int, low: NDArray[np.float32], high: NDArray[np.float32]) -> None:
        self.count += count
        self.low = np.sort(np.concatenate([self.low, low]))[:_KEPT]
        self.high = np.sort(np.concatenate([self.high, high]))[::-1][:_KEPT].copy()

    def merge(self, other: Self) -> None:
        """Take in what `other` saw."""
        self._add(other.count, other.low, other.high)

    def without(self, other: Self) -> Self:
        """Return the peaks that would have been seen without the samples of `other`, as far as they are known."""
        found = type(self)(rows=self.rows)
        found.count = max(0, self.count - other.count)
        found.low, found.high = (
            _without(own, others)
            for own, others in ((self.low, other.low), (self.high, other.high))
        )
        return found

    def state(self) -> State:
        """Return plain arrays."""
        settings = np.array([self.rows, self.count], np.int64)
        return {"settings": settings, "low": self.low.copy(), "high": self.high.copy()}

    @classmethod
    def from_state(cls, state: State) -> Self:
        """Build the statistic that had this state."""
        rows, count = state["settings"].tolist()
        found = cls(rows=rows)
        found.count, found.low, found.high = count, state["low"].copy(), state["high"].copy()
        return found


def _without(values: NDArray[np.float32], others: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return values less those of another array, each as often as it is there."""
    distinct, counts = np.unique(others, return_counts=True)
    place = np.searchsorted(distinct, values)
    place[place == distinct.size] = 0
    left = np.ones(values.size, np.bool_)
    for i in np.flatnonzero(distinct.size and distinct[place] == values):
        left[i] = counts[place[i]] <= 0
        counts[place[i]] -= 1
    return values[left]


def unseen_range(
    sketch: Sketch, peaks: Peaks, *, clip_weight: float = 1.0, levels: int = 255
) -> tuple[float, float]:
    """Return the range with the least expected cost on a sample that calibration has not seen.

    It may reach beyond the observed values.

    Args:
        sketch: The values of a tensor.
        peaks: The extremes of at least `FEWEST_PEAKS` samples of the same tensor.
        clip_weight: Cost of a clipped value relative to a rounded one of the same squared error.
        levels: Steps of the grid, 255 for 8 bits.
    """
    bins, count = sketch.histogram(), max(1, peaks.count)
    share = float(sketch.seen[0]) / (count * max(1, int(sketch.count[0])))  # values of a sample
    weight: Floats = np.asarray(bins.count * share, np.float64)
    high, clipped_above = _side(bins.center, weight, peaks.high.astype(np.float64), count)
    low, clipped_below = _side(-bins.center, weight, -peaks.low.astype(np.float64), count)
    cost = _rounding(np.abs(bins.center), weight, (high[:, None] + low) / levels)
    cost += clip_weight * (clipped_above[:, None] + clipped_below)
    at = np.unravel_index(int(np.argmin(cost[::-1, ::-1])), cost.shape)  # of equals the widest
    return -float(low[::-1][at[1]]), float(high[::-1][at[0]])


def _rounding(magnitude: Floats, weight: Floats, step: Floats) -> Floats:
    """Return the squared error of rounding by step: x^2 up to half a step, then step^2 / 12."""
    order = np.argsort(magnitude)
    sums = np.zeros((2, order.size + 1))
    sums[0, 1:] = np.cumsum(weight[order])
    sums[1, 1:] = np.cumsum((weight * magnitude**2)[order])
    small = np.searchsorted(magnitude[order], step / 2)
    return sums[1, small] + (sums[0, -1] - sums[0, small]) * step**2 / 12  # type: ignore[no-any-return]


def _side(center: Floats, weight: Floats, peaks: Floats, count: int) -> tuple[Floats, Floats]:
    """Return the ends to try on one side of zero, and the expected clipped energy of a sample beyond each."""
    if not peaks.size or peaks[0] <= 0:
        return np.zeros(1), np.zeros(1)
    ends = peaks[0] * _ENDS
    tail = _Tail.of(center, weight, np.maximum(peaks, 0), count)
    inside = np.array([_clipped(center, weight, t) for t in ends]) * tail.factor
    return ends, np.where(ends < tail.start, inside, tail.clipped(ends))


def _kappa(center: Floats, weight: Floats, peaks: Floats, count: int, end: float) -> float:
    """Return the clipped energy of a sample over (M - end)^2; at least 1, for the peak itself is clipped."""
    square = float(np.square(np.maximum(peaks - end, 0)).sum()) / count
    return max(1.0, _clipped(center, weight, end) / square) if square > 0 else 1.0


def _clipped(center: Floats, weight: Floats, end: float) -> float:
    return float(np.sum(weight * np.square(np.maximum(center - end, 0))))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tail:
    """A generalized Pareto distribution of the peaks beyond `start`, and the energy that they clip.

    Attributes:
        start: The threshold u.
        shape: xi.
        scale: sigma; 0 if all peaks are equal.
        share: k / n.
        kappa: At `start`, and from `top` on.
        top: The lowest of the highest quarter of the peaks.
        factor: Of the observed clipped energy at the threshold, which may lack the largest peaks.
    """

    start: float
    shape: float
    scale: float
    share: float
    kappa: tuple[float, float]
    top: float
    factor: float = 1.0

    @classmethod
    def of(cls, center: Floats, weight: Floats, peaks: Floats, count: int) -> Self:
        """Fit by probability-weighted moments (Hosking and Wallis, 1987)."""
        beyond = min(_KEPT - 1, max(2, count // 4), peaks.size - 1)
        start, excess = float(peaks[beyond]), peaks[:beyond][::-1] - peaks[beyond]
        mean = float(excess.mean())
        place = (np.arange(1, beyond + 1) - 0.35) / beyond
        spread = mean - 2 * float(np.mean((1 - place) * excess))
        found = np.clip(2 - mean / spread, _LIGHTEST, _HEAVIEST) if spread > 0 else _HEAVIEST
        shape = (beyond * float(found) + _SHAPE_COUNT * _SHAPE) / (beyond + _SHAPE_COUNT)
        shape = shape if abs(shape) > 1e-6 else 1e-6  # the limit is an exponential
        top = float(peaks[max(1, beyond // 4)])
        tail = cls(
            start=start,
            shape=shape,
            scale=mean * (1 - shape),
            share=beyond / count,
            kappa=(
                _kappa(center, weight, peaks, count, start),
                _kappa(center, weight, peaks, count, top),
            ),
            top=top,
        )
        at_start = _clipped(center, weight, start)
        expected = float(tail.clipped(np.array([start]))[0])
        factor = max(1.0, expected / at_start) if at_start > 0 else 1.0
        return replace(tail, factor=factor)

    def clipped(self, ends: Floats) -> Floats:
        """Return C(t) for ends beyond the threshold."""
        if self.scale <= 0:
            return np.zeros(ends.shape)
        past = np.maximum(ends - self.start, 0)
        left = np.maximum(1 + self.shape * past / self.scale, 0.0)
        with np.errstate(divide="ignore"):
            chance = np.where(left > 0, left ** (-1 / self.shape), 0.0)
        square = 2 * np.square(self.scale * left) / ((1 - self.shape) * (1 - 2 * self.shape))
        first, last = self.kappa
        fallen = np.minimum(past / max(self.top - self.start, 1e-30), 1.0)
        return self.share * first * (last / first) ** fallen * chance * square
