"""The form in which all later stages see a graph.

1. Model-local functions are inlined (graph traversal does not visit them).
2. Large `Constant` nodes are initializers.
3. ``Identity(initializer)`` is that initializer: exporters write shared weights this way.
4. Node names are unique and not empty; initializer names are unique over all graphs.
5. Weights that are assembled from constants are initializers (`quantkit.graph.fold`).
6. Initializers are not graph inputs if the IR version is below 4, where they had to be listed.

Nothing else changes: outputs are the same, bit for bit.
"""

from collections.abc import Iterator
from itertools import count

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from quantkit.graph._wire import LIMIT
from quantkit.graph.fold import fold_weights

__all__ = ["normalize"]

_IR_WITHOUT_LISTED_INITIALIZERS = 4


def normalize(model: ir.Model) -> None:
    """Bring `model` into the form above, in place. Linear in the number of nodes."""
    if model.functions:
        InlinePass()(model)
    for node in list(_nodes(model)):
        _lift_constant(node) or _drop_identity(node)
    tensors = _name_uniquely(model)
    fold_weights(model, lambda name: _unused(name, tensors))
    if (model.ir_version or 0) < _IR_WITHOUT_LISTED_INITIALIZERS:
        model.ir_version = _IR_WITHOUT_LISTED_INITIALIZERS
        kept = [v for v in model.graph.inputs if not v.is_initializer()]
        model.graph.inputs.clear()
        model.graph.inputs.extend(kept)


def _nodes(model: ir.Model) -> Iterator[ir.Node]:
    return iter(model.graph.all_nodes())


def _lift_constant(node: ir.Node) -> bool:
    if node.op_type != "Constant" or node.domain or "value" not in node.attributes:
        return False
    tensor = node.attributes["value"].as_tensor()
    out = node.outputs[0]
    if tensor.nbytes < LIMIT or out.is_graph_output() or out.name is None:
        return False
    _become_initializer(node, tensor)
    return True


def _drop_identity(node: ir.Node) -> bool:
    if node.op_type != "Identity" or node.domain:
        return False
    source, out = node.inputs[0], node.outputs[0]
    if source is None or not _is_constant(source) or out.is_graph_output():
        return False
    out.replace_all_uses_with(source)
    _remove(node)
    return True


def _is_constant(value: ir.Value) -> bool:
    return value.is_initializer() and not value.is_graph_input() and value.const_value is not None


def _become_initializer(node: ir.Node, tensor: ir.TensorProtocol) -> None:
    """Replace a node by an initializer of the same name."""
    out, graph = node.outputs[0], node.graph
    assert isinstance(graph, ir.Graph)  # noqa: S101 - functions are inlined
    value = ir.Value(
        name=out.name,
        type=ir.TensorType(tensor.dtype),
        shape=ir.Shape(tensor.shape.numpy()),
        const_value=tensor,
    )
    out.replace_all_uses_with(value)
    _remove(node)
    graph.register_initializer(value)


def _remove(node: ir.Node) -> None:
    if node.graph is not None:
        node.graph.remove(node, safe=True)


def _name_uniquely(model: ir.Model) -> set[str]:
    """Name nodes and initializers; return the names of the initializers."""
    nodes: set[str] = set()
    for node in _nodes(model):
        node.name = _unused(node.name or node.op_type, nodes)
    tensors: set[str] = set()
    for graph in model.graphs():
        for value in tuple(graph.initializers.values()):
            value.name = _unused(value.name or "weight", tensors)
    return tensors


def _unused(name: str, taken: set[str]) -> str:
    """Return `name`, or `name` with the first number that makes it new; remember the result."""
    chosen = name
    if chosen in taken:
        chosen = next(c for i in count(1) if (c := f"{name}_{i}") not in taken)
    taken.add(chosen)
    return chosen
