"""What names a model: the bytes of its files, or what they say.

`model_digest` is of the files as they are. `content_digest` is of what a model says, however it is stored:

    content = SHA-256(structure),  in which each tensor's bytes are replaced by their SHA-256

Invariant: one file or external data, other file names, offsets, and the provenance entry itself do not change it;
every node, attribute, name, other metadata entry and weight does. Nothing larger than the structure and one block
is in memory.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Self

import onnx

from quantkit.errors import ModelError
from quantkit.model.graph._wire import MARK
from quantkit.model.graph.load import LoadedModel, read_structure
from quantkit.model.graph.protos import leads_out, proto_graphs
from quantkit.settings.record import PROVENANCE

__all__ = ["KEY", "content_digest", "model_digest"]

KEY = PROVENANCE
_BLOCK = 1 << 20


def model_digest(source: LoadedModel) -> dict[str, Any]:
    """Return the name, the size and the SHA-256 of a model, external data included."""
    digest = sha256()
    if source.proto is not None:
        digest.update(source.proto.SerializeToString(deterministic=True))
    for path in source.files:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
    return {
        "name": source.path.name if source.path else "ModelProto",
        "bytes": source.nbytes,
        "sha256": digest.hexdigest(),
    }


def content_digest(path: Path) -> str:
    """Return the digest of what a model file says; see the module's docstring.

    Raises:
        ModelError: It cannot be read, or its external data is missing or too short.
    """
    structure = read_structure(path)
    kept = [entry for entry in structure.metadata_props if entry.key != KEY]
    del structure.metadata_props[:]
    structure.metadata_props.extend(kept)
    with _Files(path) as files:
        for tensor in _tensors(structure.graph):
            _reduce(tensor, files)
    return sha256(structure.SerializeToString(deterministic=True)).hexdigest()


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield the tensors whose contents may be elsewhere."""
    for part in proto_graphs(graph):
        constants = (a.t for node in part.node for a in node.attribute if a.HasField("t"))
        yield from chain(part.initializer, constants)


def _reduce(tensor: onnx.TensorProto, files: "_Files") -> None:
    """Put the digest of a tensor's bytes in their place, wherever they are."""
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        digest = files.digest(tensor)
    elif tensor.HasField("raw_data"):
        digest = sha256(tensor.raw_data).digest()
    else:
        return  # typed fields are part of the structure
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")
    tensor.raw_data = digest


class _Files:
    """The files that hold a model's tensors, open as long as they are needed."""

    def __init__(self, model: Path) -> None:
        self._model = model
        self._open: dict[str, BinaryIO] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def digest(self, tensor: onnx.TensorProto) -> bytes:
        """Return the SHA-256 of a tensor's bytes, read in blocks."""
        note = {entry.key: entry.value for entry in tensor.external_data}
        location = note.get("location", "")
        try:
            file = self._file(location)
            file.seek(int(note.get("offset", 0)))
            left = int(note["length"]) if "length" in note else None
            digest = sha256()
            while left != 0 and (block := file.read(_BLOCK if left is None else min(left, _BLOCK))):
                digest.update(block)
                left = left if left is None else left - len(block)
        except (OSError, ValueError) as e:
            raise ModelError(f"External data '{location}' cannot be read: {e}.") from e
        if left:
            raise ModelError(
                f"External data '{location}' is {left} bytes too short for tensor '{tensor.name}'."
            )
        return digest.digest()

    def _file(self, location: str) -> BinaryIO:
        if location not in self._open:
            if leads_out(location):
                raise ValueError("it lies outside the model's folder")
            path = self._model if location == MARK else self._model.parent / location
            self._open[location] = self._stack.enter_context(path.open("rb", buffering=0))
        return self._open[location]
