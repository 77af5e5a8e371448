"""Smoothing: what a few channels of an activation have too much of goes into the weights.

One scale for a whole activation is as wide as its widest channel. Dividing channel j by s_j and multiplying row j
of every weight that reads it by s_j changes nothing in float,

    x W = (x / s) (s W)            s_j = max|x_j|^a / max|w_j|^(1 - a)

and lets all channels use the integers (SmoothQuant, Xiao et al. 2022). The division costs nothing where what makes
the activation takes it (the vector of a normalization, the product before it), else one Mul in front of the weights.
The strength a is chosen for each activation by the noise that is to be expected of its integers (`_noise`).

Weights read the quotient multiplied back. The division itself

- is folded, if only weights read the activation and a maker with a number per channel stands before it, with
  nothing but sums with constants and Relu in between: no cost;
- else is a Mul in front of the weights. Only behind what is computed in float (a normalization, a gate, GELU):
  elsewhere it would cut integers in two, and averages that attention or pooling make have no loud channels.

Before weights are rounded, the inputs that count most can be scaled up, and their weights with them (AWQ, Lin et al. 2023).

    x W = (x / s) (s W)            s_j = E[x_j^2]^(a / 2)

A row of a weight that is multiplied by more takes more of the steps of its block, so that what loud inputs multiply is rounded finer. The division goes into the normalization
before where that costs nothing. The strength a is chosen for each activation by what is lost of the products that read it.

It helps where weights are rounded to nearest. Second-order rounding, which makes up for the errors that count, gains nothing more by it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators import ChannelMoments, PatchMoments
from quantkit.calibration.requests import MomentsOf, Request
from quantkit.model.graph.channel_factors import Divisor, Divisors, rounded
from quantkit.model.graph.edit import Canvas, own_name, owner_of, producer_of
from quantkit.model.graph.mapping import lazy
from quantkit.model.ops.float_ops import CHANNEL_GAINS, LOUD_CHANNELS, MATRIX_PRODUCTS
from quantkit.model.ops.view import Node, View
from quantkit.numerics.blocks import BlockGrid, fit_blocks
from quantkit.numerics.decibels import decibels
from quantkit.numerics.grids import lossless_rows

_AWQ_STRENGTHS = tuple(n / 10 for n in range(11))
_AWQ_QUIETEST = 1e-4  # of the loudest input's power, at least: a silent one may speak later
_ROWS = 256  # of a weight that a strength is tried on


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """A constant that is scaled along an axis.

    Attributes:
        node: Who reads it.
        slot: As which input.
        axis: The axis of channels; -1 for a vector that is broadcast.
        transposed: It is read through a Transpose.
    """

    node: str
    slot: int
    axis: int = -1
    transposed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Smoothable:
    """An activation that products with constant weights read along its last axis.

    Attributes:
        tensor: The activation.
        weights: Constants to be multiplied, in graph order.
        folds: Constants to be divided; none where a Mul has to be inserted.
        stale: Tensors before the activation that are divided as well.
    """

    tensor: str
    weights: tuple[Fold, ...]
    folds: tuple[Fold, ...] = ()
    stale: tuple[str, ...] = ()


def smoothable(view: View) -> tuple[Smoothable, ...]:
    """Find the activations that may be smoothed, in graph order; linear in the number of nodes."""
    products: dict[str, list[tuple[Fold, int]]] = {}
    for node in view.nodes:
        found = _weight(node, view)
        if found is not None:
            products.setdefault(node.inputs[0], []).append(found)
    found_all = (_group(view, tensor, read) for tensor, read in products.items())
    return tuple(one for one in found_all if one is not None)


def smoothing_requests(found: tuple[Smoothable, ...]) -> tuple[Request, ...]:
    """Return what must be observed: ends and power of each channel."""
    return tuple(Request(tensor=one.tensor, statistic=MomentsOf(axis=-1)) for one in found)


def _weight(node: Node, view: View) -> tuple[Fold, int] | None:
    """Return a product's weight along the axis that is summed, and the length of that axis."""
    if node.domain or node.in_subgraph or node.op_type not in MATRIX_PRODUCTS:
        return None
    weight = view.weights.get(node.weights.get(1, ""))
    if weight is None or len(weight.shape) != 2 or not weight.finite or weight.exposed:
        return None
    # A shared weight would have to be stored twice.
    if len(weight.uses) != 1 or 0 in node.weights or node.attributes.get("transA"):
        return None
    transposed = node.transposes(1)
    rows_last = bool(node.attributes.get("transB")) != transposed
    axis = 1 if rows_last else 0
    return Fold(node=node.name, slot=1, axis=axis, transposed=transposed), weight.shape[axis]


