"""Which products lose what they compute to the 8 bits of what they read or make, measured on samples.

A tensor has one scale; a channel that is far smaller than the largest is rounded away, and where weights make up for
that (features of a table that were never scaled), so is what a product makes of it:

    signal  sum_c |w_c|^2 var(x_c)          noise  sum_c |w_c|^2 E[(x_c - x'_c)^2]       c input channels, x' rounded
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, log10
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.graph.products import Product
from quantkit.numerics.weights import dequantize_weight, fit, quantize_weight
from quantkit.ops.float_ops import CLIPS, MOVES
from quantkit.ops.view import Node, View
from quantkit.plan import Mode, Plan
from quantkit.plan.model import ActivationPlan, Kept
from quantkit.runtime.taps import read_tensors

__all__ = ["lossy"]

Feeds = Sequence[Mapping[str, NDArray[Any]]]

_LITTLE = 20.0  # dB below which integers are given up, where the whole model has become noise


def lossy(
    model: ir.Model, view: View, plan: Plan, products: Sequence[Product], feeds: Feeds
) -> dict[str, Kept]:
    """Return the nodes that should rather compute in float, and why.

    Args:
        model: The float model that was planned; it is left as it is.
        view: The same, described.
        plan: What was decided.
        products: Its products.
        feeds: Samples.
    """
    static = [p for p in products if _is_static(p, plan)]
    if not static or not feeds:
        return {}
    seen = _observe_planned(model, plan, static, feeds)
    found: dict[str, Kept] = {}
    constants = {n: v for g in model.graphs() for n, v in g.initializers.items()}
    nodes = {node.name: node for node in view.nodes}
    for product in static:
        # Eight bits can be too few at three places, and each has a remedy of its own: of what the product reads, weighted
        # by how much each channel is multiplied by; of its weight; of what it makes. If its weight is fine it can stay
        # stored in 8 bits while it computes in float (second argument of `Kept`). If what it reads is the trouble, its
        # maker must hand on floats as well, or the loss has happened before. 20 dB is an error of a tenth.
        tensor = constants[product.weight].const_value
        assert tensor is not None  # noqa: S101 - it was planned as a weight
        array = tensor.numpy()
        read = seen[product.reads].sqnr(_power(product, array))
        fitted = fit(array, plan.weight[product.weight].spec)
        rounded = dequantize_weight(quantize_weight(array, fitted), fitted)
        stored = seen[product.reads].weight_sqnr(
            _power(product, array), _power(product, array - rounded)
        )
        name = _handed_on(nodes[product.node], view, plan)
        made = seen[name].sqnr() if name in seen else inf
        least = min(read, made, stored)
        if least < _LITTLE:
            why = f"in 8 bits {least:.0f} dB of what it computes are left"
            found[product.node] = Kept(why, None if stored >= _LITTLE else Mode.FLOAT)
        maker = _maker(product.reads, view)
        if read < _LITTLE and maker in plan.node:
            found.setdefault(
                maker, Kept(f"'{product.node}' needs more than 8 bits of what it makes")
            )
    return found


@dataclass(slots=True)
class _Seen:
    """Sums of a tensor, channel by channel."""

    axis: int
    decided: ActivationPlan
    count: int = 0
    sums: NDArray[np.float64] = field(default_factory=lambda: np.zeros((3, 1)))

    def add(self, array: NDArray[Any]) -> None:
        """Take in one sample."""
        x = np.moveaxis(array, self.axis, 0).reshape(array.shape[self.axis], -1).astype(np.float64)
        d = self.decided
        integers = np.clip(np.rint(x / d.scale) + d.zero_point, d.dtype.qmin, d.dtype.qmax)
        error = x - (integers - d.zero_point) * d.scale
        self.count += x.shape[1]
        self.sums = self.sums + np.stack([x.sum(1), (x**2).sum(1), (error**2).sum(1)])

    def sqnr(self, power: NDArray[np.float64] | None = None) -> float:
        """Return signal about its mean over noise in dB; `power` is the weight of each channel."""
        mean, second, noise = self.sums / max(1, self.count)
        weights = np.ones_like(mean) if power is None or len(power) != len(mean) else power
        signal = float(weights @ np.maximum(second - mean**2, 0))
        lost = float(weights @ noise)
        if power is None:  # of all channels together
            signal = float(second.mean() - mean.mean() ** 2)
            lost = float(noise.mean())
        if not signal > 0:  # it does not vary: nothing to lose
            return inf
        return 10 * log10(signal / lost) if lost > 0 else inf

    def weight_sqnr(self, power: NDArray[np.float64], error: NDArray[np.float64]) -> float:
        """Return the same for a weight whose channels have this power, and errors of that."""
        mean, second, _ = self.sums / max(1, self.count)
        if len(power) != len(mean):
            return inf
        signal, lost = float(power @ np.maximum(second - mean**2, 0)), float(error @ second)
        return 10 * log10(signal / lost) if signal > 0 < lost else inf


def _is_static(product: Product, plan: Plan) -> bool:
    decided = plan.node.get(product.node)
    return decided is not None and decided.mode is Mode.STATIC and product.reads in plan.activation


def _handed_on(node: Node, view: View, plan: Plan) -> str:
    """Return the quantized tensor that a product hands on; "" if it hands on floats."""
    name = node.outputs[0]
    while name not in plan.activation:
        reader = view.only_reader(name)
        if reader is None or view.nodes[reader].op_type not in CLIPS:
            return ""
        name = view.nodes[reader].outputs[0]
    return "" if plan.node[node.name].float_output else name


def _maker(tensor: str, view: View) -> str:
    """Return the node that computed a tensor, behind data movement, Relu and Clip; "" for an input."""
    node = view.maker(tensor)
    while node is not None and node.op_type in CLIPS | MOVES:
        node = view.maker(node.inputs[0])
    return "" if node is None else node.name


def _power(product: Product, weight: NDArray[Any]) -> NDArray[np.float64]:
    """Return the sum of squares of the weights of each input channel."""
    squares = np.square(weight, dtype=np.float64)
    if not product.window.kernel:
        return np.asarray(squares.sum(axis=product.layout.channel))
    groups = product.layout.group
    cut = squares.reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)
    return np.asarray(cut.sum(axis=(1, 3))).reshape(-1)


def _observe_planned(
    model: ir.Model, plan: Plan, products: Sequence[Product], feeds: Feeds
) -> dict[str, _Seen]:
    """Run the float model; return the sums of every planned tensor that a product may read or make."""
    images = {p.reads for p in products if p.window.kernel}
    planned = {n: _Seen(1 if n in images else -1, d) for n, d in plan.activation.items()}
    seen: dict[str, _Seen] = {}
    for found in read_tensors(model, planned, feeds):
        seen = {name: planned[name] for name in found}
        for name, array in found.items():
            if array.ndim > 1:
                seen[name].add(array)
    return seen
