"""Weights whose scale is too fine for their bias.

A bias is int32 in the scale ``x_scale * w_scale`` of the sums that it is added to. A channel of weights close to zero
(BatchNormalization folds dead channels to that) has a scale so fine that its bias would not fit:

    w_scale >= |b| / (x_scale * 2^30)

Where that is broken the channel's scale is widened, and its weights rounded again.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.emit.weights import EmittedWeight
from quantkit.graph.edit import Canvas
from quantkit.graph.mapping import lazy
from quantkit.numerics.weights import fit, quantize_weight
from quantkit.plan.integers import SolvedWeight

__all__ = ["needed_scale", "widen_scales_for_bias"]

_ROOM = float(1 << 30)  # half of int32: the other half is for the products


def needed_scale(bias: NDArray[np.float32], input_scale: float) -> NDArray[np.float32]:
    """Return the least scale of each channel's weights with which its bias fits."""
    return np.asarray(np.abs(bias.astype(np.float64)) / (input_scale * _ROOM), np.float32)


def widen_scales_for_bias(
    canvas: Canvas,
    source: ir.Value,
    emitted: EmittedWeight,
    least: NDArray[np.float32],
    found: SolvedWeight | None,
) -> EmittedWeight:
    """Return the weight with scales of at least `least`; as it was if they are that already.

    Args:
        canvas: The model.
        source: The float weight.
        emitted: The weight as it is written so far.
        least: The least scale of each channel (`needed_scale`).
        found: The integers that were solved for; None: rounded to nearest.
    """
    scale = emitted.qparams.scale
    least = np.broadcast_to(least, scale.shape) if scale.ndim else least.max()
    wide = scale < least
    if not wide.any():
        return emitted
    tensor = source.const_value
    assert tensor is not None  # noqa: S101 - it is in the plan
    # Not below the scale by which nearest rounding is safe from saturation.
    safe = np.maximum(least, fit(tensor.numpy(), emitted.plan.spec).scale)
    qparams = replace(emitted.qparams, scale=np.where(wide, safe, scale).astype(np.float32))
    channels = emitted.broadcastable(wide)

    def integers() -> NDArray[Any]:
        q = quantize_weight(tensor.numpy(), qparams)
        if found is not None:
            q = np.where(channels, q, found.integers)
        return np.ascontiguousarray(q.swapaxes(-1, -2)) if emitted.plan.transposed else q

    dtype = ir.DataType[emitted.plan.spec.dtype.name.upper()]
    name = f"{emitted.tensor}_widened"
    stored = tuple(int(n) for n in emitted.values.shape.numpy())  # type: ignore[union-attr]
    values = canvas.initializer(emitted.graph, lazy(integers, dtype, stored, name), name)
    return replace(emitted, qparams=qparams, values=values)
