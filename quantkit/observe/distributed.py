"""Shards on a dask cluster: `--scheduler tcp://host:8786`, or a local one of `--workers N` processes.

A task is a job and a range of batches; workers open the model and read the samples themselves, so paths must
mean the same on every machine. A lost worker's shards are given to others by dask.
"""

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from quantkit.errors import UsageError
from quantkit.observe.job import Job, Shard, ShardResult, observe_shard

__all__ = ["cluster", "run_on"]

_AHEAD = 2  # shards a worker has waiting, so that it never idles
_CARGO = 16 << 20  # bytes that may travel with each shard
# The scheduler's own page, for this machine alone. Without an address it would want dask's usual port, which a second cluster
# does not get.
_ANY_PORT = "127.0.0.1:0"
_LOSSES = 10  # times a shard may lose its worker before it is taken for the shard's fault


@contextmanager
def cluster(scheduler: str | None, workers: int | None) -> Iterator[Any]:
    """Connect to a scheduler, or start a local cluster; yield dask's client.

    Raises:
        UsageError: dask.distributed is not installed, or nobody answers at the address.
    """
    try:
        import dask
        from distributed import Client, LocalCluster
    except ImportError as e:
        raise UsageError(
            "--scheduler and --workers need dask: pip install distributed, or "
            "'quantkit-onnx[distributed]'."
        ) from e
    if scheduler is None:
        with (
            dask.config.set({"distributed.scheduler.allowed-failures": _LOSSES}),
            LocalCluster(
                n_workers=workers, threads_per_worker=1, dashboard_address=_ANY_PORT
            ) as own,
            Client(own) as client,
        ):
            yield client
        return
    try:
        client = Client(scheduler, timeout="10s")
    except (OSError, ValueError, TimeoutError) as e:
        raise UsageError(
            f"No dask scheduler answers at '{scheduler}': start one with 'dask scheduler'."
        ) from e
    with client:
        yield client


def run_on(
    client: Any,
    job: Job,
    shards: Iterator[Shard],
    workers: int,
    *,
    tick: Callable[[int], None],
    stopped: Callable[[], bool],
) -> Iterator[ShardResult]:
    """Yield results as they come. An `Engine` when `client` is bound."""
    from distributed import as_completed

    if len(pickle.dumps(job)) > _CARGO:
        raise UsageError(
            "This data is in memory, and too large to be sent to a cluster: save it (.npz, .npy, a saved "
            "dataset) where all workers can read it, and give its path."
        )
    submit = partial(client.submit, observe_shard, job, pure=False)
    first = [submit(shard) for shard in _up_to(shards, workers * _AHEAD)]
    arriving = as_completed(first, with_results=True)
    for future, result in arriving:
        future.release()
        tick((result.last - result.shard.first) * job.batch)
        yield result
        if stopped():
            client.cancel(arriving.futures)
            return
        for shard in _up_to(shards, 1):
            arriving.add(submit(shard))


def _up_to(shards: Iterator[Shard], count: int) -> list[Shard]:
    return [shard for _, shard in zip(range(count), shards, strict=False)]
