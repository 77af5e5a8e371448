"""Servers in processes of their own, asked as callers ask."""

import asyncio
import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from builders import graph, model, node, save
from onnx import TensorProto, helper
from serve_cases import (
    ROOT,
    WAIT,
    Server,
    free_port,
    infer_body,
    is_ready,
    linear,
    picky,
    serving,
    slow,
    wait_for,
)

from quantkit.deploy.serve import _listening, _stamp, _stoppable, _Watch
from quantkit.deploy.serve.protocol import DTYPES
from quantkit.installation import install_command
from quantkit.settings import ServeSettings

JSON = {"Content-Type": "application/json"}
X = np.random.default_rng(0).standard_normal((1, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = linear(tmp_path_factory.mktemp("serve"))
    with serving(path, "--body-mb", "1") as found:
        yield found


def expected(path: Path, x: Any = X) -> Any:
    (w,) = (onnx.numpy_helper.to_array(i) for i in onnx.load(path).graph.initializer)
    return x @ w


def test_the_server_says_who_it_is(server: Server) -> None:
    assert server.json("GET", "/v2")[1]["extensions"] == [
        "binary_tensor_data",
        "model_configuration",
    ]
    assert server.json("GET", "/v2/health/live") == (200, {"live": True})
    assert server.json("GET", "/v2/health/ready") == (200, {"ready": True})
    for path in ("/v2/models/linear", "/v2/models/linear/versions/1"):
        status, said = server.json("GET", path)
        assert status == 200
        assert said["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 8]}]
        assert server.json("GET", f"{path}/ready")[1]["ready"] is True
    assert "/predict" in server.json("GET", "/openapi.json")[1]["paths"]
    status, page = server.ask("GET", "/docs")
    assert status == 200
    assert b"<script" not in page
    assert b"http://127.0.0.1" in page
    assert b"quantkit_requests_total" in server.ask("GET", "/metrics")[1]


def test_the_configuration_is_tritons_and_statistics_are_refused(server: Server) -> None:
    for path in ("/v2/models/linear", "/v2/models/linear/versions/1"):
        status, said = server.json("GET", f"{path}/config")
        assert status == 200
        assert said["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1, 8]}]
        assert (said["name"], said["max_batch_size"]) == ("linear", 0)
        status, said = server.json("GET", f"{path}/stats")
        assert status == 501
        assert "/metrics" in said["error"]
    assert server.ask("GET", "/v2/models/other/config")[0] == 404


def test_a_wrong_method_is_told_the_right_one(server: Server) -> None:
    for method, path, use in (("GET", "/predict", "POST"), ("POST", "/metrics", "GET")):
        status, said = server.json(method, path)
        assert (status, said["error"]) == (405, f"Method not allowed; use {use}.")


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="there are no terminals here")
def test_lines_on_a_terminal_are_for_people(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    port, path = free_port(), linear(tmp_path)
    command = [sys.executable, "-m", "quantkit.deploy.serve", str(path), "--port", str(port)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([*command, "--drain-s", "0"], stderr=theirs, env=environment)
    os.close(theirs)
    server = Server(process=process, port=port, name="linear", log=tmp_path)
    wait_for(lambda: is_ready(server))
    assert server.infer(X)[0] == 200
    assert server.ask("GET", "/%1b[31mred")[0] == 404
    assert server.stop() == 0
    found = b""
    with suppress(OSError):  # Linux, when the other side is closed
        while more := os.read(ours, 1 << 16):
            found += more
    os.close(ours)
    lines = found.decode().splitlines()
    assert re.search(rf"serving 'linear' on http://127.0.0.1:{port} .*token none: anyone", lines[0])
    asked = next(line for line in lines if "infer" in line)
    assert re.search(r"POST /v2/models/linear/infer 200 \([\d.]+ ms, run [\d.]+, wait", asked)
    assert any("GET /?[31mred 404 (" in line and "nothing at this" in line for line in lines)
    assert not any(line.startswith("{") or "\x1b" in line for line in lines)


def rounded(values: Any) -> tuple[float, ...]:
    return tuple(round(float(v), 4) for v in values)


def test_an_answer_is_the_models(server: Server) -> None:
    status, said = server.infer(X)
    assert status == 200
    (output,) = said["outputs"]
    path = server.log.parent / "linear.onnx"
    assert np.allclose(np.reshape(output["data"], output["shape"]), expected(path), atol=1e-6)


def test_nvidias_client_is_pleased(server: Server) -> None:
    client_of = pytest.importorskip("tritonclient.http", reason="tritonclient is not installed")
    client = client_of.InferenceServerClient(f"127.0.0.1:{server.port}")
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("linear")
    assert client.get_model_metadata("linear")["platform"] == "onnxruntime_onnx"
    asked = client_of.InferInput("x", [3, 8], "FP32")
    x = np.random.default_rng(1).standard_normal((3, 8)).astype(np.float32)
    found = []
    for binary in (True, False):
        asked.set_data_from_numpy(x, binary_data=binary)
        wanted = [client_of.InferRequestedOutput("logits", binary_data=binary)]
        answer = client.infer("linear", [asked], outputs=wanted, request_id="a7")
        assert answer.get_response()["id"] == "a7"
        found.append(answer.as_numpy("logits"))
    assert np.array_equal(*found)
    assert np.allclose(found[0], expected(server.log.parent / "linear.onnx", x), atol=1e-6)
    assert client.infer("linear", [asked], model_version="1").as_numpy("logits").shape == (3, 4)
    with pytest.raises(client_of.InferenceServerException, match="no model 'other'"):
        client.infer("other", [asked])
    client.close()


def test_kserves_client_is_pleased(server: Server) -> None:
    kserve = pytest.importorskip("kserve", reason="kserve is not installed: it brings 69 packages")
    client = kserve.InferenceRESTClient(kserve.RESTConfig(protocol="v2", timeout=30))
    url, x = f"http://127.0.0.1:{server.port}", np.ones((2, 8), np.float32)

    async def asked(*, binary: bool) -> Any:
        tensor = kserve.InferInput("x", [2, 8], "FP32")
        tensor.set_data_from_numpy(x, binary_data=binary)
        request = kserve.InferRequest("linear", [tensor])
        answer = await client.infer(url, request, model_name="linear")
        return answer.outputs[0].as_numpy()

    async def session() -> list[Any]:
        assert await client.is_server_ready(url)
        assert await client.is_model_ready(url, "linear")
        return [await asked(binary=binary) for binary in (False, True)]

    for found in asyncio.run(session()):
        assert np.allclose(found, expected(server.log.parent / "linear.onnx", x), atol=1e-6)


def test_every_type_comes_and_goes(tmp_path: Path) -> None:
    """Through onnxruntime and back, as numbers and as bytes."""
    client_of = pytest.importorskip("tritonclient.http", reason="tritonclient is not installed")
    arrays = {
        name: np.array([["a", "\u00e4\u20ac"]], object)
        if name == "BYTES"
        else np.array([[0, 1]], dtype)
        for name, dtype in DTYPES.items()
    }
    element = {n: TensorProto.STRING if n == "BYTES" else helper.np_dtype_to_tensor_dtype(DTYPES[n]) for n in arrays}  # fmt: skip
    proto = graph(
        [node("Identity", [name], [f"{name}_out"]) for name in arrays],
        {name: ["batch", 2] for name in arrays},
        {f"{name}_out": ["batch", 2] for name in arrays},
        types=element | {f"{name}_out": kind for name, kind in element.items()},
    )
    with serving(save(model(proto), tmp_path / "types.onnx")) as server:
        client = client_of.InferenceServerClient(f"127.0.0.1:{server.port}")
        for binary in (True, False):
            asked = [client_of.InferInput(name, [1, 2], name) for name in arrays]
            for one, array in zip(asked, arrays.values(), strict=True):
                one.set_data_from_numpy(array, binary_data=binary or one.datatype() == "FP16")
            wanted = [
                client_of.InferRequestedOutput(f"{name}_out", binary_data=binary or name == "FP16")
                for name in arrays
            ]
            found = client.infer("types", asked, outputs=wanted)
            for name, array in arrays.items():
                came = found.as_numpy(f"{name}_out")
                texts = [t.decode() if isinstance(t, bytes) else t for t in came.ravel()]
                assert texts == list(array.ravel()), name
        client.close()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_a_session_with_curl(server: Server) -> None:
    def curl(*arguments: str) -> Any:
        address = f"http://127.0.0.1:{server.port}{arguments[-1]}"
        command = ["curl", "-sS", *arguments[:-1], address]
        done = subprocess.run(command, capture_output=True, check=True, timeout=WAIT)
        return json.loads(done.stdout)

    assert curl("/v2/health/ready") == {"ready": True}
    row = json.dumps({"input": X[0].tolist()})
    said = curl("-H", "Content-Type: application/json", "-d", row, "/predict?top_k=2")
    assert [len(best) for best in said["predictions"]] == [2]
    assert said["scores"] == "as the model gives them"
    said = curl("-d", "{}", "/v2/models/linear/infer")  # curl's own content type
    assert "content type" in said["error"]


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status"),
    [
        ("GET", "/nothing", None, {}, 404),
        ("GET", "/v2/models/other", None, {}, 404),
        ("GET", "/v2/models/linear/versions/9", None, {}, 404),
        ("GET", "/v2/models/linear/infer", None, {}, 405),
        ("POST", "/v2/models/linear/infer", b"", JSON, 400),
        ("POST", "/v2/models/linear/infer", b"{}", {"Content-Type": "text/csv"}, 415),
        ("POST", "/v2/models/linear/infer", b"{}", JSON | {"Content-Encoding": "gzip"}, 415),
        ("POST", "/v2/models/linear/infer", b"x" * (2 << 20), JSON, 413),
        ("POST", "/v2/models/linear/infer", b"{}", {"Content-Type": "application/octet-stream"}, 400),
        ("POST", "/v2/models/linear/infer", b"{}", JSON | {"Inference-Header-Content-Length": "x"}, 400),
        ("POST", "/v2/models/linear/infer", b"{}", JSON | {"Inference-Header-Content-Length": "9"}, 400),
        ("POST", "/predict", b"{}", JSON, 400),
        ("POST", "/predict", b'{"input": [1, 2]}', JSON, 400),
        ("POST", "/predict", b'{"input": [[1], [2, 3]]}', JSON, 400),
        ("POST", "/predict", b'{"text": "hello"}', JSON, 415),
        ("POST", "/predict?top_k=x", b'{"input": [1]}', JSON, 400),
        ("POST", "/predict?softmax=x", b'{"input": [1]}', JSON, 400),
        ("POST", "/predict", b"\xff\xd8", {"Content-Type": "image/jpeg"}, 415),
        ("POST", "/predict", b"x", {"Content-Type": "multipart/form-data"}, 400),
        ("POST", "/predict", b"x", {"Content-Type": "multipart/form-data; boundary=b"}, 400),
        ("POST", "/predict", b"x", {"Content-Type": "application/x-pickle"}, 415),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_with_a_sentence(
    server: Server, method: str, path: str, body: bytes | None, headers: dict[str, str], status: int
) -> None:
    found, said = server.json(method, path, body=body, headers=headers)
    assert found == status
    assert list(said) == ["error"]
    assert said["error"].endswith(".")


def test_a_body_without_a_length_is_counted_while_it_comes(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), WAIT) as sock:
        head = (
            "POST /v2/models/linear/infer HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
        )
        sock.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        answer = b""
        try:
            for _ in range(64):
                sock.sendall(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
        except OSError:
            pass  # it was refused before all of it was sent
        while b"}" not in answer and (part := sock.recv(4096)):
            answer += part
    assert answer.startswith(b"HTTP/1.1 413")


def heavy() -> dict[str, tuple[str, bytes, dict[str, str]]]:
    """Return requests of 8 MB that take long to read, with their addresses and headers."""
    size, infer = 8_000_000, "/v2/models/linear/infer"
    start = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[%d,1],"data":['
    nested = start % (size // 4) + b"[1]," * (size // 4 - 1) + b"[1]]}]}"
    lists = start % 1 + b'1]}],"parameters":{"a":[' + b"[]," * (size // 3) + b"[]]}}"
    whole = {"Content-Type": "application/octet-stream"}
    form = {"Content-Type": "multipart/form-data; boundary=x"}
    return {
        "form": ("/predict", b"--x\r\n\r\n\r\n" * (size // 9) + b"--x--", form),
        "nested": (infer, nested, whole | {"Inference-Header-Content-Length": str(len(nested))}),
        "lists": (infer, lists, whole | {"Inference-Header-Content-Length": str(len(lists))}),
        "rows": ("/predict", b'{"input":[' + b"[]," * (size // 3) + b"[]]}", JSON),
    }


@pytest.mark.parametrize("kind", ["form", "nested", "lists", "rows"])
def test_others_are_answered_while_a_large_request_is_read(tmp_path: Path, kind: str) -> None:
    path, body, headers = heavy()[kind]
    with serving(linear(tmp_path)) as server:
        asking = Thread(target=server.ask, args=("POST", path, body, headers))
        asking.start()
        longest = 0.0
        while asking.is_alive():
            started = time.perf_counter()
            assert server.ask("GET", "/v2/health/live")[0] == 200
            longest = max(longest, time.perf_counter() - started)
        asking.join()
    assert longest < 1.0


def test_headers_without_end_are_cut_off(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), WAIT) as sock:
        try:
            sock.sendall(b"GET /v2 HTTP/1.1\r\n")
            for number in range(40):
                sock.sendall(f"X-{number}: {'a' * 4000}\r\n".encode())
            sock.sendall(b"\r\n")
            found = sock.recv(4096)
        except OSError:
            found = b""
    assert not found.startswith(b"HTTP/1.1 200")
    assert server.infer(X)[0] == 200


def test_too_long_an_address_and_a_wrong_method_are_answered(server: Server) -> None:
    status, said = server.json("GET", f"/v2?{'a' * 70000}")
    assert status == 431
    assert "65536" in said["error"]
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT)
    connection.request("GET", "/predict")
    answer = connection.getresponse()
    assert (answer.status, answer.getheader("Allow")) == (405, "POST")
    connection.close()


def mutated(rng: random.Random, request: bytes) -> bytes:
    """Return a request with a few bytes changed, cut out or put in."""
    content = bytearray(request)
    for _ in range(rng.randint(1, 6)):
        place = rng.randrange(len(content) + 1)
        match rng.randrange(4):
            case 0 if place < len(content):
                content[place] = rng.randrange(256)
            case 1:
                del content[place : place + rng.randint(1, 40)]
            case 2:
                content[place:place] = rng.randbytes(rng.randint(1, 20))
            case _:
                words = [b"-1", b"1e309", b"null", b"[[", b"{}", b"\x00", b"99999999999", b"NaN"]
                content[place:place] = rng.choice(words)
    return bytes(content)


def test_a_thousand_mutated_requests_break_nothing(server: Server) -> None:
    """Bodies are changed, and in every fifth request all of it: the answer is none, or one that is no 500."""
    rng = random.Random(16)  # noqa: S311 - the same requests every time
    body = infer_body(X)
    head = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,8],"parameters":{"binary_data_size":32}}]}'
    form = (
        b'--b\r\nContent-Disposition: form-data; name="f"; filename="a"\r\n\r\nhello\r\n--b--\r\n'
    )
    length = f"Inference-Header-Content-Length: {len(head)}\r\n"
    kinds = [
        ("/v2/models/linear/infer", "application/json", "", body),
        ("/v2/models/linear/infer", "application/octet-stream", length, head + X.tobytes()),
        ("/predict", "application/json", "", json.dumps({"input": X[0].tolist()}).encode()),
        ("/predict", "multipart/form-data; boundary=b", "", form),
    ]
    statuses = set()
    for number in range(1000):
        path, kind, extra, sent = kinds[number % len(kinds)]
        whole = number % 5 == 0
        sent = sent if whole else mutated(rng, sent)
        start = f"POST {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Type: {kind}\r\n{extra}"
        request = f"{start}Content-Length: {len(sent)}\r\n\r\n".encode() + sent
        statuses.add(_status(server.port, mutated(rng, request) if whole else request, cut=whole))
    assert server.process.poll() is None
    assert statuses <= {0, 200, 400, 404, 405, 408, 413, 415}
    assert {200, 400} <= statuses
    assert server.infer(X)[0] == 200


def _status(port: int, request: bytes, *, cut: bool) -> int:
    """Return the status of the answer to raw bytes; 0: there is none. `cut`: say that nothing more will come."""
    with socket.create_connection(("127.0.0.1", port), WAIT) as sock:
        try:
            sock.sendall(request)
            if cut:
                sock.shutdown(socket.SHUT_WR)
            answer = sock.recv(4096)
        except OSError:
            return 0
    return int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0


def test_a_token_is_asked_for(tmp_path: Path) -> None:
    # As Kubernetes sets it from a file: with a line break.
    with serving(linear(tmp_path), QUANTKIT_TOKEN="secret-7\n") as server:  # noqa: S106 - of this test
        for right in ("Bearer secret-7", "bearer  secret-7"):
            server.headers = {"Authorization": right}
            assert server.infer(X)[0] == 200
        server.headers = {}
        assert server.ask("GET", "/v2/health/live")[0] == 200
        for wrong in ({}, {"Authorization": "Bearer secret-8"}, {"Authorization": "secret-7"}):
            server.headers = wrong
            assert server.infer(X)[0] == 401
            assert server.ask("GET", "/metrics")[0] == 401
        assert server.lines()[0]["token"] == "needed"  # noqa: S105 - said, not it
        assert "secret" not in server.log.read_text()


def test_a_host_that_others_reach_without_a_token_is_said(tmp_path: Path) -> None:
    with serving(linear(tmp_path), "--host", "0.0.0.0") as server:  # noqa: S104 - that is the test
        said = server.lines()
        assert said[0]["token"].startswith("none")
        assert any("set QUANTKIT_TOKEN" in line.get("note", "") for line in said)


def test_one_bad_request_of_a_batch_fails_alone(tmp_path: Path) -> None:
    with serving(
        picky(tmp_path), "--batch", "4", "--batch-delay-ms", "300", "--workers", "1"
    ) as server:
        found: dict[int, int] = {}

        def ask(index: int) -> None:
            tensor = {"name": "x", "datatype": "INT64", "shape": [1], "data": [index]}
            body = json.dumps({"inputs": [tensor]}).encode()
            found[index] = server.ask("POST", "/v2/models/picky/infer", body, JSON)[0]

        threads = [Thread(target=ask, args=(index,)) for index in (1, 99, 3, 4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == {1: 200, 99: 400, 3: 200, 4: 200}


def test_too_many_requests_are_sent_away_and_too_slow_ones_given_up(tmp_path: Path) -> None:
    path = slow(tmp_path)
    with serving(path, "--workers", "1", "--queue-s", "0.001", "--timeout-s", "10") as server:
        statuses = _at_once(server, 24)
        assert set(statuses) == {200, 503}
        assert server.infer(X)[0] == 200
    with serving(path, "--workers", "1", "--queue-s", "100", "--timeout-s", "0.001") as server:
        assert 504 in _at_once(server, 16)
        wait_for(lambda: b"quantkit_waiting_requests 0.0" in server.ask("GET", "/metrics")[1])


def _at_once(server: Server, count: int) -> list[int]:
    found: list[int] = []
    threads = [Thread(target=lambda: found.append(server.infer(X[:1])[0])) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_callers_that_have_gone_are_not_answered(tmp_path: Path) -> None:
    with serving(
        slow(tmp_path, 1200), "--workers", "1", "--timeout-s", "30", "--queue-s", "30"
    ) as server:
        body = infer_body(np.repeat(X, 64, 0))
        head = f"POST /v2/models/slow/infer HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        gone = []
        for _ in range(12):
            sock = socket.create_connection(("127.0.0.1", server.port), WAIT)
            sock.sendall(head.encode() + body)
            gone.append(sock)
        wait_for(lambda: b"quantkit_waiting_requests 0.0" not in server.ask("GET", "/metrics")[1])
        for sock in gone:  # as the system does it for a process that is killed
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
        wait_for(lambda: b"quantkit_waiting_requests 0.0" in server.ask("GET", "/metrics")[1])
        wait_for(lambda: sum(line.get("status") == 499 for line in server.lines()) > 6)
        runs = re.findall(
            r"quantkit_run_seconds_count (\d+)", server.ask("GET", "/metrics")[1].decode()
        )
        assert int(runs[0]) < 6  # what nobody waits for is not run
        assert server.infer(X)[0] == 200


class Callers:
    """Callers that ask without a pause, keep their connections, and note what they got."""

    def __init__(self, server: Server, count: int = 4) -> None:
        self.statuses: list[int] = []
        self.lost: list[BaseException] = []
        self.answers: set[tuple[float, ...]] = set()
        self._end = Event()
        self._server = server
        self._threads = [Thread(target=self._ask) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        body = infer_body(X)
        connection = http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=WAIT)
        while not self._end.is_set():
            try:
                if connection.sock is None:
                    connection.connect()
            except OSError:
                return  # nobody listens any more: nothing was sent, nothing is lost
            try:
                connection.request("POST", f"/v2/models/{self._server.name}/infer", body, JSON)
                answer = connection.getresponse()
                said = json.loads(answer.read())
                self.statuses.append(answer.status)
                self.answers.add(rounded(said["outputs"][0]["data"]))
            except (OSError, http.client.HTTPException, KeyError) as e:
                self.lost.append(e)
                return
        connection.close()

    def end(self) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()


def test_ending_under_load_loses_nothing(tmp_path: Path) -> None:
    with serving(linear(tmp_path), "--drain-s", "1") as server:
        callers = Callers(server)
        wait_for(lambda: len(callers.statuses) > 50)
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: _not_ready(server))
        before = len(callers.statuses)
        wait_for(lambda: len(callers.statuses) > before + 20)  # it goes on answering
        callers.end()  # as a balancer does that has seen it: what was asked is answered
        assert server.process.wait(WAIT) == 0
        assert callers.lost == []
        assert set(callers.statuses) == {200}
        assert server.lines()[-1]["event"] == "stopped"


def _not_ready(server: Server) -> bool:
    try:
        return server.ask("GET", "/v2/health/ready")[0] == 503
    except OSError:
        return True


def test_reloading_under_load_loses_nothing_and_a_bad_file_changes_nothing(tmp_path: Path) -> None:
    path = linear(tmp_path)
    before = rounded(expected(path)[0])
    with serving(path) as server:
        callers = Callers(server)
        wait_for(lambda: len(callers.statuses) > 20)
        assert callers.answers == {before}
        other = linear(tmp_path, "other", seed=5)
        after = rounded(expected(other)[0])
        other.replace(path)
        wait_for(lambda: any(line["event"] == "reloaded" for line in server.lines()))
        wait_for(lambda: len(callers.answers) == 2)
        path.write_bytes(b"half a file")
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: any(line["event"] == "reload failed" for line in server.lines()))
        count = len(callers.statuses)
        wait_for(lambda: len(callers.statuses) > count + 20)
        callers.end()
        assert callers.lost == []
        assert set(callers.statuses) == {200}
        assert callers.answers == {before, after}
        assert server.stop(signal.SIGINT) == 0


def test_a_file_that_changed_while_it_was_loaded_is_loaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stamp is of the time before: a file that came between loading and the first look would never be noticed."""
    monkeypatch.setattr("quantkit.deploy.serve._LOOKS", 0.01)
    file, reloaded = linear(tmp_path), Event()
    service = SimpleNamespace(
        loaded=SimpleNamespace(engine=SimpleNamespace(path=file)),
        settings=ServeSettings(),
        reload=reloaded.set,
    )
    before, handler = _stamp(file), signal.getsignal(signal.SIGHUP)
    linear(tmp_path, "other", seed=5).replace(file)
    try:
        with _Watch(service, before):
            assert reloaded.wait(WAIT)
    finally:
        signal.signal(signal.SIGHUP, handler)


def test_a_model_with_other_inputs_is_not_taken_in_its_place(tmp_path: Path) -> None:
    path = linear(tmp_path)
    with serving(path, "--no-reload") as server:
        picky(tmp_path).replace(path)
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: any(line["event"] == "reload failed" for line in server.lines()))
        (failed,) = (line for line in server.lines() if line["event"] == "reload failed")
        assert "other tensors" in failed["reason"]
        assert server.infer(X)[0] == 200


def test_what_cannot_be_served_ends_with_2_and_a_line(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"bad")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        good = str(linear(tmp_path))
        for arguments, said in (
            (["bad.onnx"], "does not load"),
            (["absent.onnx"], "There is no model"),
            ([good, "--port", port], "Cannot listen"),
            ([good, "--port", "99999"], "at most 65,535"),
            ([good, "--provider", "cdua"], "unknown"),
            ([good, "--require-token"], "set QUANTKIT_TOKEN"),
            ([good, "--share", "200%", "--shadow", good], "at most 1"),
        ):
            ways = (["quantkit.deploy.serve"], ["quantkit", "serve"])
            for command in ways if "--share" in arguments else ways[:1]:
                done = subprocess.run(
                    [sys.executable, "-m", *command, *arguments],
                    capture_output=True,
                    text=True,
                    timeout=WAIT,
                    cwd=tmp_path,
                    env={**os.environ, "PYTHONPATH": str(ROOT)},
                    check=False,
                )
                assert done.returncode == 2, done.stderr
                assert said in " ".join(done.stderr.split())
                assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(("sign", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_it_can_be_stopped_while_it_loads(tmp_path: Path, sign: signal.Signals, code: int) -> None:
    """As the first process of a container it would ignore a SIGTERM that it does not handle."""
    pipe = tmp_path / "labels.txt"
    os.mkfifo(pipe)
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "quantkit.deploy.serve",
            str(linear(tmp_path)),
            "--labels",
            str(pipe),
            "--port",
            "0",
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
    )
    with pipe.open("wb"):  # it reads its labels, for which there are none yet
        process.send_signal(sign)
        assert process.communicate(timeout=WAIT)[1] == b""
    assert process.returncode == code


def test_the_command_starts_and_ends_the_same_server(tmp_path: Path) -> None:
    """By the command line, with what quantkit.toml says; its limits hold."""
    linear(tmp_path)
    port = free_port()
    recipe = f"""
model = "linear.onnx"
[serve]
name = "mine"
port = {port}
[serve.batch]
max = 4
delay_ms = 1
[serve.limits]
body_mb = 1
drain_s = 0
"""
    (tmp_path / "quantkit.toml").write_text(recipe)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-m", "quantkit", "serve"],
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.DEVNULL,
    )
    server = Server(process=process, port=port, name="mine", log=tmp_path / "none")
    try:
        wait_for(lambda: process.poll() is not None or is_ready(server))
        assert server.infer(X)[0] == 200
        assert server.json("GET", "/v2/models/mine")[1]["parameters"]["batch"] == 4
        assert server.ask("POST", "/predict", b"x" * (2 << 20), JSON)[0] == 413
    finally:
        assert server.stop() == 0


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "uvicorn.py").write_text("raise ModuleNotFoundError('no', name='uvicorn')")
    done = subprocess.run(
        [sys.executable, "-m", "quantkit.deploy.serve", str(linear(tmp_path))],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        check=False,
    )
    assert done.returncode == 2
    assert f"{install_command('serve')} (missing: uvicorn)" in done.stderr


def test_answers_are_sent_without_delay() -> None:
    """Where a socket's protocol is not named, asyncio leaves out TCP_NODELAY, and each answer takes 40 ms more."""
    with _listening(ServeSettings(port=0)) as listener:
        assert listener.proto == socket.IPPROTO_TCP


def test_an_address_in_use_is_not_shared_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """SO_REUSEADDR would let two servers listen there; its opposite stands in as another option of this system."""
    monkeypatch.setattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_KEEPALIVE, raising=False)
    with _listening(ServeSettings(port=0)) as listener:
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR) == 0


def test_ctrl_break_ends_a_server_that_still_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "SIGBREAK", signal.SIGUSR1, raising=False)
    before = signal.getsignal(signal.SIGUSR1)
    with pytest.raises(SystemExit) as ended, _stoppable():
        signal.raise_signal(signal.SIGUSR1)
    assert ended.value.code == 0
    assert signal.getsignal(signal.SIGUSR1) is before


def test_a_server_imports_little(tmp_path: Path) -> None:
    """What an image with a server in it must hold: nothing that makes models, and no command line."""
    code = (
        "import sys; from pathlib import Path\n"
        "import quantkit.deploy.serve.app, quantkit.deploy.serve.calls, quantkit.deploy.serve, quantkit.deploy.serve.wire\n"
        "from quantkit.settings import Recipe, ServeSettings\n"
        "s = quantkit.deploy.serve.service.start_service(Path(sys.argv[1]), ServeSettings(), Recipe())\n"
        "quantkit.deploy.serve.app.make_app(quantkit.deploy.serve.calls.Calls(s))\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(linear(tmp_path))],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    loaded = set(done.stdout.split())
    assert {"uvicorn", "onnxruntime"} <= loaded
    heavy = {"onnx", "onnx_ir", "scipy", "datasets", "typer", "rich", "jinja2", "PIL", "tokenizers"}
    assert loaded & heavy == set()
