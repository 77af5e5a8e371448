"""BatchNormalization becomes part of the Conv, ConvTranspose or Gemm before it.

    y = (x - mean) f + shift,   f = scale / sqrt(variance + epsilon)

With ``x = W * a + b`` that is ``y = (f W) * a + (b - mean) f + shift``: the weights of output channel o are
multiplied by f[o]. Computed in float64 and rounded to float32 once; large weights when they are written.

Only at inference, with constant parameters, and where nobody else reads x. The output keeps its name. A
weight that others read too is left to them, and a new one made.

A number per channel, or one for all, that is added to a Conv or ConvTranspose, subtracted, or multiplied or divided by goes the
same way.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.model.graph.edit import (
    Names,
    add_initializer,
    constant,
    discard,
    is_op,
    nodes_of,
    optional,
    producer_of,
    sole_reader,
    succeed,
    value_names,
)
from quantkit.model.graph.mapping import lazy
from quantkit.model.graph.opset import opset_of

Array = NDArray[Any]
_MODERN = 7  # before it, inference was an attribute that exporters set wrongly
_TRAINING_ATTRIBUTE = 14  # before it, training showed in the number of outputs
_INPUTS = 5
_BIAS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Affine:
    """y = (x - mean) f + shift, one number per channel each."""

    f: Array
    mean: Array
    shift: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class _Folded:
    """What the node before gets: how its weight is scaled, and its bias."""

    scale: Callable[[Array], Array]
    bias: Array


def batchnorm(model: ir.Model) -> int:
    """Fold BatchNormalization into the node before it; return how many went."""
    opset = opset_of(model)
    if opset < _MODERN:
        return 0
    found = [n for n in nodes_of(model) if is_op(n, "BatchNormalization") and _infers(n, opset)]
    names = value_names(model) if found else Names()
    return sum(_fold(node, names) for node in found)


def _infers(node: ir.Node, opset: int) -> bool:
    """Say whether it normalizes by constants, a channel at a time."""
    if len(node.inputs) != _INPUTS or node.attributes.get_int("spatial", 1) != 1:
        return False
    if any(out.uses() or out.is_graph_output() for out in node.outputs[1:]):
        return False
    if opset >= _TRAINING_ATTRIBUTE:
        return not node.attributes.get_int("training_mode", 0)
    return len([out for out in node.outputs if out.name]) == 1


def scale_shift(model: ir.Model) -> int:
    """Fold sums and products with a number per channel into the Conv before them; return how many went."""
    if opset_of(model) < _MODERN:
        return 0
    found = [n for n in nodes_of(model) if is_op(n, "Add", "Sub", "Mul", "Div")]
    names = value_names(model) if found else Names()
    return sum(_fold_numbers(node, names) for node in found)


def _fold_numbers(node: ir.Node, names: Names) -> bool:
    for slot, value in enumerate(node.inputs):
        before = producer_of(value)
        if before is None or not is_op(before, "Conv", "ConvTranspose"):
            continue
        if slot and is_op(node, "Sub", "Div"):  # a number less the result, or divided by it
            continue
        affine = _numbers(node, before, 1 - slot)
        if affine is not None:
            return _fold_into(before, node, affine, names)
    return False


def _numbers(node: ir.Node, before: ir.Node, slot: int) -> _Affine | None:
    """Return what a constant in a slot of a node does to each channel of a product; None if it is no number per channel."""
    tensor, weight = _float32(node.inputs[slot]), _float32(before.inputs[1])
    if tensor is None or weight is None:
        return None
    axis, groups = (
        (0, 1) if before.op_type == "Conv" else (1, before.attributes.get_int("group", 1))
    )
    rank, channels = len(weight.shape), int(weight.shape.numpy()[axis]) * groups
    shape = tuple(tensor.shape.numpy())
    if len(shape) > rank or tensor.size not in {1, channels}:
        return None
    spread = (*[1] * (rank - len(shape)), *shape)
    if tensor.size > 1 and spread[1] != channels:
        return None
    number = np.broadcast_to(tensor.numpy().astype(np.float64).reshape(-1), (channels,))
    if not np.isfinite(number).all() or (node.op_type == "Div" and not number.all()):
        return None
    one, zero = np.ones(channels), np.zeros(channels)
    if is_op(node, "Add", "Sub"):
        return _Affine(f=one, mean=zero, shift=number if node.op_type == "Add" else -number)
    return _Affine(f=number if node.op_type == "Mul" else 1 / number, mean=zero, shift=zero)


def _fold(norm: ir.Node, names: Names) -> bool:
    x = norm.inputs[0]
    before, affine = producer_of(x), _affine(norm)
    return before is not None and affine is not None and _fold_into(before, norm, affine, names)


def _fold_into(before: ir.Node, norm: ir.Node, affine: _Affine, names: Names) -> bool:
    """Let a product do what the node behind it does to each channel."""
    x = before.outputs[0]
    if sole_reader(x) is not norm or before.domain:
        return False
    weight = _float32(optional(before, 1))
    rule = _RULES.get(before.op_type)
    if weight is None or rule is None:
        return False
    folded = rule(before, tuple(weight.shape.numpy()), affine)
    if folded is None or not np.isfinite(folded.bias).all():
        return False
    before.attributes.pop("beta", None)  # of Gemm: the new bias holds it
    _set(before, _BIAS, ir.Tensor(folded.bias.astype(np.float32)), names)
    if (affine.f != 1).any():
        _set(before, 1, _scaled(weight, folded.scale), names)
    succeed(norm.outputs[0], x)
    discard(norm)
    return True


def _affine(norm: ir.Node) -> _Affine | None:
    tensors = [_float32(value) for value in norm.inputs[1:]]
    arrays = [t.numpy().astype(np.float64) for t in tensors if t is not None]
    if len(arrays) < len(tensors) or len({a.shape for a in arrays}) != 1:
        return None
    scale, shift, mean, variance = arrays
    spread = variance + norm.attributes.get_float("epsilon", 1e-5)
    if not (spread > 0).all():
        return None
    return _Affine(f=scale / np.sqrt(spread), mean=mean, shift=shift)


def _float32(value: ir.Value | None) -> ir.TensorProtocol | None:
    tensor = constant(value)
    return tensor if tensor is not None and tensor.dtype is ir.DataType.FLOAT else None


def _scaled(weight: ir.TensorProtocol, scale: Callable[[Array], Array]) -> ir.TensorProtocol:
    def read() -> Array:
        return scale(weight.numpy().astype(np.float64)).astype(np.float32)

    return lazy(read, ir.DataType.FLOAT, tuple(weight.shape.numpy()), None)


def _bias(node: ir.Node, channels: int) -> Array | None:
    """Return the bias, one number per channel; zeros if there is none, None if it is something else."""
    value = optional(node, _BIAS)
    if value is None:
        return np.zeros(channels)
    tensor = _float32(value)
    if tensor is None or tensor.size not in (1, channels):
        return None
    shape = tensor.shape.numpy()
    if shape and (shape[-1] != tensor.size):  # a column adds another number to each row
        return None
    return np.broadcast_to(tensor.numpy().astype(np.float64).reshape(-1), (channels,))


def _moved(bias: Array | None, affine: _Affine) -> Array | None:
    return None if bias is None else (bias - affine.mean) * affine.f + affine.shift


def _conv(node: ir.Node, shape: tuple[int, ...], affine: _Affine) -> _Folded | None:
    """Conv: W is [channels, inputs / groups, ...]."""
    bias = _moved(_bias(node, shape[0]), affine) if shape[0] == len(affine.f) else None
    column = (-1, *[1] * (len(shape) - 1))
    return (
        None if bias is None else _Folded(scale=lambda w: w * affine.f.reshape(column), bias=bias)
    )


def _conv_transpose(node: ir.Node, shape: tuple[int, ...], affine: _Affine) -> _Folded | None:
    """ConvTranspose: W is [inputs, channels / groups, ...], the groups one after another in the first axis."""
    groups = node.attributes.get_int("group", 1)
    if shape[1] * groups != len(affine.f) or shape[0] % groups:
        return None
    bias = _moved(_bias(node, len(affine.f)), affine)

    def scale(w: Array) -> Array:
        f = affine.f.reshape(groups, 1, shape[1], *[1] * (len(shape) - 2))
        return (w.reshape(groups, -1, *shape[1:]) * f).reshape(shape)

    return None if bias is None else _Folded(scale=scale, bias=bias)


def _gemm(node: ir.Node, shape: tuple[int, ...], affine: _Affine) -> _Folded | None:
    """Gemm: y = alpha A W + beta C. The folded bias holds beta; alpha is left where it is."""
    transposed = bool(node.attributes.get_int("transB", 0))
    channels = shape[0 if transposed else 1]
    bias = _bias(node, channels) if channels == len(affine.f) else None
    if bias is None:
        return None
    beta = node.attributes.get_float("beta", 1.0)
    moved = _moved(bias * beta, affine)
    assert moved is not None  # noqa: S101 - there is a bias
    f = affine.f[:, None] if transposed else affine.f
    return _Folded(scale=lambda w: w * f, bias=moved)


_RULES = {"Conv": _conv, "ConvTranspose": _conv_transpose, "Gemm": _gemm}


def _set(node: ir.Node, slot: int, tensor: ir.TensorProtocol, names: Names) -> None:
    """Give a node a new constant; the old one keeps its name for it unless others need it."""
    old = optional(node, slot)
    if (
        old is not None
        and old.is_initializer()
        and len(old.uses()) == 1
        and not old.is_graph_output()
    ):
        tensor.name = old.name
        old.const_value = tensor
        old.shape = ir.Shape(tensor.shape.numpy())
        return
    graph, weight = node.graph, node.inputs[1]
    assert isinstance(graph, ir.Graph)  # noqa: S101 - functions are inlined
    assert weight is not None  # noqa: S101 - it was folded
    stem = (old.name if old is not None else f"{weight.name}_bias") or "weight"
    value = add_initializer(graph, names.fresh(stem), tensor)
    if slot >= len(node.inputs):
        node.resize_inputs(slot + 1)
    node.replace_input_with(slot, value)