def _group(view: View, tensor: str, read: list[tuple[Fold, int]]) -> Smoothable | None:
    maker = view.maker(tensor)
    if maker is None or maker.in_subgraph or len({length for _, length in read}) != 1:
        return None
    weights, channels = tuple(fold for fold, _ in read), read[0][1]
    if len(view.readers[tensor]) == len(weights) and tensor not in view.outputs:
        folded = _folded(view, tensor, channels)
        if folded is not None:
            return Smoothable(tensor=tensor, weights=weights, folds=folded[0], stale=folded[1])
    if maker.op_type in LOUD_CHANNELS or (
        maker.op_type == "Add" and _vector(view, maker, channels) is not None
    ):
        return Smoothable(tensor=tensor, weights=weights)
    return None


def _folded(
    view: View, tensor: str, channels: int
) -> tuple[tuple[Fold, ...], tuple[str, ...]] | None:
    """Walk back to a maker with a number per channel; None if there is none."""
    folds: list[Fold] = []
    stale: list[str] = []
    while (node := view.maker(tensor)) is not None and not node.domain and not node.in_subgraph:
        taken = tuple(_taken(view, node, channels))
        if taken:
            return (*folds, *taken), tuple(stale)
        slot = _vector(view, node, channels)
        if node.op_type == "Add" and slot is not None:
            folds.append(Fold(node=node.name, slot=slot))
            tensor = node.inputs[1 - slot]
        elif node.op_type == "Relu":
            tensor = node.inputs[0]
        else:
            return None
        if view.only_reader(tensor) is None:
            return None
        stale.append(tensor)
    return None


def _taken(view: View, node: Node, channels: int) -> Iterator[Fold]:
    """Return the constants of a maker that take a division of its output; none if it cannot."""
    if node.op_type == "Mul":
        slot = _vector(view, node, channels)
        if slot is not None:
            yield Fold(node=node.name, slot=slot)
    elif node.op_type in CHANNEL_GAINS:
        given = [slot for slot in (1, 2) if slot < len(node.inputs) and node.inputs[slot]]
        if all(_is_vector(view, node.inputs[slot], channels) for slot in given):
            yield from (Fold(node=node.name, slot=slot) for slot in given)
    elif node.op_type in MATRIX_PRODUCTS:
        yield from _columns(view, node, channels)


def _columns(view: View, node: Node, channels: int) -> Iterator[Fold]:
    """Return weight and bias of a product whose output is divided."""
    name = node.weights.get(1, "")
    constant = view.constants.get(name)
    # A weight that is shared or read through a Transpose is left alone.
    if constant is None or node.transposes(1) or len(view.readers[name]) != 1:
        return
    axis = 0 if node.attributes.get("transB") else 1
    if len(constant.shape) != 2 or constant.shape[axis] != channels:
        return
    bias = node.inputs[2] if len(node.inputs) > 2 else ""
    if bias and not _is_vector(view, bias, channels):
        return
    yield Fold(node=node.name, slot=1, axis=axis)
    if bias:
        yield Fold(node=node.name, slot=2)


def _vector(view: View, node: Node, channels: int) -> int | None:
    """Return which of two operands is a constant with one number per channel."""
    found = [i for i, name in enumerate(node.inputs[:2]) if _is_vector(view, name, channels)]
    return found[0] if len(found) == 1 else None


