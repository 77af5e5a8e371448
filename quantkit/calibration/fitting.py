"""Fit a job to what its first samples show: how many samples run together, and which requests share a pass."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from quantkit.calibration.job import Job, OpenJob, opened
from quantkit.calibration.model_inputs import batch_for, fixed_batch
from quantkit.calibration.requests import PatchesOf, Request
from quantkit.data import InputSpec, Sample, collate
from quantkit.errors import DataError
from quantkit.runtime.session import RUNTIME_ERRORS, first_line

# Activations of one run that are still handled well, and samples in a run, if nobody says how many.
_COMFORTABLE = 64 << 20
_TOGETHER = 64
_TABLE = (
    512 << 10
)  # bytes that the counts of a tensor take in a worker, or, where it is small, a list of its values
_LIST = 96 << 10
_SMALL = 8 << 10  # bytes of a tensor in one run
_BATCHES = 32  # at least, unless they would be smaller than one


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
