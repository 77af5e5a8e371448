"""The numbers every statistic of values keeps: extremes, counts, exact sums; and how arrays are read.

Hot loops work in memory of their thread (`scratch`): fresh pages cost more than the arithmetic in them.

Sums are exact (`ExactSum`): the same bits in any order and grouping. A sum is a fixed-point integer in units of 2^-320, written in base 2^32:

    sum = 2^-320 * sum_i limb_i * 2^(32 i),   i = 0 .. 20

float32 values are multiples of 2^-149 and their squares of 2^-298, below 2^256. So the window from 2^-320 to
2^352 holds all their float64 sums without any loss. Other float64 numbers finer than 2^-320 are rounded
to that unit, half to even, one by one (deterministic); numbers of 2^320 and above are refused.
"""

import threading
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from calibrators.protocol import State

_UNIT = -320
_ONE = 1 << -_UNIT
_LIMIT = 2.0**320  # 2^31 numbers below it fit into the window
_LIMBS = 21
_MASK = 0xFFFFFFFF
# Numbers are collected and spread over the limbs together: spreading takes some 30 numpy calls, about
# 60 us whether for one number or 512, and is needed only when the sum is read.
_PENDING = 512
# Each number adds less than 2^33 to a limb, so int64 limbs need their carries moved up only this often.
_LAZY = 2**29

Number = TypeVar("Number", bound=np.generic)


class ExactSum:
    """`n` independent exact sums.

    Invariants: every pending number is finite and below 2^320; limbs stay below 2^63.
    """

    __slots__ = ("_added", "_filled", "_limbs", "_pending", "n")

    def __init__(self, n: int) -> None:
        self.n = n
        self._limbs = np.zeros((_LIMBS, n), np.int64)
        self._pending: NDArray[np.float64] | None = None
        self._filled = 0
        self._added = 1

    def add(self, values: NDArray[np.float64]) -> None:
        """Add numbers: one to each sum, or rows (k, n) of them.

        Raises:
            ValueError: A number is not finite, or is 2^320 or more.
        """
        if not (np.abs(values) < _LIMIT).all():
            raise ValueError("An exact sum takes finite numbers below 2^320; leave the others out.")
        if self._pending is None:
            self._pending = np.empty((max(1, _PENDING // max(self.n, 1)), self.n), np.float64)
        rows = values.reshape(-1, self.n)
        while len(rows):
            if self._filled == len(self._pending):
                self._spread()
            part = rows[: len(self._pending) - self._filled]
            self._pending[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            rows = rows[len(part) :]

    def merge(self, other: Self) -> None:
        """Add the sums of `other`, which stay as they are.

        Raises:
            ValueError: The number of sums differs.
        """
        if self.n != other.n:
            raise ValueError(f"Cannot merge {other.n} sums into {self.n}.")
        self._spread()
        other._spread()
        self._limbs += other._limbs
        self._count(other._added)

    def value(self) -> NDArray[np.float64]:
        """Return the sums, correctly rounded to float64 (half to even)."""
        # Division of Python's integers is correctly rounded.
        return np.array([total / _ONE for total in self._totals()], np.float64)

    def state(self) -> State:
        """Return the limbs in use; equal sums have equal states."""
        signed = _limbs_of(self._totals())
        used = np.flatnonzero(signed.any(axis=1))
        first, last = (int(used[0]), int(used[-1]) + 1) if used.size else (0, 0)
        return {"first": np.array([first], np.int64), "limbs": signed[first:last].copy()}

    @classmethod
    def from_state(cls, state: State) -> Self:
        """Build the sums that had this state."""
        limbs = state["limbs"]
        found = cls(limbs.shape[1])
        first = int(state["first"][0])
        found._limbs[first : first + len(limbs)] = limbs
        return found

    def _spread(self) -> None:
        """Move the pending numbers into the limbs."""
        if not self._filled or self._pending is None:
            return
        values = self._pending[: self._filled]
        column = np.broadcast_to(np.arange(self.n), values.shape)
        fraction, exponent = np.frexp(values)
        place = exponent.astype(np.int64) - 53 - _UNIT
        # Below the window's unit: the number is rounded to a multiple of it.
        shift_in = np.minimum(place, 0)
        mantissa = np.rint(np.ldexp(fraction, (53 + shift_in).astype(np.int32))).astype(np.int64)
        place = np.maximum(place, 0)
        limb, shift = place >> 5, place & 31
        sign, size = np.sign(mantissa), np.abs(mantissa)
        low = (size & _MASK) << shift
        high = (size >> 32) << shift
        middle = (low >> 32) + (high & _MASK)
        for up, part in enumerate((low & _MASK, middle, high >> 32)):
            np.add.at(self._limbs, (limb + up, column), sign * part)
        self._count(self._filled)
        self._filled = 0

    def _count(self, added: int) -> None:
        """Move carries up before they can overflow."""
        self._added += added
        if self._added > _LAZY:
            self._limbs = _limbs_of(self._totals())
            self._added = 1

    def _totals(self) -> list[int]:
        """Return the sums as integers, in units of the window's lowest bit."""
        self._spread()
        totals = [0] * self.n
        for limb in reversed(self._limbs.tolist()):
            totals = [(total << 32) + part for total, part in zip(totals, limb, strict=True)]
        return totals


def _limbs_of(totals: list[int]) -> NDArray[np.int64]:
    """Return the one writing in which all limbs of a sum have its sign and are below 2^32."""
    digits = b"".join(abs(total).to_bytes(4 * _LIMBS, "little") for total in totals)
    sizes = np.frombuffer(digits, "<u4").reshape(len(totals), _LIMBS).T.astype(np.int64)
    return sizes * np.array([-1 if total < 0 else 1 for total in totals], np.int64)


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
