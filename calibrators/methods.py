"""Range methods: each reads a sketch and chooses what part of the values the integers should cover.

`MinMax` takes the whole range, `Percentile` its central part.

`Entropy` takes the threshold that loses the least information, by Kullback-Leibler divergence. The usual int8 calibration (TensorRT's), on log-spaced bins. For a threshold t at the upper edge of bin m:

    P: the counts of the bins up to m, with the outliers, all above m, added to bin m
    Q: the counts up to m without the outliers, their mass evened out inside each of K levels of width t / K,
       over the part of the level that occupied bins cover
    KL(P || Q) = integral p log(p / q),   p, q normalized densities

Bins and levels do not align, so both are densities: a bin's count is spread evenly over the bin. With C(x) and S(x)
the count and the covered length up to x, M_k and L_k their increase over level k, out the outliers, N = C + out:

    N KL = sum_{j < m} c_j log(c_j / (N w_j)) + (c_m + out) log((c_m + out) / (N w_m))
           - sum_k M_k log q_k - out mean_{bin m} log q,      q_k = M_k / (L_k (N - out))

so a threshold costs two interpolations of K points.

`MeanSquaredError` takes the range with the least squared error after rounding.

    E(lo, hi) = sum_j count_j e_j,   step = (hi - lo) / levels,   grid = {q step: qmin <= q <= qmax}

with e_j the mean of (x - nearest grid point)^2 over bin j, its values taken as evenly spread. In steps,
u = x / step, the integral of the squared error has a closed form:

    H(u) = n / 12 + (r - n)^3 / 3 + sign(v) ((1/2 + |v|)^3 - 1/8) / 3
    r = clip(u, qmin - 1/2, qmax + 1/2),   n = rint(r),   v = u - r
    e_j = step^2 (H(upper_j / step) - H(lower_j / step)) / (upper_j / step - lower_j / step)

So a bin much wider than the step has step^2 / 12, a narrow one the rounding error of its center, and one outside
its distance to the end, without a case for each.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from calibrators.histogram import Histogram
from calibrators.ranges import Range
from calibrators.sketch import Sketch


@dataclass(frozen=True, slots=True)
class MinMax:
    """[min(low, 0), max(high, 0)], exactly: no value is clipped."""

    name: ClassVar[str] = "minmax"

    def __call__(self, sketch: Sketch) -> Range:
        """Return the extremes, widened to hold zero."""
        zero = np.float32(0)
        return Range(low=np.minimum(sketch.low, zero), high=np.maximum(sketch.high, zero))


Choice = Callable[[Sketch, int], tuple[float, float]]
"""A sketch and a channel with counted values -> the ends of its range."""


def fit(sketch: Sketch, choose: Choice) -> Range:
    """Choose for each channel that has values, and hold the result in [min(low, 0), max(high, 0)]."""
    low, high = np.minimum(sketch.low, np.float32(0)), np.maximum(sketch.high, np.float32(0))
    found = np.stack([low, high])
    for channel in np.flatnonzero(sketch.count):
        found[:, channel] = choose(sketch, int(channel))
    return Range(low=np.clip(found[0], low, 0), high=np.clip(found[1], 0, high))


def check_levels(levels: int) -> None:
    """Refuse a range without a step."""
    if levels < 1:
        raise ValueError(f"A range has at least one level above the lowest, not {levels}.")


@dataclass(frozen=True, slots=True)
class Percentile:
    """The central `keep` per cent of the values.

    Each tail loses (100 - keep) / 2 per cent; values that are all of one sign have one open side, which
    loses the whole 100 - keep. Ends are numpy's linear percentiles, taken between the values' bins: each is
    within one bin of the percentile of the values themselves.

    Invariant: 0 < keep <= 100; 100 keeps everything.
    """

    keep: float = 99.99

    name: ClassVar[str] = "percentile"

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 100:  # per cent
            raise ValueError(
                f"A percentile keeps more than 0 and up to 100 per cent, not {self.keep}."
            )

    def __call__(self, sketch: Sketch) -> Range:
        """Return the range that keeps the central values of each channel."""
        return fit(sketch, self._choose)

    def _choose(self, sketch: Sketch, channel: int) -> tuple[float, float]:
        bins = sketch.histogram(channel)
        known = np.array([sketch.low[channel], sketch.high[channel]], np.float64)
        cut = 1 - self.keep / 100
        tail = cut / 2 if known[0] < 0 < known[1] else cut
        return _quantile(bins, known, tail), _quantile(bins, known, 1 - tail)


def _quantile(bins: Histogram, known: NDArray[np.float64], q: float) -> float:
    """Return the value of rank q (n - 1), counted from zero, between the two values next to it."""
    until = np.cumsum(bins.count)
    n = int(until[-1])
    rank = q * (n - 1)
    first = int(rank)
    below, above = (_value(bins, until, known, min(i, n - 1)) for i in (first, first + 1))
    return below + (above - below) * (rank - first)


def _value(
    bins: Histogram, until: NDArray[np.int64], known: NDArray[np.float64], rank: int
) -> float:
    """Return the value of an integer rank: the extremes are known, others lie evenly in their bin."""
    if rank == 0:
        return float(known[0])
    if rank == until[-1] - 1:
        return float(known[1])
    i = int(np.searchsorted(until, rank, side="right"))
    place = (rank - (until[i] - bins.count[i]) + 0.5) / bins.count[i]
    return float(bins.lower[i] + (bins.upper[i] - bins.lower[i]) * place)


# No threshold clips more than this share of the values that are not zero.
_CLIP = 0.1
# At most this many thresholds are tried; among more bins they are evenly spaced.
_CANDIDATES = 256
# Of thresholds as good as this to the best, the widest is taken.
_TIE = 1e-12


@dataclass(frozen=True, slots=True)
class Entropy:
    """The threshold on |x| with the least KL divergence between the values and their quantization.

    Two-sided values share one threshold, [-t, t], with K = levels // 2 levels a side, as is usual: weighing one
    side's divergence against the other's has no meaning. Values of one sign have K = levels on theirs. Zeros are
    left out: every range holds zero exactly, so they say nothing about t.

    Thresholds tried: upper edges of occupied bins with at least K occupied bins (below that Q = P, and
    any t is perfect) and 90 % of the values at or below them; at most 256, evenly spaced. With fewer than K
    occupied bins the result is min-max.
    """

    levels: int = 255

    name: ClassVar[str] = "entropy"

    def __post_init__(self) -> None:
        check_levels(self.levels)

    def __call__(self, sketch: Sketch) -> Range:
        """Return the best range of each channel."""
        return fit(sketch, self._choose)

    def _choose(self, sketch: Sketch, channel: int) -> tuple[float, float]:
        low, high = float(sketch.low[channel]), float(sketch.high[channel])
        k = max(1, self.levels // 2) if low < 0 < high else self.levels
        bins = sketch.magnitudes(channel)
        last = _candidates(bins, k)
        if last.size == 0:
            return low, high
        loss = _divergence(bins, last, k)
        t = float(bins.upper[last[np.flatnonzero(loss <= loss.min() + _TIE)[-1]]])
        return max(-t, low), min(t, high)


def _candidates(bins: Histogram, k: int) -> NDArray[np.intp]:
    """Return the bins to end at, ascending; the last is the outermost."""
    until = np.cumsum(bins.count)
    if until.size < k or not until.size:
        return np.empty(0, np.intp)
    enough = int(np.searchsorted(until, (1 - _CLIP) * until[-1]))
    first = min(max(k - 1, enough), until.size - 1)
    tried = np.linspace(first, until.size - 1, min(_CANDIDATES, until.size - first))
    return np.rint(tried).astype(np.intp)


def _divergence(bins: Histogram, last: NDArray[np.intp], k: int) -> NDArray[np.float64]:
    """Return KL(P || Q) for thresholds at the upper edges of the bins `last`."""
    count, width = bins.count.astype(np.float64), bins.upper - bins.lower
    until = np.cumsum(count)
    total = until[-1]
    out = total - until[last]
    points = bins.upper[last][:, None] * (np.arange(k + 1) / k)
    log_q, mass = _levels(bins, points)
    log_q -= np.log(total - out)[:, None]

    inner = np.cumsum(count * np.log(count / (total * width)))
    inner = np.concatenate([[0.0], inner])[last]
    outer = count[last] + out
    outer *= np.log(outer / (total * width[last]))

    overlap = np.minimum(points[:, 1:], bins.upper[last][:, None])
    overlap -= np.maximum(points[:, :-1], bins.lower[last][:, None])
    mean = (np.maximum(overlap, 0) * log_q).sum(axis=1) / width[last]
    return (inner + outer - (mass * log_q).sum(axis=1) - out * mean) / total  # type: ignore[no-any-return]


def _levels(
    bins: Histogram, points: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return log(M / L), zero for empty levels, and M, of the levels between the points of each row."""
    edges = np.stack([bins.lower, bins.upper], axis=1).reshape(-1)
    steps = np.stack([bins.count, bins.upper - bins.lower])
    sums = np.zeros((2, edges.size))
    sums[:, 1::2] = np.cumsum(steps, axis=1)
    sums[:, 2::2] = sums[:, 1:-1:2]
    mass, length = (np.diff(np.interp(points, edges, column), axis=1) for column in sums)
    # A sliver of a bin may round to a length of zero, or to a mass.
    used = (mass > 0) & (length > 0)
    density = np.divide(mass, length, out=np.ones_like(mass), where=used)
    return np.log(density), np.where(used, mass, 0)


