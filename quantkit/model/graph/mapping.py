"""Tensors that stay in their file until they are read.

A model file as a few KB of structure that points into the file itself.

A runtime that loads this maps the weights instead of copying them; and what a runtime refuses in
the structure (an IR version that is too new) can be changed without touching the file.

`split` copies a serialized ModelProto without the contents of its large tensors; each is replaced
by a note of where in the file they are, so that a 2 GB file is opened by reading its few KB of
structure and its weights are memory-mapped. `join` does the reverse and yields the pieces of the
file in order, so that a model is written without ever being in memory as a whole.

Only the nesting matters here (model > graph > node > attribute > tensor or graph); every other
field is copied as it is.
"""

import mmap
import os
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.errors import ModelError, as_os_error
from quantkit.model.graph.protos import tensors_of
from quantkit.protobuf import Buffer, Field, WireError, fields_of, varint

LIMIT = 1024  # bytes; smaller tensors stay inline
MARK = "quantkit:tensor"  # the external-data location that stands for "taken out by quantkit"
_MARK_BYTES = MARK.encode()
_BYTES = 2
_DEEPEST = 100  # nested messages that protobuf itself reads
_RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION, _DATA_TYPE = 9, 13, 14, 2
_T = onnx.TensorProto
# Types whose raw bytes are one numpy element each; packed 2- and 4-bit types stay inline.
_PLAIN_TYPES = frozenset({_T.FLOAT, _T.FLOAT16, _T.BFLOAT16, _T.DOUBLE, _T.INT8, _T.UINT8})
_PLAIN_TYPES |= {_T.INT16, _T.UINT16, _T.INT32, _T.UINT32, _T.INT64, _T.UINT64}

SMALL = 32 << 20  # bytes of a file that is read whole rather than mapped

_ENDS = "quantkit.ends"  # under which a tensor in a file has what reads its first and last value
_TAKEN_IN = 1 << 10  # bytes of a tensor that need no file of their own
_TICK = 2_000_000_000  # nanoseconds: the coarsest clock of a file system
_BLOCK = 1 << 20  # bytes
_AT_ONCE = 1 << 30  # bytes: the system reads no more than 2 GB at a time


class _Kind(Enum):
    MODEL = "model"
    GRAPH = "graph"
    NODE = "node"
    ATTRIBUTE = "attribute"
    TENSOR = "tensor"


_CHILDREN: dict[_Kind, dict[int, _Kind]] = {
    _Kind.MODEL: {7: _Kind.GRAPH},
    _Kind.GRAPH: {1: _Kind.NODE, 5: _Kind.TENSOR},
    _Kind.NODE: {5: _Kind.ATTRIBUTE},
    # Lists of tensors (field 10) stay inline: only operators of custom domains have them.
    _Kind.ATTRIBUTE: {5: _Kind.TENSOR, 6: _Kind.GRAPH, 11: _Kind.GRAPH},
    _Kind.TENSOR: {},
}


@dataclass(frozen=True, slots=True)
class Payload:
    """The place of tensor number `index` in the pieces that `join` yields."""

    index: int
    nbytes: int


Piece = bytes | Payload


def split(buffer: Buffer) -> bytes:
    """Return the model without its large tensors' contents.

    A tensor taken out has external data at location `MARK`, with `offset` and `length` in `buffer`.
    """
    return b"".join(_without_weights(buffer, 0, len(buffer), _Kind.MODEL))


def _without_weights(
    buffer: Buffer, start: int, end: int, kind: _Kind, depth: int = 0
) -> list[bytes]:
    if depth > _DEEPEST:
        raise WireError(f"nested more than {_DEEPEST} deep at byte {start}")
    out: list[bytes] = []
    copied = start
    for field in fields_of(buffer, start, end):
        child = _CHILDREN[kind].get(field.number) if field.wire == _BYTES else None
        if child is None or field.end - field.value < LIMIT:
            continue
        if child is _Kind.TENSOR:
            replaced = _take_out(buffer, field.value, field.end)
            if replaced is None:
                continue
        else:
            inner = _without_weights(buffer, field.value, field.end, child, depth + 1)
            replaced = b"".join(inner)
        out += [bytes(buffer[copied : field.start]), _header(field.number, len(replaced)), replaced]
        copied = field.end
    out.append(bytes(buffer[copied:end]))
    return out


def _take_out(buffer: Buffer, start: int, end: int) -> bytes | None:
    """Return the tensor with its raw data replaced by a note; None if it must stay inline."""
    raw: Field | None = None
    kept: list[bytes] = []
    for field in fields_of(buffer, start, end):
        if field.number == _DATA_TYPE and varint(buffer, field.value, end)[0] not in _PLAIN_TYPES:
            return None
        if field.number == _RAW_DATA:
            raw = field
        else:
            kept.append(bytes(buffer[field.start : field.end]))
    if raw is None or raw.end - raw.value < LIMIT:
        return None
    note = onnx.TensorProto(data_location=onnx.TensorProto.EXTERNAL)
    for key, value in (("location", MARK), ("offset", raw.value), ("length", raw.end - raw.value)):
        note.external_data.add(key=key, value=str(value))
    return b"".join(kept) + bytes(note.SerializeToString())


def join(skeleton: bytes) -> list[Piece]:
    """Return the pieces of the file: bytes, and a `Payload` where a tensor's contents go.

    In the skeleton a tensor that was taken out has external data at `MARK` whose `offset` is the tensor's
    number and whose `length` is its size.
    """
    marks: list[int] = []
    at = skeleton.find(_MARK_BYTES)
    while at >= 0:
        marks.append(at)
        at = skeleton.find(_MARK_BYTES, at + 1)
    return _assemble(skeleton, 0, len(skeleton), _Kind.MODEL, marks)


def _assemble(skeleton: bytes, start: int, end: int, kind: _Kind, marks: list[int]) -> list[Piece]:
    if kind is _Kind.TENSOR:
        return _put_in(skeleton[start:end])
    out: list[Piece] = []
    copied = start
    for field in fields_of(skeleton, start, end):
        child = _CHILDREN[kind].get(field.number) if field.wire == _BYTES else None
        if child is None or not _holds_mark(marks, field):
            continue
        inner = _assemble(skeleton, field.value, field.end, child, marks)
        length = sum(p.nbytes if isinstance(p, Payload) else len(p) for p in inner)
        out += [skeleton[copied : field.start], _header(field.number, length), *inner]
        copied = field.end
    out.append(skeleton[copied:end])
    return out


def _holds_mark(marks: list[int], field: Field) -> bool:
    i = bisect_left(marks, field.value)
    return i < len(marks) and marks[i] < field.end


def _put_in(tensor: bytes) -> list[Piece]:
    proto = onnx.TensorProto.FromString(tensor)
    note = {entry.key: entry.value for entry in proto.external_data}
    if note.get("location") != MARK:
        return [tensor]
    proto.ClearField("external_data")
    proto.ClearField("data_location")
    payload = Payload(int(note["offset"]), int(note["length"]))
    return [proto.SerializeToString(), _header(_RAW_DATA, payload.nbytes), payload]


def _header(number: int, length: int) -> bytes:
    return _encode(number << 3 | _BYTES) + _encode(length)


def _encode(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:  # the continuation bit
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


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
