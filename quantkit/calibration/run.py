"""One pass over the data: schedule shards, merge what they saw, keep it safe on disk.

Memory does not depend on the number of samples: there are as many sketches as tensors, four times where the audit looks
(one set per segment), moments are kept once, where all processes add to them, and a worker holds the activations of one
batch.

`Schedule` cuts the batches that are left into shards: long enough to be cheap, short enough to lose little.

Results do not depend on the cutting (merging is exact), so a shard may be as long as the pace measured so
far suggests. A segment is cut evenly among the workers, so that they finish it together.

`Checkpoint` is what is known so far, on disk: an interrupted run continues where it stopped. It is written beside the
result every few seconds; `kill -9` loses no more than that. One of another job (other data, other settings) is not used.

`run_locally` observes shards on this machine, by the workers of `quantkit.calibration.forks`. Counting is thousands of short numpy calls per image, and on threads these wait for the interpreter: two threads
are slower than one (docs/design.md has the figures). A forked process shares the session and its weights with
its parent and starts at once.
"""

import mmap
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, filterfalse, islice
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators import PatchMoments
from quantkit.calibration.container import read_container, write_container
from quantkit.calibration.forks import make_crew, shared_locks
from quantkit.calibration.job import (
    NOTHING_SHARED,
    Job,
    Shard,
    ShardResult,
    observe_shard,
    opened,
)
from quantkit.calibration.requests import Observations, PatchesOf, Request
from quantkit.data import Sample
from quantkit.errors import DataError

_FORMAT = "quantkit.partial.1"
_PAUSE = 3.0  # seconds between two writings, at least
_SHARE = 0.1  # of the time, at most, goes into writing

_HERE = threading.local()


class Checkpoint:
    """The file of one run."""

    def __init__(self, path: Path, key: str) -> None:
        self.path = path
        self.key = key
        self._written = time.monotonic()
        self._pause = _PAUSE

    def save_if_due(self, segments: Mapping[int, Observations], done: NDArray[np.bool_]) -> None:
        """Save, if the last time is long enough ago."""
        if time.monotonic() - self._written >= self._pause:
            self.save(segments, done)

    def save(self, segments: Mapping[int, Observations], done: NDArray[np.bool_]) -> None:
        """Write everything that is known."""
        started = time.monotonic()
        header = {
            "format": _FORMAT,
            "key": self.key,
            "bad": {s: seen.reasons() for s, seen in segments.items()},
        }
        arrays: dict[str, NDArray[np.generic]] = {"done": done}
        for segment, seen in segments.items():
            arrays |= {f"{segment}/{name}": a for name, a in seen.to_arrays().items()}
        write_container(self.path, header, arrays)
        self._written = time.monotonic()
        self._pause = max(_PAUSE, (self._written - started) / _SHARE)

    def load(
        self, asked: Mapping[int, Sequence[Request]]
    ) -> tuple[dict[int, Observations], NDArray[np.bool_]] | None:
        """Return what an earlier run of the same job has seen, by part; None if there is none."""
        if not self.path.exists():
            return None
        try:
            header, arrays = read_container(self.path)
        except DataError:
            return None  # written by something else, or cut off: start anew
        if header.get("format") != _FORMAT or header.get("key") != self.key:
            return None
        try:
            return _restored(header["bad"], arrays, asked), arrays["done"].astype(bool)
        except Exception:  # noqa: BLE001 - whatever restoring nonsense raises: start anew
            return None

    def remove(self) -> None:
        """Delete the file: the result is written."""
        self.path.unlink(missing_ok=True)


def _restored(
    bad: Mapping[str, Sequence[str]],
    arrays: Mapping[str, NDArray[np.generic]],
    asked: Mapping[int, Sequence[Request]],
) -> dict[int, Observations]:
    segments = {}
    for segment, reasons in bad.items():
        prefix = f"{segment}/"
        own = {k.removeprefix(prefix): a for k, a in arrays.items() if k.startswith(prefix)}
        segments[int(segment)] = Observations.from_arrays(own, asked[int(segment)], reasons)
    return segments


