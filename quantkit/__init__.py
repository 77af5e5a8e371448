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
    from quantkit.api.calibrate import calibrate
    from quantkit.api.diff import diff_models, diff_results
    from quantkit.api.dynamic import quantize_dynamic
    from quantkit.api.evaluate import evaluate_models
    from quantkit.api.export import export_model
    from quantkit.api.float16 import quantize_float16
    from quantkit.api.gate import GateVerdict, gate_result
    from quantkit.api.optimize import optimize
    from quantkit.api.package import package_model
    from quantkit.api.report import ReportFiles, write_report
    from quantkit.api.static import (
        load_prepared,
        plan_prepared,
        plan_static,
        prepare_static,
        quantize_static,
        realize_plan,
        save_prepared,
    )
    from quantkit.api.tune import tune
    from quantkit.api.verify import verify_file
    from quantkit.api.view import ViewFiles, view_model
    from quantkit.api.weights import plan_weights, quantize_weights
    from quantkit.calibration import Calibration
    from quantkit.errors import QuantkitError
    from quantkit.evaluate.accuracy.user_metric import MetricFunction, check_metric
    from quantkit.evaluate.diff import ModelDiff, ResultDiff
    from quantkit.pipeline.export import ExportResult
    from quantkit.pipeline.inspect import Inspection, inspect_model
    from quantkit.pipeline.optimize import check_pass
    from quantkit.pipeline.package import Packaged
    from quantkit.pipeline.prepare import Prepared
    from quantkit.pipeline.result import QuantizeResult
    from quantkit.pipeline.tune import Tuned
    from quantkit.pipeline.verify_file import Attestation
    from quantkit.quantize.plan import Plan
    from quantkit.quantize.rewrite.simplify.plugins import ModelPass
    from quantkit.result import Result, load_result
    from quantkit.settings import (
        BatchSettings,
        DataSettings,
        GateSettings,
        ImageSettings,
        LimitSettings,
        NodeRule,
        PackageSettings,
        QdqSettings,
        RecoverSettings,
        ServeSettings,
        ShadowSettings,
        StaticSettings,
        TensorRule,
        TextSettings,
        TuneSettings,
        WeightsSettings,
    )
    from quantkit.spec import QInt8, QuantType, QUInt8

# onnxruntime tells its makers of sessions, and keeps a number for this machine in the user's cache, unless this is set when
# it is imported. Set it to 0 to opt in.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

_HOME = {
    "Attestation": "quantkit.pipeline.verify_file",
    "BatchSettings": "quantkit.settings",
    "Calibration": "quantkit.calibration",
    "DataSettings": "quantkit.settings",
    "ExportResult": "quantkit.pipeline.export",
    "GateSettings": "quantkit.settings",
    "GateVerdict": "quantkit.api.gate",
    "ImageSettings": "quantkit.settings",
    "Inspection": "quantkit.pipeline.inspect",
    "LimitSettings": "quantkit.settings",
    "MetricFunction": "quantkit.evaluate.accuracy.user_metric",
    "ModelDiff": "quantkit.evaluate.diff",
    "ModelPass": "quantkit.quantize.rewrite.simplify.plugins",
    "NodeRule": "quantkit.settings",
    "PackageSettings": "quantkit.settings",
    "Packaged": "quantkit.pipeline.package",
    "Plan": "quantkit.quantize.plan",
    "Prepared": "quantkit.pipeline.prepare",
    "QInt8": "quantkit.spec",
    "QUInt8": "quantkit.spec",
    "QuantType": "quantkit.spec",
    "QuantizeResult": "quantkit.pipeline.pipeline",
    "QuantkitError": "quantkit.errors",
    "QdqSettings": "quantkit.settings",
    "RecoverSettings": "quantkit.settings",
    "ReportFiles": "quantkit.api.report",
    "Result": "quantkit.result",
    "ResultDiff": "quantkit.evaluate.diff",
    "ServeSettings": "quantkit.settings",
    "ShadowSettings": "quantkit.settings",
    "StaticSettings": "quantkit.settings",
    "TensorRule": "quantkit.settings",
    "TextSettings": "quantkit.settings",
    "TuneSettings": "quantkit.settings",
    "Tuned": "quantkit.pipeline.tune",
    "ViewFiles": "quantkit.api.view",
    "WeightsSettings": "quantkit.settings",
    "calibrate": "quantkit.api.calibrate",
    "check_metric": "quantkit.evaluate.accuracy.user_metric",
    "check_pass": "quantkit.pipeline.optimize",
    "diff_models": "quantkit.api.diff",
    "diff_results": "quantkit.api.diff",
    "evaluate_models": "quantkit.api.evaluate",
    "export_model": "quantkit.api.export",
    "gate_result": "quantkit.api.gate",
    "inspect_model": "quantkit.pipeline.inspect",
    "load_prepared": "quantkit.api.static",
    "load_result": "quantkit.result",
    "optimize": "quantkit.api.optimize",
    "package_model": "quantkit.api.package",
    "plan_prepared": "quantkit.api.static",
    "plan_static": "quantkit.api.static",
    "plan_weights": "quantkit.api.weights",
    "prepare_static": "quantkit.api.static",
    "quantize_dynamic": "quantkit.api.dynamic",
    "quantize_float16": "quantkit.api.float16",
    "quantize_static": "quantkit.api.static",
    "quantize_weights": "quantkit.api.weights",
    "realize_plan": "quantkit.api.static",
    "save_prepared": "quantkit.api.static",
    "tune": "quantkit.api.tune",
    "verify_file": "quantkit.api.verify",
    "view_model": "quantkit.api.view",
    "write_report": "quantkit.api.report",
}

__all__ = [
    "Attestation",
    "BatchSettings",
    "Calibration",
    "DataSettings",
    "ExportResult",
    "GateSettings",
    "GateVerdict",
    "ImageSettings",
    "Inspection",
    "LimitSettings",
    "MetricFunction",
    "ModelDiff",
    "ModelPass",
    "NodeRule",
    "PackageSettings",
    "Packaged",
    "Plan",
    "Prepared",
    "QInt8",
    "QUInt8",
    "QdqSettings",
    "QuantType",
    "QuantizeResult",
    "QuantkitError",
    "RecoverSettings",
    "ReportFiles",
    "Result",
    "ResultDiff",
    "ServeSettings",
    "ShadowSettings",
    "StaticSettings",
    "TensorRule",
    "TextSettings",
    "TuneSettings",
    "Tuned",
    "ViewFiles",
    "WeightsSettings",
    "__version__",
    "calibrate",
    "check_metric",
    "check_pass",
    "diff_models",
    "diff_results",
    "evaluate_models",
    "export_model",
    "gate_result",
    "inspect_model",
    "load_prepared",
    "load_result",
    "optimize",
    "package_model",
    "plan_prepared",
    "plan_static",
    "plan_weights",
    "prepare_static",
    "quantize_dynamic",
    "quantize_float16",
    "quantize_static",
    "quantize_weights",
    "realize_plan",
    "save_prepared",
    "tune",
    "verify_file",
    "view_model",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'quantkit' has no attribute '{name}'")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
