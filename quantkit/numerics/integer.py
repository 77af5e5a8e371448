"""A numpy reference of onnxruntime's integer kernels, exact or as AVX2 computes them.

`saturate=True` clips each adjacent-K pair sum of a uint8 x int8 product to int16, which is what
x86 without VNNI does, bit for bit. Zero points are an exact correction afterwards:

    sum (a - za)(b - zb) = sum ab - za sum b - zb sum a + K za zb
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantkit.numerics.dtypes import IntType

__all__ = ["ConvGeometry", "matmul_integer", "qlinear_conv", "qlinear_matmul", "requantize"]

Integers = NDArray[Any]
_INT16 = np.iinfo(np.int16)


def matmul_integer(
    a: Integers,
    b: Integers,
    a_zero: Integers | int = 0,
    b_zero: Integers | int = 0,
    *,
    saturate: bool = False,
) -> NDArray[np.int32]:
    """ONNX MatMulInteger of (..., M, K) and (K, N); `b_zero` may be one per column.

    Args:
        a: (..., M, K), the activation.
        b: (K, N), the weight.
        a_zero: Of the activation.
        b_zero: Of the weight; one, or one per column.
        saturate: Clip sums of two products at int16, as x86 without VNNI does for uint8 times int8.
    """
    a64, b64 = a.astype(np.int64), b.astype(np.int64)
    az, bz = np.asarray(a_zero, np.int64), np.asarray(b_zero, np.int64)
    product = _pair_sums(a64, b64) if saturate else a64 @ b64
    k = a.shape[-1]
    product = product - az * b64.sum(axis=-2) - bz * a64.sum(axis=-1, keepdims=True) + k * az * bz
    result: NDArray[np.int32] = product.astype(np.int32)
    return result


def _pair_sums(a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
    if a.shape[-1] % 2:
        a = np.concatenate([a, np.zeros_like(a[..., :1])], axis=-1)
        b = np.concatenate([b, np.zeros_like(b[:1])], axis=0)
    total = np.zeros((*a.shape[:-1], b.shape[-1]), np.int64)
    for j in range(0, a.shape[-1], 2):
        pair = a[..., j : j + 2] @ b[j : j + 2]
        total += np.clip(pair, _INT16.min, _INT16.max)
    return total


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


__all__ += ["Output", "Quantized"]


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
