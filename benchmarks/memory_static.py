"""What static quantization takes: the peak of all its processes together, wall time and CPU time.

    memory_static.py [--only NAME ...] [--memory 1GB] [--work DIR]
    memory_static.py --watch COMMAND ...        the same figures of any command

The peak is the largest sum of the processes' proportional set sizes (PSS: shared pages count once), sampled while they
run. Writes ``results/memory_static.json`` and ``results/memory_static.md``.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from measure import RESULTS, SHARED, describe, machine, model_bytes, table, write_results
from synthetic import big_model, long_graph, resnet50

_MB = 1e6
_SECONDS = 0.2  # between two looks: to count the pages of large processes takes time
_IMAGES = 125
_ROWS, _SAMPLES = 4, 4
_NORMALIZED = ["--preset", "imagenet"]


def watch(command: Sequence[str]) -> dict[str, Any]:
    """Run a command; return its exit code, seconds, CPU seconds and the peak memory of its process tree."""
    started, before = time.perf_counter(), os.times()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    peak, processes = 0, 1
    while process.poll() is None:
        tree = _tree(process.pid)
        now = sum(map(_pss, tree))
        if now > peak:
            peak, processes = now, len(tree)
        time.sleep(_SECONDS)
    after = os.times()
    assert process.stderr is not None  # noqa: S101 - it was asked for
    said = process.stderr.read().decode(errors="replace").strip().splitlines()
    cpu = after.children_user + after.children_system
    return {
        "exit": process.returncode,
        "seconds": time.perf_counter() - started,
        "cpu_seconds": cpu - before.children_user - before.children_system,
        "peak_bytes": peak,
        "processes": processes,
        "said": said[-1] if process.returncode and said else "",
    }


def _tree(root: int) -> list[int]:
    """Return a process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has just ended
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                children.setdefault(int(parent), []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def _pss(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def _rows(folder: Path, width: int) -> Path:
    """Write samples of a few rows."""
    generator = np.random.default_rng(0)
    samples = folder / "rows"
    samples.mkdir()
    for i in range(_SAMPLES):
        array = generator.standard_normal((_ROWS, width)).astype(np.float32)
        np.savez(samples / f"{i}.npz", x=array)
    return samples


def _images(folder: Path) -> Path:
    images = folder / "images"
    images.mkdir()
    for file in sorted((SHARED / "data" / "imagenet500").glob("*.jpg"))[:_IMAGES]:
        (images / file.name).symlink_to(file)
    return images


def _case(name: str, folder: Path) -> tuple[Path, list[str]]:
    """Return a model and the flags that give it data."""
    models = SHARED / "models"
    if name == "resnet50":
        return resnet50(folder / "model.onnx"), ["--data", str(_images(folder)), *_NORMALIZED]
    if name == "efficientnet_lite0":
        flags = ["--data", str(_images(folder)), "--preset", "symmetric"]
        return models / "efficientnet_lite0.onnx", flags
    if name == "encoder":
        data = SHARED / "data" / "sts" / "calibration.csv"
        return models / "all-MiniLM-L6-v2" / "model.onnx", ["--data", str(data)]
    if name == "big":
        return big_model(folder / "model.onnx"), ["--data", str(_rows(folder, 5120))]
    nodes = int(name.removeprefix("nodes"))
    flags = ["--data", str(_rows(folder, 64)), "--no-verify"]
    return long_graph(folder / "model.onnx", nodes), flags


def measure(work: Path | None, names: Sequence[str], memory: str | None) -> dict[str, Any]:
    """Quantize each model in a process of its own."""
    found: dict[str, Any] = {}
    for name in names:
        print(name, flush=True)
        with tempfile.TemporaryDirectory(dir=work) as temporary:
            folder = Path(temporary)
            model, flags = _case(name, folder)
            limit = ["--memory", memory] if memory else []
            command = [sys.executable, "-c", "from quantkit.cli import main; main()"]
            command += ["quantize", "static", str(model), str(folder / "result.onnx")]
            found[name] = watch([*command, *flags, *limit])
            found[name]["float_bytes"] = model_bytes(model)
            print(found[name], flush=True)
    return found


def markdown(data: Mapping[str, Any]) -> str:
    """Return the report made from the JSON."""
    limit = f" with --memory {data['memory']}" if data["memory"] else ""
    lines = [f"# Memory of static quantization{limit}", "", describe(data["machine"]), ""]
    rows = [
        [
            name,
            f"{run['float_bytes'] / _MB:.0f} MB",
            run["said"] or f"{run['peak_bytes'] / _MB:.0f} MB",
            f"{run['seconds']:.0f} s",
            f"{run['cpu_seconds']:.0f} s",
        ]
        for name, run in data["runs"].items()
    ]
    header = ["model", "float file", "peak of all processes", "wall time", "CPU time"]
    return "\n".join([*lines, *table(header, rows)]) + "\n"


def main() -> None:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--watch", nargs=argparse.REMAINDER, help="measure this command instead")
    parser.add_argument("--only", nargs="*", default=list(_CASES), metavar="NAME")
    parser.add_argument("--memory", help="the limit to give to quantkit")
    parser.add_argument("--work", type=Path, help="folder for temporary files")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.watch:
        print(watch(arguments.watch))
        return
    where = machine()
    found = measure(arguments.work, arguments.only, arguments.memory)
    data = {"machine": where, "memory": arguments.memory, "runs": found}
    name = "memory_static_limited" if arguments.memory else "memory_static"
    write_results(arguments.out, name, data, markdown(data))


_CASES = ("resnet50", "efficientnet_lite0", "encoder", "nodes20000", "big")


if __name__ == "__main__":
    main()
