"""One pass over opened samples: fit batch and groups to what the first samples show, run, audit.

Takes a loaded model and opened samples, never paths; `quantkit.pipeline.calibrate` is the line from a path to a file.

`fit_job` decides by the first samples how many run together, and which requests share a pass.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from calibrators import Entropy, MeanSquaredError, MinMax, Percentile
from quantkit.calibration.audit import (
    audit_of,
    glanced_at,
    names_of,
    require_values,
    warnings_of,
    without_unseen,
)
from quantkit.calibration.calibration import Calibration, sketch_method
from quantkit.calibration.distributed import cluster, run_on, workers_of
from quantkit.calibration.job import Job, OpenJob, close, opened
from quantkit.calibration.model_inputs import batch_for, fixed_batch, inputs_of
from quantkit.calibration.monitor import Monitor
from quantkit.calibration.points import Points
from quantkit.calibration.requests import (
    CalibratorOf,
    MinMaxOf,
    PatchesOf,
    Request,
    SketchOf,
    StatisticOf,
    values_counted,
)
from quantkit.calibration.run import Checkpoint, Pass, observe, observe_stream
from quantkit.data import InputSpec, Sample, Samples, Stream, collate
from quantkit.errors import DataError, UsageError
from quantkit.model.graph.half import half_type, widened_note
from quantkit.model.graph.load import LoadedModel
from quantkit.model.provenance import cpu_name, model_digest, software
from quantkit.runtime.session import RUNTIME_ERRORS, first_line
from quantkit.settings import DataSettings
from quantkit.targets import cores

MOST_SAMPLES = 256  # beyond, ranges hardly move, and the rest is worth more for judging

_GLANCED_AT = 128  # tensors of an audit that only warns
_MEMORY = 1 << 30  # bytes of activations and counts that all workers together may hold
_PROGRAM = 200 << 20  # bytes that Python and its libraries take
_LEAST = 64 << 20  # bytes that workers have in any case
_STREAM = 128  # samples that a stream is taken to have, until it ends
DEFAULT = CalibratorOf(name="mse")
# The methods whose ranges the audit compares.
METHODS = (MinMax(), Percentile(), Entropy(), MeanSquaredError())

# Activations of one run that are still handled well, and samples in a run, if nobody says how many.
_COMFORTABLE = 64 << 20
_TOGETHER = 64
_TABLE = (
    512 << 10
)  # bytes that the counts of a tensor take in a worker, or, where it is small, a list of its values
_LIST = 96 << 10
_SMALL = 8 << 10  # bytes of a tensor in one run
_BATCHES = 32  # at least, unless they would be smaller than one


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateOptions:
    """How to calibrate.

    Attributes:
        method: The calibrator that gives the ranges. One that reads the sketches may be changed
            afterwards; another (a moving average) collects its own in the same pass.
        minmax_only: Take only minima and maxima, inside the graph: fastest, no other method afterwards.
        every_value: Count every value instead of about a million evenly spaced ones a tensor.
        ranges: Ask for what ranges are made of. Without, only `requests` are answered, and nothing is audited.
        compare: Let the audit look at every tensor and compare all methods; else it glances at some.
        requests: What else is to be seen in the same pass.
        skip_bad: Leave out samples that cannot be read.
        workers: Processes on this machine, threads where it cannot fork; None: one per core.
        scheduler: Address of a dask scheduler, whose workers are used instead.
        threads: For one operator; more than one only for models too large to run twice at a time.
        memory: Bytes of activations that may be held at once.
        most: Samples to calibrate with where the settings give no limit and there are more; None: all.
    """

    method: CalibratorOf = DEFAULT
    minmax_only: bool = False
    every_value: bool = False
    ranges: bool = True
    compare: bool = True
    requests: tuple[Request, ...] = ()
    skip_bad: bool = False
    workers: int | None = None
    scheduler: str | None = None
    threads: int = 1
    memory: int = _MEMORY
    most: int | None = MOST_SAMPLES


def collect(  # noqa: PLR0913 - one parameter per question
    loaded: LoadedModel,
    samples: Samples | Stream,
    points: Points,
    options: CalibrateOptions,
    settings: DataSettings,
    monitor: Monitor,
    *,
    partial_file: Path | None = None,
) -> Calibration:
    """Run a float model on samples and return what was asked for.

    Args:
        loaded: The model; its file is read by workers of other processes, so it must stay where it is meanwhile.
        samples: The data, opened for the inputs of this model.
        points: The tensors whose ranges are taken, where `options` ask for ranges.
        options: What is asked for, and who works.
        settings: Which samples, in which order, and how much memory.
        monitor: Told what is done.
        partial_file: Where an interrupted run leaves what it has seen, and is taken up again; None: nowhere.

    Raises:
        DataError: A sample cannot be read, or the model does not run on it.
    """
    inputs = inputs_of(loaded)
    monitor.data_found(samples.description)
    fingerprint = _fingerprint(samples)
    with loaded.watched():
        model = model_digest(loaded)
    job = Job(
        key="",
        model=loaded.source,
        loaded=loaded,
        model_key=model["sha256"],
        samples=samples if isinstance(samples, Samples) else None,
        groups=(_requests(points, samples, options, settings),),
        batch=settings.batch or 0,
        limit=settings.limit,
        shuffle=settings.shuffle and isinstance(samples, Samples),
        seed=settings.seed,
        skip_bad=options.skip_bad,
        threads=options.threads,
    )
    monitor.stage("Trying the first sample")
    glance = _in_parts(points, options)
    try:
        with loaded.watched():
            if isinstance(samples, Samples):
                room = _room(loaded, job, options, settings)
                job = fit_job(
                    job,
                    inputs,
                    room=room // _workers(options),
                    fingerprint=fingerprint,
                    # Each sample may take other branches, and a method may depend on the order.
                    together=not points.branched and not _is_ordered(options),
                )
                seen = _observe(job, partial_file, glance, options, monitor)
            else:
                seen = _observe_stream(job, samples, inputs, glance, options, monitor)
    finally:
        close()
    whole = seen.whole()
    found = asdict(samples.description) | {"fingerprint": fingerprint}
    del found["guessed"]  # its warnings say so
    if not options.ranges:
        header = {"data": found, "order": _order(job)}
        return Calibration(seen=whole, method=options.method, header=header)
    monitor.stage("Auditing")
    whole, never = without_unseen(whole)
    require_values(whole)
    judge = sketch_method(options.method) or MinMax()
    audit = audit_of(
        seen.segments,
        whole,
        judge,
        [judge if m.name == judge.name else m for m in METHODS if options.compare],
        workers=_workers(options),
        most=None if options.compare else _GLANCED_AT,
    )
    return Calibration(
        seen=whole,
        method=options.method,
        header={
            "model": model,
            "data": found,
            "order": _order(job),
            "software": software(),
            "cpu": cpu_name(),
            "audit": asdict(audit),
            "names": names_of(job, audit),
            "warnings": [
                *([widened_note(half)] if (half := half_type(loaded.model)) else []),
                *warnings_of(points, whole, audit, samples.description, never),
            ],
        },
    )


def _in_parts(points: Points, options: CalibrateOptions) -> Callable[[Request], bool]:
    """Return which requests are answered for each part of the data as well: what the audit looks at, and is not too large."""
    most = None if options.compare else _GLANCED_AT
    tensors = frozenset(glanced_at(points.tensors, most) if options.ranges else ())
    return lambda request: request.tensor in tensors and not request.statistic.once


def _room(loaded: LoadedModel, job: Job, options: CalibrateOptions, settings: DataSettings) -> int:
    """Return what workers together may take for activations and counts: what a limit leaves beside all else.

    Estimated, not measured: a run that is taken up again must find the same groups.
    """
    if settings.memory is None:
        return options.memory
    shared = sum(r.statistic.nbytes for r in job.groups[0] if isinstance(r.statistic, PatchesOf))
    left = settings.memory - _PROGRAM - 2 * loaded.nbytes - shared
    return min(options.memory, max(left, _LEAST))


def _fingerprint(samples: Samples | Stream) -> str:
    """Return what names the data; a stream has no name, and is never resumed."""
    return samples.fingerprint() if isinstance(samples, Samples) else ""


def _requests(
    points: Points, samples: Samples | Stream, options: CalibrateOptions, settings: DataSettings
) -> tuple[Request, ...]:
    known = len(samples) if isinstance(samples, Samples) else _STREAM
    count = values_counted(min(known, settings.limit or known))
    if not options.ranges:
        return tuple(dict.fromkeys(options.requests))
    kinds: list[StatisticOf] = [SketchOf(most=None if options.every_value else count)]
    if options.minmax_only:
        kinds = [MinMaxOf()]
    if sketch_method(options.method) is None:
        kinds.append(options.method)
    asked = [Request(tensor=tensor, statistic=kind) for tensor in points.tensors for kind in kinds]
    return tuple(dict.fromkeys((*asked, *options.requests)))


def _order(job: Job) -> dict[str, Any]:
    return {"batch": job.batch, "limit": job.limit, "shuffle": job.shuffle, "seed": job.seed}


def _is_ordered(options: CalibrateOptions) -> bool:
    return options.method.ordered or any(r.statistic.ordered for r in options.requests)


def _workers(options: CalibrateOptions) -> int:
    if _is_ordered(options):
        return 1
    if options.workers is not None:
        return options.workers
    return cores()


def _observe(
    job: Job,
    partial_file: Path | None,
    parted: Callable[[Request], bool],
    options: CalibrateOptions,
    monitor: Monitor,
) -> Pass:
    checkpoint = Checkpoint(partial_file, job.key) if partial_file is not None else None
    monitor.start(len(job.groups) * len(job.order()))
    run = partial(
        observe,
        job,
        parted=parted,
        checkpoint=checkpoint,
        tick=monitor.tick,
        resumed=monitor.resumed,
    )
    if options.scheduler is None:
        return run(workers=_workers(options))
    if _is_ordered(options):
        raise UsageError(
            "What is asked for depends on the order of the samples (a moving average does): it runs on "
            "one worker, without --scheduler."
        )
    with cluster(options.scheduler, monitor.stage) as client:
        workers = len(workers_of(client)) or 1
        monitor.start(len(job.groups) * len(job.order()))
        return run(workers=workers, engine=partial(run_on, client))


def _observe_stream(
    job: Job,
    stream: Stream,
    inputs: Sequence[InputSpec],
    parted: Callable[[Request], bool],
    options: CalibrateOptions,
    monitor: Monitor,
) -> Pass:
    if options.scheduler is not None:
        raise UsageError(
            "A Python iterator cannot be sent to a cluster: give a path, or a sequence."
        )
    samples = iter(stream)
    first = next(samples, None)
    if first is None:
        raise DataError("The data has no samples.")
    batch = batch_for(inputs, first, job.batch or 1)
    job = replace(job, batch=batch, whole_batches=fixed_batch(inputs) is not None)
    monitor.start(None)
    return observe_stream(
        job,
        chain([first], samples),
        workers=_workers(options),
        parted=parted,
        tick=monitor.tick,
    )


def fit_job(
    job: Job, inputs: Sequence[InputSpec], *, room: int, fingerprint: str, together: bool
) -> Job:
    """Return a job with its batch, its passes over the data, and its key.

    Args:
        job: What is to be observed.
        inputs: What the model takes.
        room: Bytes that a worker may take for activations and counts.
        fingerprint: Names the data.
        together: Several samples may run at once.
    """
    wanted, fixed = job.batch, fixed_batch(inputs)
    first = _first(job, 1)[0]
    batch = batch_for(inputs, first, wanted or 1)
    job = replace(job, batch=batch, whole_batches=fixed is not None)
    samples = _first(job, batch)
    if job.whole_batches and len(samples) < batch:
        raise DataError(
            f"The model takes batches of {batch}, and there are only {len(samples)} samples."
        )
    nbytes = _sizes_of_run(opened(job), collate(samples)[0], first)
    if together and not wanted and fixed is None:
        several = _first(job, _rows_per_run(first, nbytes, len(job.order())))
        batch = len(several) if _runs_together(opened(job), several) else 1
        nbytes = {tensor: n * batch for tensor, n in nbytes.items()}
    opened(job).session.rest()
    job = replace(job, batch=batch, groups=split_into_passes(job.groups[0], nbytes, memory=room))
    return replace(job, key=_key(job, fingerprint))


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


def _sizes_of_run(work: OpenJob, feeds: Mapping[str, Any], first: Sample) -> dict[str, int]:
    """Run samples together, of which `first` is the first; return the bytes that each tensor takes.

    Args:
        work: The opened model.
        feeds: Some samples as one batch.
        first: The first of them, for the message.

    Raises:
        DataError: The model does not run on it.
    """
    try:
        return {tensor: array.nbytes for tensor, array in work.session.run(dict(feeds))}
    except RUNTIME_ERRORS as e:
        raise DataError(
            f"The model does not run on '{first.name}': {first_line(e)}{first.advice}"
        ) from e


def _rows_per_run(sample: Sample, nbytes: Mapping[str, int], samples: int) -> int:
    """Return how many of so many samples to run together: small ones many, for each run costs something.

    Text alone: padding would be observed too. Never so many that there are too few batches to share out.

    Args:
        sample: The first: text or not.
        nbytes: What each observed tensor of a sample takes.
        samples: How many there are.
    """
    if sample.padding is not None:
        return 1
    fitting = _COMFORTABLE // max(1, sum(nbytes.values()))
    return max(1, min(_TOGETHER, fitting, samples // _BATCHES))


def _runs_together(work: OpenJob, samples: Sequence[Sample]) -> bool:
    """Say whether samples have one shape and the model takes them at once: not all that say so do."""
    feeds = collate(samples)
    if len(samples) == 1 or len(feeds) > 1:
        return False
    try:
        _sizes_of_run(work, feeds[0], samples[0])
    except DataError:
        return False
    return True


def split_into_passes(
    requests: Sequence[Request], nbytes: Mapping[str, int], *, memory: int
) -> tuple[tuple[Request, ...], ...]:
    """Cut requests into groups whose tensors and counts fit into `memory`; most models need one.

    Args:
        requests: What is asked.
        nbytes: What each tensor takes for one batch.
        memory: Bytes that a pass may take.
    """
    groups: list[list[Request]] = [[]]
    taken: set[str] = set()
    used = 0
    for request in requests:
        own = _own(request, nbytes.get(request.tensor, 0))
        cost = own + (0 if request.tensor in taken else nbytes.get(request.tensor, 0))
        if used + cost > memory and groups[-1]:
            groups.append([])
            used, cost, taken = 0, own + nbytes.get(request.tensor, 0), set()
        groups[-1].append(request)
        taken.add(request.tensor)
        used += cost
    return tuple(tuple(group) for group in groups)


def _own(request: Request, nbytes: int) -> int:
    """Return what an answer takes in a worker; moments are shared, patches that wait for them are not."""
    if isinstance(request.statistic, PatchesOf):
        return request.statistic.waiting
    return _LIST if nbytes <= _SMALL else _TABLE


def _key(job: Job, data: str) -> str:
    """Name everything that the result depends on: model and data by their digests, and the settings."""
    plain = (
        job.model_key,
        data,
        job.groups,
        job.batch,
        job.limit,
        job.shuffle,
        job.seed,
        job.skip_bad,
    )
    return hashlib.sha256(repr((*plain, job.threads)).encode()).hexdigest()
