"""The numbers every statistic of values keeps: extremes, counts, exact sums; and how arrays are read.

Hot loops work in memory of their thread (`scratch`): fresh pages cost more than the arithmetic in them.
"""

import threading
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from calibrators.exact import ExactSum
from calibrators.protocol import State

Number = TypeVar("Number", bound=np.generic)


class _Buffers(threading.local):
    """Growable arrays by dtype."""

    def __init__(self) -> None:
        self.arrays: dict[Any, NDArray[Any]] = {}


_buffers = _Buffers()


def scratch(dtype: type[Number], size: int) -> NDArray[Number]:
    """Return uninitialized memory of this thread, which the next request for this dtype overwrites."""
    array = _buffers.arrays.get(dtype)
    if array is None or array.size < size:
        _buffers.arrays[dtype] = array = np.empty(size, dtype)
    return array[:size]


# float64 sums are taken over runs of this many values of an array, which with their copies stay in the L2 cache,
# and then added exactly. Part of the definition of a sum: tensors and channels use the same runs.
RUN = 2**14
_REAL = ("f", "i", "u", "b")


def as_float32(array: NDArray[Any]) -> NDArray[np.float32]:
    """Return the values as native float32; what lies beyond its range becomes infinite.

    Raises:
        TypeError: The array does not hold real numbers.
    """
    x = np.asarray(array)
    if x.dtype == np.float32:
        return x.astype(np.float32, copy=False)  # a byte-swapped array is equal, but not native
    # ml_dtypes registers bfloat16 and float8 types with kind "V" or "f"; their names tell.
    if x.dtype.kind not in _REAL and not x.dtype.name.startswith(("bfloat", "float")):
        raise TypeError(f"Statistics need real numbers, not an array of {x.dtype.name}.")
    with np.errstate(over="ignore", invalid="ignore"):
        return x.astype(np.float32)


def rows_of(array: NDArray[Any], axis: int) -> NDArray[np.float32]:
    """Return the values as contiguous float32 rows, one per channel.

    Raises:
        ValueError: The array has no such axis.
    """
    x = as_float32(array)
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"An array of shape {x.shape} has no axis {axis} for its channels.")
    return np.ascontiguousarray(np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1))


