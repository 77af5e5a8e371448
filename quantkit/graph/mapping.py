"""Tensors that stay in their file until they are read."""

import math
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

__all__ = ["MappedFile", "lazy"]

_BYTE = 8  # bits
# Bytes handed out before the pages read so far are given back to the system.
_RESIDENT = 64 << 20


class MappedFile:
    """One read-only memory map; hands out arrays that are views of it.

    Pages already read are dropped from this process's memory from time to time. That is always
    safe: a view that is read again faults its pages in again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._handed_out = 0

    def __len__(self) -> int:
        return len(self._map)

    def view(self) -> memoryview:
        """The whole file."""
        return memoryview(self._map)

    def release(self) -> None:
        """Give the pages read so far back to the system."""
        if hasattr(self._map, "madvise"):
            self._map.madvise(mmap.MADV_DONTNEED)
        self._handed_out = 0

    def tensor(self, entry: ir.ExternalTensor, offset: int) -> ir.LazyTensor:
        """Return a tensor that reads `entry`'s contents at `offset` whenever it is asked for them."""
        dtype, shape, nbytes = entry.dtype, tuple(entry.shape.numpy()), entry.nbytes

        def read() -> NDArray[Any]:
            if self._handed_out + nbytes > _RESIDENT:
                self.release()
            self._handed_out += nbytes
            if dtype.bitwidth < _BYTE:
                packed = np.frombuffer(self._map, np.uint8, nbytes, offset)
                return ir.PackedTensor(packed, dtype, shape=shape).numpy()
            return np.frombuffer(self._map, dtype.numpy(), math.prod(shape), offset).reshape(shape)

        return lazy(read, dtype, shape, entry.name)


def lazy(
    read: Callable[[], NDArray[Any]],
    dtype: ir.DataType,
    shape: tuple[int, ...],
    name: str | None,
) -> ir.LazyTensor:
    """Return a tensor whose contents are computed each time they are read, and never kept."""
    return ir.LazyTensor(
        lambda: ir.Tensor(read(), dtype=dtype, name=name),
        dtype=dtype,
        shape=ir.Shape(shape),
        name=name,
    )
