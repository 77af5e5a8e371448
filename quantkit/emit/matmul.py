"""MatMul and Gemm in integers.

    Y = alpha A B + beta C   ->   xq, xs, xz = DynamicQuantizeLinear(A)
                                  Y = Cast(MatMulInteger(xq, wq, xz, wz)) * (xs * ws alpha) + beta C

This is the one shape that onnxruntime fuses into DynamicQuantizeMatMul or, when several products
share A, into MatMulIntegerToFloat: ``Mul(xs, ws)`` with the activation's scale first, ws of one
axis, explicit zero points.
"""

import numpy as np
import onnx_ir as ir

from quantkit.emit.weights import EmittedWeight, Weights
from quantkit.graph.edit import Canvas, owner_of

__all__ = ["emit_matmul"]

_MATRIX = 2
_BIAS = 2  # Gemm's third input


def emit_matmul(canvas: Canvas, weights: Weights, node: ir.Node) -> None:
    """Replace a MatMul or Gemm.

    Args:
        canvas: The model.
        weights: Writes each weight once.
        node: That is replaced.
    """
    base = node.outputs[0].name or node.name or "matmul"
    source = weights.behind(node.inputs[1])
    activation = node.inputs[0]
    assert source is not None  # noqa: S101 - the plan says the weight is constant
    assert activation is not None  # noqa: S101 - a required input
    weight = weights.emit(source)
    if node.attributes.get_int("transA", 0):
        activation = canvas.swapped(activation, _MATRIX, before=node)
    x = canvas.quantized_input(activation, node)
    alpha = node.attributes.get_float("alpha", 1.0) if node.op_type == "Gemm" else 1.0
    scale, zero_point = _parameters(canvas, weight, alpha)
    integers = _columns(canvas, weight, node)
    (product,) = canvas.node(
        "MatMulInteger",
        [x.values, integers, x.zero_point, zero_point],
        before=node,
        outputs=[f"{base}_int32"],
    )
    (product,) = canvas.node(
        "Cast",
        [product],
        before=node,
        attributes={"to": int(ir.DataType.FLOAT)},
        outputs=[f"{base}_float"],
    )
    (factor,) = canvas.node("Mul", [x.scale, scale], before=node, outputs=[f"{base}_scale"])
    (result,) = canvas.node("Mul", [product, factor], before=node, outputs=[f"{base}_product"])
    canvas.replace(node, _add_bias(canvas, node, result, base))


def _parameters(canvas: Canvas, weight: EmittedWeight, alpha: float) -> tuple[ir.Value, ir.Value]:
    scale = (weight.qparams.scale * np.float32(alpha)).astype(np.float32)
    return (
        canvas.constant(weight.graph, scale, f"{weight.tensor}_scale"),
        canvas.constant(weight.graph, weight.qparams.zero_point, f"{weight.tensor}_zero_point"),
    )


def _columns(canvas: Canvas, weight: EmittedWeight, node: ir.Node) -> ir.Value:
    """Return the integers as (K, N); a tied weight that is stored the other way is transposed at load."""
    through_transpose = weight.tensor != (node.inputs[1].name if node.inputs[1] else "")
    wants_transposed = bool(node.attributes.get_int("transB", 0)) != through_transpose
    if wants_transposed == weight.plan.transposed:
        return weight.values
    return canvas.swapped(weight.values, _MATRIX, before=node)


def _add_bias(canvas: Canvas, node: ir.Node, result: ir.Value, base: str) -> ir.Value:
    bias = node.inputs[_BIAS] if node.op_type == "Gemm" and len(node.inputs) > _BIAS else None
    if bias is None:
        return result
    beta = node.attributes.get_float("beta", 1.0)
    if beta != 1.0:
        factor = canvas.constant(owner_of(node), np.asarray(beta, np.float32), f"{base}_beta")
        (bias,) = canvas.node("Mul", [bias, factor], before=node, outputs=[f"{base}_bias"])
    (total,) = canvas.node("Add", [result, bias], before=node, outputs=[f"{base}_biased"])
    return total
