"""What 4 bits of a model over 2 GB take, that time grows with layers and memory does not, and that a killed run goes on.

Every quantization runs in a process of its own, with data (64 rows per layer wide are too few to gain by, and cost as much as any) and without. The killed run is ended by
SIGKILL once a third of its weights lie in ``<output>.partial``; the same call is then made again. Several GB of temporary files are written to
``--work`` and removed. Writes ``results/scale_weights.json`` and ``results/scale_weights.md``.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from measure import RESULTS, ROOT, alone, describe, machine, model_bytes, table, write_results
from synthetic import big_model

_GB, _MB = 1e9, 1e6
_LAYERS, _WIDTH, _ROWS = 25, 5120, 64
_FEW = (4, 8, 16)  # layers
_MEMORY = "2GB"
_WORKER = Path(__file__)


def work(job: Mapping[str, Any]) -> None:
    """Quantize as told, and report time and memory: a process of its own."""
    import quantkit

    watch = _Memory()
    watch.start()
    rows = job.get("rows")
    data = None
    if rows:
        data = [{"x": row[np.newaxis]} for row in _samples(rows, job["width"])]
    started, cpu = time.perf_counter(), time.process_time()
    result = quantkit.quantize_weights(job["source"], job["target"], data, memory=job["memory"])
    checked = result.verification
    print(
        json.dumps(
            {
                "seconds": time.perf_counter() - started,
                "cpu_seconds": time.process_time() - cpu,
                "peak_bytes": watch.peak,
                "sqnr": None if checked is None else checked.figures(),
            }
        )
    )


class _Memory(threading.Thread):
    """Watches what this process and those it forks hold, pages that they share counted once."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0

    def run(self) -> None:
        """Look twice a second: to count pages takes time."""
        own = os.getpid()
        while True:
            held = sum(_held(pid) for pid in (own, *_children(own)))
            self.peak = max(self.peak, held)
            time.sleep(0.5)


def _children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in found for child in _text(file).split()]


def _held(pid: int) -> int:
    found = re.search(r"^Pss:\s+(\d+) kB", _text(Path(f"/proc/{pid}/smaps_rollup")), re.MULTILINE)
    return int(found.group(1)) * 1024 if found else 0


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError:  # it has ended
        return ""


def _samples(rows: int, width: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((rows, width)).astype(np.float32)


def measured(folder: Path, layers: int, rows: int) -> dict[str, Any]:
    """Quantize a model of so many layers."""
    source = big_model(folder / "big.onnx", layers=layers, width=_WIDTH)
    job = {
        "source": str(source),
        "target": str(folder / "q.onnx"),
        "rows": rows,
        "width": _WIDTH,
        "memory": _MEMORY,
    }
    print(f"{layers} layers, {rows} samples", flush=True)
    found = alone(job, worker=_WORKER)
    return {
        "layers": layers,
        "rows": rows,
        "float": model_bytes(source),
        "bytes": model_bytes(folder / "q.onnx") if "error" not in found else None,
        **found,
    }


def killed(folder: Path) -> dict[str, Any]:
    """Kill a run when a third of its weights are done, and start it again."""
    source = big_model(folder / "big.onnx", layers=_LAYERS, width=_WIDTH)
    target = folder / "q.onnx"
    np.save(folder / "x.npy", _samples(_ROWS, _WIDTH))
    command = [sys.executable, "-m", "quantkit", "quantize", "weights", str(source), str(target)]
    command += ["--data", str(folder / "x.npy"), "--memory", _MEMORY]
    started = time.perf_counter()
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT)
    left = folder / "q.onnx.partial"
    while len(list(left.glob("*.npz"))) < _LAYERS // 3 and run.poll() is None:
        time.sleep(0.2)
    run.send_signal(signal.SIGKILL)
    run.wait()
    lost, done = time.perf_counter() - started, len(list(left.glob("*.npz")))
    started = time.perf_counter()
    again = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    return {
        "seconds_before": lost,
        "weights_done": done,
        "output_was_there": False if run.returncode != 0 else target.exists(),
        "seconds_again": time.perf_counter() - started,
        "exit_code": again.returncode,
        "last_line": (again.stdout.strip().splitlines() or [""])[-1],
        "left_over": left.exists(),
    }


def markdown(data: Mapping[str, Any]) -> str:
    """Return the report made from the JSON."""
    rows = [
        (
            str(r["layers"]),
            f"{r['float'] / _GB:.2f} GB",
            "none" if not r["rows"] else str(r["rows"]),
            r.get("error") or f"{r['seconds']:.0f} s",
            "" if "error" in r else f"{r['seconds'] / r['layers']:.2f} s",
            "" if "error" in r else f"{r['peak_bytes'] / _MB:.0f} MB",
            "" if not r.get("bytes") else f"{r['bytes'] / r['float']:.1%}",
        )
        for r in data["runs"]
    ]
    heads = ("layers", "float", "samples", "time", "per layer", "peak memory", "size / float")
    return "\n".join(
        [
            "# Scale of few bits",
            "",
            describe(data["machine"]),
            "",
            f'`quantize_weights(..., memory="{_MEMORY}")` to 4 bits in blocks of 32: layers of {_WIDTH} x {_WIDTH} with external data, verified.',
            "",
            *table(heads, rows),
            "",
            _killed_text(data["killed"]),
            "",
        ]
    )


def _killed_text(again: Mapping[str, Any]) -> str:
    before = f"Killed by SIGKILL after {again['seconds_before']:.0f} s with {again['weights_done']} of {_LAYERS} weights done: no output."
    after = f"exit code {again['exit_code']} after {again['seconds_again']:.0f} s, nothing left over beside the output."
    return f"{before} The same command again: {after}"


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, help="where temporary files are written")
    given = parser.parse_args()
    data: dict[str, Any] = {"machine": machine(), "runs": []}
    with tempfile.TemporaryDirectory(dir=given.work) as temporary:
        for layers, rows in (*((n, _ROWS) for n in (*_FEW, _LAYERS)), (_LAYERS, 0)):
            data["runs"].append(measured(Path(temporary), layers, rows))
        data["killed"] = killed(Path(temporary))
    write_results(RESULTS, "scale_weights", data, markdown(data))


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1].startswith("{"):
        work(json.loads(sys.argv[1]))
    else:
        main()
