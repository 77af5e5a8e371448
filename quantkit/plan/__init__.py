"""Decisions: a pure function from facts to a plan. Knows neither onnx nor onnxruntime."""

from quantkit.plan.dynamic import DynamicOptions, plan_dynamic
from quantkit.plan.model import Mode, NodePlan, Plan, WeightPlan

__all__ = ["DynamicOptions", "Mode", "NodePlan", "Plan", "WeightPlan", "plan_dynamic"]
