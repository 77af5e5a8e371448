"""A task: what to quantize, and how. Arguments, flags and quantkit.toml become one; it becomes a plan, or a file."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import onnx

from quantkit.api.arguments import check_output, range_method
from quantkit.calibration import Calibration
from quantkit.calibration.collect import CalibrateOptions
from quantkit.calibration.container import is_calibration
from quantkit.calibration.monitor import Monitor, Silent, Stages
from quantkit.data.objects import check_data
from quantkit.pipeline.forms import dynamic, float16, static, weights
from quantkit.pipeline.ignored import ignored_requests
from quantkit.pipeline.job import Job
from quantkit.pipeline.result import QuantizeResult
from quantkit.quantize.plan import Plan, read_plan
from quantkit.settings import (
    DataSettings,
    DynamicSettings,
    Float16Settings,
    StaticSettings,
    WeightsSettings,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Stages", "Task", "make_plan", "quantize", "static_job"]
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
    monitor = monitor or Silent()
    match task.how:
        case DynamicSettings():
            return dynamic.dynamic(
                task.source,
                output,
                task.how,
                verify=verify,
                external_data=external_data,
                sample=cast("Mapping[str, Any] | None", task.data),
                progress=monitor.stage,
            )
        case StaticSettings():
            return static.static(
                static_job(task, applied),
                output,
                plan=applied,
                verify=verify,
                external_data=external_data,
                monitor=monitor,
            )
        case WeightsSettings():
            return weights.quantize_weights(
                _job(weights.WeightsJob, task),
                output,
                plan=applied,
                verify=verify,
                external_data=external_data,
                monitor=monitor,
            )
        case Float16Settings():
            return float16.float16(
                _job(float16.Float16Job, task),
                output,
                verify=verify,
                external_data=external_data,
                monitor=monitor,
            )


def make_plan(task: Task, monitor: Monitor | None = None) -> Plan:
    """Decide how each node and tensor would be quantized; write nothing.

    Args:
        task: What to quantize, and how: static, weights or float16.
        monitor: Told what is done; None: nobody.
    """
    match task.how:
        case WeightsSettings():
            return weights.plan_weights(_job(weights.WeightsJob, task), monitor)
        case Float16Settings():
            return float16.plan_float16(_job(float16.Float16Job, task), monitor)
        case _:
            return static.plan_model(static_job(task), monitor)


def static_job(task: Task, plan: Plan | None = None) -> static.StaticJob:
    """Return the job of a static task; where it names no target, a plan's counts."""
    how, data = cast("StaticSettings", task.how), task.data
    if plan is not None:
        how = replace(how, target=how.target or plan.target)
    if isinstance(data, str | Path) and is_calibration(Path(data)):
        data = Calibration.load(data)
    method = None
    if how.method is not None or task.percentile is not None:
        method = range_method(how.method, task.percentile)
    if isinstance(data, Calibration):
        data = data if method is None else data.by(method)
    elif data is None:
        check_data(data)
    job = _job(static.StaticJob, replace(task, how=how, data=data))
    return job if method is None else replace(job, calibrate=replace(job.calibrate, method=method))


_Job = TypeVar("_Job", bound=Job[Any])


def _job(kind: type[_Job], task: Task) -> _Job:
    """Return a task as a form of quantization takes it; what is neither data nor a calibration is refused."""
    calibrated = isinstance(task.data, Calibration) and isinstance(task.how, StaticSettings)
    if task.data is not None and not calibrated and not isinstance(task.data, str | Path):
        check_data(task.data)
    return kind(
        source=task.source,
        data=task.data,
        options=task.how,
        settings=task.samples,
        calibrate=CalibrateOptions(skip_bad=task.skip_bad),
    )
