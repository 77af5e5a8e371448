"""Bytes of HTTP: read by uvicorn, with limits that it lacks, and a short way for inference.

A request to infer that is as it should be by its headers (a known length, the model's name, the token, nothing unusual)
goes from the socket to the line and back without an application in between, which costs as much as running a small model:
its body is read where the run reads it, and its answer is written at once. Whatever is unusual goes the long way, which
answers the same (`app.py`), and refuses what is to be refused.
"""

import asyncio
from collections.abc import Sized
from typing import Any
from urllib.parse import quote

import httptools
import numpy as np
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from quantkit.deploy.serve.app import refusal
from quantkit.deploy.serve.calls import (
    BINARY,
    GONE,
    HEADER,
    JSON,
    MODEL_VERSION,
    MOST_HEADERS,
    SECURITY,
    Call,
    Calls,
    header_length,
    unexpected,
)
from quantkit.deploy.serve.protocol import RequestError

__all__ = ["Connection", "infer_paths"]

_PATIENCE = 20.0  # seconds: for headers, and for a caller that reads nothing of its answer
_PROBE = 0.25  # seconds between looks for a caller that has stopped sending
_MEGABYTE = 1 << 20
_ALIGNED = 16  # bytes; what any type of number needs
# One for all connections: what is read into it is parsed, and copied, before anything else is read.
_SCRATCH = memoryview(bytearray(1 << 16))
_UNUSUAL = frozenset((b"transfer-encoding", b"expect", b"content-encoding"))
_LENGTH, _TYPE, _JSON_LENGTH = b"content-length", b"content-type", HEADER.encode()
_SAFE = b"".join(b"%s: %s\r\n" % pair for pair in SECURITY)


def infer_paths(name: str) -> frozenset[bytes]:
    """Return the addresses of a model's inference that need no reading; none if its name is written in more than one way."""
    if quote(name) != name:
        return frozenset()
    model = f"/v2/models/{name}"
    found = (f"{model}/infer", f"{model}/versions/{MODEL_VERSION}/infer")
    return frozenset(path.encode() for path in found)


class _Exchange:
    """A request that goes the short way, and its answer. The first three are named as in uvicorn's, which looks at them."""

    def __init__(
        self, call: Call, size: int = 0, header: int | None = None, *, keep_alive: bool = False
    ) -> None:
        self.response_complete = False
        self.keep_alive = keep_alive
        self.more_body = False  # that the parser would have to read
        self.call = call
        self.size = size  # of the body
        self.header = header  # bytes of it that are JSON
        self.body: bytes | memoryview = b""
        self.filled = 0
        self.error: RequestError | None = None  # why it is refused once its body is passed over
        self.timer: Any = None  # as long as the body comes in, in more than one piece

    def room(self) -> memoryview:
        """Return where the rest of the body goes.

        Behind the JSON are numbers: they are put where their type wants them, so that nobody has to copy them.
        """
        if self.error is not None:
            return _SCRATCH[: self.size - self.filled]
        if not isinstance(self.body, memoryview):
            start = -(self.header or 0) % _ALIGNED
            self.body = np.empty(start + self.size, np.uint8).data[start:]
        return self.body[self.filled :]


class _Flow(FlowControl):
    """Reads on when no request waits for its turn. uvicorn does with each answer, so that more come in than go out."""

    def __init__(self, transport: Any, waiting: Sized) -> None:
        super().__init__(transport)
        self._waiting = waiting

    def resume_reading(self) -> None:
        if not self._waiting:
            super().resume_reading()


