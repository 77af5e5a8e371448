"""Remove units of channels from a model: from weights, biases, and the extents that Reshape, Split and Conv write down."""

from collections.abc import Collection
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.model.graph.edit import Canvas, constant, is_op
from quantkit.model.graph.shapes import declare_only
from quantkit.reduce.prune.couple import shape_part
from quantkit.reduce.prune.labels import Ints, Labels


def cut(model: ir.Model, labels: Labels, removed: Collection[int]) -> None:
    """Remove all channels of some units, in place.

    Args:
        model: The model that the labels are of.
        labels: Of its channels.
        removed: Labels of units.
    """
    gone = frozenset(removed)
    canvas = Canvas(model)
    for node in model.graph:
        _rewrite_extents(canvas, labels, node, gone)
    for value in model.graph.initializers.values():
        _take(labels, value, gone)
    declare_only(model, ())  # extents that were declared inside are others now
    labels.axes.clear()


def stays(labels: Labels, own: Ints | None, gone: Collection[int]) -> NDArray[np.bool_]:
    """Return which channels of an axis stay."""
    roots = [] if own is None else labels.roots(own).tolist()
    return np.array([root not in gone for root in roots], bool)


def _take(labels: Labels, value: ir.Value, gone: Collection[int]) -> None:
    tensor, own = value.const_value, labels.axes.get(value, [])
    kept = {
        axis: keep for axis, one in enumerate(own) if not (keep := stays(labels, one, gone)).all()
    }
    if tensor is None or not kept:
        return
    array = np.asarray(tensor.numpy())
    for axis, keep in kept.items():
        array = np.compress(keep, array, axis)
    value.const_value = ir.Tensor(np.ascontiguousarray(array), name=value.name)
    value.shape = ir.Shape(array.shape)


def _rewrite_extents(canvas: Canvas, labels: Labels, node: ir.Node, gone: Collection[int]) -> None:
    """Write anew the extents that a node holds of what it reads or makes."""
    if is_op(node, "Reshape"):
        for axis, own in enumerate(labels.of(node.outputs[0])):
            keep = stays(labels, own, gone)
            if not keep.all():
                _set_extent(canvas, node, axis, int(keep.sum()))
    elif is_op(node, "Split"):
        _set_parts(canvas, labels, node, gone)
    elif is_op(node, "Conv", "ConvTranspose") and node.attributes.get_int("group", 1) > 1:
        read = labels.of(node.inputs[0])[1]  # type: ignore[arg-type]  # by the standard
        keep = stays(labels, read, gone)
        group = node.attributes.get_int("group", 1)
        node.attributes["group"] = ir.AttrInt64("group", group * int(keep.sum()) // len(keep))
    elif is_op(node, "Resize") and len(node.inputs) > 3 and constant(node.inputs[3]) is not None:
        keep = stays(labels, labels.of(node.outputs[0])[1], gone)
        _replace_constant(canvas, node, 3, partial(_with_number, place=1, number=int(keep.sum())))


def _set_extent(canvas: Canvas, node: ir.Node, axis: int, extent: int) -> None:
    found = shape_part(node, axis)
    assert found is not None  # noqa: S101 - what cannot be changed was fixed
    holder, slot = found
    place = axis if holder is node else 0
    _replace_constant(canvas, holder, slot, partial(_with_number, place=place, number=extent))


def _with_number(array: NDArray[Any], place: int, number: int) -> NDArray[Any]:
    """Return a shape with another extent; 0 and -1 say by themselves what it is."""
    array = array.copy()
    flat = array.reshape(-1)
    if flat[place] > 0:
        flat[place] = number
    return array


def _replace_constant(canvas: Canvas, node: ir.Node, slot: int, change: Any) -> None:
    value = node.inputs[slot]
    tensor = constant(value)
    assert value is not None  # noqa: S101 - by the standard
    assert tensor is not None  # noqa: S101 - what is computed was fixed
    new = change(np.asarray(tensor.numpy()))
    graph = canvas.model.graph
    node.replace_input_with(slot, canvas.constant(graph, new, f"{value.name}_pruned"))


def _set_parts(canvas: Canvas, labels: Labels, node: ir.Node, gone: Collection[int]) -> None:
    rank = len(labels.of(node.outputs[0]))
    axis = node.attributes.get_int("axis", 0) % max(1, rank)
    kept = [stays(labels, labels.of(out)[axis], gone) for out in node.outputs if rank]
    if all(keep.all() for keep in kept):
        return
    sizes = [int(keep.sum()) for keep in kept]
    node.attributes.pop("num_outputs", None)
    value = canvas.constant(canvas.model.graph, np.array(sizes, np.int64), f"{node.name}_sizes")
    node.resize_inputs(2)
    node.replace_input_with(1, value)
