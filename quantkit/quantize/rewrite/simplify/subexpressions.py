"""What is there twice is kept once, and what nobody needs goes: nodes and constants.

Two nodes that compute the same from the same become one. The same: operator, attributes, inputs, and which outputs are asked for; within one graph. Operators that draw
random numbers, that hold subgraphs, or whose domain is not ONNX's own are left alone.

Constants that are there twice are stored once. Contents are read only where dtype, shape, first and last value agree, once each, and compared by a hash of 128 bits. An initializer that is
an input is a default, not a constant, and one that is an output has a name to keep: both stay. So is a matrix that is another one's transpose, as the head of a
language model is its embedding's: products read it through a Transpose, which runtimes compute once, at load.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping
from hashlib import blake2b

import numpy as np
import onnx_ir as ir

from quantkit.model.graph.edit import (
    Names,
    can_redirect,
    constant,
    discard,
    is_op,
    redirect,
    value_names,
)
from quantkit.model.graph.mapping import ends_of
from quantkit.quantize.rewrite.simplify.constants import LEAST_TIED

__all__ = ["initializers", "subexpressions", "tie_weights"]

# A node of another domain may be there for what it does, not for what it returns.
_PURE = frozenset({"", "ai.onnx.ml", "com.microsoft"})


def initializers(model: ir.Model) -> int:
    """Remove nodes and initializers that nobody needs, and merge equal initializers; return how many went."""
    dead = _drop_nodes(model.graph)
    for graph in model.graphs():
        dead += _drop_unread(graph) + _merge_constants(graph)
    return dead + _tie_transposed(model)


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


def tie_weights(model: ir.Model) -> int:
    """Store weights that are there twice, as they are or transposed, once; return how many went."""
    merged = sum(_merge_constants(graph, LEAST_TIED) for graph in model.graphs())
    return merged + _tie_transposed(model)


def _merge_constants(graph: ir.Graph, least: int = 0) -> int:
    alike = defaultdict[Hashable, list[ir.Value]](list)
    for value in graph.initializers.values():
        tensor = constant(value)
        if tensor is None or tensor.dtype is ir.DataType.STRING or value.is_graph_output():
            continue
        if tensor.size < least:
            continue
        alike[tensor.dtype, tuple(tensor.shape.numpy())].append(value)
    return sum(_merge_alike(graph, values) for values in _suspects(alike))


def _suspects(alike: Mapping[Hashable, list[ir.Value]]) -> Iterator[list[ir.Value]]:
    """Yield the constants of one kind that begin and end with the same values: all others need not be read."""
    for values in alike.values():
        if len(values) > 1:
            same = defaultdict[bytes, list[ir.Value]](list)
            for value in values:
                same[ends_of(_tensor(value))].append(value)
            yield from (some for some in same.values() if len(some) > 1)


def _merge_alike(graph: ir.Graph, values: list[ir.Value]) -> int:
    count, first = 0, dict[bytes, ir.Value]()
    for value in values:
        kept = first.setdefault(_digest(_tensor(value)), value)
        if kept is not value:
            value.replace_all_uses_with(kept)
            del graph.initializers[value.name or ""]
            count += 1
    return count


def _tensor(value: ir.Value) -> ir.TensorProtocol:
    tensor = constant(value)
    assert tensor is not None  # noqa: S101 - only constants are compared
    return tensor


def _digest(tensor: ir.TensorProtocol) -> bytes:
    array = tensor.numpy()
    plain = array.dtype.isbuiltin == 1
    contents = (
        np.ascontiguousarray(array).data.cast("B") if plain and array.size else tensor.tobytes()
    )
    return blake2b(contents, digest_size=16).digest()


# Bytes. Of more, runtimes do not fold the Transpose at load, but compute it in every run.
_MOST_TIED = 1 << 30
_BLOCK = 1 << 18  # values of a matrix that are turned at once


def _tie_transposed(model: ir.Model) -> int:
    """Let products read the transpose of a matrix that is there already, in the main graph."""
    alike = defaultdict[Hashable, list[ir.Value]](list)
    for value in model.graph.initializers.values():
        tensor = constant(value)
        if tensor is None or len(tensor.shape) != 2 or value.is_graph_output():
            continue
        if tensor.size >= LEAST_TIED and tensor.nbytes < _MOST_TIED:
            alike[tensor.dtype, tuple(sorted(tensor.shape.numpy()))].append(value)
    names, count = None, 0
    for values in _suspects(alike):
        digests = {v: _turned_digest(v, turned=False) for v in values}
        stored = {digest: v for v, digest in digests.items()}
        for value in filter(_is_product_only, values):
            kept = stored.get(_turned_digest(value, turned=True), value)
            if kept is value:  # there is none, or it is symmetric
                continue
            names = names or value_names(model)
            _read_transposed(model.graph, value, kept, names)
            del stored[digests[value]]
            count += 1
    return count


def _is_product_only(value: ir.Value) -> bool:
    """Say whether nothing but MatMul, of its right side, and Gemm read a matrix."""
    return bool(value.uses()) and all(
        is_op(use.node, "MatMul", "Gemm") and use.idx == 1 for use in value.uses()
    )


def _turned_digest(value: ir.Value, *, turned: bool) -> Hashable:
    """Return shape and digest of a matrix, or of its transpose. Bit for bit: NaN is itself, and 0 is not -0."""
    array = _tensor(value).numpy()
    array = array.T if turned else array
    digest, rows = blake2b(digest_size=16), max(1, _BLOCK // array.shape[1])
    for i in range(0, len(array), rows):
        digest.update(array[i : i + rows].tobytes())
    return array.shape, digest.digest()


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
    name = value.name or ""
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


_DOMAINS = frozenset({"", "ai.onnx.ml"})
# Dropout with a training input draws too; without one it is gone before this pass, or not worth it.
_DRAWS = """
    Bernoulli Dropout Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike
