"""Operators that a target has no integer kernel for, written as some that it has one for; their outputs stay as they are.

| operator | becomes | |
|---|---|---|
| PRelu, one slope a | LeakyRelu | |
| PRelu, slopes a <= 1 | Max(x, a x) | above 0 a x is no larger, below no smaller |
| PRelu, slopes a >= 1 | Min(x, a x) | |
| PRelu, others | x + (1 - a) Relu(-x) | |
| HardSwish | x HardSigmoid(x) | |

Each is faster in float, too: onnxruntime's PRelu decides value by value, and takes five times as long as both
(`benchmarks/results/operators.md`). The last node keeps the name of what it stands for, so that a rule can name it.
Which operators these are is said by the target (`Target.decomposed`).
"""

from collections.abc import Collection, Mapping
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.model.graph.edit import Canvas, constant, discard, nodes_of, owner_of
from quantkit.model.graph.shapes import dims, dtype

_FEWEST = 1024  # values below which calling two more kernels costs more than a slow one
_ALPHA, _BETA = 1 / 6, 0.5  # of the HardSigmoid in a HardSwish


def decompose(model: ir.Model, op_types: Collection[str]) -> int:
    """Rewrite these operators in place, where that is known to gain; return how many were.

    Args:
        model: A simplified model: its shapes were inferred.
        op_types: Those of `Target.decomposed`.
    """
    found = [n for n in nodes_of(model) if n.op_type in op_types and not n.domain]
    canvas = Canvas(model) if found else None
    return sum(_decomposed(canvas, node) for node in found if canvas is not None)


def _decomposed(canvas: Canvas, node: ir.Node) -> bool:
    return _prelu(canvas, node) if node.op_type == "PRelu" else _hard_swish(canvas, node)


def _prelu(canvas: Canvas, node: ir.Node) -> bool:
    x, slopes = node.inputs[0], constant(node.inputs[1])
    if x is None or slopes is None or slopes.dtype is not ir.DataType.FLOAT or _is_small(x):
        return False
    a = slopes.numpy()
    if not a.size or not np.isfinite(a).all() or dtype(x) is not ir.DataType.FLOAT:
        return False
    if (a == a.flat[0]).all():
        alpha = float(a.flat[0])
        _replace(canvas, node, "LeakyRelu", [x], {"alpha": alpha})
        return True
    if (a <= 1).all() or (a >= 1).all():
        scaled = _scaled(canvas, node, x, a)
        _replace(canvas, node, "Max" if (a <= 1).all() else "Min", [x, scaled])
        return True
    minus = _scaled(canvas, node, x, np.full((1,) * a.ndim, -1, np.float32))
    below = _scaled(canvas, node, _put(canvas, node, "Relu", [minus]), 1 - a)
    _replace(canvas, node, "Add", [x, below])
    return True


def _hard_swish(canvas: Canvas, node: ir.Node) -> bool:
    x = node.inputs[0]
    if x is None or dtype(x) is not ir.DataType.FLOAT:
        return False
    gate = _put(canvas, node, "HardSigmoid", [x], {"alpha": _ALPHA, "beta": _BETA})
    _replace(canvas, node, "Mul", [x, gate])
    return True


def _is_small(value: ir.Value) -> bool:
    """Say whether a value is certainly small, or has no axes beside channels as far as is known."""
    known = dims(value)
    if known is None or len(known) <= 2:  # a row for each sample
        return True
    return None not in known and prod(n or 1 for n in known) < _FEWEST


def _scaled(canvas: Canvas, node: ir.Node, value: ir.Value, by: NDArray[Any]) -> ir.Value:
    factor = canvas.constant(owner_of(node), by.astype(np.float32), f"{node.name}_factor")
    return _put(canvas, node, "Mul", [value, factor])


def _put(
    canvas: Canvas,
    node: ir.Node,
    op_type: str,
    inputs: list[ir.Value],
    attributes: Mapping[str, float] | None = None,
) -> ir.Value:
    """Insert a node in front of the one that is rewritten, and return what it makes: of the same type and shape."""
    name = f"{node.outputs[0].name}_{op_type}"
    (made,) = canvas.node(op_type, inputs, before=node, attributes=attributes, outputs=[name])
    made.type, made.shape = node.outputs[0].type, node.outputs[0].shape
    made.meta.update(node.outputs[0].meta)
    return made


def _replace(
    canvas: Canvas,
    node: ir.Node,
    op_type: str,
    inputs: list[ir.Value],
    attributes: Mapping[str, float] | None = None,
) -> None:
    """Let a node of the same name stand for one."""
    made, last = _put(canvas, node, op_type, inputs, attributes), node.name
    canvas.replace(node, made)
    maker = made.producer()
    assert maker is not None  # noqa: S101 - it was put there
    maker.metadata_props.update(node.metadata_props)
    discard(node)
    maker.name = last
