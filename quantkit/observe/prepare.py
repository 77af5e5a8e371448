"""From a model and its data to a job: what the model wants, what is asked, what fits into memory."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from quantkit.data import InputSpec, Sample, fixed_batch
from quantkit.errors import DataError, ModelError
from quantkit.graph.load import LoadedModel
from quantkit.observe.job import Job, OpenJob
from quantkit.observe.requests import Request
from quantkit.runtime import RUNTIME_ERRORS, first_line

__all__ = ["MEMORY", "batch_for", "grouped", "inputs_of", "job_key", "try_out"]

# Bytes of activations that all workers together may hold.
MEMORY = 2 << 30


def inputs_of(source: LoadedModel) -> tuple[InputSpec, ...]:
    """Return what the model is to be fed; inputs that have a default are left to it."""
    found = []
    for value in source.model.graph.inputs:
        if value.is_initializer():
            continue
        if value.dtype is None or value.shape is None:
            raise ModelError(
                f"Input '{value.name}' of {source.name} has no type or no shape; export it with both."
            )
        shape = tuple(n if isinstance(n, int) else None for n in value.shape)
        strings = value.dtype is ir.DataType.STRING
        dtype = np.dtype(object if strings else value.dtype.numpy())
        found.append(InputSpec(name=value.name or "", dtype=dtype, shape=shape))
    return tuple(found)


def batch_for(inputs: Sequence[InputSpec], sample: Sample, wanted: int) -> int:
    """Return how many samples make a batch: as many as asked, or as the model is built for.

    Raises:
        DataError: The model's batch is not a multiple of the sample's.
    """
    fixed = fixed_batch(inputs)
    if fixed is None:
        return wanted
    rows = min((a.shape[0] for a in sample.feeds.values() if a.ndim), default=1)
    if fixed % rows:
        raise DataError(
            f"The model takes batches of {fixed}, which samples of {rows} rows ('{sample.name}') do "
            "not fill."
        )
    return fixed // rows


def try_out(work: OpenJob, sample: Mapping[str, Any], name: str) -> dict[str, int]:
    """Run one sample; return the bytes that each tensor takes.

    Raises:
        DataError: The model does not run on it.
    """
    try:
        return {tensor: array.nbytes for tensor, array in work.run(dict(sample))}
    except RUNTIME_ERRORS as e:
        raise DataError(f"The model does not run on '{name}': {first_line(e)}") from e


def grouped(
    requests: Sequence[Request], nbytes: Mapping[str, int], *, memory: int
) -> tuple[tuple[Request, ...], ...]:
    """Cut requests into groups whose tensors fit into `memory`; most models need one."""
    groups: list[list[Request]] = [[]]
    taken: set[str] = set()
    used = 0
    for request in requests:
        cost = 0 if request.tensor in taken else nbytes.get(request.tensor, 0)
        if used + cost > memory and groups[-1]:
            groups.append([])
            used, cost, taken = 0, nbytes.get(request.tensor, 0), set()
        groups[-1].append(request)
        taken.add(request.tensor)
        used += cost
    return tuple(tuple(group) for group in groups)


def job_key(job: Job, model: str, data: str) -> str:
    """Name everything that the result depends on: model and data by their digests, and the settings."""
    plain = (model, data, job.groups, job.batch, job.limit, job.shuffle, job.seed, job.skip_bad)
    return hashlib.sha256(repr((*plain, job.threads)).encode()).hexdigest()
