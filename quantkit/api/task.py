"""A task: what to quantize, and how. Arguments, flags and quantkit.toml become one; it becomes a plan, or a file."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx

from quantkit.api.arguments import check_output, range_method
from quantkit.calibration import Calibration
from quantkit.calibration.collect import CalibrateOptions
from quantkit.calibration.container import is_calibration
from quantkit.calibration.monitor import Monitor, Stages
from quantkit.data.objects import check_data
from quantkit.pipeline.form import plan_only, run_form
from quantkit.pipeline.forms import form_of
from quantkit.pipeline.ignored import ignored_requests
from quantkit.pipeline.job import Job, Output
from quantkit.pipeline.result import QuantizeResult
from quantkit.quantize.plan import Plan, read_plan
from quantkit.settings import (
    DataSettings,
    DynamicSettings,
    Float16Settings,
    StaticSettings,
    WeightsSettings,
)

__all__ = ["Stages", "Task", "job_of", "make_plan", "quantize"]
__all__ += ["ignored_requests"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What to quantize, and how.

    Attributes:
        source: The float model: a path or a ModelProto.
        how: What is chosen. Its type says which form of quantization it is.
        data: What `quantkit.calibrate` takes; for static also a calibration, or the path of one; for dynamic the inputs to
            verify with, by name. None: there is none.
        samples: Which samples, and how they are prepared.
        percentile: Of the range method "percentile"; None: its default.
        skip_bad: Leave out samples that cannot be read.
    """

    source: str | Path | onnx.ModelProto
    how: DynamicSettings | StaticSettings | WeightsSettings | Float16Settings
    data: object = None
    samples: DataSettings = field(default_factory=DataSettings)
    percentile: float | None = None
    skip_bad: bool = False


def quantize(
    task: Task,
    output: str | Path,
    *,
    plan: Plan | str | Path | None = None,
    verify: bool = True,
    external_data: bool = False,
    monitor: Monitor | None = None,
) -> QuantizeResult:
    """Quantize a model and write it.

    Args:
        task: What to quantize, and how.
        output: Where to write.
        plan: A plan of the same form to apply, or its file, instead of making one; dynamic and float16 take none.
        verify: Load and run the result, and compare it with float, before it is written.
        external_data: Write weights to a ``.data`` file beside the model.
        monitor: Told what is done; None: nobody.
    """
    check_output(output)
    applied = read_plan(plan) if isinstance(plan, str | Path) else plan
    to = Output(path=Path(output), verify=verify, external_data=external_data)
    result: QuantizeResult = run_form(form_of(job_of(task, applied), to, monitor, plan=applied))
    return result


def make_plan(task: Task, monitor: Monitor | None = None) -> Plan:
    """Decide how each node and tensor would be quantized; write nothing.

    Args:
        task: What to quantize, and how: static, weights or float16.
        monitor: Told what is done; None: nobody.
    """
    plan: Plan = plan_only(form_of(job_of(task), Output(path=None), monitor))
    return plan


def job_of(task: Task, plan: Plan | None = None) -> Job[Any]:
    """Return what the form of a task takes; where a static task names no target, that of a plan counts.

    Raises:
        UsageError: The data is neither samples nor, for static quantization, a calibration.
    """
    how, data = task.how, task.data
    calibrate = CalibrateOptions(skip_bad=task.skip_bad)
    if isinstance(how, StaticSettings):
        if plan is not None:
            how = replace(how, target=how.target or plan.target)
        if isinstance(data, str | Path) and is_calibration(Path(data)):
            data = Calibration.load(data)
        if how.method is not None or task.percentile is not None:
            calibrate = replace(calibrate, method=range_method(how.method, task.percentile))
            data = data.by(calibrate.method) if isinstance(data, Calibration) else data
        is_ready = isinstance(data, Calibration | str | Path)
    else:
        is_sample = isinstance(how, DynamicSettings)
        is_ready = data is None or is_sample or isinstance(data, str | Path)
    if not is_ready:
        check_data(data)
    return Job(
        source=task.source, data=data, options=how, settings=task.samples, calibrate=calibrate
    )
