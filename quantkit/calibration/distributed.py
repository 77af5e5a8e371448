"""Shards on a dask cluster: `--scheduler tcp://host:8786`.

A task is a job and a range of batches; workers open the model and read the samples themselves, so paths must
mean the same on every machine. A lost worker's shards are given to others by dask; where nobody is left, the run ends
with an error and is continued by the same command.

On this machine quantkit's own processes work (`quantkit.calibration.run`): a local cluster would listen on a port, and run
whatever any user of the machine sends it.
"""

import logging
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from quantkit.calibration.job import Job, Shard, ShardResult, observe_shard
from quantkit.errors import QuantkitError, UsageError
from quantkit.installation import install_command

_AHEAD = 2  # shards a worker has waiting, so that it never idles
_CARGO = 16 << 20  # bytes that may travel with each shard
_GLANCE = 0.05  # seconds between looks at what has come back, and at whether the user wants to stop
_LOOK = 1.0  # seconds between looks at who is there
_PATIENCE = 30.0  # seconds that a cluster may be without workers, or out of reach
_ANSWER = 5.0  # seconds that a scheduler has to say who is there
_DELIVERY = 30.0  # seconds that a result may take to come; it is asked for again
# What dask raises when a scheduler has gone: of its client then some parts are None.
_GONE = (OSError, TimeoutError, AttributeError)


@contextmanager
def cluster(scheduler: str, say: Callable[[str], None] = lambda _: None) -> Iterator[Any]:
    """Connect to a scheduler that has workers; yield dask's client.

    Raises:
        UsageError: dask.distributed is not installed, nobody answers at the address, or there are no workers.
    """
    try:
        from distributed import Client
    except ImportError as e:
        raise UsageError(f"--scheduler needs dask: {install_command('distributed')}.") from e
    with _quiet():
        try:
            client = Client(scheduler, timeout="10s")
        except (OSError, ValueError, TimeoutError) as e:
            raise UsageError(
                f"No dask scheduler answers at '{scheduler}': start one with 'dask scheduler'."
            ) from e
        try:
            _require_workers(client, scheduler, say)
            yield client
        finally:
            with suppress(Exception):  # a scheduler that has gone cannot be left politely
                client.close(timeout=_ANSWER)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep dask from logging whole tracebacks: what goes wrong is said once, by quantkit."""
    known = [logging.getLogger(name) for name in logging.root.manager.loggerDict]
    levels = {logger: logger.level for logger in known if logger.name.startswith("distributed")}
    for logger in levels:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)


def _require_workers(client: Any, scheduler: str, say: Callable[[str], None]) -> None:
    started = time.monotonic()
    while not workers_of(client):
        say(f"Waiting for a worker at {scheduler}")
        if time.monotonic() - started > _PATIENCE:
            raise UsageError(
                f"The dask scheduler at '{scheduler}' has no workers (waited {_PATIENCE:.0f} s): start some with "
                f"'dask worker {scheduler}'."
            )
        time.sleep(_LOOK)


def workers_of(client: Any) -> Sequence[str]:
    """Return the addresses of a cluster's workers; none if the scheduler does not answer."""
    if client.status != "running":
        return ()
    try:
        found = client.sync(client.scheduler.ncores, callback_timeout=_ANSWER)
    except _GONE:
        return ()
    return tuple(found)


def run_on(
    client: Any,
    job: Job,
    shards: Iterator[Shard],
    workers: int,
    *,
    tick: Callable[[int], None],
    stopped: Callable[[], bool],
) -> Iterator[ShardResult]:
    """Yield results as they come. An `Engine` when `client` is bound.

    Args:
        client: Of dask.distributed.
        job: What is to be observed; it travels with every shard, so it holds paths and no data.
        shards: The work.
        workers: Of the cluster.
        tick: Told how many samples are done.
        stopped: Says that the user wants to stop.

    Raises:
        UsageError: The data is in memory, and too large to be sent.
        QuantkitError: A worker failed, or the cluster is gone.
    """
    if len(pickle.dumps(job)) > _CARGO:
        raise UsageError(
            "This data is in memory, and too large to be sent to a cluster: save it (.npz, .npy, a saved "
            "dataset) where all workers can read it, and give its path."
        )
    submit = partial(client.submit, observe_shard, job, pure=False)
    pending = [submit(shard) for shard in _up_to(shards, workers * _AHEAD)]
    for result in _finished(pending, client, stopped):
        tick((result.last - result.shard.first) * job.batch)
        yield result
        pending += [submit(shard) for shard in _up_to(shards, 1)]


def run_each(client: Any, work: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[Any]:
    """Yield what comes of tasks, as they come.

    Args:
        client: Of dask.distributed.
        work: What a worker does with a task.
        tasks: Small: paths and settings.

    Raises:
        QuantkitError: A worker failed, or the cluster is gone.
    """
    yield from _finished([client.submit(work, task, pure=False) for task in tasks], client)


def _finished(
    pending: list[Any], client: Any, stopped: Callable[[], bool] = lambda: False
) -> Iterator[Any]:
    """Yield results as they come; whoever takes one may add to what is pending."""
    watch = _Watch(client)
    while pending:
        for future in [f for f in pending if f.status not in {"pending", "lost"}]:
            result = _result_of(future)
            if result is None:
                continue
            watch.heard()
            pending.remove(future)
            future.release()
            yield result
        if stopped():
            return  # who leaves a scheduler takes back what it asked for
        watch.look()
        time.sleep(_GLANCE)


def _result_of(future: Any) -> Any:
    """Return what a worker found; None if it must be asked for again.

    Raises:
        QuantkitError: The worker failed, or the scheduler has forgotten the shard.
    """
    if future.status == "cancelled":
        raise _gone("The dask scheduler was lost")
    error = future.exception() if future.status == "error" else None
    if isinstance(error, QuantkitError):
        raise error
    if type(error).__name__ == "KilledWorker":
        raise _gone("Workers of the cluster died of one shard, most likely for want of memory")
    if error is not None:
        raise QuantkitError(
            f"A worker of the cluster failed: {type(error).__name__}: {str(error).strip()}; it needs the same "
            "quantkit, and must be able to read the model and the data at the same paths."
        ) from error
    try:
        result = future.result(timeout=_DELIVERY)
    except TimeoutError:
        return None
    except Exception as e:
        if type(e).__name__ in {"CancelledError", "FutureCancelledError"} or isinstance(e, _GONE):
            raise _gone("The dask scheduler was lost") from e
        raise
    return result


class _Watch:
    """Notices that nobody works any more."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._there = self._looked = time.monotonic()

    def heard(self) -> None:
        """Note that a result has come."""
        self._there = time.monotonic()

    def look(self) -> None:
        """See who is there, once in a while.

        Raises:
            QuantkitError: Nobody has been for too long.
        """
        now = time.monotonic()
        if now - self._looked < _LOOK:
            return
        self._looked = now
        if workers_of(self._client):
            self._there = now
        elif now - self._there > _PATIENCE:
            lost = self._client.status != "running"
            raise _gone(
                "The dask scheduler was lost" if lost else "All workers of the cluster are gone"
            )


def _gone(what: str) -> QuantkitError:
    return QuantkitError(
        f"{what}: start it again, and the same command continues where it stopped."
    )


def _up_to(shards: Iterator[Shard], count: int) -> list[Shard]:
    return [shard for _, shard in zip(range(count), shards, strict=False)]
