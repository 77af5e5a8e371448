"""The dynamic plan, executed: an emitter per operator.

MatMul and Gemm in integers:

    Y = alpha A B + beta C   ->   xq, xs, xz = DynamicQuantizeLinear(A)
                                  Y = Cast(MatMulInteger(xq, wq, xz, wz)) * (xs * ws alpha) + beta C

This is the one shape that onnxruntime fuses into DynamicQuantizeMatMul or, when several products
share A, into MatMulIntegerToFloat: ``Mul(xs, ws)`` with the activation's scale first, ws of one
axis, explicit zero points.

Conv likewise, with ConvInteger and a scale per channel; a MatMul of two activations with both quantized as they come.
LSTM, Attention and EmbedLayerNormalization become the operators of com.microsoft that take int8 weights.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.model.graph.edit import Canvas, QuantizedInput, optional, own_name, owner_of
from quantkit.model.ops import MICROSOFT, Kernel, fact_of
from quantkit.numerics.weights import fit, quantize_weight
from quantkit.quantize.emit._operands import array_of, factor, operand
from quantkit.quantize.emit.weights import (
    EmittedWeight,
    Weights,
    emit_lookup,
    emit_stored,
    parameters,
)
from quantkit.quantize.plan.model import Mode, Plan
from quantkit.quantize.plan.solved import SolvedIntegers
from quantkit.spec import PerTensor, QParams, QuantSpec


def _emit_lstm(weights: Weights, node: ir.Node) -> None:
    """LSTM -> DynamicQuantizeLSTM; W and R as (directions, input, 4 hidden), a scale per gate column."""
    canvas, inputs = weights.canvas, _padded(node.inputs, 8)
    w, r = (_emitted(weights, inputs[i]) for i in (1, 2))
    directions = w.shape[0]

    def per_direction(parameter: NDArray[Any]) -> NDArray[Any]:
        return np.ascontiguousarray(np.broadcast_to(parameter, (directions, *parameter.shape)))

    numbers = [
        number
        for weight in (w, r)
        for number in parameters(
            canvas,
            weight,
            per_direction(weight.qparams.scale),
            per_direction(weight.qparams.zero_point),
        )
    ]
    inputs[1], inputs[2] = (_by_input(canvas, weight, node) for weight in (w, r))
    _replace_all(canvas, node, Kernel.LSTM, [*inputs, *numbers], drop={"layout"})


def _by_input(canvas: Canvas, weight: EmittedWeight, node: ir.Node) -> ir.Value:
    """Return the integers as (directions, input, gates), turned here if another reader has them as they were."""
    if weight.plan.transposed:
        return weight.values
    return canvas.swapped(weight.values, len(weight.shape), before=node)


def _emit_attention(weights: Weights, node: ir.Node) -> None:
    """Attention -> QAttention on the dynamically quantized input."""
    _, kernel, bias, mask, past, *_ = _padded(node.inputs, 5)
    canvas, weight = weights.canvas, _emitted(weights, kernel)
    x = canvas.quantized_input(operand(node, 0), node)
    scale, zero = parameters(canvas, weight, weight.qparams.scale, weight.qparams.zero_point)
    inputs = [x.values, weight.values, bias, x.scale, scale, mask, x.zero_point, zero, past]
    drop = {"qkv_hidden_sizes", "rotary_embedding_dim"}
    _replace_all(canvas, node, Kernel.ATTENTION, inputs, drop=drop)


def _emit_embed(weights: Weights, node: ir.Node) -> None:
    """EmbedLayerNormalization -> QEmbedLayerNormalization; gamma and beta are quantized with the tables."""
    ids, segments, word, position, segment, gamma, beta, mask, *_ = _padded(node.inputs, 8)
    tables = [_emitted(weights, t) if t is not None else None for t in (word, position, segment)]
    spec = next(t.plan.spec for t in tables if t is not None)
    canvas, graph = weights.canvas, owner_of(node)
    values: list[ir.Value | None] = [t.values if t else None for t in tables]
    qparams: list[QParams | None] = [t.qparams if t else None for t in tables]
    for vector in filter(None, (gamma, beta)):  # ONNX requires both
        value, found = _vector(canvas, graph, vector, spec)
        values.append(value)
        qparams.append(found)
    names = ("word", "position", "segment", "gamma", "beta")
    base = node.outputs[0].name or "embedding"

    def numbers(kind: str) -> list[ir.Value | None]:
        return [
            canvas.constant(graph, getattr(q, kind), f"{base}_{name}_{kind}") if q else None
            for name, q in zip(names, qparams, strict=True)
        ]

    inputs = [ids, segments, *values, mask, *numbers("scale"), *numbers("zero_point")]
    drop = {"mask_index_type"}
    _replace_all(canvas, node, Kernel.EMBED, inputs, drop=drop, output_count=2)


def _vector(
    canvas: Canvas, graph: ir.Graph, vector: ir.Value, spec: QuantSpec
) -> tuple[ir.Value, QParams]:
    array = array_of(vector)
    own = QuantSpec(dtype=spec.dtype, granularity=PerTensor(), symmetric=spec.symmetric)
    qparams = fit(array, own)
    q = quantize_weight(array, qparams)
    return canvas.constant(graph, q, f"{vector.name}_quantized"), qparams


def _padded(inputs: Sequence[ir.Value | None], n: int) -> list[ir.Value | None]:
    return [*inputs, *(None for _ in range(n - len(inputs)))]


def _emitted(weights: Weights, value: ir.Value | None) -> EmittedWeight:
    return weights.emit(weights.source(value))


def _replace_all(
    canvas: Canvas,
    node: ir.Node,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    *,
    drop: set[str],
    output_count: int | None = None,
) -> None:
    """Replace `node` by one of another type with the same outputs and the attributes it knows."""
    attributes = {k: v for k, v in node.attributes.items() if k not in drop}
    base = node.outputs[0].name or node.op_type
    count = output_count or len(node.outputs)
    made = canvas.node(
        op_type,
        inputs,
        before=node,
        attributes=attributes,
        domain=MICROSOFT,
        outputs=[f"{base}_{i}" for i in range(count)],
    )
    for i, old in enumerate(node.outputs[:count]):
        if old.name:
            canvas.replace(node, made[i], i)
        elif output_count is None:
            made[i].name = ""


_BIAS = 2  # Gemm's third input


def _emit_matmul(weights: Weights, node: ir.Node) -> None:
    """Replace a MatMul or Gemm."""
    base = node.outputs[0].name or node.name or "matmul"
    canvas, activation = weights.canvas, operand(node, 0)
    if node.attributes.get_int("transA", 0):
        activation = canvas.swapped(activation, 2, before=node)
    x = canvas.quantized_input(activation, node)
    right = _right_operand(weights, node)
    result = _product(canvas, node, "MatMulInteger", x, right)
    canvas.replace(node, add_bias(canvas, node, result, base))


def _right_operand(weights: Weights, node: ir.Node) -> QuantizedInput:
    """Return the right operand of a MatMul or Gemm: a weight, or an activation that is quantized as it comes."""
    canvas, source = weights.canvas, weights.behind(node.inputs[1])
    if source is None:
        return canvas.quantized_input(operand(node, 1), node)
    weight = weights.emit(source)
    scale = (weight.qparams.scale * np.float32(factor(node, "alpha"))).astype(np.float32)
    scales, zeros = parameters(canvas, weight, scale, weight.qparams.zero_point)
    return QuantizedInput(_columns(canvas, weight, node), scales, zeros)


def _product(
    canvas: Canvas, node: ir.Node, op_type: str, x: QuantizedInput, y: QuantizedInput
) -> ir.Value:
    """Write an integer product in front of `node`, scaled to float; it takes over the attributes of a Conv."""
    base = node.outputs[0].name or node.name or "product"
    (product,) = canvas.node(
        op_type,
        [x.values, y.values, x.zero_point, y.zero_point],
        before=node,
        attributes=dict(node.attributes) if op_type == Kernel.CONV else None,
        outputs=[f"{base}_int32"],
    )
    (product,) = canvas.node(
        "Cast",
        [product],
        before=node,
        attributes={"to": int(ir.DataType.FLOAT)},
        outputs=[f"{base}_float"],
    )
    (factor,) = canvas.node("Mul", [x.scale, y.scale], before=node, outputs=[f"{base}_scale"])
    (result,) = canvas.node("Mul", [product, factor], before=node, outputs=[f"{base}_product"])
    return result


def _emit_conv(weights: Weights, node: ir.Node) -> None:
    """Replace a Conv; ConvInteger takes one zero point of the weight."""
    base, canvas = node.outputs[0].name or node.name or "conv", weights.canvas
    weight = _emitted(weights, node.inputs[1])
    x = canvas.quantized_input(operand(node, 0), node)
    channels = (-1, *(1 for _ in weight.shape[2:]))  # behind the batch
    scale = weight.qparams.scale
    numbers = parameters(
        canvas,
        weight,
        scale.reshape(channels) if scale.ndim else scale,
        weight.qparams.zero_point.reshape(-1)[0],
    )
    result = _product(canvas, node, Kernel.CONV, x, QuantizedInput(weight.values, *numbers))
    bias = optional(node, _BIAS)
    if bias is not None:
        shape = canvas.constant(
            owner_of(node), np.asarray(channels, np.int64), f"{base}_bias_shape"
        )
        (bias,) = canvas.node("Reshape", [bias, shape], before=node, outputs=[f"{base}_bias"])
        (result,) = canvas.node("Add", [result, bias], before=node, outputs=[f"{base}_biased"])
    canvas.replace(node, result)


def _columns(canvas: Canvas, weight: EmittedWeight, node: ir.Node) -> ir.Value:
    """Return the integers as (K, N); a tied weight that is stored the other way is transposed at load."""
    through_transpose = weight.tensor != (node.inputs[1].name if node.inputs[1] else "")
    wants_transposed = bool(node.attributes.get_int("transB", 0)) != through_transpose
    if wants_transposed == weight.plan.transposed:
        return weight.values
    return canvas.swapped(weight.values, 2, before=node)


def add_bias(
    canvas: Canvas, node: ir.Node, result: ir.Value, base: str, suffix: str = "biased"
) -> ir.Value:
    """Add the third input of a Gemm, times beta, behind what stands for the product."""
    bias = optional(node, _BIAS)
    if bias is None or node.op_type != "Gemm":
        return result
    if (beta := factor(node, "beta")) != 1.0:
        scale = canvas.constant(owner_of(node), np.asarray(beta, np.float32), f"{base}_beta")
        (bias,) = canvas.node("Mul", [bias, scale], before=node, outputs=[f"{base}_bias"])
    (total,) = canvas.node("Add", [result, bias], before=node, outputs=[f"{base}_{suffix}"])
    return total


def emit_dynamic(model: ir.Model, plan: Plan, solved: SolvedIntegers | None = None) -> None:
    """Rewrite `model` in place as `plan` says. Weights stay lazy until the model is saved.

    Args:
        model: The float model that was planned; it is rewritten.
        plan: What was decided.
        solved: Codes of weights that have few bits; None: there are none.
    """
    emit_rest(Weights(Canvas(model), plan, solved or SolvedIntegers()))


def emit_rest(weights: Weights) -> None:
    """Rewrite the nodes whose inputs are quantized as they come, and store the weights that are still read as float."""
    # First nodes, then weights: only when all integer nodes stand is it known which float weights still have a
    # reader. Such a weight is shared, or of a node that runs in float, and is stored in integers with a
    # DequantizeLinear for who reads it. A weight without readers goes, unless it is an input or output of its graph
    # by name.
    model, plan = weights.canvas.model, weights.plan
    emitters: Mapping[Kernel, Callable[[Weights, ir.Node], None]] = {
        Kernel.MATMUL: _emit_matmul,
        Kernel.CONV: _emit_conv,
        Kernel.LOOKUP: emit_lookup,
        Kernel.LSTM: _emit_lstm,
        Kernel.ATTENTION: _emit_attention,
        Kernel.EMBED: _emit_embed,
    }
    for node in list(model.graph.all_nodes()):
        decided = plan.node.get(own_name(node))
        if decided is None or decided.mode is not Mode.INTEGER:
            continue
        fact = fact_of(node.domain, node.op_type)
        assert fact is not None  # noqa: S101 - planned nodes have facts
        emitters[fact.kernel](weights, node)
        remove_node(node)
    for graph in model.graphs():
        for value in tuple(graph.initializers.values()):
            if value.name in plan.weight and value.uses():
                emit_stored(weights, value)
            elif not value.uses() and not value.is_graph_output() and not value.is_graph_input():
                graph.initializers.pop(own_name(value))


def remove_node(node: ir.Node) -> None:
    """Remove a node, and the Transpose of a weight that only it read."""
    inputs = [value for value in node.inputs if value is not None]
    if node.graph is not None:
        node.graph.remove(node, safe=True)
    for value in inputs:
        producer = value.producer()
        if producer is not None and producer.op_type == "Transpose" and not value.uses():
            source = producer.inputs[0]
            if source is not None and source.is_initializer() and not value.is_graph_output():
                remove_node(producer)
