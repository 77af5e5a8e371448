"""Integer types as data."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class IntType:
    """An integer type of `bits` bits.

    Invariant: ``qmin <= 0 <= qmax`` and ``qmax - qmin + 1 == 2**bits``.
    """

    name: str
    bits: int
    signed: bool

    @property
    def qmin(self) -> int:
        """The smallest value."""
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def qmax(self) -> int:
        """The largest value."""
        return (1 << (self.bits - 1)) - 1 if self.signed else (1 << self.bits) - 1

    @property
    def storage(self) -> np.dtype[np.generic]:
        """The numpy type that holds one unpacked value."""
        return np.dtype(f"{'' if self.signed else 'u'}int{max(self.bits, 8)}")


INT2 = IntType("int2", 2, signed=True)
UINT2 = IntType("uint2", 2, signed=False)
INT4 = IntType("int4", 4, signed=True)
UINT4 = IntType("uint4", 4, signed=False)
INT8 = IntType("int8", 8, signed=True)
UINT8 = IntType("uint8", 8, signed=False)
INT16 = IntType("int16", 16, signed=True)
UINT16 = IntType("uint16", 16, signed=False)
INT32 = IntType("int32", 32, signed=True)

_BY_NAME = {t.name: t for t in (INT2, UINT2, INT4, UINT4, INT8, UINT8, INT16, UINT16, INT32)}


def int_type(name: str) -> IntType:
    """Return the type called `name`, such as ``"uint8"``; KeyError if there is none."""
    return _BY_NAME[name]
