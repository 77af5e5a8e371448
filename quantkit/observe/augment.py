"""The float model with the tensors to observe as outputs.

Nothing is copied: the structure of the model's file, with outputs added, points into that file. Only
for a model given in memory, or with functions (whose inner tensors the file does not name), the graph is
written anew.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

from quantkit.graph.load import LoadedModel
from quantkit.graph.mapping import mapped_model
from quantkit.graph.messages import to_proto
from quantkit.observe.requests import Request
from quantkit.runtime.session import readable_ir_version

__all__ = ["Augmented", "Tap", "augment"]

_FLOAT = int(ir.DataType.FLOAT)
_SPAN = ("ReduceMin", "ReduceMax")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tap:
    """Where a tensor comes out: one name per value; two (minimum, maximum) if it stays inside.

    An input of the graph is its own tap: `outputs` is empty.
    """

    tensor: str
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Augmented:
    """A serialized model, the folder its weights are in, and its taps."""

    model: bytes
    folder: Path | None
    taps: tuple[Tap, ...]


def augment(source: LoadedModel, requests: Sequence[Request]) -> Augmented:
    """Add an output for each tensor that is asked about."""
    proto, folder = _structure(source, {r.tensor for r in requests})
    inside = _stay_inside(requests)
    inputs = {i.name for i in proto.graph.input}
    listed = {o.name for o in proto.graph.output}
    dtypes = {v.name: v.dtype for node in source.model.graph for v in node.outputs}
    taps = []
    # Four cases per tensor: an input of the graph is in the sample already; one that the model puts out is not listed
    # twice; one that is not float32 is cast, as statistics are of float32; one of which only minimum and maximum are
    # asked is reduced inside the graph, so that two numbers leave it instead of megabytes. If anybody asks more of a
    # tensor, it leaves whole, and its minimum is taken outside: once is enough.
    for tensor in dict.fromkeys(r.tensor for r in requests):
        if tensor in inputs:
            taps.append(Tap(tensor=tensor, outputs=()))
            continue
        name = tensor
        if dtypes.get(tensor) not in {None, ir.DataType.FLOAT}:
            name = _add(proto.graph, "Cast", tensor, to=_FLOAT)
        outputs: tuple[str, ...] = (name,)
        if tensor in inside:
            outputs = tuple(_add(proto.graph, op, name, keepdims=0) for op in _SPAN)
        for output in outputs:
            if output not in listed:
                proto.graph.output.add().name = output
        taps.append(Tap(tensor=tensor, outputs=outputs))
    return Augmented(model=proto.SerializeToString(), folder=folder, taps=tuple(taps))


def _structure(source: LoadedModel, tensors: set[str]) -> tuple[onnx.ModelProto, Path | None]:
    if source.path is not None:
        mapped = mapped_model(source.path, readable_ir_version)
        proto = onnx.ModelProto.FromString(mapped.structure)
        named = {n for node in proto.graph.node for n in node.output}
        if tensors <= named | {i.name for i in proto.graph.input}:
            return proto, mapped.folder
    proto = to_proto(source.model)
    proto.ir_version = readable_ir_version(proto.ir_version)
    return proto, None


def _stay_inside(requests: Sequence[Request]) -> set[str]:
    """Return the tensors of which only minimum and maximum are asked."""
    outside = {r.tensor for r in requests if not r.what.in_graph}
    return {r.tensor for r in requests} - outside


def _add(graph: onnx.GraphProto, op_type: str, tensor: str, **attributes: int) -> str:
    name = f"quantkit/{op_type}/{tensor}"
    node = graph.node.add(op_type=op_type, name=name)
    node.input.append(tensor)
    node.output.append(name)
    for key, value in attributes.items():
        node.attribute.add(name=key, i=value, type=onnx.AttributeProto.INT)
    return name
