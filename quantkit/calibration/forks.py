"""Workers of this machine: forked processes where that is safe, else threads. Callers need not know which.

Forked processes share everything that was made before with their parent, and start at once. Forking a process that runs other
threads is not safe: one of them may hold a lock that a child waits for. On macOS it never is, since system libraries keep
threads of their own, and Windows cannot fork.
"""

import ctypes
import gc
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from contextlib import ExitStack, contextmanager
from itertools import islice, product
from math import inf
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Self, TypeVar

from quantkit.errors import QuantkitError

Item = TypeVar("Item")
Result = TypeVar("Result")

# A thread that holds no lock a worker could wait for: `datasets` starts it to look at progress bars.
_HARMLESS = {"tqdm_monitor"}
_GLANCE = 0.1  # seconds for which nobody hears from the workers, at most
_AHEAD = (
    2  # items a thread is given at a time, so that it never waits for whoever takes the results
)
_GRACE = 5.0  # seconds until a worker whose pipe is closed has ended
_SIGNAL_OF_PARENT = 1  # prctl's PR_SET_PDEATHSIG
_WORD, _RESULT, _ERROR = range(3)


class WorkerDiedError(QuantkitError):
    """A worker ended before its item was done; `exitcode` is the negative number of the signal that ended it."""

    def __init__(self, message: str, exitcode: int | None) -> None:
        super().__init__(message)
        self.exitcode = exitcode


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Keep numpy's matrix products to the thread that asks for them, while several processes or threads ask.

    OpenBLAS starts a thread a core in each of them, and these wait for each other busily: on two busy cores the moments of
    ResNet-50 took four times the CPU time. Other BLAS libraries are left as they are.
    """
    setters = [(_function(lib, "set"), _function(lib, "get")) for lib in _openblas()]
    before = [(put, get()) for put, get in setters if put is not None and get is not None]
    for put, _ in before:
        put(1)
    try:
        yield
    finally:
        for put, threads in before:
            put(threads)


def _openblas() -> list[ctypes.CDLL]:
    """Return the OpenBLAS libraries that this process has loaded."""
    maps = Path("/proc/self/maps")
    if not maps.is_file():
        return []
    lines = maps.read_text(encoding="utf-8", errors="replace").splitlines()
    paths = {line.split(maxsplit=5)[-1] for line in lines if "openblas" in line}
    return [ctypes.CDLL(path) for path in sorted(paths) if Path(path).is_file()]


def _function(library: ctypes.CDLL, verb: str) -> Callable[..., int] | None:
    """Return what sets or gets the number of threads; its name depends on who built the library."""
    for prefix, suffix in product(("scipy_openblas", "openblas"), ("64_", "")):
        found: Callable[..., int] | None = getattr(
            library, f"{prefix}_{verb}_num_threads{suffix}", None
        )
        if found is not None:
            return found
    return None


def can_fork() -> bool:
    """Return whether this process may fork now: on Linux, where it runs no other threads."""
    if sys.platform != "linux":
        return False
    others = {t.name for t in threading.enumerate() if t is not threading.current_thread()}
    return not others - _HARMLESS


def shared_locks(count: int) -> list[Any]:
    """Return locks that hold among all workers that are started later, processes or threads."""
    make = multiprocessing.get_context("fork").Lock if sys.platform == "linux" else threading.Lock
    return [make() for _ in range(count)]


class Crew:
    """Forked processes that work on items, each on one at a time.

    They inherit `function`, which need not be picklable, and are given an item and a way to say something meanwhile.
    Items, words and results travel by a pipe a worker. A worker waits until its result is taken, so none pile up. They
    ignore Ctrl-C, which is the parent's business, and end with their parent, however it ends.

    Where the system gives fewer processes than asked for, `size` says how many there are; it may be none.

    Attributes:
        patience: Seconds that workers have to finish when the user wants to stop; those that take longer are ended.
    """

    patience = 1.5

    def __init__(self, function: Callable[[Any, Callable[[Any], None]], Any], workers: int) -> None:
        self._processes: dict[Connection, Any] = {}
        context: Any = multiprocessing.get_context("fork")
        for _ in range(workers):
            try:
                mine, its = context.Pipe()
            except OSError:  # no file left
                break
            others = (*self._processes, mine)
            process = context.Process(
                target=_serve, args=(its, others, function, os.getpid()), daemon=True
            )
            # A worker that has just begun must not take Ctrl-C for its own.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                process.start()
            except (OSError, AssertionError):  # no process left, or none allowed in this one
                mine.close()
                break
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
                its.close()
            self._processes[mine] = process

    @property
    def size(self) -> int:
        """How many workers there are."""
        return len(self._processes)

    def cpu_ticks(self) -> int:
        """Return how much the workers have computed so far, in ticks of the system's clock."""
        stats = (Path(f"/proc/{process.pid}/stat") for process in self._processes.values())
        fields = [stat.read_text().rpartition(")")[2].split() for stat in stats if stat.exists()]
        return sum(int(own[11]) + int(own[12]) for own in fields)  # user and system

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the workers at once, whatever they do."""
        for line, process in self._processes.items():
            line.close()
            process.kill()
        for process in self._processes.values():
            process.join()

    def work(
        self, items: Iterable[Any], hear: Callable[[Any], None] = lambda _: None
    ) -> Iterator[Any]:
        """Yield results as they come, and None whenever nothing came for a moment.

        An item is taken when a worker is free for it. `hear` is called with what workers say.

        Raises:
            WorkerDiedError: A worker was killed, or crashed.
        """
        left = iter(items)
        busy: list[Connection] = []  # in the order in which they were given their items

        def give(line: Connection) -> None:
            for item in left:
                line.send(item)
                busy.append(line)
                break

        for line in self._processes:
            give(line)
        while busy:
            ready = wait(busy, _GLANCE)
            if not ready:
                yield None
            for line in [line for line in busy if line in ready]:  # by the order of their items
                try:
                    kind, value = line.recv()
                except (EOFError, OSError) as e:
                    raise _lost(self._processes[line]) from e
                if kind == _WORD:
                    hear(value)
                    continue
                busy.remove(line)
                if kind == _ERROR:
                    raise value
                give(line)
                yield value


class Threads:
    """Threads that work on items as a `Crew` does. They cannot be ended, so leaving waits for what they are doing."""

    patience = inf

    def __init__(self, function: Callable[[Any, Callable[[Any], None]], Any], workers: int) -> None:
        self._function = function
        self.size = workers
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(one_thread_each())
        self._pool = futures.ThreadPoolExecutor(self.size, "quantkit")
        self._stack.callback(self._pool.shutdown, cancel_futures=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def work(
        self, items: Iterable[Any], hear: Callable[[Any], None] = lambda _: None
    ) -> Iterator[Any]:
        """Yield results as they come, and None whenever nothing came for a moment; see `Crew.work`."""
        left = iter(items)
        said: deque[Any] = deque()
        pending: dict[futures.Future[Any], None] = {}  # in the order of their items
        while True:
            for item in islice(left, self.size * _AHEAD - len(pending)):
                pending[self._pool.submit(self._function, item, said.append)] = None
            if not pending:
                return
            done = futures.wait(pending, _GLANCE, futures.FIRST_COMPLETED).done
            while said:
                hear(said.popleft())
            if not done:
                yield None
            for future in [f for f in pending if f in done]:  # by the order of their items
                del pending[future]
                yield future.result()


def make_crew(
    function: Callable[[Any, Callable[[Any], None]], Any], workers: int
) -> Crew | Threads:
    """Return processes, or threads where processes cannot be forked or one worker is enough."""
    if workers > 1 and can_fork():
        crew = Crew(function, workers)
        if crew.size:
            return crew
    return Threads(function, workers)


def _lost(process: Any) -> WorkerDiedError:
    process.join(_GRACE)
    return WorkerDiedError(
        "A worker process died, most likely for want of memory: the same command continues "
        "where it stopped; use fewer --workers, a smaller --batch or a --memory limit.",
        process.exitcode,
    )


def _serve(
    line: Connection,
    others: Sequence[Connection],
    function: Callable[[Any, Callable[[Any], None]], Any],
    parent: int,
) -> None:
    """Work in a forked process until nobody has anything more to do."""
    # What the parent no longer needed and had not collected yet is never collected here: a session of onnxruntime among
    # it would wait for threads that were not forked.
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    for other in others:
        other.close()  # else the pipe of another worker would stay open after its parent's death
    _leave_with(parent)
    with one_thread_each():
        _work_for(line, function)


def _work_for(line: Connection, function: Callable[[Any, Callable[[Any], None]], Any]) -> None:
    def say(word: Any) -> None:
        line.send((_WORD, word))

    while True:
        try:
            item = line.recv()
        except (EOFError, OSError):
            return
        try:
            answer = (_RESULT, function(item, say))
        except Exception as e:  # noqa: BLE001 - it is raised again, in the parent
            answer = (_ERROR, _portable(e))
        try:
            line.send(answer)
        except OSError:  # the parent is gone
            return
        del answer
        _give_back()


def _give_back() -> None:
    """Return memory that is free but not yet the system's again: between thousands of arrays much of it lies idle."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _portable(error: Exception) -> Exception:
    """Return an error that travels, with the traceback it had here."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    except Exception:  # noqa: BLE001 - any class may fail in its own way
        return QuantkitError(f"A worker failed: {type(error).__name__}: {error}")
    return error


def _leave_with(parent: int) -> None:
    """End this process when its parent has ended, however that ended: nobody else would."""
    ctypes.CDLL(None).prctl(_SIGNAL_OF_PARENT, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended already
        os._exit(1)


def forked_map(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    workers: int,
    tick: Callable[[int], None] = lambda _: None,
) -> list[Result]:
    """Return the function of each item, in order; computed here where forking is not safe or not possible.

    Items are inherited, not sent. `tick` is told each time that one more is done.

    Args:
        function: May be a closure: it is inherited.
        items: What it is called with.
        workers: Processes.
        tick: Told each time that one more is done.
    """
    found: dict[int, Result] = {}
    if workers > 1 and len(items) >= workers and can_fork():
        with Crew(lambda at, _: (at, function(items[at])), workers) as crew:
            for done in crew.work(range(len(items)) if crew.size else ()):
                if done is not None:
                    found[done[0]] = done[1]
                    tick(1)
    for at, item in enumerate(items):
        if at not in found:
            found[at] = function(item)
            tick(1)
    return [found[at] for at in range(len(items))]
