"""`plan_static`: what `quantize_static` would do, and why."""

from pathlib import Path

import onnx

from quantkit.api.static import format_of, static_job
from quantkit.pipeline import plan_model
from quantkit.plan import Plan
from quantkit.recipe import DataSettings, StaticSettings

__all__ = ["plan_static"]


def plan_static(
    model: str | Path | onnx.ModelProto,
    data_or_calibration: object,
    static: StaticSettings | None = None,
    settings: DataSettings | None = None,
) -> Plan:
    """Decide how each node and tensor of a model would be quantized; write nothing.

    Args:
        model: A path, or a ModelProto.
        data_or_calibration: As for `quantize_static`.
        static: What is chosen about nodes and tensors.
        settings: How samples are prepared and ordered.

    Returns:
        The plan: it can be saved, edited, compared, and given to `quantize_static`.
    """
    given = static or StaticSettings()
    job = static_job(model, data_or_calibration, given, settings or DataSettings())
    return plan_model(job, output_format=format_of(given))
