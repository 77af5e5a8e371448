"""Extremes of the channels of a tensor."""

from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from calibrators._tally import as_float32
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
        if self.axis != other.axis:
            raise ValueError(f"Extremes along axes {self.axis} and {other.axis} do not merge.")
        if other.low.size:
            self._take(other.low, other.high)

    def _take(self, low: NDArray[np.float32], high: NDArray[np.float32]) -> None:
        if self.low.size and self.low.shape != low.shape:
            raise ValueError(
                f"Extremes of {self.low.size} channels met {low.size} along axis {self.axis}; "
                "an axis of changing length has no channels."
            )
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
