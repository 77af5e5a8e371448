"""Ranges of an array, over given axes, kept as axes of length one.

Every estimator returns ``low <= 0 <= high``, inside the exact minimum and maximum (widened to hold
zero, and to be symmetric where that is asked for). NaN and infinities are not values: they are left out.
"""

import warnings
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

Axes = tuple[int, ...] | None

# Share of the range kept by each candidate of the MSE search.
_SHRINK = np.linspace(0.5, 1.0, 26)[::-1]


class RangeMethod(StrEnum):
    """How a range is chosen."""

    MINMAX = "minmax"
    PERCENTILE = "percentile"
    MSE = "mse"


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Lower and upper end. Invariants: same shape, finite, low <= 0 <= high."""

    low: NDArray[np.float32]
    high: NDArray[np.float32]


def minmax(array: NDArray[Any], axes: Axes = None) -> Range:
    """Return the smallest and largest finite value."""
    x = np.asarray(array)
    with np.errstate(invalid="ignore"):
        low = np.min(x, axis=axes, keepdims=True, initial=0)
        high = np.max(x, axis=axes, keepdims=True, initial=0)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        finite = np.where(np.isfinite(x), x, 0)
        low = np.min(finite, axis=axes, keepdims=True, initial=0)
        high = np.max(finite, axis=axes, keepdims=True, initial=0)
    return Range(low=low.astype(np.float32), high=high.astype(np.float32))


def percentile(array: NDArray[Any], axes: Axes = None, *, keep: float = 99.99) -> Range:
    """Return the central `keep` per cent of the values.

    Args:
        array: Values.
        axes: Over which a range is taken; None: all.
        keep: Per cent, 99.9 for example.
    """
    if array.size == 0:
        return minmax(array, axes)
    x = np.where(np.isfinite(array), array, np.nan).astype(np.float32)
    tail = (100 - keep) / 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a channel without values gets (0, 0)
        low, high = np.nanpercentile(x, [tail, 100 - tail], axis=axes, keepdims=True)
    return Range(
        low=np.minimum(np.nan_to_num(low), 0).astype(np.float32),
        high=np.maximum(np.nan_to_num(high), 0).astype(np.float32),
    )


def mse(
    array: NDArray[Any], axes: Axes = None, *, levels: int = 255, symmetric: bool = False
) -> Range:
    """Return the shrunken min-max range with the least squared error after rounding to `levels` steps.

        argmin_c  sum (x - Q_c(x))^2,   Q_c rounds to `levels` steps of c [low, high]

    26 values of c from 1 down to 0.5; ties keep the wider range.

    Args:
        array: Values.
        axes: Over which a range is taken; None: all.
        levels: Steps of the grid, 255 for 8 bits.
        symmetric: Zero is in the middle of the grid.
    """
    x = np.where(np.isfinite(array), array, 0).astype(np.float32)
    full = minmax(x, axes)
    low, high = full.low, full.high
    if symmetric:
        high = np.maximum(-low, high)
        low = -high
    best_low, best_high = low, high
    best = np.full(low.shape, np.inf)
    for c in _SHRINK:
        step = np.maximum((high - low) * np.float32(c / levels), np.finfo(np.float32).tiny)
        q = np.clip(np.rint(x / step), np.rint(low * c / step), np.rint(high * c / step))
        error = np.square(q * step - x).sum(axis=axes, keepdims=True, dtype=np.float64)
        better = error < best
        best = np.where(better, error, best)
        best_low = np.where(better, low * np.float32(c), best_low)
        best_high = np.where(better, high * np.float32(c), best_high)
    return Range(low=best_low, high=best_high)


def estimate(
    array: NDArray[Any],
    axes: Axes,
    method: RangeMethod,
    *,
    levels: int = 255,
    symmetric: bool = False,
) -> Range:
    """Estimate a range by the method's name.

    Args:
        array: Values.
        axes: Over which a range is taken; None: all.
        method: Its name.
        levels: Steps of the grid, for methods that round.
        symmetric: Zero is in the middle of the grid.
    """
    match method:
        case RangeMethod.MINMAX:
            return minmax(array, axes)
        case RangeMethod.PERCENTILE:
            return percentile(array, axes)
        case RangeMethod.MSE:
            return mse(array, axes, levels=levels, symmetric=symmetric)