Floats = NDArray[np.float64]

# The search shrinks both ends by these factors, every one with every other, then varies the best by ever smaller
# ones: 12 octaves in halves, then eighths, 32nds, and 64ths, which is about the width of a bin.
_FACTORS = (
    2.0 ** (-np.arange(24) / 2),
    2.0 ** (np.arange(-4, 5) / 8),
    2.0 ** (np.arange(-4, 5) / 32),
    2.0 ** (np.arange(-2, 3) / 64),
)
# Of each round this many go to the exact comparison.
_FINALISTS = 2
# Bins narrower than this many steps are taken as points: the difference of H would be rounding noise.
_POINT = 1e-4


@dataclass(frozen=True, slots=True)
class MeanSquaredError:
    """The range with the least squared error after rounding to `levels` steps.

    `symmetric` searches grids [-t, t] of levels // 2 steps per side, 127 for 255. What is returned is the part of
    it that has values, so that t = max(-low, high).

    Invariants: never worse than min-max, by the error of the bins; of equal ranges the widest.
    """

    levels: int = 255
    symmetric: bool = False

    name: ClassVar[str] = "mse"

    def __post_init__(self) -> None:
        check_levels(self.levels)

    def __call__(self, sketch: Sketch) -> Range:
        """Return the best range of each channel."""
        return fit(sketch, self._choose)

    def _choose(self, sketch: Sketch, channel: int) -> tuple[float, float]:
        low, high = min(float(sketch.low[channel]), 0.0), max(float(sketch.high[channel]), 0.0)
        levels = self.levels
        if self.symmetric:
            levels = 2 * max(1, levels // 2)
            high = max(-low, high)
            low = -high
        if low == high:
            return 0.0, 0.0
        bins = sketch.histogram(channel)
        sums = _Sums.of(bins)
        full = np.array([[low, high]])
        finalists, best = [full], full[0]
        for factors in _FACTORS:
            found = np.clip(self._grid(best, factors), low, high)
            order = np.argsort(sums.errors(found, levels))[:_FINALISTS]
            finalists.append(found[order])
            best = found[order[0]]
        return _best(bins, np.concatenate(finalists), levels)

    def _grid(self, ends: Floats, factors: Floats) -> Floats:
        """Return ranges (n, 2): both ends times every factor, zero once."""
        if self.symmetric:
            return ends * factors[:, None]
        low, high = (end * factors if end else np.zeros(1) for end in ends)
        return np.stack(np.meshgrid(low, high), axis=-1).reshape(-1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sums:
    """Running sums over the bins, which give the error of any range in a few lookups.

    moments[i]: sums of count x^i over the bins before each, i = 0, 1, 2.
    """

    center: Floats
    moments: Floats

    @classmethod
    def of(cls, bins: Histogram) -> "_Sums":
        first = bins.count * bins.center
        powers = np.stack([bins.count, first, first * bins.center])
        moments = np.concatenate([np.zeros((3, 1)), np.cumsum(powers, axis=1)], axis=1)
        return cls(center=bins.center, moments=moments)

    def errors(self, ranges: Floats, levels: int) -> Floats:
        """Estimate E of each range: x^2 up to half a step, then step^2 / 12, (x - end)^2 outside."""
        step = (ranges[:, 1] - ranges[:, 0]) / levels
        low = np.rint(ranges[:, 0] / step) * step  # the ends of the grid, which holds zero
        high = low + levels * step
        low_at = np.searchsorted(self.center, low)
        high_at = np.searchsorted(self.center, high, side="right")
        small_at = np.searchsorted(self.center, np.maximum(-step / 2, low))
        large_at = np.searchsorted(self.center, np.minimum(step / 2, high), side="right")
        count, _, square = self.moments
        inside = count[high_at] - count[low_at] - (count[large_at] - count[small_at])
        return (  # type: ignore[no-any-return]
            square[large_at]
            - square[small_at]
            + inside * step * step / 12
            + _spread(self.moments[:, low_at], low)
            + _spread(self.moments[:, -1:] - self.moments[:, high_at], high)
        )


def _spread(moments: Floats, end: Floats) -> Floats:
    """Return sum count (x - end)^2 of values with these moments."""
    return moments[2] - 2 * end * moments[1] + end * end * moments[0]  # type: ignore[no-any-return]


def _best(bins: Histogram, ranges: Floats, levels: int) -> tuple[float, float]:
    """Return the range with the least E, of equals the widest."""
    widths = ranges[:, 1] - ranges[:, 0]
    ranges = ranges[np.argsort(-widths, kind="stable")]
    # Within half the finest step everything rounds to zero, whatever the range.
    small = np.maximum(np.abs(bins.lower), np.abs(bins.upper)) < widths.min() / levels / 2
    rest = Histogram(
        lower=bins.lower[~small],
        upper=bins.upper[~small],
        center=bins.center[~small],
        count=bins.count[~small],
    )
    errors = [_error(rest, low, high, levels) for low, high in ranges]
    low, high = ranges[int(np.argmin(errors))]
    return float(low), float(high)


def _error(bins: Histogram, low: float, high: float, levels: int) -> float:
    """Return E of a range, by the closed form."""
    step = (high - low) / levels
    qmin = np.rint(low / step)
    lower, upper, center = bins.lower / step, bins.upper / step, bins.center / step
    width = upper - lower
    point = width < _POINT
    area = _integral(upper, qmin, qmin + levels) - _integral(lower, qmin, qmin + levels)
    mean = area / np.where(point, 1, width)
    exact = np.square(center - np.clip(np.rint(center), qmin, qmin + levels))
    return float(step * step * (bins.count * np.where(point, exact, mean)).sum())


def _integral(u: Floats, qmin: float, qmax: float) -> Floats:
    """Return H(u)."""
    r = np.clip(u, qmin - 0.5, qmax + 0.5)
    n = np.rint(r)
    v = u - r
    inner = r - n
    found = n / 12 + inner * inner * inner / 3
    outside = v != 0
    if outside.any():
        v = v[outside]
        far = 0.5 + np.abs(v)
        found[outside] += np.sign(v) * (far * far * far - 0.125) / 3  # a power is 12 times slower
    return found
