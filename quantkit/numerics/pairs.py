"""Integers for pairs of weights that must not saturate together.

On x86 without VNNI two neighbouring products are added in a saturating int16 (see
`quantkit.numerics.pairs`). A pair (q0, q1) is safe iff positive parts and negative parts each
add up to at most L. With |q| <= B <= L that is a hexagon, since opposite signs can never exceed B:

    |q0| <= B,   |q1| <= B,   |q0 + q1| <= L

The set is convex, so the best pair of integers for a quadratic error lies next to the free optimum
or next to the best point of a violated edge, and a handful of candidates is enough.

Weights that cannot saturate AVX2's int16 pair sums.

On x86 without VNNI, onnxruntime multiplies uint8 activations a by int8 weights w with an
instruction that adds two neighbouring products into a *saturating* int16:

    clip16(a[2j] w[2j] + a[2j+1] w[2j+1])        2j, 2j+1 neighbours in K

With a in 0..255 it cannot saturate iff in each pair the positive parts add up to at most 128 and
so do the negative parts: 255 * 128 = 32640 < 32767. Such weights give the same integers on every
CPU.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

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


Array = NDArray[Any]
Floats = NDArray[np.float64]

_PEAK = 127
_NEGLIGIBLE = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Which integers a weight may have: |q| <= peak, and |q0 + q1| <= pair for neighbours.

    Invariant: ``1 <= peak <= pair``. Neighbours are free when ``pair >= 2 * peak``.
    """

    peak: int = _PEAK
    pair: int = PAIR_LIMIT

    def __post_init__(self) -> None:
        if not 1 <= self.peak <= self.pair:
            raise ValueError(
                f"A limit of {self.pair} for pairs needs 1 <= peak <= {self.pair}; "
                f"the peak is {self.peak}."
            )


PAIRED = Limits()
FREE = Limits(pair=2 * _PEAK)
_UNBOUNDED = Limits(peak=1 << 40, pair=1 << 41)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairForm:
    """A quadratic form of the errors (d0, d1) of a pair, in Cholesky form.

        first * d0^2 + second * (d1 + coupling * d0)^2

    Entries broadcast against the targets; `first` and `second` are > 0.
    """

    first: Array | float = 1.0
    second: Array | float = 1.0
    coupling: Array | float = 0.0

    def where(self, mask: NDArray[np.bool_]) -> "PairForm":
        """Return the forms of the pairs that `mask` marks, one after another."""
        first, second, coupling = (
            np.broadcast_to(entry, mask.shape)[mask]
            for entry in (self.first, self.second, self.coupling)
        )
        return PairForm(first=first, second=second, coupling=coupling)


def nearest_pairs(
    first: Floats, second: Floats, form: PairForm, limits: Limits
) -> tuple[Floats, Floats]:
    """Return integers (q0, q1) within `limits` that are nearest to the targets under `form`.

    Exact where `coupling` is 0; with a coupling, exact among q0 next to an optimum (of the free
    problem and of each edge of the hexagon), each with its best q1.

    Args:
        first: Targets t0 of the first of each pair.
        second: Targets t1 of the second; of the same shape.
        form: What an error costs; broadcasts against the targets.
        limits: Which integers are allowed.
    """
    # The allowed region is a hexagon: |q0|, |q1| <= peak cut by |q0 + q1| <= pair. Nearly all pairs round freely into
    # it, so these are done first, all at once; the hexagon is looked at for the few that are outside. A constrained
    # optimum lies on an edge, but integer points of the edge need not be next to the real optimum of one edge alone,
    # so both neighbours of the free target and of both edges' optima compete.
    low = np.floor(first)
    q0, q1 = _best([low, low + 1], first, second, form, _UNBOUNDED)
    # The free optimum, where it is allowed, is also the optimum within the limits.
    bad = (np.maximum(np.abs(q0), np.abs(q1)) > limits.peak) | (np.abs(q0 + q1) > limits.pair)
    if bad.any():
        some = form.where(bad)
        t0, t1 = first[bad], second[bad]
        near = np.floor([t0, *_edges(t0, t1, some, limits)])
        q0[bad], q1[bad] = _best([*near, *(near + 1)], t0, t1, some, limits)
    return q0, q1


def _best(
    candidates: Iterable[Floats], first: Floats, second: Floats, form: PairForm, limits: Limits
) -> tuple[Floats, Floats]:
    """Return the cheapest of the candidates for q0, each with its best q1."""
    q0, q1, least = first, second, np.full(first.shape, np.inf)
    for candidate in candidates:
        c0 = np.clip(candidate, -limits.peak, limits.peak)
        d0 = first - c0
        wanted = second + form.coupling * d0
        lowest = np.maximum(-limits.peak, -limits.pair - c0)
        c1 = np.clip(np.rint(wanted), lowest, np.minimum(limits.peak, limits.pair - c0))
        cost = form.first * d0**2 + form.second * (wanted - c1) ** 2
        better = cost < least
        q0, q1 = np.where(better, c0, q0), np.where(better, c1, q1)
        least = np.where(better, cost, least)
    return q0, q1


def _edges(first: Floats, second: Floats, form: PairForm, limits: Limits) -> list[Floats]:
    """Return q0 of the best real points of the edges q1 = +-peak and q0 + q1 = +-pair.

    On an edge the second error is ``gap + slope * d0``, so the form is least at
    ``d0 = -w1 slope gap / (w0 + w1 slope^2)``. Only the edge on the target's side can be violated.
    The two edges of a side meet where ``|q0| = pair - peak``.
    """
    corner = limits.pair - limits.peak
    found = []
    for value, bound, slope, ends in (
        (second, limits.peak, form.coupling, (-limits.peak, corner)),
        (first + second, limits.pair, form.coupling - np.float64(1), (corner, limits.peak)),
    ):
        side = np.copysign(1, value)
        gap = value - side * bound
        best = first + form.second * slope * gap / (form.first + form.second * slope**2)
        found.append(side * np.clip(side * best, *ends))
    return found


def round_pairs(
    scaled: Array, limits: Limits = PAIRED, weights: Array | float = 1.0
) -> NDArray[np.float64]:
    """Round (..., K) to the nearest integers within `limits`; neighbours 2j, 2j+1 of K are pairs.

    Minimises ``sum_k weights_k (scaled_k - q_k)^2`` exactly: only pairs that break the limit after
    plain rounding move. An odd K leaves the last one alone with a zero.

    Args:
        scaled: (..., K): weights divided by their scale.
        limits: Which integers are allowed.
        weights: What a squared error costs; broadcasts against `scaled`.
    """
    q = np.clip(np.rint(np.asarray(scaled, np.float64)), -limits.peak, limits.peak)
    even, odd = q[..., 0 : q.shape[-1] // 2 * 2 : 2], q[..., 1::2]
    at = np.nonzero(np.abs(even + odd) > limits.pair)
    first, second = (np.asarray(scaled[..., i::2][at], np.float64) for i in (0, 1))
    spread = np.broadcast_to(np.asarray(weights, np.float64), q.shape)
    least = _NEGLIGIBLE * float(spread.max(initial=0)) or 1.0  # a form needs weights > 0
    w0, w1 = (np.maximum(spread[..., i::2][at], least) for i in (0, 1))
    form = PairForm(first=w0, second=w1)
    even[at], odd[at] = nearest_pairs(first, second, form, limits)
    return q
