"""Shards on this machine: forked processes where that is safe, else threads.

Counting is thousands of short numpy calls per image, and on threads these wait for the interpreter: two threads
are slower than one (ARCHITECTURE.md has the figures). A forked process shares the session and its weights with
its parent and starts at once.
"""

import mmap
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import chain

from calibrators import PatchMoments
from quantkit.observe.forks import Crew, can_fork, one_thread_each
from quantkit.observe.job import (
    NOTHING_SHARED,
    Job,
    Shard,
    ShardResult,
    observe_shard,
    opened,
)
from quantkit.observe.requests import Request

__all__ = ["run_locally"]

_AHEAD = 2  # shards a thread is given at a time, so that it never waits for the merging
_GLANCE = 0.1  # seconds between looks at the progress, and at whether the user wants to stop
_PATIENCE = 1.5  # seconds that workers have to finish a batch when the user wants to stop

_HERE = threading.local()

Tick = Callable[[int], None]


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
    shards = chain([first], shards)
    if workers > 1 and can_fork():
        halt = mmap.mmap(-1, 1)  # shared, and without a lock that a killed worker might hold
        with Crew(
            lambda shard, say: observe_shard(
                job, shard, say, lambda: bool(halt[0]), _parts(shared)
            ),
            workers,
        ) as crew:
            if crew.size:
                yield from _forked(crew, shards, halt, tick, stopped)
                return

    def work(shard: Shard, say: Tick, halted: Callable[[], bool]) -> ShardResult:
        return observe_shard(job, shard, say, halted, _parts(shared))

    with one_thread_each():
        yield from _threaded(work, shards, workers, tick, stopped)


def _parts(shared: Mapping[Request, PatchMoments]) -> Mapping[Request, PatchMoments]:
    """Return what this worker adds to shared moments with; the same for all its shards."""
    if getattr(_HERE, "shared", None) is not shared:
        _HERE.shared = shared
        _HERE.parts = {request: moments.part() for request, moments in shared.items()}
    found: Mapping[Request, PatchMoments] = _HERE.parts
    return found


def _forked(
    crew: Crew, shards: Iterator[Shard], halt: mmap.mmap, tick: Tick, stopped: Callable[[], bool]
) -> Iterator[ShardResult]:
    wanted: float | None = None  # since when the user wants to stop
    for result in crew.work(_until(stopped, shards), tick):
        if result is not None:
            yield result
        if stopped():
            halt[0] = 1
            wanted = wanted or time.monotonic()
            if time.monotonic() - wanted > _PATIENCE:
                return


def _until(stopped: Callable[[], bool], shards: Iterator[Shard]) -> Iterator[Shard]:
    while not stopped():
        shard = next(shards, None)
        if shard is None:
            return
        yield shard


def _threaded(
    work: Callable[..., ShardResult],
    shards: Iterator[Shard],
    workers: int,
    tick: Tick,
    stopped: Callable[[], bool],
) -> Iterator[ShardResult]:
    """Work in threads; each has one shard under way and one waiting."""
    halt = threading.Event()
    done: list[int] = []  # samples of each batch; appending is atomic
    told = 0
    pending: set[Future[ShardResult]] = set()
    order: dict[Future[ShardResult], int] = {}
    left = _until(stopped, shards)
    with ThreadPoolExecutor(workers, "quantkit") as pool:
        try:
            while True:
                while len(pending) < workers * _AHEAD:
                    shard = next(left, None)
                    if shard is None:
                        break
                    future = pool.submit(work, shard, done.append, halt.is_set)
                    order[future] = len(order)  # of two that are done, the earlier is merged first
                    pending.add(future)
                if not pending:
                    return
                finished, pending = wait(pending, _GLANCE, FIRST_COMPLETED)
                new = done[told:]
                told += len(new)
                tick(sum(new))
                if stopped():
                    halt.set()
                for future in sorted(finished, key=order.__getitem__):
                    yield future.result()
        finally:
            halt.set()
            for future in pending:
                future.cancel()
