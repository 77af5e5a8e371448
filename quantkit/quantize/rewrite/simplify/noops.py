"""Nodes that return their input: they go.

| operator | when |
|---|---|
| Dropout | inference, mask unread |
| Cast, CastLike | to the type that the input has |
| Transpose | no axis moves |
| Reshape, Flatten, Expand, Tile | the shape stays |
| Slice | takes everything, forwards |
| Pad | by nothing |
| Concat, Sum, Max, Min, Mean, Split | of or into one |
| Add, Sub 0; Mul, Div 1 | broadcasting leaves the shape as it is |

``-0.0 + 0.0`` is ``0.0``: of a zero the sign may change, which no comparison sees.

``y = Identity(x)``: whoever reads y reads x.

Kept where y is an output that x cannot take the name of: x is an input, an initializer, an output itself, or
lives in an outer graph.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from quantkit.model.graph.edit import bypass, constant, is_op, nodes_of, optional
from quantkit.model.graph.opset import opset_of
from quantkit.model.graph.shapes import Dims, dims, dtype, integers, static


def identity(model: ir.Model) -> int:
    """Remove Identity nodes; return how many."""
    return sum(_identity_remove(node) for node in nodes_of(model) if is_op(node, "Identity"))


def _identity_remove(node: ir.Node) -> bool:
    source = node.inputs[0] if len(node.inputs) == 1 else None
    return source is not None and bypass(node, source)


_TO_THE_END = (1 << 31) - 1  # what exporters write for "no end", or more
_MODERN = 7  # before it, broadcasting and Dropout were a matter of attributes
_TRAINING_INPUT = 2  # of Dropout, from opset 12
_STEPS = 4  # an input of Slice, from opset 10
_LARGE_NEUTRAL = (
    1 << 20
)  # bytes; larger constants are weights, and are not read to see if they are 0


def noops(model: ir.Model) -> int:
    """Remove nodes that return their input; return how many."""
    if opset_of(model) < _MODERN:
        return 0
    return sum(_remove(node) for node in nodes_of(model) if not node.domain)


def _remove(node: ir.Node) -> bool:
    find = _SOURCES.get(node.op_type)
    if find is None or not node.inputs or node.inputs[0] is None or not node.outputs:
        return False
    if any(out.uses() or out.is_graph_output() for out in node.outputs[1:]):
        return False
    source = find(node)
    return source is not None and bypass(node, source)


_Find = Callable[[ir.Node], ir.Value | None]


def _first_if(holds: Callable[[ir.Node], bool]) -> _Find:
    return lambda node: node.inputs[0] if holds(node) else None


def _keeps_all(node: ir.Node) -> bool:
    """Dropout: at inference it does nothing, whatever its ratio."""
    training = optional(node, _TRAINING_INPUT)
    if training is None:
        return True
    tensor = constant(training)
    return tensor is not None and not tensor.numpy().any()


def _same_type(node: ir.Node) -> bool:
    before = dtype(node.inputs[0])
    return before is not None and before == node.attributes.get_int("to")


def _same_type_like(node: ir.Node) -> bool:
    before, after = (dtype(value) for value in node.inputs)
    return before is not None and before == after


def _moves_no_axis(node: ir.Node) -> bool:
    perm = integers(node, -1, "perm")
    if perm is not None:
        return list(perm) == sorted(perm)
    found = dims(node.inputs[0])  # reversed by default
    return found is not None and len(found) <= 1


def _same_shape(node: ir.Node) -> bool:
    before, after = static(node.inputs[0]), static(node.outputs[0])
    return before is not None and before == after


def _reshapes_nothing(node: ir.Node) -> bool:
    """Reshape: also with free extents, if all but one of the asked ones are the ones that are there."""
    if _same_shape(node):
        return True
    before, asked = dims(node.inputs[0]), integers(node, 1, "shape")
    if before is None or asked is None or len(before) != len(asked):
        return False
    if node.attributes.get_int("allowzero", 0) and 0 in asked:
        return False
    changed = [a for b, a in zip(before, asked, strict=True) if a not in (0, b)]
    # With all others as they are, -1 can only be the extent that is there.
    return changed in ([], [-1])


def _pads_nothing(node: ir.Node) -> bool:
    pads = integers(node, 1, "pads")
    return pads is not None and not any(pads)


def _takes_everything(node: ir.Node) -> bool:
    starts, ends = integers(node, 1, "starts"), integers(node, 2, "ends")
    absent = len(node.inputs) <= _STEPS or node.inputs[_STEPS] is None
    steps = (1,) if absent else integers(node, _STEPS, "steps")
    if starts is None or ends is None or steps is None or any(s != 1 for s in steps):
        return False
    if _same_shape(node):
        return True
    return all(s == 0 for s in starts) and all(e >= _TO_THE_END for e in ends)


def _has_one_input(node: ir.Node) -> bool:
    return len(node.inputs) == 1


def _has_one_output(node: ir.Node) -> bool:
    return len(node.outputs) == 1


def _without(neutral: float, *, commutes: bool) -> _Find:
    """Find the operand that a neutral constant leaves as it is."""

    def find(node: ir.Node) -> ir.Value | None:
        if len(node.inputs) != len(("a", "b")):
            return None
        a, b = node.inputs
        if _is_neutral(a, b, neutral):
            return a
        return b if commutes and _is_neutral(b, a, neutral) else None

    return find


def _is_neutral(kept: ir.Value | None, operand: ir.Value | None, neutral: float) -> bool:
    tensor = constant(operand)
    if kept is None or tensor is None or tensor.dtype is ir.DataType.STRING:
        return False
    if tensor.nbytes > _LARGE_NEUTRAL or not _broadcasts_into(tensor.shape.numpy(), dims(kept)):
        return False
    return bool(np.all(tensor.numpy() == neutral))


def _broadcasts_into(operand: Sequence[int], kept: Dims | None) -> bool:
    """Say whether broadcasting an operand leaves the other one's shape as it is."""
    if not operand:
        return True
    if kept is None or len(operand) > len(kept):
        return False
    ends = kept[len(kept) - len(operand) :]
    return all(n in (1, extent) for n, extent in zip(operand, ends, strict=True))


_SOURCES: Mapping[str, _Find] = MappingProxyType(
    {
        "Add": _without(0, commutes=True),
        "Cast": _first_if(_same_type),
        "CastLike": _first_if(_same_type_like),
        "Concat": _first_if(_has_one_input),
        "Div": _without(1, commutes=False),
        "Dropout": _first_if(_keeps_all),
        "Expand": _first_if(_same_shape),
        "Flatten": _first_if(_same_shape),
        "Max": _first_if(_has_one_input),
        "Mean": _first_if(_has_one_input),
        "Min": _first_if(_has_one_input),
        "Mul": _without(1, commutes=True),
        "Pad": _first_if(_pads_nothing),
        "Reshape": _first_if(_reshapes_nothing),
        "Slice": _first_if(_takes_everything),
        "Split": _first_if(_has_one_output),
        "Sub": _without(0, commutes=False),
        "Sum": _first_if(_has_one_input),
        "Tile": _first_if(_same_shape),
        "Transpose": _first_if(_moves_no_axis),
    }
)
