"""Floats of 16 bits: what float16 holds, and what arrays lose in it or in bfloat16.

float16:  |x| <= 65504; 11 digits (of base 2) down to 2^-14, fewer below, none below 2^-25
bfloat16: the range of float32; 8 digits
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from quantkit.numerics.decibels import sqnr_db

LARGEST = 65504.0
LEAST_NORMAL = 2.0**-14  # float16 has fewer digits of what is smaller
LEAST = 2.0**-24  # of half of it and less nothing is left

_CHUNK = 1 << 18  # values at a time, so that no temporary grows with the tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfLoss:
    """What becomes of an array in 16 bits.

    Attributes:
        finite: It holds neither NaN nor infinity; if it does, the others say nothing.
        largest: Its largest magnitude.
        overflows: Values become infinite.
        vanishes: Values that are not 0 become 0.
        sqnr_db: Signal to noise of the rounding; infinite: it is exact.
    """

    finite: bool
    largest: float
    overflows: bool
    vanishes: bool
    sqnr_db: float


def halved(array: NDArray[Any], kind: DTypeLike) -> NDArray[Any]:
    """Return an array in 16 bits, rounded to nearest, ties to even; what is too large becomes infinite."""
    with np.errstate(over="ignore"):
        return array.astype(kind)


def half_loss(array: NDArray[Any], kind: DTypeLike) -> HalfLoss:
    """Measure what an array of float32 loses.

    Args:
        array: Of any shape.
        kind: float16, or bfloat16 of whichever package has it.
    """
    signal = noise = largest = 0.0
    finite, overflows, vanishes = True, False, False
    for part in _parts(array):
        rounded = halved(part, kind).astype(np.float32)
        most = float(np.abs(part).max(initial=0))
        finite = finite and bool(np.isfinite(most))
        if not finite:
            break
        largest = max(largest, most)
        overflows = overflows or not bool(np.isfinite(rounded).all())
        vanishes = vanishes or bool(np.count_nonzero(rounded) < np.count_nonzero(part))
        exact = part.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            error = exact - rounded
        signal += float(np.vdot(exact, exact))
        noise += float(np.vdot(error, error))
    sqnr = -inf if overflows else sqnr_db(signal, noise)
    return HalfLoss(
        finite=finite, largest=largest, overflows=overflows, vanishes=vanishes, sqnr_db=sqnr
    )


def _parts(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    flat = array.reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        yield flat[start : start + _CHUNK]
