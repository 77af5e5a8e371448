"""Reads off a graph what concerns 16 bits, for planners: types, what ONNX's schemas allow, what constants lose."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from math import prod

import onnx
import onnx_ir as ir

from quantkit.model.graph.edit import subgraphs_of
from quantkit.model.graph.opset import opset_of
from quantkit.model.graph.shapes import dims, infer_types, integers
from quantkit.model.graph.view import view_of
from quantkit.model.ops.float_ops import AVERAGES
from quantkit.model.ops.integer_ops import CONVERSIONS
from quantkit.model.ops.view import FloatConstant, HalfSlots, HalfView
from quantkit.numerics.half import half_loss

_HALF = "tensor(float16)"
_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_BYTES = 4  # of a float32
_SPATIAL = 2  # the first axis of places
# What is quantized has its type from others than its float inputs.
_FIXED = CONVERSIONS | {"Constant", "Optional"}


def half_view_of(model: ir.Model, kind: str, *, computed: bool = False) -> HalfView:
    """Describe a model for planners of 16 bits; names are unique over all graphs.

    Args:
        model: The model; where types are asked for, its values know theirs afterwards.
        kind: "float16" or "bfloat16".
        computed: Also describe nodes and what they make, not only constants.
    """
    if computed:
        infer_types(model)
    found = HalfView(
        view=view_of(model, read_weights=False),
        constants={c.tensor: c for c in _constants(model, kind)},
        floats=tuple(_floats(model)),
        outputs=tuple(v.name or "" for v in model.graph.outputs),
        float_bytes=sum(_BYTES * t.size for t in _tensors(model) if t.dtype in _FLOATS),
    )
    return _with_nodes(found, model) if computed else found


def _with_nodes(found: HalfView, model: ir.Model) -> HalfView:
    """Describe the nodes of the main graph too; of those with subgraphs or unknown types only the names."""
    opset = opset_of(model)
    slots: dict[str, HalfSlots] = {}
    sums: dict[str, int] = {}
    holders, untyped = set(), set()
    for node in model.graph:
        name = node.name or ""
        if any(subgraphs_of(node)):
            holders.add(name)
        if _is_untyped(node):
            untyped.add(name)
        if name in holders | untyped:
            continue
        if (own := half_slots(node, opset)) is not None:
            slots[name] = own
        if (summed := _summed(node)) is not None:
            sums[name] = summed
    return replace(
        found, slots=slots, sums=sums, holders=frozenset(holders), untyped=frozenset(untyped)
    )


def _floats(model: ir.Model) -> Iterator[str]:
    """Yield the float32 tensors of the main graph that are fed or computed."""
    for value in (*model.graph.inputs, *(v for node in model.graph for v in node.outputs)):
        if _is_float(value) and not value.is_initializer():
            yield value.name or ""


def _constants(model: ir.Model, kind: str) -> Iterator[FloatConstant]:
    numpy_kind = ir.DataType[kind.upper()].numpy()
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is None or tensor.dtype is not ir.DataType.FLOAT:
                continue
            missing = isinstance(tensor, ir.ExternalTensor)  # its file is not there
            yield FloatConstant(
                tensor=value.name or "",
                shape=tuple(int(n) for n in tensor.shape.numpy()),
                exposed=value.is_graph_input() or value.is_graph_output(),
                loss=None if missing else half_loss(tensor.numpy(), numpy_kind),
            )


def _is_untyped(node: ir.Node) -> bool:
    """Say whether nobody knows the type of what a node reads or makes: it stands behind an operator that ONNX does not know."""
    return any(v is not None and v.name and v.type is None for v in (*node.inputs, *node.outputs))


def _tensors(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    values = (v for graph in model.graphs() for v in graph.initializers.values())
    yield from (v.const_value for v in values if v.const_value is not None)


def half_slots(node: ir.Node, opset: int) -> HalfSlots | None:
    """Return which inputs and outputs of a node may be float16 instead of float32; None if ONNX has no such node.

    Inputs that have a type of their own (an exponent, the statistics of a BatchNormalization) stay as they are: they are
    more exact so. The type that a Cast makes is its attribute.
    """
    schema = None if node.domain or node.op_type in _FIXED else _schema(node.op_type, opset)
    # onnxruntime loads a Scatter that adds up float16, and fails when it runs it.
    if schema is None or node.attributes.get_string("reduction", "none") in _SCATTERED:
        return None
    given = {i: _formal(schema.inputs, i) for i, v in enumerate(node.inputs) if _is_float(v)}
    made = {i: _formal(schema.outputs, i) for i, v in enumerate(node.outputs) if _is_float(v)}
    if node.op_type == "Cast":
        return HalfSlots(frozenset(given), frozenset(made))
    # What shares its type with no input has it from an attribute, or from the operator.
    read = {formal.type_str for formal in given.values() if _HALF in formal.types}
    outputs = frozenset(i for i, formal in made.items() if formal.type_str in read)
    shared = {made[i].type_str for i in outputs} if made else read
    inputs = frozenset(i for i, formal in given.items() if formal.type_str in shared & read)
    return HalfSlots(inputs, outputs) if inputs else None


_SCATTERED = frozenset({"add", "mul", "max", "min"})


@cache
def _schema(op_type: str, opset: int) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        return None


def _formal(
    parameters: Sequence[onnx.defs.OpSchema.FormalParameter], slot: int
) -> onnx.defs.OpSchema.FormalParameter:
    return parameters[min(slot, len(parameters) - 1)]  # the last may stand for any number


def _is_float(value: ir.Value | None) -> bool:
    """Say whether a value is a tensor of float32 that somebody may read."""
    if value is None or not value.name or value.dtype is not ir.DataType.FLOAT:
        return False
    return isinstance(value.type, ir.TensorType)


def _summed(node: ir.Node) -> int | None:
    """Return how many values a node adds up for each of its results; None if that is not known, or it adds none up."""
    if node.domain or node.op_type not in AVERAGES:
        return None
    if node.op_type == "AveragePool":
        window = node.attributes.get("kernel_shape")
        return None if window is None else prod(window.as_ints())
    shape, axes = dims(node.inputs[0]), integers(node, 1, "axes")
    if shape is None or (axes is None and len(node.inputs) > 1):
        return None
    if node.op_type == "GlobalAveragePool":
        axes = tuple(range(_SPATIAL, len(shape)))
    summed = (
        shape if axes is None else tuple(shape[a] for a in axes if abs(a) < len(shape) + (a < 0))
    )
    known = [n for n in summed if n is not None]
    return prod(known) if len(known) == len(summed) else None
