"""Statistics of channels.

Extremes for smoothing and equalization, means and variances for bias correction, X^T X for rounding and smoothing.
"""

from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from calibrators._tally import Tallied, Tally, as_float32, rows_of
from calibrators.protocol import State


class ChannelExtremes:
    """Minimum and maximum of each channel along `axis`; NaN and infinities are left out.

    Invariants: ``low <= 0 <= high`` (a range holds zero); one number of channels for good.
    """

    ordered: ClassVar[bool] = False
    exact: ClassVar[bool] = True

    __slots__ = ("axis", "high", "low")

    def __init__(self, axis: int) -> None:
        self.axis = axis
        self.low: NDArray[np.float32] = np.zeros(0, np.float32)
        self.high: NDArray[np.float32] = np.zeros(0, np.float32)

    def observe(self, array: NDArray[Any]) -> None:
        """Take in one array.

        Raises:
            ValueError: The number of channels differs from before.
        """
        if array.size == 0:
            return
        x = as_float32(array)
        others = tuple(i for i in range(x.ndim) if i != self.axis % x.ndim)
        with np.errstate(invalid="ignore"):
            low, high = x.min(axis=others, initial=0), x.max(axis=others, initial=0)
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            x = np.where(np.isfinite(x), x, np.float32(0))
            low, high = x.min(axis=others, initial=0), x.max(axis=others, initial=0)
        # Without the sign of zero: which of two zeros is the smaller would depend on the order.
        self._take(low + np.float32(0), high + np.float32(0))

    def merge(self, other: Self) -> None:
        """Take in what `other` saw.

        Raises:
            ValueError: The axis or the number of channels differs.
        """
        _same_axis(self.axis, other.axis)
        if other.low.size:
            self._take(other.low, other.high)

    def _take(self, low: NDArray[np.float32], high: NDArray[np.float32]) -> None:
        _expect(self.low.size or low.size, low.size, self.axis)
        self.low = np.minimum(self.low, low) if self.low.size else low.copy()
        self.high = np.maximum(self.high, high) if self.high.size else high.copy()

    @property
    def largest(self) -> NDArray[np.float32]:
        """The largest magnitude of each channel."""
        return np.maximum(-self.low, self.high)

    def state(self) -> State:
        """Return what is known."""
        return {
            "axis": np.array([self.axis], np.int64),
            "low": self.low.copy(),
            "high": self.high.copy(),
        }

    @classmethod
    def from_state(cls, state: State) -> Self:
        """Build the extremes that had this state."""
        found = cls(int(state["axis"][0]))
        found.low, found.high = state["low"].copy(), state["high"].copy()
        return found


class ChannelMoments(Tallied):
    """Extremes, count, mean and variance of each channel along `axis`.

    NaN and infinities are left out. Invariant: one number of channels for good, 0 before the first array.
    """

    ordered: ClassVar[bool] = False
    exact: ClassVar[bool] = True

    __slots__ = ("axis",)

    def __init__(self, axis: int) -> None:
        self.axis = axis
        self._tally = Tally(0)

    def observe(self, array: NDArray[Any]) -> None:
        """Take in one array.

        Raises:
            ValueError: The number of channels differs from before.
        """
        if array.size == 0:
            return
        rows = rows_of(array, self.axis)
        if not self.channels:
            self._tally = Tally(len(rows))
        _expect(self.channels, len(rows), self.axis)
        self._tally.observe(rows)

    def merge(self, other: Self) -> None:
        """Take in what `other` saw.

        Raises:
            ValueError: The axis or the number of channels differs.
        """
        _same_axis(self.axis, other.axis)
        if not other.channels:
            return
        if not self.channels:
            self._tally = Tally(other.channels)
        self._tally.merge(other._tally)

    def state(self) -> State:
        """Return what is known."""
        return {"axis": np.array([self.axis], np.int64), **self._tally.state()}

    @classmethod
    def from_state(cls, state: State) -> Self:
        """Build the moments that had this state."""
        found = cls(int(state["axis"][0]))
        found._tally = Tally.from_state(state)
        return found

    @property
    def absmax(self) -> NDArray[np.float32]:
        """The largest finite magnitude per channel."""
        return np.maximum(-self.low, self.high)


class SecondMoment:
    """X^T X in float64, X the array with `axis` last and all other axes as rows.

    A row with a NaN or an infinity is left out. Exact to rounding only: a matrix product's bits depend on the
    BLAS and its threads, and exact sums would need 21 limbs for each of channels^2 entries.

    Invariants: `matrix` is (channels, channels), symmetric; `count` rows entered it.
    """

    ordered: ClassVar[bool] = False
    exact: ClassVar[bool] = False

    __slots__ = ("axis", "count", "matrix")

    def __init__(self, axis: int) -> None:
        self.axis = axis
        self.count = 0
        self.matrix = np.zeros((0, 0))

    def observe(self, array: NDArray[Any]) -> None:
        """Take in one array.

        Raises:
            ValueError: The number of channels differs from before.
        """
        if array.size == 0:
            return
        x = rows_of(as_float32(array), self.axis).T
        x = x[np.isfinite(x).all(axis=1)].astype(np.float64)
        matrix: NDArray[np.float64] = np.matmul(x.T, x)
        self._add(matrix, len(x))

    def merge(self, other: Self) -> None:
        """Take in what `other` saw.

        Raises:
            ValueError: The axis or the number of channels differs.
        """
        _same_axis(self.axis, other.axis)
        if other.channels:
            self._add(other.matrix, other.count)

    def state(self) -> State:
        """Return what is known."""
        return {
            "axis": np.array([self.axis], np.int64),
            "count": np.array([self.count], np.int64),
            "matrix": self.matrix.copy(),
        }

    @classmethod
    def from_state(cls, state: State) -> Self:
        """Build the moment that had this state."""
        found = cls(int(state["axis"][0]))
        found.count = int(state["count"][0])
        found.matrix = state["matrix"].copy()
        return found

    @property
    def channels(self) -> int:
        """The number of channels, 0 before the first array."""
        return len(self.matrix)

    @property
    def mean(self) -> NDArray[np.float64]:
        """X^T X / count, zero without rows."""
        return self.matrix / max(self.count, 1)

    def _add(self, matrix: NDArray[np.float64], count: int) -> None:
        _expect(self.channels or len(matrix), len(matrix), self.axis)
        self.matrix = self.matrix + matrix if self.channels else matrix.copy()
        self.count += count


def _expect(channels: int, found: int, axis: int) -> None:
    if channels != found:
        raise ValueError(
            f"Statistics of {channels} channels met {found} along axis {axis}; "
            "an axis of changing length has no channels."
        )


def _same_axis(mine: int, its: int) -> None:
    if mine != its:
        raise ValueError(f"Cannot merge statistics along axis {its} into those along axis {mine}.")
