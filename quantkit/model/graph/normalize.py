"""The form in which all later stages see a graph.

1. Model-local functions are inlined (graph traversal does not visit them).
2. Large `Constant` nodes are initializers.
3. ``Identity(initializer)`` is that initializer: exporters write shared weights this way. So is a state that a Loop or Scan begins with
   and only hands on (`quantkit.model.graph.carries`).
4. Node names are unique and not empty; no value has the name of another, in any graph.
5. Weights that are assembled from constants are initializers (`quantkit.model.graph.fold`).
6. Initializers are not graph inputs if the IR version is below 4, where they had to be listed
   (done before 2 to 5, which leave graph inputs alone).

Nothing else changes: outputs are the same, bit for bit.
"""

import os
from collections.abc import Iterator

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from quantkit.model.graph._wire import LIMIT
from quantkit.model.graph.carries import read_carried_constants
from quantkit.model.graph.edit import (
    Names,
    add_initializer,
    discard,
    is_op,
    nodes_of,
    owner_of,
)
from quantkit.model.graph.fold import fold_weights
from quantkit.model.ops.float_ops import PRODUCTS

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
    for node in nodes_of(model):
        _lift_constant(node) or _drop_identity(node)
    if read_carried_constants(model):
        for node in nodes_of(model):
            _drop_identity(node)
    _name_nodes(model)
    names = _name_values(model)
    fold_weights(model, names)


def fix_defaults(model: ir.Model, *, keep: bool = False) -> str:
    """Take initializers that are inputs too, whose values a caller may replace, as constants; say so, "" if there are none.

    What is quantized fits the values in the file and no others.

    Args:
        model: The model; such inputs are no longer listed.
        keep: Leave them as they are: what reads them then stays float.
    """
    listed = [v.name or "" for v in model.graph.inputs if v.is_initializer()]
    if not listed or keep or os.environ.get(KEEP_INPUTS):
        return ""
    _unlist(model)
    return (
        f"{len(listed)} inputs that have a value in the file are constants now (the first: '{listed[0]}'); "
        "--keep-inputs keeps them as inputs, in float."
    )


def _unlist_initializers(model: ir.Model) -> None:
    if (model.ir_version or 0) < _IR_WITHOUT_LISTED_INITIALIZERS:
        model.ir_version = _IR_WITHOUT_LISTED_INITIALIZERS
        _unlist(model)


def _unlist(model: ir.Model) -> None:
    kept = [v for v in model.graph.inputs if not v.is_initializer()]
    model.graph.inputs.clear()
    model.graph.inputs.extend(kept)


def lift_weights(model: ir.Model) -> None:
    """Let products read weights and biases from initializers, however small: that is where they are looked for."""
    for node in nodes_of(model):
        read = (use for out in node.outputs for use in out.uses())
        if any(use.idx and is_op(use.node, *PRODUCTS) for use in read):
            _lift_constant(node, least=0)


def lift_floats(model: ir.Model) -> None:
    """Make initializers of all floats of the main graph that Constant nodes hold, however small and in whichever attribute."""
    for node in list(model.graph):
        out = node.outputs[0] if is_op(node, "Constant") and node.outputs else None
        tensor = None if out is None else ir.convenience.get_const_tensor(out)
        if out is None or tensor is None or tensor.dtype is not ir.DataType.FLOAT:
            continue
        if out.name and not out.is_graph_output():
            out.replace_all_uses_with(add_initializer(model.graph, out.name, tensor))
            discard(node)


def _lift_constant(node: ir.Node, least: int = LIMIT) -> bool:
    if node.op_type != "Constant" or node.domain or len(node.outputs) != 1:
        return False
    attribute = node.attributes.get("value")
    if attribute is None or attribute.type is not ir.AttributeType.TENSOR:
        return False
    tensor, out = attribute.as_tensor(), node.outputs[0]
    if tensor.nbytes < least or out.is_graph_output() or out.name is None:
        return False
    out.replace_all_uses_with(add_initializer(owner_of(node), out.name, tensor))
    discard(node)
    return True


def _drop_identity(node: ir.Node) -> bool:
    if node.op_type != "Identity" or node.domain or len(node.inputs) != 1 or not node.outputs:
        return False
    source, out = node.inputs[0], node.outputs[0]
    if source is None or not _is_constant(source) or out.is_graph_output():
        return False
    out.replace_all_uses_with(source)
    discard(node)
    return True


def _is_constant(value: ir.Value) -> bool:
    return value.is_initializer() and not value.is_graph_input() and value.const_value is not None


def _name_nodes(model: ir.Model) -> None:
    """Give each node a name of its own; of several equal names the first stays."""
    nodes = nodes_of(model)
    names = Names(node.name for node in nodes if node.name)
    seen: set[str] = set()
    for node in nodes:
        if not node.name or node.name in seen:
            node.name = names.fresh(node.name or node.op_type)
        seen.add(node.name)


def _name_values(model: ir.Model) -> Names:
    """Give no value the name of another, in whatever graph; return all names in use."""
    # ONNX lets a subgraph shadow an outer name, and two branches of an If may use one name for two weights or two
    # results. Every later stage keys weights and tensors by name alone (a plan, ranges, moments, the tables of the
    # rewrites), so names are made unique over all graphs once, here. What keeps its name: what the caller feeds or
    # fetches by it (inputs and outputs of the main graph), and the first of a name, what is computed before what is
    # stored. Names of initializers are held before any is renewed: a new one must not hit one that comes later.
    graphs = list(model.graphs())
    computed = [value for graph in graphs for value in _computed(graph) if value.name]
    stored = [value for graph in graphs for value in graph.initializers.values()]
    main = model.graph.initializers.values()
    public = [value for value in main if value.is_graph_input() or value.is_graph_output()]
    names = Names(value.name or "" for value in (*computed, *stored))
    seen: set[str | None] = set()
    for value in dict.fromkeys((*public, *computed, *stored)):
        if value.name in seen:
            value.name = names.renew(value.name or "")
        seen.add(value.name)
    return names


def _computed(graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield what a graph is given and what its own nodes make."""
    yield from (value for value in graph.inputs if not value.is_initializer())
    yield from (out for node in graph for out in node.outputs)