def run_sums(rows: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return (2, rows): the sum and the sum of squares of each row, in float64.

    numpy's own sums, not dot products: BLAS may split the work among threads as it likes.
    """
    work = scratch(np.float64, rows.size).reshape(rows.shape)
    np.copyto(work, rows)
    found = np.empty((2, len(rows)))
    np.add.reduce(work, axis=1, out=found[0])
    np.multiply(work, work, out=work)
    np.add.reduce(work, axis=1, out=found[1])
    return found


class Tally:
    """Extremes, counts and exact sums of `channels` streams of values.

    Invariants: NaN and infinities are only counted as such; `low` > `high` where no finite value was
    seen; a zero extreme is +0.
    """

    __slots__ = ("channels", "count", "high", "inf", "low", "nan", "seen", "sums")

    def __init__(self, channels: int) -> None:
        self.channels = channels
        self.low = np.full(channels, np.inf, np.float32)
        self.high = np.full(channels, -np.inf, np.float32)
        self.seen, self.count, self.nan, self.inf = np.zeros((4, channels), np.int64)
        self.sums = ExactSum(2 * channels)

    def observe(self, rows: NDArray[np.float32]) -> NDArray[np.bool_] | None:
        """Take in a non-empty row for each channel; return which values are finite, None if all are."""
        self.seen += rows.shape[1]
        low, high = rows.min(axis=1), rows.max(axis=1)
        if np.isfinite(low).all() and np.isfinite(high).all():
            self.count += rows.shape[1]
            self.bound(low, high)
            self.add(rows)
            return None
        finite = np.isfinite(rows)
        self.count += finite.sum(axis=1)
        self.nan += np.isnan(rows).sum(axis=1)
        self.inf += np.isinf(rows).sum(axis=1)
        self.bound(
            rows.min(axis=1, where=finite, initial=np.inf),
            rows.max(axis=1, where=finite, initial=-np.inf),
        )
        self.add(np.where(finite, rows, np.float32(0)))
        return finite

    def bound(self, low: NDArray[np.float32], high: NDArray[np.float32]) -> None:
        """Widen the extremes. Adding zero turns -0 into +0: which of the two min returns is chance."""
        self.low = np.minimum(self.low, low + np.float32(0))
        self.high = np.maximum(self.high, high + np.float32(0))

    def add(self, rows: NDArray[np.float32]) -> None:
        """Add finite values, one row per channel, to the sums and sums of squares."""
        channels, width = rows.shape
        for start in range(0, width, RUN):
            run = rows[:, start : start + RUN]
            pair = np.empty((2, channels))
            step = max(1, RUN // run.shape[1])
            for row in range(0, channels, step):
                pair[:, row : row + step] = run_sums(run[row : row + step])
            self.sums.add(pair.reshape(-1))

    def merge(self, other: Self) -> None:
        """Take in what `other` knows.

        Raises:
            ValueError: The number of channels differs.
        """
        if self.channels != other.channels:
            raise ValueError(f"Cannot merge {other.channels} channels into {self.channels}.")
        self.bound(other.low, other.high)
        for mine, its in zip(self._counts(), other._counts(), strict=True):
            np.add(mine, its, out=mine)
        self.sums.merge(other.sums)

    def state(self) -> State:
        """Return what is known."""
        sums = {f"sums_{name}": array for name, array in self.sums.state().items()}
        counts = np.stack(self._counts())
        return {"low": self.low.copy(), "high": self.high.copy(), "counts": counts, **sums}

    @classmethod
    def from_state(cls, state: State) -> Self:
        """Build the tally that had this state."""
        found = cls(state["low"].size)
        found.low, found.high = state["low"].copy(), state["high"].copy()
        found.seen, found.count, found.nan, found.inf = state["counts"].copy()
        found.sums = ExactSum.from_state(
            {"first": state["sums_first"], "limbs": state["sums_limbs"]}
        )
        return found

    def mean(self) -> NDArray[np.float64]:
        """Return the mean of the counted values, zero where there are none."""
        return self.sums.value()[: self.channels] / np.maximum(self.count, 1)

    def variance(self) -> NDArray[np.float64]:
        """Return E[x^2] - E[x]^2 of the counted values, zero where there are none."""
        mean_square = self.sums.value()[self.channels :] / np.maximum(self.count, 1)
        return np.maximum(mean_square - np.square(self.mean()), 0)

    def extremes(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the smallest and largest finite values, zero where there are none."""
        known = self.low <= self.high
        zero = np.float32(0)
        return np.where(known, self.low, zero), np.where(known, self.high, zero)

    def _counts(self) -> tuple[NDArray[np.int64], ...]:
        return self.seen, self.count, self.nan, self.inf


class Tallied:
    """What statistics that keep a tally of their values answer alike, per channel."""

    __slots__ = ("_tally",)

    _tally: Tally

    @property
    def channels(self) -> int:
        """The number of channels."""
        return self._tally.channels

    @property
    def count(self) -> NDArray[np.int64]:
        """Finite values counted, per channel."""
        return self._tally.count.copy()

    @property
    def low(self) -> NDArray[np.float32]:
        """The smallest finite value per channel, zero if there is none."""
        return self._tally.extremes()[0]

    @property
    def high(self) -> NDArray[np.float32]:
        """The largest finite value per channel, zero if there is none."""
        return self._tally.extremes()[1]

    @property
    def mean(self) -> NDArray[np.float64]:
        """The mean of the counted values per channel, zero if there are none."""
        return self._tally.mean()

    @property
    def variance(self) -> NDArray[np.float64]:
        """The mean square less the squared mean of the counted values, per channel."""
        return self._tally.variance()
