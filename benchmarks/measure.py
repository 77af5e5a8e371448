"""What several benchmarks need: latency side by side, work in a process of its own, the machine."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from quantkit import __version__

__all__ = [
    "RESULTS",
    "ROOT",
    "SHARED",
    "Timing",
    "alone",
    "describe",
    "first_line",
    "interleaved",
    "kernels",
    "latency",
    "machine",
    "model_bytes",
    "ratio",
    "session",
    "sqnr",
    "table",
    "write_results",
]

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
RESULTS = ROOT / "benchmarks" / "results"

Feeds = Mapping[str, NDArray[Any]]

_WORKER = Path(__file__).resolve().parent / "worker.py"
_FLAGS = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "amx_int8", "asimddp", "i8mm")
_PACKAGES = ("onnxruntime", "onnx", "onnx-ir", "numpy")
_DRAWS = 2000
_INT8_OPS = {
    "ConvInteger",
    "DynamicQuantizeLSTM",
    "DynamicQuantizeMatMul",
    "MatMulInteger",
    "MatMulIntegerToFloat",
    "MatMulNBits",
    "QAttention",
    "QEmbedLayerNormalization",
    "QGemm",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long to measure: `rounds` turns, fewer (but `least`) if `budget` seconds are over."""

    rounds: int = 100
    warm_up: int = 5
    least: int = 15
    budget: float = 120.0


def machine() -> dict[str, Any]:
    """Return what a reader needs to judge the numbers."""
    text = _read(Path("/proc/cpuinfo"))
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    present = set(flags.group(1).split()) if flags else set()
    memory = re.search(r"^MemTotal:\s*(\d+) kB", _read(Path("/proc/meminfo")), re.MULTILINE)
    return {
        "cpu": model.group(1) if model else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "flags": {name: name in present for name in _FLAGS},
        "memory_bytes": int(memory.group(1)) * 1024 if memory else None,
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {"quantkit": __version__} | {name: version(name) for name in _PACKAGES},
        "commit": _commit(),
        "load_average": list(os.getloadavg()),
        "time": time.strftime("%Y-%m-%d %H:%M:%S %z"),
    }


