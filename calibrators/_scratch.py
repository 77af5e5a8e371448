"""Working memory for the hot loops, one set a thread: fresh pages cost more than the arithmetic in them."""

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["float32", "float64", "intp"]


class _Buffers(threading.local):
    """Growable arrays by dtype. A buffer is overwritten by the next request for its dtype."""

    def __init__(self) -> None:
        self.arrays: dict[Any, NDArray[Any]] = {}

    def take(self, dtype: Any, size: int) -> NDArray[Any]:
        """Return uninitialized memory for `size` numbers."""
        array = self.arrays.get(dtype)
        if array is None or array.size < size:
            self.arrays[dtype] = array = np.empty(size, dtype)
        return array[:size]


_buffers = _Buffers()


def float32(size: int) -> NDArray[np.float32]:
    """Return this thread's float32 buffer."""
    return _buffers.take(np.float32, size)


def float64(size: int) -> NDArray[np.float64]:
    """Return this thread's float64 buffer."""
    return _buffers.take(np.float64, size)


def intp(size: int) -> NDArray[np.intp]:
    """Return this thread's buffer of indices."""
    return _buffers.take(np.intp, size)
