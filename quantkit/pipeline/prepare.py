"""Prepare a model for static quantization: simplified, equalized, observed, with fitted ranges and measured costs.

load -> simplify -> look (extremes of channels) -> rewrite (equalize, smooth) -> observe -> fit ranges -> measure -> Prepared
"""

from contextlib import ExitStack
from dataclasses import replace
from typing import Literal

from quantkit.calibration.calibration import Calibration
from quantkit.calibration.collect import CalibrateOptions
from quantkit.calibration.monitor import Monitor, Silent
from quantkit.calibration.opened import OpenedData, opened_for
from quantkit.calibration.points import points_of
from quantkit.calibration.requests import CalibratorOf, PeaksOf, Request
from quantkit.model.graph.load import LoadedModel
from quantkit.pipeline.calibrate import collected
from quantkit.pipeline.channels import with_even_channels
from quantkit.pipeline.checks import read_model, require_static
from quantkit.pipeline.fit import with_fitted_ranges
from quantkit.pipeline.measure import with_costs
from quantkit.pipeline.plan_prepared import check_plan, format_of, lacks
from quantkit.pipeline.prepared import FloatModel, Job, Moments, Prepared
from quantkit.pipeline.static_model import STEPS, require_same_preparation, runnable, simplified
from quantkit.quantize.plan import (
    Plan,
    check_settings,
    opset_for,
    plan_static,
    ranges_needed,
)
from quantkit.quantize.solve.empirical_bias import SAMPLES
from quantkit.quantize.solve.weights import in_groups, moment_requests
from quantkit.settings import DataSettings, RecoverSettings, StaticSettings, resident

__all__ = [
    "STEPS",
    "Held",
    "Use",
    "memory_left",
    "observe_again",
    "prepare",
    "prepare_model",
    "with_choices",
]

_WORKERS = 320 << 20  # bytes that processes take beside what is asked
_LEAST = 64 << 20  # bytes that moments have in any case

# Whether moments are observed for rounding, and whether they are kept for a second plan.
Use = Literal["never", "once", "often"]
Held = Calibration | None  # the moments of the first group


def prepare(
    source: LoadedModel,
    job: Job[StaticSettings],
    monitor: Monitor,
    *,
    given: Plan | None = None,
    moments: Use = "once",
) -> tuple[Prepared, Held]:
    """Simplify a model, even out its channels, and observe it on the data; return the moments for one plan apart.

    Args:
        source: The float model; it stays as it was read.
        job: What is asked for.
        monitor: Told what is done.
        given: A plan that will be applied: what can be known about it is checked before data is opened.
        moments: Whether to observe what rounding reads, and whether to keep it for more than one plan.

    Raises:
        QuantkitError: Model or data cannot be used; says why.
    """
    monitor.stage("Simplifying")
    ready = simplified(source, job.options, 0 if given is None else opset_for(given))
    if given is not None:
        check_plan(ready, given, job.options, early=True)
    if isinstance(job.data, Calibration):
        seen, warnings = job.data, lacks(job.data, source, ready, None if given else job.options)
        # The caller's: its moments, if it has any, stay where they are.
        of_caller = Moments(held=seen)
        prepared = Prepared(
            job=job, source=source, ready=ready, seen=seen, moments=of_caller, warnings=warnings
        )
        if moments == "often" and given is None:
            prepared = with_costs(prepared, format_of(job.options), monitor)
        return prepared, seen
    if given is None and not points_of(ready.view, ranges_needed(ready.view, job.options)).tensors:
        require_static(plan_static(ready.view, {}, job.options), source, observed=True)
    data = opened_for(source, job.data, job.settings, job.calibrate)
    if data.samples is not None:
        monitor.chosen(data.settings.limit, data.samples.description.samples)
    with ExitStack() as files:
        looked_at, ready = with_even_channels(ready, data, job, files, monitor)
        groups = _moment_groups(ready, data, job.options.recover) if moments != "never" else ()
        seen = _observed(looked_at, ready, data, job, groups[0] if groups else (), files, monitor)
    seen, held = _without_moments(seen)
    keeps = moments == "often" and len(groups) <= 1  # more than one group would not fit into memory
    judged, on = data.judged(source)
    empirical = job.options.recover.empirical is True
    prepared = Prepared(
        job=job,
        source=source,
        ready=ready,
        seen=seen,
        moments=Moments(groups=groups, held=held if keeps else None),
        warnings=tuple(seen.header["warnings"]),
        judged=judged,
        on=on,
        samples=replace(data, unseen=()).judged(source, SAMPLES)[0] if empirical else (),
        data=data,
    )
    if given is None:
        prepared = with_fitted_ranges(prepared, monitor)
        if moments == "often":  # so that planning runs nothing, and what is saved has it
            prepared = with_costs(prepared, format_of(job.options), monitor)
    return prepared, held


