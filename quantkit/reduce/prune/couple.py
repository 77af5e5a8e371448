"""Join the labels of channels that operators tie to each other: what Add reads, what Concat lines up, what Reshape folds.

An operator without a rule keeps all channels that it reads or makes, and so do inputs and outputs of the model.
"""

from collections.abc import Callable, Mapping
from math import prod
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from quantkit.model.graph.edit import constant, is_op, nodes_of, subgraphs_of
from quantkit.model.graph.shapes import Dims, integers
from quantkit.model.ops.float_ops import (
    ALIGNS,
    EXTENTS,
    FUNCTIONS,
    NORMALIZES_CHANNELS,
    POOLS,
    REDUCES,
    SCALES_AXES,
    SOFTMAXES,
    UNIT_AXES,
)
from quantkit.reduce.prune.labels import Ints, Labels

Rule = Callable[[Labels, ir.Node], None]
LEAST_OPSET = 14  # shapes that are computed from extents are inferred from here on
_GROUPED = 2  # channels of the second last axis of a split one go together: heads of attention, groups of a Conv


def couple(model: ir.Model) -> Labels:
    """Return the labels of all channels of the main graph.

    Args:
        model: Of opset `LEAST_OPSET` or later, with inferred shapes (`quantkit.model.graph.shapes.infer`).
    """
    labels = Labels()
    for value in (*model.graph.inputs, *model.graph.outputs):
        labels.fix_value(value)
    for node in model.graph:
        rule = None if node.domain else _RULES.get(node.op_type)
        if rule is None or any(True for _ in subgraphs_of(node)):
            labels.stops[node.op_type] += 1
            _keep_all(labels, node)
        else:
            rule(labels, node)
    for node in nodes_of(model):
        if node.graph is not model.graph:  # what a branch reads of the graph around it
            _keep_all(labels, node)
    return labels


def _keep_all(labels: Labels, node: ir.Node) -> None:
    for value in (*node.inputs, *node.outputs):
        labels.fix_value(value)


def _conv(labels: Labels, node: ir.Node) -> None:
    x, weight, out = _value(node, 0), _value(node, 1), node.outputs[0]
    group = node.attributes.get_int("group", 1)
    read, (rows, columns), made = _axis(labels, x, 1), _pair(labels, weight), _axis(labels, out, 1)
    if is_op(node, "ConvTranspose"):
        rows, columns = (columns, rows) if group == 1 else (None, None)
    if group == 1:
        labels.join(read, columns)
    elif read is None or rows is None or len(read) % group or len(rows) % group:
        _keep_all(labels, node)
        return
    else:  # a whole group at a time: its inputs and its outputs
        table = np.hstack([read.reshape(group, -1), rows.reshape(group, -1)])
        labels.join_rows(table)
        labels.fix(columns)
    labels.join(rows, made)
    _vector(labels, node, 2, made)
    for value in (x, out):
        labels.fix_value(value, range(2, len(labels.of(value))))
    labels.fix_value(weight, range(2, len(labels.of(weight))))


def _gemm(labels: Labels, node: ir.Node) -> None:
    read, weight = labels.of(_value(node, 0)), labels.of(_value(node, 1))
    if node.attributes.get_int("transA", 0) or len(read) != 2 or len(weight) != 2:
        _keep_all(labels, node)
        return
    last = node.attributes.get_int("transB", 0)
    made = labels.of(node.outputs[0])
    labels.join(read[1], weight[last])
    labels.join(weight[1 - last], made[1])
    labels.join(read[0], made[0])
    _vector(labels, node, 2, made[1])


def _matmul(labels: Labels, node: ir.Node) -> None:
    first, second = _value(node, 0), _value(node, 1)
    one, other, made = labels.of(first), labels.of(second), labels.of(node.outputs[0])
    if min(len(one), len(other)) < 2 or len(made) != max(len(one), len(other)):
        _keep_all(labels, node)
        return
    labels.join(one[-1], other[-2])
    if constant(first) is None and constant(second) is None:
        labels.fix(one[-1])  # the sum is over products of activations: no weight makes up for one
    labels.join(one[-2], made[-2])
    labels.join(other[-1], made[-1])
    _broadcast_to(labels, one[:-2], made[:-2])
    _broadcast_to(labels, other[:-2], made[:-2])


