"""Makes the committed reports again: ``python benchmarks/make_reports.py [NAME ...]``.

Each real model is laid out in a folder as a user's would be (report_tasks.py), quantized by quantkit and by
onnxruntime.quantization, and evaluated by ``quantkit evaluate``: the commands are printed, and are the ones in the report.
The result goes to ``reports/NAME``: result.json, report.html, report.md and picture.svg.
"""

import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from measure import ROOT
from report_tasks import ReportTask, report_tasks
from static_jobs import onnxruntime_dynamic_row, onnxruntime_row, prepare, save_samples

_QUANTKIT = Path(sys.executable).with_name("quantkit")
_CALIBRATED = 128
# onnxruntime's own calls: as a newcomer makes them, and as its documentation advises for CPUs with VNNI.
_STATIC: Mapping[str, dict[str, Any]] = {
    "ort-static": {},
    "ort-static-u8s8": {"activation_type": "QUInt8", "per_channel": True},
}
_NAMES = {
    "quantkit-dynamic": "quantkit dynamic",
    "quantkit-static": "quantkit static",
    "ort-dynamic": "onnxruntime dynamic",
    "ort-static": "onnxruntime static",
    "ort-static-u8s8": "onnxruntime static U8S8",
}


def quantkit(folder: Path, *arguments: str) -> None:
    """Run a command in `folder`, as a user would."""
    print(f"$ {shlex.join(['quantkit', *arguments])}", flush=True)
    subprocess.run([str(_QUANTKIT), *arguments], cwd=folder, check=True)


def samples_of(folder: Path, calibration: str) -> Path:
    """Write the calibration samples as quantkit reads them, for onnxruntime to read the same."""
    from quantkit.calibration.model_inputs import inputs_of
    from quantkit.data import Samples, order
    from quantkit.data import open_data as opened
    from quantkit.model.graph.load import load
    from quantkit.settings import load_recipe

    settings = load_recipe(folder / "quantkit.toml").data
    samples = opened(folder / calibration, inputs_of(load(folder / "model.onnx")), settings)
    if not isinstance(samples, Samples):
        raise TypeError(calibration)
    chosen = order(len(samples), limit=_CALIBRATED, shuffle=True)
    target = folder / "samples.npz"
    save_samples(target, [samples[int(i)].feeds for i in chosen])
    return target


def quantize(folder: Path, *, text: bool) -> list[str]:
    """Write all candidates; return those that could be made."""
    calibration = "calibration.csv" if text else "calibration"
    quantkit(folder, "quantize", "dynamic", "model.onnx", "quantkit-dynamic.onnx")
    static = ["model.onnx", "quantkit-static.onnx", "--data", calibration]
    quantkit(folder, "quantize", "static", *static, "--limit", str(_CALIBRATED))
    source, prepared = str(folder / "model.onnx"), str(folder / "prepared.onnx")
    dynamic = {"source": source, "target": str(folder / "ort-dynamic.onnx")}
    onnxruntime_dynamic_row(dynamic | {"options": {"weight_type": "QUInt8"}})
    prepare({"source": source, "target": prepared})
    job = {"source": prepared, "samples": str(samples_of(folder, calibration))}
    for name, options in _STATIC.items():
        print(f"onnxruntime.quantization.quantize_static: {name} {options}", flush=True)
        onnxruntime_row(job | {"target": str(folder / f"{name}.onnx"), "options": dict(options)})
    return [name for name in _NAMES if (folder / f"{name}.onnx").exists()]


def make(name: str, task: ReportTask, target: Path) -> None:
    """Make one report."""
    absent = [path for path in task.needs if not path.exists()]
    if absent:
        print(f"{name}: skipped, {absent[0].name} is not there")
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        task.lay_out(folder)
        text = (folder / "pairs.csv").exists()
        candidates = [f"{_NAMES[c]}={c}.onnx" for c in quantize(folder, text=text)]
        data = ["--data", "pairs.csv"] if text else ["--data", "data"]
        columns = ["--column", "sentence1", "--column", "sentence2"] if text else []
        more = ["--title", task.title, "-o", "report", "--time-batch", "1", "--time-batch", "8"]
        quantkit(folder, "evaluate", "float32=model.onnx", *candidates, *data, *columns, *more)
        quantkit(folder, "report", "report/result.json", "--picture", "report/picture.svg")
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(folder / "report", target)


def main() -> None:
    """Make the reports that are asked for, or all."""
    tasks = report_tasks()
    for name in sys.argv[1:] or tasks:
        make(name, tasks[name], ROOT / "reports" / name)


if __name__ == "__main__":
    main()
