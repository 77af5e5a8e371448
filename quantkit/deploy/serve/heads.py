"""Heads of requests, read by httptools: bounded, and answered in HTTP/1.1 where they offer another protocol."""

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from quantkit.deploy.serve.calls import MOST_HEADERS


class Heads(HttpToolsProtocol):
    """uvicorn's protocol, which bounds no head and loses the body behind an offer of another protocol."""

    is_too_long = False
    _taken = 0  # bytes of a head that is not complete

    @property
    def in_head(self) -> bool:
        """Whether a head has begun and is not complete."""
        return self.scope is not None and (self.cycle is None or self.cycle.scope is not self.scope)

    def data_received(self, data: bytes) -> None:
        """Read on."""
        self._unset_keepalive_if_required()
        self._taken = self._taken + len(data) if self.in_head else 0
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as e:
                data = self._without_offer() + data[e.args[0] :]
                continue
            except httptools.HttpParserError:
                self.send_400_response("")
            break
        if self.in_head and self._taken > MOST_HEADERS:
            self.is_too_long = True
            self.send_400_response("")

    def _without_offer(self) -> bytes:
        """Return the head that was read without its offer, as Java's client and `curl --http2` make one; it is read again."""
        version = self.parser.get_http_version().encode()
        start = b"%b %b HTTP/%b\r\n" % (self.parser.get_method(), self.url, version)
        kept = (b"%b: %b\r\n" % pair for pair in self.headers if pair[0] != b"upgrade")
        self.parser = httptools.HttpRequestParser(self)
        return b"".join((start, *kept, b"\r\n"))

    def on_headers_complete(self) -> None:
        """Begin a request."""
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        self.is_too_long = size > MOST_HEADERS
        if self.is_too_long or self.parser.get_method() == b"CONNECT":
            raise ValueError  # which ends the parser
        if not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        """End a request, unless it is read again."""
        if not self.parser.should_upgrade():
            super().on_message_complete()
