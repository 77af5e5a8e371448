"""Packing of 2- and 4-bit integers into bytes, lowest bits first, as ONNX stores them.

byte = q[0] | q[1] << bits | ...        flat, row-major; the last byte is padded with zeros
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantkit.numerics.dtypes import IntType

__all__ = ["pack", "unpack"]

_BYTE = 8


def pack(q: NDArray[Any], dtype: IntType) -> NDArray[np.uint8]:
    """Pack values of a 2- or 4-bit type, flattened, into bytes."""
    per_byte = _BYTE // dtype.bits
    mask = (1 << dtype.bits) - 1
    flat = np.zeros(-(-q.size // per_byte) * per_byte, np.uint8)
    flat[: q.size] = q.reshape(-1).astype(np.uint8) & mask
    out = np.zeros(flat.size // per_byte, np.uint8)
    for i in range(per_byte):
        out |= flat[i::per_byte] << (i * dtype.bits)
    return out


def unpack(packed: NDArray[np.uint8], dtype: IntType, shape: tuple[int, ...]) -> NDArray[Any]:
    """Undo `pack`.

    Args:
        packed: Bytes, the first value in the low bits.
        dtype: Of the values, below 8 bits.
        shape: Of the result.
    """
    per_byte = _BYTE // dtype.bits
    mask = (1 << dtype.bits) - 1
    flat = np.empty(packed.size * per_byte, np.uint8)
    for i in range(per_byte):
        flat[i::per_byte] = (packed >> (i * dtype.bits)) & mask
    values = flat[: int(np.prod(shape, dtype=np.int64))].astype(np.int16)
    if dtype.signed:
        values[values > dtype.qmax] -= 1 << dtype.bits
    return values.astype(dtype.storage).reshape(shape)
