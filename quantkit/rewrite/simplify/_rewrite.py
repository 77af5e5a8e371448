"""The few ways in which passes change a graph.

Invariants of all of them: inputs are untouched; outputs keep names, order and declared types, of subgraphs
too; no value of one graph becomes an output of another. Names of values are unique along nested graphs: onnxruntime
refuses others.
"""

from collections.abc import Iterator

import onnx_ir as ir

from quantkit.graph.known import known, learn
from quantkit.graph.names import Names

__all__ = [
    "add_initializer",
    "bypass",
    "can_redirect",
    "discard",
    "nodes_of",
    "redirect",
    "sole_reader",
    "succeed",
    "value_names",
]


# Inputs of a reader above which it is left as it is: onnx-ir makes all of them anew for each that changes, so that a
# Sum of 100,000 equal terms would take an hour.
_WIDE = 1024


def nodes_of(model: ir.Model) -> list[ir.Node]:
    """Return all nodes in order, those of subgraphs included."""
    return list(model.graph.all_nodes())


def sole_reader(value: ir.Value) -> ir.Node | None:
    """Return the node that alone needs a value, once, in the value's own graph; None if others do too."""
    uses = value.uses()
    if len(uses) != 1 or value.is_graph_output():
        return None
    reader = next(iter(uses)).node
    return reader if reader.graph is value.graph else None


def can_redirect(old: ir.Value, new: ir.Value) -> bool:
    """Say whether `new` can stand for `old` everywhere.

    An output gives its name to what stands for it; inputs, initializers, other outputs and values of an
    outer graph have names of their own. Readers of thousands of values are left as they are.
    """
    if any(len(use.node.inputs) > _WIDE for use in old.uses()):
        return False
    if not old.is_graph_output():
        return True
    return new.producer() is not None and new.graph is old.graph and not new.is_graph_output()


def redirect(old: ir.Value, new: ir.Value) -> None:
    """Let everything that reads `old` read `new`, which has the same contents."""
    found = known(old)
    if found is not None and known(new) is None:
        learn(new, found)
    if not old.is_graph_output():
        old.replace_all_uses_with(new)
        return
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    _inherit(new, old)


def succeed(old: ir.Value, new: ir.Value) -> None:
    """Redirect `old` to `new`, which takes its name even if `old` is no output."""
    redirect(old, new)
    _inherit(new, old)


def _inherit(new: ir.Value, old: ir.Value) -> None:
    new.name = old.name
    new.type = old.type or new.type
    new.shape = old.shape


def bypass(node: ir.Node, source: ir.Value) -> bool:
    """Remove a node whose first output is `source` and whose others nobody reads; False if it must stay."""
    out = node.outputs[0]
    if not can_redirect(out, source):
        return False
    redirect(out, source)
    discard(node)
    return True


def discard(node: ir.Node) -> None:
    """Remove a node that nobody reads. Nodes of its subgraphs no longer count as readers either."""
    for graph in _subgraphs(node):
        for inner in graph.all_nodes():
            for slot in range(len(inner.inputs)):
                inner.replace_input_with(slot, None)
    if node.graph is not None:
        node.graph.remove(node, safe=True)


def _subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    for attribute in node.attributes.values():
        if attribute.type is ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type is ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def value_names(model: ir.Model) -> Names:
    """Return all names of values in use, of all graphs."""
    names = Names()
    for graph in model.graphs():
        names.hold(v.name for v in graph.inputs if v.name and not v.is_initializer())
        names.hold(graph.initializers)
        names.hold(out.name for node in graph for out in node.outputs if out.name)
    return names


def add_initializer(graph: ir.Graph, name: str, tensor: ir.TensorProtocol) -> ir.Value:
    """Add a constant to a graph; no value may have its name."""
    value = ir.Value(
        name=name,
        type=ir.TensorType(tensor.dtype),
        shape=ir.Shape(tensor.shape.numpy()),
        const_value=tensor,
    )
    graph.register_initializer(value)
    return value