def _broadcast(labels: Labels, node: ir.Node) -> None:
    made = labels.of(node.outputs[0])
    for value in node.inputs:
        own = labels.of(value) if value is not None else []
        if len(own) > len(made):
            _keep_all(labels, node)
            return
        _broadcast_to(labels, own, made)


def _broadcast_to(labels: Labels, own: list[Ints | None], made: list[Ints | None]) -> None:
    for one, other in zip(reversed(own), reversed(made), strict=False):
        if one is None or other is None or len(one) != 1 or len(other) == 1:
            labels.join(one, other)


def _each_value(labels: Labels, node: ir.Node) -> None:
    labels.join_axes(_value(node, 0), node.outputs[0])
    for value in (*node.inputs[1:], *node.outputs[1:]):
        labels.fix_value(value)


def _without_axes(labels: Labels, node: ir.Node, first: int, count: int = 1 << 16) -> None:
    """Join input and output, but for some axes from one on, along which values are computed together."""
    rank = len(labels.of(_value(node, 0)))
    start = first % rank if rank else 0
    inside = range(start, start + count)
    labels.join_axes(_value(node, 0), node.outputs[0], lambda axis: axis not in inside)
    for value in (*node.inputs[1:], *node.outputs[1:]):
        labels.fix_value(value)


def _softmax(labels: Labels, node: ir.Node) -> None:
    _without_axes(labels, node, node.attributes.get_int("axis", -1), 1)


def _layer_normalization(labels: Labels, node: ir.Node) -> None:
    _without_axes(labels, node, node.attributes.get_int("axis", -1))


def _channel_normalization(labels: Labels, node: ir.Node) -> None:
    labels.join_axes(_value(node, 0), node.outputs[0])
    made = _axis(labels, node.outputs[0], 1)
    for slot in range(1, len(node.inputs)):
        _vector(labels, node, slot, made)
    rank = len(labels.of(node.outputs[0]))
    labels.fix_value(node.outputs[0], range(2, rank))
    for value in node.outputs[1:]:
        labels.fix_value(value)


def _pool(labels: Labels, node: ir.Node) -> None:
    _without_axes(labels, node, 2)


def _reduce(labels: Labels, node: ir.Node) -> None:
    x, out = _value(node, 0), node.outputs[0]
    own, made = labels.of(x), labels.of(out)
    axes = integers(node, 1, "axes")
    if axes is None or not own:
        _keep_all(labels, node)
        return
    reduced = {axis % len(own) for axis in axes}
    kept = [axis for axis in range(len(own)) if axis not in reduced]
    labels.fix_value(x, reduced)
    places = kept if node.attributes.get_int("keepdims", 1) else range(len(kept))
    if len(made) <= max(places, default=-1):
        _keep_all(labels, node)
        return
    for axis, place in zip(kept, places, strict=True):
        labels.join(own[axis], made[place])


def _concat(labels: Labels, node: ir.Node) -> None:
    made, parts = labels.of(node.outputs[0]), [labels.of(v) for v in node.inputs if v is not None]
    axis = node.attributes.get_int("axis", 0) % max(1, len(made))
    joined = [part[axis] for part in parts if 0 < len(part) == len(made)]
    known = [part for part in joined if part is not None]
    if not made or len(known) < len(parts):
        _keep_all(labels, node)
        return
    labels.join(np.concatenate(known), made[axis])
    for part in parts:
        for place, (one, other) in enumerate(zip(part, made, strict=True)):
            if place != axis:
                labels.join(one, other)


def _split(labels: Labels, node: ir.Node) -> None:
    own = labels.of(_value(node, 0))
    parts = [labels.of(out) for out in node.outputs]
    axis = node.attributes.get_int("axis", 0) % max(1, len(own))
    made = [part[axis] for part in parts if 0 < len(part) == len(own)]
    known = [part for part in made if part is not None]
    if not own or len(known) < len(parts):
        _keep_all(labels, node)
        return
    labels.join(own[axis], np.concatenate(known))
    for part in parts:
        for place, (one, other) in enumerate(zip(own, part, strict=True)):
            if place != axis:
                labels.join(one, other)


