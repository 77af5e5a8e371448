"""Static quantization, in order: prepare -> plan -> realize."""

import time
from dataclasses import replace
from pathlib import Path

import onnx

from quantkit.calibration.monitor import Monitor, Silent
from quantkit.model.graph.save import copy_of, staged
from quantkit.pipeline.apart import compare_apart
from quantkit.pipeline.checks import (
    read_model,
)
from quantkit.pipeline.fit import with_fitted_ranges
from quantkit.pipeline.measure import decide, timing_notes
from quantkit.pipeline.plan_prepared import for_target, plan_of
from quantkit.pipeline.prepare import STEPS, Prepared, Use, prepare
from quantkit.pipeline.realize import realize
from quantkit.pipeline.record import StaticJob
from quantkit.pipeline.result import QuantizeResult
from quantkit.quantize.emit import Format
from quantkit.quantize.plan import Plan, check_settings, check_target_of
from quantkit.runtime.check_result import (
    run_float,
)

__all__ = ["plan_model", "prepare_model", "static", "write_float"]


def static(  # noqa: PLR0913 - one parameter per question
    job: StaticJob,
    output: str | Path,
    *,
    plan: Plan | None = None,
    output_format: Format | None = None,
    verify: bool = True,
    external_data: bool = False,
    monitor: Monitor | None = None,
) -> QuantizeResult:
    """Quantize a model with calibrated ranges and write it; see `quantkit.quantize_static`.

    Args:
        job: What to quantize, and how.
        output: Where to write.
        plan: An edited plan to apply, instead of making one.
        output_format: How it is written down; None is as the job says, else the plan, else QDQ.
        verify: Load and run the result, and compare it with float, before it is written.
        external_data: Write weights to a ``.data`` file beside the model.
        monitor: Told what is done.
    """
    started = time.perf_counter()
    monitor, output = monitor or Silent(), Path(output)
    asked = output_format or job.output_format
    output_format = asked or (plan and plan.output_format) or Format.QDQ
    check_settings(job.options, output_format)
    if plan is not None:
        check_target_of(plan, job.options.runs_on)
    monitor.step(1, STEPS, "Reading the model")
    source = read_model(job.source, output, job.data)
    with source.watched():
        prepared = prepare(
            source,
            job,
            monitor,
            given=plan and for_target(plan, job, output_format),
            # What has fewer bits in the file is solved once more, when all else is decided.
            moments="often" if job.options.packs else "once",
        )
        if plan is None:
            prepared = with_fitted_ranges(prepared, monitor)
        monitor.stage("Planning")
        result = realize(
            prepared,
            plan,
            output,
            output_format=output_format,
            verify=verify,
            external_data=external_data,
            from_file=True,
            monitor=monitor,
        )
    return replace(result, seconds=time.perf_counter() - started)


def write_float(
    source: str | Path | onnx.ModelProto,
    output: str | Path,
    why: str,
    *,
    external_data: bool = False,
) -> QuantizeResult:
    """Write a model as it is, for callers who want a file also where there is nothing to quantize.

    Args:
        source: A path or a model.
        output: Where to write.
        why: What is said about it, as a warning.
        external_data: Write weights to a ``.data`` file beside the model.
    """
    started, output = time.perf_counter(), Path(output)
    loaded = read_model(source, output)
    with loaded.watched(), staged(output) as stage:
        reference = run_float(loaded)
        nbytes = stage.write(copy_of(loaded.model), external=external_data)
        checked = compare_apart(stage.model_path, reference, nbytes=nbytes)
        loaded.require_unchanged()
        external = stage.commit() is not None
    return QuantizeResult(
        plan=Plan(nodes=(), weights=(), min_opset=0),
        input_bytes=loaded.nbytes,
        output_bytes=nbytes,
        external_data=external,
        verification=checked,
        warnings=(why,),
        seconds=time.perf_counter() - started,
    )


def prepare_model(
    job: StaticJob,
    monitor: Monitor | None = None,
    *,
    moments: Use = "often",
) -> Prepared:
    """Read and prepare a model, to be planned and realized as often as one likes; see `quantkit.prepare_static`.

    Args:
        job: What to quantize, and how: a format, target and types that do not go together are refused here.
        monitor: Told what is done.
        moments: Whether to observe what rounding reads, and whether to keep it for more than one plan.
    """
    check_settings(job.options, job.output_format or Format.QDQ)
    source = read_model(job.source)
    with source.watched():
        prepared = prepare(source, job, monitor or Silent(), moments=moments)
        prepared = with_fitted_ranges(prepared, monitor or Silent())
        if moments == "often":
            # Now, so that planning runs nothing, and what is saved has it.
            decide(prepared, job.output_format or Format.QDQ, monitor)
    return prepared


def plan_model(job: StaticJob, monitor: Monitor | None = None) -> Plan:
    """Make the plan of `static`, and write nothing."""
    monitor = monitor or Silent()
    prepared = prepare_model(job, monitor, moments="never")
    monitor.stage("Planning")
    output_format = job.output_format or Format.QDQ
    decision = decide(prepared, output_format, monitor)
    plan = plan_of(prepared, output_format, decision.kept)
    for note in timing_notes(decision, prepared.ready.view, plan):
        monitor.stage(note)
    return plan