# Prefixes whose ranges are compared in the audit: an eighth, a quarter, a half, and all of the data.
SEGMENTS = 4
_SECONDS = 3.0  # that a shard may take: a kill loses no more than that
_FIRST = 8  # batches in a shard, as long as no pace is known


def segment_ends(batches: int) -> list[int]:
    """Return where each segment ends, in batches: an eighth, a quarter, a half, all."""
    return [ceil(batches / 2**k) for k in reversed(range(SEGMENTS))]


class Schedule:
    """The batches of all groups, and which of them are done."""

    def __init__(self, *, groups: int, batches: int, workers: int) -> None:
        self.batches = batches
        self.workers = workers
        self.done: NDArray[np.bool_] = np.zeros((groups, batches), np.bool_)
        self._given = self.done.copy()
        self._pace: float | None = None

    def resume(self, done: NDArray[np.bool_]) -> None:
        """Leave out what an earlier run has done."""
        self.done = done.copy()
        self._given = done.copy()

    def finish(self, result: ShardResult) -> None:
        """Note what a shard has done, and how long it took."""
        shard = result.shard
        self.done[shard.group, shard.first : result.last] = True
        if result.last > shard.first:
            self._pace = result.seconds / (result.last - shard.first)

    def shards(self, group: int = 0) -> Iterator[Shard]:
        """Yield the shards of a group, each cut when it is asked for."""
        ends = segment_ends(self.batches)
        for segment, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            yield from self._cut(group, segment, start, end)

    def _cut(self, group: int, segment: int, start: int, end: int) -> Iterator[Shard]:
        given = self._given[group]
        first = start
        while first < end:
            if given[first]:
                first += 1
                continue
            last = first + 1
            longest = self._longest(end - start)
            while last < end and last - first < longest and not given[last]:
                last += 1
            given[first:last] = True
            yield Shard(group=group, segment=segment, first=first, last=last)
            first = last

    def _longest(self, batches: int) -> int:
        """Return the length of a shard of a segment: an even part that is short enough."""
        limit = _FIRST if self._pace is None else max(1, int(_SECONDS / max(self._pace, 1e-6)))
        return ceil(batches / (self.workers * ceil(batches / (self.workers * limit))))


Tick = Callable[[int], None]
Engine = Callable[..., Iterator[ShardResult]]
REST = SEGMENTS  # what is kept for all segments together, among the parts of a pass
_LOCKS = 16  # that shared moments take turns with; more would only be idle
_STREAM_SHARD = 8  # batches read ahead for a worker, when they come from a Python iterator


