"""Rounding that lets later weights make up for the errors of earlier ones.

A layer's output error is quadratic in the error of its weight, e = w - w' (one channel, K values):

    E[(e x)^2] = e H e^T,     H = E[x x^T]

Factor H = R R^T with R upper triangular. Then the error is a sum of squares in which term k holds
only the weights up to k:

    e H e^T = sum_k R_kk^2 (t_k - w'_k)^2,     t_k = w_k + sum_{j<k} e_j R_jk / R_kk

Going through k in order and rounding the target t_k (not w_k) keeps each term at half a step. This
is the method known as GPTQ, without the inverse of H. Here two neighbours are rounded at a time:
jointly, and within the limits of their pair.

All arrays may have leading axes: weights (..., N, K), scales (..., N), moments (..., K, K). A
depthwise Conv is one call over all its groups.

Coordinate descent on the integers of a weight.

Starts from any rounding and moves two neighbours at a time to where the output error

    e H e^T,     e = w / s - q

of their channel is least while all others stay. The error never grows. Arrays may have leading axes:
integers and weights (..., N, K), scales (..., N), moments (..., K, K).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantkit.numerics.pairs import PAIRED, Limits, PairForm, nearest_pairs

Array = NDArray[Any]
Floats = NDArray[np.float64]

_BLOCK = 128  # rows whose errors are carried over one pair at a time; the rest by matrix products
_LARGE = 512  # inputs from which on moments are factored where they are
_REVERSED = 1 << 20  # numbers that change places at a time
_SMALLEST_SHARE, _LARGEST_SHARE = 0.1, 4.0


def damping_share(inputs: int, rows: int) -> float:
    """Return how much to damp moments of `inputs` values that were seen in `rows` samples.

        0.1 + 2 inputs / rows, at most 4

    Too little, and the rounding fits the calibration data alone: with 1,568 rows for 1,152 inputs a
    share of 0.01 lost 1.8 to 3.8 dB on other images to plain rounding, this one gained 0.2 to 1.1 dB.
    Measured with at most 196 positions of an image as rows; neighbouring positions are alike, so count
    no more than that even where all of them were summed.
    """
    return min(_LARGEST_SHARE, _SMALLEST_SHARE + 2 * inputs / max(1, rows))


def damped(moments: Array, share: float = 0.2, *, own: bool = False) -> Floats:
    """Return ``H + share * mean(diag H) * I``: positive definite, and less sure of itself.

    Few samples leave directions of the input unseen. An input that is always zero gets the identity. `own`: the moments
    may be changed in their place, where they are float64.

    Args:
        moments: H, (..., K, K), symmetric.
        share: Of the mean of the diagonal that is added to it (`damping_share`).
        own: The caller needs the moments no more: a matrix of thousands of inputs is not copied.
    """
    h = np.asarray(moments, np.float64) if own else np.array(moments, np.float64)
    k = h.shape[-1]
    mean = np.trace(h, axis1=-2, axis2=-1) / max(1, k)
    h[..., np.arange(k), np.arange(k)] += np.where(mean > 0, share * mean, 1.0)[..., np.newaxis]
    return h


def output_error(error: Array, moments: Array) -> Floats:
    """Return ``e H e^T`` of each channel: (..., N, K), (..., K, K) -> (..., N)."""
    e = np.asarray(error, np.float64)
    found: Floats = np.einsum("...nk,...nk->...n", e @ moments, e)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Carries:
    """Moments as rounding reads them; some channels may be rounded at a time.

    Attributes:
        order: In which inputs are rounded, (..., K) with K padded to be even.
        weights: R_kk in that order, (..., K, 1).
        carry: Columns of R / R_kk in that order, as rows: what an earlier error adds to the target k.
    """

    order: NDArray[np.intp]
    weights: Floats
    carry: Floats


def carries_of(moments: Array, *, own: bool = False) -> Carries:
    """Factor moments; `own`: in their place, where they are large."""
    # Two ways to the same factor. Small moments, or those of many groups, are copied into order and factored in one
    # call. One large matrix (from 512 inputs on; of 4,608 inputs it is 170 MB) is reordered, factored and reversed
    # where it lies, block by block, so that it is in memory once: that decides how many weights can be solved at the
    # same time.
    h = _padded(np.asarray(moments, np.float64))
    order = _pair_order(h)
    if h.shape[-1] >= _LARGE and h.size == h.shape[-1] ** 2:
        whole = h.reshape(h.shape[-2:])
        if not own and np.shares_memory(h, moments):
            whole = whole.copy()
        carry = _carry_in_place(whole, order.reshape(-1)).reshape(h.shape)
    else:
        h = np.take_along_axis(h, order[..., np.newaxis], axis=-2)
        h = np.take_along_axis(h, order[..., np.newaxis, :], axis=-1)
        carry = np.ascontiguousarray(np.swapaxes(_upper_factor(h), -1, -2))
    weights = np.diagonal(carry, axis1=-2, axis2=-1)[..., np.newaxis].copy()
    carry /= weights
    return Carries(order=order, weights=weights, carry=carry)


def _carry_in_place(h: Floats, order: NDArray[np.intp]) -> Floats:
    """Return R^T of H in an order, where H is: a matrix of thousands of inputs must not be there twice."""
    from scipy.linalg import cholesky

    backwards = order[::-1]
    for start in range(0, len(h), _BLOCK):
        rows = slice(start, start + _BLOCK)
        h[rows] = h[rows][:, backwards]
    for start in range(0, len(h), _BLOCK):
        columns = slice(start, start + _BLOCK)
        h[:, columns] = h[:, columns][backwards]
    # The factor of H read backwards is R read backwards; turned, it lies in memory as R^T does, last number first.
    factor = cholesky(h.T, lower=True, overwrite_a=True, check_finite=False)
    flat = np.ascontiguousarray(factor.T).reshape(-1)
    for start in range(0, flat.size // 2, _REVERSED):
        stop = min(start + _REVERSED, flat.size // 2)
        front = flat[start:stop].copy()
        flat[start:stop] = flat[flat.size - stop : flat.size - start][::-1]
        flat[flat.size - stop : flat.size - start] = front[::-1]
    return flat.reshape(h.shape)


def round_carried(
    weight: Array,
    scale: Array,
    carries: Carries,
    limits: Limits = PAIRED,
    *,
    keep_zeros: bool = False,
) -> Floats:
    """Return integers (..., N, K) within `limits`, that keep ``e H e^T`` of each channel small.

    Args:
        weight: (..., N, K), or some of its channels.
        scale: (..., N).
        carries: The factored moments, used for as many channels as one likes.
        limits: Which integers are allowed.
        keep_zeros: A weight of zero stays zero; else it may take over errors of others.
    """
    # Pairs go in order of falling H_00 + H_11: the largest inputs are rounded while all others can still make up for them.
    # Rounding runs along K, so weights lie (..., K, N) here: each step then works on rows that are contiguous over
    # all channels. The order is by pairs, never by single inputs: neighbours 2j, 2j + 1 share an int16 sum in the
    # kernel, and must be rounded together. K is padded to be even with an input that is not correlated with any
    # other, so that it takes and passes on no error.
    k = weight.shape[-1]
    order = carries.order
    columns = np.swapaxes(weight / scale[..., np.newaxis], -1, -2)
    if k % 2:
        columns = np.pad(columns, [*[(0, 0)] * (columns.ndim - 2), (0, 1), (0, 0)])
    rows = np.take_along_axis(columns, order[..., np.newaxis], axis=-2)
    rounded = _round_rows(rows, carries, limits, keep_zeros=keep_zeros)
    q = np.empty_like(rounded)
    np.put_along_axis(q, order[..., np.newaxis], rounded, axis=-2)
    return np.ascontiguousarray(np.swapaxes(q[..., :k, :], -1, -2))


def pad_to_even(columns: Array, moments: Array) -> tuple[Floats, Floats]:
    """Pad an odd K with a weight of zero that no other input knows of."""
    columns, moments = np.asarray(columns, np.float64), np.asarray(moments, np.float64)
    if columns.shape[-2] % 2 == 0:
        return columns, moments
    lead = [(0, 0)] * (columns.ndim - 2)
    return np.pad(columns, [*lead, (0, 1), (0, 0)]), _padded(moments)


def _padded(h: Floats) -> Floats:
    k = h.shape[-1]
    if k % 2 == 0:
        return h
    padded = np.pad(h, [*[(0, 0)] * (h.ndim - 2), (0, 1), (0, 1)])
    padded[..., k, k] = np.diagonal(h, axis1=-2, axis2=-1).min(axis=-1)
    return padded


def _pair_order(h: Floats) -> NDArray[np.intp]:
    diagonal = np.diagonal(h, axis1=-2, axis2=-1)
    first = 2 * np.argsort(-(diagonal[..., 0::2] + diagonal[..., 1::2]), axis=-1, kind="stable")
    order: NDArray[np.intp] = np.stack([first, first + 1], axis=-1).reshape(diagonal.shape)
    return order


def _upper_factor(h: Floats) -> Floats:
    """Return upper triangular R with R R^T = H: the Cholesky factor of H read backwards."""
    upper: NDArray[Any] = np.linalg.cholesky(h[..., ::-1, ::-1])[..., ::-1, ::-1]
    return upper


def _round_rows(rows: Floats, carries: Carries, limits: Limits, *, keep_zeros: bool) -> Floats:
    """Round (..., K, N), which are in the order of `carries`."""
    errors, q = np.zeros_like(rows), np.empty_like(rows)
    weights, carry = carries.weights, carries.carry
    k = rows.shape[-2]
    for start in range(0, k, _BLOCK):
        # Errors of earlier blocks are carried over by one matrix product per block, those inside a block by one per
        # pair: the same sums as one product per pair with all that came before, in large products instead of thin
        # ones.
        stop = min(start + _BLOCK, k)
        targets = rows[..., start:stop, :].copy()
        if start:
            targets += carry[..., start:stop, :start] @ errors[..., :start, :]
        for i in range(start, stop, 2):
            pair = slice(i, i + 2)
            t = targets[..., i - start : i - start + 2, :]
            if i > start:
                t = t + carry[..., pair, start:i] @ errors[..., start:i, :]
            form = PairForm(
                first=weights[..., i, :] ** 2,
                second=weights[..., i + 1, :] ** 2,
                coupling=carry[..., i + 1, i, np.newaxis],
            )
            q[..., i, :], q[..., i + 1, :] = nearest_pairs(t[..., 0, :], t[..., 1, :], form, limits)
            if keep_zeros:
                q[..., pair, :][rows[..., pair, :] == 0] = 0
            # Errors are those of the weight itself: R carries them to every later target.
            errors[..., pair, :] = rows[..., pair, :] - q[..., pair, :]
    return q


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

    Args:
        q: The integers to begin with, (..., N, K).
        weight: (..., N, K).
        scale: (..., N).
        moments: H = E[x x^T], (..., K, K).
        limits: Which integers are allowed.
        sweeps: At most so many passes over all pairs.
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
