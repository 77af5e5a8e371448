"""An order of input channels in which few pairs of weights are large together.

Which inputs are neighbours, and so share a saturating sum (`quantkit.numerics.pairs`), is up to the
order of the channels, and that order is free wherever the layer before can write its outputs in the
same order. With a good one the scale that keeps all pairs safe is hardly wider than the one that a
single weight needs.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantkit.numerics.pairs import PAIRED, Limits

__all__ = ["pairing"]

Array = NDArray[Any]
Floats = NDArray[np.float64]

_SWAPS = 600
_TRIED = 4  # pairs looked at before giving up
_POOL = 96  # pairs that may take a large partner
_TINY = float(np.finfo(np.float64).tiny)
_GAIN = 1e-9  # of the total: less is rounding noise


def pairing(weight: Array, limits: Limits = PAIRED, swaps: int = _SWAPS) -> NDArray[np.intp]:
    """Return an order of the K input channels of a weight (N, K), or (N, taps, K) of a Conv.

    Minimises ``sum_n max(peak_n / limits.peak, pair_n / (limits.pair - 1))^2``, the squares of the
    safe scales, to which the error of rounding is proportional; peak_n is channel n's largest weight
    and pair_n its largest one-signed sum of two neighbours. Starts from large beside small, then
    exchanges partners of the costliest pairs while that helps. Never worse than the given order.
    """
    taps = np.array(weight, np.float64).reshape(weight.shape[0], -1, weight.shape[-1])
    needed = np.abs(taps).max(axis=(1, 2), initial=0) * ((limits.pair - 1) / limits.peak)
    order = _exchange(taps, _large_beside_small(taps), needed, swaps)
    better = _cost(_sums(taps[..., order]), needed) < _cost(_sums(taps), needed)
    return order if better else np.arange(len(order))


def _large_beside_small(taps: Floats) -> NDArray[np.intp]:
    """Pair the input with the largest weight with the one whose largest is smallest, and so on."""
    order = np.argsort(-np.abs(taps).max(axis=(0, 1)), kind="stable")
    half = (len(order) + 1) // 2
    paired = np.empty_like(order)
    paired[0::2], paired[1::2] = order[:half], order[half:][::-1]
    return paired


def _exchange(
    taps: Floats, order: NDArray[np.intp], needed: Floats, swaps: int
) -> NDArray[np.intp]:
    """Exchange partners; an odd last input stays alone where it is."""
    order, taps = order.copy(), taps[..., order]
    sums = _sums(taps)
    for _ in range(swaps if sums.shape[1] > 1 else 0):
        cost = _cost(sums, needed)
        for i in _costliest(sums, needed):
            column, found = _best_exchange(taps, sums, needed, i)
            if found < cost * (1 - _GAIN):
                break
        else:
            break
        swapped, swap = [2 * i + 1, column], [column, 2 * i + 1]
        order[swapped], taps[..., swapped] = order[swap], taps[..., swap]
        for pair in (i, column // 2):
            sums[:, pair] = _sums(taps[..., 2 * pair : 2 * pair + 2])[:, 0]
    return order


def _top_two(sums: Floats) -> tuple[NDArray[np.intp], Floats, Floats]:
    """Return where each row's largest value is, that value, and the next one."""
    rows, first = np.arange(len(sums)), sums.argmax(axis=1)
    others = sums.copy()
    others[rows, first] = 0
    return first, sums[rows, first], others.max(axis=1)


def _costliest(sums: Floats, needed: Floats) -> list[int]:
    """Return the few pairs whose going would gain the most, first the best."""
    where, first, second = _top_two(sums)
    gain = np.maximum(first, needed) ** 2 - np.maximum(second, needed) ** 2
    gains = np.bincount(where, weights=gain, minlength=sums.shape[1])
    order = np.argsort(-gains, kind="stable")[:_TRIED]
    return [int(i) for i in order if gains[i] > 0]


def _best_exchange(taps: Floats, sums: Floats, needed: Floats, i: int) -> tuple[int, float]:
    """Return the column that the second of pair i is best exchanged with, and the cost then.

    Pair i = (a, b) and a pair (c, d) become (a, c), (b, d) or (a, d), (b, c). Only pairs that are far
    from their limit in all channels are tried.
    """
    others = sums.copy()
    others[:, i] = 0
    top, highest, next_highest = _top_two(others)
    heat = (sums / np.maximum(needed, _TINY)[:, np.newaxis]).max(axis=0)
    heat[i] = np.inf
    pool = np.argsort(heat, kind="stable")[: min(_POOL, len(heat) - 1)]
    free = np.where(top[:, np.newaxis] == pool, next_highest[:, np.newaxis], highest[:, np.newaxis])
    rest = np.maximum(free, needed[:, np.newaxis])
    columns = np.stack([2 * pool, 2 * pool + 1], axis=1)
    near = taps[..., columns]  # (N, taps, pool, 2)
    with_a, with_b = (_beside(near, taps[..., 2 * i + side]) for side in (0, 1))
    # The column exchanged with b goes to a; its partner to b.
    new = np.maximum(with_a, with_b[..., ::-1])
    costs = (np.maximum(rest[..., np.newaxis], new) ** 2).sum(axis=0)
    best = int(costs.argmin())
    return int(columns.ravel()[best]), float(costs.ravel()[best])


def _beside(near: Floats, one: Floats) -> Floats:
    """Return each channel's largest one-signed sum of input `one` (N, taps) with each of `near`."""
    one = one[..., np.newaxis, np.newaxis]
    up = np.maximum(near, 0) + np.maximum(one, 0)
    down = np.maximum(-near, 0) + np.maximum(-one, 0)
    found: Floats = np.maximum(up, down).max(axis=1)
    return found


def _sums(taps: Floats) -> Floats:
    """Return each channel's largest one-signed sum of each pair, (N, K // 2)."""
    even, odd = taps[..., 0 : taps.shape[-1] // 2 * 2 : 2], taps[..., 1::2]
    up = np.maximum(even, 0) + np.maximum(odd, 0)
    down = np.maximum(-even, 0) + np.maximum(-odd, 0)
    found: Floats = np.maximum(up, down).max(axis=1)
    return found


def _cost(sums: Floats, needed: Floats) -> float:
    return float((np.maximum(sums.max(axis=1, initial=0), needed) ** 2).sum())
