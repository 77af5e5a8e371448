"""Decisions: which node runs how, which tensor is quantized how, and why. Pure functions, frozen data.

May import ops, with the view of a graph that it plans, spec and targets; neither onnx nor onnxruntime.
"""

from quantkit.quantize.plan.blocks import plan_blocks
from quantkit.quantize.plan.check_plan import check_fits, check_operators, opset_for
from quantkit.quantize.plan.check_target import check_settings, check_target_of
from quantkit.quantize.plan.dynamic import plan_dynamic
from quantkit.quantize.plan.half import plan_half
from quantkit.quantize.plan.model import (
    ActivationPlan,
    Format,
    Kept,
    Mode,
    NodePlan,
    Plan,
    WeightPlan,
    diff_plans,
    read_plan,
    write_plan,
)
from quantkit.quantize.plan.solved import SolvedIntegers
from quantkit.quantize.plan.static import missing_ranges, plan_static, ranges_needed

__all__ = [
    "ActivationPlan",
    "Format",
    "Kept",
    "Mode",
    "NodePlan",
    "Plan",
    "SolvedIntegers",
    "WeightPlan",
    "check_fits",
    "check_operators",
    "check_settings",
    "check_target_of",
    "diff_plans",
    "missing_ranges",
    "opset_for",
    "plan_blocks",
    "plan_dynamic",
    "plan_half",
    "plan_static",
    "ranges_needed",
    "read_plan",
    "write_plan",
]
