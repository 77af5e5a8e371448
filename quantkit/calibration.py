"""Calibration, in order: load, find the points, open the data, observe, audit, write."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import onnx

from calibrators import Entropy, MeanSquaredError, MinMax, Percentile
from quantkit.data import Description, InputSpec, Sample, Samples, Stream, collate, open_data
from quantkit.errors import DataError, NothingToQuantizeError, OutputError, UsageError
from quantkit.graph.load import LoadedModel, load
from quantkit.observe.audit import CLIPPED_HARD, Audit, audit_of
from quantkit.observe.calibration import Calibration, sketch_method
from quantkit.observe.checkpoint import Checkpoint
from quantkit.observe.distributed import cluster, run_on
from quantkit.observe.job import Job, opened
from quantkit.observe.observations import Observations
from quantkit.observe.points import Points, points_of
from quantkit.observe.prepare import MEMORY, batch_for, grouped, inputs_of, job_key, try_out
from quantkit.observe.provenance import cpu_name, model_digest, software
from quantkit.observe.requests import CalibratorAsk, Request, SketchAsk, SpanAsk, What
from quantkit.observe.run import Pass, observe, observe_stream
from quantkit.recipe import DataSettings

__all__ = ["CalibrateOptions", "Monitor", "calibrate_model"]

DEFAULT = CalibratorAsk(name="mse")
# The methods whose ranges the audit compares.
METHODS = (MinMax(), Percentile(), Entropy(), MeanSquaredError())


class Monitor(Protocol):
    """What a caller is told while it runs."""

    def stage(self, text: str) -> None:
        """Say what begins."""

    def described(self, found: Description) -> None:
        """Say what the data is, before it is run."""

    def start(self, samples: int | None) -> None:
        """Say how many samples there will be; None if nobody knows."""

    def resumed(self, samples: int) -> None:
        """Say that an earlier, interrupted run has done so many."""

    def tick(self, samples: int) -> None:
        """Say that so many more are done."""


class Silent:
    """A monitor that says nothing."""

    def stage(self, text: str) -> None:
        """Nothing."""

    def described(self, found: Description) -> None:
        """Nothing."""

    def start(self, samples: int | None) -> None:
        """Nothing."""

    def resumed(self, samples: int) -> None:
        """Nothing."""

    def tick(self, samples: int) -> None:
        """Nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateOptions:
    """How to calibrate.

    Attributes:
        method: The calibrator that gives the ranges. One that reads the sketches may be changed
            afterwards; another (a moving average) collects its own in the same pass.
        minmax_only: Take only minima and maxima, inside the graph: fastest, no other method afterwards.
        every_value: Count every value instead of 32,768 evenly spaced ones a tensor and sample.
        requests: What else is to be seen in the same pass.
        skip_bad: Leave out samples that cannot be read.
        workers: Threads, or, with `scheduler` or `processes`, workers; None: one a core.
        processes: Use a local dask cluster.
        scheduler: Address of a dask scheduler.
        threads: For one operator; more than one only for models too large to run twice at a time.
        memory: Bytes of activations that may be held at once.
    """

    method: CalibratorAsk = DEFAULT
    minmax_only: bool = False
    every_value: bool = False
    requests: tuple[Request, ...] = ()
    skip_bad: bool = False
    workers: int | None = None
    processes: bool = False
    scheduler: str | None = None
    threads: int = 1
    memory: int = MEMORY


