"""What 4 bits of a model over 2 GB take, that time grows with layers and memory does not, and that a killed run goes on.

Every quantization is a command that a user types, with data and without. The killed run is ended by SIGKILL once the first of its weights lies in ``<output>.partial``; the same
command is then given again. Several GB of temporary files are written to ``--work`` and removed. Writes ``results/scale_weights.json`` and ``results/scale_weights.md``.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from measure import RESULTS, ROOT, describe, machine, model_bytes, table, write_results
from memory_static import watch
from synthetic import big_model

_GB, _MB = 1e9, 1e6
_LAYERS, _WIDTH, _SAMPLES = 25, 5120, 64
_FEWER = (4, 12)  # layers
_MEMORY = "2GB"


def command(folder: Path, layers: int, *, data: bool) -> list[str]:
    """Write a model and samples; return what is typed to quantize it."""
    source = big_model(folder / "big.onnx", layers=layers, width=_WIDTH)
    typed = [sys.executable, "-m", "quantkit", "quantize", "weights", str(source)]
    typed += [str(folder / "q.onnx"), "--memory", _MEMORY]
    if data:
        draw = np.random.default_rng(1).standard_normal((_SAMPLES, _WIDTH))
        np.save(folder / "x.npy", draw.astype(np.float32))
        typed += ["--data", str(folder / "x.npy")]
    return typed


def measured(folder: Path, layers: int, *, data: bool) -> dict[str, Any]:
    """Quantize a model of so many layers."""
    typed = command(folder, layers, data=data)
    print(f"{layers} layers, data: {data}", flush=True)
    found = watch(typed)
    sizes = {"float": model_bytes(folder / "big.onnx"), "bytes": _written(folder)}
    return {"layers": layers, "data": data, **sizes, **found}


def _written(folder: Path) -> int:
    """Return the size of the result, its external data included."""
    return sum(file.stat().st_size for file in folder.glob("q*") if file.is_file())


def killed(folder: Path) -> dict[str, Any]:
    """Kill a run when a third of its weights are done, and start it again."""
    typed, left = command(folder, _FEWER[0], data=True), folder / "q.onnx.partial"
    started = time.perf_counter()
    run = subprocess.Popen(typed, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT)
    while len(list(left.glob("*.npz"))) < 1 and run.poll() is None:
        time.sleep(0.2)
    run.kill()
    run.wait()
    before = time.perf_counter() - started
    found = {"seconds_before": before, "done": len(list(left.glob("*.npz")))}
    found["output"] = (folder / "q.onnx").exists()
    again = watch(typed)
    return {
        **found,
        "seconds_again": again["seconds"],
        "exit": again["exit"],
        "left_over": left.exists(),
    }


def markdown(data: Mapping[str, Any]) -> str:
    """Return the report made from the JSON."""
    rows = [
        [
            str(r["layers"]),
            f"{r['float'] / _GB:.2f} GB",
            str(_SAMPLES) if r["data"] else "none",
            f"{r['seconds']:.0f} s" if not r["exit"] else r["said"],
            f"{r['cpu_seconds'] / r['layers']:.1f} s",
            f"{r['peak_bytes'] / _MB:.0f} MB",
            f"{r['bytes'] / r['float']:.1%}",
        ]
        for r in data["runs"]
    ]
    header = [
        "layers",
        "float",
        "samples",
        "time",
        "CPU time per layer",
        "peak memory",
        "size / float",
    ]
    again = data["killed"]
    ended = (
        f"Ended by SIGKILL after {again['seconds_before']:.0f} s with {again['done']} of {_FEWER[0]} weights done: "
        f"{'an output' if again['output'] else 'no output'}. The same command again: exit code {again['exit']} after {again['seconds_again']:.0f} s, "
        f"{'something' if again['left_over'] else 'nothing'} left over beside the output."
    )
    said = (
        f"`quantkit quantize weights big.onnx q.onnx --memory {_MEMORY} [--data x.npy]`: 4 bits in blocks of 32, layers of {_WIDTH} x {_WIDTH} in external data, the result "
        "verified. Memory is the largest sum of all processes, what they share counted once, and what they have read of mapped files counted too."
    )
    lines = ["# Scale of few bits", "", describe(data["machine"]), "", said, ""]
    return "\n".join([*lines, *table(header, rows), "", ended, ""])


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, help="where temporary files are written")
    given = parser.parse_args()
    data: dict[str, Any] = {"machine": machine(), "runs": []}
    with tempfile.TemporaryDirectory(dir=given.work) as temporary:
        data["killed"] = killed(Path(temporary))
    for layers, with_data in ((_FEWER[0], True), (_FEWER[1], True), (_LAYERS, False)):
        with tempfile.TemporaryDirectory(dir=given.work) as temporary:
            data["runs"].append(measured(Path(temporary), layers, data=with_data))
        write_results(RESULTS, "scale_weights", data, markdown(data))


if __name__ == "__main__":
    main()
