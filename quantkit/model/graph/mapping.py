"""Tensors that stay in their file until they are read.

A model file as a few KB of structure that points into the file itself.

A runtime that loads this maps the weights instead of copying them; and what a runtime refuses in
the structure (an IR version that is too new) can be changed without touching the file.
"""

import mmap
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.errors import ModelError, as_os_error
from quantkit.model.graph._wire import MARK, split
from quantkit.model.graph.protos import tensors_of

SMALL = 32 << 20  # bytes of a file that is read whole rather than mapped

_ENDS = "quantkit.ends"  # under which a tensor in a file has what reads its first and last value
_TAKEN_IN = 1 << 10  # bytes of a tensor that need no file of their own
_TICK = 2_000_000_000  # nanoseconds: the coarsest clock of a file system
_BLOCK = 1 << 20  # bytes
_AT_ONCE = 1 << 30  # bytes: the system reads no more than 2 GB at a time


class MappedFile:
    """One file that is only read; its tensors are read each time their contents are needed.

    Tensors are read, not mapped: where somebody cuts a mapped file short, the process is killed without a word. The file
    is open only while it is read: Windows neither replaces nor removes a file that is open or mapped.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._place = path.absolute()  # another working folder is no change of the file
        with self._place.open("rb") as file:
            found = os.fstat(file.fileno())
        self._size, self._identity = found.st_size, _identity(found)
        # None: changed so shortly before that clocks may not tell a second change from the first. Windows has no such time.
        at_rest = os.name == "posix" and found.st_ctime_ns < time.time_ns() - _TICK
        self._changed_at = found.st_ctime_ns if at_rest else None

    @property
    def has_changed(self) -> bool:
        """Whether the path no longer leads to the file that was opened, or somebody wrote into it."""
        try:
            return _identity(self._place.stat()) != self._identity
        except OSError:
            return True

    @property
    def is_untouched(self) -> bool:
        """Whether nobody can have written into the file since it was opened; if not, only its contents can tell."""
        try:
            return not self.has_changed and self._place.stat().st_ctime_ns == self._changed_at
        except OSError:
            return False

    def __len__(self) -> int:
        return self._size

    def view(self) -> memoryview:
        """Return the whole file: read if it is small, else mapped until the view is released."""
        if len(self) < SMALL:
            return self.read(len(self), 0).data
        with self._place.open("rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def tensor(self, entry: ir.ExternalTensor, offset: int) -> ir.LazyTensor:
        """Return a tensor that reads `entry`'s contents at `offset` whenever it is asked for them."""
        dtype, shape, nbytes = entry.dtype, tuple(entry.shape.numpy()), entry.nbytes

        def read() -> NDArray[Any]:
            content = self.read(nbytes, offset)
            if dtype.bitwidth < 8:
                return ir.PackedTensor(content, dtype, shape=shape).numpy()
            return content.view(dtype.numpy()).reshape(shape)

        def ends() -> bytes:
            size = dtype.bitwidth // 8
            places = (offset, offset + nbytes - size)
            return b"".join(self.read(size, at).tobytes() for at in places)

        tensor = lazy(read, dtype, shape, entry.name)
        if dtype.bitwidth >= 8 and nbytes:
            tensor.meta[_ENDS] = ends
        return tensor

    def read(self, nbytes: int, offset: int) -> NDArray[np.uint8]:
        """Return bytes of the file.

        Raises:
            ModelError: It has become shorter, or is another file now.
        """
        content = np.empty(nbytes, np.uint8)
        view, done = memoryview(content.data), 0
        try:
            with self._place.open("rb", buffering=0) as file:
                if _identity(os.fstat(file.fileno())) != self._identity:
                    raise _changed(self.path)
                file.seek(offset)
                while done < nbytes:
                    count = file.readinto(view[done : done + _AT_ONCE])
                    if not count:
                        raise _changed(self.path)
                    done += count
        except FileNotFoundError as e:
            raise as_os_error(_changed(self.path), e) from e
        except OSError as e:
            said = f"'{self.path}' cannot be read: {e.strerror or e}."
            raise as_os_error(ModelError(said), e) from e
        content.flags.writeable = False
        return content

    def blocks(self, start: int, end: int) -> Iterator[memoryview]:
        """Yield the bytes from `start` to before `end`, of which memory holds a block at a time.

        Raises:
            ModelError: As `read`.
        """
        for at in range(start, end, _BLOCK):
            yield self.read(min(_BLOCK, end - at), at).data


def _changed(path: Path) -> ModelError:
    return ModelError(
        f"'{path}' was changed while it was being read; nothing was written. Run it again when nobody writes to it."
    )


def _identity(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def lazy(
    read: Callable[[], NDArray[Any]],
    dtype: ir.DataType,
    shape: tuple[int, ...],
    name: str | None,
) -> ir.LazyTensor:
    """Return a tensor whose contents are computed each time they are read, and never kept.

    Args:
        read: Computes the contents; called each time.
        dtype: Of the contents.
        shape: Of the contents, which must be known before.
        name: The tensor's.
    """
    return ir.LazyTensor(
        lambda: ir.Tensor(read(), dtype=dtype, name=name),
        dtype=dtype,
        shape=ir.Shape(shape),
        name=name,
    )


def ends_of(tensor: ir.TensorProtocol) -> bytes:
    """Return the bytes of the first and the last value of a tensor, which its transpose has too; of a file no more is read."""
    read = tensor.meta.get(_ENDS)
    return read() if read else tensor.numpy().reshape(-1)[[0, -1]].tobytes() if tensor.size else b""


@dataclass(frozen=True, slots=True)
class MappedModel:
    """Serialized structure, and the folder in which its external data is."""

    structure: bytes
    folder: Path


def mapped_model(path: Path, ir_version: Callable[[int], int]) -> MappedModel:
    """Return the structure of a model file with every large tensor pointing into a file of one folder.

    Links are followed: in a Hugging Face cache the model and its data are links to files of other names,
    and a runtime that is given the folder of one does not find the other. The folder is the deepest one
    that holds them all. `ir_version` maps the file's IR version to the one to declare.

    Of a small file the tensors stay where they are: where somebody cuts a mapped file short, the process is killed
    without a word. Small tensors outside of it are taken in: onnxruntime does not look for axes and shapes in other
    files, and refuses the model.
    """
    mapped = MappedFile(path)
    view = mapped.view()
    proto = onnx.ModelProto.FromString(bytes(view) if len(mapped) < SMALL else split(view))
    proto.ir_version = ir_version(proto.ir_version)
    for tensor in tensors_of(proto):
        _take_in(tensor, path.parent)
    entries = [e for t in tensors_of(proto) for e in t.external_data if e.key == "location"]
    files = {e.value: (path.parent / e.value).resolve() for e in entries} | {MARK: path.resolve()}
    folder = Path(os.path.commonpath([file.parent for file in files.values()]))
    for entry in entries:
        entry.value = files[entry.value].relative_to(folder).as_posix()
    return MappedModel(proto.SerializeToString(), folder)


def _take_in(tensor: onnx.TensorProto, folder: Path) -> None:
    """Let a small tensor hold what it has in a file of a folder; what cannot be read is the runtime's to complain of."""
    said = {entry.key: entry.value for entry in tensor.external_data}
    with suppress(OSError, ValueError):
        length, offset = int(said.get("length", 0)), int(said.get("offset", 0))
        if said.get("location", MARK) == MARK or not 0 < length <= _TAKEN_IN:
            return
        with (folder / said["location"]).open("rb") as file:
            file.seek(offset)
            content = file.read(length)
        if len(content) == length:
            tensor.raw_data = content
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
