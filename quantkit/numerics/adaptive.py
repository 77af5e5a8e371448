"""Coordinate descent on the integers of a weight.

Starts from any rounding and moves two neighbours at a time to where the output error

    e H e^T,     e = w / s - q

of their channel is least while all others stay. The error never grows. Arrays may have leading axes:
integers and weights (..., N, K), scales (..., N), moments (..., K, K).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantkit.numerics.pairs import PAIRED, Limits, PairForm, nearest_pairs
from quantkit.numerics.second_order import pad_to_even

__all__ = ["improve"]

Array = NDArray[Any]
Floats = NDArray[np.float64]

_BLOCK = 128  # rows whose gradient is kept up to date pair by pair
_GAIN = 1e-9  # of H_00 + H_11 (a step squared): less is rounding noise of the sums


def improve(
    q: Array,
    weight: Array,
    scale: Array,
    moments: Array,
    limits: Limits = PAIRED,
    sweeps: int = 1,
) -> Floats:
    """Return integers within `limits` whose error ``e H e^T`` is at most that of `q`, per channel.

    `q` must be within `limits`, `moments` positive definite (see `second_order.damped`). Stops early
    when a sweep moves nothing.
    """
    k = q.shape[-1]
    rows, h = pad_to_even(np.swapaxes(q, -1, -2), moments)
    rows = rows.copy()
    targets, _ = pad_to_even(np.swapaxes(weight / scale[..., np.newaxis], -1, -2), moments)
    errors = targets - rows
    for _ in range(sweeps):
        moved = [
            _descend(rows, errors, h, slice(start, start + _BLOCK), limits)
            for start in range(0, rows.shape[-2], _BLOCK)
        ]
        if not any(moved):
            break
    return np.ascontiguousarray(np.swapaxes(rows[..., :k, :], -1, -2))


def _descend(rows: Floats, errors: Floats, h: Floats, block: slice, limits: Limits) -> bool:
    """Move each pair of the block once, in place; say whether any moved."""
    inside = np.ascontiguousarray(h[..., block, block])
    gradient = h[..., block, :] @ errors
    moved = False
    for i in range(0, inside.shape[-1], 2):
        pair = slice(block.start + i, block.start + i + 2)
        step = _best_step(rows[..., pair, :], gradient, inside, i, limits)
        if not step.any():
            continue
        moved = True
        rows[..., pair, :] += step
        errors[..., pair, :] -= step
        gradient -= inside[..., :, i : i + 2] @ step
    return moved


def _best_step(pair: Floats, gradient: Floats, h: Floats, i: int, limits: Limits) -> Floats:
    """Return the integers (..., 2, N) to add to the pair; zero where that gains nothing.

    With g = H e, adding d to the pair changes the error by ``d H2 d^T - 2 d g``, which is least at
    ``H2^-1 g``; H2 is the pair's own part of H.
    """
    h00, h01, h11 = (h[..., a, b, np.newaxis] for a, b in ((i, i), (i, i + 1), (i + 1, i + 1)))
    g0, g1 = gradient[..., i, :], gradient[..., i + 1, :]
    coupling = h01 / h11
    alone = h00 - h01 * coupling
    best0 = (g0 - coupling * g1) / alone
    best1 = g1 / h11 - coupling * best0
    q0, q1 = pair[..., 0, :], pair[..., 1, :]
    form = PairForm(first=alone, second=h11, coupling=coupling)
    n0, n1 = nearest_pairs(q0 + best0, q1 + best1, form, limits)
    d0, d1 = n0 - q0, n1 - q1
    change = h00 * d0**2 + 2 * h01 * d0 * d1 + h11 * d1**2 - 2 * (d0 * g0 + d1 * g1)
    gains = change < -_GAIN * (h00 + h11)
    return np.stack([np.where(gains, d0, 0), np.where(gains, d1, 0)], axis=-2)
