"""Refuses, by name, a model that no runtime could load, before onnx-ir sees it.

Works on the protobuf message, which is quantkit's own copy. Linear in its size.
"""

import heapq
import math
from collections import Counter
from collections.abc import Iterable

import onnx
import onnx_ir as ir

from quantkit.model.graph.protos import ATTRIBUTE_FIELDS, Part, parts_of, proto_graphs, tensors_of
from quantkit.text import printable

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
