"""The models that reports are made of: each lays out a folder as a user's would be.

A folder holds ``model.onnx``, ``data`` (labelled, to be judged on), ``calibration`` (other samples) and the
``quantkit.toml`` that says how samples are prepared and what candidates are judged by.
"""

import csv
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from measure import SHARED
from tasks import evenly

__all__ = ["ReportTask", "report_tasks"]

_CALIBRATED = 128
_PIXELS = 32
_CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_GATE = """
[gate]
max_drop = {drop}
confidence = 0.95
min_size_reduction = 0.7
max_latency_ratio = 1.05
"""
_IMAGENET = "mean = [0.485, 0.456, 0.406]\nstd = [0.229, 0.224, 0.225]\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTask:
    """A report: its title, what it needs, and how its folder is laid out."""

    title: str
    needs: tuple[Path, ...]
    lay_out: Callable[[Path], None]


def report_tasks() -> dict[str, ReportTask]:
    """Return every task by the name of its folder in reports/."""
    models, data = SHARED / "models", SHARED / "data"
    lite, mobile = models / "efficientnet_lite0.onnx", models / "mobilenet_v2.onnx"
    resnet, encoder = models / "resnet20_cifar10.onnx", models / "all-MiniLM-L6-v2"
    images, cifar, sentences = data / "imagenet500", data / "cifar10", data / "sts"
    crop = "[data.image]\ncrop = 224\n"
    return {
        "efficientnet_lite0": ReportTask(
            title="EfficientNet-Lite0, ImageNet",
            needs=(lite, images),
            lay_out=partial(_imagenet, lite, images, f"{crop}mean = 127\nstd = 128\n"),
        ),
        "mobilenet_v2": ReportTask(
            title="MobileNetV2, ImageNet",
            needs=(mobile, images),
            lay_out=partial(_imagenet, mobile, images, f"{crop}{_IMAGENET}"),
        ),
        "resnet20_cifar10": ReportTask(
            title="ResNet-20, CIFAR-10",
            needs=(resnet, cifar),
            lay_out=partial(_cifar, resnet, cifar),
        ),
        "minilm_encoder": ReportTask(
            title="all-MiniLM-L6-v2, likeness of sentences",
            needs=(encoder, sentences),
            lay_out=partial(_sentences, encoder, sentences),
        ),
    }


def _imagenet(model: Path, images: Path, preprocessing: str, folder: Path) -> None:
    with (images / "labels.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    # Labels are sorted: take images evenly from all classes.
    kept = evenly(rows, _CALIBRATED)
    rest = [row for row in rows if row not in kept]
    for part, some in (("calibration", kept), ("data", rest)):
        (folder / part).mkdir()
        for row in some:
            shutil.copyfile(images / row["file"], folder / part / row["file"])
        lines = ["file,label", *(f"{row['file']},{row['label']}" for row in some)]
        (folder / part / "labels.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    _finish(model, folder, preprocessing, drop=0.01)


def _cifar(model: Path, source: Path, folder: Path) -> None:
    from PIL import Image

    with Image.open(source / "test.png") as file:
        # One image a row of 1024 RGB pixels.
        pixels = np.asarray(file).reshape(-1, _PIXELS, _PIXELS, 3)
    labels = json.loads((source / "test_labels.json").read_text(encoding="utf-8"))
    kept = set(evenly(range(len(pixels)), _CALIBRATED))
    for number, (image, label) in enumerate(zip(pixels, labels, strict=True)):
        part = "calibration" if number in kept else "data"
        target = folder / part / _CIFAR[label]
        target.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(target / f"{number:05d}.png", compress_level=1)
    _finish(model, folder, f"[data.image]\n{_IMAGENET}", drop=0.01)


def _sentences(model: Path, source: Path, folder: Path) -> None:
    shutil.copyfile(source / "dev.csv", folder / "pairs.csv")
    shutil.copyfile(source / "calibration.csv", folder / "calibration.csv")
    shutil.copyfile(model / "tokenizer.json", folder / "tokenizer.json")
    # Spearman's correlation moves less than an accuracy does: half a hundredth is much.
    _finish(model / "model.onnx", folder, "[evaluate]\npairs = true\n", drop=0.005)


def _finish(model: Path, folder: Path, recipe: str, *, drop: float) -> None:
    shutil.copyfile(model, folder / "model.onnx")
    text = recipe + _GATE.format(drop=drop)
    (folder / "quantkit.toml").write_text(text, encoding="utf-8")
