"""The form in which all later stages see a graph.

1. Model-local functions are inlined (graph traversal does not visit them).
2. Large `Constant` nodes are initializers.
3. ``Identity(initializer)`` is that initializer: exporters write shared weights this way.
4. Node names are unique and not empty; no initializer has the name of another value, in any graph.
5. Weights that are assembled from constants are initializers (`quantkit.graph.fold`).
6. Initializers are not graph inputs if the IR version is below 4, where they had to be listed
   (done before 2 to 5, which leave graph inputs alone).

Nothing else changes: outputs are the same, bit for bit.
"""

import os
from collections.abc import Iterator

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from quantkit.graph._wire import LIMIT
from quantkit.graph.edit import Names, add_initializer
from quantkit.graph.fold import fold_weights

__all__ = ["fix_defaults", "inline_functions", "normalize"]

KEEP_INPUTS = "QUANTKIT_KEEP_INPUTS"

_IR_WITHOUT_LISTED_INITIALIZERS = 4


def inline_functions(model: ir.Model) -> None:
    """Do step 1; apart from the others because external data is looked up between the two."""
    if model.functions:
        InlinePass()(model)
        model.functions.clear()  # of functions that nobody calls


def normalize(model: ir.Model) -> None:
    """Do steps 2 to 6, in place. Linear in the number of nodes."""
    _unlist_initializers(model)
    for node in list(_nodes(model)):
        _lift_constant(node) or _drop_identity(node)
    _name_nodes(model)
    names = _name_initializers(model)
    fold_weights(model, names.renew)


def fix_defaults(model: ir.Model) -> str:
    """Take initializers that are inputs too, whose values a caller may replace, as constants; say so, "" if there are none.

    What is quantized fits the values in the file and no others. The environment variable QUANTKIT_KEEP_INPUTS leaves such
    inputs as they are, and in float.
    """
    listed = [v.name or "" for v in model.graph.inputs if v.is_initializer()]
    if not listed or os.environ.get(KEEP_INPUTS):
        return ""
    _unlist(model)
    return (
        f"{len(listed)} inputs that have a value in the file are constants now (the first: '{listed[0]}'); "
        f"{KEEP_INPUTS}=1 keeps them as inputs, in float."
    )


def _unlist_initializers(model: ir.Model) -> None:
    if (model.ir_version or 0) < _IR_WITHOUT_LISTED_INITIALIZERS:
        model.ir_version = _IR_WITHOUT_LISTED_INITIALIZERS
        _unlist(model)


def _unlist(model: ir.Model) -> None:
    kept = [v for v in model.graph.inputs if not v.is_initializer()]
    model.graph.inputs.clear()
    model.graph.inputs.extend(kept)


def _nodes(model: ir.Model) -> Iterator[ir.Node]:
    return iter(model.graph.all_nodes())


def _lift_constant(node: ir.Node) -> bool:
    if node.op_type != "Constant" or node.domain or len(node.outputs) != 1:
        return False
    attribute = node.attributes.get("value")
    if attribute is None or attribute.type is not ir.AttributeType.TENSOR:
        return False
    tensor, out = attribute.as_tensor(), node.outputs[0]
    if tensor.nbytes < LIMIT or out.is_graph_output() or out.name is None:
        return False
    _become_initializer(node, tensor)
    return True


def _drop_identity(node: ir.Node) -> bool:
    if node.op_type != "Identity" or node.domain or len(node.inputs) != 1 or not node.outputs:
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
    out.replace_all_uses_with(add_initializer(graph, out.name or "", tensor))
    _remove(node)


def _remove(node: ir.Node) -> None:
    if node.graph is not None:
        node.graph.remove(node, safe=True)


def _name_nodes(model: ir.Model) -> None:
    """Give each node a name of its own; of several equal names the first stays."""
    nodes = list(_nodes(model))
    names = Names(node.name for node in nodes if node.name)
    seen: set[str] = set()
    for node in nodes:
        if not node.name or node.name in seen:
            node.name = names.fresh(node.name or node.op_type)
        seen.add(node.name)


def _name_initializers(model: ir.Model) -> Names:
    """Give no initializer the name of another value, in whatever graph; return all names in use."""
    # ONNX lets a subgraph shadow an outer name, and two branches of an If may use one name for two weights. Every
    # later stage keys weights by name alone (a plan's weights, moments, the tables of the rewrites), so names are
    # made unique over all graphs once, here. Three cases keep their name: what the caller feeds or fetches by it
    # (inputs and outputs of the main graph), the first initializer of a name, and whatever nodes make. Names of
    # initializers are held before any is renewed: a new one must not hit one that comes later.
    graphs = list(model.graphs())
    others = [out for node in _nodes(model) for out in node.outputs]
    others += [v for graph in graphs for v in graph.inputs if not v.is_initializer()]
    seen = {value.name for value in others if value.name}
    names = Names(value.name for value in others if value.name)
    names.hold(name for graph in graphs for name in graph.initializers)
    for graph in graphs:
        for value in tuple(graph.initializers.values()):
            public = graph is model.graph and (value.is_graph_input() or value.is_graph_output())
            if not public and (not value.name or value.name in seen):
                value.name = names.renew(value.name or "weight")
            seen.add(value.name or "")
    return names
