"""ONNX operators in torch, as one table.

An operator takes its node (`Op`) and the values of its inputs, None for an input that is left out, and returns one tensor, or several in a tuple.
Quantized values may be floats that hold integers, so that gradients pass.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name

_TYPES = {
    1: torch.float32,
    2: torch.uint8,
    3: torch.int8,
    5: torch.int16,
    6: torch.int32,
    7: torch.int64,
    9: torch.bool,
    10: torch.float16,
    11: torch.float64,
    16: torch.bfloat16,
}
_EVERYTHING = 1 << 62  # the end of a Slice: no limit
_INTEGERS = {torch.uint8, torch.int8, torch.int16, torch.int32}
_ENDS = {torch.uint8: (0, 255), torch.int8: (-128, 127), torch.int16: (-32768, 32767)}


@dataclass(frozen=True, slots=True)
class Op:
    """The node of an operator."""

    name: str
    attributes: Mapping[str, Any]
    outputs: int
    opset: int

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute."""
        return self.attributes.get(name, default)

    def list_of(self, given: Tensor | None, name: str) -> list[int] | None:
        """Return integers that are an input in newer opsets, and an attribute in older ones."""
        if given is not None:
            return [int(n) for n in given.reshape(-1).tolist()]
        found = self.get(name)
        return None if found is None else list(found)


class UnknownError(Exception):
    """A node has a variant that is missing here."""


# --- products


