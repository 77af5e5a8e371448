"""The variants of static_weights.py: integers and scales of one weight, given the moments of what it multiplies."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pairing import pairing

from calibrators import PatchMoments
from quantkit.model.graph.products import Layout, Product
from quantkit.model.ops.view import View
from quantkit.numerics.dtypes import INT8
from quantkit.numerics.pairs import FREE, PAIRED, Limits, round_pairs
from quantkit.quantize.solve.weights import Rounding, peak_scale, solve_weight
from quantkit.spec import PerAxis, QuantSpec

__all__ = ["VARIANTS", "Layer", "Rounded", "is_reorderable"]

Array = NDArray[Any]

_SEVEN_BITS = Limits(peak=64, pair=128)
# A permutation of channels passes through them. Flatten and Reshape stand behind global pooling in these models.
_THROUGH = frozenset({"Clip", "Flatten", "GlobalAveragePool", "ReduceMean", "Relu", "Reshape"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A product, and what is known when its weight is rounded.

    Attributes:
        product: Which product it is.
        weight: Its float weight.
        moments: Of what it reads, on the calibration data.
        reorderable: Whether the order of its input channels is nobody else's business.
    """

    product: Product
    weight: Array
    moments: PatchMoments
    reorderable: bool

    @property
    def rows(self) -> NDArray[np.float64]:
        """The weight as (groups, channels / groups, K)."""
        return self.product.layout.rows(self.weight.astype(np.float64))

    @property
    def limits(self) -> Limits:
        """What keeps its sums from saturating: kernels of depthwise Conv do not add pairs in int16."""
        layout = self.product.layout
        return FREE if layout.group > 1 and layout.shape[1] == 1 else PAIRED


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounded:
    """A weight in integers.

    Attributes:
        integers: In the layout of the float weight.
        scale: Of each output channel.
        safe: Whether no activation makes a pair saturate.
    """

    integers: Array
    scale: Array
    safe: bool

    def dequantized(self, layout: Layout) -> Array:
        """Return the float weight that the integers stand for."""
        shape = [-1 if axis == layout.channel else 1 for axis in range(self.integers.ndim)]
        return self.integers.astype(np.float32) * self.scale.astype(np.float32).reshape(shape)


def is_reorderable(product: Product, view: View, products: Mapping[str, Product]) -> bool:
    """Say whether one dense product makes what this one reads, for nobody else.

    Then the maker's output channels can be put in any order. A depthwise Conv between them, or a Relu, comes along. A
    kernel of several taps is left out: pairs of all taps would have to be searched at once.
    """
    layout = product.layout
    if layout.group > 1 or layout.inputs != layout.shape[layout.summed[-1]]:
        return False
    value = product.reads
    while (node := view.maker(value)) is not None and view.only_reader(value) is not None:
        maker = products.get(node.name)
        if maker is not None and maker.layout.group == 1:
            return True
        if maker is None and node.op_type not in _THROUGH:
            return False
        value = node.inputs[0]
    return False


Variant = Callable[[Layer], Rounded]


def _rounded(layer: Layer, integers: Array, scale: Array) -> Rounded:
    rows = np.asarray(layer.product.layout.rows(integers), np.int64)
    pairs = rows[..., 0 : rows.shape[-1] // 2 * 2 : 2] + rows[..., 1::2]
    safe = bool(np.abs(pairs).max(initial=0) <= layer.limits.pair)
    return Rounded(integers=integers, scale=scale.reshape(-1), safe=safe)


def _at_peak(limits: Limits | None = None) -> Variant:
    """Round to nearest at the scale of the largest weight; cut what then exceeds the limits."""

    def solve(layer: Layer) -> Rounded:
        chosen = limits or layer.limits
        scale = peak_scale(layer.rows, chosen)
        q = round_pairs(layer.rows / scale[..., np.newaxis], chosen)
        return _rounded(layer, layer.product.layout.back(q, INT8), scale)

    return solve


def _solved(settings: Rounding, *, centred: bool = False, free: bool = False) -> Variant:
    """Do what quantkit does; `free`: without the limits for pairs."""

    def solve(layer: Layer) -> Rounded:
        layout = layer.product.layout
        spec = QuantSpec(
            dtype=INT8,
            granularity=PerAxis(layout.channel),
            symmetric=True,
            pair_axes=() if free or layer.limits is FREE else (layout.summed,),
        )
        found, _ = solve_weight(
            layer.weight, spec, layout, layer.moments, settings, centred=centred
        )
        return _rounded(layer, found.integers, found.qparams.scale)

    return solve


def _reordered(variant: Variant) -> Variant:
    """Solve in the best order of input channels, where it may be chosen; return the given order.

    That is how the product would run if its maker wrote its outputs in that order.
    """

    def solve(layer: Layer) -> Rounded:
        if not layer.reorderable:
            return variant(layer)
        order = pairing(layer.rows[0])
        axis = layer.product.layout.summed[-1]
        moved = replace(
            layer,
            weight=layer.weight.take(order, axis),
            moments=_in_order(layer.moments, order),
        )
        found = variant(moved)
        return replace(found, integers=found.integers.take(np.argsort(order), axis))

    return solve


def _in_order(moments: PatchMoments, order: NDArray[np.intp]) -> PatchMoments:
    return PatchMoments.of(
        moments.window,
        count=moments.count,
        total=moments.total[:, order],
        matrix=moments.matrix[:, order][:, :, order],
    )


_NEAREST = Rounding(second_order=False)
_CHOSEN = Rounding(ranges=True, second_order=False)
_SECOND = Rounding()
_ADAPTIVE = Rounding(adaptive=True)

VARIANTS: Mapping[str, Variant] = {
    "nearest, unconstrained": _at_peak(FREE),
    "pair-safe scale": _solved(_NEAREST),
    "7 bits": _at_peak(_SEVEN_BITS),
    "scale of the peak, pairs cut": _at_peak(),
    "chosen scale": _solved(_CHOSEN),
    "chosen scale, second order": _solved(Rounding(ranges=True)),
    "pair-safe scale, second order": _solved(_SECOND),
    "+ adaptive, scale refitted": _solved(_ADAPTIVE),
    "+ centred": _solved(_ADAPTIVE, centred=True),
    "+ reordered inputs": _reordered(_solved(_ADAPTIVE, centred=True)),
    "centred, unconstrained": _solved(_ADAPTIVE, centred=True, free=True),
}
