"""Reads the planners' view off a graph, once, in time linear in its size.

`half_view_of` adds what planners of 16 bits need: types, what ONNX's schemas allow, what constants lose.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import prod

import numpy as np
import onnx
import onnx_ir as ir

from quantkit.model.graph.edit import is_op, optional, own_name, owner_of, producer_of, subgraphs_of
from quantkit.model.graph.opset import opset_of
from quantkit.model.graph.shapes import dims, infer_types, integers
from quantkit.model.ops import Kernel, OpFact, fact_of
from quantkit.model.ops.float_ops import AVERAGES
from quantkit.model.ops.integer_ops import CONVERSIONS
from quantkit.model.ops.view import (
    Attributes,
    Constant,
    FloatConstant,
    HalfSlots,
    HalfView,
    Node,
    View,
    Weight,
    WeightUse,
)
from quantkit.numerics.half import half_loss

# Constants whose ends are kept: operands of Add and Mul, bounds of Clip. Of larger ones only weights are read, to see
# whether they are finite.
_LOOKED_INTO = 1 << 16
_PLAIN = {
    ir.AttributeType.INT,
    ir.AttributeType.FLOAT,
    ir.AttributeType.STRING,
    ir.AttributeType.INTS,
    ir.AttributeType.STRINGS,
}
_SEQUENCES = {"SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert"}
_SEQUENCES |= {"Optional", "SequenceMap", "SplitToSequence"}
# Of doubles there are no integers: QuantizeLinear does not take them.
_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})

_HALF = "tensor(float16)"
_BYTES = 4  # of a float32
_SPATIAL = 2  # the first axis of places
# What is quantized has its type from others than its float inputs.
_FIXED = CONVERSIONS | {"Constant", "Optional"}


def view_of(model: ir.Model, *, read_weights: bool = True) -> View:
    """Describe a model for planners.

    Names must be unique over all graphs (`quantkit.model.graph.normalize`). Types are taken as they are: where the file
    states none, `quantkit.model.graph.shapes.infer_types` finds them before.

    Args:
        model: The model; it is left as it is.
        read_weights: False takes large weights for finite, unread: where nobody asks, or where external data is missing.
    """
    # Weights and constants overlap: a matrix is both, a graph input with a default is a weight that must not be taken
    # for constant. Large weights are read once, for NaN and infinity only, as a single one would make every integer
    # of its channel meaningless. Nodes of subgraphs are listed too, in the order of the file, so that a plan can say
    # why they stay float; `outputs` are those of all graphs for the same reason: what a branch hands out is read by
    # somebody who is not in the list of its readers.
    held = [value for graph in model.graphs() for value in graph.initializers.values()]
    weights, constants = _held(held, read_weights=read_weights)
    holders: dict[ir.Graph, tuple[str, ...]] = {model.graph: ()}  # those around come first
    nodes = []
    for node in model.graph.all_nodes():
        nodes.append(_node(node, weights, holders))
        if is_op(node, "Constant"):
            constants[own_name(node.outputs[0])] = _constant_of(node)
    producer = {name: i for i, node in enumerate(nodes) for name in node.outputs if name}
    readers: dict[str, list[int]] = {}
    for index, seen in enumerate(nodes):
        for name in filter(None, seen.inputs):
            readers.setdefault(name, []).append(index)
    return View(
        opset=opset_of(model),
        nodes=tuple(nodes),
        names=frozenset(node.name for node in nodes),
        producer=producer,
        readers={name: tuple(found) for name, found in readers.items()},
        inputs=tuple(own_name(v) for v in model.graph.inputs),
        outputs=frozenset(own_name(v) for graph in model.graphs() for v in graph.outputs),
        weights=weights,
        constants=constants,
        initializers=frozenset(own_name(v) for v in held),
        not_float=frozenset(_not_float(model)),
    )


def _held(
    values: Iterable[ir.Value], *, read_weights: bool
) -> tuple[dict[str, Weight], dict[str, Constant]]:
    """Return the weights and the constants among initializers, by name."""
    weights: dict[str, Weight] = {}
    constants: dict[str, Constant] = {}
    for value in values:
        tensor, name = value.const_value, own_name(value)
        if tensor is None:
            continue
        ends = _ends(tensor, large=read_weights and _is_weight(tensor))
        if _is_weight(tensor):
            weights[name] = _weight(value, tensor, ends)
        if not value.is_graph_input():
            constants[name] = _constant(tensor, ends)
    return weights, constants


# What constants may be that are quantized; weights in float16 are widened before anybody looks (`quantkit.model.graph.half`).
_HELD = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16})


def _ends(tensor: ir.TensorProtocol, *, large: bool = False) -> tuple[float, float] | None:
    """Return the smallest and the largest value; None for what is not float, not there, or large unless so asked."""
    if tensor.dtype not in _HELD or not tensor.size:
        return None
    # External data that is left is data whose file is missing (`quantkit.model.graph.load`).
    if isinstance(tensor, ir.ExternalTensor) or (tensor.size > _LOOKED_INTO and not large):
        return None
    array = tensor.numpy()
    # NaN and infinity pass through min and max, which need no temporary.
    return float(array.min()), float(array.max())


def _is_weight(tensor: ir.TensorProtocol) -> bool:
    return tensor.dtype is ir.DataType.FLOAT and len(tensor.shape) >= 2 and bool(tensor.size)


def _constant(tensor: ir.TensorProtocol, ends: tuple[float, float] | None) -> Constant:
    low, high = ends if ends is not None and tensor.size <= _LOOKED_INTO else (None, None)
    shape = tuple(int(n) for n in tensor.shape.numpy())
    return Constant(shape=shape, low=low, high=high, is_float=tensor.dtype in _HELD)


def _constant_of(node: ir.Node) -> Constant:
    """Describe what a Constant holds: a tensor, or a number, a text or a list of them in an attribute of their own."""
    attribute = next(iter(node.attributes.values()))
    if attribute.type is ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
    elif attribute.type in {ir.AttributeType.FLOAT, ir.AttributeType.FLOATS}:
        tensor = ir.tensor(np.asarray(attribute.value, np.float32))
    else:
        return Constant(shape=np.shape(attribute.value))
    return _constant(tensor, _ends(tensor))


def _weight(value: ir.Value, tensor: ir.TensorProtocol, ends: tuple[float, float] | None) -> Weight:
    return Weight(
        tensor=own_name(value),
        shape=tuple(int(n) for n in tensor.shape.numpy()),
        finite=ends is None or bool(np.isfinite(ends).all()),
        exposed=value.is_graph_input() or value.is_graph_output(),
        uses=tuple(_uses(value)),
        low=None if ends is None else ends[0],
        high=None if ends is None else ends[1],
    )


def _uses(value: ir.Value) -> Iterator[WeightUse]:
    for use in value.uses():
        node = use.node
        if _swaps_axes(node) and not node.outputs[0].is_graph_output() and node.outputs[0].uses():
            for inner in node.outputs[0].uses():
                yield _use(inner.node, inner.idx, transposed=True)
        else:
            yield _use(node, use.idx, transposed=False)


def _use(node: ir.Node, slot: int, *, transposed: bool) -> WeightUse:
    fact = fact_of(node.domain, node.op_type)
    known = fact is not None and slot in fact.weights
    return WeightUse(node=own_name(node), slot=slot, transposed=transposed, known=known)


def _swaps_axes(node: ir.Node) -> bool:
    """Say whether a node is the Transpose of a constant matrix."""
    if node.op_type != "Transpose" or node.domain or not node.inputs or not node.outputs:
        return False
    tensor = node.inputs[0].const_value if node.inputs[0] is not None else None
    if tensor is None or len(tensor.shape) != 2:
        return False
    return tuple(node.attributes.get_ints("perm", (1, 0))) == (1, 0)


def _node(
    node: ir.Node, weights: Mapping[str, Weight], holders: dict[ir.Graph, tuple[str, ...]]
) -> Node:
    inside = holders[owner_of(node)]
    holder = f"{node.domain}:{node.op_type}" if node.domain else node.op_type
    holders.update((graph, (*inside, holder)) for graph in subgraphs_of(node))
    fact = fact_of(node.domain, node.op_type)
    own = {} if fact is None else dict(_own_weights(node, fact, weights))
    # A Gather without a table of its own looks up shapes or activations.
    if fact is not None and fact.kernel is Kernel.LOOKUP and not own:
        fact = None
    return Node(
        name=own_name(node),
        op_type=node.op_type,
        domain=node.domain,
        attributes=_plain_attributes(node),
        inputs=tuple(own_name(v) if v is not None else "" for v in node.inputs),
        outputs=tuple(own_name(v) for v in node.outputs),
        inside=inside,
        fact=fact,
        weights=own,
    )


def _own_weights(
    node: ir.Node, fact: OpFact, weights: Mapping[str, Weight]
) -> Iterator[tuple[int, str]]:
    """Yield the slots that hold a weight, and its name: read as it is, or through a Transpose."""
    for slot in fact.weights:
        value = optional(node, slot)
        producer = producer_of(value)
        if producer is not None and _swaps_axes(producer):
            value = producer.inputs[0]
        if value is not None and value.is_initializer() and (name := own_name(value)) in weights:
            yield slot, name


def _plain_attributes(node: ir.Node) -> Attributes:
    """Return the attributes that are numbers, strings or lists of them."""
    plain: dict[str, int | float | str | tuple[int, ...] | tuple[str, ...]] = {}
    for attribute in node.attributes.values():
        if attribute.type in _PLAIN and not attribute.is_ref():
            value = attribute.value
            plain[attribute.name] = tuple(value) if isinstance(value, list | tuple) else value
    return plain


def _not_float(model: ir.Model) -> Iterator[str]:
    """Yield the values that are known to be something else than floats that can be quantized."""
    values = [v for graph in model.graphs() for v in (*graph.inputs, *graph.initializers.values())]
    values += [out for node in model.graph.all_nodes() for out in node.outputs]
    for value in values:
        maker = value.producer()
        known = value.dtype is not None and value.dtype not in _FLOATS
        # A sequence of floats is none, and inference does not tell.
        if known or (maker is not None and maker.op_type in _SEQUENCES):
            yield own_name(value)


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
        outputs=tuple(own_name(v) for v in model.graph.outputs),
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
        name = own_name(node)
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
            yield own_name(value)


def _constants(model: ir.Model, kind: str) -> Iterator[FloatConstant]:
    numpy_kind = ir.DataType[kind.upper()].numpy()
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is None or tensor.dtype is not ir.DataType.FLOAT:
                continue
            missing = isinstance(tensor, ir.ExternalTensor)  # its file is not there
            yield FloatConstant(
                tensor=own_name(value),
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
