"""The addresses of the server.

A handler takes a request apart, lets the line run it, and puts the answer together. What is refused is raised as
`RequestError` and becomes one sentence of JSON; `Guard` stands before all handlers: token, headers, counting, log.
"""

import asyncio
import hmac
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from quantkit._version import __version__
from quantkit.serve import pages
from quantkit.serve.batch import Answer, Job
from quantkit.serve.engine import Engine
from quantkit.serve.predict import Sent, answer, parts_of
from quantkit.serve.protocol import Array, RequestError, decoded, encoded
from quantkit.serve.service import Loaded, Service

__all__ = ["make_app"]

_MEGABYTE = 1 << 20
_JSON = "application/json"
_BINARY = "application/octet-stream"
_HEADER = "inference-header-content-length"
_LARGE = 1 << 18  # bytes of JSON that would keep all other requests waiting while they are read
# How much is read of too large a body, and for how long: who still sends does not see the answer.
_PASSED_OVER, _LINGER = 4, 1.0  # times the limit, seconds
_PATIENCE = 0.05  # seconds until it is worth looking whether the caller is still there
_GONE = 499  # nginx's number for a caller that has gone
_VERSION = "1"
_BAD = 400
_SECURITY = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'"),
)
_OPEN = ("/v2/health/live", "/v2/health/ready")  # what probes ask, without a token


def _json(plain: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(plain), status, headers, _JSON)


