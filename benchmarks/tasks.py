"""Real models with real data: what to feed them, and how far a quantized copy is from float.

Images and sentences are evaluated as they are used: images one at a time (a batch would share one
activation range, which is unfair to kernels that quantize activations), sentences in batches of 16,
or one at a time where ranges are learned beforehand.
"""

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from measure import sqnr
from numpy.typing import NDArray

__all__ = ["Sizes", "Task", "evenly", "tasks", "tokenized"]

Array = NDArray[Any]
Feeds = Mapping[str, Array]
T = TypeVar("T")
Metrics = dict[str, float]

_MEAN = np.array([0.485, 0.456, 0.406], np.float32)
_STD = np.array([0.229, 0.224, 0.225], np.float32)
_CROP = 224
_MAX_TOKENS = 256
_BATCH = 16
_SEQUENCE = 32
_PIXELS = 32
_DRAWS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much data to use: ImageNet images, small images (CIFAR, Fashion), sentence pairs.

    `calibration` samples are for calibration: ImageNet images that are then not judged, images of
    CIFAR that are (there are no others), texts of their own.
    """

    images: int = 200
    small: int = 2000
    pairs: int = 1500
    calibration: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A model and its data.

    Attributes:
        name: For tables.
        model: The float model.
        feeds: Inputs to measure latency with, by name.
        outputs: Runs a session on all data.
        metrics: Compares outputs with the float model's.
        calibration: One sample each, to learn ranges from.
    """

    name: str
    model: Path
    feeds: Mapping[str, Feeds]
    outputs: Callable[[Any], Array]
    metrics: Callable[[Array, Array], Metrics]
    calibration: Sequence[Feeds] = ()


def tasks(shared: Path, sizes: Sizes) -> dict[str, Callable[[], Task | None]]:
    """Return every task by name; each loads its data when called, or returns None if absent."""
    return {
        "all-MiniLM-L6-v2": lambda: _sentences(shared, sizes),
        "efficientnet_lite0": lambda: _imagenet(shared, "efficientnet_lite0", sizes),
        "mobilenet_v2": lambda: _imagenet(shared, "mobilenet_v2", sizes),
        "resnet20_cifar10": lambda: _cifar(shared, sizes),
        "fashion_cnn": lambda: _fashion(sizes.small),
    }


def _present(name: str, *paths: Path) -> bool:
    absent = [path for path in paths if not path.exists()]
    if absent:
        print(f"{name}: skipped, {absent[0]} is not there")
    return not absent


def _classifier(name: str, model: Path, feed: str, images: Array, labels: Array) -> Task:
    def outputs(session: Any) -> Array:
        rows = [session.run(None, {feed: image[np.newaxis]})[0] for image in images]
        logits: Array = np.concatenate(rows)
        return logits

    def metrics(reference: Array, logits: Array) -> Metrics:
        answers, expected = logits.argmax(axis=1), reference.argmax(axis=1)
        right, before = answers == labels, expected == labels
        return {
            "top1": float(right.mean()),
            **_drop("top1", len(labels), lambda i: float(before[i].mean() - right[i].mean())),
            "agreement": float((answers == expected).mean()),
            "sqnr_db": sqnr(reference, logits),
        }

    return Task(
        name=name,
        model=model,
        feeds={"batch 1": {feed: images[:1]}},
        outputs=outputs,
        metrics=metrics,
    )


def _drop(name: str, count: int, drop: Callable[[Array], float]) -> Metrics:
    """Return the drop to float with its 95 % bootstrap interval: examples are redrawn in pairs."""
    generator = np.random.default_rng(0)
    drawn = [drop(generator.integers(0, count, count)) for _ in range(_DRAWS)]
    low, high = np.quantile(drawn, (0.025, 0.975))
    return {
        f"{name}_drop": drop(np.arange(count)),
        f"{name}_drop_low": float(low),
        f"{name}_drop_high": float(high),
    }


def _imagenet(shared: Path, name: str, sizes: Sizes) -> Task | None:
    model, folder = shared / "models" / f"{name}.onnx", shared / "data" / "imagenet500"
    if not _present(name, model, folder):
        return None
    with (folder / "labels.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    # Labels are sorted: take images evenly from all classes.
    kept = evenly(rows, sizes.calibration)
    chosen = evenly([row for row in rows if row not in kept], sizes.images)

    def read(some: list[dict[str, str]]) -> Array:
        pixels = np.stack([_centre(folder / row["file"]) for row in some])
        if name == "efficientnet_lite0":
            return _channels_first((pixels - np.float32(127)) / np.float32(128))
        return _channels_first((pixels / np.float32(255) - _MEAN) / _STD)

    labels = np.array([int(row["label"]) for row in chosen])
    task = _classifier(name, model, "input", read(chosen), labels)
    return replace(task, calibration=_singly("input", read(kept)) if kept else ())


def evenly(items: Sequence[T], count: int) -> list[T]:
    """Return `count` items (all, if there are fewer), evenly spaced from the first to the last."""
    chosen = np.linspace(0, len(items) - 1, min(count, len(items))).astype(int)
    return [items[i] for i in chosen]


def _singly(feed: str, images: Array) -> list[Feeds]:
    return [{feed: image[np.newaxis]} for image in images]


def _centre(path: Path) -> NDArray[np.float32]:
    from PIL import Image

    with Image.open(path) as file:
        image = file.convert("RGB")
    left, top = (image.width - _CROP) // 2, (image.height - _CROP) // 2
    return np.asarray(image.crop((left, top, left + _CROP, top + _CROP)), np.float32)


def _channels_first(images: Array) -> Array:
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2), dtype=np.float32)


