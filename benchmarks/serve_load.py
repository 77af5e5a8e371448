"""`quantkit serve` under load on loopback: beside the bare session, and beside FastAPI + pydantic as tutorials have it.

    python benchmarks/serve_load.py --shared ../shared                       writes benchmarks/results/serve.md

ResNet-20 in int8, made by quantkit on the spot, and any other model by `--model FILE`. Needs wrk (Debian: wrk), and fastapi
for the other server; `--mlserver FOLDER` (an environment with mlserver and onnxruntime in it) adds MLServer. Client and server share the machine, so that requests a second are those of both; CPU time is the
server's alone. Stacks take turns; the median of the rounds is shown. The ceiling is the session in as many threads as the
server has, with nothing around it; "by CPU" is its CPU time of a row over the server's of a request, which a busy machine
and the client do not change.
"""

import argparse
import asyncio
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import msgspec
import numpy as np
from PIL import Image

from quantkit import DataSettings, ImageSettings, quantize_static
from quantkit.deploy.serve.engine import Engine, load_engine

RESULTS = Path(__file__).parent / "results" / "serve.md"
WRK = shutil.which("wrk") or "wrk"
CLIENTS = (1, 8, 64)
MEGABYTE = 1 << 20
CEILING = """
import sys, time, threading, numpy as np
from pathlib import Path
from quantkit.deploy.serve.engine import load_engine
engine, rows, seconds, threads = load_engine(Path(sys.argv[1])), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
port = engine.inputs[0]
x = {port.name: np.random.default_rng(0).random((rows, *port.shape[1:])).astype(np.float32)}
done = [0] * threads
def work(i):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        engine.run(x)
        done[i] += rows
start, cpu = time.perf_counter(), time.process_time()
workers = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
[w.start() for w in workers]; [w.join() for w in workers]
print(sum(done) / (time.perf_counter() - start), (time.process_time() - cpu) / sum(done))
"""
FASTAPI = """
import sys, os
import numpy as np, onnxruntime as ort, uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
session = ort.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
port = session.get_inputs()[0]
app = FastAPI()
class Item(BaseModel):
    data: list[float]
@app.get("/v2/health/ready")
def ready(): return {}
@app.post("/predict")
def predict(item: Item):
    x = np.array(item.data, dtype=np.float32).reshape(1, *port.shape[1:])
    return {"scores": session.run(None, {port.name: x})[0].tolist()}
uvicorn.run(app, port=int(sys.argv[2]), log_level="warning", access_log=False)
"""
MLSERVER = """
import onnxruntime as ort
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse
class Onnx(MLModel):
    async def load(self):
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = ort.InferenceSession(self.settings.parameters.uri, options, providers=["CPUExecutionProvider"])
        return True
    async def predict(self, payload):
        names = [one.name for one in self.session.get_outputs()]
        found = self.session.run(names, {one.name: NumpyCodec.decode_input(one) for one in payload.inputs})
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output(*pair) for pair in zip(names, found)])
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of one run of wrk: answers a second, milliseconds, CPU milliseconds per answer, requests that got no 200."""

    rate: float
    p50: float
    p99: float
    cpu: float
    bad: int
    requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is asked: the address behind the port, headers, and the body."""

    path: str
    headers: dict[str, str]
    body: bytes

    def script(self, folder: Path) -> Path:
        """Write it for wrk."""
        data = "".join(f"\\{byte:03d}" for byte in self.body)
        heads = "".join(f'wrk.headers["{k}"] = "{v}"\n' for k, v in self.headers.items())
        file = folder / f"{abs(hash(self.body))}.lua"
        file.write_text(f'wrk.method = "POST"\n{heads}wrk.body = "{data}"\n')
        return file

    def raw(self) -> bytes:
        """Return it as bytes on the wire."""
        heads = "".join(f"{k}: {v}\r\n" for k, v in self.headers.items())
        start = f"POST {self.path} HTTP/1.1\r\nHost: h\r\n{heads}Content-Length: {len(self.body)}"
        return f"{start}\r\n\r\n".encode() + self.body


def loads(engine: Engine, name: str) -> dict[str, Load]:
    """Return the same row as binary tensor, as JSON of the protocol, and as FastAPI's server takes it."""
    port = engine.inputs[0]
    x = np.random.default_rng(0).random((1, *(n or 1 for n in port.shape[1:]))).astype(np.float32)
    tensor = {"name": port.name, "datatype": "FP32", "shape": x.shape}
    sized = {**tensor, "parameters": {"binary_data_size": x.nbytes}}
    head = msgspec.json.encode({"inputs": [sized], "parameters": {"binary_data_output": True}})
    values = x.ravel().tolist()
    plain = {"Content-Type": "application/json"}
    binary = {
        "Content-Type": "application/octet-stream",
        "Inference-Header-Content-Length": str(len(head)),
    }
    infer = f"/v2/models/{name}/infer"
    body = msgspec.json.encode({"inputs": [{**tensor, "data": values}]})
    return {
        "binary": Load(path=infer, headers=binary, body=head + x.tobytes()),
        "json": Load(path=infer, headers=plain, body=body),
        "fastapi": Load(path="/predict", headers=plain, body=msgspec.json.encode({"data": values})),
    }


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        found: int = probe.getsockname()[1]
        return found


