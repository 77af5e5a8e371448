"""The threshold that loses the least information, by Kullback-Leibler divergence.

The usual int8 calibration (TensorRT's), on log-spaced bins. For a threshold t at the upper edge of bin m:

    P: the counts of the bins up to m, with the outliers, all above m, added to bin m
    Q: the counts up to m without the outliers, their mass evened out inside each of K levels of width t / K,
       over the part of the level that occupied bins cover
    KL(P || Q) = integral p log(p / q),   p, q normalized densities

Bins and levels do not align, so both are densities: a bin's count is spread evenly over the bin. With C(x) and S(x)
the count and the covered length up to x, M_k and L_k their increase over level k, out the outliers, N = C + out:

    N KL = sum_{j < m} c_j log(c_j / (N w_j)) + (c_m + out) log((c_m + out) / (N w_m))
           - sum_k M_k log q_k - out mean_{bin m} log q,      q_k = M_k / (L_k (N - out))

so a threshold costs two interpolations of K points.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from calibrators.histogram import Histogram
from calibrators.methods._fit import check_levels, fit
from calibrators.ranges import Range
from calibrators.sketch import Sketch

__all__ = ["Entropy"]

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
