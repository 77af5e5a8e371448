"""Cross-layer equalization: channels of one tensor brought to one magnitude.

A tensor has one scale for all its channels; a channel that is a hundred times smaller than the largest keeps
one or two bits. But a channel may be multiplied by any factor where it is made if it is divided by it where it
is read:

    y_i = (w_i x + b_i) / s_i        z = sum_i (v_i s_i) y_i

Relu, pooling, Add, Max and multiplying by a constant let the factor through; tensors that an Add ties together share
their factors. Weights have a
scale for each output channel, so the maker pays nothing. A dense reader pays with columns of unequal size, so the
factor is the geometric mean of both needs, as in SmoothQuant; a depthwise one has a scale for each channel that it reads
and pays nothing either:

    s_i = sqrt(a_i / max a),      a_i the observed magnitude
    s_i = a_i / max a             where all readers are depthwise

A Clip to [0, c] stays where it is: a channel that is multiplied by 1 / s_i is then clipped at s_i c instead of c,
which no calibration sample came near: a_i, observed behind the Clip, has a margin of `_MARGIN`. Where a channel was
seen to reach c, nothing is known of what lies beyond, and the group is left alone. Where a reader's weights have so few
values that their integers are exact, factors are powers of two, which keep that.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.calibration.requests import ExtremesOf, Request
from quantkit.model.graph.channel_factors import Divisor, Divisors, rounded
from quantkit.model.graph.products import Product
from quantkit.model.ops.float_ops import CLIPS, JOINS_FACTORS, KEEPS_FACTORS
from quantkit.model.ops.view import Node, View, clip_bounds
from quantkit.numerics.grids import lossless_rows
from quantkit.quantize.groups import Groups

_MARGIN = 1.25  # of what a clipped channel was seen to reach
_SMALLEST = 1 / 8  # factor: a channel that is hardly ever on is not blown up without end
_CHANNELS = 1  # axis of activations

_SPATIAL = 3  # axes of channels, height and width


@dataclass(slots=True)
class Group:
    """Tensors whose channels must have the same factors, who makes them and who reads them.

    `tensors` are those that may be quantized, `before` those that a Relu or Clip cuts off first.
    """

    tensors: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    makers: list[Product] = field(default_factory=list)
    readers: list[Product] = field(default_factory=list)
    bound: float = inf


def _is_depthwise(product: Product) -> bool:
    return product.layout.group > 1 and product.layout.shape[1] == 1


def groups_of(view: View, products: Iterable[Product]) -> list[Group]:
    """Find the groups in which every maker and every reader can take factors."""
    return _Grouping(view, products).found()


class _Grouping:
    """Union-find over tensors; one pass over the nodes."""

    def __init__(self, view: View, products: Iterable[Product]) -> None:
        self.view = view
        self.products = {p.node: p for p in products if not p.repeated}
        self.groups = Groups()
        self.unscalable: set[str] = set()
        self.clipped: dict[str, float] = {}
        self.added: set[str] = set()
        self.before: set[str] = set()

    def found(self) -> list[Group]:
        for node in self.view.nodes:
            self._join_channels(node)
        groups: dict[str, Group] = {}
        for tensor in self.groups:
            group = groups.setdefault(self.groups.root(tensor), Group())
            (group.before if tensor in self.before else group.tensors).append(tensor)
        # Three reasons against a group, all found after joining, since a group may grow until the last node: a tensor
        # in it cannot be scaled; one is an output of the model, whose values users see; it holds a Clip and an Add:
        # the magnitude of a sum says nothing about how near the clipped operand came to its bound. Without a maker or
        # without a reader there is nobody to take the factors.
        bad = {
            self.groups.root(t) for t in self.unscalable | (self.view.outputs & set(self.groups))
        }
        bad |= {self.groups.root(t) for t in self.clipped} & {
            self.groups.root(t) for t in self.added
        }
        for node in self.view.nodes:
            product = self.products.get(node.name)
            if product is None:
                continue
            groups[self.groups.root(node.outputs[0])].makers.append(product)
            if product.reads in self.groups:
                groups[self.groups.root(product.reads)].readers.append(product)
        for tensor, bound in self.clipped.items():
            group = groups[self.groups.root(tensor)]
            group.bound = min(group.bound, bound)
        return [g for r, g in groups.items() if r not in bad and g.makers and g.readers]

    def _join_channels(self, node: Node) -> None:
        """Join the tensors whose channels a node makes share a factor; mark those that it lets none through as unscalable."""
        # Positive factors pass through what is homogeneous of degree one per channel: pooling, Relu, Add of two
        # tensors with the same factors, and a Clip from 0, whose upper bound then must not matter (module's
        # docstring). They pass through nothing else: Sigmoid and Softmax are not linear, Concat moves channels. One
        # operand that is not a known tensor (a constant of an Add, an input of the graph) has no factor of its own,
        # so the sum has none; Add(x, x) is not looked into. Everything that such a node reads is unscalable, and with
        # it the whole group: a group is scaled as one or not at all.
        product = self.products.get(node.name)
        if product is not None:
            self._take_product(node, product)
            return
        read = self._passed(node)
        if not read:
            self.unscalable.update(v for v in node.inputs if v in self.groups)
            return
        # A second output, the indices of a MaxPool, is the same whatever a channel is multiplied by.
        result, bounds = node.outputs[0], clip_bounds(node, self.view.constants)
        for value in read:
            self.groups.join(value, result)
        if bounds is not None:
            self.before.update(read)
        if bounds is not None and isfinite(bounds[1]):
            self.clipped[result] = bounds[1]
        if node.op_type in JOINS_FACTORS:
            self.added.add(result)

    def _passed(self, node: Node) -> Sequence[str]:
        """Return the inputs whose factors come out of a node as they are; none if it lets none through."""
        if node.op_type == "Mul" and (scaled := self._scaled(node)):
            read: Sequence[str] = (scaled,)
        elif self._keeps_factors(node):
            read = (
                node.inputs if node.op_type in JOINS_FACTORS else node.inputs[:1]
            )  # others are bounds
        else:
            return ()
        whole = len(set(read)) == len(read) and all(v in self.groups for v in read)
        return read if whole else ()

    def _keeps_factors(self, node: Node) -> bool:
        if node.domain or node.op_type not in KEEPS_FACTORS:
            return False
        bounds = clip_bounds(node, self.view.constants)
        return node.op_type not in CLIPS or (bounds is not None and bounds[0] == 0)

    def _scaled(self, node: Node) -> str:
        """Return what a node multiplies by a constant, which leaves factors as they are; "" if it does something else."""
        constants = [self.view.constants.get(name) for name in node.inputs]
        values = [v for v, c in zip(node.inputs, constants, strict=True) if c is None]
        shapes = [c.shape for c in constants if c is not None]
        # A constant of more axes than there are would move the axis of channels.
        whole = all(len(shape) <= _SPATIAL or set(shape[:-_SPATIAL]) == {1} for shape in shapes)
        return values[0] if len(values) == 1 and shapes and whole else ""

    def _take_product(self, node: Node, product: Product) -> None:
        for slot, value in enumerate(node.inputs):
            if slot and value in self.groups:
                self.unscalable.add(value)
        own = self._owns_constants(node, product)
        if product.reads in self.groups and not (own and _takes_factors(product)):
            self.unscalable.add(product.reads)
        self.groups.add(node.outputs[0])
        if not own or node.op_type != "Conv":
            self.unscalable.add(node.outputs[0])

    def _owns_constants(self, node: Node, product: Product) -> bool:
        """Say whether weight and bias are constants that nobody else reads: what is shared cannot be scaled."""
        view = self.view
        for name in filter(None, (product.weight, product.bias)):
            reader = view.only_reader(name)
            if name not in view.constants or name in view.producer or reader is None:
                return False
            if view.nodes[reader] is not node:
                return False
        return True


def _takes_factors(product: Product) -> bool:
    """Say whether each input channel of a product has weights of its own."""
    return bool(product.window.kernel) and (product.layout.group == 1 or _is_depthwise(product))


def extreme_requests(groups: Iterable[Group]) -> tuple[Request, ...]:
    """Ask for the extremes of each channel of all tensors of the groups."""
    return tuple(
        Request(tensor=tensor, statistic=ExtremesOf(axis=_CHANNELS))
        for group in groups
        for tensor in group.tensors
    )


def equalize(
    model: ir.Model, groups: Iterable[Group], largest: Mapping[str, NDArray[Any]]
) -> tuple[Divisors, ...]:
    """Rewrite weights and biases in place; return which tensors are now divided by what, one entry per group.

    `largest`: the magnitude of each channel, by tensor.

    Args:
        model: The float model, whose weights and biases are rewritten.
        groups: As `groups_of` found them.
        largest: The observed magnitude of each channel, by tensor.
    """
    values = {name: v for graph in model.graphs() for name, v in graph.initializers.items()}
    done = []
    for group in groups:
        # Factors are those of the largest magnitude of each channel over all tensors of the group, as they share
        # them. A tensor that was not observed (its range was not asked for, or it is clipped off first) adds nothing;
        # two of different widths were joined by a broadcast, where channel i of one is not channel i of the other.
        # Factors of 1 throughout change nothing: the model is then not rewritten, and its file stays byte for byte
        # what it was.
        seen = [largest[t] for t in group.tensors if t in largest]
        if not seen or len({len(a) for a in seen}) != 1:
            continue
        factors = _factors(np.max(seen, axis=0), group)
        if not (np.isfinite(factors).all() and (factors < 1).any()):
            continue
        factors = _keeping_grids(factors, [(p, values[p.weight]) for p in group.readers])
        for product in group.makers:
            _scale(values[product.weight], 1 / factors, axis=0)
            if product.bias:
                _scale(values[product.bias], 1 / factors, axis=0)
        for product in group.readers:
            _scale_inputs(values[product.weight], factors, product)
        divided = Divisor(_CHANNELS, factors.astype(np.float32))
        done.append(Divisors(tensors=(*group.before, *group.tensors), divisor=divided))
    return tuple(done)


def _factors(magnitude: NDArray[Any], group: Group) -> NDArray[np.float64]:
    a = np.asarray(magnitude, np.float64)
    peak = a.max(initial=0)
    if not 0 < peak < group.bound:
        return np.ones_like(a)
    reach = a * _MARGIN if isfinite(group.bound) else a
    strength = 1.0 if all(map(_is_depthwise, group.readers)) else 0.5
    return rounded(np.clip((reach / peak) ** strength, _SMALLEST, 1.0))


def _keeping_grids(
    factors: NDArray[np.float64], readers: Iterable[tuple[Product, ir.Value]]
) -> NDArray[np.float64]:
    """Return powers of two near the factors, where weights of few values stay as exact as they are by that; else the factors."""
    # A ternary weight times 1, 1/2, 1/4 or 1/8 is a multiple of an eighth of its step, which 8 bits hold.
    powers = np.exp2(np.rint(np.log2(factors)))
    exact = [(p, value) for p, value in readers if not _is_depthwise(p) and _is_lossless(p, value)]
    kept = (_is_lossless(p, value, powers) for p, value in exact)
    return powers if exact and all(kept) else factors


def _is_lossless(
    product: Product, value: ir.Value, factors: NDArray[np.float64] | None = None
) -> bool:
    """Say whether 8 bits hold a dense product's weights exactly, its inputs multiplied by factors."""
    tensor = value.const_value
    assert tensor is not None  # noqa: S101 - weights are constant
    array = tensor.numpy()
    if factors is not None:
        array = array * factors.reshape(-1, *[1] * (array.ndim - 2)).astype(np.float32)
    rows = product.layout.rows(array)
    return bool(lossless_rows(rows.reshape(-1, rows.shape[-1])).all())


def _scale_inputs(value: ir.Value, factors: NDArray[np.float64], product: Product) -> None:
    """Scale what a product multiplies each of its input channels by."""
    if not _is_depthwise(product):
        _scale(value, factors, axis=1)
        return
    # Each input channel may have several outputs of its own, one after another.
    multiplier = product.layout.shape[0] // product.layout.group
    _scale(value, np.repeat(factors, multiplier), axis=0)


def _scale(value: ir.Value, factors: NDArray[np.float64], axis: int) -> None:
    tensor = value.const_value
    assert tensor is not None  # noqa: S101 - weights are constant
    array = tensor.numpy()
    shape = [-1 if i == axis else 1 for i in range(array.ndim)]
    value.const_value = ir.Tensor(
        (array * factors.reshape(shape)).astype(np.float32), name=value.name
    )
