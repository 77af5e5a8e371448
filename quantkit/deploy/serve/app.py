"""The addresses of the server.

A handler takes a request apart, lets the line run it, and puts the answer together. What is refused is raised as
`RequestError` and becomes one sentence of JSON; `Guard` stands before all handlers: token, headers, counting, log.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from quantkit._version import __version__
from quantkit.deploy.serve import pages
from quantkit.deploy.serve.calls import (
    BINARY,
    GONE,
    HEADER,
    JSON,
    LARGE,
    MODEL_VERSION,
    SECURITY,
    Call,
    Calls,
    header_length,
    unexpected,
)
from quantkit.deploy.serve.embed import POOLINGS
from quantkit.deploy.serve.predict import Feeds, Sent, Wanted, parts_of
from quantkit.deploy.serve.protocol import Port, RequestError
from quantkit.deploy.serve.service import Service

__all__ = ["make_app"]

_MEGABYTE = 1 << 20
# How much is read of too large a body, and for how long: who still sends does not see the answer.
_PASSED_OVER, _LINGER = 4, 1.0  # times the limit, seconds
_PATIENCE = 0.05  # seconds until it is worth looking whether the caller is still there


def _json(plain: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(plain), status, headers, JSON)


@dataclass(frozen=True, slots=True)
class _Handlers:
    """What is answered, by address."""

    service: Service
    calls: Calls

    async def server(self, _: Request) -> Response:
        """Say who is there."""
        extensions = ["binary_tensor_data", "model_configuration"]
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
                "versions": [MODEL_VERSION],
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

    async def config(self, request: Request) -> Response:
        """Return the model's configuration, as Triton writes it; a free dimension is -1."""
        self._check_name(request)
        engine = self.service.loaded.engine

        def plain(ports: Sequence[Port]) -> list[dict[str, object]]:
            kinds = ("STRING" if port.datatype == "BYTES" else port.datatype for port in ports)
            return [
                {"name": port.name, "data_type": f"TYPE_{kind}", "dims": port.plain()["shape"]}
                for port, kind in zip(ports, kinds, strict=True)
            ]

        return _json(
            {
                "name": self.service.name,
                "platform": "onnxruntime_onnx",
                "backend": "onnxruntime",
                "max_batch_size": 0,  # dimensions include the batch
                "input": plain(engine.inputs),
                "output": plain(engine.outputs),
            }
        )

    async def stats(self, request: Request) -> Response:
        """Refuse: the counts of this extension are not kept."""
        self._check_name(request)
        raise RequestError(
            "Statistics are at /metrics, for Prometheus; this address has none.", 501
        )

    def _check_name(self, request: Request) -> None:
        name = request.path_params["name"]
        if name != self.service.name:
            raise RequestError(
                f"There is no model '{name[:100]}': there is '{self.service.name}'.", 404
            )
        version = request.path_params.get("version", MODEL_VERSION)
        if version != MODEL_VERSION:
            raise RequestError(
                f"There is no version '{version[:100]}': there is {MODEL_VERSION}.", 404
            )

    async def infer(self, request: Request) -> Response:
        """Answer a request of the Open Inference Protocol."""
        self._check_name(request)
        kind = _kind(request)
        if kind not in {"", JSON, BINARY}:
            raise RequestError(
                f"'{kind[:100]}' is no content type of /infer: send the header 'Content-Type: {JSON}'.",
                415,
            )
        header = header_length(request.headers.get(HEADER))
        if header is None and kind == BINARY:
            raise RequestError(
                "A binary request needs the header Inference-Header-Content-Length: the length of its JSON."
            )
        body = await self._body(request)
        with _watching(request) as call:
            content, length = await self.calls.infer(call, body, header)
        if length is None:
            return Response(content, media_type=JSON)
        return Response(content, 200, {HEADER: str(length)}, BINARY)

    async def predict(self, request: Request) -> Response:
        """Answer for an image, a text or a row."""
        wanted = Wanted(
            top=_top(request),
            softmax=_switch(request, "softmax"),
            pooling=_choice(request, "pooling", POOLINGS),
            normalize=_switch(request, "normalize", "true"),
        )
        loaded = self.service.loaded
        body = await self._body(request)

        def read() -> list[Feeds]:
            return loaded.predictor.runs(_sent(request, body))

        with _watching(request) as call:
            asked = await self.calls.aside(call, read)
            # One after the other: many texts leave the other workers to other callers.
            runs = [(feeds, await self.calls.run(call, loaded, feeds)) for feeds in asked]
        head = {"model_name": self.service.name, "model_version": MODEL_VERSION}

        def write() -> Response:
            return _json({**head, **loaded.predictor.reply(runs, wanted)})

        large = sum(array.nbytes for _, found in runs for array in found.values()) > LARGE
        written: Response = await self.calls.aside(call, write) if large else write()
        return written

    async def _body(self, request: Request) -> bytes:
        """Return the body, counted while it comes in."""
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
                        self.calls.hold(request.state.call, len(chunk))
                        chunks.append(chunk)
        except TimeoutError as e:
            if size <= limit:
                raise RequestError("The body came too slowly.", 408) from e
        if size > limit:
            raise RequestError(f"The body is larger than {limit >> 20} MB.", 413)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

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


