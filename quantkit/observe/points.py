"""The tensors to observe: all whose ranges the planner asks for, and what enters and leaves operators like these.

What a plan needs for a target only the planner knows, so it is asked (`quantkit.plan.ranges_needed`). The rest lets a
plan say why an operator stays float, lets a user force one, and fills the tables of other tools. Three rules keep it
short, and the run fast:

1. What is absorbed is not looked at: of Conv, BatchNormalization, Clip from 0 only the last output.
2. Data movement is looked through: Reshape, Transpose, MaxPool... share the scale of their input.
3. What stands between two float operators is left alone.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from quantkit.analyze.network import Constant, Step
from quantkit.analyze.network_view import constant_of, step_of
from quantkit.graph.shapes import infer_types
from quantkit.ops.activations import ABSORBED_BY, BY_CONSTANT, COMPUTES, MOVES, PRODUCTS
from quantkit.plan.ranges import clip_bounds, fills_in

__all__ = ["Points", "points_of"]

_FLOATS = {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """Names of tensors.

    Attributes:
        tensors: Of the main graph, to be observed; in graph order, those that only a plan asks for behind the others.
        hidden: How many stand inside If, Loop or Scan, where a run does not show them.
    """

    tensors: tuple[str, ...]
    hidden: int


def points_of(model: ir.Model, needed: Collection[str] = ()) -> Points:
    """Find the tensors to observe. Linear in the number of nodes; infers types in place.

    `needed`: those that a plan will ask for; names that the main graph does not have are passed over.
    """
    infer_types(model)
    found: dict[str, None] = {}
    hidden = 0
    for node in model.graph.all_nodes():
        if not _computes(node):
            continue
        if node.graph is not model.graph:
            hidden += sum(_is_float(o) for o in node.outputs)
            continue
        for value in _around(node):
            if value.name and _is_float(value):
                found[value.name] = None
    more = set(needed) - found.keys()
    values = (*model.graph.inputs, *(out for node in model.graph for out in node.outputs))
    found.update({v.name or "": None for v in values if v.name in more and _is_float(v)})
    return Points(tensors=tuple(found), hidden=hidden)


def _computes(node: ir.Node) -> bool:
    """Say whether a node may run in integers.

    Scaling or shifting by a constant does only behind a product, whose bias it is: elsewhere (inside a
    LayerNormalization or a Gelu that was taken apart) its neighbours are float, and so is it.
    """
    if node.op_type not in BY_CONSTANT or not any(v and _is_constant(v) for v in node.inputs):
        return node.op_type in COMPUTES
    producers = (v.producer() for v in node.inputs if v is not None)
    return any(p is not None and p.op_type in PRODUCTS for p in producers)


def _around(node: ir.Node) -> Iterator[ir.Value]:
    for value in node.inputs:
        source = _moved_from(value)
        if source is not None and not _is_constant(source):
            yield source
    for value in node.outputs:
        yield _after_absorption(value)


def _moved_from(value: ir.Value | None) -> ir.Value | None:
    """Follow data movement back to where the values were computed; not if other values were added on the way."""
    read = value
    while value is not None:
        producer = value.producer()
        if producer is None or producer.op_type not in MOVES:
            return value
        if producer.op_type == "Pad" and fills_in(*_described(producer)):
            return read
        value = producer.inputs[0] if producer.inputs else None
    return None


def _after_absorption(value: ir.Value) -> ir.Value:
    """Follow a result through what its kernel absorbs."""
    producer = value.producer()
    while producer is not None and not value.is_graph_output():
        uses = tuple(value.uses())
        if len(uses) != 1:
            break
        consumer, slot = uses[0].node, uses[0].idx
        if slot != 0 or producer.op_type not in ABSORBED_BY.get(consumer.op_type, ()):
            break
        if consumer.op_type == "Clip" and (clip_bounds(*_described(consumer)) or (None,))[0] != 0:
            break  # the kernel cannot clip there (`quantkit.plan.islands`), so both outputs are needed
        producer, value = consumer, consumer.outputs[0]
    return value


def _described(node: ir.Node) -> tuple[Step, dict[str, Constant]]:
    """Return a node and the constants among its inputs, as the planner sees them."""
    constants = {}
    for value in node.inputs:
        tensor = None if value is None else ir.convenience.get_const_tensor(value)
        if value is not None and tensor is not None:
            constants[value.name or ""] = constant_of(tensor)
    return step_of(node), constants


def _is_constant(value: ir.Value) -> bool:
    producer = value.producer()
    return value.const_value is not None or (
        producer is not None and producer.op_type == "Constant"
    )


def _is_float(value: ir.Value) -> bool:
    """Say whether a value is, or for all that is known may be, a float tensor."""
    return value.dtype is None or value.dtype in _FLOATS