def _transpose(labels: Labels, node: ir.Node) -> None:
    own, made = labels.of(_value(node, 0)), labels.of(node.outputs[0])
    perm = node.attributes.get_ints("perm", tuple(reversed(range(len(own)))))
    if not len(own) == len(made) == len(perm):
        _keep_all(labels, node)
        return
    for place, axis in enumerate(perm):
        labels.join(own[axis], made[place])


def _gather(labels: Labels, node: ir.Node) -> None:
    data, places = labels.of(_value(node, 0)), labels.of(_value(node, 1))
    made = labels.of(node.outputs[0])
    axis = node.attributes.get_int("axis", 0) % max(1, len(data))
    labels.fix_value(node.inputs[1])
    if len(made) != len(data) - 1 + len(places):
        _keep_all(labels, node)
        return
    labels.fix(data[axis])
    for place in range(len(places)):
        labels.fix(made[axis + place])
    for one, other in zip(
        data[:axis] + data[axis + 1 :], made[:axis] + made[axis + len(places) :], strict=True
    ):
        labels.join(one, other)


def _pad(labels: Labels, node: ir.Node) -> None:
    pads, rank = integers(node, 1, "pads"), len(labels.of(_value(node, 0)))
    if pads is None or len(pads) != 2 * rank:
        _keep_all(labels, node)
        return
    untouched = [axis for axis in range(rank) if not pads[axis] and not pads[axis + rank]]
    labels.join_axes(_value(node, 0), node.outputs[0], untouched.__contains__)


def _resize(labels: Labels, node: ir.Node) -> None:
    _without_axes(labels, node, 2)
    sizes = node.inputs[3] if len(node.inputs) > 3 else None
    if sizes is not None and (constant(sizes) is None or "axes" in node.attributes):
        labels.fix_value(node.outputs[0])


def _extents(labels: Labels, node: ir.Node) -> None:
    """Keep the axes whose extents are read: all, unless a Gather picks some."""
    if not (rank := len(labels.of(_value(node, 0)))):
        return
    read: set[int] = set()
    for use in node.outputs[0].uses():
        indices = constant(use.node.inputs[1]) if is_op(use.node, "Gather") else None
        picked = range(rank) if indices is None else indices.numpy().reshape(-1).tolist()
        read |= {axis % rank for axis in picked}
    labels.fix_value(node.inputs[0], read)


def _reshape(labels: Labels, node: ir.Node) -> None:
    """Follow axes that stay, that are folded into one, and that are cut out of one."""
    own, made = labels.of(_value(node, 0)), labels.of(node.outputs[0])
    runs = regrouped(_extents_of(own), _extents_of(made))
    if runs is None or not own or not made:
        _keep_all(labels, node)
        return
    for axis in range(len(own) - sum(len(before) for before, _ in runs)):
        labels.fix(own[axis])
    for axis in range(len(made) - sum(len(after) for _, after in runs)):
        labels.fix(made[axis])
    for before, after in runs:
        _fold(labels, [own[axis] for axis in before], [made[axis] for axis in after])
    for axis in range(len(made)):
        ours = made[axis]
        if ours is not None and not labels.is_fixed(ours) and not shape_can_change(node, axis):
            labels.fix(ours)


def _fold(labels: Labels, before: list[Ints | None], after: list[Ints | None]) -> None:
    """Tie axes to others that hold the same values in the same order."""
    known, other = [x for x in before if x is not None], [x for x in after if x is not None]
    if len(known) == len(other) == 1:
        labels.join(known[0], other[0])
    elif len(other) == 1:
        _carry(labels, known, other[0])
    elif len(known) == 1:
        _carry(labels, other, known[0])
    else:
        for one in (*known, *other):
            labels.fix(one)


def _carry(labels: Labels, several: list[Ints], single: Ints) -> None:
    """Tie one axis to one of several that are folded into it; the others stay as they are."""
    places = [place for place, one in enumerate(several) if not labels.is_fixed(one)]
    wide = [place for place in places if len(several[place]) > 1]
    second_last = len(several) - _GROUPED
    carrier = second_last if second_last in wide else next(iter(wide or places), 0)
    table = np.moveaxis(single.reshape([len(one) for one in several]), carrier, 0)
    labels.join_rows(
        np.hstack([several[carrier][:, np.newaxis], table.reshape(len(several[carrier]), -1)])
    )
    for place, one in enumerate(several):
        if place != carrier:
            labels.fix(one)


