"""What a graph computes from shapes and what is certain of them."""

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.graph.known import Dims, constant, dims, integers, is_op

__all__ = ["dimensions"]

_FROM_INPUT = 4  # the slot of Slice's steps
Integers = NDArray[np.int64]


def dimensions(node: ir.Node) -> Integers | None:
    """Return the value of Shape, Size, or Gather and Slice of a Shape; None if it depends on the inputs.

    Gather and Slice may take those extents that are certain from a shape where others are not.
    """
    if is_op(node, "Shape"):
        return _certain(_shape(node))
    if is_op(node, "Size"):
        found = dims(node.inputs[0])
        certain = None if found is None else _certain(found)
        return None if certain is None else np.asarray(certain.prod(dtype=np.int64))
    source = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
    if source is None or not is_op(source, "Shape"):
        return None
    extents = _shape(source)
    if extents is None:
        return None
    if is_op(node, "Gather"):
        return _gathered(node, extents)
    return _certain(_sliced(node, extents)) if is_op(node, "Slice") else None


def _shape(node: ir.Node) -> Dims | None:
    """Return what a Shape node returns."""
    found = dims(node.inputs[0])
    if found is None:
        return None
    start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", len(found))
    return found[start:end]


def _certain(extents: Dims | None) -> Integers | None:
    if extents is None or None in extents:
        return None
    return np.array(extents, np.int64)


def _gathered(node: ir.Node, extents: Dims) -> Integers | None:
    indices = constant(node.inputs[1])
    if indices is None:
        return None
    wanted = np.asarray(indices.numpy())
    if wanted.size == 0 or not (-len(extents) <= wanted.min() <= wanted.max() < len(extents)):
        return None
    taken = _certain(tuple(extents[int(i)] for i in wanted.reshape(-1)))
    return None if taken is None else taken.reshape(wanted.shape)


def _sliced(node: ir.Node, extents: Dims) -> Dims | None:
    starts, ends = integers(node, 1, "starts"), integers(node, 2, "ends")
    has_steps = len(node.inputs) > _FROM_INPUT and node.inputs[_FROM_INPUT] is not None
    steps = integers(node, _FROM_INPUT, "") if has_steps else (1,)
    if steps != (1,) or starts is None or ends is None or len(starts) != 1 or len(ends) != 1:
        return None
    return extents[starts[0] : ends[0]]
