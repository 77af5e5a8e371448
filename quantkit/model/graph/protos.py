"""Between protobuf messages and onnx-ir, with nothing lost on the way.

onnx-ir cannot represent maps (what scikit-learn's ZipMap returns: a list of dictionaries from class to probability) nor
opaque types. Such a type is kept beside its value, in `ir.Value.meta`, and put back when the model is written.

Before onnx-ir sees a message it is mended where onnxruntime would load it and onnx-ir or a later stage would not.
"""

from collections.abc import Iterator
from pathlib import PurePosixPath, PureWindowsPath

import onnx
import onnx_ir as ir

Part = onnx.GraphProto | onnx.FunctionProto

# The field that holds an attribute of each kind.
ATTRIBUTE_FIELDS: dict[int, str] = {
    onnx.AttributeProto.AttributeType.Value(kind): field
    for kind, field in (
        *(("FLOAT", "f"), ("INT", "i"), ("STRING", "s"), ("TENSOR", "t"), ("GRAPH", "g")),
        *(("FLOATS", "floats"), ("INTS", "ints"), ("STRINGS", "strings")),
        *(("TENSORS", "tensors"), ("GRAPHS", "graphs")),
        *(("SPARSE_TENSOR", "sparse_tensor"), ("SPARSE_TENSORS", "sparse_tensors")),
        *(("TYPE_PROTO", "tp"), ("TYPE_PROTOS", "type_protos")),
    )
}
_KIND_OF = {field: kind for kind, field in ATTRIBUTE_FIELDS.items()}


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


def mend(proto: onnx.ModelProto) -> None:
    """Bring a message into the form that all readers of it agree on, in place.

    1. A negative extent is a dynamic one.
    2. Of initializers of one name the first counts; without a name none does.
    3. Every graph has a name.
    4. An attribute is of the kind of its value, whatever it says.
    """
    for value in described_values(proto):
        _free_negative_extents(value.type)
    for part in parts_of(proto):
        for attribute in (a for node in part.node for a in node.attribute):
            held = {field.name for field, _ in attribute.ListFields()} & _KIND_OF.keys()
            if len(held) == 1 and ATTRIBUTE_FIELDS.get(attribute.type) not in held:
                attribute.type = _KIND_OF[held.pop()]
    for graph in proto_graphs(proto.graph) if proto.HasField("graph") else ():
        if not graph.name:  # one that is not UTF-8 is handed out as bytes, and not taken back
            graph.name = "graph"
        _drop_initializers(graph)


def _free_negative_extents(declared: onnx.TypeProto) -> None:
    kind = declared.WhichOneof("value")
    if kind in {"sequence_type", "optional_type"}:
        _free_negative_extents(getattr(declared, kind).elem_type)
    elif kind in {"tensor_type", "sparse_tensor_type"}:
        for extent in getattr(declared, kind).shape.dim:
            if extent.dim_value < 0:
                extent.Clear()


def _drop_initializers(graph: onnx.GraphProto) -> None:
    first: dict[str, onnx.TensorProto] = {}
    for tensor in graph.initializer:
        if tensor.name:
            first.setdefault(tensor.name, tensor)
    kept = list(first.values())
    if len(kept) < len(graph.initializer):
        copies = [onnx.TensorProto.FromString(t.SerializeToString()) for t in kept]
        del graph.initializer[:]
        graph.initializer.extend(copies)


def complaint_of(proto: onnx.ModelProto) -> str:
    """Return what onnx's checker has against a model; "" if nothing.

    Not counted: inputs and outputs without a shape and an IR version newer than the checker, which runtimes take. Contents of
    tensors are not looked at.
    """
    bare = onnx.ModelProto()
    bare.CopyFrom(proto)
    for tensor in tensors_of(bare):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
            tensor.dims[:] = [0]  # of what is empty the checker wants no contents
    for value in (*bare.graph.input, *bare.graph.output):
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.shape.SetInParent()
    bare.ir_version = min(max(bare.ir_version, 3), onnx.IR_VERSION)
    try:
        onnx.checker.check_model(bare)
    except (onnx.checker.ValidationError, ValueError, RuntimeError) as e:
        return next(iter(str(e).strip().splitlines()), type(e).__name__)
    return ""


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
