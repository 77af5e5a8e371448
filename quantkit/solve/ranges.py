"""Ranges of activations by what they do to the products that read them, instead of by their own error.

The values that make a range wide are few, and those who read them often do not care: a channel that is multiplied by
little, a position that a Clip behind the product cuts off anyway. So a tensor is rounded with narrower and narrower ranges,
and what comes out of the products that read it is compared, behind their Relu or Clip and over many positions:

    mean over positions of  |f(W x + b) - f(W x' + b)|^2 / (|f(W x + b)|^2 + a tenth of its mean)      x' rounded

The error of a position counts by its own size: by plain sums a single image with huge values decides for all
(MobileNetV2: 20.7 dB at the output instead of 22.2). Between the tensor and the product may stand Add, Relu and Clip.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.graph.products import Layout, Product
from quantkit.observe.forks import forked_map
from quantkit.ops.float_ops import CLIPS, FIXED_RANGES, MOVES
from quantkit.ops.view import View
from quantkit.plan import Plan
from quantkit.plan.model import ActivationPlan
from quantkit.plan.ranges import clip_bounds
from quantkit.runtime.taps import read_tensors

__all__ = ["RATIOS", "narrowed_ranges", "reading_errors"]

# Of the range that has the least error of its own. The last is the range itself: of equals the widest is taken.
RATIOS = (0.35, 0.42, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
# By which the best ratio is widened again: other samples reach further than those that were looked at.
_CAUTION = 1.2
_LEAST_GAIN = 0.02  # of the error: less does not make a range narrower
_ROWS, _FEWEST_ROWS = 768, 192  # positions that are looked at, over all samples
_VALUES = 1 << 20  # of a product's patches, within these limits
_CHANNELS = 256  # of a product's output that are looked at
_READERS = 2  # products that are asked about a tensor, the nearest
_WIDEST = 8192  # inputs of a product that is asked
_HELD = 256 << 20  # bytes of patches that are in memory at once
_BITS = 8

Floats = NDArray[np.float32]
Feeds = Sequence[Mapping[str, NDArray[Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """A product that a tensor gets to.

    Attributes:
        product: The product.
        cut: Whether a Relu or Clip stands between them, so that errors where it gives 0 do not arrive.
        bounds: Between which the Relu or Clip behind the product cuts; None: there is none.
    """

    product: Product
    cut: bool
    bounds: tuple[float, float] | None


def narrowed_ranges(
    model: ir.Model,
    view: View,
    plan: Plan,
    products: Sequence[Product],
    feeds: Feeds,
    *,
    workers: int = 1,
) -> dict[str, tuple[float, float]]:
    """Return narrower ranges for the tensors whose readers lose less by that; of all others nothing.

    Args:
        model: The float model of the plan; it is left as it is.
        view: The same, described.
        plan: What was decided with the ranges so far.
        products: The model's products.
        feeds: Samples.
        workers: Processes.
    """
    asked = {
        tensor: found
        for tensor in plan.activation
        if _is_open(tensor, view, plan) and (found := _readings(tensor, view, products))
    }
    arrays = _constants(model, [r.product for found in asked.values() for r in found])
    ranges: dict[str, tuple[float, float]] = {}
    for some in _groups(asked):
        patches = _patches(model, some, feeds)

        def ratio(tensor: str, patches: Mapping[tuple[str, str], Floats] = patches) -> float:
            return _best_ratio(plan.activation[tensor], asked[tensor], patches, arrays)

        names = list(some)
        for name, share in zip(names, forked_map(ratio, names, workers), strict=True):
            if share < 1:
                decided = plan.activation[name]
                ranges[name] = (share * decided.low, share * decided.high)
    return ranges


def reading_errors(
    decided: ActivationPlan, values: Floats, read: Floats, made: Floats, reading: _Reading
) -> NDArray[np.float64]:
    """Return what each of `RATIOS` of a range does to what a product makes.

    Args:
        decided: The tensor with its numbers.
        values: Patches of the tensor, (groups, rows, K).
        read: Patches of what the product reads, the same unless an Add stands between.
        made: The product's weight as rows and its bias behind them, (groups, channels, K + 1).
        reading: The product.
    """
    weight, bias = made[..., :-1].swapaxes(-1, -2), made[..., -1][:, np.newaxis]
    whole = read @ weight + bias
    low, high = reading.bounds or (-np.inf, np.inf)
    expected = np.clip(whole, low, high)
    centred = expected - expected.mean(axis=1, keepdims=True)
    power = np.square(centred).sum(axis=(0, 2), dtype=np.float64)
    against = power + 0.1 * power.mean()
    ends = (decided.dtype.qmin - decided.zero_point, decided.dtype.qmax - decided.zero_point)
    found = []
    for ratio in RATIOS:
        step = np.float32(ratio * decided.scale)
        error = values - np.clip(np.rint(values / step), *ends) * step
        if reading.cut:
            error *= read != 0
        lost = expected - np.clip(whole - error @ weight, low, high)
        noise = np.square(lost).sum(axis=(0, 2), dtype=np.float64)
        found.append(float(np.mean(noise / against)) if against.all() else 0.0)
    return np.array(found)


def _best_ratio(
    decided: ActivationPlan,
    readings: Sequence[_Reading],
    patches: Mapping[tuple[str, str], Floats],
    arrays: Mapping[str, NDArray[Any]],
) -> float:
    """Return by how much a tensor's range is made narrower; 1: not at all."""
    errors = np.zeros(len(RATIOS))
    for reading in readings:
        product = reading.product
        values = patches.get((decided.tensor, product.node))
        read = patches.get((product.reads, product.node))
        if values is None or read is None or values.shape != read.shape or not values.size:
            continue
        with np.errstate(all="ignore"):  # what overflows is not finite, and is left alone
            errors += reading_errors(decided, values, read, _made(product, arrays), reading)
    if not np.isfinite(errors).all():
        return 1.0
    best = len(RATIOS) - 1 - int(np.argmin(errors[::-1]))
    if not errors[best] < (1 - _LEAST_GAIN) * errors[-1]:
        return 1.0
    return min(1.0, _CAUTION * RATIOS[best])