@contextmanager
def _watching(request: Request) -> Iterator[Call]:
    """Look whether the caller is still there, if the answer takes a while."""
    call: Call = request.state.call
    tasks: list[asyncio.Task[None]] = []

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        call.lose()

    loop = asyncio.get_running_loop()
    timer = loop.call_later(_PATIENCE, lambda: tasks.append(loop.create_task(watch())))
    try:
        yield call
    finally:
        timer.cancel()
        for task in tasks:
            task.cancel()


def _kind(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _sent(request: Request, body: bytes) -> Sent:
    kind = _kind(request)
    if kind != "multipart/form-data":
        return Sent(kind=kind or JSON, content=body)
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
    if not (given.isascii() and given.isdecimal() and 0 < len(given) < 5 and int(given)):  # digits
        raise RequestError(f"top_k '{given[:20]}' is no number of classes: use 5.")
    return int(given)


def _choice(request: Request, key: str, known: Sequence[str]) -> str | None:
    given = request.query_params.get(key)
    if given is not None and given not in known:
        raise RequestError(f"{key} is one of {', '.join(known)}, not '{given[:20]}'.")
    return given


def _switch(request: Request, key: str, usual: str = "false") -> bool:
    given = request.query_params.get(key, usual).lower()
    if given not in {"true", "false", "1", "0"}:
        raise RequestError(f"{key} is true or false, not '{given[:20]}'.")
    return given in {"true", "1"}


class Guard:
    """Stands before all handlers: who may ask, what every answer has, what is counted and logged."""

    def __init__(self, inner: Any, calls: Calls) -> None:
        self._inner = inner
        self._calls = calls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, whatever happens."""
        if scope["type"] != "http":
            return
        calls, call = self._calls, Call(method=scope["method"], path=scope["path"])
        scope["state"] = {"call": call}
        sent: dict[str, Any] = {}

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                sent["status"] = message["status"]
                closing = ((b"connection", b"close"),) if calls.service.stopping else ()
                message["headers"] = [*message["headers"], *SECURITY, *closing]
            await send(message)

        try:
            if not calls.allowed(call.path, scope["headers"]):
                raise RequestError("Send the token: 'Authorization: Bearer ...'.", 401)  # noqa: TRY301 - as the others
            await self._inner(scope, receive, sending)
        except (ClientDisconnect, OSError):
            sent["status"] = GONE
        except Exception as e:  # noqa: BLE001 - the last resort: a sentence, and the reason in the log
            error = e if isinstance(e, RequestError) else unexpected(e)
            call.facts["error"] = str(e) if isinstance(e, RequestError) else repr(e)
            if "status" not in sent and error.status != GONE:
                await refusal(error)(scope, receive, sending)
            sent.setdefault("status", error.status)
        finally:
            calls.finish(call, sent.get("status", GONE))


def refusal(error: RequestError, more: Mapping[str, str] | None = None) -> Response:
    """Return the answer to a request that is refused; `more`: headers beside the usual ones."""
    headers = {**(more or {})} | ({"connection": "close"} if error.status in {408, 413} else {})
    if error.retry_after is not None:
        headers["retry-after"] = str(error.retry_after)
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    return _json({"error": str(error)}, error.status, headers)


async def _refused(request: Request, error: Exception) -> Response:
    headers = error.headers if isinstance(error, HTTPException) else None  # Allow, with 405
    if isinstance(error, HTTPException):
        allowed = " or ".join(m for m in ("GET", "POST") if m in (headers or {}).get("Allow", ""))
        words = {
            404: "There is nothing at this address: see /docs.",
            405: f"Method not allowed; use {allowed}.",
        }
        error = RequestError(words.get(error.status_code, error.detail), error.status_code)
    elif not isinstance(error, RequestError):
        error = unexpected(error)
    request.state.call.facts["error"] = str(error)
    return refusal(error, headers)


def make_app(calls: Calls) -> Guard:
    """Return the application of ASGI."""
    of = _Handlers(calls.service, calls)
    model = "/v2/models/{name}"
    get = partial(Route, methods=["GET"])
    post = partial(Route, methods=["POST"])
    routes = [post(f"{where}/infer", of.infer) for where in (model, model + "/versions/{version}")]
    for where in (model, model + "/versions/{version}"):
        routes += [get(where, of.model), get(f"{where}/ready", of.model_ready)]
        routes += [get(f"{where}/config", of.config), get(f"{where}/stats", of.stats)]
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
    return Guard(app, calls)