def _extents_of(axes: list[Ints | None]) -> Dims:
    return tuple(None if one is None else len(one) for one in axes)


def regrouped(before: Dims, after: Dims) -> list[tuple[range, range]] | None:
    """Return which last axes of one shape hold the values of which last ones of another; None if that is not known.

    Values keep their order. Only axes behind the last extent that depends on the inputs count.
    """
    # Where the products of some last extents are equal, the values of each place are those of one place of the other.
    i, j = len(before), len(after)
    runs: list[tuple[range, range]] = []
    while i and j and before[i - 1] is not None and after[j - 1] is not None:
        a, b = i - 1, j - 1
        while (left := _product(before[a:i])) != (right := _product(after[b:j])):
            if left is None or right is None or not left or not right:
                return None
            a, b = (a - 1, b) if left < right else (a, b - 1)
            if min(a, b) < 0:
                return None
        runs.append((range(a, i), range(b, j)))
        i, j = a, b
    return runs


def _product(extents: Dims) -> int | None:
    known = [n for n in extents if n is not None]
    return prod(known) if len(known) == len(extents) else None


def shape_part(node: ir.Node, axis: int) -> tuple[ir.Node, int] | None:
    """Return the node and slot where the extent of an axis that a Reshape makes is a constant by itself."""
    shape = node.inputs[1]
    if constant(shape) is not None:
        return node, 1
    maker = None if shape is None else shape.producer()
    if maker is None or not is_op(maker, "Concat"):
        return None
    start = 0
    for slot, value in enumerate(maker.inputs):
        tensor = constant(value)
        if start == axis:
            return (maker, slot) if tensor is not None and tensor.size == 1 else None
        start += 1 if tensor is None else tensor.size
    return None


def shape_can_change(node: ir.Node, axis: int) -> bool:
    """Say whether the extent of an axis can be written anew."""
    return not is_op(node, "Reshape") or shape_part(node, axis) is not None


def _squeeze(labels: Labels, node: ir.Node) -> None:
    """Follow the axes of a Squeeze, Unsqueeze or Flatten: no extent is written in it."""
    own, made = labels.of(_value(node, 0)), labels.of(node.outputs[0])
    wide = [[one for one in side if one is None or len(one) != 1] for side in (own, made)]
    if len(wide[0]) != len(wide[1]):
        _reshape(labels, node)
        return
    for one, other in zip(*wide, strict=True):
        labels.join(one, other)


def _value(node: ir.Node, slot: int) -> ir.Value:
    value = node.inputs[slot]
    assert value is not None  # noqa: S101 - by the standard
    return value


def _axis(labels: Labels, value: ir.Value, axis: int) -> Ints | None:
    own = labels.of(value)
    return own[axis] if axis < len(own) else None


def _pair(labels: Labels, value: ir.Value) -> tuple[Ints | None, Ints | None]:
    return _axis(labels, value, 0), _axis(labels, value, 1)


def _vector(labels: Labels, node: ir.Node, slot: int, made: Ints | None) -> None:
    """Join what is added or multiplied channel by channel, along the last axis, to what comes out."""
    value = node.inputs[slot] if slot < len(node.inputs) else None
    if value is not None:
        _broadcast_to(labels, labels.of(value), [made])
        labels.fix_value(value, range(len(labels.of(value)) - 1))


_RULES: Mapping[str, Rule] = MappingProxyType(
    dict.fromkeys(ALIGNS, _broadcast)
    | dict.fromkeys(FUNCTIONS, _each_value)
    | dict.fromkeys(NORMALIZES_CHANNELS, _channel_normalization)
    | dict.fromkeys(POOLS, _pool)
    | dict.fromkeys(REDUCES, _reduce)
    | dict.fromkeys(SCALES_AXES, _resize)
    | dict.fromkeys(SOFTMAXES, _softmax)
    | dict.fromkeys(EXTENTS, _extents)
    | dict.fromkeys(UNIT_AXES, _squeeze)
    | {
        "Concat": _concat,
        "Conv": _conv,
        "ConvTranspose": _conv,
        "Gather": _gather,
        "Gemm": _gemm,
        "LayerNormalization": _layer_normalization,
        "MatMul": _matmul,
        "Pad": _pad,
        "Reshape": _reshape,
        "Split": _split,
        "Transpose": _transpose,
    }
)
