"""Where the bytes of a model are. The parts add up to the size of its files exactly."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b

import onnx_ir as ir

from quantkit.graph.load import LoadedModel

__all__ = ["SizePart", "size_by_cause"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizePart:
    """One cause of size: how many tensors, how many bytes."""

    cause: str
    tensors: int
    nbytes: int


def size_by_cause(loaded: LoadedModel) -> tuple[SizePart, ...]:
    """Account for every byte, largest cause first.

    Causes: "weights of <operator>" (the first that reads it), "duplicates" (tensors equal to one counted
    before), "dead" (nobody reads it), "metadata" (properties and doc strings), and "structure" (nodes, names,
    types: the rest).
    """
    count: dict[str, int] = defaultdict(int)
    nbytes: dict[str, int] = defaultdict(int)
    seen: set[bytes] = set()
    for value in _initializers(loaded.model):
        tensor = value.const_value
        if tensor is None:
            continue
        cause = _cause(value, tensor, seen, readable=not loaded.missing)
        count[cause] += 1
        nbytes[cause] += tensor.nbytes
    nbytes["metadata"] = _metadata_bytes(loaded.model)
    nbytes["structure"] = loaded.nbytes - sum(nbytes.values())
    parts = [SizePart(cause=c, tensors=count[c], nbytes=n) for c, n in nbytes.items() if n]
    return tuple(sorted(parts, key=lambda part: -part.nbytes))


def _initializers(model: ir.Model) -> Iterator[ir.Value]:
    for graph in model.graphs():
        yield from graph.initializers.values()


def _cause(value: ir.Value, tensor: ir.TensorProtocol, seen: set[bytes], *, readable: bool) -> str:
    if not value.uses() and not value.is_graph_output():
        return "dead"
    if readable and tensor.nbytes >= _HASHED_FROM:
        digest = blake2b(tensor.tobytes(), digest_size=16)
        digest.update(f"{tensor.dtype}{tensor.shape}".encode())
        if digest.digest() in seen:
            return "duplicates"
        seen.add(digest.digest())
    reader = next((use.node.op_type for use in value.uses()), None)
    return f"weights of {reader}" if reader else "constant outputs"


_HASHED_FROM = 256


def _metadata_bytes(model: ir.Model) -> int:
    texts = [model.doc_string or "", model.graph.doc_string or ""]
    for node in model.graph.all_nodes():
        texts.append(node.doc_string or "")
        texts += [*node.metadata_props.keys(), *node.metadata_props.values()]
    texts += [*model.metadata_props.keys(), *model.metadata_props.values()]
    return sum(len(text.encode()) for text in texts)
