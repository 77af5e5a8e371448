"""Nodes and constants that no output depends on go; constants that are there twice are stored once."""

import onnx_ir as ir

from quantkit.model.graph.edit import discard, subgraphs_of
from quantkit.quantize.rewrite.simplify.tied_weights import merge_constants, tie_transposed

__all__ = ["initializers"]

# A node of another domain may be there for what it does, not for its result.
_PURE = frozenset({"", "ai.onnx.ml", "com.microsoft"})


def initializers(model: ir.Model) -> int:
    """Remove unused nodes and initializers, and merge equal initializers; return how many went."""
    dead = _drop_nodes(model.graph) + sum(_drop_unread(graph) for graph in model.graphs())
    return dead + merge_constants(model) + tie_transposed(model)


def _drop_nodes(graph: ir.Graph) -> int:
    """Go backwards: a node's consumers are gone before it is looked at."""
    count = 0
    for node in reversed(graph):
        if node.domain in _PURE and not any(o.uses() or o.is_graph_output() for o in node.outputs):
            discard(node)
            count += 1
        else:
            count += sum(_drop_nodes(body) for body in subgraphs_of(node))
    return count


def _drop_unread(graph: ir.Graph) -> int:
    unread = [
        name
        for name, value in graph.initializers.items()
        if not (value.uses() or value.is_graph_input() or value.is_graph_output())
    ]
    for name in unread:
        del graph.initializers[name]
    return len(unread)
