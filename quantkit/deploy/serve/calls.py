"""What every request goes through, whichever way its bytes came: held, read, run, counted, logged."""

import asyncio
import hmac
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

from quantkit.deploy.serve.batch import Answer, Job
from quantkit.deploy.serve.engine import Engine
from quantkit.deploy.serve.protocol import Array, RequestError, decoded, encoded
from quantkit.deploy.serve.service import Loaded, Service

JSON = "application/json"
BINARY = "application/octet-stream"
HEADER = "inference-header-content-length"
GONE = 499  # nginx's number for a caller that has gone
LARGE = 1 << 18  # bytes of JSON that would keep all other requests waiting while they are read
MOST_HEADERS = 1 << 16  # bytes of address and headers
MODEL_VERSION = "1"
SECURITY = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'"),
)
_BAD = 400
_OPEN = ("/v2/health/live", "/v2/health/ready")  # what probes ask, without a token
_ENDPOINTS = ("infer", "predict", "ready", "live", "metrics", "openapi.json", "docs", "drift")


@dataclass(slots=True, kw_only=True, eq=False)
class Call:
    """A request on its way.

    Attributes:
        method: POST and the like.
        path: Its address.
        started: When it came, by `perf_counter`.
        facts: What its line of the log says beside address and status.
        held: Bytes of its body that are counted.
        after: What is done when the answer has gone out.
        gone: Nobody waits for its answer any more.
        give_up: Ends the waiting for its run, while it waits for one.
    """

    method: str
    path: str
    started: float = field(default_factory=perf_counter)
    facts: dict[str, Any] = field(default_factory=dict)
    held: int = 0
    after: Callable[[], None] | None = None
    gone: bool = False
    give_up: Callable[[RequestError], None] | None = None

    def lose(self) -> None:
        """Take note that the caller has gone."""
        self.gone = True
        if self.give_up is not None:
            self.give_up(caller_gone())


