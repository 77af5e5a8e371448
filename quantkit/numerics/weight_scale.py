"""The scale of each output channel of a weight, chosen by the error that is left.

A wide scale makes every step coarse. A narrow one clips the largest weights, or the pairs of
neighbours that would saturate together (`quantkit.numerics.pairs`). Which is better is decided
per channel by trying both ends and what is between them.

Weights are (..., N, K), scales (..., N), importance (..., K).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantkit.numerics.pairs import PAIRED, Limits, pair_peak, round_pairs

__all__ = ["choose_scale", "peak_scale", "refit_scale", "safe_scale"]

Array = NDArray[Any]
Floats = NDArray[np.float64]

_NARROWEST = 0.5  # of the scale that clips nothing
_STEPS = 32
_TINY = float(np.finfo(np.float32).tiny)


def peak_scale(weight: Array, limits: Limits = PAIRED) -> Floats:
    """Return ``max |w| / peak`` of each channel: no single weight is clipped."""
    return _storable(np.abs(weight).max(axis=-1, initial=0) / np.float64(limits.peak))


def safe_scale(weight: Array, limits: Limits = PAIRED) -> Floats:
    """Return the scale at which plain rounding keeps to `limits`.

    Each of the two roundings of a pair adds at most 1/2, hence ``pair - 1``.
    """
    if limits.pair >= 2 * limits.peak:
        return peak_scale(weight, limits)
    sums = pair_peak(np.swapaxes(weight, -1, -2))[..., 0, :] / np.float64(limits.pair - 1)
    return np.maximum(peak_scale(weight, limits), _storable(sums))


def choose_scale(weight: Array, importance: Array | float, limits: Limits = PAIRED) -> Floats:
    """Return each channel's scale with the least ``sum_k importance_k (w_k - s q_k)^2``.

    q are the integers that `round_pairs` gives at that scale. Scales tried are evenly spaced in
    logarithm from half of `peak_scale` to `safe_scale`; the first of equals wins, so the result is
    never worse than `safe_scale`, which is tried first.

    Args:
        weight: (..., N, K).
        importance: Of each input, (..., K); one number: all alike.
        limits: Which integers are allowed.
    """
    # Searched, not solved: the error as a function of the scale jumps at every rounding and has many minima. Scales
    # below the one of the peak clip the largest weights, which is worth it where few are large; scales above it are
    # needed where two large neighbours break the limit of pairs. Scales are float32 from the start, as the file
    # stores them, so that the error found is the error had.
    weight = np.asarray(weight, np.float64)
    widest = safe_scale(weight, limits)
    narrowest = _NARROWEST * peak_scale(weight, limits)
    best, least = widest, _diagonal_error(weight, widest, importance, limits)
    for share in np.linspace(1, 0, _STEPS)[1:]:
        scale = _storable(widest**share * narrowest ** (1 - share))
        error = _diagonal_error(weight, scale, importance, limits)
        better = error < least
        best, least = np.where(better, scale, best), np.where(better, error, least)
    return best


def _diagonal_error(
    weight: Floats, scale: Floats, importance: Array | float, limits: Limits
) -> Floats:
    spread = np.asarray(importance, np.float64)
    if spread.ndim:
        spread = spread[..., np.newaxis, :]  # one for all channels
    step = scale[..., np.newaxis]
    error = weight - round_pairs(weight / step, limits, spread) * step
    found: Floats = (spread * error**2).sum(axis=-1)
    return found


def refit_scale(q: Array, weight: Array, scale: Array, moments: Array) -> Floats:
    """Return the scale that is best for given integers, ``s = (w H q^T) / (q H q^T)``.

    It minimises ``(w - s q) H (w - s q)^T``. Where that is not a scale (all integers zero, or a
    sign turned around) the old one stays.

    Args:
        q: The integers, (..., N, K).
        weight: (..., N, K).
        scale: The old one, (..., N).
        moments: H = E[x x^T], (..., K, K).
    """
    through = q @ np.asarray(moments, np.float64)
    along = np.einsum("...nk,...nk->...n", through, weight)
    power = np.einsum("...nk,...nk->...n", through, q)
    usable = (power > 0) & (along > _TINY * power)
    return np.where(usable, _storable(along / np.where(usable, power, 1)), scale)


def _storable(scale: Array) -> Floats:
    """Round to float32, as it will be stored; what is zero there becomes 1 (nothing to scale)."""
    rounded = np.asarray(scale, np.float32).astype(np.float64)
    return np.where(rounded < _TINY, 1.0, rounded)
