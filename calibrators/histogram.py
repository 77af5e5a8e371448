"""Histograms of 65,536 fixed log-spaced bins: the top 16 bits of a float32 are its bin.

These bits are sign, exponent and 7 bits of the mantissa. So a bin's values share them, bins are 2^-7 of their
octave wide (below 0.8 % of any of their values), and the bin of -x is that of x plus 0x8000.
"""

import mmap
import sys
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BINS = 2**16
_HALF = 2**15


def _edges() -> NDArray[np.float64]:
    """Return the lower edges of the bins of positive numbers, and that of the bin after the last."""
    patterns = np.arange(_HALF + 1, dtype=np.uint32) << 16
    edges = patterns[:0x7F81].view(np.float32).astype(np.float64)
    edges[-1] = 2.0**128  # the pattern of infinity, where a wider exponent would go on
    return edges


_EDGES = _edges()


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """The occupied bins, ascending by value.

    Invariants: float64 arrays of one shape, `count` int64 and positive; lower <= center <= upper, equal
    only for zero and for a bin whose values are known to be all the same; center is the midpoint.
    """

    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    center: NDArray[np.float64]
    count: NDArray[np.int64]


def table(rows: int) -> NDArray[np.int64]:
    """Return counts of zero, in memory that is taken only where it is written.

    A row of 512 KB is mostly never touched. np.zeros asks for huge pages from 4 MB on, which would back all of
    it: measured with 1000 channels of normal values, 533 KB a channel, against 65 KB so.
    """
    if rows <= 1 or sys.platform != "linux":
        return np.zeros((rows, BINS), np.int64)
    memory = mmap.mmap(-1, rows * BINS * 8, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages knows no such advice
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, np.int64).reshape(rows, BINS)


def occupied(row: NDArray[np.int64], low: float, high: float) -> NDArray[np.intp]:
    """Return the bins in use of a row whose values lie in [low, high], looking no further than these.

    Args:
        row: Counts by bin.
        low: The smallest value seen.
        high: The largest value seen.
    """
    up = np.flatnonzero(row[: _bin(high) + 1])
    down = np.flatnonzero(row[_HALF : _HALF + _bin(-low) + 1])
    return np.concatenate([up, down + _HALF])


def _bin(x: float) -> int:
    """Return the bin of a value, 0 for what is not positive."""
    return int(np.float32(max(x, 0.0)).view(np.uint32)) >> 16


def values(row: NDArray[np.int64], low: float, high: float) -> Histogram:
    """Return the bins of one row of counts, which may end early, clipped to the exact extremes.

    +0, -0 and what shares their bins (magnitudes below 2^-133) are one entry at zero.

    Args:
        row: Counts by bin.
        low: The smallest value seen.
        high: The largest value seen.
    """
    used = occupied(row, low, high)
    up = used[(used > 0) & (used < _HALF)]
    down = used[used > _HALF][::-1] - _HALF
    zeros = row[:1].sum() + row[_HALF : _HALF + 1].sum()
    zero = np.zeros(int(zeros > 0))
    lower = np.concatenate([np.maximum(-_EDGES[down + 1], low), zero, np.maximum(_EDGES[up], low)])
    upper = np.concatenate(
        [np.minimum(-_EDGES[down], high), zero, np.minimum(_EDGES[up + 1], high)]
    )
    count = np.concatenate([row[down + _HALF], np.full(zero.size, zeros), row[up]])
    return Histogram(lower=lower, upper=upper, center=(lower + upper) / 2, count=count)


def magnitudes(row: NDArray[np.int64]) -> Histogram:
    """Return the bins of |x| of one row of counts, without zero, at their full width."""
    both = np.zeros(_HALF, np.int64)
    for half in (row[:_HALF], row[_HALF:]):
        both[: half.size] += half
    both[0] = 0
    used = np.flatnonzero(both)
    lower, upper = _EDGES[used], _EDGES[used + 1]
    return Histogram(lower=lower, upper=upper, center=(lower + upper) / 2, count=both[used])