def _commit() -> str:
    """Return which quantkit was measured; ``-dirty`` if its files differ from the commit."""
    git = shutil.which("git")
    if git is None:
        return "unknown"
    command = [git, "-C", str(ROOT), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def alone(
    job: Mapping[str, Any],
    timeout: float = 7200.0,
    *,
    worker: Path = _WORKER,
    python: str = sys.executable,
) -> dict[str, Any]:
    """Do `job` (see worker.py, or the script that is given) in a fresh process.

    Returns:
        The worker's report with ``process_seconds`` added, or ``error``.
    """
    started = time.perf_counter()
    try:
        done = subprocess.run(
            [python, str(worker), json.dumps(job)],
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
            cwd=ROOT,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"stopped after {timeout:.0f} s"}
    seconds = time.perf_counter() - started
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return {"error": f"exit code {done.returncode}: {last}"}
    report: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    report["process_seconds"] = seconds
    return report


def session(model: Path | bytes, *, optimized: Path | None = None, threads: int = 0) -> Any:
    """Load a model so that it does not disturb other sessions of the process.

    A thread pool that spins while it waits takes the cores from the session measured next.

    Args:
        model: Its file, or its bytes.
        optimized: Where onnxruntime writes the graph that it runs.
        threads: How many compute; 0 is onnxruntime's own choice.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
    source = model if isinstance(model, bytes) else str(model)
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def interleaved(calls: Mapping[str, Callable[[], object]], timing: Timing) -> NDArray[np.float64]:
    """Time every call once a round, in an order drawn anew each round; seconds [round, call]."""
    generator = np.random.default_rng(0)
    work = list(calls.values())
    for _ in range(timing.warm_up):
        for call in work:
            call()
    rows: list[list[float]] = []
    end = time.perf_counter() + timing.budget
    while len(rows) < timing.rounds:
        if len(rows) >= timing.least and time.perf_counter() > end:
            break
        row = [0.0] * len(work)
        for i in generator.permutation(len(work)):
            start = time.perf_counter()
            work[i]()
            row[i] = time.perf_counter() - start
        rows.append(row)
    return np.array(rows)


def ratio(times: NDArray[np.float64], base: NDArray[np.float64]) -> dict[str, float]:
    """Return the ratio of medians with its 95 % bootstrap interval (whole rounds are redrawn)."""
    generator = np.random.default_rng(0)
    drawn = generator.integers(0, len(times), (_DRAWS, len(times)))
    ratios = np.median(times[drawn], axis=1) / np.median(base[drawn], axis=1)
    low, high = np.quantile(ratios, (0.025, 0.975))
    return {
        "ratio": float(np.median(times) / np.median(base)),
        "low": float(low),
        "high": float(high),
    }


def latency(
    sessions: Mapping[str, Any], feeds: Feeds, timing: Timing, *, base: str = "float"
) -> dict[str, dict[str, Any]]:
    """Measure all sessions in turn on the same input; ratios are to session `base`."""

    def call(model: Any) -> Callable[[], object]:
        return lambda: model.run(None, dict(feeds))

    seconds = interleaved({name: call(model) for name, model in sessions.items()}, timing)
    columns = dict(zip(sessions, seconds.T, strict=True))
    return {
        name: {
            "median_ms": 1e3 * float(np.median(column)),
            **ratio(column, columns[base]),
            "ms": [round(1e3 * t, 4) for t in column],
        }
        for name, column in columns.items()
    }


def kernels(model: Path | bytes) -> dict[str, Any]:
    """Return what onnxruntime really runs, read from the graph that it optimized.

    Returns:
        ``int8``: nodes with integer arithmetic by operator; ``decoded``: weights that are turned
        back into float at every run; ``float``: Conv, MatMul and Gemm left in float; ``all``.
    """
    with tempfile.TemporaryDirectory() as folder:
        optimized = Path(folder) / "optimized.onnx"
        session(model, optimized=optimized)
        graph = onnx.load(optimized).graph
    constants = {tensor.name for tensor in graph.initializer}
    counts = Counter(node.op_type for node in graph.node)
    decoded = Counter(
        node.op_type
        for node in graph.node
        if node.op_type in {"DequantizeLinear", "Cast"} and node.input[0] in constants
    )
    return {
        "int8": {op: n for op, n in counts.items() if op in _INT8_OPS or op.startswith("QLinear")},
        "decoded": dict(decoded),
        "float": {
            op: n
            for op, n in counts.items()
            if op in {"Conv", "FusedConv", "MatMul", "FusedMatMul", "Gemm", "FusedGemm"}
        },
        "all": dict(counts),
    }


def sqnr(reference: NDArray[Any], actual: NDArray[Any]) -> float:
    """Return the signal-to-quantization-noise ratio in dB, 200 if there is no noise."""
    signal = np.square(reference.astype(np.float64)).sum()
    noise = np.square(reference.astype(np.float64) - actual).sum()
    return float(10 * np.log10(signal / max(noise, signal * 1e-20)))


def model_bytes(model: Path) -> int:
    """Return a model's size, external data beside it included."""
    data = model.with_name(f"{model.name}.data")
    return model.stat().st_size + (data.stat().st_size if data.is_file() else 0)


def first_line(error: object) -> str:
    """Return the first line of a message, for a table."""
    return (str(error).strip().splitlines() or ["no message"])[0]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a Markdown table: the first column to the left, all others to the right."""
    rule = ["---", *("--:" for _ in header[1:])]
    return [f"| {' | '.join(row)} |" for row in (header, rule, *rows)]


def write_results(folder: Path, name: str, data: Mapping[str, Any], markdown: str) -> None:
    """Write ``name.json`` and ``name.md``, and print the latter."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(data, indent=1)
    # Lists of numbers on one line each.
    text = re.sub(r"\[[-\d.,\seE+]+\]", lambda m: re.sub(r"\s+", " ", m.group()), text)
    (folder / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")
    (folder / f"{name}.md").write_text(markdown, encoding="utf-8")
    print(f"\n{markdown}")


def describe(where: Mapping[str, Any]) -> str:
    """Return the machine in one line."""
    flags = ", ".join(name for name, present in where["flags"].items() if present) or "no flags"
    packages = ", ".join(f"{name} {number}" for name, number in where["versions"].items())
    return (
        f"{where['cpu']}, {where['cores']} cores ({flags}; "
        f"{'VNNI' if _has_vnni(where) else 'no VNNI'}); Python {where['python']}; {packages}; "
        f"commit {where['commit'] or 'unknown'}; {where['time']}, load {where['load_average'][0]:.2f} at the start."
    )


def _has_vnni(where: Mapping[str, Any]) -> bool:
    return bool(where["flags"]["avx_vnni"] or where["flags"]["avx512_vnni"])