@dataclass(frozen=True, slots=True)
class _Handlers:
    """What is answered, by address."""

    service: Service
    outbox: "_Outbox"

    async def server(self, _: Request) -> Response:
        """Say who is there."""
        extensions = ["binary_tensor_data"]
        return _json({"name": "quantkit", "version": __version__, "extensions": extensions})

    async def live(self, _: Request) -> Response:
        """Say that the process answers."""
        return _json({"live": True})

    async def ready(self, _: Request) -> Response:
        """Say whether requests are wanted."""
        wanted = not self.service.stopping
        return _json({"ready": wanted}, 200 if wanted else 503)

    async def model(self, request: Request) -> Response:
        """Describe the model."""
        self._check_name(request)
        service, engine = self.service, self.service.loaded.engine
        shared = service.line.rules.rows if not engine.unbatched else 1
        return _json(
            {
                "name": service.name,
                "versions": [_VERSION],
                "platform": "onnxruntime_onnx",
                "inputs": [port.plain() for port in engine.inputs],
                "outputs": [port.plain() for port in engine.outputs],
                "parameters": {
                    "provider": engine.provider,
                    "sha256": engine.digest,
                    "batch": shared,
                    "preprocessing": service.loaded.predictor.lines,
                    "labels": len(service.loaded.predictor.labels),
                    "notes": service.notes(),
                },
            }
        )

    async def model_ready(self, request: Request) -> Response:
        """Say whether requests to the model are wanted."""
        self._check_name(request)
        wanted = not self.service.stopping
        return _json({"name": self.service.name, "ready": wanted}, 200 if wanted else 503)

    def _check_name(self, request: Request) -> None:
        name = request.path_params["name"]
        if name != self.service.name:
            raise RequestError(
                f"There is no model '{name[:100]}': there is '{self.service.name}'.", 404
            )
        version = request.path_params.get("version", _VERSION)
        if version != _VERSION:
            raise RequestError(f"There is no version '{version[:100]}': there is {_VERSION}.", 404)

    async def infer(self, request: Request) -> Response:
        """Answer a request of the Open Inference Protocol."""
        self._check_name(request)
        kind = _kind(request)
        if kind not in {"", _JSON, _BINARY}:
            raise RequestError(
                f"'{kind[:100]}' is no content type of /infer: send the header 'Content-Type: {_JSON}'.",
                415,
            )
        header = _header_length(request)
        if header is None and kind == _BINARY:
            raise RequestError(
                "A binary request needs the header Inference-Header-Content-Length: the length of its JSON."
            )
        loaded = self.service.loaded
        engine = loaded.engine
        body = await self._body(request)
        read = partial(decoded, body, header, engine.inputs, engine.outputs)
        asked = (
            await self._aside(request, read) if header is None and len(body) > _LARGE else read()
        )
        found = await self._run(request, loaded, asked.feeds)
        head = {"model_name": self.service.name, "model_version": _VERSION}
        if asked.id:
            head["id"] = asked.id
        size = sum(found[one.name].nbytes for one in asked.outputs if not one.binary)
        write = partial(encoded, head, asked.outputs, found)
        content, length = await self._aside(request, write) if size > _LARGE else write()
        if length is None:
            return Response(content, media_type=_JSON)
        return Response(content, 200, {_HEADER: str(length)}, _BINARY)

    async def predict(self, request: Request) -> Response:
        """Answer for an image, a text or a row."""
        top, softmax = _top(request), _switch(request, "softmax")
        loaded = self.service.loaded
        body = await self._body(request)
        sent = _sent(request, body)
        feeds = await self._aside(request, partial(loaded.predictor.feeds, sent))
        found = await self._run(request, loaded, feeds)
        head = {"model_name": self.service.name, "model_version": _VERSION}

        def write() -> Response:
            said = answer(found, loaded.predictor.labels, top=top, softmax=softmax)
            return _json({**head, **said})

        large = sum(array.nbytes for array in found.values()) > _LARGE
        written: Response = await self._aside(request, write) if large else write()
        return written

    async def _aside(self, request: Request, work: Any) -> Any:
        """Do what takes a while in a thread of its own; what is still waiting for one when time is over is not done."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_left(self.service, request)):
                return await loop.run_in_executor(self.service.preparing, work)
        except TimeoutError as e:
            raise _late(self.service) from e

    async def _body(self, request: Request) -> bytes:
        """Return the body, counted while it comes in; what it takes is given back by `Guard`."""
        limit = self.service.settings.limits.body_mb * _MEGABYTE
        if "content-encoding" in request.headers:
            raise RequestError("Compressed bodies are not taken: send it as it is.", 415)
        chunks: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self.service.settings.limits.timeout_s) as patience:
                async for chunk in request.stream():
                    if size <= limit < size + len(chunk):
                        patience.reschedule(asyncio.get_running_loop().time() + _LINGER)
                    size += len(chunk)
                    if size > _PASSED_OVER * limit:
                        break
                    if size <= limit:
                        self.service.hold(len(chunk))
                        request.state.held += len(chunk)
                        chunks.append(chunk)
        except TimeoutError as e:
            if size <= limit:
                raise RequestError("The body came too slowly.", 408) from e
        if size > limit:
            raise RequestError(f"The body is larger than {limit >> 20} MB.", 413)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def _run(
        self, request: Request, loaded: Loaded, feeds: Mapping[str, Array]
    ) -> Mapping[str, Array]:
        """Let the line run it; give up when time is over or the caller has gone."""
        service, second = self.service, self.service.second
        current = loaded.engine
        engine = current if second is None else second.pick(current)
        found = await self._answered(request, engine, feeds)
        if second is not None and engine is not current and _ran_badly(found):
            again = await self._answered(request, current, feeds)
            if again.error is None:
                said = "it does not run on a request that the model before runs on"
                second.failed(current, f"{said}: {found.error}")
            found, engine = again, current
        if found.error is not None:
            raise found.error
        if second is not None and second.chosen(engine):
            request.state.after = partial(second.offer, feeds, found, current)
        metrics = service.metrics
        metrics.ran.observe(found.ran)
        metrics.waited.observe(found.waited)
        metrics.rows.observe(found.rows)
        request.state.facts.update(
            run_ms=round(1000 * found.ran, 3),
            wait_ms=round(1000 * found.waited, 3),
            rows=found.rows,
        )
        if engine is not current:
            request.state.facts["canary"] = True
        assert found.outputs is not None  # noqa: S101 - there is an error otherwise
        return found.outputs

    async def _answered(
        self, request: Request, engine: Engine, feeds: Mapping[str, Array]
    ) -> Answer:
        job = Job(engine=engine, feeds=feeds, done=self.outbox.put)
        return await _answered(self.service, request, job)

    async def drift(self, _: Request) -> Response:
        """Say how far the two models are apart."""
        if self.service.second is None:
            raise RequestError("There is no second model: start with --shadow or --canary.", 404)
        return _json(self.service.second.plain(self.service.loaded.engine))

    async def metrics(self, _: Request) -> Response:
        """Return what Prometheus reads."""
        return Response(
            self.service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8"
        )

    async def openapi(self, _: Request) -> Response:
        """Describe the addresses."""
        return _json(pages.openapi(self.service.name))

    async def docs(self, _: Request) -> Response:
        """Return a page that describes the addresses."""
        return HTMLResponse(pages.docs(self.service))


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


def _left(service: Service, request: Request) -> float:
    """Return the seconds that a request still has."""
    spent: float = perf_counter() - request.state.started
    return max(0.0, service.settings.limits.timeout_s - spent)


def _late(service: Service) -> RequestError:
    limit = service.settings.limits.timeout_s
    return RequestError(f"There was no answer within {limit:g} s.", 504)


async def _answered(service: Service, request: Request, job: Job) -> Answer:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Answer] = loop.create_future()
    job.waiter = future

    def give_up(error: RequestError) -> None:
        job.give_up()
        if not future.done():
            future.set_result(Answer(outputs=None, error=error))

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        give_up(RequestError("The caller has gone.", _GONE))

    watching: list[asyncio.Task[None]] = []
    service.line.put(job)
    timers = (
        loop.call_later(_left(service, request), give_up, _late(service)),
        loop.call_later(_PATIENCE, lambda: watching.append(loop.create_task(watch()))),
    )
    try:
        return await future
    finally:
        for timer in timers:
            timer.cancel()
        for task in watching:
            task.cancel()


def _ran_badly(found: Answer) -> bool:
    """Say whether a model did not run on a request, which it may be to blame for."""
    return found.error is not None and found.error.status in {400, 500}


def _kind(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _header_length(request: Request) -> int | None:
    given = request.headers.get(_HEADER)
    if given is None:
        return None
    if not (given.isascii() and given.isdecimal() and len(given) < 12):  # noqa: PLR2004 - digits
        raise RequestError("Inference-Header-Content-Length is no number of bytes.")
    return int(given)


def _sent(request: Request, body: bytes) -> Sent:
    kind = _kind(request)
    if kind != "multipart/form-data":
        return Sent(kind=kind or _JSON, content=body)
    words = request.headers["content-type"].split(";")[1:]
    pairs = (word.strip().partition("=") for word in words)
    boundary = next((value.strip('"') for key, _, value in pairs if key.lower() == "boundary"), "")
    if not boundary:
        raise RequestError("The form has no boundary in its content type.")
    return parts_of(body, boundary.encode("latin-1"))


def _top(request: Request) -> int | None:
    given = request.query_params.get("top_k")
    if given is None:
        return None
    if not (given.isascii() and given.isdecimal() and 0 < len(given) < 5 and int(given)):  # noqa: PLR2004 - digits
        raise RequestError(f"top_k '{given[:20]}' is no number of classes: use 5.")
    return int(given)


def _switch(request: Request, key: str) -> bool:
    given = request.query_params.get(key, "false").lower()
    if given not in {"true", "false", "1", "0"}:
        raise RequestError(f"{key} is true or false, not '{given[:20]}'.")
    return given in {"true", "1"}


class Guard:
    """Stands before all handlers: who may ask, what every answer has, what is counted and logged."""

    def __init__(self, inner: Any, service: Service) -> None:
        self._inner = inner
        self._service = service
        token = service.settings.token
        self._token = token.encode() if token else b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, whatever happens."""
        if scope["type"] != "http":
            return
        service, start = self._service, perf_counter()
        facts: dict[str, Any] = {}
        state: dict[str, Any] = {"facts": facts, "held": 0, "started": start}
        scope["state"] = state
        sent: dict[str, Any] = {}

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                sent["status"] = message["status"]
                closing = ((b"connection", b"close"),) if service.stopping else ()
                message["headers"] = [*message["headers"], *_SECURITY, *closing]
            await send(message)

        try:
            self._check_token(scope)
            await self._inner(scope, receive, sending)
        except (ClientDisconnect, OSError):
            sent["status"] = _GONE
        except Exception as e:  # noqa: BLE001 - the last resort: a sentence, and the reason in the log
            error = e if isinstance(e, RequestError) else _unexpected(e)
            facts["error"] = str(e) if isinstance(e, RequestError) else repr(e)
            if "status" not in sent and error.status != _GONE:
                await refusal(error)(scope, receive, sending)
            sent.setdefault("status", error.status)
        finally:
            service.release(state["held"])
            if "after" in state:  # the answer has gone out
                state["after"]()
            self._tell(scope, sent.get("status", _GONE), perf_counter() - start, facts)

    def _check_token(self, scope: Scope) -> None:
        if not self._token or scope["path"] in _OPEN:
            return
        given = next((v for k, v in scope["headers"] if k == b"authorization"), b"")
        scheme, _, found = given.partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(found.strip(), self._token):
            raise RequestError("Send the token: 'Authorization: Bearer ...'.", 401)

    def _tell(self, scope: Scope, status: int, seconds: float, facts: Mapping[str, Any]) -> None:
        service, path = self._service, scope["path"]
        service.metrics.requests.labels(_endpoint(path), str(status)).inc()
        service.metrics.took.observe(seconds)
        said = {"method": scope["method"], "path": path[:200], "status": status}
        took = {"ms": round(1000 * seconds, 3)}
        service.log.request({**said, **took, **facts}, failed=status >= _BAD)