def _made(product: Product, arrays: Mapping[str, NDArray[Any]]) -> Floats:
    """Return some rows of a product's weight, each with its bias behind."""
    rows = product.layout.rows(arrays[product.weight]).astype(np.float32) * product.alpha
    bias: Floats = np.zeros(rows.shape[:2], np.float32)
    if product.bias in arrays:
        own = arrays[product.bias].reshape(-1) * np.float32(product.beta)
        bias = np.broadcast_to(own, rows.shape[0] * rows.shape[1]).reshape(rows.shape[:2])
    step = -(-rows.shape[1] // max(1, _CHANNELS // rows.shape[0]))
    whole = np.concatenate([rows, bias[..., np.newaxis]], axis=-1)[:, ::step]
    return np.ascontiguousarray(whole, np.float32)


def _is_open(tensor: str, view: View, plan: Plan) -> bool:
    """Say whether a tensor has 8 bits and a range of its own, that no formula gives."""
    decided, maker = plan.activation[tensor], view.maker(tensor)
    if decided.dtype.bits != _BITS or decided.shares or decided.converted is not None:
        return False
    if tensor in view.constants or tensor in view.inputs:
        return False
    return maker is not None and maker.op_type not in MOVES and maker.op_type not in FIXED_RANGES


def _readings(tensor: str, view: View, products: Sequence[Product]) -> tuple[_Reading, ...]:
    """Return the nearest products that a tensor gets to by Add, Relu and Clip alone."""
    by_node = {p.node: p for p in products}
    found: list[_Reading] = []
    waiting, known = deque([(tensor, False)]), {tensor}
    while waiting and len(found) < _READERS:
        name, cut = waiting.popleft()
        for index in dict.fromkeys(view.readers.get(name, ())):
            node = view.nodes[index]
            product = by_node.get(node.name)
            if product is not None and product.reads == name:
                if product.layout.inputs <= _WIDEST:
                    found.append(_Reading(product=product, cut=cut, bounds=_bounds(node, view)))
            elif node.op_type in CLIPS | {"Add"} and not node.domain and not node.in_subgraph:
                result = node.outputs[0]
                if result not in known:
                    known.add(result)
                    waiting.append((result, cut or node.op_type in CLIPS))
    return tuple(found[:_READERS])


def _bounds(node: Any, view: View) -> tuple[float, float] | None:
    index = view.only_reader(node.outputs[0])
    return None if index is None else clip_bounds(view.nodes[index], view.constants)


def _groups(
    asked: Mapping[str, Sequence[_Reading]],
) -> Iterator[dict[str, Sequence[_Reading]]]:
    """Cut tensors into groups whose patches fit into memory; most models have one."""
    group: dict[str, Sequence[_Reading]] = {}
    used = 0
    for tensor, readings in asked.items():
        layouts = [r.product.layout for r in readings]
        takes = sum(8 * _rows(layout) * layout.group * layout.inputs for layout in layouts)
        if group and used + takes > _HELD:
            yield group
            group, used = {}, 0
        group[tensor] = readings
        used += takes
    if group:
        yield group


def _rows(layout: Layout) -> int:
    """Return at how many positions a product is looked at: wide patches tell more."""
    return min(_ROWS, max(_FEWEST_ROWS, _VALUES // max(1, layout.group * layout.inputs)))


def _patches(
    model: ir.Model, asked: Mapping[str, Sequence[_Reading]], feeds: Feeds
) -> dict[tuple[str, str], Floats]:
    """Run the float model; return what products read of tensors at some positions, by tensor and node."""
    wanted = {
        (name, reading.product.node): reading.product
        for tensor, readings in asked.items()
        for reading in readings
        for name in (tensor, reading.product.reads)
    }
    found: dict[tuple[str, str], list[Floats]] = {key: [] for key in wanted}
    for seen in read_tensors(model, {tensor for tensor, _ in wanted}, feeds):
        for key, product in wanted.items():
            array = seen.get(key[0])
            axes = 2 + len(product.window.kernel) if product.window.kernel else None
            if array is None or not array.size or (axes is not None and array.ndim != axes):
                continue
            rows = -(-_rows(product.layout) // len(feeds))
            found[key].append(product.window.patches(np.asarray(array, np.float32), rows))
    return {
        key: np.concatenate(parts, axis=1)
        for key, parts in found.items()
        if parts and len({p.shape[2] for p in parts}) == 1
    }


def _constants(model: ir.Model, products: Sequence[Product]) -> dict[str, NDArray[Any]]:
    names = {name for p in products for name in (p.weight, p.bias) if name}
    return {
        name: value.const_value.numpy()
        for graph in model.graphs()
        for name, value in graph.initializers.items()
        if name in names and value.const_value is not None
    }
