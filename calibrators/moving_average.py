"""The moving average of each array's extremes: offered because others have it, not because it is good.

    a_1 = x_1,   a_n = momentum a_(n-1) + (1 - momentum) x_n

It depends on the order of the arrays, so its type says so and shards must be merged in theirs. A run of n arrays maps
any average a before it to m^n a + b; keeping n and b, next to the first x, makes merging two
runs the composition of their maps.
"""

from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from calibrators._tally import as_float32
from calibrators.protocol import State
from calibrators.ranges import Range


class MovingAverage:
    """Exponential averages of the smallest and largest finite value of each array, per tensor.

    Arrays without a finite value are left out. Merging is exact to rounding only.

    Invariants: 0 <= momentum < 1; the range is inside the extremes of all values.
    """

    ordered: ClassVar[bool] = True
    exact: ClassVar[bool] = False

    __slots__ = ("_extremes", "_first", "_offset", "arrays", "momentum")

    def __init__(self, momentum: float = 0.9) -> None:
        if not 0 <= momentum < 1:
            raise ValueError(
                f"The momentum of an average is at least 0 and below 1, not {momentum}."
            )
        self.momentum = momentum
        self.arrays = 0
        self._first = np.zeros(2)
        self._offset = np.zeros(2)
        self._extremes = np.array([np.inf, -np.inf])

    def observe(self, array: NDArray[Any]) -> None:
        """Take in one array, later than those before."""
        x = as_float32(array)
        x = x[np.isfinite(x)]
        if not x.size:
            return
        ends = np.array([x.min(), x.max()], np.float64) + 0.0  # -0 or +0 is chance
        if not self.arrays:
            self._first = ends
        self._offset = self.momentum * self._offset + (1 - self.momentum) * ends
        self._widen(ends)
        self.arrays += 1

    def merge(self, other: Self) -> None:
        """Take in what `other` saw after this one's arrays.

        Raises:
            ValueError: The momentum differs.
        """
        if self.momentum != other.momentum:
            raise ValueError(
                f"Cannot merge an average of momentum {other.momentum} into one of {self.momentum}."
            )
        if not other.arrays:
            return
        if not self.arrays:
            self._first = other._first.copy()
        self._offset = self.momentum**other.arrays * self._offset + other._offset
        self._widen(other._extremes)
        self.arrays += other.arrays

    def range(self) -> Range:
        """Return the averages, widened to hold zero."""
        if not self.arrays:
            return Range(low=np.zeros(1, np.float32), high=np.zeros(1, np.float32))
        average = self.momentum**self.arrays * self._first + self._offset
        low, high = np.clip(average, *self._extremes).astype(np.float32)  # rounding may leave it
        return Range(low=np.minimum([low], np.float32(0)), high=np.maximum([high], np.float32(0)))

    def state(self) -> State:
        """Return what is known."""
        return {
            "momentum": np.array([self.momentum]),
            "arrays": np.array([self.arrays], np.int64),
            "first": self._first.copy(),
            "offset": self._offset.copy(),
            "extremes": self._extremes.copy(),
        }

    @classmethod
    def from_state(cls, state: State) -> Self:
        """Build the average that had this state."""
        found = cls(float(state["momentum"][0]))
        found.arrays = int(state["arrays"][0])
        found._first = state["first"].copy()
        found._offset = state["offset"].copy()
        found._extremes = state["extremes"].copy()
        return found

    def _widen(self, ends: NDArray[np.float64]) -> None:
        low, high = self._extremes
        self._extremes = np.array([min(low, ends[0]), max(high, ends[1])])
