"""Weights that cannot saturate AVX2's int16 pair sums.

On x86 without VNNI, onnxruntime multiplies uint8 activations a by int8 weights w with an
instruction that adds two neighbouring products into a *saturating* int16:

    clip16(a[2j] w[2j] + a[2j+1] w[2j+1])        2j, 2j+1 neighbours in K

With a in 0..255 it cannot saturate iff in each pair the positive parts add up to at most 128 and
so do the negative parts: 255 * 128 = 32640 < 32767. Such weights give the same integers on every
CPU.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["PAIR_LIMIT", "is_pair_safe", "pair_peak"]

PAIR_LIMIT = 128


def pair_peak(weight: NDArray[Any]) -> NDArray[Any]:
    """Return, for a (..., K, N) weight, each column's largest one-signed pair sum, (..., 1, N).

    Odd K pairs the last row with zeros. If ``pair_peak(w) / s <= 127`` then ``rint(w / s)`` is
    pair-safe: each of the two roundings adds at most 1/2.
    """
    even, odd = weight[..., 0::2, :], weight[..., 1::2, :]
    peak = np.zeros((*weight.shape[:-2], 1, weight.shape[-1]), weight.dtype)
    for sign in (1, -1):
        sums = np.maximum(even * sign, 0)
        sums[..., : odd.shape[-2], :] += np.maximum(odd * sign, 0)
        np.maximum(peak, sums.max(axis=-2, keepdims=True, initial=0), out=peak)
    return peak


def is_pair_safe(q: NDArray[Any]) -> bool:
    """Say whether no uint8 activation can saturate a pair sum of this (..., K, N) int8 weight."""
    return bool((pair_peak(q.astype(np.int32)) <= PAIR_LIMIT).all())
