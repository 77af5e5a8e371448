"""Products of integers as onnxruntime computes them: exactly, or as AVX2 does.

`saturate=True` clips each adjacent-K pair sum of a uint8 x int8 product to int16, which is what
x86 without VNNI does, bit for bit. Zero points are an exact correction afterwards:

    sum (a - za)(b - zb) = sum ab - za sum b - zb sum a + K za zb
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

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
