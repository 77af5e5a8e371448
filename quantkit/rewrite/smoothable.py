"""Where an activation may be divided by a number per channel, and what takes the division.

Weights read the quotient multiplied back. The division itself

- is folded, if only weights read the activation and a maker with a number per channel stands before it, with
  nothing but sums with constants and Relu in between: no cost;
- else is a Mul in front of the weights. Only behind what is computed in float (a normalization, a gate, GELU):
  elsewhere it would cut integers in two, and averages that attention or pooling make have no loud channels.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from quantkit.observe.requests import MomentsOf, Request
from quantkit.ops.float_ops import MATRIX_PRODUCTS
from quantkit.ops.view import Node, View

__all__ = ["Fold", "Smoothable", "smoothable", "smoothing_requests"]

_MATRIX = 2
_NORMALIZATIONS = frozenset({"LayerNormalization", "RMSNormalization"})
_FLOAT_MAKERS = _NORMALIZATIONS | {
    "BiasGelu",
    "FastGelu",
    "Gelu",
    "Mul",
    "QuickGelu",
    "SimplifiedLayerNormalization",
    "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization",
}


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
    if weight is None or len(weight.shape) != _MATRIX or not weight.finite or weight.exposed:
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
    if maker.op_type in _FLOAT_MAKERS or (
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
    elif node.op_type in _NORMALIZATIONS:
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
    if len(constant.shape) != _MATRIX or constant.shape[axis] != channels:
        return
    bias = node.inputs[2] if len(node.inputs) > _MATRIX else ""
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
