"""Operators of com.microsoft that take int8 weights: LSTM, Attention, EmbedLayerNormalization."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.emit.weights import EmittedWeight, Weights
from quantkit.graph.edit import Canvas, owner_of
from quantkit.numerics.weights import fit, quantize_weight
from quantkit.ops import MICROSOFT, Kernel
from quantkit.spec import PerTensor, QParams, QuantSpec

__all__ = ["emit_attention", "emit_embed", "emit_lstm"]


def emit_lstm(canvas: Canvas, weights: Weights, node: ir.Node) -> None:
    """LSTM -> DynamicQuantizeLSTM; W and R as (directions, input, 4 hidden), a scale per gate column.

    Args:
        canvas: The model.
        weights: Writes each weight once.
        node: That is replaced.
    """
    inputs = _padded(node.inputs, 8)
    w, r = (_emitted(weights, inputs[i]) for i in (1, 2))
    directions = w.shape[0]

    def per_direction(parameter: NDArray[Any]) -> NDArray[Any]:
        return np.ascontiguousarray(np.broadcast_to(parameter, (directions, *parameter.shape)))

    parameters = [
        canvas.constant(weight.graph, per_direction(array), f"{weight.tensor}_{name}")
        for weight in (w, r)
        for name, array in (
            ("scale", weight.qparams.scale),
            ("zero_point", weight.qparams.zero_point),
        )
    ]
    inputs[1], inputs[2] = (_by_input(canvas, weight, node) for weight in (w, r))
    _replace_all(canvas, node, Kernel.LSTM, [*inputs, *parameters], drop={"layout"})


def _by_input(canvas: Canvas, weight: EmittedWeight, node: ir.Node) -> ir.Value:
    """Return the integers as (directions, input, gates), turned here if another reader has them as they were."""
    if weight.plan.transposed:
        return weight.values
    return canvas.swapped(weight.values, len(weight.shape), before=node)


def emit_attention(canvas: Canvas, weights: Weights, node: ir.Node) -> None:
    """Attention -> QAttention on the dynamically quantized input.

    Args:
        canvas: The model.
        weights: Writes each weight once.
        node: That is replaced.
    """
    activation, kernel, bias, mask, past, *_ = _padded(node.inputs, 5)
    weight = _emitted(weights, kernel)
    assert activation is not None  # noqa: S101 - a required input
    x = canvas.quantized_input(activation, node)
    scale = canvas.constant(weight.graph, weight.qparams.scale, f"{weight.tensor}_scale")
    zero = canvas.constant(weight.graph, weight.qparams.zero_point, f"{weight.tensor}_zero_point")
    inputs = [x.values, weight.values, bias, x.scale, scale, mask, x.zero_point, zero, past]
    drop = {"qkv_hidden_sizes", "rotary_embedding_dim"}
    _replace_all(canvas, node, Kernel.ATTENTION, inputs, drop=drop)


def emit_embed(canvas: Canvas, weights: Weights, node: ir.Node) -> None:
    """EmbedLayerNormalization -> QEmbedLayerNormalization; gamma and beta are quantized with the tables.

    Args:
        canvas: The model.
        weights: Writes each weight once.
        node: That is replaced.
    """
    ids, segments, word, position, segment, gamma, beta, mask, *_ = _padded(node.inputs, 8)
    tables = [_emitted(weights, t) if t is not None else None for t in (word, position, segment)]
    spec = next(t.plan.spec for t in tables if t is not None)
    graph = owner_of(node)
    values: list[ir.Value | None] = [t.values if t else None for t in tables]
    qparams: list[QParams | None] = [t.qparams if t else None for t in tables]
    for vector in (gamma, beta):
        value, found = _vector(canvas, graph, vector, spec)
        values.append(value)
        qparams.append(found)
    names = ("word", "position", "segment", "gamma", "beta")
    base = node.outputs[0].name or "embedding"

    def parameters(kind: str) -> list[ir.Value | None]:
        return [
            canvas.constant(graph, getattr(q, kind), f"{base}_{name}_{kind}") if q else None
            for name, q in zip(names, qparams, strict=True)
        ]

    inputs = [ids, segments, *values, mask, *parameters("scale"), *parameters("zero_point")]
    drop = {"mask_index_type"}
    _replace_all(canvas, node, Kernel.EMBED, inputs, drop=drop, output_count=2)


def _vector(
    canvas: Canvas, graph: ir.Graph, vector: ir.Value | None, spec: QuantSpec
) -> tuple[ir.Value, QParams]:
    assert vector is not None  # noqa: S101 - a required input
    assert vector.const_value is not None  # noqa: S101 - the planner looked
    array = vector.const_value.numpy()
    own = QuantSpec(dtype=spec.dtype, granularity=PerTensor(), symmetric=spec.symmetric)
    qparams = fit(array, own)
    q = quantize_weight(array, qparams)
    return canvas.constant(graph, q, f"{vector.name}_quantized"), qparams


def _padded(inputs: Sequence[ir.Value | None], n: int) -> list[ir.Value | None]:
    return [*inputs, *(None for _ in range(n - len(inputs)))]


def _emitted(weights: Weights, value: ir.Value | None) -> EmittedWeight:
    source = weights.behind(value)
    assert source is not None  # noqa: S101 - the plan says the weight is constant
    return weights.emit(source)


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