@contextmanager
def running(command: list[str], port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Start a server and wait until it is ready."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            try:
                with urlopen(f"http://127.0.0.1:{port}/v2/health/ready"):
                    break
            except (URLError, OSError):
                time.sleep(0.05)
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(30)


def serve(model: Path, port: int, *flags: str) -> list[str]:
    """Return the command of the server."""
    start = [sys.executable, "-m", "quantkit.deploy.serve", str(model), "--port", str(port)]
    return [*start, "--log-level", "quiet", "--drain-s", "2", *flags]


def mlserver(model: Path, port: int, environment: Path, folder: Path) -> list[str]:
    """Return the command of MLServer, in one process: its workers do not start with the uvloop that it installs."""
    (folder / "runtime.py").write_text(MLSERVER)
    about = {
        "name": model.stem,
        "implementation": "runtime.Onnx",
        "parameters": {"uri": str(model.resolve())},
    }
    (folder / "model-settings.json").write_bytes(msgspec.json.encode(about))
    ports = {"http_port": port, "grpc_port": free_port(), "metrics_port": free_port()}
    rules = {**ports, "host": "127.0.0.1", "parallel_workers": 0, "debug": False}
    (folder / "settings.json").write_bytes(msgspec.json.encode(rules))
    return [str(environment / "bin" / "mlserver"), "start", str(folder)]


def cpu_of(pid: int) -> float:
    """Return the CPU seconds of a process."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def memory_of(pid: int) -> float:
    """Return the resident memory of a process in MB."""
    words = Path(f"/proc/{pid}/statm").read_text().split()
    return int(words[1]) * os.sysconf("SC_PAGE_SIZE") / MEGABYTE


def wrk(load: Load, port: int, pid: int, clients: int, seconds: float) -> Figures:
    """Ask for some seconds."""
    with tempfile.TemporaryDirectory() as folder:
        before = cpu_of(pid)
        command = [WRK, "-t1", f"-c{clients}", f"-d{seconds:g}s", "--latency", "--timeout", "20s"]
        script = load.script(Path(folder))
        done = subprocess.run(
            [*command, "-s", str(script), f"http://127.0.0.1:{port}{load.path}"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        used = cpu_of(pid) - before
    requests = int(re.findall(r"(\d+) requests in", done)[0])
    bad = int((re.findall(r"Non-2xx or 3xx responses: (\d+)", done) or ["0"])[0])
    bad += sum(map(int, re.findall(r"connect (\d+), read (\d+), write (\d+)", done)[0])) if "Socket" in done else 0  # fmt: skip
    answered = max(0, requests - bad)  # who is sent away costs little, and is no answer
    return Figures(
        rate=float(re.findall(r"Requests/sec:\s+([\d.]+)", done)[0]) * answered / max(1, requests),
        p50=milliseconds(done, "50%"),
        p99=milliseconds(done, "99%"),
        cpu=1000 * used / max(1, answered),
        bad=bad,
        requests=requests,
    )


def milliseconds(text: str, line: str) -> float:
    """Read a line of wrk's latencies."""
    number, unit = re.findall(rf"{line}\s+([\d.]+)(us|ms|s)", text)[0]
    return float(number) * {"us": 1e-3, "ms": 1.0, "s": 1e3}[unit]


def ceiling(model: Path, rows: int, seconds: float, threads: int) -> tuple[float, float]:
    """Return rows a second and CPU milliseconds a row of the bare session."""
    command = [sys.executable, "-c", CEILING, str(model), str(rows), str(seconds), str(threads)]
    words = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return float(words[0]), 1000 * float(words[1])


def compare(model: Path, chosen: argparse.Namespace, threads: int, folder: Path) -> list[str]:
    """Return the table of a model: all stacks at all numbers of clients, in turns."""
    rounds, seconds = chosen.rounds, chosen.seconds
    made = loads(load_engine(model), model.stem)
    port = free_port()
    stacks = {
        "quantkit serve, binary": (serve(model, port), "binary"),
        "quantkit serve, binary, batch 8": (serve(model, port, "--batch", "8"), "binary"),
        "quantkit serve, JSON": (serve(model, port), "json"),
        "FastAPI + pydantic, JSON": (
            [sys.executable, "-c", FASTAPI, str(model), str(port)],
            "fastapi",
        ),
    }
    if chosen.mlserver:
        stacks["MLServer, JSON"] = (mlserver(model, port, chosen.mlserver, folder), "json")
    bare: dict[int, list[tuple[float, float]]] = {1: [], 8: []}
    found: dict[tuple[str, int], list[Figures]] = {}
    for _ in range(rounds):
        for rows, figures in bare.items():
            figures.append(ceiling(model, rows, seconds, threads))
        for name, (command, kind) in stacks.items():
            with running(command, port) as process:
                wrk(made[kind], port, process.pid, 8, 1)
                for clients in CLIENTS:
                    one = wrk(made[kind], port, process.pid, clients, seconds)
                    found.setdefault((name, clients), []).append(one)
                    print(model.stem, name, clients, one, flush=True)
    return table(model, bare, found)


def table(
    model: Path,
    bare: dict[int, list[tuple[float, float]]],
    found: dict[tuple[str, int], list[Figures]],
) -> list[str]:
    """Return the lines of a model's table."""
    rates = {rows: statistics.median(r for r, _ in figures) for rows, figures in bare.items()}
    costs = {rows: statistics.median(c for _, c in figures) for rows, figures in bare.items()}
    lines = [
        f"## {model.stem}",
        "",
        "| stack | clients | answers/s | of the ceiling | p50 ms | p99 ms | CPU ms/answer | above the bare run | ceiling by CPU | not 200 |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| bare session, {rows} row{'s' * (rows > 1)} a run | - | {rates[rows]:.0f} | 1 | - | - | {costs[rows]:.3f} | 0 | 1 | - |"
        for rows in bare
    ]
    for (name, clients), figures in found.items():
        rate, p50, p99, cpu = (
            statistics.median(getattr(one, key) for one in figures)
            for key in ("rate", "p50", "p99", "cpu")
        )
        rows = 8 if "batch" in name else 1
        lines.append(
            f"| {name} | {clients} | {rate:.0f} | {rate / rates[rows]:.2f} | {p50:.2f} | {p99:.2f} | {cpu:.3f} "
            f"| {cpu - costs[rows]:.3f} | {costs[rows] / cpu:.2f} | {sum(one.bad for one in figures)} |"
        )
    return [*lines, ""]


def memory(model: Path, load: Load, wanted: int) -> list[str]:
    """Return what a server holds before and after many requests."""
    port, done = free_port(), 0
    with running(serve(model, port, "--batch", "8"), port) as process:
        wrk(load, port, process.pid, 16, 3)
        before = memory_of(process.pid)
        start = time.perf_counter()
        while done < wanted:
            done += wrk(load, port, process.pid, 16, 15).requests
        after, seconds = memory_of(process.pid), time.perf_counter() - start
    return [
        f"- **Memory**: {before:.1f} MB after the first seconds, {after:.1f} MB after {done:,} more requests ({seconds:.0f} s)."
    ]


def overload(model: Path, load: Load) -> list[str]:
    """Return what becomes of more callers than can be answered, and of callers that are killed."""
    port = free_port()
    with running(serve(model, port, "--queue-s", "0.05"), port) as process:
        one = wrk(load, port, process.pid, 512, 5)
        lines = []
        lines.append(
            f"- **Overload**: 512 callers without a pause, `--queue-s 0.05`: {one.requests - one.bad} of {one.requests} answered, "
            f"{one.bad} sent away with 503, 99 % of all within {one.p99:.0f} ms; memory {memory_of(process.pid):.0f} MB."
        )
        with tempfile.TemporaryDirectory() as folder:
            script = load.script(Path(folder))
            address = f"http://127.0.0.1:{port}{load.path}"
            client = subprocess.Popen(
                [WRK, "-t1", "-c256", "-d30s", "-s", str(script), address],
                stdout=subprocess.DEVNULL,
            )
            time.sleep(2)
            client.kill()
            client.wait()
        time.sleep(0.5)
        start = time.perf_counter()
        with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            text = answer.read().decode()
        waiting = re.findall(r"quantkit_waiting_requests ([\d.]+)", text)[0]
        took = 1000 * (time.perf_counter() - start)
        after = wrk(load, port, process.pid, 8, 2)
        lines.append(
            f"- **kill -9 of a client** with 256 connections: half a second later {float(waiting):.0f} requests wait, /metrics "
            f"answers in {took:.0f} ms, and the next callers get {after.rate:.0f} answers a second ({after.bad} bad)."
        )
    return lines


@dataclass(slots=True)
class Callers:
    """Callers that keep their connections, and look at readiness as a balancer does."""

    port: int
    request: bytes
    answered: int = 0
    bad: int = 0
    lost: int = 0
    turned: bool = False

    async def ask(self) -> None:
        """Ask until it is not ready any more."""
        while not self.turned:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:
                return
            try:
                while not self.turned:
                    writer.write(self.request)
                    head = (await reader.readuntil(b"\r\n\r\n")).lower()
                    await reader.readexactly(int(head.split(b"\r\ncontent-length: ")[1].split()[0]))
                    self.answered += 1
                    self.bad += not head.startswith(b"http/1.1 200")
                    if b"connection: close" in head:
                        break
            except (OSError, asyncio.IncompleteReadError):
                self.lost += 1
            writer.close()

    async def watch(self) -> None:
        """Look at readiness twice a second."""
        probe = b"GET /v2/health/ready HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
        while not self.turned:
            await asyncio.sleep(0.5)
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(probe)
            self.turned = not (await reader.readline()).startswith(b"HTTP/1.1 200")
            writer.close()

    async def run(self, process: subprocess.Popen[bytes], model: Path) -> None:
        """Ask with 32 connections; change the model's file five times; then send SIGTERM."""
        tasks = [asyncio.create_task(self.ask()) for _ in range(32)]
        for _ in range(5):
            await asyncio.sleep(2.5)
            await asyncio.to_thread(rewritten, model)
        process.send_signal(signal.SIGTERM)
        await self.watch()
        await asyncio.gather(*tasks)


def rewritten(model: Path) -> None:
    """Put a copy in a file's place, as deployments do."""
    part = model.with_suffix(".part")
    part.write_bytes(model.read_bytes())
    part.replace(model)


def stopping(model: Path, load: Load) -> list[str]:
    """Return what reloads and SIGTERM under load lose."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / model.name
        shutil.copy(model, copy)
        with running(serve(copy, port), port) as process:
            callers = Callers(port, load.raw())
            asyncio.run(callers.run(process, copy))
            code = process.wait(30)
    said = (
        f"- **Five reloads, then SIGTERM, under load** of 32 callers that keep their connections and watch readiness every 0.5 s: "
        f"{callers.answered} answers, {callers.bad} not 200, {callers.lost} lost; exit code {code}."
    )
    return [said]


def resnet(shared: Path, folder: Path) -> Path:
    """Make ResNet-20 in int8."""
    rows = np.asarray(Image.open(shared / "data" / "cifar10" / "test.png")).reshape(-1, 32, 32, 3)
    images = folder / "images"
    images.mkdir()
    for number, pixels in enumerate(rows[:128]):
        Image.fromarray(pixels).save(images / f"{number}.png")
    image = ImageSettings(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    output = folder / "resnet20_int8.onnx"
    source = shared / "models" / "resnet20_cifar10.onnx"
    quantize_static(source, output, images, settings=DataSettings(image=image))
    return output


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--model", type=Path, action="append", default=[])
    parser.add_argument("--mlserver", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--requests", type=int, default=100_000)
    chosen = parser.parse_args()
    threads = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        model = resnet(chosen.shared, Path(folder))
        binary = loads(load_engine(model), model.stem)["binary"]
        lines = ["# quantkit serve under load", ""]
        busy = f"load average {os.getloadavg()[0]:.1f} before the run began"
        lines += [f"`benchmarks/serve_load.py`, {threads} cores, {busy}.", ""]
        for one in (model, *chosen.model):
            lines += compare(one, chosen, threads, Path(folder))
        lines += ["## What must not happen", "", *stopping(model, binary), *overload(model, binary)]
        lines += memory(model, binary, chosen.requests)
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
