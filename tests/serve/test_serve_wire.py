"""The short way of inference: bytes as sockets deliver them, beside the long way that answers the same."""

import json
import os
import random
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import numpy as np
import pytest
import uvicorn
from builders import graph, model, node, save, weight
from serve_cases import ROOT, WAIT, Server, infer_body, linear, serving, slow, wait_for

from quantkit.deploy.serve import _listening
from quantkit.deploy.serve.app import make_app
from quantkit.deploy.serve.calls import Calls
from quantkit.deploy.serve.service import start_service
from quantkit.deploy.serve.wire import Connection
from quantkit.settings import Recipe, ServeSettings

X = np.random.default_rng(0).standard_normal((1, 8)).astype(np.float32)
MANY = np.random.default_rng(1).standard_normal((9001, 8)).astype(np.float32)


@pytest.fixture(scope="module", params=["", "uvloop", "httptools"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """With all packages, and without each that it can do without."""
    folder = tmp_path_factory.mktemp("wire")
    if request.param:
        (folder / f"{request.param}.py").write_text("raise ImportError")
    flags = ("--body-mb", "1", "--memory-mb", "1", "--timeout-s", "2")
    with serving(linear(folder), *flags, PYTHONPATH=f"{folder}{os.pathsep}{ROOT}") as found:
        yield found


def binary(x: Any, **wrong: Any) -> tuple[bytes, str]:
    """Return a body with the tensor behind the JSON, and the header that says where."""
    tensor = {"name": "x", "datatype": "FP32", "shape": x.shape} | wrong
    sized = {**tensor, "parameters": {"binary_data_size": x.nbytes}}
    head = msgspec.json.encode({"inputs": [sized], "parameters": {"binary_data_output": True}})
    return head + x.tobytes(), f"Inference-Header-Content-Length: {len(head)}\r\n"


def request(body: bytes, more: str = "", *, chunked: bool = False) -> bytes:
    """Return a request's bytes. In chunks it goes the long way."""
    start = f"POST /v2/models/linear/infer HTTP/1.1\r\nHost: h\r\n{more}"
    if chunked:
        parts = [body[i : i + 1000] for i in range(0, len(body), 1000)]
        sent = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        return f"{start}Transfer-Encoding: chunked\r\n\r\n".encode() + sent
    return f"{start}Content-Length: {len(body)}\r\n\r\n".encode() + body


def connected(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), WAIT)


def answered(sock: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of the next answer."""
    with sock.makefile("rb") as file:
        status = int(file.readline().split()[1])
        lines = iter(lambda: file.readline().strip().decode(), "")
        headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines)}
        return status, headers, file.read(int(headers.get("content-length", "0")))


def held(server: Server) -> float:
    text = server.ask("GET", "/metrics")[1].decode()
    return float(re.findall(r"quantkit_held_bytes ([\d.e+]+)", text)[0])


GOOD, WHERE = binary(X)
REQUESTS = {
    "json": (infer_body(X), ""),
    "json of a type with more to it": (
        infer_body(X),
        "Content-Type: application/json; charset=utf-8\r\n",
    ),
    "binary": (GOOD, WHERE),
    "large binary": binary(MANY),
    "large json": (infer_body(MANY[:3000]), ""),
    "named": (infer_body(X, id="a7"), ""),
    "no json": (b"{", ""),
    "another input": (infer_body(X, "y"), ""),
    "another shape": binary(X, shape=[1, 9]),
    "another type": binary(X, datatype="FP64"),
    "too short": (GOOD[:-4], WHERE),
    "header too long": (GOOD, "Inference-Header-Content-Length: 99999\r\n"),
    "header no number": (GOOD, "Inference-Header-Content-Length: a\r\n"),
    "no header": (GOOD, "Content-Type: application/octet-stream\r\n"),
    "form": (infer_body(X), "Content-Type: application/x-www-form-urlencoded\r\n"),
    "compressed": (infer_body(X), "Content-Encoding: gzip\r\n"),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_both_ways_answer_the_same(server: Server, name: str) -> None:
    found = []
    for chunked in (False, True):
        with connected(server) as sock:
            sock.sendall(request(*REQUESTS[name], chunked=chunked))
            status, headers, body = answered(sock)
        headers.pop("date")
        found.append((status, headers, body))
    assert found[0] == found[1]
    assert (found[0][0] == 200) == (name in list(REQUESTS)[:6])
    wait_for(lambda: held(server) == 0)


@contextmanager
def in_this_process(path: Path) -> Iterator[tuple[str, int]]:
    """Serve in a thread; yield the address."""
    settings = ServeSettings(port=0)
    service = start_service(path, settings, Recipe())
    listener = _listening(settings)
    calls = Calls(service)
    config = uvicorn.Config(
        make_app(calls),
        http=partial(Connection, calls),  # type: ignore[arg-type]
        lifespan="off",
        log_config=None,
    )
    running = uvicorn.Server(config)
    thread = Thread(target=running.run, kwargs={"sockets": [listener]})
    thread.start()
    wait_for(lambda: running.started)
    try:
        yield listener.getsockname()
    finally:
        running.should_exit = True
        thread.join(WAIT)
        service.close()


def test_too_many_connections_are_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantkit.deploy.serve.wire._CONNECTIONS", 4)
    with in_this_process(linear(tmp_path)) as address, ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(socket.create_connection(address, WAIT))
        with socket.create_connection(address, WAIT) as sock:
            sock.sendall(request(GOOD, WHERE))
            status, headers, body = answered(sock)
        assert (status, headers["retry-after"], headers["connection"]) == (503, "1", "close")
        assert "too many connections" in json.loads(body)["error"]


def test_connections_that_nobody_uses_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was sent to keep them: a line break behind a request, the body of one that was answered, no reading."""
    monkeypatch.setattr("quantkit.deploy.serve.wire._PATIENCE", 0.3)
    wide = weight(8, 1_000_000)
    made = model(
        graph(
            [node("MatMul", ["x", "w"], ["y"])],
            {"x": ["n", 8]},
            {"y": ["n", 1_000_000]},
            {"w": wide},
        )
    )
    path = save(made, tmp_path / "linear.onnx")
    refused = b"POST /nothing HTTP/1.1\r\nContent-Length: 9\r\n\r\n"
    with in_this_process(path) as address:
        asked = b"GET / HTTP/1.1\r\n\r\n"
        for first, then, status in ((asked, b"\r\n", 200), (refused, b"a", 404), (b"\r\n", b"", 0)):
            with socket.create_connection(address, WAIT) as sock:
                sock.sendall(first)
                if then:
                    assert answered(sock)[0] == status
                    sock.sendall(then)
                assert sock.recv(1) == b""
        with socket.create_connection(address, WAIT) as sock:
            sock.sendall(request(GOOD, WHERE) * 9)
            time.sleep(2)  # the answer is longer than what the system keeps
            found = 0
            with suppress(ConnectionError):
                while part := sock.recv(1 << 20):
                    found += len(part)
            assert found < 9 * wide[0].nbytes


@pytest.fixture(scope="module")
def wired(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With httptools."""
    pytest.importorskip("httptools", reason="httptools is not installed")
    with serving(linear(tmp_path_factory.mktemp("wired"))) as found:
        yield found


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x00\x01\r\n\r\n", 400),
        (b"CONNECT h:80 HTTP/1.1\r\n\r\n", 400),
        (b"POST /v2/models/linear/infer HTTP/1.1\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST /v2/models/linear/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", 400),
        (b"GET /v2 HTTP/1.1\r\nA: %s\r\n\r\n" % (b"a" * 70_000), 431),
    ],
)  # fmt: skip
def test_what_is_no_http_is_refused_and_counted(wired: Server, sent: bytes, status: int) -> None:
    count = f'quantkit_requests_total{{endpoint="other",status="{status}"}}'.encode()
    with connected(wired) as sock:
        sock.sendall(sent)
        found, headers, body = answered(sock)
        assert (found, headers["connection"]) == (status, "close")
        assert json.loads(body)["error"].endswith(".")
    assert count in wired.ask("GET", "/metrics")[1]
    for line in wired.log.read_text().splitlines():
        assert json.loads(line)["level"]


def test_what_was_asked_before_something_bad_is_answered(wired: Server) -> None:
    for bad in (b"\x00\r\n\r\n", b"GET /v2 HTTP/1.1\r\nA: %s\r\n\r\n" % (b"a" * 70_000)):
        for chunked in (False, True):
            with connected(wired) as sock:
                sock.sendall(request(GOOD, WHERE, chunked=chunked) + bad)
                assert answered(sock)[0] == 200


def test_who_offers_http_2_is_answered_in_this_one(wired: Server) -> None:
    """As Java's client and `curl --http2` do, with the body behind the offer."""
    offer = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    for chunked in (False, True):
        sent = request(GOOD, WHERE + offer, chunked=chunked)
        with connected(wired) as sock:
            for cut in (len(sent), 20, sent.index(b"\r\n\r\n") + 9):
                sock.sendall(sent[:cut])
                sock.sendall(sent[cut:])
                assert answered(sock)[0] == 200


def test_requests_that_follow_without_end_are_not_kept(wired: Server) -> None:
    """They are read as they are answered: a caller cannot fill the memory with them."""

    def resident() -> int:
        status = Path(f"/proc/{wired.process.pid}/status").read_text(encoding="utf-8")
        return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) >> 10

    if not Path("/proc/self/status").exists():
        pytest.skip("there is no /proc to read the memory from")
    before, sent = resident(), b"GET /v2 HTTP/1.1\r\n\r\n" * 50_000
    with connected(wired) as sock:

        def send() -> None:
            with suppress(OSError):
                sock.sendall(sent)

        thread = Thread(target=send)
        thread.start()
        with sock.makefile("rb") as file:
            for _ in range(2000):
                assert file.readline() == b"HTTP/1.1 200 OK\r\n"
                lines = iter(partial(file.readline), b"\r\n")
                length = next(
                    int(one.split()[1]) for one in list(lines) if one.startswith(b"content-l")
                )
                file.read(length)
        grown = resident() - before
        sock.shutdown(socket.SHUT_RDWR)
        thread.join(WAIT)
    assert grown < 60  # MB; all of them would take some hundred


@pytest.mark.parametrize("size", [1, 7, 1000, 200_000])
def test_a_request_may_come_in_pieces(server: Server, size: int) -> None:
    """Cut anywhere, the head included, and the connection serves the next request as well."""
    x = X if size < 1000 else MANY
    sent = request(*binary(x))
    with connected(server) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        bodies = []
        for _ in range(2):
            for start in range(0, len(sent), size):
                sock.sendall(sent[start : start + size])
            status, _, body = answered(sock)
            assert status == 200
            bodies.append(body)
        sock.sendall(request(*binary(x), chunked=True))
        assert answered(sock)[2] == bodies[0] == bodies[1]


def test_requests_may_follow_without_waiting(server: Server) -> None:
    """Answers come in the order of the requests, whichever way each goes and wherever they are cut."""
    rng = random.Random(7)  # noqa: S311 - the same every time
    kinds = ["json", "binary", "no json", "large binary", "named"]
    wanted = [(kind, rng.random() < 0.3) for kind in (rng.choice(kinds) for _ in range(12))]
    sent = b"".join(request(*REQUESTS[kind], chunked=chunked) for kind, chunked in wanted)

    def alone(kind: str) -> tuple[int, bytes]:
        with connected(server) as sock:
            sock.sendall(request(*REQUESTS[kind]))
            return answered(sock)[::2]

    expected = {kind: alone(kind) for kind in kinds}
    with connected(server) as sock, sock.makefile("rb") as file:
        thread = Thread(target=sock.sendall, args=(sent,))
        thread.start()
        for kind, _ in wanted:
            status = int(file.readline().split()[1])
            lines = iter(partial(file.readline), b"\r\n")
            length = next(
                int(one.split()[1]) for one in list(lines) if one.startswith(b"content-l")
            )
            assert (status, file.read(length)) == expected[kind]
        thread.join(WAIT)


def test_a_caller_that_asks_first_whether_it_may_send_is_told(server: Server) -> None:
    whole = request(GOOD, WHERE + "Expect: 100-continue\r\n")
    with connected(server) as sock:
        sock.sendall(whole[: -len(GOOD)])
        assert answered(sock)[0] == 100
        sock.sendall(GOOD)
        assert answered(sock)[0] == 200


def test_a_caller_that_wants_the_end_gets_it(server: Server) -> None:
    with connected(server) as sock:
        sock.sendall(request(GOOD, WHERE + "Connection: close\r\n"))
        status, headers, _ = answered(sock)
        assert (status, headers["connection"]) == (200, "close")
        assert sock.recv(1) == b""


@pytest.mark.parametrize("chunked", [False, True], ids=["short way", "long way"])
def test_a_caller_that_stops_sending_is_answered(server: Server, *, chunked: bool) -> None:
    with connected(server) as sock:
        sock.sendall(request(GOOD, WHERE, chunked=chunked))
        sock.shutdown(socket.SHUT_WR)
        assert answered(sock)[0] == 200
        assert sock.recv(1) == b""
    with connected(server) as sock:  # in the middle of a request: there is nothing to answer
        sock.sendall(request(GOOD, WHERE)[:-1])
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(1) == b""


def test_of_callers_that_stop_sending_those_that_have_gone_are_found(tmp_path: Path) -> None:
    """The last bytes of both are the same; only one that is still there takes an interim answer."""
    flags = ("--workers", "1", "--timeout-s", "30", "--queue-s", "30")
    with serving(slow(tmp_path, 1200), *flags) as server:
        body = infer_body(np.repeat(X, 64, 0))
        sent = request(body).replace(b"/linear/", b"/slow/")
        with connected(server) as waiting:
            gone = [connected(server) for _ in range(120)]
            for sock in (*gone[:60], waiting, *gone[60:]):
                sock.sendall(sent)
                sock.shutdown(socket.SHUT_WR)
            for sock in gone:
                sock.close()
            found = b"".join(iter(lambda: waiting.recv(1 << 16), b""))
            final = found[found.rindex(b"HTTP/1.1 ") :]
            assert final.startswith(b"HTTP/1.1 200 ")
            assert found[: -len(final)].replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"") == b""
        wait_for(lambda: len([one for one in server.lines() if "status" in one]) >= 121)
        assert any(one.get("status") == 499 for one in server.lines())


def test_bodies_that_do_not_end_are_given_up(server: Server) -> None:
    sent = request(*binary(MANY))
    with connected(server) as slow, connected(server) as gone:
        slow.sendall(sent[:-100])
        gone.sendall(sent[:100_000])
        wait_for(lambda: held(server) > 100_000)
        gone.close()
        status, headers, body = answered(slow)
        assert (status, headers["connection"]) == (408, "close")
        assert b"too slowly" in body
    wait_for(lambda: held(server) == 0)
    assert server.infer(X)[0] == 200


def test_without_room_for_a_body_there_is_an_answer(server: Server) -> None:
    """All of it is sent before the answer is read, as most callers do."""
    wide = request(*binary(np.repeat(MANY, 3, 0)))
    with connected(server) as first, connected(server) as second:
        first.sendall(wide[:-100])
        wait_for(lambda: held(server) > 800_000)
        second.sendall(wide)
        status, headers, body = answered(second)
        assert (status, headers["retry-after"]) == (503, "1")
        assert "too many requests" in json.loads(body)["error"]
        second.sendall(request(GOOD, WHERE))
        assert answered(second)[0] == 200
    wait_for(lambda: held(server) == 0)