class Calls:
    """Takes requests through a service; one for a server, used in its loop's thread alone."""

    def __init__(self, service: Service) -> None:
        self.service = service
        token = service.settings.token
        self._token = token.encode() if token else b""
        self._outbox = _Outbox()

    def allowed(self, path: str, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Say whether a caller may ask: there is no token, it is a probe, or the token is right."""
        if not self._token or path in _OPEN:
            return True
        given = next((v for k, v in headers if k == b"authorization"), b"")
        scheme, _, found = given.partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(found.strip(), self._token)

    def hold(self, call: Call, size: int) -> None:
        """Count bytes of a body, until the call is finished; raises `RequestError` if there is no room."""
        self.service.hold(size)
        call.held += size

    def left(self, call: Call) -> float:
        """Return the seconds that a request still has."""
        return max(0.0, self.service.settings.limits.timeout_s - (perf_counter() - call.started))

    def late(self) -> RequestError:
        """Return what is said to a request whose time is over."""
        limit = self.service.settings.limits.timeout_s
        return RequestError(f"There was no answer within {limit:g} s.", 504)

    async def infer(
        self, call: Call, body: bytes | memoryview, header: int | None
    ) -> tuple[bytes, int | None]:
        """Answer a request of the Open Inference Protocol; return the answer, and how many bytes of it are JSON if not all.

        Args:
            call: The request.
            body: All of it.
            header: How many bytes of it are JSON; None: all.
        """
        loaded = self.service.loaded
        engine = loaded.engine
        read = partial(decoded, body, header, engine.inputs, engine.outputs)
        asked = await self.aside(call, read) if _takes_long(body, header, engine) else read()
        found = await self.run(call, loaded, asked.feeds)
        head = {"model_name": self.service.name, "model_version": MODEL_VERSION}
        if asked.id:
            head["id"] = asked.id
        size = sum(found[one.name].nbytes for one in asked.outputs if not one.binary)
        write = partial(encoded, head, asked.outputs, found)
        written: tuple[bytes, int | None] = (
            await self.aside(call, write) if size > LARGE else write()
        )
        return written

    async def aside(self, call: Call, work: Any) -> Any:
        """Do what takes a while in a thread of its own; what is still waiting for one when time is over is not done."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.left(call)):
                return await loop.run_in_executor(self.service.preparing, work)
        except TimeoutError as e:
            raise self.late() from e

    async def run(
        self, call: Call, loaded: Loaded, feeds: Mapping[str, Array]
    ) -> Mapping[str, Array]:
        """Let the line run it, on the candidate if it is its turn; raises `RequestError` if there is no answer."""
        service, second = self.service, self.service.second
        current = loaded.engine
        engine = current if second is None else second.pick(current)
        found = await self._answered(call, engine, feeds)
        if second is not None and engine is not current and _ran_badly(found):
            again = await self._answered(call, current, feeds)
            if again.error is None:
                said = "it does not run on a request that the model before runs on"
                second.failed(current, f"{said}: {found.error}")
            found, engine = again, current
        if found.error is not None:
            raise found.error
        if second is not None and second.chosen(engine):
            call.after = partial(second.offer, feeds, found, current)
        metrics = service.metrics
        metrics.ran.observe(found.ran)
        metrics.waited.observe(found.waited)
        metrics.rows.observe(found.rows)
        call.facts["run_ms"] = round(1000 * found.ran, 3)
        call.facts["wait_ms"] = round(1000 * found.waited, 3)
        call.facts["rows"] = found.rows
        if engine is not current:
            call.facts["canary"] = True
        assert found.outputs is not None  # noqa: S101 - there is an error otherwise
        return found.outputs

    async def _answered(self, call: Call, engine: Engine, feeds: Mapping[str, Array]) -> Answer:
        """Wait for a run, until time is over or the caller has gone."""
        if call.gone:
            return Answer(outputs=None, error=caller_gone())
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        job = Job(engine=engine, feeds=feeds, done=self._outbox.put, waiter=future)

        def give_up(error: RequestError) -> None:
            job.give_up()
            if not future.done():
                future.set_result(Answer(outputs=None, error=error))

        self.service.line.put(job)
        call.give_up = give_up
        timer = loop.call_later(self.left(call), lambda: give_up(self.late()))
        try:
            return await future
        finally:
            timer.cancel()
            call.give_up = None

    def finish(self, call: Call, status: int) -> None:
        """Give back what a request held, do what was left for later, count it and log it."""
        service = self.service
        service.release(call.held)
        if call.after is not None:
            call.after()
        seconds = perf_counter() - call.started
        service.metrics.requests.labels(_endpoint(call.path), str(status)).inc()
        service.metrics.took.observe(seconds)
        failed = status >= _BAD
        if service.log.wants(failed=failed):
            said = {"method": call.method, "path": call.path[:200], "status": status}
            took = {"ms": round(1000 * seconds, 3)}
            service.log("warning" if failed else "info", "request", {**said, **took, **call.facts})


class _Outbox:
    """Answers on their way from the workers' threads to those who wait: the loop is woken once for all that lie there."""

    def __init__(self) -> None:
        self._answers: deque[tuple[Job, Answer]] = deque()
        self._woken = False

    def put(self, job: Job, found: Answer) -> None:
        """Hand over an answer; called in a worker's thread."""
        self._answers.append((job, found))
        if not self._woken:
            self._woken = True
            with suppress(RuntimeError):  # the loop has ended
                job.waiter.get_loop().call_soon_threadsafe(self._empty)

    def _empty(self) -> None:
        self._woken = False  # before it is emptied: what comes in between wakes the loop again
        while self._answers:
            job, found = self._answers.popleft()
            if not job.waiter.done():
                job.waiter.set_result(found)


def _takes_long(body: bytes | memoryview, header: int | None, engine: Engine) -> bool:
    """Say whether a request takes long to read: by its JSON, and by texts; other tensors are only looked at."""
    texts = any(port.datatype == "BYTES" for port in engine.inputs)
    return (len(body) if header is None or texts else header) > LARGE


def header_length(given: str | None) -> int | None:
    """Return how many bytes of a body are JSON by the header that says so; None: all of them."""
    if given is None:
        return None
    if not (given.isascii() and given.isdecimal() and len(given) < 12):  # digits
        raise RequestError("Inference-Header-Content-Length is no number of bytes.")
    return int(given)


def unexpected(error: Exception) -> RequestError:
    """Return what is said of a fault of the server's own."""
    return RequestError(f"The server failed unexpectedly ({type(error).__name__}).", 500)


def caller_gone() -> RequestError:
    """Return why a request whose caller has gone is not answered."""
    return RequestError("The caller has gone.", GONE)


def _ran_badly(found: Answer) -> bool:
    """Say whether a model did not run on a request, which it may be to blame for."""
    return found.error is not None and found.error.status in {400, 500}


def _endpoint(path: str) -> str:
    """Return what a request is counted as: few names, whatever callers ask for."""
    last = path.rpartition("/")[2]
    return last if last in _ENDPOINTS else "model" if path.startswith("/v2") else "other"
