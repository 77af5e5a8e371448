"""The demo: an embedded classifier is quantized in three ways, evaluated on real labelled images, judged, reported.

The folder then holds what a user's own would: models, data, quantkit.toml, and the evaluation. Every step can be repeated
there by hand.
"""

import shlex
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from quantkit.calibration.monitor import Monitor, Silent
from quantkit.errors import OutputError, UsageError
from quantkit.evaluate.gate import rules_of
from quantkit.evaluate.outputs import NamedModel
from quantkit.files import replacing
from quantkit.pipeline.evaluate import EvaluateOptions, evaluate
from quantkit.pipeline.evaluation_folder import write_evaluation
from quantkit.pipeline.form import run_form
from quantkit.pipeline.forms import form_of
from quantkit.pipeline.job import Job, Output
from quantkit.result import Result
from quantkit.samples import fashion_mnist
from quantkit.settings import DataSettings, DynamicSettings, StaticSettings, load_recipe
from quantkit.spec import QInt8, QUInt8, weight_int_type

_CALIBRATED = 128  # images
_RECIPE = """\
# What `quantkit evaluate` judges candidates by; `quantkit gate` does it again.
[gate]
max_drop = 0.01              # of top-1: one point,
confidence = 0.95            # judged at the 95 % bound
min_size_reduction = 0.6
max_flips = 0.03
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """What was measured, and where it was written: result.json, report.html, report.md."""

    result: Result
    files: tuple[Path, Path, Path]


def run_demo(folder: Path, monitor: Monitor | None = None) -> DemoResult:
    """Run the demo; write models, data and report into `folder`."""
    monitor = monitor or Silent()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        source = _write_inputs(folder)
    except OSError as e:
        raise OutputError(f"Cannot write into the folder '{folder}': {e.strerror}.") from e
    candidates = _quantized(folder, source, monitor)
    recipe = folder / "quantkit.toml"
    names = [f"{c.name}={c.path.name}" for c in candidates]
    options = EvaluateOptions(
        rules=rules_of(load_recipe(recipe).gate),
        title="Fashion-MNIST classifier",
        command=shlex.join(["quantkit", "evaluate", f"float32={source.name}", *names])
        + " --data images.npz --no-shuffle --skip memory",
        skip=frozenset(
            {"memory"}
        ),  # a process for each model, and next to nothing to see of so small ones
        recipe=_RECIPE,
    )
    data = DataSettings(path=folder / "images.npz", shuffle=False)
    models = (NamedModel(name="float32", path=source), *candidates)
    result = evaluate(models, folder / "images.npz", data, options, monitor)
    return DemoResult(result=result, files=write_evaluation(result, folder))


def _write_inputs(folder: Path) -> Path:
    """Write what a user would have: a model, labelled images, others to calibrate with, the rules."""
    sample = fashion_mnist()
    parts = {"calibration": slice(None, _CALIBRATED), "images": slice(_CALIBRATED, None)}
    contents = {"quantkit.toml": _RECIPE.encode(), "fashion.onnx": sample.model.read_bytes()}
    for name, part in parts.items():
        packed = BytesIO()
        np.savez(packed, image=sample.images[part], label=sample.labels[part])
        contents[f"{name}.npz"] = packed.getvalue()
    for name, content in contents.items():
        path = folder / name
        if path.exists() and path.read_bytes() != content:
            raise UsageError(
                f"The demo would overwrite '{path}', which is not its own; choose another folder with -o."
            )
    for name, content in contents.items():
        with replacing(folder / name) as file:
            file.write(content)
    return folder / "fashion.onnx"


def _quantized(folder: Path, source: Path, monitor: Monitor) -> list[NamedModel]:
    """Quantize in three ways."""
    found = []
    for weight_type in (QUInt8, QInt8):
        stored: Any = weight_int_type(weight_type).name
        monitor.stage(f"Quantizing to {weight_type.value}")
        target = folder / f"fashion.{weight_type.value}.onnx"
        job = Job(source=source, options=DynamicSettings(weight_type=stored))
        run_form(form_of(job, Output(path=target)))
        found.append(NamedModel(name=f"dynamic {weight_type.value}", path=target))
    monitor.stage("Calibrating, and quantizing to static int8")
    target = folder / "fashion.static.onnx"
    static = Job(source=source, data=folder / "calibration.npz", options=StaticSettings())
    run_form(form_of(static, Output(path=target)))
    return [*found, NamedModel(name="static int8", path=target)]