def _is_vector(view: View, name: str, channels: int) -> bool:
    constant = view.constants.get(name)
    if constant is None or name in view.producer or not constant.is_float:
        return False
    *outer, last = constant.shape or (0,)
    return last == channels and all(n == 1 for n in outer)


Floats = NDArray[np.float64]

_STRENGTHS = tuple(n / 20 for n in range(21))
_LEVELS = 255  # steps of an activation
_PEAK = 127  # largest weight
# A channel that was silent in the calibration may speak later: it counts as at least this share of the loudest.
_QUIETEST = 0.01
_MANY = 4096  # values of a channel, whose largest tells how far others reach
_TINY = float(np.finfo(np.float32).tiny)
_MIN_GAIN = 1.0  # dB below which a Mul more is not worth its time
_LARGE = 1 << 20  # values of a weight that is scaled while it is read


@dataclass(frozen=True, slots=True, kw_only=True)
class Smoothed:
    """An activation that was divided by `scale`.

    Attributes:
        tensor: The activation.
        made: The quotient; the same name where its maker took the division.
        scale: s, one per channel.
        strength: a.
        gain: By how many dB less noise is to be expected.
        before: Tensors between the maker that took the division and the activation, which are divided as well.
    """

    tensor: str
    made: str
    scale: Floats
    strength: float
    gain: float
    before: tuple[str, ...] = ()

    @property
    def divisors(self) -> Divisors:
        """Which tensors are now divided by what."""
        divided = Divisor(-1, self.scale.astype(np.float32))
        return Divisors(tensors=(*self.before, self.made), divisor=divided)

    def range(self, seen: ChannelMoments) -> tuple[float, float]:
        """Return the ends of the quotient, from those of each channel of the activation."""
        return _Channels.of(seen).ends(self.scale)

    def moments(self, seen: PatchMoments) -> PatchMoments:
        """Return the moments of the quotient: ``E[x x^T] / (s s^T)``."""
        return PatchMoments.of(
            seen.window,
            count=seen.count,
            total=seen.total / self.scale,
            matrix=seen.matrix / np.outer(self.scale, self.scale),
        )


def smooth(
    model: ir.Model,
    found: Sequence[Smoothable],
    seen: Mapping[str, ChannelMoments],
    strength: float | None = None,
) -> tuple[Smoothed, ...]:
    """Rewrite weights in place so that activations become even; return what was done.

    The outputs stay what they are but for the rounding of float32. Ranges of tensors between a maker and its
    activation (`Smoothable.stale`) no longer hold.

    Args:
        model: The float model.
        found: What `smoothable` found in it.
        seen: Moments of each of those activations, along its last axis; who is missing is left alone.
        strength: a, for all; None chooses for each, and leaves alone what would not gain.
    """
    writer = _Writer(Canvas(model), {own_name(node): node for node in model.graph})
    done = (writer.smooth(one, seen[one.tensor], strength) for one in found if one.tensor in seen)
    return tuple(one for one in done if one is not None)


def divide(model: ir.Model, found: Mapping[Smoothable, Floats]) -> None:
    """Divide activations by given factors, one per channel, and multiply who reads them, in place.

    Args:
        model: The float model.
        found: What `smoothable` found in it and is to be divided by what; only where the division is folded.
    """
    writer = _Writer(Canvas(model), {own_name(node): node for node in model.graph})
    for one, scale in found.items():
        writer.divide(one, scale)


