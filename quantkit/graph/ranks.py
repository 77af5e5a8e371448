"""How many axes values have, also where shape inference gives up: behind a Reshape to a computed shape.

A Transpose tells it by its permutation, elementwise operators and matrix products by their inputs.
"""

import onnx_ir as ir

__all__ = ["ranks_of"]

_BROADCAST = frozenset({"Add", "Div", "MatMul", "Max", "Min", "Mul", "Pow", "Sub", "Where"})
_SAME = frozenset(
    {"Cast", "Clip", "Dropout", "Erf", "Gelu", "Identity", "LayerNormalization", "LogSoftmax"}
    | {"Neg", "Relu", "Sigmoid", "Softmax", "Sqrt", "Tanh"}
)


def ranks_of(model: ir.Model) -> dict[ir.Value, int]:
    """Return the number of axes of every value for which it is certain. One pass over the nodes."""
    found: dict[ir.Value, int] = {}
    for graph in model.graphs():
        for value in (*graph.inputs, *graph.initializers.values()):
            _note(value, found)
    for node in model.graph.all_nodes():
        for value in node.outputs:
            _note(value, found)
        rank = _rank(node, found)
        if rank is not None and node.outputs[0] not in found:
            found[node.outputs[0]] = rank
    return found


def _note(value: ir.Value, found: dict[ir.Value, int]) -> None:
    if value.const_value is not None:
        found[value] = len(value.const_value.shape)
    elif value.shape is not None:
        found[value] = value.shape.rank()


def _rank(node: ir.Node, found: dict[ir.Value, int]) -> int | None:
    ranks = [found.get(v) for v in node.inputs if v is not None]
    if node.domain or not node.outputs or not ranks:
        return None
    if node.op_type == "Transpose" and "perm" in node.attributes:
        return len(node.attributes["perm"].as_ints())
    if node.op_type in _SAME:
        return ranks[0]
    if node.op_type in _BROADCAST:
        known = [rank for rank in ranks if rank is not None]
        return max(known) if len(known) == len(ranks) else None
    if node.op_type == "Unsqueeze" and ranks[0] is not None:
        return _unsqueezed(node, ranks[0])
    return None


def _unsqueezed(node: ir.Node, rank: int) -> int | None:
    if "axes" in node.attributes:
        return rank + len(node.attributes["axes"].as_ints())
    axes = node.inputs[1] if len(node.inputs) > 1 else None
    tensor = None if axes is None else ir.convenience.get_const_tensor(axes)
    return None if tensor is None else rank + tensor.size
