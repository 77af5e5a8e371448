"""Scales and zero points of activations that both models quantize."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import log

import onnx_ir as ir

from quantkit.diff.stored import dtype_name
from quantkit.match.names import base_name
from quantkit.ops.integer_ops import INTEGER_OPS, Role

__all__ = ["Fixed", "ScaleChange", "ScalesDiff", "scales_diff"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """How a tensor is quantized: ``q = round(x / scale) + zero_point``, one pair of numbers for the whole tensor."""

    dtype: str
    scale: float
    zero_point: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleChange:
    """A tensor that is quantized in both models, not alike.

    Attributes:
        tensor: Its name.
        a: In the first model.
        b: In the second.
        ratio: The second's scale over the first's: above 1 the steps became coarser.
    """

    tensor: str
    a: Fixed
    b: Fixed
    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalesDiff:
    """What became of quantized activations.

    Attributes:
        equal: How many have the same type, scale and zero point in both.
        changed: The others that are quantized in both; the largest change of scale first.
        only_a: Quantized only in the first model.
        only_b: Quantized only in the second.
    """

    equal: int
    changed: tuple[ScaleChange, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]


def scales_diff(a: ir.Model, b: ir.Model) -> ScalesDiff:
    """Compare what QuantizeLinear and integer kernels say of the tensors that they make."""
    left, right = dict(_fixed_scales(a)), dict(_fixed_scales(b))
    both = [tensor for tensor in left if tensor in right]
    changed = [
        ScaleChange(
            tensor=tensor,
            a=left[tensor],
            b=right[tensor],
            ratio=right[tensor].scale / left[tensor].scale,
        )
        for tensor in both
        if left[tensor] != right[tensor]
    ]
    return ScalesDiff(
        equal=len(both) - len(changed),
        changed=tuple(sorted(changed, key=lambda c: -abs(log(c.ratio)) if c.ratio > 0 else 0)),
        only_a=tuple(t for t in left if t not in right),
        only_b=tuple(t for t in right if t not in left),
    )


def _fixed_scales(model: ir.Model) -> Iterator[tuple[str, Fixed]]:
    for node in model.graph.all_nodes():
        found = _quantized_tensor(node)
        if found is None:
            continue
        tensor, scale, zero = found
        number = _number(scale)
        if number is not None and number > 0:
            dtype = zero.dtype if zero is not None and zero.dtype is not None else None
            yield (
                base_name(tensor),
                Fixed(
                    dtype=dtype_name(dtype) if dtype is not None else "uint8",
                    scale=number,
                    zero_point=int(_number(zero) or 0),
                ),
            )


def _quantized_tensor(node: ir.Node) -> tuple[str, ir.Value | None, ir.Value | None] | None:
    """Return the tensor that a node quantizes, its scale and its zero point; None if it quantizes none."""
    row = INTEGER_OPS.get(node.op_type)
    if row is None or row.result is None or len(node.inputs) <= row.result[0]:
        return None  # a QGemm without a scale for its result makes floats
    value = node.outputs[0]
    if row.role is Role.CONVERTS:
        if node.inputs[0] is None or node.inputs[0].is_initializer():
            return None  # a weight that is quantized at run time
        # The integers are named after the tensor; what is read may have a name of its own, if it is an output.
        named = base_name(node.outputs[0].name or "") != node.outputs[0].name
        value = value if named else node.inputs[0]
    scale, zero = row.result
    return (
        value.name or "",
        node.inputs[scale],
        node.inputs[zero] if zero < len(node.inputs) else None,
    )


def _number(value: ir.Value | None) -> float | None:
    """Return a constant of one number; None for anything else."""
    tensor = value.const_value if value is not None else None
    return float(tensor.numpy().item()) if tensor is not None and tensor.size == 1 else None
