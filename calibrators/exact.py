"""Exact sums of float64 numbers: the same bits in any order and grouping.

A sum is a fixed-point integer in units of 2^-320, written in base 2^32:

    sum = 2^-320 * sum_i limb_i * 2^(32 i),   i = 0 .. 20

float32 values are multiples of 2^-149 and their squares of 2^-298, below 2^256. So the window from 2^-320 to
2^352 holds all their float64 sums without any loss. Other float64 numbers finer than 2^-320 are rounded
to that unit, half to even, one by one (deterministic); numbers of 2^320 and above are refused.
"""

from typing import Self

import numpy as np
from numpy.typing import NDArray

from calibrators.protocol import State

__all__ = ["ExactSum"]

_UNIT = -320
_LIMIT = 2.0**320  # 2^31 numbers below it fit into the window
_LIMBS = 21
_MASK = 0xFFFFFFFF
# Numbers are collected and spread over the limbs together: that takes some 30 numpy calls, 36 us for one number
# and 68 us for 512, and is needed only when the sum is read.
_PENDING = 512
# Each number adds less than 2^33 to a limb, so int64 limbs need their carries moved up only this often.
_LAZY = 2**29


class ExactSum:
    """`n` independent exact sums.

    Invariants: every pending number is finite and below 2^320; limbs stay below 2^63.
    """

    __slots__ = ("_added", "_filled", "_limbs", "_pending", "n")

    def __init__(self, n: int) -> None:
        self.n = n
        self._limbs = np.zeros((_LIMBS, n), np.int64)
        self._pending = np.empty((max(1, _PENDING // max(n, 1)), n), np.float64)
        self._filled = 0
        self._added = 0

    def add(self, values: NDArray[np.float64]) -> None:
        """Add one number to each sum.

        Raises:
            ValueError: A number is not finite, or is 2^320 or more.
        """
        if not np.logical_and.reduce(np.abs(values) < _LIMIT):
            raise ValueError("An exact sum takes finite numbers below 2^320; leave the others out.")
        if self._filled == len(self._pending):
            self._spread()
        self._pending[self._filled] = values
        self._filled += 1

    def merge(self, other: Self) -> None:
        """Add the sums of `other`, which stay as they are.

        Raises:
            ValueError: The number of sums differs.
        """
        if self.n != other.n:
            raise ValueError(f"Cannot merge {other.n} sums into {self.n}.")
        self._spread()
        other._spread()
        self._limbs = _carried(self._limbs) + _carried(other._limbs)
        self._added = 2

    def value(self) -> NDArray[np.float64]:
        """Return the sums, correctly rounded to float64 (half to even)."""
        signed = self._canonical()
        digits = np.ascontiguousarray(np.abs(signed).T.astype("<u4"))
        negative = (signed < 0).any(axis=0)
        one = 1 << -_UNIT
        # Division of Python's integers is correctly rounded.
        found = [int.from_bytes(row.tobytes(), "little") / one for row in digits]
        return np.where(negative, -1.0, 1.0) * np.array(found, np.float64)

    def state(self) -> State:
        """Return the limbs in use; equal sums have equal states."""
        signed = self._canonical()
        used = np.flatnonzero(signed.any(axis=1))
        first, last = (int(used[0]), int(used[-1]) + 1) if used.size else (0, 0)
        return {"first": np.array([first], np.int64), "limbs": signed[first:last].copy()}

    @classmethod
    def from_state(cls, state: State) -> Self:
        """Build the sums that had this state."""
        limbs = state["limbs"]
        found = cls(limbs.shape[1])
        first = int(state["first"][0])
        found._limbs[first : first + len(limbs)] = limbs
        return found

    def _spread(self) -> None:
        """Move the pending numbers into the limbs."""
        if not self._filled:
            return
        values = self._pending[: self._filled]
        column = np.broadcast_to(np.arange(self.n), values.shape)
        fraction, exponent = np.frexp(values)
        place = exponent.astype(np.int64) - 53 - _UNIT
        # Below the window's unit: the number is rounded to a multiple of it.
        shift_in = np.minimum(place, 0)
        mantissa = np.rint(np.ldexp(fraction, (53 + shift_in).astype(np.int32))).astype(np.int64)
        place = np.maximum(place, 0)
        limb, shift = place >> 5, place & 31
        sign, size = np.sign(mantissa), np.abs(mantissa)
        low = (size & _MASK) << shift
        high = (size >> 32) << shift
        middle = (low >> 32) + (high & _MASK)
        for up, part in enumerate((low & _MASK, middle, high >> 32)):
            np.add.at(self._limbs, (limb + up, column), sign * part)
        self._added += self._filled
        self._filled = 0
        if self._added > _LAZY:
            self._limbs = _carried(self._limbs)
            self._added = 1

    def _canonical(self) -> NDArray[np.int64]:
        """Return the one writing of each sum in which all limbs have its sign and are below 2^32."""
        self._spread()
        limbs = _carried(self._limbs)
        negative = limbs[-1] < 0
        return np.where(negative, -_carried(np.where(negative, -limbs, limbs)), limbs)


def _carried(limbs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the same numbers with all limbs but the topmost, which has the sign, in [0, 2^32)."""
    moved = limbs.copy()
    for i in range(_LIMBS - 1):
        moved[i + 1] += moved[i] >> 32
        moved[i] &= _MASK
    return moved
