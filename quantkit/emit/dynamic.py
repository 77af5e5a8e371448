"""The dynamic plan, executed."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import onnx_ir as ir

from quantkit.emit.contrib import emit_attention, emit_embed, emit_lstm
from quantkit.emit.matmul import emit_matmul
from quantkit.emit.stored import emit_lookup, emit_stored
from quantkit.emit.weights import Weights
from quantkit.graph.edit import Canvas
from quantkit.ops import Kernel, fact_of
from quantkit.plan.model import Mode, Plan

__all__ = ["emit_dynamic", "emit_rest"]

_EMITTERS: Mapping[Kernel, Callable[[Canvas, Weights, ir.Node], None]] = MappingProxyType(
    {
        Kernel.MATMUL: emit_matmul,
        Kernel.LOOKUP: emit_lookup,
        Kernel.LSTM: emit_lstm,
        Kernel.ATTENTION: emit_attention,
        Kernel.EMBED: emit_embed,
    }
)


def emit_dynamic(model: ir.Model, plan: Plan) -> None:
    """Rewrite `model` in place as `plan` says. Weights stay lazy until the model is saved."""
    canvas = Canvas(model)
    emit_rest(canvas, Weights(canvas, plan), plan)


def emit_rest(canvas: Canvas, weights: Weights, plan: Plan) -> None:
    """Rewrite the nodes whose inputs are quantized as they come, and store the weights that are still read as float.

    Args:
        canvas: The model.
        weights: Writes each weight once.
        plan: What was decided.
    """
    # First nodes, then weights: only when all integer nodes stand is it known which float weights still have a
    # reader. Such a weight is shared, or of a node that runs in float, and is stored in integers with a
    # DequantizeLinear for who reads it. A weight without readers goes, unless it is an input or output of its graph
    # by name.
    model = canvas.model
    for node in list(model.graph.all_nodes()):
        decided = plan.node.get(node.name or "")
        if decided is None or decided.mode is not Mode.INTEGER:
            continue
        fact = fact_of(node.domain, node.op_type)
        assert fact is not None  # noqa: S101 - planned nodes have facts
        _EMITTERS[fact.kernel](canvas, weights, node)
        _remove(node)
    for graph in model.graphs():
        for value in tuple(graph.initializers.values()):
            if value.name in plan.weight and value.uses():
                emit_stored(canvas, weights, value)
            elif not value.uses() and not value.is_graph_output() and not value.is_graph_input():
                graph.initializers.pop(value.name or "")


def _remove(node: ir.Node) -> None:
    """Remove a node, and the Transpose of a weight that only it read."""
    inputs = [value for value in node.inputs if value is not None]
    if node.graph is not None:
        node.graph.remove(node, safe=True)
    for value in inputs:
        producer = value.producer()
        if producer is not None and producer.op_type == "Transpose" and not value.uses():
            source = producer.inputs[0]
            if source is not None and source.is_initializer() and not value.is_graph_output():
                _remove(producer)
