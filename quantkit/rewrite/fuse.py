"""Sequences of nodes that are one operator: Gelu, LayerNormalization, LpNormalization, SpaceToDepth.

onnxruntime finds them itself when it loads a model for a CPU; an accelerator that has the operator needs it in the file. A sequence
is fused where nobody else reads what is inside. Passes as in `quantkit.rewrite.simplify`: in place, linear, outputs keep
their names; asked for by name only. The last axis is known by its number where shapes were inferred (`graph.shapes`).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod, sqrt

import numpy as np
import onnx_ir as ir

from quantkit.graph.edit import Names, constant, discard, is_op, nodes_of, sole_reader, succeed
from quantkit.graph.opset import opset_of
from quantkit.graph.shapes import dims, integers, static

__all__ = ["gelu", "layer_normalization", "lp_normalization", "space_to_depth"]

_MICROSOFT = "com.microsoft"
_HAS_LAYER_NORMALIZATION = 17
_CLOSE = 1e-4  # constants are written with four digits and more
_EPSILON = 1e-3
_NOTHING = 1e-10  # a bound that only keeps from dividing by 0
_IMAGE = 4  # axes
_MOST = 1 << 22  # values whose order is looked at
_LONGEST = 8  # nodes that move blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class _Match:
    """A sequence, the last node last, and the operator that it is."""

    nodes: tuple[ir.Node, ...]
    op_type: str
    inputs: tuple[ir.Value, ...]
    attributes: Sequence[ir.Attr] = field(default=())
    domain: str = ""


def gelu(model: ir.Model) -> int:
    """Fuse ``x * 0.5 * (1 + Erf(x / sqrt(2)))``, multiplied in any order; return how many there were."""
    return _fuse(model, "Erf", _gelu)


def layer_normalization(model: ir.Model) -> int:
    """Fuse ``(x - mean) / sqrt(variance + e) * scale + bias`` over the last axis; return how many there were."""
    if opset_of(model) < _HAS_LAYER_NORMALIZATION:
        return 0
    return _fuse(model, "Sqrt", _layer_normalization)


def lp_normalization(model: ir.Model) -> int:
    """Fuse ``x / max(|x|, e)`` over the last axis; return how many there were."""
    return _fuse(model, "ReduceL2", _lp_normalization)


def space_to_depth(model: ir.Model) -> int:
    """Fuse Reshape and Transpose that make the places in a block channels; return how many there were."""
    return _fuse(model, "Reshape", _space_to_depth)


def _fuse(model: ir.Model, op_type: str, match: Callable[[ir.Node], _Match | None]) -> int:
    names = Names(node.name for node in nodes_of(model) if node.name)
    count = 0
    for node in nodes_of(model):
        found = match(node) if is_op(node, op_type) and node.graph is not None else None
        if found is None or not _is_closed(found.nodes):
            continue
        last = found.nodes[-1]
        fused = ir.Node(
            found.domain,
            found.op_type,
            found.inputs,
            found.attributes,
            name=names.fresh(f"{found.op_type}_{last.name or count}"),
        )
        assert last.graph is not None  # noqa: S101 - it was found there
        last.graph.insert_before(last, fused)
        succeed(last.outputs[0], fused.outputs[0])
        for gone in reversed(found.nodes):
            discard(gone)
        if found.domain:
            model.opset_imports.setdefault(found.domain, 1)
        count += 1
    return count


def _space_to_depth(first: ir.Node) -> _Match | None:
    """Follow nodes that move values, and compare the order of values with that which the operator makes."""
    source, chain = first.inputs[0], [first]
    before = static(source)
    if source is None or before is None or len(before) != _IMAGE or prod(before) > _MOST:
        return None
    n, c, h, w = before
    order = np.arange(prod(before)).reshape(before)
    while len(chain) <= _LONGEST:
        after, node = static(chain[-1].outputs[0]), chain[-1]
        if after is None:
            return None
        if is_op(node, "Reshape"):
            order = order.reshape(after)
        else:
            perm = node.attributes.get("perm")
            order = order.transpose(None if perm is None else tuple(perm.as_ints()))
        block = h // after[2] if len(after) == _IMAGE and after[2] else 1
        if block > 1 and after == (n, c * block**2, h // block, w // block):
            split = np.arange(order.size).reshape(n, c, h // block, block, w // block, block)
            if np.array_equal(order, split.transpose(0, 3, 5, 1, 2, 4).reshape(after)):
                size = ir.AttrInt64("blocksize", block)
                return _Match(
                    nodes=tuple(chain), op_type="SpaceToDepth", inputs=(source,), attributes=(size,)
                )
        following = sole_reader(node.outputs[0])
        if following is None or not is_op(following, "Reshape", "Transpose"):
            return None
        chain.append(following)
    return None


def _is_closed(nodes: Iterable[ir.Node]) -> bool:
    """Say whether nodes of one graph make nothing for others but what the last one makes."""
    *inner, last = nodes
    members = {*inner, last}
    return all(
        node.graph is last.graph
        and all(
            not value.is_graph_output() and all(use.node in members for use in value.uses())
            for value in node.outputs
        )
        for node in inner
    )


def _gelu(erf: ir.Node) -> _Match | None:
    scaled = _maker(erf.inputs[0], "Div", "Mul")
    added = _reader(erf, "Add")
    if scaled is None or added is None or not _holds(added, 1.0):
        return None
    if is_op(scaled, "Div"):
        x = scaled.inputs[0] if _is(scaled.inputs[1], sqrt(2)) else None
    else:
        x = _other(scaled, 1 / sqrt(2))
    first = _reader(added, "Mul")
    if x is None or first is None:
        return None
    beside = next((v for v in first.inputs if v is not added.outputs[0]), None)
    half = _maker(beside, "Mul")
    if half is not None and _other(half, 0.5) is x:
        nodes = (scaled, erf, added, half, first)
    else:
        second = _reader(first, "Mul")
        rest = None if second is None else [v for v in second.inputs if v is not first.outputs[0]]
        if second is None or rest is None or len(rest) != 1:
            return None
        pair = (beside, rest[0])
        if not any(one is x and _is(other, 0.5) for one, other in (pair, pair[::-1])):
            return None
        nodes = (scaled, erf, added, first, second)
    return _Match(nodes=nodes, op_type="Gelu", inputs=(x,), domain=_MICROSOFT)


def _layer_normalization(root: ir.Node) -> _Match | None:
    divided = _reader(root, "Div")
    scaled = None if divided is None else _reader(divided, "Mul")
    shifted = None if scaled is None else _reader(scaled, "Add")
    if divided is None or scaled is None or shifted is None:
        return None
    scale, bias = _vector(scaled, divided), _vector(shifted, scaled)
    if scale is None or bias is None or dims(scale) != dims(bias):
        return None
    found = _deviation(root, divided)
    if found is None:
        return None
    x, epsilon, nodes = found
    return _Match(
        nodes=(*nodes, root, divided, scaled, shifted),
        op_type="LayerNormalization",
        inputs=(x, scale, bias),
        attributes=(ir.AttrInt64("axis", -1), ir.AttrFloat32("epsilon", epsilon)),
    )


def _deviation(
    root: ir.Node, divided: ir.Node
) -> tuple[ir.Value, float, tuple[ir.Node, ...]] | None:
    """Return what ``(x - mean) / sqrt(variance + e)`` is of: x, e, and the nodes before the root."""
    added, above = _maker(root.inputs[0], "Add"), _maker(divided.inputs[0], "Sub")
    if added is None or above is None or divided.inputs[1] is not root.outputs[0]:
        return None
    squares = next((n for v in added.inputs if (n := _maker(v, "ReduceMean"))), None)
    epsilon = next((e for v in added.inputs if (e := _number(v)) is not None), None)
    squared = None if squares is None else _maker(squares.inputs[0], "Pow", "Mul")
    if squares is None or squared is None or epsilon is None or not 0 < epsilon <= _EPSILON:
        return None
    centred = _maker(squared.inputs[0], "Sub")
    is_square = (
        _is(squared.inputs[1], 2.0)
        if is_op(squared, "Pow")
        else squared.inputs[1] is squared.inputs[0]
    )
    if centred is None or not is_square or tuple(above.inputs) != tuple(centred.inputs):
        return None
    x, mean = centred.inputs[0], _maker(centred.inputs[1], "ReduceMean")
    if x is None or mean is None or mean.inputs[0] is not x:
        return None
    if not (_over_last(mean) and _over_last(squares)):
        return None
    return x, epsilon, tuple(dict.fromkeys((mean, centred, above, squared, squares, added)))


def _lp_normalization(norm: ir.Node) -> _Match | None:
    x, clipped = norm.inputs[0], _reader(norm, "Clip")
    if x is None or clipped is None or not _over_last(norm):
        return None
    bounds = [v for v in clipped.inputs[1:] if v is not None]
    low = _number(bounds[0]) if len(bounds) == 1 else None
    if "min" in clipped.attributes and "max" not in clipped.attributes and not bounds:
        low = clipped.attributes["min"].as_float()
    widened = _reader(clipped, "Expand")
    nodes = (norm, clipped) if widened is None else (norm, clipped, widened)
    divided = _reader(nodes[-1], "Div")
    if divided is None or low is None or not 0 < low <= _NOTHING:
        return None
    if divided.inputs[0] is not x or divided.inputs[1] is not nodes[-1].outputs[0]:
        return None
    return _Match(
        nodes=(*nodes, divided),
        op_type="LpNormalization",
        inputs=(x,),
        attributes=(ir.AttrInt64("axis", -1), ir.AttrInt64("p", 2)),
    )


def _maker(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """Return the node that makes a value, if it is one of these operators."""
    node = None if value is None else value.producer()
    return node if node is not None and is_op(node, *op_types) else None


def _reader(node: ir.Node, op_type: str) -> ir.Node | None:
    """Return the one node that reads what a node makes, if it is this operator."""
    readers = {use.node for use in node.outputs[0].uses()}
    found = next(iter(readers)) if len(readers) == 1 else None
    return found if found is not None and is_op(found, op_type) else None


def _number(value: ir.Value | None) -> float | None:
    """Return a constant that is one number and adds no axis to what it is computed with."""
    tensor = constant(value)
    if tensor is None or tensor.size != 1 or len(tensor.shape) > 1:
        return None
    return float(np.asarray(tensor.numpy(), np.float64).reshape(()))


def _is(value: ir.Value | None, number: float) -> bool:
    found = _number(value)
    return found is not None and abs(found - number) <= _CLOSE * number


def _holds(node: ir.Node, number: float) -> bool:
    return _other(node, number) is not None


def _other(node: ir.Node, number: float) -> ir.Value | None:
    """Return what a number is computed with in a node of two inputs; None if it is not there."""
    first, second = node.inputs
    return first if _is(second, number) else second if _is(first, number) else None


def _vector(node: ir.Node, before: ir.Node) -> ir.Value | None:
    """Return the constant with one axis that a node combines with what was made before it."""
    found = next((v for v in node.inputs if v is not before.outputs[0]), None)
    tensor = constant(found)
    return found if tensor is not None and len(tensor.shape) == 1 and tensor.size > 1 else None


def _over_last(node: ir.Node) -> bool:
    """Say whether a node reduces the last axis alone, and keeps it."""
    axes = integers(node, 1, "axes")
    kept = node.attributes.get("keepdims")
    if axes is None or len(axes) != 1 or (kept is not None and not kept.as_int()):
        return False
    extents = dims(node.inputs[0])
    return axes[0] == -1 or (extents is not None and axes[0] == len(extents) - 1)