def calibrate_model(
    source: str | Path | onnx.ModelProto,
    data: object,
    target: Path | None,
    options: CalibrateOptions,
    settings: DataSettings,
    monitor: Monitor | None = None,
) -> Calibration:
    """Learn the ranges of a model's activations from data, and write them; see `quantkit.calibrate`."""
    monitor = monitor or Silent()
    monitor.stage("Reading the model")
    _check_target(target)
    loaded = load(source)
    loaded.require_weights()
    inputs = inputs_of(loaded)
    points = points_of(loaded.model)
    requests = _requests(points, options, loaded)
    monitor.stage("Looking at the data")
    samples = open_data(data, inputs, _with_model_folder(settings, loaded))
    monitor.described(samples.description)
    model = model_digest(loaded)
    job = Job(
        key="",
        model=loaded.path or source,
        samples=samples if isinstance(samples, Samples) else None,
        groups=(requests,),
        batch=settings.batch,
        limit=settings.limit,
        shuffle=settings.shuffle,
        seed=settings.seed,
        skip_bad=options.skip_bad,
        threads=options.threads,
    )
    monitor.stage("Trying the first sample")
    if isinstance(samples, Stream):
        fingerprint = ""
        job = replace(job, key=job_key(job, model["sha256"], str(id(samples))))
        seen = observe_stream(job, samples, workers=_workers(options), tick=monitor.tick)
    else:
        fingerprint = samples.fingerprint()
        job = _fitted(job, inputs, options, (model["sha256"], fingerprint))
        seen = _observe(job, target, options, monitor)
    monitor.stage("Auditing")
    whole = seen.whole()
    _require_values(whole)
    audit = audit_of(seen, sketch_method(options.method) or MinMax(), METHODS)
    found = Calibration(
        seen=whole,
        method=options.method,
        header={
            "model": model,
            "data": asdict(samples.description) | {"fingerprint": fingerprint},
            "order": {
                "batch": job.batch,
                "limit": job.limit,
                "shuffle": job.shuffle and fingerprint != "",
                "seed": job.seed,
            },
            "software": software(),
            "cpu": cpu_name(),
            "audit": asdict(audit),
            "names": _names(job, audit),
            "warnings": _warnings(points, whole, audit, samples.description),
        },
    )
    if target is not None:
        monitor.stage("Writing")
        found.save(target)
        _partial(target).unlink(missing_ok=True)
    return found


def _check_target(target: Path | None) -> None:
    if target is None:
        return
    if target.is_dir():
        raise UsageError(f"The output '{target}' is a directory; give a file name.")
    if not target.parent.is_dir():
        raise UsageError(f"The output's folder '{target.parent}' does not exist.")
    if not os.access(target.parent, os.W_OK):
        raise OutputError(f"Cannot write into '{target.parent}'; nothing was run.")


def _requests(
    points: Points, options: CalibrateOptions, loaded: LoadedModel
) -> tuple[Request, ...]:
    if not points.tensors:
        where = f": all {points.hidden} stand inside If, Loop or Scan" if points.hidden else ""
        raise NothingToQuantizeError(
            f"No activation of {loaded.name} could be quantized{where}; there is nothing to calibrate."
        )
    whats: list[What] = [SketchAsk(most=None) if options.every_value else SketchAsk()]
    if options.minmax_only:
        whats = [SpanAsk()]
    if sketch_method(options.method) is None:
        whats.append(options.method)
    asked = [Request(tensor=tensor, what=what) for tensor in points.tensors for what in whats]
    return tuple(dict.fromkeys((*asked, *options.requests)))


def _with_model_folder(settings: DataSettings, loaded: LoadedModel) -> DataSettings:
    """Let a tokenizer be found beside the model."""
    if loaded.path is None:
        return settings
    text = replace(settings.text, search=(*settings.text.search, loaded.path.parent))
    return replace(settings, text=text)


