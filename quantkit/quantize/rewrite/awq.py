"""Inputs that count most are scaled up before weights are rounded, and their weights with them (AWQ, Lin et al. 2023).

    x W = (x / s) (s W)            s_j = E[x_j^2]^(a / 2)

A row of a weight that is multiplied by more takes more of the steps of its block, so that what loud inputs multiply is rounded finer. The division goes into the normalization
before (`quantkit.quantize.rewrite.smooth` finds where that costs nothing). The strength a is chosen for each activation by what is lost of the products that read it.

It helps where weights are rounded to nearest. Second-order rounding, which makes up for the errors that count, gains nothing more by it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.model.graph.channel_factors import Divisor, Divisors, rounded
from quantkit.numerics.blocks import BlockGrid, fit_blocks
from quantkit.quantize.rewrite.smooth import Fold, Smoothable, divide

Floats = NDArray[np.float64]

_STRENGTHS = tuple(n / 10 for n in range(11))
_QUIETEST = 1e-4  # of the loudest input's power, at least: a silent one may speak later
_ROWS = 256  # of a weight that a strength is tried on


def scale_inputs(
    model: ir.Model,
    found: Sequence[Smoothable],
    powers: Mapping[str, Floats],
    grids: Mapping[str, BlockGrid],
) -> tuple[Divisors, ...]:
    """Scale the inputs of products, in place; return which tensors are divided by what now.

    Args:
        model: The float model.
        found: Activations whose division is folded.
        powers: E[x_j^2] of each of them, by tensor; who is missing is left alone.
        grids: How weights will be stored, by the node that reads them.
    """
    nodes = {node.name or "": node for node in model.graph}
    scales: dict[Smoothable, Floats] = {}
    for one in found:
        power = powers.get(one.tensor)
        own = [(fold, grids[fold.node]) for fold in one.weights if fold.node in grids]
        if power is None or not own or not one.folds:
            continue
        weights = [(_some_rows(nodes[fold.node], fold), grid) for fold, grid in own]
        scale = _best(weights, np.maximum(power, _QUIETEST * float(power.max(initial=0)) or 1.0))
        if scale is not None:
            scales[one] = scale
    divide(model, scales)
    return tuple(
        Divisors(tensors=(*one.stale, one.tensor), divisor=Divisor(-1, scale.astype(np.float32)))
        for one, scale in scales.items()
    )


def _some_rows(node: ir.Node, fold: Fold) -> NDArray[Any]:
    """Return some output channels of a weight as rows."""
    value = node.inputs[fold.slot]
    maker = None if value is None else value.producer()
    if fold.transposed and maker is not None:
        value = maker.inputs[0]
    assert value is not None  # noqa: S101 - it was found there
    assert value.const_value is not None  # noqa: S101 - it is constant
    rows = np.moveaxis(value.const_value.numpy(), fold.axis, -1)
    return np.asarray(rows[:: max(1, len(rows) // _ROWS)], np.float64)


def _best(weights: Sequence[tuple[NDArray[Any], BlockGrid]], power: Floats) -> Floats | None:
    """Return the scale with which products lose least; None if that is none."""
    found = []
    for a in _STRENGTHS:
        scale = power ** (a / 2)
        scale = rounded(scale / np.exp(np.log(scale).mean()))  # a common factor changes nothing
        lost = 0.0
        for rows, grid in weights:
            scaled = rows * scale
            error = scaled - fit_blocks(scaled, grid, method="minmax").dequantized()
            lost += float((np.square(error) * (power / scale**2)).sum())
        found.append((lost, a, scale))
    least, strength, scale = min(found, key=lambda one: one[:2])
    return scale if strength and least < found[0][0] else None
