"""Minimum and maximum, and nothing else."""

from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from calibrators import Range, State

__all__ = ["RunningMinMax"]


class RunningMinMax:
    """The smallest and largest finite value, and how many arrays held NaN or infinity."""

    ordered: ClassVar[bool] = False
    exact: ClassVar[bool] = True

    def __init__(self) -> None:
        self.low = np.full(1, np.inf, np.float32)
        self.high = np.full(1, -np.inf, np.float32)
        self.strange = 0

    @property
    def empty(self) -> bool:
        """Whether no finite value was seen."""
        return bool(self.low[0] > self.high[0])

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and largest finite value; (inf, -inf) if there is none."""
        return float(self.low[0]), float(self.high[0])

    def observe(self, array: NDArray[Any]) -> None:
        """Widen it to hold an array's finite values."""
        if not array.size:
            return
        low, high = array.min(), array.max()
        if not np.isfinite(low) or not np.isfinite(high):
            self.strange += 1
            array = array[np.isfinite(array)]
            if not array.size:
                return
            low, high = array.min(), array.max()
        # Adding zero turns -0 into +0: which of the two min returns is chance.
        self.low[0] = min(self.low[0], low + np.float32(0))
        self.high[0] = max(self.high[0], high + np.float32(0))

    def merge(self, other: Self) -> None:
        """Take in what another has seen."""
        np.minimum(self.low, other.low, out=self.low)
        np.maximum(self.high, other.high, out=self.high)
        self.strange += other.strange

    def range(self) -> Range:
        """Return both ends, widened to hold zero."""
        empty = self.low > self.high
        return Range(
            low=np.where(empty, 0, np.minimum(self.low, 0)).astype(np.float32),
            high=np.where(empty, 0, np.maximum(self.high, 0)).astype(np.float32),
        )

    def state(self) -> State:
        """Return plain arrays."""
        strange = np.array([self.strange], np.int64)
        return {"low": self.low.copy(), "high": self.high.copy(), "strange": strange}

    @classmethod
    def from_state(cls, state: State) -> Self:
        """Restore what `state` gave."""
        found = cls()
        found.low, found.high = state["low"].copy(), state["high"].copy()
        found.strange = int(state["strange"][0])
        return found
