"""quantkit: float32 ONNX models made small and fast, right on every CPU, never invalid.

    from quantkit import QUInt8, quantize_dynamic
    quantize_dynamic("model.onnx", "model.int8.onnx", QUInt8)

    from quantkit import quantize_static
    quantize_static("model.onnx", "model.int8.onnx", "images/")

Names are imported when they are first used, so that ``import quantkit`` costs nothing.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from quantkit._version import __version__

if TYPE_CHECKING:
    from quantkit.api import (
        calibrate,
        evaluate_models,
        optimize,
        plan_static,
        quantize_dynamic,
        quantize_static,
    )
    from quantkit.errors import QuantkitError
    from quantkit.observe import Calibration
    from quantkit.pipeline import QuantizeResult
    from quantkit.plan import Plan
    from quantkit.recipe import (
        DataSettings,
        GateSettings,
        ImageSettings,
        NodeRule,
        RecoverSettings,
        StaticSettings,
        TensorRule,
        TextSettings,
    )
    from quantkit.result import Result, load_result
    from quantkit.spec import QInt8, QuantType, QUInt8
    from quantkit.workflows.inspect import Inspection, inspect_model

# onnxruntime tells its makers of sessions, and keeps a number for this machine in the user's cache, unless this is set when
# it is imported. Who wants that sets it to 0.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

_HOME = {
    "Calibration": "quantkit.observe",
    "DataSettings": "quantkit.recipe",
    "GateSettings": "quantkit.recipe",
    "ImageSettings": "quantkit.recipe",
    "Inspection": "quantkit.workflows.inspect",
    "NodeRule": "quantkit.recipe",
    "Plan": "quantkit.plan",
    "QInt8": "quantkit.spec",
    "QUInt8": "quantkit.spec",
    "QuantType": "quantkit.spec",
    "QuantizeResult": "quantkit.pipeline",
    "QuantkitError": "quantkit.errors",
    "RecoverSettings": "quantkit.recipe",
    "Result": "quantkit.result",
    "StaticSettings": "quantkit.recipe",
    "TensorRule": "quantkit.recipe",
    "TextSettings": "quantkit.recipe",
    "calibrate": "quantkit.api",
    "evaluate_models": "quantkit.api",
    "inspect_model": "quantkit.workflows.inspect",
    "load_result": "quantkit.result",
    "optimize": "quantkit.api",
    "plan_static": "quantkit.api",
    "quantize_dynamic": "quantkit.api",
    "quantize_static": "quantkit.api",
}

__all__ = [
    "Calibration",
    "DataSettings",
    "GateSettings",
    "ImageSettings",
    "Inspection",
    "NodeRule",
    "Plan",
    "QInt8",
    "QUInt8",
    "QuantType",
    "QuantizeResult",
    "QuantkitError",
    "RecoverSettings",
    "Result",
    "StaticSettings",
    "TensorRule",
    "TextSettings",
    "__version__",
    "calibrate",
    "evaluate_models",
    "inspect_model",
    "load_result",
    "optimize",
    "plan_static",
    "quantize_dynamic",
    "quantize_static",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'quantkit' has no attribute '{name}'")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
