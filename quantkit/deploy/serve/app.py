"""The application of ASGI: the limits of every request, and the addresses.

A handler takes a request apart, lets the line run it, and puts the answer together. What is refused is raised as
`RequestError`, which `Guard` turns into one sentence of JSON. Every answer is counted and logged.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

import msgspec

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
    caller_gone,
    header_length,
    unexpected,
)
from quantkit.deploy.serve.predict import POOLINGS, Feeds, Sent, Wanted, part_of
from quantkit.deploy.serve.protocol import Port, RequestError

_MEGABYTE = 1 << 20
# How much is read of too large a body, and for how long: a client that still sends does not see the answer.
_PASSED_OVER, _LINGER = 4, 1.0  # times the limit, seconds

Headers = tuple[tuple[bytes, bytes], ...]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What is sent back."""

    content: bytes
    status: int = 200
    kind: str = JSON
    headers: Headers = ()

    @property
    def heads(self) -> Headers:
        """All headers."""
        size = str(len(self.content)).encode()
        kind = (b"content-type", self.kind.encode())
        return ((b"content-length", size), kind, *self.headers, *SECURITY)


def json_answer(plain: object, status: int = 200, headers: Headers = ()) -> HttpAnswer:
    """Return an answer of JSON."""
    return HttpAnswer(msgspec.json.encode(plain), status, JSON, headers)


def refusal(error: RequestError) -> HttpAnswer:
    """Return the answer to a request that is refused."""
    headers: list[tuple[bytes, bytes]] = []
    if error.status in {408, 413}:
        headers.append((b"connection", b"close"))
    if error.retry_after is not None:
        headers.append((b"retry-after", str(error.retry_after).encode()))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if error.allow:
        headers.append((b"allow", error.allow.encode()))
    return json_answer({"error": str(error)}, error.status, tuple(headers))


class HttpRequest:
    """A request; its body is read with its limits."""

    def __init__(self, scope: dict[str, Any], receive: Receive, calls: Calls) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query: bytes = scope["query_string"]
        self.headers: dict[str, str] = {
            k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]
        }
        self.connection = scope["state"]["connection"]
        self.call = Call(method=self.method, path=self.path)
        self._receive = receive
        self._calls = calls

    async def body(self) -> bytes:
        """Return the body.

        Raises:
            RequestError: It is too large, too slow, compressed, or there is no room for it, or no client any more.
        """
        if "content-encoding" in self.headers:
            raise RequestError("Compressed bodies are not taken: send it as it is.", 415)
        limit = self._calls.service.settings.limits.body_mb * _MEGABYTE
        chunks: list[bytes] = []
        size, more = 0, True
        while more:
            message = await self._next()
            if message["type"] == "http.disconnect":
                self.call.lose()
                raise caller_gone()
            chunks.append(message["body"])
            more = message["more_body"]
            size += len(chunks[-1])
            if size > limit:
                await self._pass_over(_PASSED_OVER * limit - size)
                raise RequestError(f"The body is larger than {limit >> 20} MB.", 413)
            self._calls.hold(self.call, len(chunks[-1]))
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def _next(self) -> dict[str, Any]:
        if self.connection.has_bodies:  # nothing to wait for, and no timer to be set
            return await self._receive()
        try:
            async with asyncio.timeout(self._calls.left(self.call)):
                return await self._receive()
        except TimeoutError as e:
            raise RequestError("The body came too slowly.", 408) from e

    async def _pass_over(self, most: int) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER):
                more = True
                while more and most > 0:
                    message = await self._receive()
                    more = message.get("more_body", False)
                    most -= len(message.get("body", b""))


