"""A numpy reference of onnxruntime's QLinear kernels, exact or as AVX2 computes them (`quantkit.evaluate.integer_layers`)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantkit.evaluate.integer_layers import matmul_integer
from quantkit.numerics.dtypes import IntType

__all__ = ["ConvGeometry", "Output", "Quantized", "qlinear_conv", "qlinear_matmul", "requantize"]

Integers = NDArray[Any]


def requantize(
    accumulator: NDArray[np.int32],
    scale: NDArray[np.float32] | float,
    zero_point: int,
    dtype: IntType,
) -> Integers:
    """Return ``clip(rint(acc * scale) + z)``; `scale` is ``s_a * s_b / s_y``, in float32.

    Args:
        accumulator: Sums of products.
        scale: ``s_a * s_b / s_y``; one, or one per channel.
        zero_point: Of the result.
        dtype: Of the result.
    """
    y = np.rint(accumulator.astype(np.float32) * np.asarray(scale, np.float32)) + zero_point
    result: Integers = np.clip(y, dtype.qmin, dtype.qmax).astype(dtype.storage)
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantized:
    """An integer tensor with its scale and zero point (each a scalar or one per channel)."""

    values: Integers
    scale: NDArray[np.float32]
    zero_point: NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """How the output of a QLinear kernel is quantized."""

    scale: float
    zero_point: int
    dtype: IntType


def qlinear_matmul(a: Quantized, b: Quantized, y: Output, *, saturate: bool = False) -> Integers:
    """ONNX QLinearMatMul of (..., M, K) and (K, N); `b` per tensor or per column.

    Args:
        a: (..., M, K), the activation.
        b: (K, N), the weight, per tensor or per column.
        y: Scale, zero point and type of the result.
        saturate: Clip sums of two products at int16, as x86 without VNNI does.
    """
    acc = matmul_integer(a.values, b.values, a.zero_point, b.zero_point, saturate=saturate)
    scale = np.float32(a.scale) * b.scale.astype(np.float32) / np.float32(y.scale)
    return requantize(acc, scale, y.zero_point, y.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvGeometry:
    """Attributes of a convolution; `pads` is begin of each axis, then end of each axis."""

    strides: tuple[int, ...] = (1, 1)
    pads: tuple[int, ...] = (0, 0, 0, 0)
    dilations: tuple[int, ...] = (1, 1)
    group: int = 1


def qlinear_conv(
    x: Quantized,
    w: Quantized,
    y: Output,
    *,
    bias: NDArray[np.int32] | None = None,
    geometry: ConvGeometry | None = None,
    saturate: bool = False,
) -> Integers:
    """ONNX QLinearConv in two dimensions, (N, C, H, W) by (M, C/group, kh, kw).

    The columns are laid out (kh, kw, c) with c fastest, the order in which onnxruntime pairs them.

    Args:
        x: (N, C, H, W), the activation.
        w: (M, C / group, kh, kw), the weight, per tensor or per output channel.
        y: Scale, zero point and type of the result.
        bias: (M,), of the scale ``s_x * s_w``; None: zero.
        geometry: Strides, pads, dilations and groups; None: those of a plain Conv.
        saturate: Clip sums of two products at int16, as x86 without VNNI does.
    """
    geo = geometry or ConvGeometry()
    out_channels, _, kh, kw = w.values.shape
    columns, size = _columns(x, (kh, kw), geo)
    per_group = out_channels // geo.group
    if per_group == 1 and w.values.shape[1] == 1:
        saturate = False  # depthwise has a kernel of its own, which widens first
    zero = np.broadcast_to(w.zero_point, (out_channels,))
    outputs = []
    for g in range(geo.group):
        rows = slice(g * per_group, (g + 1) * per_group)
        kernel = w.values[rows].transpose(2, 3, 1, 0).reshape(-1, per_group)
        outputs.append(
            matmul_integer(columns[g], kernel, x.zero_point, zero[rows], saturate=saturate)
        )
    acc = np.concatenate(outputs, axis=-1)
    if bias is not None:
        acc = acc + bias
    scale = np.float32(x.scale) * w.scale.astype(np.float32) / np.float32(y.scale)
    result = requantize(acc, scale, y.zero_point, y.dtype)
    return result.reshape(x.values.shape[0], *size, out_channels).transpose(0, 3, 1, 2)


def _columns(
    x: Quantized, kernel: tuple[int, int], geo: ConvGeometry
) -> tuple[list[Integers], tuple[int, int]]:
    """Unfold the input: one (N, OH * OW, kh * kw * C / group) array a group."""
    top, left, bottom, right = geo.pads
    padded = np.pad(
        x.values,
        ((0, 0), (0, 0), (top, bottom), (left, right)),
        constant_values=int(x.zero_point),
    )
    n, channels, height, width = padded.shape
    oh, ow = (
        (extent - d * (k - 1) - 1) // s + 1
        for extent, k, s, d in zip((height, width), kernel, geo.strides, geo.dilations, strict=True)
    )
    taps = [
        padded[
            :,
            :,
            i * geo.dilations[0] : i * geo.dilations[0] + oh * geo.strides[0] : geo.strides[0],
            j * geo.dilations[1] : j * geo.dilations[1] + ow * geo.strides[1] : geo.strides[1],
        ][:, :, :oh, :ow]
        for i in range(kernel[0])
        for j in range(kernel[1])
    ]
    stacked = np.stack(taps, axis=1)  # N, taps, C, OH, OW
    per_group = channels // geo.group
    groups = [
        stacked[:, :, g * per_group : (g + 1) * per_group]
        .transpose(0, 3, 4, 1, 2)
        .reshape(n, oh * ow, -1)
        for g in range(geo.group)
    ]
    return groups, (oh, ow)
