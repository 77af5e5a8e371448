"""What is to be observed, as plain data that travels; and the work of one shard.

A worker, in this process or on another machine, is given a job and a range of batches. It opens the model
and reads the samples itself.
"""

import hashlib
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from calibrators import PatchMoments, Sketch
from quantkit.calibration.requests import Extremes, Observations, PatchesOf, Request, RunningMinMax
from quantkit.data import Sample, Samples, collate, order
from quantkit.errors import DataError, RuntimeSupportError
from quantkit.model.graph.load import LoadedModel, load
from quantkit.model.graph.shapes import infer_types
from quantkit.runtime.session import RUNTIME_ERRORS, first_line, why_not_loaded
from quantkit.runtime.taps import TappedSession

Placed = tuple[int, Sample]
NOTHING_SHARED: Mapping[Request, PatchMoments] = MappingProxyType({})

_DIGEST_BYTES = 8
# From here on memory counts more than a sixth of the time: without an arena a session holds 70 MB less of ResNet-50.
_LARGE_MOMENTS = 96 << 20  # bytes
_DIGEST_VALUES = 1 << 14  # of an input; enough to tell two samples apart, and a tenth of the time


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One pass over the data.

    Attributes:
        key: Names everything that the result depends on; two jobs of the same key have the same result.
        model: The float model; `model_key` is its digest.
        samples: The data; None if it comes as a stream, so that shards carry their samples.
        groups: The requests; more than one group if the tensors of all do not fit into memory at once, and
            then the data is run once per group.
        batch: Samples in a batch.
        limit: How many samples are used; all if None.
        shuffle: Whether their order is shuffled.
        seed: How it is shuffled.
        whole_batches: Leave out a batch that is short of samples: the model takes no other.
        skip_bad: Leave out samples that cannot be read, instead of failing.
        threads: For one operator. One thread a worker is fastest, and gives the same bits everywhere.
        loaded: The model as this process has read it; it does not travel, and who has none loads the model.
    """

    key: str
    model: str | Path | onnx.ModelProto
    samples: Samples | None
    groups: tuple[tuple[Request, ...], ...]
    model_key: str = ""
    batch: int = 1
    limit: int | None = None
    shuffle: bool = False
    seed: int = 0
    whole_batches: bool = False
    skip_bad: bool = False
    threads: int = 1
    loaded: LoadedModel | None = field(default=None, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "loaded"}
        return partial(Job, **plain), ()

    def order(self) -> NDArray[np.int64]:
        """Return the numbers of the samples, in the order in which they are batched."""
        assert self.samples is not None  # noqa: S101 - a stream has no numbers
        return order(len(self.samples), limit=self.limit, shuffle=self.shuffle, seed=self.seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Batches `first` to `last` (excluded) of one group and segment.

    Attributes:
        carried: The samples themselves, one list per batch, if they come from a stream.
    """

    group: int
    segment: int
    first: int
    last: int
    carried: tuple[tuple[tuple[int, Sample], ...], ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardResult:
    """What a shard showed; `last` is where it stopped, if it was told to."""

    shard: Shard
    last: int
    seconds: float
    seen: Observations


class OpenJob:
    """A job's session for one group of requests; shared by the threads of a process."""

    def __init__(self, job: Job, group: int) -> None:
        source = job.loaded or load(job.model)
        source.require_weights()
        self.requests = job.groups[group]
        infer_types(source.model)
        # If anybody asks more of a tensor than its ends, it leaves the graph whole, and these are taken outside.
        whole = {r.tensor for r in self.requests if not r.statistic.in_graph}
        tensors = {r.tensor: None for r in self.requests}
        try:
            self.session = TappedSession(
                source,
                tensors,
                only_ends=tensors.keys() - whole,
                threads=job.threads,
                arena=_moments(self.requests) < _LARGE_MOMENTS,
            )
        except RUNTIME_ERRORS as e:
            raise RuntimeSupportError(why_not_loaded(source, str(e))) from e


def _moments(requests: Iterable[Request]) -> int:
    """Return how many bytes the moments take that are asked for."""
    return sum(r.statistic.nbytes for r in requests if isinstance(r.statistic, PatchesOf))


_OPEN: dict[Hashable, OpenJob] = {}
_LOCK = Lock()


def opened(job: Job, group: int = 0) -> OpenJob:
    """Return the job's session, made at its first use in this process; only one is kept."""
    key = (job.model_key or job.key, job.groups[group], job.threads)
    with _LOCK:
        if key not in _OPEN:
            _OPEN.clear()
            _OPEN[key] = OpenJob(job, group)
        return _OPEN[key]


def close() -> None:
    """Give the memory of the session that is kept back."""
    with _LOCK:
        _OPEN.clear()


def observe_shard(
    job: Job,
    shard: Shard,
    tick: Callable[[int], None] = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
    parts: Mapping[Request, PatchMoments] = NOTHING_SHARED,
) -> ShardResult:
    """Observe a shard's batches; after each, say how many samples it had, and stop if told to.

    `parts` are added to where they are, and are no part of the result.

    Args:
        job: What is to be observed.
        shard: Which batches, and which group of requests.
        tick: Told how many samples each batch had.
        stopped: Asked after each batch.
        parts: Moments that lie in shared memory, by request.
    """
    started = time.perf_counter()
    work = opened(job, shard.group)
    seen = Observations.empty(work.requests, job.batch)
    for request, part in parts.items():
        seen.answers[request.tensor][request.statistic] = part
    last = shard.first
    for batch in _batches(job, shard, seen):
        rows = [place for place, sample in batch for _ in range(_extent(sample.feeds))]
        for feeds in collate([sample for _, sample in batch]):
            extent = _extent(feeds)
            _observe(work, feeds, rows[:extent], seen, batch[0][1].advice)
            del rows[:extent]
        last += 1
        tick(len(batch))
        if stopped():
            break
    for request, part in parts.items():
        part.flush()
        seen.forget(request)
    return ShardResult(shard=shard, last=last, seconds=time.perf_counter() - started, seen=seen)


def _batches(job: Job, shard: Shard, seen: Observations) -> Iterator[tuple[Placed, ...]]:
    """Yield the shard's batches as (place in the order, sample); note digests in the first group."""
    order = np.empty(0, np.int64) if shard.carried is not None else job.order()
    for at in range(shard.first, shard.last):
        if shard.carried is not None:
            batch = list(shard.carried[at - shard.first])
        else:
            batch = list(_read(job, order, at, seen))
        if not batch or (job.whole_batches and len(batch) < job.batch):
            yield ()
            continue
        if shard.group == 0:
            seen.samples.extend(place for place, _ in batch)
            seen.digests.extend(sample_digest(sample.feeds) for _, sample in batch)
        yield tuple(batch)


def _read(job: Job, order: NDArray[np.int64], at: int, seen: Observations) -> Iterator[Placed]:
    assert job.samples is not None  # noqa: S101 - a stream is carried
    for place in range(at * job.batch, min((at + 1) * job.batch, len(order))):
        try:
            yield place, job.samples[int(order[place])]
        except DataError as e:
            if not job.skip_bad:
                raise
            seen.bad[place] = str(e)


def _extent(feeds: Mapping[str, NDArray[Any]]) -> int:
    """Return how many rows there are: the leading extent, 1 where an input has none."""
    return min((a.shape[0] for a in feeds.values() if a.ndim), default=1)


def sample_digest(feeds: Mapping[str, NDArray[Any]]) -> int:
    """Return 64 bits that name what a sample feeds to the model."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for name in sorted(feeds):
        digest.update(name.encode())
        array = feeds[name]
        digest.update(str(array.shape).encode())
        values = array.reshape(-1)[:: max(1, array.size // _DIGEST_VALUES) | 1]
        digest.update(values.tobytes())
    return int.from_bytes(digest.digest(), "little")


def _observe(
    work: OpenJob, feeds: dict[str, NDArray[Any]], rows: list[int], seen: Observations, advice: str
) -> None:
    try:
        for tensor, array in work.session.run(feeds):
            if (
                array.dtype.kind not in "fV" or not array.size
            ):  # a type that inference did not know; a branch not taken
                continue
            for statistic in seen.answers[tensor].values():
                before = _ends(statistic)
                statistic.observe(array)
                _note_extremes(seen.extremes[tensor], array, before, _ends(statistic), rows)
    except RUNTIME_ERRORS as e:
        raise DataError(
            f"The float model does not run on sample {rows[0]}: {first_line(e)}{advice}"
        ) from e


def _ends(statistic: Any) -> tuple[float, float] | None:
    """Return the smallest and largest value so far of what knows them of a whole tensor."""
    if isinstance(statistic, RunningMinMax) or (
        isinstance(statistic, Sketch) and statistic.axis is None
    ):
        return statistic.bounds
    return None


def _note_extremes(
    extremes: Extremes,
    array: NDArray[Any],
    before: tuple[float, float] | None,
    after: tuple[float, float] | None,
    rows: list[int],
) -> None:
    """If a batch set a new extreme, note which of its samples did. Rare, so it may cost a pass."""
    if before is None or after is None:
        return
    if after[0] != before[0]:
        extremes.lower(after[0], _row_of(array, after[0], rows))
    if after[1] != before[1]:
        extremes.raise_(after[1], _row_of(array, after[1], rows))


def _row_of(array: NDArray[Any], value: float, rows: list[int]) -> int:
    """Return the row that holds a value; the first, where an array has no rows (as a span has none)."""
    if len(rows) == 1 or array.ndim <= 1 or array.shape[0] % len(rows):
        return rows[0]
    where = int(np.argmax(array.reshape(-1) == array.dtype.type(value)))
    return rows[where * len(rows) // array.size]