def _unexpected(error: Exception) -> RequestError:
    return RequestError(f"The server failed unexpectedly ({type(error).__name__}).", 500)


def refusal(error: RequestError, more: Mapping[str, str] | None = None) -> Response:
    """Return the answer to a request that is refused; `more`: headers beside the usual ones."""
    headers = {**(more or {})} | ({"connection": "close"} if error.status in {408, 413} else {})
    if error.retry_after is not None:
        headers["retry-after"] = str(error.retry_after)
    if error.status == 401:  # noqa: PLR2004 - HTTP
        headers["www-authenticate"] = "Bearer"
    return _json({"error": str(error)}, error.status, headers)


_ENDPOINTS = ("infer", "predict", "ready", "live", "metrics", "openapi.json", "docs", "drift")


def _endpoint(path: str) -> str:
    """Return what a request is counted as: few names, whatever callers ask for."""
    last = path.rpartition("/")[2]
    return last if last in _ENDPOINTS else "model" if path.startswith("/v2") else "other"


async def _refused(request: Request, error: Exception) -> Response:
    headers = error.headers if isinstance(error, HTTPException) else None  # Allow, with 405
    if isinstance(error, HTTPException):
        words = {404: "There is nothing at this address: see /docs.", 405: "Not with this method."}
        error = RequestError(words.get(error.status_code, error.detail), error.status_code)
    elif not isinstance(error, RequestError):
        error = _unexpected(error)
    request.state.facts["error"] = str(error)
    return refusal(error, headers)


def make_app(service: Service) -> Guard:
    """Return the application of ASGI."""
    of = _Handlers(service, _Outbox())
    model = "/v2/models/{name}"
    get = partial(Route, methods=["GET"])
    post = partial(Route, methods=["POST"])
    routes = [post(f"{where}/infer", of.infer) for where in (model, model + "/versions/{version}")]
    for where in (model, model + "/versions/{version}"):
        routes += [get(where, of.model), get(f"{where}/ready", of.model_ready)]
    routes += [
        post("/predict", of.predict),
        post("/v1/predict", of.predict),
        get("/v2", of.server),
        get("/v2/health/live", of.live),
        get("/v2/health/ready", of.ready),
        get("/metrics", of.metrics),
        get("/drift", of.drift),
        get("/openapi.json", of.openapi),
        get("/docs", of.docs),
        get("/", of.docs),
    ]
    handlers: Any = dict.fromkeys((HTTPException, RequestError, Exception), _refused)
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False  # it would send callers to whatever host they named
    return Guard(app, service)
