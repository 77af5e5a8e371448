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

_UNIT = -320
_ONE = 1 << -_UNIT
_LIMIT = 2.0**320  # 2^31 numbers below it fit into the window
_LIMBS = 21
_MASK = 0xFFFFFFFF
# Numbers are collected and spread over the limbs together: spreading takes some 30 numpy calls, about
# 60 us whether for one number or 512, and is needed only when the sum is read.
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
        self._pending: NDArray[np.float64] | None = None
        self._filled = 0
        self._added = 1

    def add(self, values: NDArray[np.float64]) -> None:
        """Add numbers: one to each sum, or rows (k, n) of them.

        Raises:
            ValueError: A number is not finite, or is 2^320 or more.
        """
        if not (np.abs(values) < _LIMIT).all():
            raise ValueError("An exact sum takes finite numbers below 2^320; leave the others out.")
        if self._pending is None:
            self._pending = np.empty((max(1, _PENDING // max(self.n, 1)), self.n), np.float64)
        rows = values.reshape(-1, self.n)
        while len(rows):
            if self._filled == len(self._pending):
                self._spread()
            part = rows[: len(self._pending) - self._filled]
            self._pending[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            rows = rows[len(part) :]

    def merge(self, other: Self) -> None:
        """Add the sums of `other`, which stay as they are.

        Raises:
            ValueError: The number of sums differs.
        """
        if self.n != other.n:
            raise ValueError(f"Cannot merge {other.n} sums into {self.n}.")
        self._spread()
        other._spread()
        self._limbs += other._limbs
        self._count(other._added)

    def value(self) -> NDArray[np.float64]:
        """Return the sums, correctly rounded to float64 (half to even)."""
        # Division of Python's integers is correctly rounded.
        return np.array([total / _ONE for total in self._totals()], np.float64)

    def state(self) -> State:
        """Return the limbs in use; equal sums have equal states."""
        signed = _limbs_of(self._totals())
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
        if not self._filled or self._pending is None:
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
        self._count(self._filled)
        self._filled = 0

    def _count(self, added: int) -> None:
        """Move carries up before they can overflow."""
        self._added += added
        if self._added > _LAZY:
            self._limbs = _limbs_of(self._totals())
            self._added = 1

    def _totals(self) -> list[int]:
        """Return the sums as integers, in units of the window's lowest bit."""
        self._spread()
        totals = [0] * self.n
        for limb in reversed(self._limbs.tolist()):
            totals = [(total << 32) + part for total, part in zip(totals, limb, strict=True)]
        return totals


def _limbs_of(totals: list[int]) -> NDArray[np.int64]:
    """Return the one writing in which all limbs of a sum have its sign and are below 2^32."""
    digits = b"".join(abs(total).to_bytes(4 * _LIMBS, "little") for total in totals)
    sizes = np.frombuffer(digits, "<u4").reshape(len(totals), _LIMBS).T.astype(np.int64)
    return sizes * np.array([-1 if total < 0 else 1 for total in totals], np.int64)
