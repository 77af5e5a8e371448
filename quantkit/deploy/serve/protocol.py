"""The Open Inference Protocol, version 2, with the binary tensor extension: bytes <-> arrays.

A request is JSON; tensors stand in it as numbers, or behind it as bytes, little-endian and in row-major order, each as
long as its ``binary_data_size`` says. The header ``Inference-Header-Content-Length`` tells where the JSON ends.
Texts (BYTES) are each preceded by their length in four bytes.

Pure: knows no session and no server. Whatever the bytes are, `decoded` returns arrays that fit the model's inputs or
raises a `RequestError` that says what is wrong in one sentence.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from quantkit.errors import QuantkitError

Array = NDArray[Any]

DTYPES: Mapping[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "INT8": np.dtype("<i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "UINT8": np.dtype("<u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "BYTES": np.dtype(object),
}
"""The protocol's types, and numpy's."""

_LENGTH = 4  # bytes before a text
_SHOWN = 120  # of what a caller sent, in a message
_MOST_AXES = 32
_LARGEST = 1 << 40  # extent of an axis
_MOST_TEXTS = 1 << 16  # in a tensor: each is an object, in Python and in onnxruntime
_LISTED = 1 << 14  # bytes of a shape, of parameters or of a list of outputs
# Bytes of JSON that are read at once: meanwhile nobody else runs, whichever thread reads it.
_AT_ONCE = 1 << 14
_SIZE = "binary_data_size"


class RequestError(QuantkitError):
    """A request that is refused: why, in one sentence, and the status of HTTP.

    Attributes:
        status: 400 and the like.
        retry_after: Seconds after which it may be tried again.
        allow: The methods that the address takes, with 405.
    """

    def __init__(
        self, text: str, status: int = 400, retry_after: int | None = None, allow: str = ""
    ) -> None:
        super().__init__(text)
        self.status = status
        self.retry_after = retry_after
        self.allow = allow


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """An input or output of the model. A free dimension is None."""

    name: str
    datatype: str
    shape: tuple[int | None, ...]

    def __str__(self) -> str:
        shape = ", ".join("?" if n is None else str(n) for n in self.shape)
        return f"{self.name} {self.datatype}[{shape}]"

    def plain(self) -> dict[str, Any]:
        """Return it as the protocol writes it: a free dimension is -1."""
        shape = [-1 if n is None else n for n in self.shape]
        return {"name": self.name, "datatype": self.datatype, "shape": shape}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """An output that is asked for, and whether as bytes."""

    name: str
    binary: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Inference:
    """What a caller asks.

    Attributes:
        id: Comes back in the answer; "" for none.
        feeds: Input name -> array.
        outputs: In the order of the answer.
    """

    id: str
    feeds: dict[str, Array]
    outputs: tuple[Wanted, ...]


# What may be left out may be null as well: many clients write all of their fields. Raw: what a caller may make as long as
# the body is read when its length is known.
class _Input(msgspec.Struct, gc=False):
    name: str
    datatype: str
    shape: msgspec.Raw
    data: msgspec.Raw = msgspec.Raw()
    parameters: msgspec.Raw = msgspec.Raw()


class _Output(msgspec.Struct, gc=False):
    name: str
    parameters: msgspec.Raw = msgspec.Raw()


class _Body(msgspec.Struct):
    inputs: list[_Input]
    id: str | None = None
    outputs: msgspec.Raw = msgspec.Raw()
    parameters: msgspec.Raw = msgspec.Raw()


_BODY = msgspec.json.Decoder(_Body)
_ANY = msgspec.json.Decoder()
_SHAPE = msgspec.json.Decoder(list[int])
_OUTPUTS = msgspec.json.Decoder(list[_Output] | None)
_PARAMETERS = msgspec.json.Decoder(dict[str, Any] | None)
# By the kind of numpy's type: what JSON must hold, and how it is called.
_LISTS: Mapping[str, tuple[Any, str]] = {
    "b": (list[bool], "true or false"),
    "i": (list[int], "whole numbers"),
    "u": (list[int], "whole numbers"),
    "f": (list[float], "numbers"),
    "O": (list[str], "texts"),
}
_FLAT: Mapping[str, Any] = {kind: msgspec.json.Decoder(of) for kind, (of, _) in _LISTS.items()}
_NO_STRUCTURE = bytes(set(range(256)) - set(b"[],"))


def read_json(body: bytes | memoryview, decoder: Any = _ANY) -> Any:
    """Return what a body of JSON holds.

    Raises:
        RequestError: It is no JSON, or not of the form that the decoder wants.
    """
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        raise RequestError(f"The request is not as the protocol has it: {_cut(str(e))}.") from e
    except RecursionError as e:
        raise RequestError("The request is nested too deeply.") from e


def _short(raw: msgspec.Raw, what: str, decoder: Any) -> Any:
    """Return what a part of a request holds that is never long; None if it is absent."""
    content = bytes(raw)
    if len(content) > _LISTED:
        raise RequestError(f"{what} takes more than {_LISTED} bytes.")
    return read_json(content, decoder) if content else None


def _parameters(raw: msgspec.Raw) -> Mapping[str, Any]:
    found: Mapping[str, Any] = _short(raw, "A list of parameters", _PARAMETERS) or {}
    if any(key.startswith("shared_memory") for key in found):
        raise RequestError("Shared memory is not offered: send the tensor itself.")
    return found


def decoded(
    body: bytes | memoryview, header: int | None, inputs: Sequence[Port], outputs: Sequence[Port]
) -> Inference:
    """Read a request.

    Args:
        body: All of it.
        header: How many bytes of it are JSON; None: all.
        inputs: What the model takes.
        outputs: What it gives.

    Raises:
        RequestError: It cannot be read, or does not fit the model.
    """
    if header is not None and not 0 <= header <= len(body):
        raise RequestError(
            f"Inference-Header-Content-Length is {header} and the body has {len(body)} bytes."
        )
    view = memoryview(body)
    asked: _Body = read_json(view if header is None else view[:header], _BODY)
    tail = view[len(body) if header is None else header :]
    given = {tensor.name: tensor for tensor in asked.inputs}
    if len(given) < len(asked.inputs):
        raise RequestError("An input is given twice.")
    known = {port.name: port for port in inputs}
    _check_names(given.keys(), known)
    arrays = {n: checked(known[n], a) for n, a in _arrays(asked.inputs, known, tail)}
    return Inference(id=asked.id or "", feeds=arrays, outputs=_wanted(asked, outputs))


def _check_names(given: AbstractSet[str], known: Mapping[str, Port]) -> None:
    if given == known.keys():
        return
    takes = "; ".join(str(port) for port in known.values())
    strange = next((name for name in given if name not in known), None)
    if strange is not None:
        raise RequestError(f"The model has no input '{_cut(strange)}': it takes {takes}.")
    missing = next(name for name in known if name not in given)
    raise RequestError(f"The input '{missing}' is missing: the model takes {takes}.")


def _arrays(
    tensors: Iterable[_Input], known: Mapping[str, Port], tail: memoryview
) -> Iterator[tuple[str, Array]]:
    """Yield the array of each input; what stands behind the JSON is used up in their order."""
    start = 0
    for tensor in tensors:
        port = known[tensor.name]
        if tensor.datatype != port.datatype:
            raise RequestError(
                f"The input '{port.name}' is {port.datatype}, not '{_cut(tensor.datatype)}'."
            )
        shape = _shape(tensor)
        count = prod(shape)
        size = _parameters(tensor.parameters).get(_SIZE)
        if size is None:
            flat = _from_json(tensor, port, shape)
        else:
            if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                raise RequestError(f"{_SIZE} of the input '{port.name}' is no number of bytes.")
            if start + size > len(tail):
                raise RequestError(
                    f"The input '{port.name}' has {size} bytes by its {_SIZE}, and {len(tail) - start} are there."
                )
            flat = _from_bytes(tail[start : start + size], port, count)
            start += size
        yield tensor.name, flat.reshape(shape)
    if start != len(tail):
        raise RequestError(f"{len(tail) - start} bytes behind the JSON belong to no input.")


def _shape(tensor: _Input) -> list[int]:
    shape: list[int] = _short(tensor.shape, f"The shape of the input '{_cut(tensor.name)}'", _SHAPE)
    if len(shape) > _MOST_AXES:
        raise RequestError(f"The input '{tensor.name}' has more than {_MOST_AXES} axes.")
    if not all(1 <= n <= _LARGEST for n in shape):
        raise RequestError(
            f"The shape {_cut(str(shape))} of the input '{tensor.name}' has an extent below 1 or above {_LARGEST}."
        )
    return shape


def _from_json(tensor: _Input, port: Port, shape: Sequence[int]) -> Array:
    raw = bytes(tensor.data)
    if not raw:
        raise RequestError(f"The input '{port.name}' has neither data nor {_SIZE}.")
    array = from_json(raw, port)
    said = _cut(str(list(shape)))
    if array.size != prod(shape):
        raise RequestError(
            f"The input '{port.name}' has {array.size} values and its shape {said} {prod(shape)}."
        )
    # Flat, or nested as the shape says; axes of one may be left out.
    if array.ndim > 1 and _long(array.shape) != _long(shape):
        raise RequestError(
            f"The data of the input '{port.name}' is nested as {list(array.shape)} and its shape is {said}."
        )
    return array


def _long(shape: Sequence[int]) -> list[int]:
    return [n for n in shape if n > 1]


def from_json(raw: bytes, port: Port) -> Array:
    """Return the values of lists, nested as they are; of a single value, an array without axes.

    Raises:
        RequestError: They are not of the input's type, or lists of one level differ in length.
    """
    kind = DTYPES[port.datatype].kind
    words = _LISTS[kind][1]
    try:
        if kind == "O":
            return _texts_of_json(raw, port)
        if len(raw) <= _AT_ONCE and raw[:1] == b"[" and b"[" not in raw[1:]:
            return _as_array(_FLAT[kind].decode(raw), port)
        return _numbers(raw, port)
    except msgspec.MsgspecError as e:
        raise RequestError(
            f"The data of the input '{port.name}' must be a list of {words}, for it is {port.datatype}."
        ) from e


def _numbers(raw: bytes, port: Port) -> Array:
    """Return numbers, read piece by piece; lists are told by their brackets and commas alone."""
    dtype = DTYPES[port.datatype]
    shape = _nesting(raw.translate(None, _NO_STRUCTURE))
    wrong = RequestError(f"The lists of the input '{port.name}' are not all of one length.")
    if shape is None:
        raise wrong
    text = raw.translate(None, b"[]")
    if not text.strip():
        raise RequestError(f"The input '{port.name}' is empty.")
    array = np.empty(prod(shape), dtype)
    start = filled = 0
    while start < len(text):
        end = text.find(b",", start + _AT_ONCE)
        end = len(text) if end < 0 else end
        values = _as_array(_FLAT[dtype.kind].decode(b"[%b]" % text[start:end]), port)
        if filled + len(values) > len(array):  # an empty list counts as one value by its brackets
            raise wrong
        array[filled : filled + len(values)] = values
        filled += len(values)
        start = end + 1
    if filled < len(array):
        raise wrong
    return array.reshape(shape)


def _nesting(lists: bytes) -> tuple[int, ...] | None:
    """Return the extents of nested lists by their brackets and commas; None if they differ within a level."""
    depth = len(lists) - len(lists.lstrip(b"["))
    if depth > _MOST_AXES:
        return None
    extents: list[int] = []
    expected = b""  # of one element, level by level from the innermost
    for level in range(1, depth + 1):
        # The first list of this level ends where, for the first time, so many end together.
        inside = lists.find(b"]" * level) + 2 * level - depth - 2
        extent, rest = divmod(inside + 1, len(expected) + 1)
        if extent < 1 or rest:
            return None
        extents.append(extent)
        expected = b"[%b%b]" % ((expected + b",") * (extent - 1), expected)
    return tuple(reversed(extents)) if lists == expected else None


def _texts_of_json(raw: bytes, port: Port) -> Array:
    start = re.match(rb"[\[ \t\r\n]*", raw)
    depth = start.group().count(b"[") if start else 0
    # About how many there are, before an object is made of each.
    _check_texts(max(raw.count(b"["), (raw.count(b'"') - raw.count(b'\\"')) // 2), port)
    if depth > _MOST_AXES:
        raise RequestError(f"The input '{port.name}' has more than {_MOST_AXES} axes.")
    array = np.array(_text_lists(depth).decode(raw), object)
    if not array.size:
        raise RequestError(f"The input '{port.name}' is empty.")
    if not all(isinstance(text, str) for text in array.flat):
        raise RequestError(f"The lists of the input '{port.name}' are not all of one length.")
    return array


@cache
def _text_lists(depth: int) -> Any:
    """Return the decoder of texts in lists of lists."""
    kind: Any = str
    for _ in range(depth):
        kind = list[kind]
    return msgspec.json.Decoder(kind)


def _check_texts(count: int, port: Port) -> None:
    if count > _MOST_TEXTS:
        raise RequestError(
            f"The input '{port.name}' has {count} texts; up to {_MOST_TEXTS} are taken.", 413
        )


def _as_array(values: list[Any], port: Port) -> Array:
    dtype = DTYPES[port.datatype]
    try:
        with np.errstate(over="ignore"):
            array = np.array(values, dtype)
    except (OverflowError, ValueError) as e:
        raise RequestError(
            f"A value of the input '{port.name}' is out of the range of {port.datatype}."
        ) from e
    if dtype.kind == "f" and not np.isfinite(array).all():
        raise RequestError(
            f"A value of the input '{port.name}' is out of the range of {port.datatype}."
        )
    return array


def _from_bytes(part: memoryview, port: Port, count: int) -> Array:
    dtype = DTYPES[port.datatype]
    if dtype.kind == "O":
        return _texts(part, port, count)
    if len(part) != count * dtype.itemsize:
        raise RequestError(
            f"The input '{port.name}' has {len(part)} bytes; {count} values of {port.datatype} "
            f"take {count * dtype.itemsize}."
        )
    if dtype.kind == "b":  # any byte but 0 is true; numpy's own takes it for granted that it is 1
        return np.asarray(np.frombuffer(part, np.uint8) != 0)
    array = np.frombuffer(part, dtype)
    return array if array.flags.aligned else array.copy()


def _texts(part: memoryview, port: Port, count: int) -> Array:
    _check_texts(count, port)
    found: list[str] = []
    place = 0
    while place + _LENGTH <= len(part) and len(found) < count:
        end = place + _LENGTH + int.from_bytes(part[place : place + _LENGTH], "little")
        if end > len(part):
            break
        found.append(_text(bytes(part[place + _LENGTH : end]), port))
        place = end
    if place != len(part) or len(found) != count:
        raise RequestError(
            f"The bytes of the input '{port.name}' are not {count} texts, each behind its length in four bytes."
        )
    return np.array(found, object)


def _text(content: bytes, port: Port) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as e:
        raise RequestError(f"A text of the input '{port.name}' is no UTF-8.") from e


def checked(port: Port, array: Array) -> Array:
    """Return an array that fits an input.

    An input without axes takes any: onnxruntime does not tell a single number from a model that leaves the shape open.

    Raises:
        RequestError: It has another number of axes, or another extent where the model's is fixed.
    """
    fits = not port.shape or (
        len(array.shape) == len(port.shape)
        and all(want in (None, have) for want, have in zip(port.shape, array.shape, strict=True))
    )
    if not fits:
        raise RequestError(f"The shape {list(array.shape)} does not fit the input '{port}'.")
    return array


def _wanted(asked: _Body, outputs: Sequence[Port]) -> tuple[Wanted, ...]:
    usual = _parameters(asked.parameters).get("binary_data_output") is True
    outputs_asked = _short(asked.outputs, "The list of outputs", _OUTPUTS)
    if not outputs_asked:
        return tuple(Wanted(name=port.name, binary=usual) for port in outputs)
    known = [port.name for port in outputs]
    found = []
    for one in outputs_asked:
        if one.name not in known:
            raise RequestError(
                f"The model has no output '{_cut(one.name)}': it gives {', '.join(known)}."
            )
        parameters = _parameters(one.parameters)
        if parameters.get("classification"):
            raise RequestError("classification is not offered here: ask /predict.")
        found.append(Wanted(name=one.name, binary=parameters.get("binary_data", usual) is True))
    if len({one.name for one in found}) < len(found):
        raise RequestError("An output is asked for twice.")
    return tuple(found)


def encoded(
    head: Mapping[str, Any], asked: Sequence[Wanted], arrays: Mapping[str, Array]
) -> tuple[bytes, int | None]:
    """Return an answer, and how many bytes of it are JSON; None: all.

    Args:
        head: What stands beside the outputs: the model's name, the id, ...
        asked: Which outputs, and how.
        arrays: All outputs by name.
    """
    outputs, tail = [], []
    for one in asked:
        array = arrays[one.name]
        datatype = _datatype(array)
        plain: dict[str, Any] = {
            "name": one.name,
            "datatype": datatype,
            "shape": list(array.shape),
        }
        if one.binary:
            tail.append(_to_bytes(array, datatype))
            plain["parameters"] = {_SIZE: len(tail[-1])}
        else:
            plain["data"] = _flat_json(array.ravel())
        outputs.append(plain)
    text = msgspec.json.encode({**head, "outputs": outputs})
    return (b"".join([text, *tail]), len(text)) if tail else (text, None)


def _flat_json(flat: Array) -> msgspec.Raw:
    """Return a list of JSON, written piece by piece."""
    step = _AT_ONCE // 4  # values
    pieces = (
        msgspec.json.encode(plain_values(flat[i : i + step]))[1:-1]
        for i in range(0, len(flat), step)
    )
    return msgspec.Raw(b"[%b]" % b",".join(pieces))


def plain_values(array: Array) -> Any:
    """Return nested lists of what JSON can hold; what is not finite becomes null."""
    return array.astype(str).tolist() if array.dtype.kind in "SU" else array.tolist()


_DATATYPES = {dtype.newbyteorder("="): name for name, dtype in DTYPES.items() if name != "BYTES"}


def _datatype(array: Array) -> str:
    return _DATATYPES.get(array.dtype, "BYTES")


def _to_bytes(array: Array, datatype: str) -> bytes:
    if datatype != "BYTES":
        return array.astype(DTYPES[datatype], copy=False).tobytes()
    texts = (text if isinstance(text, bytes) else str(text).encode() for text in array.ravel())
    return b"".join(len(text).to_bytes(_LENGTH, "little") + text for text in texts)


def _cut(text: str) -> str:
    """Return what a caller sent, short enough for a message, and printable."""
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    return shown.encode("unicode_escape", "backslashreplace").decode("ascii")
