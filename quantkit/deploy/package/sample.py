"""What `./smoke` sends, and what a server answers: recorded with the server's own code, on the files of the package."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote
from zipfile import BadZipFile

import msgspec
import numpy as np

from quantkit.deploy.package.smoke import values
from quantkit.deploy.serve.engine import RUN_ERRORS, Engine
from quantkit.deploy.serve.predict import Sent, answer
from quantkit.deploy.serve.protocol import (
    DTYPES,
    Array,
    Port,
    RequestError,
    checked,
    decoded,
    encoded,
)
from quantkit.deploy.serve.service import Loaded
from quantkit.errors import DataError, UsageError, as_os_error
from quantkit.runtime.synthetic_inputs import made_up_feeds

_KINDS = {
    ".bmp": "image/bmp",
    ".gif": "image/gif",
    ".jpeg": "image/jpeg",
    ".jpg": "image/jpeg",
    ".png": "image/png",
    ".tif": "image/tiff",
    ".tiff": "image/tiff",
    ".txt": "text/plain",
    ".webp": "image/webp",
}
_READABLE = 10000  # values that are sent as JSON; more as bytes
_DIGITS = 3  # of made-up values, so that a request can be read
_CLASSES = 1000  # that are asked for; five are recorded
_HEADER = "Inference-Header-Content-Length"

Feeds = Mapping[str, Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A request and what it is answered with.

    Attributes:
        file: The name of the file with the request's body.
        content: The body.
        record: What `./smoke` reads: where it is sent, with which headers, and the values of the answer.
    """

    file: str
    content: bytes
    record: Mapping[str, Any]


def kept_sample(loaded: Loaded, name: str, given: Path | None, *, tensors: bool) -> Sample:
    """Return a request with its answer.

    Args:
        loaded: The model, with what is known of its inputs.
        name: What it is called.
        given: An image, a text, an .npy or an .npz; None: inputs are made up.
        tensors: Whether the server takes tensors alone.

    Raises:
        DataError: The model does not run on it, or nothing can be made up.
        UsageError: It is none of these, or the model takes no such thing.
    """
    if given is None:
        return _of_tensors(loaded.engine, name, _made_up(loaded.engine))
    suffix = given.suffix.lower()
    try:
        if suffix in {".npy", ".npz"}:
            return _of_tensors(loaded.engine, name, _arrays(given, loaded.engine))
        if suffix not in _KINDS:
            known = ", ".join((".npy", ".npz", *sorted(_KINDS)))
            raise UsageError(f"The sample '{given}' must be an image, a text or arrays: {known}.")
        sent = Sent(kind=_KINDS[suffix], content=given.read_bytes())
        feeds = loaded.predictor.feeds(sent)
        if tensors:
            return _of_tensors(loaded.engine, name, feeds)
        found = answer(_run(loaded.engine, feeds), loaded.predictor.labels, top=None, softmax=False)
        query = f"?top_k={_CLASSES}" if "predictions" in found else ""
        return _sample(
            f"sample{suffix}", sent.content, f"/predict{query}", {"Content-Type": sent.kind}, found
        )
    except RequestError as e:
        raise UsageError(f"The sample '{given}' cannot be used: {e}") from e
    except OSError as e:
        said = f"Cannot read the sample '{given}': {e.strerror or e}."
        raise as_os_error(UsageError(said), e) from e


def _sample(
    file: str, content: bytes, path: str, headers: Mapping[str, str], found: dict[str, Any]
) -> Sample:
    plain = msgspec.json.decode(msgspec.json.encode(found))  # as a client reads it
    record = {"sample": file, "path": path, "headers": headers, "values": values(plain)}
    return Sample(file=file, content=content, record=record)


def _run(engine: Engine, feeds: Feeds) -> Feeds:
    try:
        return engine.run(feeds)
    except RUN_ERRORS as e:
        line = (str(e).strip().splitlines() or [type(e).__name__])[0]
        raise DataError(f"The model does not run on the sample: {line[:300]}") from e


def _made_up(engine: Engine) -> Feeds:
    for feeds in made_up_feeds(engine.session.get_inputs()):
        rounded = {
            name: np.asarray(np.round(array.astype(np.float64), _DIGITS), array.dtype)
            if array.dtype.kind == "f"
            else array
            for name, array in feeds.items()
        }
        try:
            engine.run(rounded)
        except RUN_ERRORS:
            continue
        return rounded
    raise DataError(
        "No inputs that the model runs on can be made up: give a sample by --sample FILE.npz."
    )


def _arrays(file: Path, engine: Engine) -> Feeds:
    try:
        with file.open("rb") as content:
            stored = np.load(content, allow_pickle=False)
            one = isinstance(stored, np.ndarray)
            arrays = {file.stem: stored} if one else {name: stored[name] for name in stored.files}
    except (ValueError, EOFError, KeyError, BadZipFile) as e:
        raise UsageError(
            f"The sample '{file}' holds no arrays of numbers: write it with numpy.savez."
        ) from e
    if len(arrays) == len(engine.inputs) == 1:
        arrays = dict(zip((engine.inputs[0].name,), arrays.values(), strict=True))
    missing = [port.name for port in engine.inputs if port.name not in arrays]
    if missing:
        raise UsageError(f"The sample '{file}' has no array for the input {', '.join(missing)}.")
    return {port.name: _first(port, arrays[port.name]) for port in engine.inputs}


def _first(port: Port, array: Array) -> Array:
    """Return the first of an array's samples as the model takes it."""
    if array.ndim == len(port.shape) - 1:
        array = array[np.newaxis]
    elif array.ndim and port.shape and port.shape[0] in {None, 1}:
        array = array[:1]
    wanted = DTYPES[port.datatype]
    if wanted.kind not in {array.dtype.kind, "O"}:
        raise RequestError(
            f"The input '{port.name}' is {port.datatype}, and its array {array.dtype}."
        )
    return checked(port, array.astype(wanted))


def _of_tensors(engine: Engine, name: str, feeds: Feeds) -> Sample:
    """Return a request of the Open Inference Protocol: JSON where it can be read, else bytes behind it."""
    texts = any(DTYPES[port.datatype].kind == "O" for port in engine.inputs)
    readable = texts or sum(array.size for array in feeds.values()) <= _READABLE
    tensors, tail = [], []
    for port in engine.inputs:
        array = feeds[port.name]
        plain: dict[str, Any] = {
            "name": port.name,
            "datatype": port.datatype,
            "shape": list(array.shape),
        }
        if readable:
            plain["data"] = array.ravel().tolist()
            if array.dtype.kind == "f":  # the shortest number that is the same in this type
                plain["data"] = [float(str(v)) for v in array.ravel()]
        else:
            tail.append(np.ascontiguousarray(array, DTYPES[port.datatype]).tobytes())
            plain["parameters"] = {"binary_data_size": len(tail[-1])}
        tensors.append(plain)
    head = msgspec.json.encode({"inputs": tensors})
    content, length = b"".join([head, *tail]), len(head) if tail else None
    kind = "application/octet-stream" if tail else "application/json"
    headers = {"Content-Type": kind} | ({_HEADER: str(length)} if tail else {})
    asked = decoded(content, length, engine.inputs, engine.outputs)
    text, _ = encoded({}, asked.outputs, _run(engine, asked.feeds))
    path = f"/v2/models/{quote(name, safe='')}/infer"
    return _sample(
        "sample.bin" if tail else "sample.json", content, path, headers, msgspec.json.decode(text)
    )
