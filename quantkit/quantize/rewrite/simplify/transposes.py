"""Transposes of Transposes.

``Transpose(Transpose(x, p), q) = Transpose(x, r)`` with ``r[i] = p[q[i]]``; nothing if r is the identity.

The inner one is fused only if it has no other consumers, so that work never grows; where r is the identity, x is
there already and the inner one may have other consumers.
"""

from collections.abc import Sequence

import onnx_ir as ir

from quantkit.model.graph.edit import bypass, discard, is_op, nodes_of, producer_of, sole_reader
from quantkit.model.graph.shapes import integers


def transposes(model: ir.Model) -> int:
    """Fuse consecutive Transposes and remove those that cancel; return how many went."""
    # In order: each one meets a chain that is one node already.
    return sum(_fuse(node) for node in nodes_of(model) if is_op(node, "Transpose"))


def _fuse(outer: ir.Node) -> bool:
    middle = outer.inputs[0]
    inner = producer_of(middle)
    if middle is None or inner is None or not is_op(inner, "Transpose"):
        return False
    source, composed = inner.inputs[0], _composed(inner, outer)
    if source is None or composed is None:
        return False
    if list(composed) == sorted(composed):
        cancelled = bypass(outer, source)
        if _is_unread(middle):
            discard(inner)
        return cancelled
    if sole_reader(middle) is not outer:
        return False
    outer.replace_input_with(0, source)
    outer.attributes["perm"] = ir.AttrInt64s("perm", composed)
    discard(inner)
    return True


def _is_unread(value: ir.Value) -> bool:
    """Say whether nobody needs a value any more."""
    return not value.uses() and not value.is_graph_output()


def _composed(inner: ir.Node, outer: ir.Node) -> Sequence[int] | None:
    """Return r; None if a permutation is the default one and the rank is not known."""
    p, q = (integers(node, -1, "perm") for node in (inner, outer))
    if p is None and q is None:
        return ()  # twice reversed, whatever the rank
    rank = len(q or ()) if p is None else len(p)
    p = tuple(range(rank))[::-1] if p is None else p
    q = tuple(range(rank))[::-1] if q is None else q
    return [p[i] for i in q] if len(p) == len(q) else None
