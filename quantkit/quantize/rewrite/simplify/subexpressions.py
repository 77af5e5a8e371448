"""Nodes that compute the same from the same inputs become one.

The same: operator, attributes, inputs, and which outputs are asked for; within one graph. Operators that draw random
numbers, that hold subgraphs, or of a domain that is not ONNX's own are left alone.
"""

from collections.abc import Hashable

import onnx_ir as ir

from quantkit.model.graph.edit import can_redirect, discard, is_op, redirect

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
