"""What static quantization takes for a model over 2 GB and for graphs of many nodes.

Every quantization runs in a process of its own, on made-up samples; the time of each stage is taken apart, because
loading a graph of many thousand nodes takes onnxruntime longer than linear. Writes ``results/scale_static.json`` and
``results/scale_static.md``.
"""

import argparse
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from measure import RESULTS, alone, describe, machine, model_bytes, table, write_results
from synthetic import big_model, long_graph
from worker import answer

_MB = 1e6
_NODES = (5000, 10000, 20000)
_SAMPLES = 4
# Stages that run nothing in onnxruntime when the result is not verified.
_OWN = ("Reading the model", "Simplifying", "Planning", "Rounding", "Writing and verifying")

_TEXT = (
    f"{_SAMPLES} samples of 4 rows. *own* is what runs without onnxruntime: reading, simplifying, planning, rounding, "
    "writing. The rest is onnxruntime loading and running the float model with thousands of outputs. Memory is the "
    "peak of the process that was called; observing forks others."
)


class _Stopwatch:
    """A monitor that adds up the seconds of each stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._name = "Starting"
        self._since = time.perf_counter()

    def stage(self, text: str) -> None:
        """Count what has passed for the stage before."""
        now = time.perf_counter()
        name = "Rounding" if self._name.startswith("Rounding") else self._name
        self.seconds[name] = self.seconds.get(name, 0) + now - self._since
        self._name, self._since = text, now

    def step(self, number: int, of: int, text: str) -> None:  # noqa: ARG002 - a monitor
        """Take it for a stage."""
        self.stage(text)

    def name(self, text: str) -> None:
        """Take it for a stage."""
        self.stage(text)

    def data_found(self, found: object) -> None:
        """Nothing."""

    def start(self, count: int | None, what: str = "samples") -> None:
        """Nothing."""

    def chosen(self, used: int | None, of: int | None) -> None:
        """Nothing."""

    def resumed(self, samples: int) -> None:
        """Nothing."""

    def tick(self, samples: int) -> None:
        """Nothing."""


def quantize_static(job: dict[str, Any]) -> dict[str, Any]:
    """Quantize ``source``, whose input is rows of ``width`` values."""
    from quantkit.api.quantize import Task, quantize
    from quantkit.settings import StaticSettings

    generator = np.random.default_rng(0)
    samples = [
        {"x": generator.standard_normal((4, job["width"])).astype(np.float32)}
        for _ in range(_SAMPLES)
    ]
    watch = _Stopwatch()
    start = time.perf_counter()
    result = quantize(
        Task(source=job["source"], data=samples, how=StaticSettings()),
        job["target"],
        verify=job["verify"],
        monitor=watch,
    )
    watch.stage("")
    own = sum(watch.seconds.get(name, 0) for name in _OWN)
    counts = result.plan.counts()["MatMul"]
    return {
        "seconds": time.perf_counter() - start,
        "own_seconds": own,
        "stages": watch.seconds,
        "integer": sum(n for mode, n in counts.items() if mode.value == "static"),
        "bytes": result.output_bytes,
    }


def _measured(source: Path, width: int, *, verify: bool) -> dict[str, Any]:
    target = source.with_name("result.onnx")
    job = {"do": "static", "source": str(source), "target": str(target), "width": width}
    found = alone({**job, "verify": verify}, worker=Path(__file__))
    for path in source.parent.glob("result.onnx*"):
        path.unlink()
    return found


def measure(work: Path | None, nodes: list[int], *, big: bool) -> dict[str, Any]:
    """Quantize the graphs and the large model."""
    found: dict[str, Any] = {"long": {}, "big": None}
    with tempfile.TemporaryDirectory(dir=work) as temporary:
        folder = Path(temporary)
        for count in nodes:
            print(f"{count} nodes", flush=True)
            source = long_graph(folder / f"{count}.onnx", count)
            found["long"][str(count)] = _measured(source, 64, verify=False)
            source.unlink()
        if big:
            print("large model", flush=True)
            source = big_model(folder / "big.onnx")
            found["big"] = _measured(source, 5120, verify=True)
            found["big"]["float_bytes"] = model_bytes(source)
    return found


def markdown(data: Mapping[str, Any]) -> str:
    """Return the report made from the JSON."""
    lines = ["# Scale of static quantization", "", describe(data["machine"]), ""]
    lines += [_TEXT, ""]
    rows, before = [], None
    for count, run in data["long"].items():
        if "error" in run:
            rows.append([f"{int(count):,}", run["error"], "", "", "", ""])
            continue
        times = f"{run['own_seconds'] / before:.2f}" if before else ""
        before = run["own_seconds"]
        rows.append(
            [
                f"{int(count):,}",
                f"{run['seconds']:.1f} s",
                f"{run['own_seconds']:.1f} s",
                times,
                f"{run['integer']:,}",
                f"{run['peak_bytes'] / _MB:.0f} MB",
            ]
        )
    header = ["nodes", "call", "own", "times the row above", "products in integers", "peak memory"]
    lines += table(header, rows)
    big = data["big"]
    if big and "error" not in big:
        took = f"{big['seconds']:.0f} s, peak {big['peak_bytes'] / _MB:.0f} MB"
        made = f"{big['integer']} of 25 products in integers, result {big['bytes'] / 1e9:.2f} GB"
        size = f"{big['float_bytes'] / 1e9:.1f} GB"
        lines += ["", f"A model of {size} with external data: {took}, {made}."]
    elif big:
        lines += ["", f"A model of 2.6 GB: {big['error']}"]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, help="folder for temporary files")
    parser.add_argument("--nodes", type=int, nargs="*", default=list(_NODES))
    parser.add_argument("--no-big", action="store_true", help="leave out the model of 2.6 GB")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    where = machine()
    found = measure(arguments.work, arguments.nodes, big=not arguments.no_big)
    data = {"machine": where, **found}
    write_results(arguments.out, "scale_static", data, markdown(data))


if __name__ == "__main__":
    import sys

    if len(sys.argv) > 1 and sys.argv[1].startswith("{"):
        answer({"static": quantize_static})
    else:
        main()
