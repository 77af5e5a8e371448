"""Relu and Clip that QLinear operators do on integers, because the scale of their result does not end where they clip."""

import numpy as np
import onnx_ir as ir

from quantkit.graph.edit import Canvas, owner_of
from quantkit.plan.model import ActivationPlan, Mode, Plan

__all__ = ["Bounds", "integer_bounds", "lift_clips"]

Bounds = tuple[float, float]
_CLIPS = frozenset({"Clip", "Relu"})


def lift_clips(canvas: Canvas, plan: Plan) -> dict[ir.Value, Bounds]:
    """Remove Relu and Clip that the plan counts to the kernel before them; return how each result is clipped."""
    found: dict[ir.Value, Bounds] = {}
    for node in list(canvas.model.graph.all_nodes()):
        decided, source = plan.node.get(node.name or ""), node.inputs[0] if node.inputs else None
        if decided is None or decided.mode is not Mode.STATIC or node.op_type not in _CLIPS:
            continue
        if source is None or source.name in plan.activation:
            continue
        low, high = found.get(source, (-np.inf, np.inf))
        own = _bounds(node)
        canvas.replace(node, source)
        owner_of(node).remove(node, safe=True)
        found[source] = (max(low, own[0]), min(high, own[1]))
    return found


def _bounds(node: ir.Node) -> Bounds:
    if node.op_type == "Relu":
        return 0.0, np.inf
    given = [node.inputs[slot] if slot < len(node.inputs) else None for slot in (1, 2)]
    tensors = [None if v is None else ir.convenience.get_const_tensor(v) for v in given]
    low, high = (None if t is None else float(t.numpy()) for t in tensors)
    return -np.inf if low is None else low, np.inf if high is None else high


def integer_bounds(bounds: Bounds, plan: ActivationPlan) -> tuple[int, int]:
    """Return ``rint(bound / s) + z``, within the type."""
    ends = np.clip(
        np.rint(np.asarray(bounds) / plan.scale) + plan.zero_point, plan.dtype.qmin, plan.dtype.qmax
    )
    return int(ends[0]), int(ends[1])
