"""Between protobuf messages and onnx-ir, with nothing lost on the way.

onnx-ir cannot represent maps (what scikit-learn's ZipMap returns: a list of dictionaries from class to probability) nor
opaque types. Such a type is kept beside its value, in `ir.Value.meta`, and put back when the model is written.

Before onnx-ir sees a message it is mended where onnxruntime would load it and onnx-ir or a later stage would not.

`validate` refuses a model that no runtime could load, and names what is wrong. It works on quantkit's own copy of the message, in
time linear in its size.
"""

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath, PureWindowsPath

import onnx
import onnx_ir as ir

from quantkit.text import printable

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

_LARGEST = 1 << 62  # bytes; beyond that offsets overflow
_TYPES = {int(dtype): dtype for dtype in ir.DataType if dtype is not ir.DataType.UNDEFINED}
_STRING = onnx.TensorProto.STRING
# The field that holds the values of a type, where they are not raw.
_FIELDS: dict[int, str] = {_STRING: "string_data", onnx.TensorProto.DOUBLE: "double_data"}
_FIELDS |= dict.fromkeys((onnx.TensorProto.FLOAT, onnx.TensorProto.COMPLEX64), "float_data")
_FIELDS |= dict.fromkeys((onnx.TensorProto.UINT32, onnx.TensorProto.UINT64), "uint64_data")
_FIELDS[onnx.TensorProto.INT64] = "int64_data"
_FIELDS[onnx.TensorProto.COMPLEX128] = "double_data"
_COMPLEX = frozenset({onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128})
_MESSAGES = frozenset({"t", "g", "tp", "sparse_tensor"})


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


class DamageError(ValueError):
    """What is wrong with a model, in a few words; names out of a damaged file may hold anything."""

    def __init__(self, what: str) -> None:
        super().__init__(printable(what))


def validate(proto: onnx.ModelProto) -> None:
    """Look for what no writer of ONNX would write but a protobuf may hold; sort nodes that are not in order.

    Raises:
        DamageError: Text that is not UTF-8, a tensor whose bytes do not fit its type or shape, a value that is made twice
            or by nothing, or nodes that read each other's results in a circle.
    """
    for part in parts_of(proto):
        _require_text(part)
        _check_attributes(part)
    for graph in proto_graphs(proto.graph):
        _refuse_references(graph)
    for part in (proto.graph, *proto.functions):
        unknown = _sort(part)
        if unknown:
            raise DamageError(f"nothing makes '{min(unknown)}', which is read")
    for tensor in tensors_of(proto):
        _check_tensor(tensor)


def _require_text(part: Part) -> None:
    """Protobuf hands out bytes for text that is not UTF-8."""
    names: list[object] = []
    if isinstance(part, onnx.GraphProto):
        names += (v.name for v in (part, *part.input, *part.output, *part.initializer))
    for node in part.node:
        names += (node.name, node.op_type, node.domain, *node.input, *node.output)
        names += (a.name for a in node.attribute)
    bad = next((n for n in names if not isinstance(n, str)), None)
    if bad is not None:
        raise DamageError(f"the name {bad!r} is not UTF-8")


def _check_attributes(part: Part) -> None:
    """Raise if an attribute says that it holds a tensor or a graph, and holds none."""
    for node in part.node:
        for attribute in node.attribute:
            wanted = ATTRIBUTE_FIELDS.get(attribute.type)
            absent = wanted in _MESSAGES and not attribute.HasField(wanted)
            if absent and not attribute.ref_attr_name:
                raise DamageError(
                    f"attribute '{attribute.name}' of node '{node.name or node.op_type}' has no value"
                )


def _refuse_references(graph: onnx.GraphProto) -> None:
    """Attributes may name those of a function around them; where there is none, there is nothing to name."""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.ref_attr_name:
                raise DamageError(
                    f"attribute '{attribute.name}' of node '{node.name or node.op_type}' stands for one of a "
                    "function, and there is none"
                )


def _sort(part: Part) -> set[str]:
    """Put the nodes of a graph, and of those inside it, in order; return what it reads and does not make."""
    # ONNX demands that nodes come in order; some exporters do not keep to it, and onnxruntime loads their files. A
    # graph in order (nearly all) is not copied. What a subgraph reads from outside counts as read by the node that
    # holds it, hence the recursion before the order is known. What is left when no further node can be placed is a
    # cycle, and its first node is named. Read and never made is no error here: it may be a name of an outer graph,
    # and the outermost caller decides.
    given = _given_names(part)
    makers = _makers(part, given)
    reads = [_reads(node) for node in part.node]
    needs = [{makers[name] for name in found if name in makers} for found in reads]
    if any(need >= i for i, needed in enumerate(needs) for need in needed):
        order = _order(needs)
        if len(order) < len(needs):
            stuck = part.node[min(set(range(len(needs))) - set(order))]
            raise DamageError(
                f"node '{stuck.name or stuck.op_type}' reads what is computed from its own result"
            )
        copies = [onnx.NodeProto.FromString(part.node[i].SerializeToString()) for i in order]
        del part.node[:]
        part.node.extend(copies)
    read = set().union(*reads)
    read.update(v if isinstance(v, str) else v.name for v in part.output)
    return read - given - makers.keys()


