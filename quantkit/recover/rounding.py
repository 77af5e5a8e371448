"""Integers of one weight that keep its product's output, not the weight itself.

    minimise  E |(W - Wq) x|^2 = tr (W - Wq) H (W - Wq)^T      H = E[x x^T], observed

in three steps, each of which can be left out: the scale of each channel, second-order rounding, and coordinate
descent on the integers, after which the scale is fitted again. Where a bias takes the mean away, H is the
covariance instead.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators import PatchMoments
from quantkit.emit.solved import SolvedWeight
from quantkit.numerics.adaptive import improve
from quantkit.numerics.pairs import FREE, PAIRED, Limits, round_pairs
from quantkit.numerics.second_order import damped, damping_share, round_second_order
from quantkit.numerics.weight_scale import choose_scale, refit_scale, safe_scale
from quantkit.recover.layout import Layout
from quantkit.spec import PerAxis, QParams, QuantSpec

__all__ = ["Rounding", "solve_weight"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """What to do about a weight.

    Attributes:
        ranges: Choose each channel's scale by the error that it leaves; else no weight is clipped.
        second_order: Let later weights make up for the errors of earlier ones; else round to nearest.
        adaptive: Descend on the integers afterwards, and fit the scale again.
    """

    ranges: bool = False
    second_order: bool = True
    adaptive: bool = False


def solve_weight(
    array: NDArray[Any],
    spec: QuantSpec,
    layout: Layout,
    moments: PatchMoments | None,
    settings: Rounding,
    *,
    centred: bool,
) -> tuple[SolvedWeight, NDArray[np.float32]]:
    """Return the integers of a weight, and what they change the mean of each output channel by.

    `centred`: that change will be taken off the bias.
    """
    rows = layout.rows(array.astype(np.float64))
    limits = PAIRED if spec.pair_axes else FREE
    h = _moments(rows, moments, centred=centred)
    scale = _scale(rows, h, spec, limits, settings)
    if settings.second_order:
        q = round_second_order(rows, scale, h, limits)
    else:
        q = round_pairs(rows / scale[..., np.newaxis], limits)
    if settings.adaptive:
        q = improve(q, rows, scale, h, limits)
        if isinstance(spec.granularity, PerAxis):
            scale = refit_scale(q, rows, scale, h)
    shift = _shift(rows - q * scale[..., np.newaxis], moments)
    return _stored(q, scale, spec, layout), shift


def _moments(rows: Floats, moments: PatchMoments | None, *, centred: bool) -> Floats:
    """Return H; without data, that of independent inputs whose mean is as large as their deviation."""
    k = rows.shape[-1]
    if moments is not None and moments.count:
        seen = moments.covariance if centred else moments.second
        return damped(seen, damping_share(k, moments.count))
    h: Floats = np.broadcast_to(np.eye(k) + 1.0, (rows.shape[0], k, k))
    return h


def _scale(rows: Floats, h: Floats, spec: QuantSpec, limits: Limits, settings: Rounding) -> Floats:
    if not settings.ranges:
        scale = safe_scale(rows, limits)
    else:
        scale = choose_scale(rows, np.diagonal(h, axis1=-2, axis2=-1), limits)
    if isinstance(spec.granularity, PerAxis):
        return scale
    return np.full_like(scale, safe_scale(rows, limits).max())


def _shift(error: Floats, moments: PatchMoments | None) -> NDArray[np.float32]:
    """Return E[(W - Wq) x] of each output channel; zero without data."""
    if moments is None or not moments.count:
        return np.zeros(error.shape[0] * error.shape[1], np.float32)
    shift = np.einsum("gnk,gk->gn", error, moments.mean)
    return np.asarray(shift.reshape(-1), np.float32)


def _stored(q: Floats, scale: Floats, spec: QuantSpec, layout: Layout) -> SolvedWeight:
    zero = 0 if spec.dtype.signed else 1 << (spec.dtype.bits - 1)
    flat = scale.reshape(-1).astype(np.float32)
    per_channel = isinstance(spec.granularity, PerAxis)
    scales = flat if per_channel else flat[0].reshape(())
    return SolvedWeight(
        integers=layout.back(q + zero, spec.dtype),
        qparams=QParams(
            spec=spec,
            scale=scales,
            zero_point=np.full(scales.shape, zero, spec.dtype.storage),
        ),
    )
