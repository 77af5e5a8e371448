"""Integers turned back into float: weights at load, looked-up rows when they are read.

    w = (Cast(q) - z) * s

Written with Cast, Sub and Mul rather than DequantizeLinear on purpose: onnxruntime folds these
three on a constant into a float weight when the session is made, so that the node that reads it is
fused and runs as in the float model. It does not fold DequantizeLinear (2.0 to 2.8 times slower
than float on CNNs: ``benchmarks/conv_storage.py``).
"""

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.emit.weights import EmittedWeight, Weights
from quantkit.graph.edit import Canvas, owner_of
from quantkit.spec import PerAxis

__all__ = ["emit_lookup", "emit_stored"]


def emit_stored(canvas: Canvas, weights: Weights, value: ir.Value) -> None:
    """Let every node that still reads the float weight read it scaled back from integers.

    Args:
        canvas: The model.
        weights: Writes each weight once.
        value: The float weight.
    """
    weight = weights.emit(value)
    name = value.name or "weight"
    weight.graph.initializers.pop(name)
    value.name = canvas.name(f"{name}_replaced")
    first = _first_reader(value, weight.graph)
    scale = weight.broadcastable(weight.qparams.scale)
    zero = weight.broadcastable(weight.qparams.zero_point)
    result = _scale_back(
        canvas,
        weight.values,
        canvas.constant(weight.graph, scale, f"{name}_scale"),
        _zero(canvas, weight, zero),
        before=first,
    )
    result.name = name
    value.replace_all_uses_with(result)


def _first_reader(value: ir.Value, graph: ir.Graph) -> ir.Node:
    """Return the only reader, or the graph's first node if there are several or it is in a subgraph.

    Next to its reader is where a weight costs least: with thousands of them at the front, sessions take
    twice as long to make.
    """
    readers = [use.node for use in value.uses()]
    if len(readers) == 1 and readers[0].graph is graph:
        return readers[0]
    return next(iter(graph))


def emit_lookup(canvas: Canvas, weights: Weights, node: ir.Node) -> None:
    """Replace a Gather of rows: look up integers, scale what was found.

    Args:
        canvas: The model.
        weights: Writes each weight once.
        node: That is replaced.
    """
    source = weights.behind(node.inputs[0])
    assert source is not None  # noqa: S101 - the plan says the table is constant
    weight = weights.emit(source)
    graph, base = owner_of(node), node.outputs[0].name or "gathered"
    qparams = weight.qparams
    by_row = isinstance(weight.plan.spec.granularity, PerAxis) and (
        weight.plan.spec.granularity.axis % len(weight.shape) == 0
    )
    scale_array = qparams.scale[:, None] if by_row else qparams.scale
    zero_array = qparams.zero_point[:, None] if by_row else qparams.zero_point
    scale = canvas.constant(graph, scale_array, f"{base}_table_scale")
    zero = _zero(canvas, weight, zero_array)

    def rows(table: ir.Value, name: str) -> ir.Value:
        (found,) = canvas.node(
            "Gather",
            [table, node.inputs[1]],
            before=node,
            attributes={"axis": 0},
            outputs=[f"{base}_{name}"],
        )
        return found

    integers = rows(weight.values, "quantized")
    if by_row:
        scale = rows(scale, "scale")
        zero = rows(zero, "zero_point") if zero is not None else None
    canvas.replace(node, _scale_back(canvas, integers, scale, zero, before=node))


def _zero(canvas: Canvas, weight: EmittedWeight, zero: NDArray[Any]) -> ir.Value | None:
    if not zero.any():
        return None
    # One number serves all channels where they agree.
    if (zero == zero.flat[0]).all():
        zero = zero.reshape(-1)[:1].reshape(())
    return canvas.constant(weight.graph, zero.astype(np.float32), f"{weight.tensor}_zero_point")


def _scale_back(
    canvas: Canvas,
    integers: ir.Value,
    scale: ir.Value,
    zero: ir.Value | None,
    *,
    before: ir.Node,
) -> ir.Value:
    base = integers.name or "weight"
    (x,) = canvas.node(
        "Cast",
        [integers],
        before=before,
        attributes={"to": int(ir.DataType.FLOAT)},
        outputs=[f"{base}_float"],
    )
    if zero is not None:
        (x,) = canvas.node("Sub", [x, zero], before=before, outputs=[f"{base}_centred"])
    (x,) = canvas.node("Mul", [x, scale], before=before, outputs=[f"{base}_scaled"])
    return x