def _fitted(
    job: Job, inputs: Sequence[InputSpec], options: CalibrateOptions, digests: tuple[str, str]
) -> Job:
    """Fit batch and groups to what the first sample shows."""
    batch = batch_for(inputs, _first(job, 1)[0], job.batch)
    if batch != job.batch:  # the model's own, which the last samples may not fill
        job = replace(job, batch=batch, limit=len(job.order()) // batch * batch)
    job = replace(job, key=job_key(job, *digests))
    first = _first(job, batch)
    nbytes = try_out(opened(job), collate(first)[0], first[0].name)
    groups = grouped(job.groups[0], nbytes, memory=options.memory // _workers(options))
    if len(groups) == 1:
        return job
    job = replace(job, groups=groups)
    return replace(job, key=job_key(job, *digests))


def _first(job: Job, count: int) -> list[Sample]:
    """Return the first samples that can be read."""
    assert job.samples is not None  # noqa: S101 - streams are not fitted
    found: list[Sample] = []
    for number in job.order().tolist():
        try:
            found.append(job.samples[number])
        except DataError:
            if not job.skip_bad:
                raise
        if len(found) == count:
            break
    if not found:
        raise DataError("None of the samples can be read.")
    return found


def _workers(options: CalibrateOptions) -> int:
    if options.method.ordered:
        return 1
    return options.workers or len(os.sched_getaffinity(0))


def _observe(job: Job, target: Path | None, options: CalibrateOptions, monitor: Monitor) -> Pass:
    checkpoint = Checkpoint(_partial(target), job.key) if target is not None else None
    monitor.start(len(job.order()))
    run = partial(observe, job, checkpoint=checkpoint, tick=monitor.tick, resumed=monitor.resumed)
    if options.scheduler is None and not options.processes:
        return run(workers=_workers(options))
    if options.method.ordered:
        raise UsageError(
            f"{options.method.name} depends on the order of the samples: it runs on one worker, "
            "without --processes and --scheduler."
        )
    with cluster(options.scheduler, options.workers) as client:
        workers = len(client.scheduler_info()["workers"]) or 1
        return run(workers=workers, engine=partial(run_on, client))


def _partial(target: Path) -> Path:
    return target.with_name(f"{target.name}.partial")


def _require_values(seen: Observations) -> None:
    """Refuse ranges of nothing."""
    if not seen.samples:
        raise DataError("No sample could be read; there is nothing to learn ranges from.")
    for tensor, answers in seen.answers.items():
        if all(getattr(a, "empty", False) for a in answers.values()):
            raise DataError(
                f"Tensor '{tensor}' held no finite value in any of {len(seen.samples)} samples, only "
                "NaN or infinity: check the preprocessing, or the model itself."
            )


def _names(job: Job, audit: Audit) -> dict[str, str]:
    """Return what the samples are called that the audit mentions by their place."""
    if job.samples is None:
        return {}
    copies = [place for group in audit.duplicates[:3] for place in group[:3]]
    places = sorted({*copies, *(place for place, _ in audit.outliers)})
    order = job.order()
    return {str(place): job.samples[int(order[place])].name for place in places}


def _warnings(points: Points, seen: Observations, audit: Audit, found: Description) -> list[str]:
    warnings = list(found.warnings)
    if points.hidden:
        warnings.append(
            f"{points.hidden} tensors inside If, Loop or Scan are not observed; they stay float."
        )
    if seen.bad:
        first = next(iter(sorted(seen.bad)))
        warnings.append(
            f"{len(seen.bad)} samples could not be read and were left out; the first: "
            f"{seen.bad[first]}"
        )
    strange = [t for t in audit.tensors if t.nan or t.inf]
    if strange:
        worst = max(strange, key=lambda t: t.nan + t.inf)
        warnings.append(
            f"{len(strange)} tensors hold NaN or infinity, which ranges leave out; most in "
            f"'{worst.tensor}': {worst.nan} NaN, {worst.inf} infinite of {worst.seen}."
        )
    hard = [t for t in audit.tensors if t.clipped.get(audit.method, 0) > CLIPPED_HARD]
    if hard:
        worst = max(hard, key=lambda t: t.clipped[audit.method])
        warnings.append(
            f"{audit.method} clips more than {CLIPPED_HARD:.0%} of the values of {len(hard)} tensors; "
            f"most of '{worst.tensor}': {worst.clipped[audit.method]:.1%}."
        )
    if audit.duplicates:
        copies = sum(len(group) - 1 for group in audit.duplicates)
        warnings.append(f"{copies} of {audit.samples} samples are copies of others.")
    return warnings