class Stopped(KeyboardInterrupt):
    """The user stopped the run between two batches."""

    def __init__(self, samples: int, *, kept: bool) -> None:
        rest = "; the same command continues from there" if kept else "; nothing was written"
        super().__init__(f"interrupted after {samples} samples{rest}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What a pass over the data gave.

    Attributes:
        requests: Everything that was asked, in order.
        segments: What the first eighth of the samples showed, then up to a quarter, a half, and all.
        rest: What all samples showed, of the requests that no segment holds.
    """

    requests: tuple[Request, ...]
    segments: tuple[Observations, ...]
    rest: Observations

    def whole(self) -> Observations:
        """Merge all segments, in order, into new observations."""
        total = self.segments[0].copy()
        for segment in self.segments[1:]:
            total.merge(segment)
        return total.with_rest(self.rest, self.requests)


def in_parts(request: Request) -> bool:
    """Say whether what is asked may be kept per segment: not what is too large for that."""
    return not request.statistic.once


def observe(  # noqa: PLR0913 - one parameter per question
    job: Job,
    *,
    workers: int,
    parted: Callable[[Request], bool] = in_parts,
    checkpoint: Checkpoint | None = None,
    tick: Tick = lambda _: None,
    resumed: Tick = lambda _: None,
    engine: Engine | None = None,
) -> Pass:
    """Observe a job's samples, from where an interrupted run stopped; `resumed` is told where.

    `parted` says which requests are answered for each segment as well. Without an engine, processes of this machine
    observe, and add moments to memory that they share, unless a checkpoint must know what came from which shard.

    Args:
        job: What is to be observed.
        workers: Processes.
        parted: Which requests are answered for each segment as well.
        checkpoint: Where progress is kept; None: nowhere.
        tick: Told how many samples are done.
        resumed: Told how many were done before.
        engine: Runs shards elsewhere; None: on this machine.

    Raises:
        Stopped: The user pressed Ctrl-C; the checkpoint holds everything that was seen.
    """
    batches = -(-len(job.order()) // job.batch)
    schedule = Schedule(groups=len(job.groups), batches=batches, workers=workers)
    requests = tuple(r for group in job.groups for r in group)
    asked = _asked(requests, parted)
    parts = {s: Observations.empty(own, job.batch) for s, own in asked.items()}
    if checkpoint and (earlier := checkpoint.load(asked)) is not None:
        parts |= earlier[0]
        schedule.resume(earlier[1])
        resumed(_samples(job, schedule))
    # Groups one after the other, each a pass over all data: their moments do not fit into memory together. Sharing
    # moments between processes and resuming exclude each other: shared sums hold shards that are half done, and a
    # checkpoint must know exactly which are in it. So with a checkpoint each shard brings its own.
    with _interruptible() as stopped:
        for group, own in enumerate(job.groups):
            run = engine
            if run is None:
                run = partial(
                    run_locally, shared=_reserve(own, parts[REST]) if not checkpoint else {}
                )
            for result in run(job, schedule.shards(group), workers, tick=tick, stopped=stopped):
                parts[result.shard.segment].merge(result.seen, parts[REST])
                schedule.finish(result)
                if checkpoint:
                    checkpoint.save_if_due(parts, schedule.done)
        if stopped():
            if checkpoint:
                checkpoint.save(parts, schedule.done)
            raise Stopped(_samples(job, schedule), kept=checkpoint is not None)
    segments = tuple(parts[s] for s in range(SEGMENTS))
    return Pass(requests=requests, segments=segments, rest=parts[REST])


def _asked(
    requests: Sequence[Request], parted: Callable[[Request], bool]
) -> dict[int, tuple[Request, ...]]:
    """Return what is asked of each segment, and of all together."""
    apart = tuple(filter(parted, requests))
    return dict.fromkeys(range(SEGMENTS), apart) | {REST: tuple(filterfalse(parted, requests))}


def _reserve(requests: Sequence[Request], rest: Observations) -> dict[Request, PatchMoments]:
    """Put the moments that are asked for into memory that all workers share; there they are kept once."""
    shared: dict[Request, PatchMoments] = {}
    locks = shared_locks(_LOCKS)
    for r in requests:
        ask = r.statistic
        if isinstance(ask, PatchesOf) and ask.inputs and ask in rest.answers[r.tensor]:
            sums = np.frombuffer(mmap.mmap(-1, ask.nbytes), np.float64)
            lock = locks[len(shared) % len(locks)]
            shared[r] = PatchMoments.sharing(ask.window, ask.rows, ask.inputs, sums, lock)
            rest.answers[r.tensor][ask] = shared[r]
    return shared


def _samples(job: Job, schedule: Schedule) -> int:
    """Return how many samples are done; the last batch may be short."""
    return min(int(schedule.done[0].sum()) * job.batch, len(job.order()))


def observe_stream(
    job: Job,
    samples: Iterable[Sample],
    *,
    workers: int,
    parted: Callable[[Request], bool] = in_parts,
    tick: Tick = lambda _: None,
) -> Pass:
    """Observe samples that come from a Python iterator: once through, nothing to resume.

    Args:
        job: What is to be observed, without samples.
        samples: Read once, batch by batch.
        workers: Processes.
        parted: Which requests are answered for each segment as well.
        tick: Told how many samples are done.
    """
    requests = job.groups[0]
    asked = _asked(requests, parted)
    rest = Observations.empty(asked[REST], job.batch)
    segments: dict[int, Observations] = {}
    with _interruptible() as stopped:
        shards = _carried(job, samples)
        run = partial(run_locally, shared=_reserve(requests, rest))
        for result in run(job, shards, workers, tick=tick, stopped=stopped):
            if result.shard.segment not in segments:
                segments[result.shard.segment] = Observations.empty(asked[0], job.batch)
            segments[result.shard.segment].merge(result.seen, rest)
        if stopped():
            raise Stopped(sum(len(s.samples) for s in segments.values()), kept=False)
    ordered = [segments[s] for s in sorted(segments)]
    while len(ordered) > SEGMENTS:  # how many samples come is known only now
        ordered[0].merge(ordered.pop(1))
    return Pass(requests=requests, segments=tuple(ordered), rest=rest)


def _carried(job: Job, samples: Iterable[Sample]) -> Iterator[Shard]:
    """Cut a stream into shards that carry their samples; a new segment each time it has doubled."""
    placed = enumerate(islice(samples, job.limit))
    batches = iter(lambda: tuple(islice(placed, job.batch)), ())
    at, segment = 0, 0
    while carried := tuple(islice(batches, min(_STREAM_SHARD, (1 << segment) - at))):
        yield Shard(group=0, segment=segment, first=at, last=at + len(carried), carried=carried)
        at += len(carried)
        if at == 1 << segment:
            segment += 1


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C into a wish to stop between two batches; a second one is as ever."""
    wish = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield wish.is_set
        return
    before = signal.getsignal(signal.SIGINT)

    def stop(*_: Any) -> None:
        wish.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, stop)
    try:
        yield wish.is_set
    finally:
        signal.signal(signal.SIGINT, before)


