"""The Open Inference Protocol, version 2, with the binary tensor extension: bytes <-> arrays.

A request is JSON; tensors stand in it as numbers, or behind it as bytes, little-endian and in row-major order, each as
long as its ``binary_data_size`` says. The header ``Inference-Header-Content-Length`` tells where the JSON ends.
Texts (BYTES) are each preceded by their length in four bytes.

Pure: knows no session and no server. Whatever the bytes are, `decoded` returns arrays that fit the model's inputs or
raises a `RequestError` that says what is wrong in one sentence.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from math import prod
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from quantkit.errors import QuantkitError

__all__ = ["DTYPES", "Array", "Inference", "Port", "RequestError", "Wanted", "checked", "decoded"]
__all__ += ["encoded", "plain_values", "read_json"]

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
_SIZE = "binary_data_size"


class RequestError(QuantkitError):
    """A request that is refused: why, in one sentence, and the status of HTTP.

    Attributes:
        status: 400 and the like.
        retry_after: Seconds after which it may be tried again.
    """

    def __init__(self, text: str, status: int = 400, retry_after: int | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.retry_after = retry_after


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


# What may be left out may be null as well: many clients write all of their fields.
class _Input(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]
    data: msgspec.Raw = msgspec.Raw()
    parameters: dict[str, Any] | None = None


class _Output(msgspec.Struct):
    name: str
    parameters: dict[str, Any] | None = None


class _Body(msgspec.Struct):
    inputs: list[_Input]
    id: str | None = None
    outputs: list[_Output] | None = None
    parameters: dict[str, Any] | None = None


_BODY = msgspec.json.Decoder(_Body)
_ANY = msgspec.json.Decoder()
# By the kind of numpy's type: what JSON must hold, and how it is called.
_LISTS: Mapping[str, tuple[Any, str]] = {
    "b": (list[bool], "true or false"),
    "i": (list[int], "whole numbers"),
    "u": (list[int], "whole numbers"),
    "f": (list[float], "numbers"),
    "O": (list[str], "texts"),
}
_FLAT: Mapping[str, Any] = {kind: msgspec.json.Decoder(of) for kind, (of, _) in _LISTS.items()}


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
        count = _count(tensor)
        parameters = tensor.parameters or {}
        if any(key.startswith("shared_memory") for key in parameters):
            raise RequestError("Shared memory is not offered: send the tensor itself.")
        size = parameters.get(_SIZE)
        if size is None:
            flat = _from_json(tensor, port, count)
        else:
            if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                raise RequestError(f"{_SIZE} of the input '{port.name}' is no number of bytes.")
            if start + size > len(tail):
                raise RequestError(
                    f"The input '{port.name}' has {size} bytes by its {_SIZE}, and {len(tail) - start} are there."
                )
            flat = _from_bytes(tail[start : start + size], port, count)
            start += size
        yield tensor.name, flat.reshape(tensor.shape)
    if start != len(tail):
        raise RequestError(f"{len(tail) - start} bytes behind the JSON belong to no input.")


def _count(tensor: _Input) -> int:
    """Return how many values a tensor has by its shape."""
    if len(tensor.shape) > _MOST_AXES:
        raise RequestError(f"The input '{tensor.name}' has more than {_MOST_AXES} axes.")
    if any(n < 1 for n in tensor.shape):
        raise RequestError(
            f"The shape {_cut(str(tensor.shape))} of the input '{tensor.name}' has an extent below 1."
        )
    return prod(tensor.shape)


def _from_json(tensor: _Input, port: Port, count: int) -> Array:
    kind = DTYPES[port.datatype].kind
    raw = bytes(tensor.data)
    if not raw:
        raise RequestError(f"The input '{port.name}' has neither data nor {_SIZE}.")
    try:
        values = _FLAT[kind].decode(raw)
    except msgspec.MsgspecError:
        values = _nested(raw, port)
    if len(values) != count:
        raise RequestError(
            f"The input '{port.name}' has {len(values)} values and its shape {_cut(str(tensor.shape))} {count}."
        )
    return _as_array(values, port)


def _nested(raw: bytes, port: Port) -> list[Any]:
    """Return the values of lists of lists."""
    kind, words = _LISTS[DTYPES[port.datatype].kind]
    values = read_json(raw)
    wrong = RequestError(
        f"The data of the input '{port.name}' must be a list of {words}, for it is {port.datatype}."
    )
    while isinstance(values, list) and values and isinstance(values[0], list):
        if not all(isinstance(v, list) for v in values):
            raise wrong
        values = [inner for outer in values for inner in outer]
    try:
        found: list[Any] = msgspec.convert(values, kind)
    except msgspec.ValidationError as e:
        raise wrong from e
    return found


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
    usual = (asked.parameters or {}).get("binary_data_output") is True
    if not asked.outputs:
        return tuple(Wanted(name=port.name, binary=usual) for port in outputs)
    known = [port.name for port in outputs]
    found = []
    for one in asked.outputs:
        if one.name not in known:
            raise RequestError(
                f"The model has no output '{_cut(one.name)}': it gives {', '.join(known)}."
            )
        parameters = one.parameters or {}
        if parameters.get("classification"):
            raise RequestError("classification is not offered here: ask /predict.")
        if any(key.startswith("shared_memory") for key in parameters):
            raise RequestError("Shared memory is not offered: the tensor itself is sent.")
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
            plain["data"] = plain_values(array.ravel())
        outputs.append(plain)
    text = msgspec.json.encode({**head, "outputs": outputs})
    return (b"".join([text, *tail]), len(text)) if tail else (text, None)


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
