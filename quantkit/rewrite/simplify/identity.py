"""``y = Identity(x)``: whoever reads y reads x.

Kept where y is an output that x cannot take the name of: x is an input, an initializer, an output itself, or
lives in an outer graph.
"""

import onnx_ir as ir

from quantkit.graph.known import is_op
from quantkit.rewrite.simplify._rewrite import bypass, nodes_of

__all__ = ["identity"]


def identity(model: ir.Model) -> int:
    """Remove Identity nodes; return how many."""
    return sum(_remove(node) for node in nodes_of(model) if is_op(node, "Identity"))


def _remove(node: ir.Node) -> bool:
    source = node.inputs[0] if len(node.inputs) == 1 else None
    return source is not None and bypass(node, source)