def run_locally(
    job: Job,
    shards: Iterator[Shard],
    workers: int,
    *,
    tick: Tick,
    stopped: Callable[[], bool],
    shared: Mapping[Request, PatchMoments] = NOTHING_SHARED,
) -> Iterator[ShardResult]:
    """Yield results as they come; what is `shared` has been added to, and is in none of them.

    Args:
        job: What is to be observed.
        shards: The work.
        workers: Processes, or threads where forking is not safe.
        tick: Told how many samples each batch had.
        stopped: Says that the user wants to stop.
        shared: Moments in memory that all workers share.

    Raises:
        QuantkitError: A worker process was killed, most likely for want of memory.
    """
    first = next(shards, None)
    if first is None:
        return
    opened(job, first.group)  # before forking, so that all share it
    halt = mmap.mmap(-1, 1)  # shared, and without a lock that a killed worker might hold

    def work(shard: Shard, say: Tick) -> ShardResult:
        return observe_shard(job, shard, say, lambda: bool(halt[0]), _parts(shared))

    with make_crew(work, workers) as crew:
        wanted: float | None = None  # since when the user wants to stop
        try:
            for result in crew.work(_until(stopped, chain([first], shards)), tick):
                if result is not None:
                    yield result
                if stopped():
                    halt[0] = 1
                    wanted = wanted or time.monotonic()
                    if time.monotonic() - wanted > crew.patience:
                        return
        finally:
            halt[0] = 1  # threads cannot be ended


def _parts(shared: Mapping[Request, PatchMoments]) -> Mapping[Request, PatchMoments]:
    """Return what this worker adds to shared moments with; the same for all its shards."""
    if getattr(_HERE, "shared", None) is not shared:
        _HERE.shared = shared
        _HERE.parts = {request: moments.part() for request, moments in shared.items()}
    found: Mapping[Request, PatchMoments] = _HERE.parts
    return found


def _until(stopped: Callable[[], bool], shards: Iterator[Shard]) -> Iterator[Shard]:
    while not stopped():
        shard = next(shards, None)
        if shard is None:
            return
        yield shard
