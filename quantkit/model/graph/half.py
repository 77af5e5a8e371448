"""Models in float16 or bfloat16, computed in float32: what the integers of a plan are made from and put between.

Weights and everything inside become float32; inputs and outputs keep their types, behind a Cast. Nothing is lost: every
half is a float. Weights are widened each time they are read, and never kept.
"""

import onnx_ir as ir

from quantkit.errors import ModelError
from quantkit.model.graph.edit import Names, is_op, nodes_of, own_name
from quantkit.model.graph.mapping import lazy
from quantkit.model.graph.shapes import infer_types

RUN_WIDE = "onnxruntime's CPU provider has no kernels for bfloat16: what it computes in that was run in float32"

_HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
# Attributes that name the type of a node's result.
_TYPE_ATTRIBUTES = ("to", "dtype", "output_datatype", "stash_type")


def half_type(model: ir.Model) -> str:
    """Return "float16" or "bfloat16" if a model has weights of that type; else ""."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is not None and tensor.dtype in _HALVES and len(tensor.shape) >= 2:
                return tensor.dtype.name.lower()
    return ""


def computes_bfloat16(model: ir.Model) -> bool:
    """Say whether a model computes in bfloat16, and does not only hold it: onnxruntime's CPU provider has no kernels for that."""
    held = [v for graph in model.graphs() for v in (*graph.inputs, *graph.initializers.values())]
    halves = [v for v in held if v.dtype is ir.DataType.BFLOAT16]
    casts = (node for node in nodes_of(model) if is_op(node, "Cast"))
    halves += [n.outputs[0] for n in casts if n.attributes.get_int("to", 0) == ir.DataType.BFLOAT16]
    return any(not is_op(use.node, "Cast") for value in halves for use in value.uses())


def stays_half(model: ir.Model) -> bool:
    """Say whether a model that has no weights of halves takes or gives float16, or turns to it, and so computes in it."""
    values = (*model.graph.inputs, *model.graph.outputs)
    halves = any(v.dtype is ir.DataType.FLOAT16 for v in values)
    return not half_type(model) and (halves or any(map(_turns_half, nodes_of(model))))


def _turns_half(node: ir.Node) -> bool:
    """Say whether a node makes float16 that something computes with."""
    if not is_op(node, "Cast") or node.attributes.get_int("to", 0) != ir.DataType.FLOAT16:
        return False
    return any(not is_op(use.node, "Cast") for use in node.outputs[0].uses())


def widened_note(half: str) -> str:
    """Say what `widen` does to a model of that type."""
    return f"It is a {half} model: in its result what is not in integers is computed and stored in float32."


def widen(model: ir.Model) -> dict[str, str]:
    """Compute in float32 what a model computes in halves, in place; return new tensors by what they were called.

    Raises:
        ModelError: A sequence of halves is an input or output.
    """
    # Types first, as a half inside the graph may be declared nowhere, and would stay one. Inputs and outputs are
    # noted before anything is widened, because afterwards no one can tell which they were. An input that is an
    # initializer too, or that nobody reads, needs no Cast and keeps its type; an output that is itself an input has
    # the input's type already. Casts that turn a half into the float it now is already go last, when all types are
    # final.
    infer_types(model)
    names = Names(v.name for v in _values(model) if v.name)
    inputs = {v: half for v in model.graph.inputs if (half := _half_of(v)) is not None}
    outputs = {v: half for v in model.graph.outputs if (half := _half_of(v)) is not None}
    for value in _values(model):
        _widen_value(value)
    for node in model.graph.all_nodes():
        _widen_attributes(node)
    renamed: dict[str, str] = {}
    for value, half in inputs.items():
        if value.uses() and not value.is_initializer():
            new = names.fresh(f"{value.name}_float32")
            renamed[new] = own_name(value)
            _cast_input(model.graph, value, half, new)
        else:
            value.type = ir.TensorType(half)
    for value, half in outputs.items():
        if not value.is_graph_input():
            new = names.fresh(f"{value.name}_float32")
            renamed[new] = own_name(value)
            _cast_output(model.graph, value, half, new)
    _drop_casts(model, renamed)
    return renamed


def _values(model: ir.Model) -> list[ir.Value]:
    found: dict[ir.Value, None] = {}
    for graph in model.graphs():
        found |= dict.fromkeys((*graph.inputs, *graph.initializers.values(), *graph.outputs))
        for node in graph:
            found |= dict.fromkeys(node.outputs)
    return list(found)


def _half_of(value: ir.Value) -> ir.DataType | None:
    if value.dtype not in _HALVES:
        return None
    if not isinstance(value.type, ir.TensorType):
        raise ModelError(
            f"'{value.name}' is a sequence of {str(value.dtype.name).lower()}: export the model in float32."
        )
    return value.dtype


def _widen_value(value: ir.Value) -> None:
    if value.dtype in _HALVES:
        value.dtype = ir.DataType.FLOAT  # also inside sequences and optionals
    tensor = value.const_value
    if tensor is not None and tensor.dtype in _HALVES:
        value.const_value = _widened(tensor)


def _widened(tensor: ir.TensorProtocol) -> ir.LazyTensor:
    shape = tuple(int(n) for n in tensor.shape.numpy())
    return lazy(lambda: tensor.numpy().astype("float32"), ir.DataType.FLOAT, shape, tensor.name)


def _widen_attributes(node: ir.Node) -> None:
    for name, attribute in tuple(node.attributes.items()):
        if attribute.type is ir.AttributeType.TENSOR and attribute.as_tensor().dtype in _HALVES:
            node.attributes[name] = ir.AttrTensor(name, _widened(attribute.as_tensor()))
        elif name in _TYPE_ATTRIBUTES and attribute.value in _HALVES:
            node.attributes[name] = ir.AttrInt64(name, ir.DataType.FLOAT.value)


def _cast_input(graph: ir.Graph, value: ir.Value, half: ir.DataType, name: str) -> None:
    """Let readers of an input read a float of another name."""
    readers = tuple(value.uses())
    node = _cast(value, ir.DataType.FLOAT, name)
    for use in readers:  # an output of the model that is this input stays as it is
        use.node.replace_input_with(use.idx, node.outputs[0])
    value.type = ir.TensorType(half)
    graph.insert_before(next(iter(graph)), node)


def _cast_output(graph: ir.Graph, value: ir.Value, half: ir.DataType, name: str) -> None:
    """Give what is computed another name, and put a Cast of the old name behind it."""
    public = own_name(value)
    node = _cast(value, half, public)
    value.name = name
    graph.append(node)
    for index, output in enumerate(graph.outputs):
        if output is value:
            graph.outputs[index] = node.outputs[0]


def _cast(value: ir.Value, to: ir.DataType, name: str) -> ir.Node:
    node = ir.node("Cast", [value], {"to": to.value}, name=f"{value.name}_cast")
    out = node.outputs[0]
    out.name, out.type, out.shape = name, ir.TensorType(to), value.shape
    return node


def _drop_casts(model: ir.Model, renamed: dict[str, str]) -> None:
    """Take out what turned floats into halves and back, and now does nothing."""
    for node in list(model.graph.all_nodes()):
        if node.op_type != "Cast" or node.domain or node.graph is None:
            continue
        source, out = node.inputs[0], node.outputs[0]
        if source is None or source.dtype is not ir.DataType.FLOAT or out.is_graph_output():
            continue
        if node.attributes["to"].as_int() == ir.DataType.FLOAT:
            renamed.setdefault(own_name(source), own_name(out))
            out.replace_all_uses_with(source)
            node.graph.remove(node, safe=True)
