"""Packing of integers of few bits into bytes.

As ONNX stores types of 2 and 4 bits, lowest bits first:

    byte = q[0] | q[1] << bits | ...        flat, row-major; the last byte is padded with zeros

Any number of bits, as planes of 4, 2 and 1 (`planes`): 5 bits are a plane of 4 and one of 1.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantkit.numerics.dtypes import IntType


def pack(q: NDArray[Any], dtype: IntType) -> NDArray[np.uint8]:
    """Pack values of a 2- or 4-bit type, flattened, into bytes."""
    per_byte = 8 // dtype.bits
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
    per_byte = 8 // dtype.bits
    mask = (1 << dtype.bits) - 1
    flat = np.empty(packed.size * per_byte, np.uint8)
    for i in range(per_byte):
        flat[i::per_byte] = (packed >> (i * dtype.bits)) & mask
    values = flat[: int(np.prod(shape, dtype=np.int64))].astype(np.int16)
    if dtype.signed:
        values[values > dtype.qmax] -= 1 << dtype.bits
    return values.astype(dtype.storage).reshape(shape)


_WIDTHS = (4, 2, 1)  # of planes: divisors of a byte


@dataclass(frozen=True, slots=True)
class Plane:
    """Some neighbouring bits of many codes, packed into bytes.

    Attributes:
        width: How many bits, 4, 2 or 1.
        shift: Which: the lowest of them is bit `shift` of the code.
        content: The bytes. Of n codes, with 8 / width of them to a byte and L bytes, code i stands in byte ``i % L`` at bit
            ``width (i // L)``: shifted right by 0, width, 2 width ..., the bytes are all codes in order.
    """

    width: int
    shift: int
    content: NDArray[np.uint8]

    @property
    def per_byte(self) -> int:
        """How many codes share a byte."""
        return 8 // self.width


def plane_widths(bits: int) -> tuple[int, ...]:
    """Return how many bits each plane of a code has, the lowest first: 7 is 4 + 2 + 1."""
    found, left = [], bits
    for width in _WIDTHS:
        while left >= width:
            found.append(width)
            left -= width
    return tuple(found)


def planes(codes: NDArray[np.uint8], bits: int) -> tuple[Plane, ...]:
    """Cut codes of any number of bits into planes, which operators of every runtime put together again."""
    flat, found, shift = codes.reshape(-1), [], 0
    for width in plane_widths(bits):
        per_byte = 8 // width
        length = -(-flat.size // per_byte)
        values = np.zeros(length * per_byte, np.uint8)
        values[: flat.size] = flat >> shift & (1 << width) - 1
        content = np.zeros(length, np.uint8)
        for i, part in enumerate(values.reshape(per_byte, length)):
            content |= part << (i * width)
        found.append(Plane(width, shift, content))
        shift += width
    return tuple(found)
