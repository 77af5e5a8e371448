"""The dynamic plan, executed."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import onnx_ir as ir

from quantkit.emit.canvas import Canvas
from quantkit.emit.contrib import emit_attention, emit_embed, emit_lstm
from quantkit.emit.matmul import emit_matmul
from quantkit.emit.scaling import emit_lookup, emit_stored
from quantkit.emit.weights import Weights
from quantkit.ops import Kernel, fact_of
from quantkit.plan.model import Mode, Plan

__all__ = ["emit_dynamic"]

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
    weights = Weights(canvas, plan)
    for node in list(model.graph.all_nodes()):
        decided = plan.node.get(node.name or "")
        if decided is None or decided.mode is not Mode.INTEGER:
            continue
        fact = fact_of(node.domain, node.op_type)
        assert fact is not None  # noqa: S101 - planned nodes have facts
        _EMITTERS[fact.kernel](canvas, weights, node)
        if node.graph is not None:
            node.graph.remove(node, safe=True)
    weights.drop_floats()
    for graph in model.graphs():
        for value in tuple(graph.initializers.values()):
            if value.name in plan.weight and value.uses():
                emit_stored(canvas, weights, value)
