"""The ONNX file as bytes: taking weights out of a model's protobuf, and putting them back in.

`split` copies a serialized ModelProto without the contents of its large tensors; each is replaced
by a note of where in the file they are, so that a 2 GB file is opened by reading its few KB of
structure and its weights are memory-mapped. `join` does the reverse and yields the pieces of the
file in order, so that a model is written without ever being in memory as a whole.

Only the nesting matters here (model > graph > node > attribute > tensor or graph); every other
field is copied as it is.
"""

from bisect import bisect_left
from dataclasses import dataclass
from enum import Enum

import onnx

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
