"""What fitting weights of few bits in the order of the graph is worth, and what zeros lose and save.

Each model is prepared once; every number of bits is written twice from that, with the second fit and without. Judged on samples that nothing was fitted to (CIFAR-10: all
10,000 test images, of which 128 calibrate). Models of ``../shared/models/zoo`` are judged by their outputs. Zeros: half of the weights, in rows or as 2:4, alone and with
int8 on top. Writes ``results/few_bits.json`` and ``.md`` after each model; ``--only`` keeps the figures of the others.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from measure import (
    RESULTS,
    SHARED,
    describe,
    machine,
    model_bytes,
    session,
    sqnr,
    table,
    write_results,
)
from numpy.typing import NDArray
from tasks import Sizes, Task, tasks

from quantkit import StaticSettings, prepare_static, prune, quantize_static, realize_plan
from quantkit.reduce.prune.sparse import zipped_bytes

_SIZES = Sizes(images=372, small=10_000, pairs=1200, calibration=128)
_BITS = {
    "resnet20_cifar10": (2, 3, 4),
    "mobilenet_v2": (4,),
    "efficientnet_lite0": (4,),
    "all-MiniLM-L6-v2": (4,),
    "zoo/text_direction": (4,),
    "zoo/text_recognition": (4,),
}
_ZEROS = ("resnet20_cifar10",)  # MobileNetV2 with 50 % zeros has 1.1 dB and is refused as noise
_WAYS: Mapping[str, Mapping[str, Any]] = {
    "50 % zeros": {"sparsity": 0.5},
    "2:4": {"pattern": "2:4"},
}
Report = dict[str, Any]
Array = NDArray[Any]


def zoo_task(name: str, shared: Path, folder: Path) -> Task:
    """Return a model of the zoo with its samples, judged by its outputs."""
    own = name.split("/")[1]
    script = [sys.executable, str(shared / "zoo" / "inputs.py"), str(folder), own]
    subprocess.run(script, check=True)
    parts = {}
    for part in ("calibration", "evaluation"):
        files = sorted((folder / own / part).glob("*.npz"))
        parts[part] = [dict(np.load(file)) for file in files]

    def outputs(model: Any) -> Array:
        rows = [
            np.concatenate([np.ravel(o) for o in model.run(None, f)]) for f in parts["evaluation"]
        ]
        return np.concatenate(rows)

    return Task(
        name=name,
        model=shared / "models" / "zoo" / f"{own}.onnx",
        feeds={},
        outputs=outputs,
        metrics=lambda reference, found: {"sqnr_db": sqnr(reference, found)},
        calibration=parts["calibration"],
    )


def judged(task: Task, reference: Array, path: Path) -> Report:
    """Return quality and size of a file."""
    found = task.outputs(session(path, threads=1))
    metrics: Report = dict(task.metrics(reference, found))
    if "top1" in metrics:
        metrics["kl"] = divergence(reference, found)
    return {"size": model_bytes(path) / model_bytes(task.model), "metrics": metrics}


def divergence(reference: Array, found: Array) -> float:
    """Return the mean KL divergence of two sets of logits."""
    a, b = (
        x
        - np.log(np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True))
        - x.max(1, keepdims=True)
        for x in (reference.astype(np.float64), found.astype(np.float64))
    )
    return float((np.exp(a) * (a - b)).sum(axis=1).mean())


def cpu_seconds(call: Callable[[], Any]) -> tuple[Any, float]:
    """Return what a call returns, and the CPU time of this process and its workers."""

    def spent() -> float:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(one.ru_utime + one.ru_stime for one in used)

    start = spent()
    return call(), spent() - start


def bits_rows(
    task: Task, reference: Array, folder: Path, bits: tuple[int, ...]
) -> Iterator[Report]:
    """Write each number of bits with the second fit and without, and judge them."""
    prepared = prepare_static(task.model, list(task.calibration))
    for count in bits:
        for ordered in (False, True):
            path = folder / f"{count}-{ordered}.onnx"
            without = mock.patch(
                "quantkit.pipeline.static_solving.fitted_in_order",
                side_effect=lambda _, __, start, *___: (start, ""),
            )
            settings = StaticSettings(weight_bits=count)

            def write(path: Path = path, settings: StaticSettings = settings) -> Any:
                return realize_plan(prepared, None, path, static=settings)

            if ordered:
                result, seconds = cpu_seconds(write)
            else:
                with without:
                    result, seconds = cpu_seconds(write)
            note = next((n for n in result.notes if "order of the graph" in n), "")
            row = {"bits": count, "in_order": ordered, "note": note, "cpu_seconds": seconds}
            yield row | judged(task, reference, path)


def zeros_rows(task: Task, reference: Array, folder: Path) -> Iterator[Report]:
    """Set half of the weights to zero, quantize that, and judge both."""
    data = list(task.calibration)
    int8 = folder / "int8.onnx"
    quantize_static(task.model, int8, data)
    yield {"name": "float", "zipped": zipped_bytes(task.model), "size": 1.0, "metrics": {}}
    yield {"name": "int8", "zipped": zipped_bytes(int8)} | judged(task, reference, int8)
    for name, options in _WAYS.items():
        path, quantized = folder / "zeros.onnx", folder / "zeros8.onnx"
        prune(task.model, path, data, **options)
        quantize_static(path, quantized, data)
        yield {"name": name, "zipped": zipped_bytes(path)} | judged(task, reference, path)
        yield {"name": f"{name}, int8", "zipped": zipped_bytes(quantized)} | judged(
            task, reference, quantized
        )


_TEXT = """\
`quantize_static(..., weight_bits=N)`, 128 samples calibrate (zoo: those of its script). *Before*: weights are solved for by the moments of the float model; *in order*: fitted once
more in the order of the graph, with their biases, kept if that loses less on the held-out samples (`quantkit.pipeline.static_in_order`). Judged: 372 images of ImageNet, 10,000 of
CIFAR-10, 1,200 pairs of STS-B. *Drop* in points of top-1 or of Spearman's correlation, with its 95 % interval. CPU seconds are those of solving, writing and verifying."""
_ZEROS_TEXT = """\
`prune(..., sparsity=0.5)` and `pattern="2:4"`. *Zipped* is the file in a zip archive (deflate), as a share of the plain float file. onnxruntime's time is that of the dense model."""


