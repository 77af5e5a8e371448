"""The static plan, executed: the same decisions as QDQ pairs or as QLinear operators."""

import onnx_ir as ir

from quantkit.emit.barriers import part_subgraphs, shield
from quantkit.emit.dynamic import emit_rest
from quantkit.emit.parts import Parts, drop_absorbed, drop_unread
from quantkit.emit.qdq import emit_qdq
from quantkit.emit.qlinear import emit_qoperator
from quantkit.emit.weights import Weights
from quantkit.graph.edit import Canvas
from quantkit.plan.integers import SolvedIntegers
from quantkit.plan.model import Format, Plan
from quantkit.targets import target as target_named

__all__ = ["Format", "emit_static"]


def emit_static(
    model: ir.Model, plan: Plan, solved: SolvedIntegers, output_format: Format = Format.QDQ
) -> None:
    """Rewrite `model` in place as `plan` says, with the integers that `solved` holds.

    Args:
        model: The float model that was planned; it is rewritten.
        plan: What was decided.
        solved: Integers and biases; weights that it lacks are rounded to nearest.
        output_format: Q/DQ pairs around float operators, or QLinear operators.
    """
    assert plan.target is not None  # noqa: S101 - of older files it is filled in before
    target, canvas = target_named(plan.target), Canvas(model)
    drop_absorbed(canvas, plan)
    weights = Weights(canvas, plan, solved)
    parts = Parts(canvas, plan, weights, solved)
    match output_format:
        case Format.QDQ:
            emit_qdq(parts, target.bare)
        case Format.QOPERATOR:
            emit_qoperator(parts, target.moves)
    drop_unread(canvas, plan)
    emit_rest(canvas, weights, plan)
    if target.needs_barriers:
        shield(canvas, plan, target)
    part_subgraphs(canvas)
