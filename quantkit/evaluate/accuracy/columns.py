"""A few bytes for each sample, gathered chunk by chunk."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Column"]


class Column:
    """A growing column of numbers of one type."""

    __slots__ = ("_dtype", "_parts")

    def __init__(self, dtype: type[np.generic] = np.float64) -> None:
        self._dtype = dtype
        self._parts: list[NDArray[Any]] = []

    def add(self, values: NDArray[Any]) -> None:
        """Append values."""
        self._parts.append(np.asarray(values, self._dtype))

    @property
    def values(self) -> NDArray[Any]:
        """All values that were added, in order."""
        if len(self._parts) != 1:
            self._parts = [np.concatenate([np.empty(0, self._dtype), *self._parts])]
        return self._parts[0]
