"""Forms in which exporters write an operator that has a kernel of its own.

| pass | form | becomes |
|---|---|---|
| hard_sigmoid | Clip(x + b, 0, h) / h | HardSigmoid(x) |
| | x Clip(x + b, 0, h) / h | x HardSigmoid(x) |
| global_pool | ReduceMean over all axes behind the channels | GlobalAveragePool, and Flatten where the axes go |

onnxruntime keeps both in the layout of the Conv before them, and has integer kernels for what they are made of. ``/ h`` may
be a multiplication by 1 / h; who else reads what is inside a form keeps it as it is.
"""

import numpy as np
import onnx_ir as ir

from quantkit.model.graph.edit import (
    Names,
    constant,
    discard,
    is_op,
    nodes_of,
    producer_of,
    sole_reader,
    succeed,
    value_names,
)
from quantkit.model.graph.shapes import dims, dtype, integers

_CLOSE = 1e-6  # of constants that are meant to be the same
_SPATIAL = 2  # the first axis behind the channels


def hard_sigmoid(model: ir.Model) -> int:
    """Fuse sums that are clipped and divided by their bound; return how many there were."""
    found = [node for node in nodes_of(model) if is_op(node, "Clip")]
    names = value_names(model) if found else Names()
    return sum(_fuse(clip, names) for clip in found)


def _fuse(clip: ir.Node, names: Names) -> bool:
    summed, bound = clip.inputs[0], _bound(clip)
    add = producer_of(summed)
    if summed is None or add is None or bound is None or not is_op(add, "Add"):
        return False
    x, beta = _operands(add)
    last = sole_reader(clip.outputs[0])
    if x is None or beta is None or last is None or sole_reader(summed) is not clip:
        return False
    if dtype(x) is not ir.DataType.FLOAT:
        return False
    product = last if is_op(last, "Mul") and _reads(last, x, clip.outputs[0]) else None
    scaled = last if product is None else sole_reader(product.outputs[0])
    if scaled is None or not _divides(scaled, bound, (product or clip).outputs[0]):
        return False
    graph = scaled.graph
    assert isinstance(graph, ir.Graph)  # noqa: S101 - functions are inlined
    slope = [ir.AttrFloat32("alpha", 1 / bound), ir.AttrFloat32("beta", beta / bound)]
    gate = ir.Node("", "HardSigmoid", [x], slope, name=clip.name)
    made, gone = gate, [scaled, clip, add]
    graph.insert_before(scaled, gate)
    gate.outputs[0].name = names.fresh(f"{scaled.outputs[0].name}_gate")
    if product is not None:
        made = ir.Node("", "Mul", [x, gate.outputs[0]], name=scaled.name)
        graph.insert_before(scaled, made)
        gone.insert(1, product)
    succeed(scaled.outputs[0], made.outputs[0])
    for node in gone:
        discard(node)
    return True


def _number(value: ir.Value | None) -> float | None:
    """Return a constant that is one finite number and adds no axes."""
    tensor = constant(value)
    if tensor is None or tensor.dtype is not ir.DataType.FLOAT or tensor.size != 1:
        return None
    number = float(np.asarray(tensor.numpy()).reshape(()))
    return number if len(tensor.shape) <= 1 and np.isfinite(number) else None


def _operands(node: ir.Node) -> tuple[ir.Value | None, float | None]:
    """Return what is computed and the number beside it."""
    for value, other in (node.inputs, node.inputs[::-1]):
        if (number := _number(other)) is not None:
            return value, number
    return None, None


def _bound(clip: ir.Node) -> float | None:
    """Return the upper bound of a Clip from 0."""
    ends = [
        _number(clip.inputs[slot])
        if slot < len(clip.inputs)
        else clip.attributes.get_float(name, np.nan)
        for slot, name in ((1, "min"), (2, "max"))
    ]
    low, high = ends
    return high if low == 0 and high is not None and np.isfinite(high) and high > 0 else None


def _reads(node: ir.Node, *values: ir.Value) -> bool:
    return len(node.inputs) == len(values) and set(node.inputs) == set(values)


def _divides(node: ir.Node, by: float, value: ir.Value) -> bool:
    """Say whether a node is ``value / by``."""
    if is_op(node, "Div"):
        found = _number(node.inputs[1]) if node.inputs[0] is value else None
        return found is not None and abs(found - by) <= _CLOSE * by
    if not is_op(node, "Mul"):
        return False
    factor = _operands(node)[1]
    return factor is not None and abs(factor * by - 1) <= _CLOSE


def global_pool(model: ir.Model) -> int:
    """Make GlobalAveragePool of means over all that is behind the channels; return how many there were."""
    found = [node for node in nodes_of(model) if is_op(node, "ReduceMean")]
    names = value_names(model) if found else Names()
    return sum(_pool(node, names) for node in found)


def _pool(node: ir.Node, names: Names) -> bool:
    x, axes = node.inputs[0], integers(node, 1, "axes")
    rank = len(dims(x) or ())
    if x is None or not axes or rank <= _SPATIAL or dtype(x) is not ir.DataType.FLOAT:
        return False
    if sorted(axis % rank for axis in axes) != list(range(_SPATIAL, rank)):
        return False
    graph = node.graph
    assert isinstance(graph, ir.Graph)  # noqa: S101 - functions are inlined
    pool = ir.Node("", "GlobalAveragePool", [x], name=node.name)
    graph.insert_before(node, pool)
    made = pool
    if not node.attributes.get_int("keepdims", 1):
        pool.outputs[0].name = names.fresh(f"{node.outputs[0].name}_pooled")
        made = ir.Node("", "Flatten", [pool.outputs[0]], name=f"{node.name}_Flatten")
        graph.insert_before(node, made)
    succeed(node.outputs[0], made.outputs[0])
    discard(node)
    return True
