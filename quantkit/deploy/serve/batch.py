"""Who runs when: requests wait in one line, and workers take them, alone or several of the same shape together.

Bounded by time, not by number: a request is refused at once if it would have to wait longer than allowed, by how long runs
took lately. Cancelled requests are not run; a run with only cancelled requests is aborted. Of rows that run
together one may be bad: then each is run alone, and only the bad one fails.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Condition, Thread
from time import monotonic, perf_counter
from typing import Any

import numpy as np
import onnxruntime as ort

from quantkit.deploy.serve.engine import RUN_ERRORS, Engine
from quantkit.deploy.serve.protocol import Array, RequestError

_NEW = 0.1  # weight of the latest run in what runs take


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How requests are run.

    Attributes:
        workers: Runs at a time.
        rows: That run together at most; 1: each request alone.
        delay: Seconds that the first waits for others.
        longest: Seconds that a request may have to wait.
    """

    workers: int
    rows: int = 1
    delay: float = 0.0
    longest: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of a request.

    Attributes:
        outputs: By name; None if it failed.
        error: Why it failed.
        waited: Seconds in the line.
        ran: Seconds of the run.
        rows: Of the run, those of other requests included.
    """

    outputs: Mapping[str, Array] | None
    error: RequestError | None = None
    waited: float = 0.0
    ran: float = 0.0
    rows: int = 1


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """A request that waits, or runs.

    Attributes:
        engine: Who answers it.
        feeds: Input name -> array.
        done: Called once with itself and the answer, in a worker's thread; not if it was given up before.
        given_up: Nobody waits for it any more.
        arrived: When it came.
        together: All that are in the run with it.
        options: Of the run that it is in; with them it can be stopped.
        waiter: What the caller waits with; this room does not look at it.
    """

    engine: Engine
    feeds: Mapping[str, Array]
    done: Callable[["Job", Answer], None]
    given_up: bool = False
    arrived: float = field(default_factory=monotonic)
    together: tuple["Job", ...] = ()
    options: Any = None
    waiter: Any = None

    @property
    def rows(self) -> int:
        """How many rows it has: by its first input that is no single number."""
        return next((len(array) for array in self.feeds.values() if array.ndim), 1)

    @property
    def key(self) -> object:
        """What tells requests apart that cannot run together: the model, and all extents but the first.

        One whose inputs have different numbers of rows runs with no other: nobody could say which rows are whose.
        """
        rows = self.rows
        alone = None if all(len(a) == rows for a in self.feeds.values() if a.ndim) else id(self)
        shapes = tuple((n, a.shape[1:]) for n, a in sorted(self.feeds.items()))
        return id(self.engine), shapes, alone

    def give_up(self) -> None:
        """Say that nobody waits for it any more; a run that nobody waits for is stopped."""
        self.given_up = True
        if self.options is not None and all(job.given_up for job in self.together):
            self.options.terminate = True


class Line:
    """Requests that wait, and the threads that run them."""

    def __init__(self, rules: Rules, seconds: float) -> None:
        """Start the workers; `seconds`: what a run took when the model was warmed up."""
        self.rules = rules
        self._seconds = seconds or 1e-3  # of one request
        self._waiting: deque[Job] = deque()
        self._idle = 0  # workers that have nothing to do
        self._change = Condition()
        self._closed = False
        self._threads = [
            Thread(target=self._work, name=f"run-{n}", daemon=True) for n in range(rules.workers)
        ]
        for thread in self._threads:
            thread.start()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def wait(self) -> float:
        """Seconds that a request which came now would have to wait, by what runs took lately."""
        return len(self._waiting) * self._seconds / self.rules.workers

    def put(self, job: Job) -> None:
        """Let a request wait for its turn.

        Raises:
            RequestError: It would have to wait for too long.
        """
        wait = self.wait
        if wait > self.rules.longest and len(self._waiting) >= self.rules.workers:
            raise RequestError(
                f"The server is busy: {len(self._waiting)} requests wait, for about {wait:.1f} s; try again later.",
                503,
                retry_after=max(1, round(wait)),
            )
        with self._change:
            if self._closed:
                raise RequestError("The server is stopping; try another.", 503, retry_after=1)
            self._waiting.append(job)
            self._change.notify()

    def close(self) -> None:
        """Run what waits, then end the workers."""
        with self._change:
            self._closed = True
            self._change.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (jobs := self._next()) is not None:
            if jobs:
                self._answer(jobs)

    def _next(self) -> list[Job] | None:
        """Return requests to run together; None: there will be no more."""
        with self._change:
            while not self._waiting:
                if self._closed:
                    return None
                self._idle += 1
                self._change.wait()
                self._idle -= 1
            first = self._waiting.popleft()
            if self.rules.rows == 1 or first.engine.unbatched or first.rows >= self.rules.rows:
                return [] if first.given_up else [first]
            return [job for job in self._gathered(first) if not job.given_up]

    def _gathered(self, first: Job) -> list[Job]:
        """Return a request with those that run with it, waiting for more as long as is allowed.

        Workers with nothing to do are left their share: on two cores two runs of four rows are done before one of eight.
        """
        found, rows, until = [first], first.rows, first.arrived + self.rules.delay
        while True:
            room = self.rules.rows - rows
            if self._idle:  # then few wait
                all_rows = rows + sum(job.rows for job in self._waiting)
                room = min(room, max(0, -(-all_rows // (1 + self._idle)) - rows))
            taken = self._taken(first.key, room)
            found += taken
            rows += sum(job.rows for job in taken)
            left = until - monotonic()
            if rows >= self.rules.rows or left <= 0 or self._closed:
                return found
            self._change.wait(left)

    def _taken(self, key: object, room: int) -> list[Job]:
        """Take those out of the line that fit beside a request, in their order."""
        found: list[Job] = []
        passed: list[Job] = []
        while self._waiting and room:
            job = self._waiting.popleft()
            if job.rows <= room and job.key == key:
                found.append(job)
                room -= job.rows
            else:
                passed.append(job)
        self._waiting.extendleft(reversed(passed))
        return found

    def _answer(self, jobs: Sequence[Job]) -> None:
        started, clock = monotonic(), perf_counter()
        try:
            outputs = _run(jobs)
        except Exception as e:  # noqa: BLE001 - whatever it is, the worker goes on
            if len(jobs) > 1:
                for job in jobs:
                    self._answer([job])
            else:
                _finish(jobs[0], Answer(outputs=None, error=_refused(e)))
            return
        ran = perf_counter() - clock
        self._seconds += _NEW * (ran / len(jobs) - self._seconds)
        rows = sum(job.rows for job in jobs)
        for job, own in zip(jobs, _divided(outputs, jobs), strict=True):
            waited = started - job.arrived
            _finish(job, Answer(outputs=own, waited=waited, ran=ran, rows=rows))


def _run(jobs: Sequence[Job]) -> dict[str, Array]:
    options = ort.RunOptions()
    options.log_severity_level = 4
    for job in jobs:
        job.together, job.options = tuple(jobs), options
    engine = jobs[0].engine
    if len(jobs) == 1:
        return engine.run(jobs[0].feeds, options)
    feeds = {name: np.concatenate([job.feeds[name] for job in jobs]) for name in jobs[0].feeds}
    outputs = engine.run(feeds, options)
    rows = sum(job.rows for job in jobs)
    if any(array.shape[:1] != (rows,) for array in outputs.values()):
        raise ValueError("the outputs have no row for each row of the inputs")
    return outputs


def _divided(outputs: Mapping[str, Array], jobs: Sequence[Job]) -> Iterable[Mapping[str, Array]]:
    """Yield each request's rows of the outputs."""
    if len(jobs) == 1:
        yield outputs
        return
    start = 0
    for job in jobs:
        end = start + job.rows
        yield {name: array[start:end] for name, array in outputs.items()}
        start = end


def _finish(job: Job, answer: Answer) -> None:
    job.together, job.options = (), None
    if not job.given_up:
        job.done(job, answer)


def _refused(error: Exception) -> RequestError:
    """Say that the model does not run on an input, in onnxruntime's words without its own places in the code."""
    said = next(iter(str(error).strip().splitlines()), type(error).__name__)
    if not isinstance(error, RUN_ERRORS):
        return RequestError(f"The run failed unexpectedly: {type(error).__name__}: {said}.", 500)
    said = said.rpartition(" Status Message: ")[2] or said
    said = said if len(said) <= 200 else f"{said[:200]}..."
    return RequestError(f"The model does not run on these inputs: {said.rstrip('.')}.")