class Guard:
    """The application of ASGI: all limits of a request, around what answers it."""

    def __init__(
        self, answer: Callable[[HttpRequest], Awaitable[HttpAnswer]], calls: Calls
    ) -> None:
        self._answer = answer
        self._calls = calls

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """HttpAnswer one request, whatever happens."""
        request, calls = HttpRequest(scope, receive, self._calls), self._calls
        call, connection = request.call, request.connection
        connection.call = call
        status = GONE
        try:
            try:
                self._check(request, scope)
                answer = await self._answer(request)
            except Exception as e:  # noqa: BLE001 - the last resort: a sentence, and the reason in the log
                error = e if isinstance(e, RequestError) else unexpected(e)
                call.facts["error"] = str(e) if error is e else repr(e)
                answer = refusal(error)
            connection.call = None
            closing = calls.service.stopping or connection.is_crowded
            close = ((b"connection", b"close"),) if closing else ()
            heads = [*answer.heads, *close]
            await send({"type": "http.response.start", "status": answer.status, "headers": heads})
            await send({"type": "http.response.body", "body": answer.content})
            status = GONE if call.gone else answer.status
        finally:
            calls.finish(call, status)

    def _check(self, request: HttpRequest, scope: dict[str, Any]) -> None:
        if request.connection.is_crowded:
            raise RequestError("The server has too many connections; try again later.", 503, 1)
        if not self._calls.allowed(request.path, scope["headers"]):
            raise RequestError("Send the token: 'Authorization: Bearer ...'.", 401)


_MODEL = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?((?:/(?:infer|ready|config|stats))?)")

_Handler = Callable[[HttpRequest], Awaitable[HttpAnswer]]


