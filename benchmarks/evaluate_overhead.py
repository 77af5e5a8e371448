"""What an evaluation costs beside the runs that it needs: ResNet-20 and four candidates on CIFAR-10.

A plain loop reads the same samples and runs the same sessions, and keeps nothing. Each is measured in a
fresh process, in turns. Peak memory is Linux's VmHWM, at 1,000 and at 10,000 images. Writes
``results/evaluate_overhead.json`` and ``results/evaluate_overhead.md``. Started with a job in JSON it is the process
of one measurement.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from measure import RESULTS, SHARED, alone, describe, machine, table, write_results
from worker import peak_bytes

_PIXELS = 32
_MEAN = np.array([0.485, 0.456, 0.406], np.float32)
_STD = np.array([0.229, 0.224, 0.225], np.float32)
_CALIBRATION = 64
_METHOD = (
    "ResNet-20 and four candidates, one image at a time; median of {rounds} processes each, in turns. *Plain* reads "
    "the same images and runs the same sessions, and keeps nothing; *evaluate* also takes metrics, flips, drift, "
    "slices and their intervals. Both include loading the models. Memory is the peak of the process."
)


class Cifar:
    """The test images of CIFAR-10 as a sequence of feeds; what is in memory does not depend on how many are used."""

    def __init__(self, folder: Path, count: int) -> None:
        from PIL import Image

        with Image.open(folder / "test.png") as file:
            self._pixels = np.asarray(file).reshape(-1, _PIXELS, _PIXELS, 3)
        self._labels = json.loads((folder / "test_labels.json").read_text(encoding="utf-8"))
        self._count = min(count, len(self._labels))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, Any]:
        pixels = self._pixels[index].astype(np.float32)
        image = (pixels / np.float32(255) - _MEAN) / _STD
        return {
            "input": np.ascontiguousarray(image.transpose(2, 0, 1))[None],
            "label": self._labels[index],
        }


def work(job: dict[str, Any]) -> dict[str, Any]:
    """Do one measurement; everything is imported before the clock starts."""
    from quantkit.calibration.monitor import Silent
    from quantkit.evaluate.accuracy import AccuracyOptions, NamedModel, measure_outputs
    from quantkit.settings import DataSettings

    models = [NamedModel(name=Path(path).stem, path=Path(path)) for path in job["models"]]
    data = Cifar(Path(job["data"]), job["images"])
    started, used = time.perf_counter(), time.process_time()
    if job["do"] == "plain":
        plain(models, data)
    else:
        measure_outputs(models, data, DataSettings(), AccuracyOptions(), Silent())
    return {
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - used,
        "peak_bytes": peak_bytes(),
    }


def plain(models: Sequence[Any], data: Cifar) -> None:
    """Read every sample as an evaluation does, run every model on it, and keep nothing."""
    from quantkit.calibration.model_inputs import inputs_of
    from quantkit.data import open_data
    from quantkit.model.graph.load import load
    from quantkit.runtime.session import make_session

    sessions = [make_session(str(model.path)) for model in models]
    samples: Any = open_data(data, inputs_of(load(models[0].path)))
    for index in range(len(samples)):
        feeds = dict(samples[index].feeds)
        for session in sessions:
            session.run(None, feeds)


def candidates(model: Path, data: Cifar, folder: Path) -> list[Path]:
    """Write four candidates; return them after the float model."""
    import quantkit

    some = [{"input": data[i]["input"]} for i in range(_CALIBRATION)]
    files = [folder / f"{name}.onnx" for name in ("uint8", "int8", "qdq", "qoperator")]
    quantkit.quantize_dynamic(model, files[0])
    quantkit.quantize_dynamic(model, files[1], quantkit.QInt8)
    quantkit.quantize_static(model, files[2], some)
    quantkit.quantize_static(model, files[3], some, quant_format="qoperator")
    return [model, *files]


def measured(models: Sequence[Path], data: Path, images: int, rounds: int) -> dict[str, Any]:
    """Measure plain loop and evaluation in turns."""
    found: dict[str, list[dict[str, Any]]] = {"plain": [], "evaluate": []}
    for _ in range(rounds):
        for do, reports in found.items():
            job = {"do": do, "models": [str(m) for m in models], "data": str(data)}
            report = alone(job | {"images": images}, worker=Path(__file__).resolve())
            if "error" in report:
                sys.exit(f"{do} on {images} images: {report['error']}")
            reports.append(report)
            print(f"{images} images, {do}: {report['seconds']:.1f} s", flush=True)
    return {"images": images, **found}


def _median(reports: Sequence[dict[str, Any]], key: str) -> float:
    return float(np.median([report[key] for report in reports]))


def row(result: dict[str, Any]) -> list[str]:
    """Return a line of the table."""
    plain, own = result["plain"], result["evaluate"]
    cells = [f"{result['images']:,}"]
    for key in ("seconds", "cpu_seconds"):
        a, b = _median(plain, key), _median(own, key)
        cells += [f"{a:.1f} s", f"{b:.1f} s", f"{b / a - 1:+.1%}"]
    return [*cells, *(f"{_median(r, 'peak_bytes') / 2**20:.0f} MB" for r in (plain, own))]


def markdown(where: dict[str, Any], results: Sequence[dict[str, Any]], rounds: int) -> str:
    """Return the report."""
    header = ["images", "plain", "evaluate", "more", "plain, CPU", "evaluate, CPU", "more, CPU"]
    lines = [
        "# What an evaluation costs beside its runs",
        "",
        describe(where),
        "",
        _METHOD.format(rounds=rounds),
        "",
        *table([*header, "peak, plain", "peak, evaluate"], [row(r) for r in results]),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path, default=SHARED)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--images", type=int, nargs="+", default=[1000, 10_000])
    arguments = parser.parse_args()
    model = arguments.shared / "models" / "resnet20_cifar10.onnx"
    data = arguments.shared / "data" / "cifar10"
    for path in (model, data):
        if not path.exists():
            sys.exit(f"skipped: {path} is not there")
    where = machine()
    with tempfile.TemporaryDirectory() as folder:
        models = candidates(model, Cifar(data, _CALIBRATION), Path(folder))
        results = [measured(models, data, n, arguments.rounds) for n in arguments.images]
    text = markdown(where, results, arguments.rounds)
    write_results(
        arguments.output, "evaluate_overhead", {"machine": where, "results": results}, text
    )


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1].startswith("{"):
        print(json.dumps(work(json.loads(sys.argv[1]))))
    else:
        main()
