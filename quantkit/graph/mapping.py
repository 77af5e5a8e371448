"""Tensors that stay in their file until they are read."""

import mmap
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.errors import ModelError

__all__ = ["SMALL", "MappedFile", "lazy"]

SMALL = 32 << 20  # bytes of a file that is read whole rather than mapped

_BYTE = 8  # bits
_AT_ONCE = 1 << 30  # bytes: the system reads no more than 2 GB at a time


class MappedFile:
    """One read-only file; hands out tensors that are read when they are asked for.

    Tensors are read, not mapped: where somebody cuts a mapped file short, the process is killed without a word.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._file = os.dup(file.fileno())
        self._identity = _identity(os.fstat(self._file))
        weakref.finalize(self, os.close, self._file)

    @property
    def has_changed(self) -> bool:
        """Whether the path no longer leads to the file that was opened, or somebody wrote into it."""
        try:
            return _identity(self.path.stat()) != self._identity
        except OSError:
            return True

    def __len__(self) -> int:
        return len(self._map)

    def view(self) -> memoryview:
        """The whole file; mapped if it is large."""
        return self._read(len(self), 0).data if len(self) < SMALL else memoryview(self._map)

    def release(self) -> None:
        """Give the pages read so far back to the system."""
        if hasattr(self._map, "madvise"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def tensor(self, entry: ir.ExternalTensor, offset: int) -> ir.LazyTensor:
        """Return a tensor that reads `entry`'s contents at `offset` whenever it is asked for them."""
        dtype, shape, nbytes = entry.dtype, tuple(entry.shape.numpy()), entry.nbytes

        def read() -> NDArray[Any]:
            content = self._read(nbytes, offset)
            if dtype.bitwidth < _BYTE:
                return ir.PackedTensor(content, dtype, shape=shape).numpy()
            return content.view(dtype.numpy()).reshape(shape)

        return lazy(read, dtype, shape, entry.name)

    def _read(self, nbytes: int, offset: int) -> NDArray[np.uint8]:
        """Return bytes of the file.

        Raises:
            ModelError: It has become shorter.
        """
        content = np.empty(nbytes, np.uint8)
        view, done = memoryview(content.data), 0
        while done < nbytes:
            count = os.preadv(self._file, [view[done : done + _AT_ONCE]], offset + done)
            if not count:
                raise ModelError(
                    f"'{self.path}' was cut short while it was read; nothing was written."
                )
            done += count
        content.flags.writeable = False
        return content


def _identity(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


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
