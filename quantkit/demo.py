"""The demo: quantize the embedded model, measure float and int8 side by side, write a report."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from quantkit.errors import OutputError
from quantkit.pipeline import StaticJob, dynamic, static
from quantkit.plan import DynamicOptions
from quantkit.samples import fashion_mnist
from quantkit.spec import QInt8, QUInt8, weight_int_type

__all__ = ["DemoResult", "DemoRow", "run_demo"]

_ROUNDS = 200
_WARM_UP = 20
_CALIBRATED = 128  # images


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRow:
    """One model's figures. `agreement` is the share of images with the same answer as float."""

    name: str
    nbytes: int
    accuracy: float
    agreement: float
    milliseconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """All rows, float first, the number of images they were measured on, and the report's path."""

    rows: tuple[DemoRow, ...]
    images: int
    report: Path

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        rows = [asdict(row) for row in self.rows]
        return {"rows": rows, "images": self.images, "report": str(self.report)}


def run_demo(folder: Path, progress: Callable[[str], None]) -> DemoResult:
    """Run the demo; write models and report into `folder`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise OutputError(f"Cannot make the folder '{folder}': {e.strerror}.") from e
    sample = fashion_mnist()
    models = {"float32": sample.model}
    for weight_type in (QUInt8, QInt8):
        progress(f"Quantizing to {weight_type.value}")
        target = folder / f"fashion.{weight_type.value}.onnx"
        dynamic(sample.model, target, DynamicOptions(weight_type=weight_int_type(weight_type)))
        models[f"quantkit dynamic {weight_type.value}"] = target
    progress("Calibrating, and quantizing to static int8")
    target = folder / "fashion.static.onnx"
    calibration = [{"image": image[None]} for image in sample.images[:_CALIBRATED]]
    static(StaticJob(source=sample.model, data=calibration), target)
    models["quantkit static int8"] = target
    images, labels = sample.images[_CALIBRATED:], sample.labels[_CALIBRATED:]
    progress(f"Measuring on {len(images)} images")
    sessions = {name: _session(path) for name, path in models.items()}
    answers = {name: _answers(session, images) for name, session in sessions.items()}
    latency = _latency(sessions, images[:1])
    rows = tuple(
        DemoRow(
            name=name,
            nbytes=path.stat().st_size,
            accuracy=float((answers[name] == labels).mean()),
            agreement=float((answers[name] == answers["float32"]).mean()),
            milliseconds=latency[name],
        )
        for name, path in models.items()
    )
    report = folder / "report.md"
    report.write_text(_markdown(rows, len(images)), encoding="utf-8")
    return DemoResult(rows=rows, images=len(images), report=report)


def _session(path: Path) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    # Sessions measured side by side must not spin on each other's cores.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _answers(session: Any, images: NDArray[np.float32]) -> NDArray[np.int64]:
    logits = [
        session.run(None, {"image": images[i : i + 100]})[0] for i in range(0, len(images), 100)
    ]
    answers: NDArray[np.int64] = np.concatenate(logits).argmax(axis=1)
    return answers


def _latency(sessions: dict[str, Any], image: NDArray[np.float32]) -> dict[str, float]:
    """Return each model's median milliseconds for one image, measured in turn."""
    times: dict[str, list[float]] = {name: [] for name in sessions}
    for round_ in range(_ROUNDS + _WARM_UP):
        for name, session in sessions.items():
            start = time.perf_counter()
            session.run(None, {"image": image})
            if round_ >= _WARM_UP:
                times[name].append(time.perf_counter() - start)
    return {name: 1e3 * float(np.median(values)) for name, values in times.items()}


def _markdown(rows: tuple[DemoRow, ...], images: int) -> str:
    base = rows[0]
    lines = [
        f"# quantkit demo: Fashion-MNIST classifier, {images} labelled test images",
        "",
        "| model | bytes | of float | accuracy | same answer as float | latency, 1 image | ratio |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {r.name} | {r.nbytes:,} | {r.nbytes / base.nbytes:.1%} | {r.accuracy:.2%} "
        f"| {r.agreement:.2%} | {r.milliseconds:.3f} ms "
        f"| {r.milliseconds / base.milliseconds:.2f} |"
        for r in rows
    ]
    how = "Latency: median of 200 runs, models in turn, in one process."
    lines += ["", f"{how} The static model was calibrated on {_CALIBRATED} other images."]
    return "\n".join(lines) + "\n"
