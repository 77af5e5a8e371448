"""A connection: uvicorn reads and writes it, this bounds what uvicorn leaves open.

Heads have a size and a time. A client that reads nothing of its answer is closed, one that has only closed its sending side
is answered, and the run of one that has gone is stopped. What a request may send and take is bounded in `guard`.
"""

from collections.abc import Sized
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl

from quantkit.deploy.serve.app import refusal
from quantkit.deploy.serve.calls import MOST_HEADERS, Call, Calls
from quantkit.deploy.serve.protocol import RequestError

try:
    from quantkit.deploy.serve.heads import Heads
except ImportError:  # without httptools: uvicorn's own parser, in Python, which bounds heads itself
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Heads(H11Protocol):  # type: ignore[no-redef]
        """It tells of a head when all of it has come."""

        in_head = is_too_long = False


_PATIENCE = 20.0  # seconds: for a head, and for a client that reads nothing of its answer
_PROBE = 0.25  # seconds between probes of a client that has closed its sending side
_CONNECTIONS = 4096


class _Flow(FlowControl):
    """Reads on when no request waits for its turn. uvicorn does with each answer, so that more come in than go out."""

    def __init__(self, transport: Any, waiting: Sized) -> None:
        super().__init__(transport)
        self._waiting = waiting

    def resume_reading(self) -> None:
        if not self._waiting:
            super().resume_reading()


class Connection(Heads):
    """A connection. `guard` finds it in the state of each request."""

    call: Call | None = None
    """The request whose answer has not begun; `guard` sets it."""

    def __init__(self, calls: Calls, *, app_state: dict[str, Any], **others: Any) -> None:
        """Begin; uvicorn gives the arguments behind the first."""
        super().__init__(app_state={**app_state, "connection": self}, **others)
        self._calls = calls
        self._timer: Any = None  # of a head
        self._reader: Any = None  # the timer of answers that wait to be read
        self._unsent = 0  # bytes of them

    @property
    def is_crowded(self) -> bool:
        """Whether there are more connections than are served."""
        return len(self.connections) >= _CONNECTIONS

    @property
    def has_bodies(self) -> bool:
        """Whether all that was asked has come with all of its body."""
        return not self.cycle.more_body

    @property
    def _is_answered(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: Any) -> None:
        """Wait for a head, not for ever."""
        super().connection_made(transport)
        self.flow = _Flow(transport, getattr(self, "pipeline", ()))
        self._timer = self.loop.call_later(_PATIENCE, transport.close)

    def data_received(self, data: bytes) -> None:
        """Read on, and bound what has begun; the application bounds bodies."""
        super().data_received(data)
        if not self.in_head and not self._is_answered:
            self._stop_timer()
        elif self._timer is None and not self.transport.is_closing():
            self._timer = self.loop.call_later(_PATIENCE, self.transport.close)

    def send_400_response(self, msg: str) -> None:
        """Refuse what cannot be read, and close; what was asked before it is answered first."""
        del msg
        if not self._is_answered and not self.cycle.more_body:
            self.cycle.keep_alive = False
        elif not self.transport.is_closing():
            error = RequestError("This is no request of HTTP that can be read.")
            if self.is_too_long:
                error = RequestError(
                    f"Address and headers are longer than {MOST_HEADERS} bytes.", 431
                )
            call, answer = Call(method="", path=""), refusal(error)
            call.facts["error"] = str(error)
            heads = (*self.server_state.default_headers, *answer.heads)
            status = HTTPStatus(error.status)
            lines = b"".join(b"%b: %b\r\n" % pair for pair in heads)
            start = f"HTTP/1.1 {status} {status.phrase}\r\nconnection: close\r\n".encode()
            self.transport.write(b"%b%b\r\n%b" % (start, lines, answer.content))
            self.transport.close()
            self._calls.finish(call, error.status)

    def eof_received(self) -> bool:  # type: ignore[override]
        """HttpAnswer what was asked before the client stopped sending; return False to close at once."""
        if self.in_head or self._is_answered or self.cycle.more_body:
            return False
        self.cycle.keep_alive = False
        if self.cycle.scope["http_version"] != "1.0":  # which knows no interim answers
            self._timer = self.loop.call_later(_PROBE, self._probe)
        return True

    def _probe(self) -> None:
        """Send an interim answer while a run takes long: a client that has gone, and not only stopped sending, refuses it."""
        if self.call is not None and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._timer = self.loop.call_later(_PROBE, self._probe)

    def pause_writing(self) -> None:
        """Wait until the client reads on, not for ever; until then what it leaves unread is held."""
        super().pause_writing()
        self._unsent = self.transport.get_write_buffer_size()
        self._calls.service.held += self._unsent
        self._look_at_reader(None)

    def resume_writing(self) -> None:
        """Go on."""
        super().resume_writing()
        if not self.transport.is_closing():  # else the rest is waited for as well
            self._stop_holding()

    def _look_at_reader(self, before: int | None) -> None:
        """Go on waiting, unless nothing was read for a while."""
        size = self.transport.get_write_buffer_size()
        if before is not None and size >= before:
            self.transport.abort()
        else:
            self._reader = self.loop.call_later(_PATIENCE, self._look_at_reader, size)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop what has no client any more."""
        self._stop_timer()
        self._unset_keepalive_if_required()
        self._stop_holding()
        if self.call is not None:
            self.call.lose()
        super().connection_lost(exc)

    def _stop_holding(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
        self._calls.service.release(self._unsent)
        self._unsent = 0

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
