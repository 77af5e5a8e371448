"""Reads the facts off a graph, once, in time linear in its size."""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from quantkit.analyze.facts import Attributes, ModelFacts, NodeFact, WeightFact, WeightUse
from quantkit.graph.opset import opset_of
from quantkit.ops import Kernel, OpFact, fact_of

__all__ = ["facts_of", "plain_attributes"]

_MATRIX = 2
_PLAIN = {
    ir.AttributeType.INT,
    ir.AttributeType.FLOAT,
    ir.AttributeType.STRING,
    ir.AttributeType.INTS,
    ir.AttributeType.STRINGS,
}


def facts_of(model: ir.Model, *, read_weights: bool = True) -> ModelFacts:
    """Describe `model` for the planner.

    `read_weights=False` takes every weight for finite; for models whose external data is missing.
    """
    weights: dict[str, WeightFact] = {}
    for graph in model.graphs():
        for value in graph.initializers.values():
            if _is_weight(value):
                fact = _weight_fact(value, read=read_weights)
                weights[fact.tensor] = fact
    nodes = [*model.graph.all_nodes()]
    return ModelFacts(
        opset=opset_of(model),
        nodes=tuple(_node_facts(nodes, weights)),
        weights=weights,
        names=frozenset(n.name or "" for n in nodes),
    )


def _is_weight(value: ir.Value) -> bool:
    tensor = value.const_value
    return (
        tensor is not None
        and tensor.dtype is ir.DataType.FLOAT
        and len(tensor.shape) >= _MATRIX
        and tensor.size > 0
    )


def _weight_fact(value: ir.Value, *, read: bool) -> WeightFact:
    tensor = value.const_value
    assert tensor is not None  # noqa: S101 - `_is_weight` looked
    return WeightFact(
        tensor=value.name or "",
        shape=tuple(int(n) for n in tensor.shape.numpy()),
        finite=_is_finite(tensor) if read else True,
        exposed=value.is_graph_input() or value.is_graph_output(),
        uses=tuple(_uses(value)),
    )


def _is_finite(tensor: ir.TensorProtocol) -> bool:
    array = tensor.numpy()
    # NaN and infinity pass through min and max, which need no temporary.
    return bool(np.isfinite(array.min()) and np.isfinite(array.max()))


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
    return WeightUse(node=node.name or "", slot=slot, transposed=transposed, known=known)


def _swaps_axes(node: ir.Node) -> bool:
    """Say whether a node is the Transpose of a constant matrix."""
    if node.op_type != "Transpose" or node.domain or not node.inputs or not node.outputs:
        return False
    tensor = node.inputs[0].const_value if node.inputs[0] is not None else None
    if tensor is None or len(tensor.shape) != _MATRIX:
        return False
    return tuple(node.attributes.get_ints("perm", (1, 0))) == (1, 0)


def _node_facts(nodes: list[ir.Node], weights: dict[str, WeightFact]) -> Iterator[NodeFact]:
    for node in nodes:
        fact = fact_of(node.domain, node.op_type)
        if fact is None:
            continue
        found = _node_fact(node, fact, weights)
        # A Gather without a table of its own looks up shapes or activations.
        if found.weights or fact.kernel is not Kernel.LOOKUP:
            yield found


def _node_fact(node: ir.Node, fact: OpFact, weights: dict[str, WeightFact]) -> NodeFact:
    found: dict[int, str] = {}
    for slot in fact.weights:
        value = node.inputs[slot] if slot < len(node.inputs) else None
        source = _weight_behind(value)
        if source is not None and source in weights:
            found[slot] = source
    return NodeFact(
        name=node.name or "",
        op_type=node.op_type,
        domain=node.domain,
        attributes=plain_attributes(node),
        inputs=tuple((v.name or "") if v is not None else "" for v in node.inputs),
        weights=found,
        constants=frozenset(
            i for i, v in enumerate(node.inputs) if v is not None and v.is_initializer()
        ),
        output_count=max(
            (i + 1 for i, o in enumerate(node.outputs) if o.uses() or o.is_graph_output()),
            default=0,
        ),
    )


def _weight_behind(value: ir.Value | None) -> str | None:
    if value is None:
        return None
    producer = value.producer()
    if producer is not None and _swaps_axes(producer) and producer.inputs[0] is not None:
        value = producer.inputs[0]
    return value.name if value.is_initializer() else None


def plain_attributes(node: ir.Node) -> Attributes:
    """Return the attributes that are numbers, strings or lists of them."""
    plain: dict[str, int | float | str | tuple[int, ...] | tuple[str, ...]] = {}
    for attribute in node.attributes.values():
        if attribute.type in _PLAIN and not attribute.is_ref():
            value = attribute.value
            plain[attribute.name] = tuple(value) if isinstance(value, list | tuple) else value
    return plain