def _reads(node: onnx.NodeProto) -> set[str]:
    """Return the names that a node reads, also inside its graphs, which are put in order."""
    found = {name for name in node.input if name}
    for attribute in node.attribute:
        for graph in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else ())):
            found |= _sort(graph)
    return found


def _given_names(part: Part) -> set[str]:
    """Return the names that a graph has without computing them."""
    if isinstance(part, onnx.FunctionProto):
        return set(part.input)
    names = [value.name for value in part.input]
    _require_unique(names, "input")
    return {*names, *(tensor.name for tensor in part.initializer)}


def _makers(part: Part, given: set[str]) -> dict[str, int]:
    """Return which node makes each value that is not given."""
    found: dict[str, int] = {}
    for index, node in enumerate(part.node):
        if not node.op_type:
            raise DamageError(f"node '{node.name}' has no operator")
        for name in node.output:
            if name in found or name in given:
                raise DamageError(f"'{name}' is made twice")
            if name:
                found[name] = index
    return found


def _require_unique(names: Iterable[str], what: str) -> None:
    for name, count in Counter(names).items():
        if not name:
            raise DamageError(f"an {what} has no name")
        if count > 1:
            raise DamageError(f"{what} '{name}' is listed twice")


def _order(needs: list[set[int]]) -> list[int]:
    """Return the nodes in an order in which each comes behind what it needs, else as they were; of a circle none."""
    readers: dict[int, list[int]] = {}
    for index, needed in enumerate(needs):
        for need in needed:
            readers.setdefault(need, []).append(index)
    waiting = [len(needed) for needed in needs]
    ready = [index for index, count in enumerate(waiting) if not count]
    order = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for reader in readers.get(index, ()):
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, reader)
    return order


def _check_tensor(tensor: onnx.TensorProto) -> None:
    """Raise if a tensor's contents do not fit its type and shape, as far as they are in the message."""
    dtype = _TYPES.get(tensor.data_type)
    what = f"tensor '{tensor.name}'"
    if dtype is None:
        raise DamageError(f"{what} has no type that is known")
    if any(extent < 0 for extent in tensor.dims):
        raise DamageError(f"{what} has a negative extent: {list(tensor.dims)}")
    size = math.prod(tensor.dims)
    nbytes = -(-size * dtype.bitwidth // 8) if dtype is not ir.DataType.STRING else size
    if nbytes > _LARGEST:
        raise DamageError(f"{what} is too large for any file: {list(tensor.dims)}")
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        _check_note(tensor, nbytes)
    elif tensor.HasField("raw_data") and dtype is not ir.DataType.STRING:
        if len(tensor.raw_data) != nbytes:
            raise DamageError(
                f"{what} has {len(tensor.raw_data)} bytes, its shape asks for {nbytes}"
            )
    else:
        _check_values(tensor, size, dtype)


def _check_note(tensor: onnx.TensorProto, nbytes: int) -> None:
    """Raise if what a tensor says of where its contents are makes no sense."""
    note = {entry.key: entry.value for entry in tensor.external_data}
    if not note.get("location"):
        raise DamageError(f"tensor '{tensor.name}' is in another file and does not say in which")
    if tensor.data_type == _STRING:
        raise DamageError(f"tensor '{tensor.name}' holds texts, which cannot be in another file")
    for key in ("offset", "length"):
        if key in note and not (note[key].isascii() and note[key].isdecimal()):
            raise DamageError(f"tensor '{tensor.name}' has '{note[key]}' for its {key}")
    length = int(note.get("length", nbytes))
    if length not in {0, nbytes}:  # 0: not said
        raise DamageError(f"tensor '{tensor.name}' has {length} bytes, its shape asks for {nbytes}")


def _check_values(tensor: onnx.TensorProto, size: int, dtype: ir.DataType) -> None:
    field = _FIELDS.get(tensor.data_type, "int32_data")
    found = len(getattr(tensor, field))
    if tensor.data_type in _COMPLEX:
        size *= 2
    elif field == "int32_data" and dtype.bitwidth < 8:
        size = -(-size * dtype.bitwidth // 8)
    if found != size:
        raise DamageError(f"tensor '{tensor.name}' has {found} values, its shape asks for {size}")
