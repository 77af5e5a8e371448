"""What names a model: the bytes of its files, or what they say.

`model_digest` is of the files as they are. `content_digest` is of what a model says, however it is stored:

    content = SHA-256(structure),  in which each tensor's bytes are replaced by their SHA-256

Invariant: one file or external data, other file names, offsets, and the provenance entry itself do not change it;
every node, attribute, name, other metadata entry and weight does. Nothing larger than the structure and one block
is in memory.
"""

from collections.abc import Iterator
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

import onnx

from quantkit.errors import ModelError
from quantkit.model.graph._wire import MARK
from quantkit.model.graph.load import LoadedModel, read_structure
from quantkit.model.graph.mapping import MappedFile
from quantkit.model.graph.protos import leads_out, proto_graphs
from quantkit.settings.record import PROVENANCE

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
    for tensor in _tensors(structure.graph):
        _reduce(tensor, path)
    return sha256(structure.SerializeToString(deterministic=True)).hexdigest()


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield the tensors whose contents may be elsewhere."""
    for part in proto_graphs(graph):
        constants = (a.t for node in part.node for a in node.attribute if a.HasField("t"))
        yield from chain(part.initializer, constants)


def _reduce(tensor: onnx.TensorProto, model: Path) -> None:
    """Put the digest of a tensor's bytes in their place, wherever they are."""
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        digest = _external_digest(tensor, model)
    elif tensor.HasField("raw_data"):
        digest = sha256(tensor.raw_data).digest()
    else:
        return  # typed fields are part of the structure
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")
    tensor.raw_data = digest


def _external_digest(tensor: onnx.TensorProto, model: Path) -> bytes:
    """Return the SHA-256 of a tensor's bytes in a file, read in blocks."""
    note = {entry.key: entry.value for entry in tensor.external_data}
    location, digest = note.get("location", ""), sha256()
    if leads_out(location):
        raise ModelError(
            f"External data '{location}' cannot be read: it lies outside the model's folder."
        )
    try:
        file = MappedFile(model if location == MARK else model.parent / location)
        start = int(note.get("offset", 0))
        end = start + int(note["length"]) if "length" in note else max(start, len(file))
        for block in file.blocks(start, min(end, len(file))):
            digest.update(block)
    except (OSError, ValueError) as e:
        raise ModelError(f"External data '{location}' cannot be read: {e}.") from e
    if end > max(start, len(file)):
        missing = end - max(start, len(file))
        raise ModelError(
            f"External data '{location}' is {missing} bytes too short for tensor '{tensor.name}'."
        )
    return digest.digest()