class Wire(HttpToolsProtocol):
    """A connection. Closes those that send headers without end, or none, or do not read their answers."""

    def __init__(self, calls: Calls, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._calls = calls
        self._paths = infer_paths(calls.service.name)
        self._limit = calls.service.settings.limits.body_mb * _MEGABYTE
        self._taken = 0  # bytes of headers
        self._in_headers = False
        self._timer: Any = None  # of headers that did not come in one piece
        self._unread: Any = None  # the timer of answers that wait to be read
        self._unsent = 0  # bytes of them
        self._reading: _Exchange | None = None  # whose body comes in
        self._answering: Any = None  # an `_Exchange`, or uvicorn's cycle; behind it others may wait

    def connection_made(self, transport: Any) -> None:
        """Wait for headers, not for ever."""
        super().connection_made(transport)
        self.flow = _Flow(transport, self.pipeline)
        self._timer = self.loop.call_later(_PATIENCE, transport.close)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go: to the body, if they can be nothing else."""
        del sizehint
        reading = self._reading
        return _SCRATCH if reading is None else reading.room()

    def buffer_updated(self, nbytes: int) -> None:
        """Take in what was read."""
        reading = self._reading
        if reading is None:
            self.data_received(_SCRATCH[:nbytes])  # type: ignore[arg-type]
            self._wait_for_more()
            return
        self._count(reading, nbytes)
        if reading.filled == reading.size:
            # The parser has not seen the end of this body: another one reads what follows.
            self.parser = httptools.HttpRequestParser(self)
            self._start(reading)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Answer what was asked before the caller stopped sending; return False to close at once."""
        cut_off = self._in_headers or self._reading is not None
        if cut_off or self._is_answered() or self.cycle.more_body:
            return False
        self.cycle.keep_alive = False
        if self.parser.get_http_version() != "1.0":  # which knows no interim answers
            self._timer = self.loop.call_later(_PROBE, self._look_for_caller)
        return True

    def _look_for_caller(self) -> None:
        """Send an interim answer while a run takes long: one that has closed its side, not only stopped sending, refuses it."""
        started = getattr(self._answering, "response_started", False)
        if not (started or self._is_answered() or self.transport.is_closing()):
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._timer = self.loop.call_later(_PROBE, self._look_for_caller)

    def data_received(self, data: bytes) -> None:
        """Read on. Who offers another protocol is answered in this one."""
        self._unset_keepalive_if_required()
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as e:
                data = data[e.args[0] :]
                self._stay()
                continue
            except httptools.HttpParserError:
                self._cut_off()
            return

    def _stay(self) -> None:
        """Read the head of a request again without the offer, for which the parser takes its body for the other protocol."""
        version = self.parser.get_http_version().encode()
        start = b"%s %s HTTP/%s\r\n" % (self.parser.get_method(), self.url, version)
        kept = (b"%s: %s\r\n" % pair for pair in self.headers if pair[0] != b"upgrade")
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(b"".join((start, *kept, b"\r\n")))

    def _wait_for_more(self) -> None:
        """Bound the time that the rest of what has begun may take."""
        reading = self._reading
        if reading is not None and reading.timer is None:
            left = self._calls.left(reading.call)
            reading.timer = self.loop.call_later(left, self._too_slow, reading)
            return
        timed = self._timer is not None or self.timeout_keep_alive_task is not None
        if not timed and (self._in_headers or self._is_answered()):
            self._timer = self.loop.call_later(_PATIENCE, self.transport.close)

    def timeout_keep_alive_handler(self) -> None:
        """End a connection that nothing came from for long; what is still read is sent before."""
        if self.flow.write_paused:
            self.transport.close()
        else:
            self.transport.abort()

    def pause_writing(self) -> None:
        """Wait until the caller reads on, not for ever; until then what it leaves unread is held."""
        super().pause_writing()
        self._unsent = self.transport.get_write_buffer_size()
        self._calls.service.held += self._unsent
        self._look_at_reader(None)

    def resume_writing(self) -> None:
        """Go on."""
        super().resume_writing()
        if not self.transport.is_closing():  # else the rest is waited for as well
            self._stop_holding()

    def _stop_holding(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
        self._calls.service.release(self._unsent)
        self._unsent = 0

    def _look_at_reader(self, before: int | None) -> None:
        """Go on waiting, unless nothing was read for a while."""
        size = self.transport.get_write_buffer_size()
        if before is not None and size >= before:
            self.transport.abort()
        else:
            self._unread = self.loop.call_later(_PATIENCE, self._look_at_reader, size)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop what nobody waits for."""
        self._stop_timer()
        self._unset_keepalive_if_required()
        self._stop_holding()
        answering = self._answering
        if isinstance(answering, _Exchange):
            if not answering.response_complete:
                answering.call.lose()
            if self._reading is answering:
                self._end(answering, GONE)
        elif answering is not None:  # uvicorn tells the last that came
            answering.disconnected = True
            answering.message_event.set()
        if self.cycle is answering:
            self.cycle = None  # type: ignore[assignment]
        super().connection_lost(exc)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._taken, self._in_headers = 0, True
        self._stop_timer()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Take in a part of the address."""
        self._measure(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take in a header."""
        self._measure(name + value)
        super().on_header(name, value)

    def _measure(self, content: bytes) -> None:
        self._taken += len(content)
        if self._taken > MOST_HEADERS:
            raise ValueError  # which ends the parser

    def _cut_off(self) -> None:
        """Close, for what came cannot be read; what was asked before it is answered."""
        if not self._is_answered() and not self.cycle.more_body:
            self.cycle.keep_alive = False
        elif not self.transport.is_closing():
            said = RequestError("This is no request of HTTP that can be read.")
            if self._is_crowded():
                said = RequestError("The server has too many connections; try again later.", 503, 1)
            elif self._taken > MOST_HEADERS:
                said = RequestError(
                    f"Address and headers are longer than {MOST_HEADERS} bytes.", 431
                )
            self._refuse(_Exchange(Call(method="", path="")), said)

    def on_headers_complete(self) -> None:
        """Choose the way."""
        self._in_headers = False
        self._stop_timer()
        if self.parser.get_method() == b"CONNECT" or self._is_crowded():
            raise ValueError  # which ends the parser
        if self.parser.should_upgrade():
            return  # they are read again
        # An answer could be written at once.
        free = self._is_answered() and not self.flow.write_paused
        found = self._usual() if free else None
        if found is None:
            super().on_headers_complete()
        else:
            self.cycle = self._reading = self._answering = found  # type: ignore[assignment]

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        """Take in a part of the body, or all of it."""
        reading = self._reading
        if reading is None:
            super().on_body(body)
        elif len(body) == reading.size:
            reading.body = body
            self._count(reading, len(body))
        else:
            reading.room()[: len(body)] = body
            self._count(reading, len(body))

    def on_message_complete(self) -> None:
        """End a request that came in one piece, or goes the long way."""
        if self._reading is not None:
            self._start(self._reading)
        elif not self.parser.should_upgrade():
            super().on_message_complete()

    def _is_answered(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _is_crowded(self) -> bool:
        most = self.limit_concurrency
        return most is not None and len(self.connections) >= most

    def _usual(self) -> _Exchange | None:
        """Return what begins with these headers, if there is nothing unusual and nothing to be refused in them."""
        parser, given, calls = self.parser, dict(self.headers), self._calls
        kind = given.get(_TYPE, b"").partition(b";")[0].strip().lower()
        size, path = int(given.get(_LENGTH, b"0")), self.url.decode("latin-1")
        is_usual = (
            self.url in self._paths
            and parser.get_method() == b"POST"
            and parser.get_http_version() == "1.1"
            and len(given) == len(self.headers)
            and _UNUSUAL.isdisjoint(given)
            and 0 < size <= self._limit
            and kind in {b"", JSON.encode(), BINARY.encode()}
            and calls.allowed(path, self.headers)
        )
        try:
            said = given.get(_JSON_LENGTH)
            header = header_length(None if said is None else said.decode("latin-1"))
        except RequestError:
            return None
        if not is_usual or (header is None and kind == BINARY.encode()):
            return None
        call = Call(method="POST", path=path)
        return _Exchange(call, size, header, keep_alive=parser.should_keep_alive())

    def _count(self, exchange: _Exchange, size: int) -> None:
        """Take note of bytes of a body; without room for them the rest is passed over, so that the answer is seen."""
        exchange.filled += size
        if exchange.error is None:
            try:
                self._calls.hold(exchange.call, size)
            except RequestError as e:
                exchange.error, exchange.body = e, b""

    def _start(self, exchange: _Exchange) -> None:
        self._end_of_body(exchange)
        if exchange.error is not None:
            self._refuse(exchange, exchange.error)
            return
        task = self.loop.create_task(self._answer(exchange))
        self.tasks.add(task)  # nobody else holds it
        task.add_done_callback(self.tasks.discard)

    async def _answer(self, exchange: _Exchange) -> None:
        try:
            body, exchange.body = exchange.body, b""
            content, length = await self._calls.infer(exchange.call, body, exchange.header)
        except Exception as e:  # noqa: BLE001 - the last resort: a sentence, and the reason in the log
            self._refuse(exchange, e)
            return
        kind = b"content-type: application/json\r\n"
        if length is not None:
            kind = b"content-type: application/octet-stream\r\n%s: %d\r\n" % (_JSON_LENGTH, length)
        self._write(exchange, 200, kind, content)

    def _too_slow(self, exchange: _Exchange) -> None:
        self._end_of_body(exchange)
        self._refuse(exchange, RequestError("The body came too slowly.", 408))

    def _refuse(self, exchange: _Exchange, error: Exception) -> None:
        said = error if isinstance(error, RequestError) else unexpected(error)
        exchange.call.facts["error"] = str(said) if said is error else repr(error)
        answer = refusal(said)
        given = dict(answer.raw_headers)
        del given[_LENGTH]
        exchange.keep_alive &= given.pop(b"connection", b"") != b"close"
        heads = b"".join(b"%s: %s\r\n" % pair for pair in given.items())
        self._write(exchange, said.status, heads, bytes(answer.body))

    def _write(self, exchange: _Exchange, status: int, heads: bytes, content: bytes) -> None:
        """Send an answer, and go on with what came meanwhile."""
        if exchange.call.gone or self.transport.is_closing():
            self._end(exchange, GONE)
            return
        exchange.keep_alive &= not self._calls.service.stopping
        date = b"".join(b"%s: %s\r\n" % pair for pair in self.server_state.default_headers)
        close = b"" if exchange.keep_alive else b"connection: close\r\n"
        size = b"content-length: %d\r\n\r\n" % len(content)
        parts = (STATUS_LINE[status], date, heads, _SAFE, close, size, content)
        self.transport.write(b"".join(parts))
        self._end(exchange, status)
        if not exchange.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def _end(self, exchange: _Exchange, status: int) -> None:
        self._end_of_body(exchange)
        exchange.response_complete = True
        self._calls.finish(exchange.call, status)

    def _end_of_body(self, exchange: _Exchange) -> None:
        if self._reading is exchange:
            self._reading = None
        if exchange.timer is not None:
            exchange.timer.cancel()


class Connection(asyncio.BufferedProtocol):
    """A `Wire` as loops want it: uvloop lets no protocol choose where bytes go that is of asyncio's other kind as well."""

    def __init__(self, calls: Calls, *arguments: Any, **named: Any) -> None:
        """Begin; uvicorn gives the arguments behind the first."""
        wire = Wire(calls, *arguments, **named)
        reading = ("get_buffer", "buffer_updated", "eof_received")
        others = ("connection_made", "connection_lost", "pause_writing", "resume_writing")
        for name in (*reading, *others):
            setattr(self, name, getattr(wire, name))