def _pads(op: Op, x: Tensor, kernel: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the padding before and after each spatial axis."""
    rank, mode = len(kernel), op.get("auto_pad", "NOTSET")
    pads = list(op.get("pads") or [0] * 2 * rank)
    if mode in {"SAME_UPPER", "SAME_LOWER"}:
        strides, steps = op.get("strides") or [1] * rank, op.get("dilations") or [1] * rank
        pads = [0] * 2 * rank
        for i, extent in enumerate(x.shape[2:]):
            span = (kernel[i] - 1) * steps[i] + 1
            missing = max(0, (-(-extent // strides[i]) - 1) * strides[i] + span - extent)
            small, large = missing // 2, missing - missing // 2
            pads[i], pads[i + rank] = (small, large) if mode == "SAME_UPPER" else (large, small)
    return pads[:rank], pads[rank:]


def _padded(x: Tensor, before: Sequence[int], after: Sequence[int], value: float = 0.0) -> Tensor:
    return F.pad(
        x, [n for pair in zip(before[::-1], after[::-1], strict=True) for n in pair], value=value
    )


def _conv(op: Op, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    before, after = _pads(op, x, weight.shape[2:])
    if before != after:
        x, before = _padded(x, before, after), [0] * len(before)
    rank = len(before)
    run = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[rank]
    strides, steps = op.get("strides") or [1] * rank, op.get("dilations") or [1] * rank
    return run(x, weight, bias, strides, before, steps, op.get("group", 1))


def _conv_transpose(op: Op, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if op.get("auto_pad", "NOTSET") != "NOTSET" or op.get("output_shape"):
        raise UnknownError("with auto_pad or output_shape")
    before, after = _pads(op, x, weight.shape[2:])
    rank = len(before)
    run = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}[rank]
    strides, steps = op.get("strides") or [1] * rank, op.get("dilations") or [1] * rank
    more = list(op.get("output_padding") or [0] * rank)
    more = [m + low - high for m, low, high in zip(more, before, after, strict=True)]
    if any(m < 0 or m >= max(s, d) for m, s, d in zip(more, strides, steps, strict=True)):
        raise UnknownError("with these pads")
    return run(x, weight, bias, strides, before, more, op.get("group", 1), steps)


def _gemm(op: Op, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    a = a.T if op.get("transA") else a
    b = b.T if op.get("transB") else b
    found = op.get("alpha", 1.0) * (a @ b) if op.get("alpha", 1.0) != 1 else a @ b
    return found if c is None else found + op.get("beta", 1.0) * c


# --- normalization


def _batch_norm(op: Op, x: Tensor, *statistics: Tensor) -> Tensor:
    scale, bias, mean, variance = statistics
    return F.batch_norm(x, mean, variance, scale, bias, training=False, eps=op.get("epsilon", 1e-5))


def _layer_norm(op: Op, x: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    axis = op.get("axis", -1) % x.ndim
    return F.layer_norm(
        x, x.shape[axis:], scale.expand(x.shape[axis:]), bias, op.get("epsilon", 1e-5)
    )


def _instance_norm(op: Op, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    return F.instance_norm(x, weight=scale, bias=bias, eps=op.get("epsilon", 1e-5))


def _softmax(run: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def softmax(op: Op, x: Tensor) -> Tensor:
        if op.opset >= 13:
            return run(x, dim=op.get("axis", -1))
        axis = op.get("axis", 1) % max(
            x.ndim, 1
        )  # opsets before 13: over all axes from this one on
        return run(x.flatten(axis), dim=axis).reshape(x.shape)

    return softmax


# --- pooling and resizing


def _max_pool(op: Op, x: Tensor) -> Tensor:
    kernel = op.get("kernel_shape")
    before, after = _pads(op, x, kernel)
    if any(before) or any(after):
        x = _padded(x, before, after, -torch.inf)
    run = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}[len(kernel)]
    steps = op.get("dilations") or 1
    return run(x, kernel, op.get("strides") or 1, 0, steps, bool(op.get("ceil_mode", 0)))


def _average_pool(op: Op, x: Tensor) -> Tensor:
    kernel = op.get("kernel_shape")
    before, after = _pads(op, x, kernel)
    counts_pads, ceil = bool(op.get("count_include_pad", 0)), bool(op.get("ceil_mode", 0))
    if any(n != 1 for n in op.get("dilations") or ()) or (before != after and not counts_pads):
        raise UnknownError("with dilations, or pads that differ at the ends")
    if before != after:
        x, before = _padded(x, before, after), [0] * len(before)
    run = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}[len(kernel)]
    return run(x, kernel, op.get("strides") or 1, before, ceil, counts_pads)


def _global_pool(run: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda _op, x: run(x, dim=tuple(range(2, x.ndim)), keepdim=True)


def _resize(op: Op, x: Tensor, _roi: Any = None, scales: Any = None, sizes: Any = None) -> Tensor:
    mode, place = op.get("mode", "nearest"), op.get("coordinate_transformation_mode", "half_pixel")
    target = None if sizes is None else sizes.tolist()
    if target is None:
        target = [int(n * s) for n, s in zip(x.shape, scales.tolist(), strict=True)]
    if target[:2] != list(x.shape[:2]) or op.get("axes") or op.get("antialias"):
        raise UnknownError("of other axes than the spatial ones")
    if mode == "nearest" and all(t % n == 0 for t, n in zip(target[2:], x.shape[2:], strict=True)):
        return F.interpolate(x, size=target[2:], mode="nearest")
    if (
        mode == "linear"
        and x.ndim == 4
        and place in {"half_pixel", "pytorch_half_pixel", "align_corners"}
    ):
        return F.interpolate(
            x, size=target[2:], mode="bilinear", align_corners=place == "align_corners"
        )
    raise UnknownError(f"in mode {mode}, {place}, to {target}")


# --- shapes and places


def _reshape(op: Op, x: Tensor, shape: Tensor) -> Tensor:
    extents = [int(n) for n in shape.tolist()]
    if not op.get("allowzero", 0):
        extents = [x.shape[i] if n == 0 else n for i, n in enumerate(extents)]
    return x.reshape(extents)


def _flatten(op: Op, x: Tensor) -> Tensor:
    axis = op.get("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(int(np.prod(x.shape[:axis], dtype=np.int64)), -1)


def _unsqueeze(op: Op, x: Tensor, axes: Tensor | None = None) -> Tensor:
    places = op.list_of(axes, "axes") or []
    rank = x.ndim + len(places)
    for axis in sorted(a % rank for a in places):
        x = x.unsqueeze(axis)
    return x


def _squeeze(op: Op, x: Tensor, axes: Tensor | None = None) -> Tensor:
    places = op.list_of(axes, "axes")
    return x.squeeze() if places is None else x.squeeze(tuple(places))


def _transpose(op: Op, x: Tensor) -> Tensor:
    return x.permute(op.get("perm") or tuple(range(x.ndim))[::-1])


def _slice(op: Op, x: Tensor, *given: Tensor | None) -> Tensor:
    given = (*given, *[None] * (4 - len(given)))
    names = ("starts", "ends", "axes", "steps")
    starts, ends, axes, steps = (op.list_of(v, n) for v, n in zip(given, names, strict=True))
    assert starts is not None  # noqa: S101 - the standard asks for both
    assert ends is not None  # noqa: S101
    for i, start in enumerate(starts):
        axis, step = axes[i] if axes else i, steps[i] if steps else 1
        end = min(ends[i], _EVERYTHING)
        if step < 0:
            places = range(*slice(start, end, step).indices(x.shape[axis]))
            x = x.index_select(axis, torch.tensor(list(places)))
            continue
        whole: list[slice] = [slice(None)] * x.ndim
        whole[axis] = slice(start, end, step)
        x = x[tuple(whole)]
    return x


def _split(op: Op, x: Tensor, sizes: Tensor | None = None) -> tuple[Tensor, ...]:
    axis = op.get("axis", 0)
    wanted = op.list_of(sizes, "split")
    parts: tuple[Tensor, ...] = torch.split(x, wanted or -(-x.shape[axis] // op.outputs), dim=axis)
    return parts


def _gather(op: Op, x: Tensor, places: Tensor) -> Tensor:
    axis = op.get("axis", 0) % x.ndim
    flat = places.reshape(-1).long() % x.shape[axis]
    found = x.index_select(axis, flat)
    return found.reshape((*x.shape[:axis], *places.shape, *x.shape[axis + 1 :]))


def _pad(
    op: Op, x: Tensor, pads: Tensor | None = None, value: Any = None, axes: Any = None
) -> Tensor:
    widths = op.list_of(pads, "pads") or []
    if axes is not None or min(widths, default=0) < 0:
        raise UnknownError("with axes, or that cuts")
    half, mode = len(widths) // 2, op.get("mode", "constant")
    before, after = widths[:half], widths[half:]
    if mode == "constant":
        return _padded(x, before, after, float(op.get("value", 0.0) if value is None else value))
    for axis, ends in enumerate(zip(before, after, strict=True)):
        if any(ends):  # numpy finds the indices
            places = np.pad(np.arange(x.shape[axis]), ends, mode)
            x = x.index_select(axis, torch.from_numpy(places))
    return x


def _expand(_op: Op, x: Tensor, shape: Tensor) -> Tensor:
    return x.expand(torch.broadcast_shapes(x.shape, tuple(shape.tolist())))


def _constant_of_shape(op: Op, shape: Tensor) -> Tensor:
    value = op.get("value")
    value = torch.zeros(1) if value is None else value
    return value.reshape(-1)[0].expand(tuple(shape.tolist())).clone()


def _shape(op: Op, x: Tensor) -> Tensor:
    return torch.tensor(x.shape[op.get("start", 0) : op.get("end", None)], dtype=torch.int64)


# --- reductions and elements


def _reduce(run: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def reduce(op: Op, x: Tensor, axes: Tensor | None = None) -> Tensor:
        places = op.list_of(axes, "axes")
        if not places and op.get("noop_with_empty_axes", 0):
            return x
        return run(x, dim=tuple(places or range(x.ndim)), keepdim=bool(op.get("keepdims", 1)))

    return reduce


def _clip(op: Op, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    ends = [op.get(n) if v is None else float(v) for v, n in ((low, "min"), (high, "max"))]
    return x if ends == [None, None] else x.clamp(*ends)


def _div(_op: Op, x: Tensor, y: Tensor) -> Tensor:
    if x.dtype.is_floating_point:
        return x / y
    return torch.div(x, y, rounding_mode="trunc")


def _mod(op: Op, x: Tensor, y: Tensor) -> Tensor:
    return torch.fmod(x, y) if op.get("fmod", 0) else torch.remainder(x, y)


def _pow(_op: Op, x: Tensor, y: Tensor) -> Tensor:
    return x * x if y.numel() == 1 and float(y) == 2 else (x**y).to(x.dtype)


def _cast(op: Op, x: Tensor) -> Tensor:
    to = _TYPES.get(op.get("to"))
    if to is None:
        raise UnknownError(f"to type {op.get('to')}")
    if to in _INTEGERS and x.dtype.is_floating_point and x.requires_grad:
        return x  # a trained weight: integers in floats
    return x.to(to)


def _bit_shift(op: Op, x: Tensor, by: Tensor) -> Tensor:
    shift = torch.bitwise_left_shift if op.get("direction") == "LEFT" else torch.bitwise_right_shift
    return shift(x, by)


def _leaky(op: Op, x: Tensor) -> Tensor:
    return F.leaky_relu(x, op.get("alpha", 0.01))


def _prelu(_op: Op, x: Tensor, slope: Tensor) -> Tensor:
    return torch.where(x < 0, x * slope, x)


def _hard_sigmoid(op: Op, x: Tensor) -> Tensor:
    return (op.get("alpha", 0.2) * x + op.get("beta", 0.5)).clamp(0, 1)


def _gelu(op: Op, x: Tensor) -> Tensor:
    return F.gelu(x, approximate=op.get("approximate", "none"))


def _many(run: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def many(_op: Op, first: Tensor, *others: Tensor) -> Tensor:
        for other in others:
            first = run(first, other)
        return first

    return many


def _plain(run: Callable[..., Tensor]) -> Callable[..., Any]:
    return lambda _op, *inputs: run(*inputs)


# --- quantized values


def along(numbers: Tensor, axis: int, rank: int) -> Tensor:
    """Return one number per channel, in the shape that broadcasts along an axis."""
    if numbers.ndim == 0 or numbers.numel() == 1:
        return numbers.reshape(())
    extents = [1] * rank
    extents[axis] = -1
    return numbers.reshape(extents)


def _quantize(op: Op, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    """Return integers in floats; gradients pass straight through rounding, and stop where values are clipped."""
    low, high = _ends(op, zero)
    axis = op.get("axis", 1) % max(x.ndim, 1)
    centre = 0 if zero is None else along(zero, axis, x.ndim).float()
    exact = x / along(scale, axis, x.ndim)
    rounded = exact + (torch.round(exact) - exact).detach()
    return (rounded + centre).clamp(low, high)


def _dequantize(op: Op, q: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    if op.get("block_size", 0):
        raise UnknownError("of blocks")
    axis = op.get("axis", 1) % max(q.ndim, 1)
    centred = q.float()
    if zero is not None and bool(zero.any()):
        centred = centred - along(zero, axis, q.ndim).float()
    return centred * along(scale, axis, q.ndim)


def fake_quantize(op: Op, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    """Return the output of QuantizeLinear and DequantizeLinear in one pass."""
    if scale.numel() != 1:
        return _dequantize(op, _quantize(op, x, scale, zero), scale, zero)
    low, high = _ends(op, zero)
    centre = 0 if zero is None else int(zero)
    return torch.fake_quantize_per_tensor_affine(x, float(scale), centre, low, high)


def _ends(op: Op, zero: Tensor | None) -> tuple[int, int]:
    kind = torch.uint8 if zero is None else zero.dtype
    if op.get("output_dtype", 0):
        kind = _TYPES.get(op.get("output_dtype"), kind)
    if kind not in _ENDS:
        raise UnknownError(f"to {kind}")
    return _ENDS[kind]


OPERATORS: Mapping[str, Callable[..., Any]] = {
    "Abs": _plain(torch.abs),
    "Add": _plain(torch.add),
    "And": _plain(torch.logical_and),
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "BitShift": _bit_shift,
    "Cast": _cast,
    "Ceil": _plain(torch.ceil),
    "Clip": _clip,
    "Concat": lambda op, *parts: torch.cat(parts, dim=op.get("axis")),
    "ConstantOfShape": _constant_of_shape,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Cos": _plain(torch.cos),
    "DequantizeLinear": _dequantize,
    "Div": _div,
    "Dropout": lambda _op, x, *_rest: x,
    "Elu": lambda op, x: F.elu(x, op.get("alpha", 1.0)),
    "Equal": _plain(torch.eq),
    "Erf": _plain(torch.erf),
    "Exp": _plain(torch.exp),
    "Expand": _expand,
    "Flatten": _flatten,
    "Floor": _plain(torch.floor),
    "Gather": _gather,
    "Gelu": _gelu,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_pool(torch.mean),
    "GlobalMaxPool": _global_pool(torch.amax),
    "Greater": _plain(torch.gt),
    "GreaterOrEqual": _plain(torch.ge),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _plain(F.hardswish),
    "Identity": _plain(lambda x: x),
    "InstanceNormalization": _instance_norm,
    "LayerNormalization": _layer_norm,
    "LeakyRelu": _leaky,
    "Less": _plain(torch.lt),
    "LessOrEqual": _plain(torch.le),
    "Log": _plain(torch.log),
    "LogSoftmax": _softmax(F.log_softmax),
    "MatMul": _plain(torch.matmul),
    "Max": _many(torch.maximum),
    "MaxPool": _max_pool,
    "Min": _many(torch.minimum),
    "Mod": _mod,
    "Mul": _plain(torch.mul),
    "Neg": _plain(torch.neg),
    "Not": _plain(torch.logical_not),
    "Or": _plain(torch.logical_or),
    "PRelu": _prelu,
    "Pad": _pad,
    "Pow": _pow,
    "QuantizeLinear": _quantize,
    "Range": _plain(lambda first, end, step: torch.arange(first.item(), end.item(), step.item())),
    "Reciprocal": _plain(torch.reciprocal),
    "ReduceL2": _reduce(
        lambda x, dim, keepdim: torch.linalg.vector_norm(x, dim=dim, keepdim=keepdim)
    ),
    "ReduceMax": _reduce(torch.amax),
    "ReduceMean": _reduce(torch.mean),
    "ReduceMin": _reduce(torch.amin),
    "ReduceSum": _reduce(torch.sum),
    "Relu": _plain(torch.relu),
    "Reshape": _reshape,
    "Resize": _resize,
    "Selu": _plain(F.selu),
    "Shape": _shape,
    "Sigmoid": _plain(torch.sigmoid),
    "Sin": _plain(torch.sin),
    "Slice": _slice,
    "Softmax": _softmax(F.softmax),
    "Softplus": _plain(F.softplus),
    "Split": _split,
    "Sqrt": _plain(torch.sqrt),
    "Squeeze": _squeeze,
    "Sub": _plain(torch.sub),
    "Sum": _many(torch.add),
    "Tanh": _plain(torch.tanh),
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Where": _plain(torch.where),
}