def prepare_model(job: Job[StaticSettings], monitor: Monitor | None = None) -> Prepared:
    """Read and prepare a model, to be planned and written as often as one likes; see `quantkit.prepare_static`.

    Args:
        job: What to quantize, and how: a format, target and types that do not go together are refused here.
        monitor: Told what is done.
    """
    check_settings(job.options, format_of(job.options))
    source = read_model(job.source)
    with source.watched():
        return prepare(source, job, monitor or Silent(), moments="often")[0]


def _moment_groups(
    ready: FloatModel, data: OpenedData, recover: RecoverSettings
) -> tuple[tuple[Request, ...], ...]:
    """Return the moments to observe, those of the first group with the ranges and the others when they are needed.

    Where they do not fit into memory all at once the data is run again for each group; of data that can be read once only,
    what does not fit is never seen.
    """
    if recover.rounding is False and recover.bias is not True:
        return ()
    groups = in_groups(moment_requests(ready.products), memory_left(ready, data.settings) // 2)
    return groups[:1] if data.once else groups


def _observed(  # noqa: PLR0913 - one parameter per question
    written: LoadedModel | None,
    ready: FloatModel,
    data: OpenedData,
    job: Job[StaticSettings],
    requests: tuple[Request, ...],
    files: ExitStack,
    monitor: Monitor,
) -> Calibration:
    """Run the prepared float model on the data; `written`: the file that holds it, if there is one."""
    monitor.step(3, STEPS, "Observing ranges and moments" if requests else "Observing ranges")
    needed = ranges_needed(ready.view, job.options)
    if job.calibrate.method == CalibrateOptions().method:  # fitted ranges need them
        requests = (*requests, *(Request(tensor=name, statistic=PeaksOf()) for name in needed))
    asked = replace(job.calibrate, requests=(*job.calibrate.requests, *requests), compare=False)
    monitor.stage("Reading the model")
    written = written or files.enter_context(runnable(ready))
    return collected(written, data, asked, data.settings, monitor, needed)


def observe_again(
    prepared: Prepared, written: LoadedModel, requests: tuple[Request, ...], monitor: Monitor
) -> Calibration:
    """Run the prepared float model on the data once more, for these requests alone; `written`: its file.

    Args:
        prepared: The model, and what is asked for.
        written: Its file.
        requests: What to observe.
        monitor: Told what is done.
    """
    assert prepared.data is not None  # noqa: S101 - a calibration leaves nothing to observe
    asked = replace(
        prepared.job.calibrate, ranges=False, requests=requests, method=CalibratorOf(name="mse")
    )
    return collected(written, prepared.data, asked, prepared.settings, monitor)


def memory_left(ready: FloatModel, settings: DataSettings) -> int:
    """Return what the limit leaves for moments and for solving, beside the model and its session."""
    # A session maps the weights, and may copy them. Where nobody set a limit, the model comes on top of it.
    session = 2 * ready.nbytes if settings.memory is not None else 0
    return max(settings.memory_limit - resident() - session - _WORKERS, _LEAST)


def _without_moments(seen: Calibration) -> tuple[Calibration, Calibration]:
    """Return what is small, and what is large; nothing is copied."""
    return (
        replace(seen, seen=seen.seen.select(lambda request: not request.statistic.once)),
        replace(seen, seen=seen.seen.select(lambda request: request.statistic.once)),
    )


def with_choices(prepared: Prepared, job: Job[StaticSettings]) -> Prepared:
    """Return the same preparation for other choices about nodes, tensors and ranges.

    Args:
        prepared: The preparation; it stays as it is.
        job: What is asked for now, of the same model and data.

    Raises:
        UsageError: Something else was to be observed or rewritten for that.
    """
    require_same_preparation(prepared.job.options, job.options, prepared.ready.model)
    method = job.calibrate.method
    if method == prepared.job.calibrate.method:
        return replace(prepared, job=job)
    return replace(prepared, job=job, seen=prepared.seen.by(method), fitted={}, turns=None)