"""
_RANDOM = frozenset(_DRAWS.split())
_LARGEST = 1024  # bytes of a tensor in an attribute that is compared


def subexpressions(model: ir.Model) -> int:
    """Merge nodes that compute the same; return how many went."""
    return sum(_merge(graph) for graph in model.graphs())


def _merge(graph: ir.Graph) -> int:
    count, first = 0, dict[Hashable, ir.Node]()
    for node in graph:  # in order: whatever a node reads is merged before it
        key = _key(node)
        if key is None:
            continue
        kept = first.setdefault(key, node)
        if kept is not node and _replace(node, kept):
            count += 1
    return count


def _replace(node: ir.Node, kept: ir.Node) -> bool:
    pairs = list(zip(node.outputs, kept.outputs, strict=True))
    if not all(can_redirect(old, new) for old, new in pairs):
        return False
    for old, new in pairs:
        redirect(old, new)
    discard(node)
    return True


def _key(node: ir.Node) -> Hashable | None:
    if node.domain not in _DOMAINS or is_op(node, *_RANDOM):
        return None
    attributes = []
    for attribute in node.attributes.values():
        content = _content(attribute)
        if content is None:
            return None
        attributes.append((attribute.name, attribute.type, content))
    asked = tuple(bool(out.name) for out in node.outputs)
    return node.op_identifier(), tuple(node.inputs), asked, tuple(sorted(attributes))


def _content(attribute: ir.Attr) -> Hashable | None:
    """Return what two attributes are compared by; None if that is not possible, or not cheap."""
    kind = attribute.type
    if attribute.is_ref():
        return None
    if kind in (ir.AttributeType.INT, ir.AttributeType.FLOAT, ir.AttributeType.STRING):
        return repr(attribute.value)  # NaN equals itself, 0.0 is not -0.0
    if kind in (ir.AttributeType.INTS, ir.AttributeType.FLOATS, ir.AttributeType.STRINGS):
        return repr(tuple(attribute.value))
    if kind is not ir.AttributeType.TENSOR:
        return None
    tensor = attribute.as_tensor()
    if tensor.dtype is ir.DataType.STRING or tensor.nbytes > _LARGEST:
        return None
    return repr((tensor.dtype, tuple(tensor.shape.numpy()), tensor.tobytes()))
