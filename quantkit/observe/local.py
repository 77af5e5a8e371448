"""Shards on this machine: forked processes where that is safe, else threads.

Counting is thousands of short numpy calls an image, and on threads these wait for the interpreter: two threads
are slower than one (ARCHITECTURE.md has the figures). A forked process shares the session and its weights with
its parent and starts at once.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    Executor,
    Future,
    ThreadPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from quantkit.errors import QuantkitError
from quantkit.observe.forks import can_fork, fork_pool
from quantkit.observe.job import Job, Shard, ShardResult, observe_shard, opened

__all__ = ["run_locally"]

_AHEAD = 2  # shards a worker is given at a time, so that it never waits for the merging
_GLANCE = 0.1  # seconds between looks at the progress, and at whether the user wants to stop
_HERE = threading.local()


class _Desk:
    """What parent and workers share: the job, how many samples are done, and whether to stop."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.parent = os.getpid()
        self.done = multiprocessing.Value("q")
        self.stop = multiprocessing.Event()

    def tick(self, samples: int) -> None:
        with self.done.get_lock():
            self.done.value += samples


def run_locally(
    job: Job,
    shards: Iterator[Shard],
    workers: int,
    *,
    tick: Callable[[int], None],
    stopped: Callable[[], bool],
) -> Iterator[ShardResult]:
    """Yield results as they come; each worker has one shard under way and one waiting.

    Raises:
        QuantkitError: A worker process was killed, most likely for want of memory.
    """
    desk = _Desk(job)
    pending: set[Future[ShardResult]] = set()
    order: dict[Future[ShardResult], int] = {}
    told = 0
    with _executor(desk, workers) as pool:
        try:
            while True:
                while len(pending) < workers * _AHEAD and not stopped():
                    shard = next(shards, None)
                    if shard is None:
                        break
                    future = pool.submit(_work, shard)
                    order[future] = len(order)  # of two that are done, the earlier is merged first
                    pending.add(future)
                if not pending:
                    return
                finished, pending = wait(pending, _GLANCE, FIRST_COMPLETED)
                told, before = int(desk.done.value), told
                tick(told - before)
                if stopped():
                    desk.stop.set()
                for future in sorted(finished, key=order.__getitem__):
                    yield future.result()
        except BrokenProcessPool as e:
            raise QuantkitError(
                "A worker process died, most likely for want of memory: the same command continues "
                "where it stopped; use fewer --workers, or a smaller --batch."
            ) from e
        finally:
            desk.stop.set()
            for future in pending:
                future.cancel()


def _executor(desk: _Desk, workers: int) -> Executor:
    opened(desk.job)  # before forking, so that all share it
    if workers == 1 or not can_fork():
        return ThreadPoolExecutor(workers, "quantkit", _sit_down, (desk,))
    return fork_pool(workers, _sit_down, (desk,))


def _sit_down(desk: _Desk) -> None:
    """Prepare a worker."""
    _HERE.desk = desk
    if os.getpid() != desk.parent:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
        threading.Thread(target=_leave_with, args=(desk.parent,), daemon=True).start()


def _leave_with(parent: int) -> None:
    """End this process when its parent was killed: nobody else would."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _work(shard: Shard) -> ShardResult:
    desk: Any = _HERE.desk
    return observe_shard(desk.job, shard, desk.tick, desk.stop.is_set)
