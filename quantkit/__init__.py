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

from quantkit._version import __version__ as __version__

if TYPE_CHECKING:
    from quantkit.api.calibrate import calibrate as calibrate
    from quantkit.api.diff import diff_models as diff_models, diff_results as diff_results
    from quantkit.api.distill import distill as distill
    from quantkit.api.evaluate import evaluate_models as evaluate_models
    from quantkit.api.export import ExportResult as ExportResult, export_model as export_model
    from quantkit.api.gate import GateVerdict as GateVerdict, gate_result as gate_result
    from quantkit.api.optimize import optimize as optimize
    from quantkit.api.package import Packaged as Packaged, package_model as package_model
    from quantkit.api.prepared import (
        load_prepared as load_prepared,
        plan_prepared as plan_prepared,
        realize_plan as realize_plan,
        save_prepared as save_prepared,
    )
    from quantkit.api.prune import prune as prune
    from quantkit.api.quantize import (
        plan_static as plan_static,
        plan_weights as plan_weights,
        prepare_static as prepare_static,
        quantize_dynamic as quantize_dynamic,
        quantize_float16 as quantize_float16,
        quantize_static as quantize_static,
        quantize_weights as quantize_weights,
    )
    from quantkit.api.report import ReportFiles as ReportFiles, write_report as write_report
    from quantkit.api.trim import trim as trim
    from quantkit.api.tune import compress as compress, tune as tune
    from quantkit.api.verify import verify_file as verify_file
    from quantkit.api.view import ViewFiles as ViewFiles, view_model as view_model
    from quantkit.calibration import Calibration as Calibration
    from quantkit.errors import QuantkitError as QuantkitError
    from quantkit.evaluate.accuracy.user_metric import (
        MetricFunction as MetricFunction,
        check_metric as check_metric,
    )
    from quantkit.evaluate.diff import ModelDiff as ModelDiff, ResultDiff as ResultDiff
    from quantkit.pipeline.distilled import DistillResult as DistillResult
    from quantkit.pipeline.inspect import Inspection as Inspection, inspect_model as inspect_model
    from quantkit.pipeline.optimize import check_pass as check_pass
    from quantkit.pipeline.prune_result import PruneResult as PruneResult
    from quantkit.pipeline.result import QuantizeResult as QuantizeResult
    from quantkit.pipeline.prepared import Prepared as Prepared
    from quantkit.pipeline.trim_result import TrimResult as TrimResult
    from quantkit.pipeline.tune import Tuned as Tuned
    from quantkit.pipeline.verify_file import Attestation as Attestation
    from quantkit.quantize.plan import Plan as Plan
    from quantkit.quantize.rewrite.simplify.plugins import ModelPass as ModelPass
    from quantkit.result import Result as Result, load_result as load_result
    from quantkit.settings import (
        BatchSettings as BatchSettings,
        CompressSettings as CompressSettings,
        DataSettings as DataSettings,
        DistillSettings as DistillSettings,
        GateSettings as GateSettings,
        ImageSettings as ImageSettings,
        LimitSettings as LimitSettings,
        NodeRule as NodeRule,
        PackageSettings as PackageSettings,
        PruneSettings as PruneSettings,
        QdqSettings as QdqSettings,
        RecoverSettings as RecoverSettings,
        ServeSettings as ServeSettings,
        ShadowSettings as ShadowSettings,
        StaticSettings as StaticSettings,
        TensorRule as TensorRule,
        TextSettings as TextSettings,
        TrimSettings as TrimSettings,
        TuneSettings as TuneSettings,
        WeightsSettings as WeightsSettings,
    )
    from quantkit.spec import QInt8 as QInt8, QuantType as QuantType, QUInt8 as QUInt8

# onnxruntime tells its makers of sessions, and keeps a number for this machine in the user's cache, unless this is set when
# it is imported. Set it to 0 to opt in.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

# Type checkers read the names above, Python these.
_PUBLIC = {
    "quantkit.api.calibrate": "calibrate",
    "quantkit.api.diff": "diff_models diff_results",
    "quantkit.api.distill": "distill",
    "quantkit.api.evaluate": "evaluate_models",
    "quantkit.api.export": "ExportResult export_model",
    "quantkit.api.gate": "GateVerdict gate_result",
    "quantkit.api.optimize": "optimize",
    "quantkit.api.package": "Packaged package_model",
    "quantkit.api.prepared": "load_prepared plan_prepared realize_plan save_prepared",
    "quantkit.api.prune": "prune",
    "quantkit.api.quantize": "plan_static plan_weights prepare_static quantize_dynamic quantize_float16 quantize_static quantize_weights",
    "quantkit.api.report": "ReportFiles write_report",
    "quantkit.api.trim": "trim",
    "quantkit.api.tune": "compress tune",
    "quantkit.api.verify": "verify_file",
    "quantkit.api.view": "ViewFiles view_model",
    "quantkit.calibration": "Calibration",
    "quantkit.errors": "QuantkitError",
    "quantkit.evaluate.accuracy.user_metric": "MetricFunction check_metric",
    "quantkit.evaluate.diff": "ModelDiff ResultDiff",
    "quantkit.pipeline.distilled": "DistillResult",
    "quantkit.pipeline.inspect": "Inspection inspect_model",
    "quantkit.pipeline.optimize": "check_pass",
    "quantkit.pipeline.prune_result": "PruneResult",
    "quantkit.pipeline.result": "QuantizeResult",
    "quantkit.pipeline.prepared": "Prepared",
    "quantkit.pipeline.trim_result": "TrimResult",
    "quantkit.pipeline.tune": "Tuned",
    "quantkit.pipeline.verify_file": "Attestation",
    "quantkit.quantize.plan": "Plan",
    "quantkit.quantize.rewrite.simplify.plugins": "ModelPass",
    "quantkit.result": "Result load_result",
    "quantkit.settings": "BatchSettings CompressSettings DataSettings DistillSettings GateSettings ImageSettings LimitSettings NodeRule PackageSettings PruneSettings QdqSettings RecoverSettings ServeSettings ShadowSettings StaticSettings TensorRule TextSettings TrimSettings TuneSettings WeightsSettings",
    "quantkit.spec": "QInt8 QUInt8 QuantType",
}
_HOME = {name: module for module, names in _PUBLIC.items() for name in names.split()}

__all__ = ["__version__", *sorted(_HOME)]  # noqa: PLE0604 - texts


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'quantkit' has no attribute '{name}'")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
