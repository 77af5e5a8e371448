"""A server in a process of its own, and models to serve."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from builders import graph, model, node, save, weight
from numpy.typing import NDArray
from onnx import TensorProto

ROOT = Path(__file__).parents[2]
WAIT = 30.0


@dataclass(kw_only=True)
class Server:
    """A running server."""

    process: subprocess.Popen[bytes]
    port: int
    name: str
    log: Path
    headers: dict[str, str] = field(default_factory=dict)

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, bytes]:
        """Return status and body of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT)
        try:
            connection.request(method, path, body, {**self.headers, **(headers or {})})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def json(self, method: str, path: str, **how: Any) -> tuple[int, Any]:
        """Return status and what the JSON says."""
        status, body = self.ask(method, path, **how)
        return status, json.loads(body)

    def infer(self, x: NDArray[Any], name: str = "x") -> tuple[int, Any]:
        """Ask with one array, as JSON."""
        body = infer_body(x, name)
        kind = {"Content-Type": "application/json"}
        return self.json("POST", f"/v2/models/{self.name}/infer", body=body, headers=kind)

    def lines(self) -> list[dict[str, Any]]:
        """Return what it logged."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line[:1] == "{"]

    def stop(self, sign: signal.Signals = signal.SIGTERM) -> int:
        """End it; return its exit code."""
        self.process.send_signal(sign)
        return self.process.wait(WAIT)


def infer_body(x: NDArray[Any], name: str = "x", **more: Any) -> bytes:
    """Return a request with one tensor of floats."""
    tensor = {"name": name, "datatype": "FP32", "shape": x.shape, "data": x.ravel().tolist()}
    return msgspec.json.encode({"inputs": [tensor], **more})


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        found: int = probe.getsockname()[1]
        return found


@contextmanager
def serving(path: Path, *flags: str, token: str = "", **settings: str) -> Iterator[Server]:
    """Start a server, wait until it is ready, and end it."""
    port, log = free_port(), path.with_suffix(f".{time.monotonic_ns()}.log")
    command = [sys.executable, "-m", "quantkit.deploy.serve", str(path), "--port", str(port)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **settings}
    environment |= {"QUANTKIT_TOKEN": token} if token else {}
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [*command, "--drain-s", "0", *flags], stderr=stderr, cwd=path.parent, env=environment
        )
    server = Server(process=process, port=port, name=path.stem, log=log)
    if token:
        server.headers = {"Authorization": f"Bearer {token}"}
    try:
        wait_for(lambda: process.poll() is not None or is_ready(server))
        assert process.poll() is None, log.read_text()
        yield server
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(WAIT)


def is_ready(server: Server) -> bool:
    """Say whether it wants requests."""
    try:
        return server.ask("GET", "/v2/health/ready")[0] == 200
    except OSError:
        return False


def wait_for(condition: Any) -> None:
    """Wait until something holds."""
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def linear(folder: Path, name: str = "linear", *, scale: float = 0.2, seed: int = 0) -> Path:
    """Return a model: x [batch, 8] -> logits [batch, 4]."""
    made = model(
        graph(
            [node("MatMul", ["x", "w"], ["logits"])],
            {"x": ["batch", 8]},
            {"logits": ["batch", 4]},
            {"w": weight(8, 4, seed=seed, scale=scale)},
        )
    )
    return save(made, folder / f"{name}.onnx")


def picky(folder: Path) -> Path:
    """Return a model that fails where an index is out of range: x [batch] int64 -> y [batch, 3]."""
    made = model(
        graph(
            [node("Gather", ["w", "x"], ["y"], axis=0)],
            {"x": ["batch"]},
            {"y": ["batch", 3]},
            {"w": np.arange(30, dtype=np.float32).reshape(10, 3)},
            types={"x": TensorProto.INT64},
        )
    )
    return save(made, folder / "picky.onnx")


def slow(folder: Path, size: int = 700) -> Path:
    """Return a model that takes some milliseconds: x [batch, 8] -> y [batch, 1]."""
    wide = {"a": weight(8, size), "b": weight(size, size, scale=0.01), "c": weight(size, 1)}
    middle = [node("MatMul", [f"h{i}", "b"], [f"h{i + 1}"]) for i in range(24)]
    nodes = [node("MatMul", ["x", "a"], ["h0"]), *middle, node("MatMul", ["h24", "c"], ["y"])]
    made = model(graph(nodes, {"x": ["batch", 8]}, {"y": ["batch", 1]}, wide))
    return save(made, folder / "slow.onnx")
