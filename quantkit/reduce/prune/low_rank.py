"""Matrices as products of two thin ones: whitened by second moments, and only where that is better than 4 bits of the same size, and faster.

The best matrix of rank r for inputs with covariance C = L L^T is the one whose product with L keeps the r largest singular values of W L; the bias takes
up the means. In float, a rank of a quarter or less of the smaller side has the size of 4 bits, and few layers have so little to them: of 14 that were measured, two.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantkit.numerics.blocks import BlockGrid, solve_blocks
from quantkit.numerics.decibels import decibels
from quantkit.numerics.second_order import output_error

Floats = NDArray[np.float64]

_BITS, _BLOCK = 4, 32  # that a low rank competes with
_FLOAT = 32  # bits of a value of the thin matrices
_SHARED = 8  # bits of what a block shares, zero and multiplier


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRank:
    """A weight of rank r next to the same in 4 bits, as large in a file.

    Attributes:
        rank: r.
        left: (N, r).
        right: (r, K).
        sqnr: Of its output, in dB.
        bits_sqnr: Of its output with 4 bits.
    """

    rank: int
    left: Floats
    right: Floats
    sqnr: float
    bits_sqnr: float

    @property
    def gains(self) -> bool:
        """Whether it loses less than 4 bits."""
        return self.sqnr > self.bits_sqnr


def factored(weight: Floats, covariance: Floats, rank: int) -> tuple[Floats, Floats]:
    """Return thin matrices whose product has the least error ``tr((W - AB) C (W - AB)^T)`` of all of a rank.

    Args:
        weight: W, (N, K).
        covariance: C, (K, K), positive definite.
        rank: At most the smaller side of W.
    """
    from scipy.linalg import solve_triangular

    root = np.linalg.cholesky(covariance)
    left, values, right = np.linalg.svd(weight @ root, full_matrices=False)
    scale = np.sqrt(values[:rank])
    thin: Floats = solve_triangular(
        root, (scale[:, np.newaxis] * right[:rank]).T, lower=True, trans="T"
    ).T
    return left[:, :rank] * scale, thin


def rank_of_size(rows: int, inputs: int) -> int:
    """Return the rank at which two thin matrices take as much of a file as 4 bits in blocks; 0: none does."""
    bits = rows * inputs * (_BITS + _SHARED / _BLOCK) + rows * _FLOAT
    return int(bits / (_FLOAT * (rows + inputs)))


def low_rank(weight: Floats, fitted: Floats, held_out: Floats) -> LowRank | None:
    """Return a weight of low rank next to 4 bits of the same size; None: no rank is so small.

    Both are fitted to some samples, and judged on others: of a few directions that samples happen to have, a low rank would look too good.

    Args:
        weight: W, (N, K).
        fitted: The covariance that both are fitted to, (K, K), positive definite.
        held_out: That on other samples.
    """
    rank = rank_of_size(*weight.shape)
    if rank < 1:
        return None
    left, right = factored(weight, fitted, rank)
    grid = BlockGrid(bits=_BITS, size=_BLOCK)
    codes: NDArray[Any] = solve_blocks(weight, grid, fitted).dequantized()
    power = float(output_error(weight, held_out).sum())
    lost = [float(output_error(weight - one, held_out).sum()) for one in (left @ right, codes)]
    sqnr, bits_sqnr = (decibels(power / max(one, 1e-30)) for one in lost)
    return LowRank(rank=rank, left=left, right=right, sqnr=sqnr, bits_sqnr=bits_sqnr)
