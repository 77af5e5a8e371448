"""What every request passes: who may ask, how much it may send and for how long; its answer is counted and logged."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from quantkit.deploy.serve.calls import GONE, JSON, SECURITY, Call, Calls, caller_gone, unexpected
from quantkit.deploy.serve.protocol import RequestError

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
