"""Between protobuf messages and onnx-ir, with nothing lost on the way.

onnx-ir cannot represent maps (what scikit-learn's ZipMap returns: a list of dictionaries from class to probability) nor
opaque types. Such a type is kept beside its value, in `ir.Value.meta`, and put back when the model is written.

Small readers of protobuf messages, for the few places that must look before onnx-ir does.
"""

from collections.abc import Iterator
from pathlib import PurePosixPath, PureWindowsPath

import onnx
import onnx_ir as ir

__all__ = [
    "Part",
    "described_values",
    "leads_out",
    "location_of",
    "parts_of",
    "proto_graphs",
    "root_cause",
    "tensors_of",
    "to_ir",
    "to_proto",
]

Part = onnx.GraphProto | onnx.FunctionProto


def proto_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and all graphs inside it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from proto_graphs(attribute.g)
            for inner in attribute.graphs:
                yield from proto_graphs(inner)


def parts_of(proto: onnx.ModelProto) -> Iterator[Part]:
    """Yield all graphs and functions."""
    yield from proto_graphs(proto.graph)
    for function in proto.functions:
        yield function
        for attribute in (a for node in function.node for a in node.attribute):
            for graph in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                yield from proto_graphs(graph)


def described_values(proto: onnx.ModelProto) -> Iterator[onnx.ValueInfoProto]:
    """Yield every declaration of a value's type, in all graphs and functions."""
    for part in parts_of(proto):
        yield from part.value_info
        if isinstance(part, onnx.GraphProto):
            yield from part.input
            yield from part.output


def tensors_of(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor: initializers, and those in attributes."""
    for part in parts_of(proto):
        if isinstance(part, onnx.GraphProto):
            yield from part.initializer
        for attribute in (a for node in part.node for a in node.attribute):
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def location_of(tensor: onnx.TensorProto) -> str:
    """Return the file that holds the tensor's contents; "" if it holds them itself."""
    return next((e.value for e in tensor.external_data if e.key == "location"), "")


def leads_out(location: str) -> bool:
    """Return whether external data lies outside the model's folder, as POSIX or Windows reads its location."""
    readings = (PurePosixPath(location), PureWindowsPath(location))
    return any(path.drive or path.root or ".." in path.parts for path in readings)


def root_cause(error: BaseException) -> str:
    """Return the first line of the message at the bottom of onnx-ir's chains of errors."""
    while error.__cause__ is not None:
        error = error.__cause__
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


_KEPT = "quantkit.type"  # in `ir.Value.meta`


def to_ir(proto: onnx.ModelProto) -> ir.Model:
    """Return the model of a message, which is left as it was."""
    aside = [
        (v, v.type.SerializeToString()) for v in described_values(proto) if _is_strange(v.type)
    ]
    try:
        for described, _ in aside:
            described.ClearField("type")
        model = ir.serde.deserialize_model(proto)
    finally:
        for described, kept in aside:
            described.type.ParseFromString(kept)
    named = {described.name: kept for described, kept in aside}
    if named:
        for value in _values(model):
            if value.type is None and value.name in named:
                value.meta[_KEPT] = named[value.name]
    return model


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """Return the message of a model, with its weights."""
    # Two things that onnx-ir does not hand back as it took them. It adds a value_info for every initializer, of whose
    # type the tensor itself tells. And it has no maps and opaque types (a classifier's probabilities by class): `to_ir`
    # sets these aside in the value's meta, and they are put back by name, only where nothing else was declared since.
    proto: onnx.ModelProto = ir.serde.serialize_model(model)
    for graph in proto_graphs(proto.graph):
        # onnx-ir describes initializers once more, which say themselves what they are.
        held = {tensor.name for tensor in graph.initializer}
        described = [value for value in graph.value_info if value.name not in held]
        if len(described) < len(graph.value_info):
            del graph.value_info[:]
            graph.value_info.extend(described)
    kept = {v.name: v.meta[_KEPT] for v in _values(model) if v.type is None and _KEPT in v.meta}
    if kept:
        for graph in proto_graphs(proto.graph):
            for described in (*graph.input, *graph.output):
                if described.name in kept and not described.HasField("type"):
                    described.type.ParseFromString(kept[described.name])
    return proto


def _is_strange(declared: onnx.TypeProto) -> bool:
    kind = declared.WhichOneof("value")
    if kind in {"sequence_type", "optional_type"}:
        return _is_strange(getattr(declared, kind).elem_type)
    return kind in {"map_type", "opaque_type"}


def _values(model: ir.Model) -> Iterator[ir.Value]:
    """Yield what may be declared with a type that is kept: the ends of all graphs."""
    for graph in model.graphs():
        yield from graph.inputs
        yield from graph.outputs