@dataclass(frozen=True, slots=True)
class _Channels:
    """Ends and power of each channel; moments are summed exactly, which takes long to read."""

    low: Floats
    high: Floats
    power: Floats

    @classmethod
    def of(cls, seen: ChannelMoments) -> "_Channels":
        power = seen.variance + seen.mean**2
        return cls(seen.low.astype(np.float64), seen.high.astype(np.float64), power)

    @classmethod
    def expected(cls, seen: ChannelMoments) -> "_Channels":
        """Return the same with the ends that other samples may reach.

        The largest of few values is chance, and factors that follow it leave other samples no room in any channel: there, all
        channels are as many deviations wide as the widest.
        """
        found = cls.of(seen)
        if int(np.max(seen.count, initial=0)) >= _MANY:
            return found
        mean, deviation = seen.mean, np.maximum(np.sqrt(seen.variance), _TINY)
        low = mean - deviation * np.max((mean - found.low) / deviation)
        high = mean + deviation * np.max((found.high - mean) / deviation)
        return replace(found, low=np.maximum(low, found.low.min()), high=high)

    def ends(self, scale: Floats) -> tuple[float, float]:
        """Return the ends of the quotient; 0 is always between them."""
        return float(min((self.low / scale).min(), 0)), float(max((self.high / scale).max(), 0))


@dataclass(slots=True)
class _Writer:
    canvas: Canvas
    nodes: Mapping[str, ir.Node]

    def smooth(
        self, one: Smoothable, seen: ChannelMoments, strength: float | None
    ) -> Smoothed | None:
        weights = [
            np.moveaxis(self._constant(fold).const_value.numpy(), fold.axis, 0)  # type: ignore[union-attr]
            for fold in one.weights
        ]
        scale, chosen, gain = _balance(_Channels.expected(seen), weights, strength)
        if strength is None and gain < (0 if one.folds else _MIN_GAIN):
            return None
        self.divide(one, scale)
        made = one.tensor if one.folds else self._divided(one, scale)
        return Smoothed(
            tensor=one.tensor,
            made=made,
            scale=scale,
            strength=chosen,
            gain=gain,
            before=one.stale,
        )

    def divide(self, one: Smoothable, scale: Floats) -> None:
        """Multiply the weights, and divide what makes the activation where it takes that."""
        for fold in one.weights:
            self._multiply(fold, scale)
        for fold in one.folds:
            self._multiply(fold, 1 / scale)

    def _constant(self, fold: Fold) -> ir.Value:
        value = self.nodes[fold.node].inputs[fold.slot]
        assert value is not None  # noqa: S101 - it was found there
        if fold.transposed:
            value = value.producer().inputs[0]  # type: ignore[union-attr]
        assert value is not None  # noqa: S101 - a Transpose has an input
        return value

    def _multiply(self, fold: Fold, factor: Floats) -> None:
        """Scale a constant along an axis: in place, or a copy of it where others read it too."""
        value = self._constant(fold)
        tensor, node = value.const_value, self.nodes[fold.node]
        assert tensor is not None  # noqa: S101 - it is constant
        extents = tuple(int(n) for n in tensor.shape.numpy())
        shape = [1] * max(len(extents), 1)
        shape[fold.axis] = len(factor)
        wide = factor.reshape(shape)

        def scaled() -> NDArray[np.float32]:
            return np.asarray(tensor.numpy().astype(np.float64) * wide, np.float32)

        if tensor.size >= _LARGE:  # computed each time that it is read, and never kept
            made: ir.TensorProtocol = lazy(scaled, ir.DataType.FLOAT, extents, value.name)
        else:
            made = ir.Tensor(scaled(), name=value.name)
        if len(value.uses()) == 1:
            value.const_value = made
            value.shape = ir.Shape(made.shape.numpy())
            return
        name = f"{value.name}_smooth"
        node.replace_input_with(fold.slot, self.canvas.initializer(owner_of(node), made, name))

    def _divided(self, one: Smoothable, scale: Floats) -> str:
        """Put a Mul in front of the weights; who else reads the activation reads it as it was."""
        readers = [self.nodes[fold.node] for fold in one.weights]
        value = readers[0].inputs[0]
        assert value is not None  # noqa: S101 - a product has an input
        factor = self.canvas.constant(
            owner_of(readers[0]), (1 / scale).astype(np.float32), f"{one.tensor}_factor"
        )
        (made,) = self.canvas.node(
            "Mul", [value, factor], before=readers[0], outputs=[f"{one.tensor}_smooth"]
        )
        made.type, made.shape = value.type, value.shape
        for reader in readers:
            reader.replace_input_with(0, made)
        return own_name(made)


