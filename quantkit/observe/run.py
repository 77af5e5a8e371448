"""One pass over the data: schedule shards, merge what they saw, keep it safe on disk.

Memory does not depend on the number of samples: there are as many sketches as tensors, four times (one
set a segment, for the audit), and a worker holds the activations of one batch.
"""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

from quantkit.data import Sample
from quantkit.observe.checkpoint import Checkpoint
from quantkit.observe.job import Job, Shard, ShardResult
from quantkit.observe.local import run_locally
from quantkit.observe.observations import Observations
from quantkit.observe.schedule import SEGMENTS, Schedule

__all__ = ["Engine", "Pass", "Stopped", "observe", "observe_stream"]

Tick = Callable[[int], None]
Engine = Callable[..., Iterator[ShardResult]]
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
        segments: What the first eighth of the samples showed, then up to a quarter, a half, and all.
    """

    segments: tuple[Observations, ...]

    def whole(self) -> Observations:
        """Merge all segments, in order, into new observations."""
        total = self.segments[0].copy()
        for segment in self.segments[1:]:
            total.merge(segment)
        return total


def observe(
    job: Job,
    *,
    workers: int,
    checkpoint: Checkpoint | None = None,
    tick: Tick = lambda _: None,
    resumed: Tick = lambda _: None,
    engine: Engine = run_locally,
) -> Pass:
    """Observe a job's samples, from where an interrupted run stopped; `resumed` is told where.

    Raises:
        Stopped: The user pressed Ctrl-C; the checkpoint holds everything that was seen.
    """
    batches = -(-len(job.order()) // job.batch)
    schedule = Schedule(groups=len(job.groups), batches=batches, workers=workers)
    requests = [r for group in job.groups for r in group]
    segments = {s: Observations.empty(requests, job.batch) for s in range(SEGMENTS)}
    earlier = checkpoint.load(job.groups) if checkpoint else None
    if earlier is not None:
        segments |= earlier[0]
        schedule.resume(earlier[1])
        resumed(_samples(job, schedule))
    with _interruptible() as stopped:
        for result in engine(job, schedule.shards(), workers, tick=tick, stopped=stopped):
            segments[result.shard.segment].merge(result.seen)
            schedule.finish(result)
            if checkpoint:
                checkpoint.save_if_due(segments, schedule.done)
        if stopped():
            if checkpoint:
                checkpoint.save(segments, schedule.done)
            raise Stopped(_samples(job, schedule), kept=checkpoint is not None)
    return Pass(segments=tuple(segments[s] for s in range(SEGMENTS)))


def _samples(job: Job, schedule: Schedule) -> int:
    """Return how many samples are done; the last batch may be short."""
    return min(int(schedule.done[0].sum()) * job.batch, len(job.order()))


def observe_stream(
    job: Job, samples: Iterable[Sample], *, workers: int, tick: Tick = lambda _: None
) -> Pass:
    """Observe samples that come from a Python iterator: once through, nothing to resume."""
    requests = list(job.groups[0])
    segments: dict[int, Observations] = {}
    with _interruptible() as stopped:
        shards = _carried(job, samples)
        for result in run_locally(job, shards, workers, tick=tick, stopped=stopped):
            if result.shard.segment not in segments:
                segments[result.shard.segment] = Observations.empty(requests, job.batch)
            segments[result.shard.segment].merge(result.seen)
        if stopped():
            raise Stopped(sum(len(s.samples) for s in segments.values()), kept=False)
    ordered = [segments[s] for s in sorted(segments)]
    while len(ordered) > SEGMENTS:  # how many samples come is known only now
        ordered[0].merge(ordered.pop(1))
    return Pass(segments=tuple(ordered))


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
