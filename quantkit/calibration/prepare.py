"""From a model and its data to a job: what the model wants, what is asked, what fits into memory."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from quantkit.calibration.job import Job, OpenJob
from quantkit.calibration.requests import PatchesOf, Request
from quantkit.data import InputSpec, Sample, collate
from quantkit.errors import DataError, ModelError
from quantkit.model.graph.load import LoadedModel
from quantkit.runtime.session import RUNTIME_ERRORS, first_line
from quantkit.settings import DataSettings

__all__ = [
    "MEMORY",
    "grouped",
    "inputs_of",
    "job_key",
    "rows_for",
    "runs_together",
    "try_out",
    "with_model_folder",
]

# Bytes of activations and counts that all workers together may hold.
MEMORY = 1 << 30
# Activations of one run that are still handled well, and samples in a run, if nobody says how many.
_COMFORTABLE = 64 << 20
_TOGETHER = 64
_TABLE = (
    512 << 10
)  # bytes that the counts of a tensor take in a worker, or, where it is small, a list of its values
_LIST = 96 << 10
_SMALL = 8 << 10  # bytes of a tensor in one run
_BATCHES = 32  # at least, unless they would be smaller than one


def inputs_of(source: LoadedModel, *, open_shapes: bool = False) -> tuple[InputSpec, ...]:
    """Return what the model is to be fed; inputs that have a default are left to it.

    A shape that the model leaves open altogether is (), as onnxruntime says it, where `open_shapes` are taken.
    """
    found = []
    for value in source.model.graph.inputs:
        if value.is_initializer():
            continue
        if value.dtype is None or (value.shape is None and not open_shapes):
            raise ModelError(
                f"Input '{value.name}' of {source.name} has no type or no shape; export it with both."
            )
        shape = tuple(n if isinstance(n, int) else None for n in value.shape or ())
        strings = value.dtype is ir.DataType.STRING
        dtype = np.dtype(object if strings else value.dtype.numpy())
        first = value.shape[0] if value.shape else None
        axis = (first.value or "") if isinstance(first, ir.SymbolicDim) else ""
        found.append(InputSpec(name=value.name or "", dtype=dtype, shape=shape, axis=axis))
    return tuple(found)


def try_out(work: OpenJob, feeds: Mapping[str, Any], first: Sample) -> dict[str, int]:
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


def rows_for(sample: Sample, nbytes: Mapping[str, int], samples: int) -> int:
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


def runs_together(work: OpenJob, samples: Sequence[Sample]) -> bool:
    """Say whether samples have one shape and the model takes them at once: not all that say so do."""
    feeds = collate(samples)
    if len(samples) == 1 or len(feeds) > 1:
        return False
    try:
        try_out(work, feeds[0], samples[0])
    except DataError:
        return False
    return True


def grouped(
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


def job_key(job: Job, data: str) -> str:
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


def with_model_folder(settings: DataSettings, loaded: LoadedModel) -> DataSettings:
    """Let a tokenizer be found beside the model."""
    if loaded.path is None:
        return settings
    text = replace(settings.text, search=(*settings.text.search, loaded.path.parent))
    return replace(settings, text=text)