def _drop(metrics: Mapping[str, Any]) -> list[str]:
    key = next((k for k in ("top1", "spearman") if k in metrics), None)
    if key is None:
        return [""]
    own = [100 * metrics[f"{key}_drop{end}"] for end in ("", "_low", "_high")]
    return [f"{own[0]:.2f} [{own[1]:.2f}, {own[2]:.2f}]"]


def _figures(metrics: Mapping[str, Any]) -> list[str]:
    db = f"{metrics['sqnr_db']:.1f} dB" if "sqnr_db" in metrics else ""
    return [db, f"{metrics['kl']:.4f}" if "kl" in metrics else "", *_drop(metrics)]


def markdown(data: Mapping[str, Any]) -> str:
    """Return the report made from the JSON."""
    lines = ["# Few bits in order, and zeros", "", describe(data["machine"]), "", _TEXT, ""]
    header = ["", "bits", "", "size / float", "SQNR", "KL", "drop", "CPU s"]
    rows = [
        [
            name,
            str(r["bits"]),
            "in order" if r["in_order"] else "before",
            f"{r['size']:.1%}",
            *_figures(r["metrics"]),
            f"{r['cpu_seconds']:.0f}",
        ]
        for name, found in data["bits"].items()
        for r in found
    ]
    lines += [*table(header, rows), "", "## Zeros", "", _ZEROS_TEXT, ""]
    header = ["", "", "size / float", "zipped", "SQNR", "KL", "drop"]
    rows = [
        [
            name,
            r["name"],
            f"{r['size']:.1%}",
            f"{r['zipped'] / found[0]['bytes']:.1%}",
            *_figures(r["metrics"]),
        ]
        for name, found in data["zeros"].items()
        for r in found
    ]
    return "\n".join([*lines, *table(header, rows), ""])


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", default=tuple(_BITS), choices=tuple(_BITS))
    parser.add_argument("--part", choices=("bits", "zeros"), help="default: both")
    parser.add_argument("--shared", type=Path, default=SHARED, help="folder of models and data")
    given = parser.parse_args()
    path = RESULTS / "few_bits.json"
    data: Report = {"bits": {}, "zeros": {}}
    if path.exists():
        data = json.loads(path.read_text(encoding="utf-8"))
    data["machine"] = machine()
    for name in given.only:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            task = (
                zoo_task(name, given.shared, folder)
                if name.startswith("zoo/")
                else tasks(given.shared, _SIZES)[name]()
            )
            if task is None:
                continue
            reference = task.outputs(session(task.model, threads=1))
            if given.part != "zeros":
                data["bits"][name] = []
                for row in bits_rows(task, reference, folder, _BITS[name]):
                    data["bits"][name].append(row)
                    print(name, row, flush=True)
            if given.part != "bits" and name in _ZEROS:
                rows = list(zeros_rows(task, reference, folder))
                rows[0]["bytes"] = model_bytes(task.model)
                data["zeros"][name] = rows
                print(name, rows, flush=True)
        write_results(RESULTS, "few_bits", data, markdown(data))


if __name__ == "__main__":
    main()