def _balance(
    seen: _Channels, weights: Sequence[NDArray[np.float32]], strength: float | None
) -> tuple[Floats, float, float]:
    """Return the scale, its strength, and by how many dB it lessens the noise."""
    sizes = [np.abs(w) for w in weights]
    channels = _heard(np.maximum(-seen.low, seen.high))
    rows = _heard(np.max([size.max(axis=1) for size in sizes], axis=0))
    moved = [~lossless_rows(w.T) for w in weights]
    plain = _noise(seen, sizes, np.ones_like(channels), moved)

    def tried() -> Iterator[tuple[float, float, Floats]]:
        for a in _STRENGTHS if strength is None else (strength,):
            scale = channels**a / rows ** (1 - a)
            # A common factor changes nothing.
            scale = rounded(scale / np.exp(np.log(scale).mean()))
            yield _noise(seen, sizes, scale), a, scale
            if not all(columns.all() for columns in moved):
                # Columns of few values stay exact if they are multiplied by powers of two that are not far apart.
                powers = np.exp2(np.rint(np.log2(scale)))
                factor = powers.astype(np.float32)[:, np.newaxis]
                still = [~lossless_rows((w * factor).T) for w in weights]
                yield _noise(seen, sizes, powers, still), a, powers

    noise, chosen, scale = min(tried(), key=lambda one: one[:2])
    return scale, chosen, decibels(plain / noise) if noise > 0 < plain else 0.0


def _heard(magnitudes: NDArray[np.floating]) -> Floats:
    """Return magnitudes, none of them close to nothing."""
    loudest = float(magnitudes.max(initial=0)) or 1.0
    return np.maximum(magnitudes.astype(np.float64), _QUIETEST * loudest)


def _noise(
    seen: _Channels,
    sizes: Sequence[NDArray[np.float32]],
    scale: Floats,
    moved: Sequence[NDArray[np.bool_]] | None = None,
) -> float:
    """Return the variance that rounding adds to the sum of all outputs, but for a factor of 1/12.

        dx^2 sum_jn (s_j w_jn)^2  +  sum_n dw_n^2 sum_j E[x_j^2] / s_j^2

    with dx the step of the quotient and dw_n that of column n of the scaled weight: both are rounded independently.
    `sizes` are the magnitudes of the weights, `moved` says which of their columns rounding changes; None: all.
    """
    low, high = seen.ends(scale)
    step = (high - low) / _LEVELS
    power = float((seen.power / scale**2).sum())
    factor = scale.astype(np.float32)[:, np.newaxis]
    total = 0.0
    for i, size in enumerate(sizes):
        scaled = size * factor
        steps = scaled.max(axis=0).astype(np.float64) / _PEAK
        steps = steps if moved is None else steps * moved[i]
        total += step**2 * float(np.vdot(scaled, scaled)) + float((steps**2).sum()) * power
    return total


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
    nodes = {own_name(node): node for node in model.graph}
    scales: dict[Smoothable, Floats] = {}
    for one in found:
        power = powers.get(one.tensor)
        own = [(fold, grids[fold.node]) for fold in one.weights if fold.node in grids]
        if power is None or not own or not one.folds:
            continue
        weights = [(_some_rows(nodes[fold.node], fold), grid) for fold, grid in own]
        scale = _best(
            weights, np.maximum(power, _AWQ_QUIETEST * float(power.max(initial=0)) or 1.0)
        )
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
    maker = producer_of(value)
    if fold.transposed and maker is not None:
        value = maker.inputs[0]
    assert value is not None  # noqa: S101 - it was found there
    assert value.const_value is not None  # noqa: S101 - it is constant
    rows = np.moveaxis(value.const_value.numpy(), fold.axis, -1)
    return np.asarray(rows[:: max(1, len(rows) // _ROWS)], np.float64)


def _best(weights: Sequence[tuple[NDArray[Any], BlockGrid]], power: Floats) -> Floats | None:
    """Return the scale with which products lose least; None if that is none."""
    found = []
    for a in _AWQ_STRENGTHS:
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
