"""Constants that are there twice are stored once; constants and nodes that nobody needs go.

Contents are read only where dtype and shape agree, and compared by a hash of 128 bits. An initializer that is
an input is a default, not a constant, and one that is an output has a name to keep: both stay.
"""

from collections import defaultdict
from hashlib import blake2b

import numpy as np
import onnx_ir as ir

from quantkit.graph.edit import discard
from quantkit.graph.shapes import constant

__all__ = ["initializers"]

# A node of another domain may be there for what it does, not for what it returns.
_PURE = frozenset({"", "ai.onnx.ml", "com.microsoft"})


def initializers(model: ir.Model) -> int:
    """Remove nodes and initializers that nobody needs, and merge equal initializers; return how many went."""
    dead = _drop_nodes(model.graph)
    for graph in model.graphs():
        dead += _drop_unread(graph) + _merge(graph)
    return dead


def _drop_nodes(graph: ir.Graph) -> int:
    """Go backwards: a node's readers are gone before it is looked at."""
    count = 0
    for node in reversed(graph):
        if node.domain in _PURE and not any(o.uses() or o.is_graph_output() for o in node.outputs):
            discard(node)
            count += 1
            continue
        for attribute in node.attributes.values():
            if attribute.type is ir.AttributeType.GRAPH:
                count += _drop_nodes(attribute.as_graph())
            elif attribute.type is ir.AttributeType.GRAPHS:
                count += sum(_drop_nodes(body) for body in attribute.as_graphs())
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


def _merge(graph: ir.Graph) -> int:
    alike = defaultdict[tuple[ir.DataType, tuple[int, ...]], list[ir.Value]](list)
    for value in graph.initializers.values():
        tensor = constant(value)
        if tensor is None or tensor.dtype is ir.DataType.STRING or value.is_graph_output():
            continue
        alike[tensor.dtype, tuple(tensor.shape.numpy())].append(value)
    return sum(_merge_alike(graph, values) for values in alike.values() if len(values) > 1)


def _merge_alike(graph: ir.Graph, values: list[ir.Value]) -> int:
    count, first = 0, dict[bytes, ir.Value]()
    for value in values:
        kept = first.setdefault(_digest(value), value)
        if kept is not value:
            value.replace_all_uses_with(kept)
            del graph.initializers[value.name or ""]
            count += 1
    return count


def _digest(value: ir.Value) -> bytes:
    tensor = constant(value)
    assert tensor is not None  # noqa: S101 - only constants are compared
    array = tensor.numpy()
    plain = array.dtype.isbuiltin == 1
    contents = (
        np.ascontiguousarray(array).data.cast("B") if plain and array.size else tensor.tobytes()
    )
    return blake2b(contents, digest_size=16).digest()
