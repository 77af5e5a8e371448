"""Nodes and constants that no output depends on go; constants that a model holds twice are stored once.

1. Constants of equal type, shape and contents become one. Contents are read only where the first and last value agree,
   once each, and compared by a hash of 128 bits. Graph inputs (their values are defaults) and outputs (their names are
   public) stay.
2. A matrix that is the transpose of another one, as the head of a language model is its embedding's, is read through a
   Transpose, which runtimes compute once, at load; a Gemm reads the other one with `transB` flipped.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping
from hashlib import blake2b
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.model.graph.edit import (
    Names,
    constant,
    discard,
    is_op,
    own_name,
    subgraphs_of,
    value_names,
)
from quantkit.model.graph.mapping import ends_of

# Values of a weight that is stored once for several consumers: for less, a node more does not pay.
LEAST_TIED = 1 << 12
# Bytes. Of more, runtimes do not fold the Transpose at load, but compute it in every run.
_MOST_TIED = 1 << 30
_BLOCK = 1 << 18  # values that are hashed at once
# A node of another domain may be there for what it does, not for its result.
_PURE = frozenset({"", "ai.onnx.ml", "com.microsoft"})


def initializers(model: ir.Model) -> int:
    """Remove unused nodes and initializers, and merge equal initializers; return how many went."""
    dead = _drop_nodes(model.graph) + sum(_drop_unread(graph) for graph in model.graphs())
    return dead + _merge_equal(model) + _tie_transposed(model)


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


def tie_weights(model: ir.Model) -> int:
    """Store weights that are there twice, as they are or transposed, once; return how many went."""
    return _merge_equal(model, LEAST_TIED) + _tie_transposed(model)


def _merge_equal(model: ir.Model, least: int = 0) -> int:
    """Merge equal constants of at least so many values, graph by graph; return how many went."""
    return sum(_merge(graph, least) for graph in model.graphs())


def _merge(graph: ir.Graph, least: int) -> int:
    alike = defaultdict[Hashable, list[ir.Value]](list)
    for value in graph.initializers.values():
        tensor = constant(value)
        if tensor is None or tensor.dtype is ir.DataType.STRING or value.is_graph_output():
            continue
        if tensor.size >= least:
            alike[tensor.dtype, tuple(tensor.shape.numpy())].append(value)
    count = 0
    for values in _suspects(alike):
        first: dict[bytes, ir.Value] = {}
        for value in values:
            kept = first.setdefault(_digest(_array(value)), value)
            if kept is not value:
                value.replace_all_uses_with(kept)
                del graph.initializers[own_name(value)]
                count += 1
    return count


def _suspects(alike: Mapping[Hashable, list[ir.Value]]) -> Iterator[list[ir.Value]]:
    """Yield the constants of one kind that begin and end with the same values: all others need not be read."""
    for values in alike.values():
        if len(values) > 1:
            same = defaultdict[bytes, list[ir.Value]](list)
            for value in values:
                tensor = constant(value)
                same[b"" if tensor is None else ends_of(tensor)].append(value)
            yield from (some for some in same.values() if len(some) > 1)


def _array(value: ir.Value) -> NDArray[Any]:
    tensor = constant(value)
    assert tensor is not None  # noqa: S101 - only constants are compared
    return tensor.numpy()


def _digest(array: NDArray[Any]) -> bytes:
    """Hash contents bit for bit: NaN is itself, and 0 is not -0. A transposed view is copied block by block."""
    digest = blake2b(digest_size=16)
    rows = array if array.ndim else array.reshape(1)
    step = max(1, _BLOCK * len(rows) // max(1, rows.size))
    for i in range(0, len(rows), step):
        digest.update(rows[i : i + step].tobytes())
    return digest.digest()


def _tie_transposed(model: ir.Model) -> int:
    """Let products read the transpose of a matrix that is there already, in the main graph; return how many went."""
    alike = defaultdict[Hashable, list[ir.Value]](list)
    for value in model.graph.initializers.values():
        tensor = constant(value)
        if tensor is None or len(tensor.shape) != 2 or value.is_graph_output():
            continue
        if tensor.size >= LEAST_TIED and tensor.nbytes < _MOST_TIED:
            alike[tensor.dtype, tuple(sorted(tensor.shape.numpy()))].append(value)
    return sum(_tie(model, values) for values in _suspects(alike))


def _tie(model: ir.Model, values: list[ir.Value]) -> int:
    names, count = None, 0
    keys = {value: _key(_array(value)) for value in values}
    stored = {key: value for value, key in keys.items()}
    for value in filter(_is_product_only, values):
        kept = stored.get(_key(_array(value).T), value)
        if kept is value:  # there is none, or it is symmetric
            continue
        names = names or value_names(model)
        _read_transposed(model.graph, value, kept, names)
        del stored[keys[value]]
        count += 1
    return count


def _key(matrix: NDArray[Any]) -> Hashable:
    return matrix.shape, _digest(matrix)


def _is_product_only(value: ir.Value) -> bool:
    """Say whether nothing but MatMul, of its right side, and Gemm read a matrix."""
    return bool(value.uses()) and all(
        is_op(use.node, "MatMul", "Gemm") and use.idx == 1 for use in value.uses()
    )


def _read_transposed(graph: ir.Graph, value: ir.Value, kept: ir.Value, names: Names) -> None:
    """Let a Gemm read `kept` the other way around, and all others its Transpose."""
    others = []
    for use in tuple(value.uses()):
        if is_op(use.node, "Gemm"):
            flipped = 1 - use.node.attributes.get_int("transB", 0)
            use.node.attributes["transB"] = ir.AttrInt64("transB", flipped)
            use.node.replace_input_with(use.idx, kept)
        else:
            others.append(use)
    name = own_name(value)
    del graph.initializers[name]
    if not others:
        return
    node = ir.node(
        "Transpose", [kept], {"perm": [1, 0]}, name=names.fresh(f"{name}_tied_Transpose")
    )
    out = node.outputs[0]
    out.name, out.type, out.shape = name, value.type, value.shape
    for use in others:
        use.node.replace_input_with(use.idx, out)
    graph.insert_before(next(iter(graph)), node)