def _cifar(shared: Path, sizes: Sizes) -> Task | None:
    from PIL import Image

    name, folder = "resnet20_cifar10", shared / "data" / "cifar10"
    model = shared / "models" / f"{name}.onnx"
    if not _present(name, model, folder):
        return None
    with Image.open(folder / "test.png") as file:
        # One image a row of 1024 RGB pixels.
        pixels = np.asarray(file).reshape(-1, _PIXELS, _PIXELS, 3).astype(np.float32)
    labels = json.loads((folder / "test_labels.json").read_text(encoding="utf-8"))[: sizes.small]
    images = _channels_first((pixels / np.float32(255) - _MEAN) / _STD)
    task = _classifier(name, model, "input", images[: sizes.small], np.array(labels))
    return replace(task, calibration=evenly(_singly("input", images), sizes.calibration))


def _fashion(count: int) -> Task:
    from quantkit.samples import fashion_mnist

    sample = fashion_mnist()
    return _classifier(
        "fashion_cnn", sample.model, "image", sample.images[:count], sample.labels[:count]
    )


def _sentences(shared: Path, sizes: Sizes) -> Task | None:
    from scipy.stats import spearmanr

    name = "all-MiniLM-L6-v2"
    folder, data = shared / "models" / name, shared / "data" / "sts"
    if not _present(name, folder, data):
        return None
    with (data / "dev.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))[: sizes.pairs]
    with (data / "calibration.csv").open(encoding="utf-8") as file:
        known = evenly([row["text"] for row in csv.DictReader(file)], sizes.calibration)
    texts = [row["sentence1"] for row in rows] + [row["sentence2"] for row in rows]
    scores = np.array([float(row["score"]) for row in rows])
    # A static range of the mask, learned from texts without padding, does not hold with padding:
    # who calibrates is judged on what was calibrated, texts alone.
    together = 1 if sizes.calibration else _BATCH
    batches = tokenized(folder / "tokenizer.json", texts, together)

    def alike(embeddings: Array) -> Array:
        cosine: Array = (embeddings[: len(rows)] * embeddings[len(rows) :]).sum(axis=1)
        return cosine

    def metrics(reference: Array, embeddings: Array) -> Metrics:
        cosine = (reference * embeddings).sum(axis=1)
        before, now = alike(reference), alike(embeddings)

        def drop(i: Array) -> float:
            return float(spearmanr(before[i], scores[i])[0] - spearmanr(now[i], scores[i])[0])

        return {
            "cosine": float(cosine.mean()),
            "cosine_min": float(cosine.min()),
            "spearman": float(spearmanr(now, scores)[0]),
            **_drop("spearman", len(rows), drop),
            "sqnr_db": sqnr(reference, embeddings),
        }

    return Task(
        name=name,
        model=folder / "model.onnx",
        feeds={f"batch {n}, {_SEQUENCE} tokens": _made_up_tokens(n) for n in (1, _BATCH)},
        outputs=lambda session: np.concatenate([_embed(session, batch) for batch in batches]),
        metrics=metrics,
        calibration=tokenized(folder / "tokenizer.json", known, 1),
    )


def tokenized(tokenizer: Path, texts: list[str], batch: int) -> list[Feeds]:
    """Return texts as token ids, so many at a time, padded to the longest of them."""
    from tokenizers import Tokenizer

    reader = Tokenizer.from_file(str(tokenizer))
    reader.enable_truncation(_MAX_TOKENS)
    reader.enable_padding()
    batches: list[Feeds] = []
    for start in range(0, len(texts), batch):
        encoded = reader.encode_batch(texts[start : start + batch])
        ids = np.array([e.ids for e in encoded], np.int64)
        mask = np.array([e.attention_mask for e in encoded], np.int64)
        batches.append(_token_feeds(ids, mask))
    return batches


def _token_feeds(ids: NDArray[np.int64], mask: NDArray[np.int64]) -> Feeds:
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


def _made_up_tokens(batch: int) -> Feeds:
    ids = np.random.default_rng(0).integers(1000, 20000, (batch, _SEQUENCE))
    return _token_feeds(ids, np.ones_like(ids))


def _embed(session: Any, feeds: Feeds) -> Array:
    """Mean pooling over the mask, then normalize."""
    hidden = session.run(None, dict(feeds))[0]
    mask = feeds["attention_mask"][..., np.newaxis].astype(np.float32)
    pooled = (hidden * mask).sum(axis=1) / mask.sum(axis=1)
    embeddings: Array = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
    return embeddings
