"""The range with the least squared error after rounding.

    E(lo, hi) = sum_j count_j e_j,   step = (hi - lo) / levels,   grid = {q step: qmin <= q <= qmax}

with e_j the mean of (x - nearest grid point)^2 over bin j, its values taken as evenly spread. In steps,
u = x / step, the integral of the squared error has a closed form:

    H(u) = n / 12 + (r - n)^3 / 3 + sign(v) ((1/2 + |v|)^3 - 1/8) / 3
    r = clip(u, qmin - 1/2, qmax + 1/2),   n = rint(r),   v = u - r
    e_j = step^2 (H(upper_j / step) - H(lower_j / step)) / (upper_j / step - lower_j / step)

So a bin much wider than the step has step^2 / 12, a narrow one the rounding error of its center, and one outside
its distance to the end, without a case for each.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from calibrators.histogram import Histogram
from calibrators.methods._fit import check_levels, fit
from calibrators.ranges import Range
from calibrators.sketch import Sketch

__all__ = ["MeanSquaredError"]

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