class _Handlers:
    """What is answered, by address."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.service = calls.service
        self._get: Mapping[str, _Handler] = {
            "model": self.model,
            "model/ready": self.model_ready,
            "model/config": self.config,
            "model/stats": self.stats,
            "/v2": self.server,
            "/v2/health/live": self.live,
            "/v2/health/ready": self.ready,
            "/metrics": self.metrics,
            "/drift": self.drift,
            "/openapi.json": self.openapi,
            "/docs": self.docs,
            "/": self.docs,
        }
        self._post: Mapping[str, _Handler] = {
            "model/infer": self.infer,
            "/predict": self.predict,
            "/v1/predict": self.predict,
        }

    async def answer(self, request: HttpRequest) -> HttpAnswer:
        """Let the handler of an address answer."""
        model = _MODEL.fullmatch(request.path)
        place = f"model{model[3]}" if model else request.path
        known, allow = (self._post, "POST") if place in self._post else (self._get, "GET, HEAD")
        if place not in known:
            raise RequestError("There is nothing at this address: see /docs.", 404)
        if request.method not in allow.split(", "):
            use = allow.partition(",")[0]
            raise RequestError(f"Method not allowed; use {use}.", 405, allow=allow)
        if model:
            self._check_name(*model.groups()[:2])
        return await known[place](request)

    def _check_name(self, name: str, version: str | None) -> None:
        if name != self.service.name:
            raise RequestError(
                f"There is no model '{name[:100]}': there is '{self.service.name}'.", 404
            )
        if version not in {None, MODEL_VERSION}:
            raise RequestError(
                f"There is no version '{version[:100]}': there is {MODEL_VERSION}.", 404
            )

    async def server(self, _: HttpRequest) -> HttpAnswer:
        """Say who is there."""
        extensions = ["binary_tensor_data", "model_configuration"]
        return json_answer({"name": "quantkit", "version": __version__, "extensions": extensions})

    async def live(self, _: HttpRequest) -> HttpAnswer:
        """Say that the process answers."""
        return json_answer({"live": True})

    async def ready(self, _: HttpRequest) -> HttpAnswer:
        """Say whether requests are wanted."""
        wanted = not self.service.stopping
        return json_answer({"ready": wanted}, 200 if wanted else 503)

    async def model(self, _: HttpRequest) -> HttpAnswer:
        """Describe the model."""
        service, engine = self.service, self.service.loaded.engine
        shared = service.line.rules.rows if not engine.unbatched else 1
        return json_answer(
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

    async def model_ready(self, _: HttpRequest) -> HttpAnswer:
        """Say whether requests to the model are wanted."""
        wanted = not self.service.stopping
        return json_answer({"name": self.service.name, "ready": wanted}, 200 if wanted else 503)

    async def config(self, _: HttpRequest) -> HttpAnswer:
        """Return the model's configuration, as Triton writes it; a free dimension is -1."""
        engine = self.service.loaded.engine

        def plain(ports: Sequence[Port]) -> list[dict[str, object]]:
            kinds = ("STRING" if port.datatype == "BYTES" else port.datatype for port in ports)
            return [
                {"name": port.name, "data_type": f"TYPE_{kind}", "dims": port.plain()["shape"]}
                for port, kind in zip(ports, kinds, strict=True)
            ]

        return json_answer(
            {
                "name": self.service.name,
                "platform": "onnxruntime_onnx",
                "backend": "onnxruntime",
                "max_batch_size": 0,  # dimensions include the batch
                "input": plain(engine.inputs),
                "output": plain(engine.outputs),
            }
        )

    async def stats(self, _: HttpRequest) -> HttpAnswer:
        """Refuse: the counts of this extension are not kept."""
        raise RequestError(
            "Statistics are at /metrics, for Prometheus; this address has none.", 501
        )

    async def infer(self, request: HttpRequest) -> HttpAnswer:
        """HttpAnswer a request of the Open Inference Protocol."""
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
        body = await request.body()
        content, length = await self.calls.infer(request.call, body, header)
        if length is None:
            return HttpAnswer(content)
        return HttpAnswer(content, kind=BINARY, headers=((HEADER.encode(), str(length).encode()),))

    async def predict(self, request: HttpRequest) -> HttpAnswer:
        """HttpAnswer for an image, a text or a row."""
        query = dict(parse_qsl(request.query.decode("latin-1"), keep_blank_values=True))
        wanted = Wanted(
            top=_top(query),
            softmax=_switch(query, "softmax"),
            pooling=_choice(query, "pooling", POOLINGS),
            normalize=_switch(query, "normalize", "true"),
        )
        loaded, call = self.service.loaded, request.call
        body = await request.body()

        def read() -> list[Feeds]:
            return loaded.predictor.runs(_sent(request, body))

        asked = await self.calls.aside(call, read)
        # One after the other: many texts leave the other workers to other callers.
        runs = [(feeds, await self.calls.run(call, loaded, feeds)) for feeds in asked]
        head = {"model_name": self.service.name, "model_version": MODEL_VERSION}

        def write() -> HttpAnswer:
            return json_answer({**head, **loaded.predictor.reply(runs, wanted)})

        large = sum(array.nbytes for _, found in runs for array in found.values()) > LARGE
        written: HttpAnswer = await self.calls.aside(call, write) if large else write()
        return written

    async def drift(self, _: HttpRequest) -> HttpAnswer:
        """Say how far the two models are apart."""
        if self.service.second is None:
            raise RequestError("There is no second model: start with --shadow or --canary.", 404)
        return json_answer(self.service.second.plain(self.service.loaded.engine))

    async def metrics(self, _: HttpRequest) -> HttpAnswer:
        """Return what Prometheus reads."""
        text = self.service.metrics.text()
        return HttpAnswer(text, kind="text/plain; version=0.0.4; charset=utf-8")

    async def openapi(self, _: HttpRequest) -> HttpAnswer:
        """Describe the addresses."""
        return json_answer(pages.openapi(self.service.name))

    async def docs(self, _: HttpRequest) -> HttpAnswer:
        """Return a page that describes the addresses."""
        page = pages.docs(self.service).encode()
        return HttpAnswer(page, kind="text/html; charset=utf-8")


def _kind(request: HttpRequest) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _sent(request: HttpRequest, body: bytes) -> Sent:
    kind = _kind(request)
    if kind == "multipart/form-data":
        return part_of(body, request.headers["content-type"])
    return Sent(kind=kind or JSON, content=body)


def _top(query: Mapping[str, str]) -> int | None:
    given = query.get("top_k")
    if given is None:
        return None
    if not (given.isascii() and given.isdecimal() and 0 < len(given) < 5 and int(given)):  # digits
        raise RequestError(f"top_k '{given[:20]}' is no number of classes: use 5.")
    return int(given)


def _choice(query: Mapping[str, str], key: str, known: Sequence[str]) -> str | None:
    given = query.get(key)
    if given is not None and given not in known:
        raise RequestError(f"{key} is one of {', '.join(known)}, not '{given[:20]}'.")
    return given


def _switch(query: Mapping[str, str], key: str, usual: str = "false") -> bool:
    given = query.get(key, usual).lower()
    if given not in {"true", "false", "1", "0"}:
        raise RequestError(f"{key} is true or false, not '{given[:20]}'.")
    return given in {"true", "1"}


def make_app(calls: Calls) -> Guard:
    """Return the application of ASGI."""
    return Guard(_Handlers(calls).answer, calls)
