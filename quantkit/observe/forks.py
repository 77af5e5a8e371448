"""Forked processes: they share everything that was made before with their parent, and start at once.

Forking a process that runs other threads is not safe: one of them may hold a lock that a child waits for.
"""

import multiprocessing
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

__all__ = ["can_fork", "fork_pool", "forked_map"]

Item = TypeVar("Item")
Result = TypeVar("Result")

# A thread that holds no lock a worker could wait for: `datasets` starts it to look at progress bars.
_HARMLESS = {"tqdm_monitor"}
_FUNCTION: list[Callable[[Any], Any]] = []


def can_fork() -> bool:
    """Say whether this process may fork now."""
    others = {t.name for t in threading.enumerate() if t is not threading.current_thread()}
    return "fork" in multiprocessing.get_all_start_methods() and not others - _HARMLESS


def fork_pool(
    workers: int, prepare: Callable[..., None], arguments: tuple[Any, ...]
) -> ProcessPoolExecutor:
    """Return a pool whose workers inherit `arguments`, which need not be picklable."""
    context = multiprocessing.get_context("fork")
    return ProcessPoolExecutor(workers, context, prepare, arguments)


def forked_map(
    function: Callable[[Item], Result], items: Sequence[Item], workers: int
) -> list[Result]:
    """Return the function of each item, in order; computed here where forking is not safe."""
    if workers == 1 or len(items) < workers or not can_fork():
        return [function(item) for item in items]
    with fork_pool(workers, _FUNCTION.append, (function,)) as pool:
        return list(pool.map(_call, items, chunksize=-(-len(items) // (4 * workers))))


def _call(item: Any) -> Any:
    return _FUNCTION[-1](item)
