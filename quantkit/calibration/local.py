"""Shards on this machine, by the workers of `quantkit.calibration.forks`.

Counting is thousands of short numpy calls per image, and on threads these wait for the interpreter: two threads
are slower than one (docs/design.md has the figures). A forked process shares the session and its weights with
its parent and starts at once.
"""

import mmap
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import chain

from calibrators import PatchMoments
from quantkit.calibration.forks import make_crew
from quantkit.calibration.job import (
    NOTHING_SHARED,
    Job,
    Shard,
    ShardResult,
    observe_shard,
    opened,
)
from quantkit.calibration.requests import Request

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
