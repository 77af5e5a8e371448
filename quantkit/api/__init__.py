"""The calls of the public API, one file each."""

from quantkit.api.calibrate import calibrate
from quantkit.api.dynamic import check_extra_options, quantize_dynamic
from quantkit.api.evaluate import evaluate_models
from quantkit.api.optimize import optimize
from quantkit.api.plan import plan_static
from quantkit.api.static import quantize_static

__all__ = [
    "calibrate",
    "check_extra_options",
    "evaluate_models",
    "optimize",
    "plan_static",
    "quantize_dynamic",
    "quantize_static",
]
