"""Small models that answer, and short ways to evaluate them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
from builders import Array, graph, model, node, rng, save, weight
from onnx import TensorProto

from quantkit.calibration.monitor import Silent
from quantkit.evaluate.accuracy import AccuracyOptions, MeasuredOutputs, NamedModel, measure_outputs
from quantkit.settings import DataSettings

FEATURES = 6


def classifier(
    *, classes: int = 8, noise: float = 0.0, seed: int = 0, batch: int | str = "N"
) -> onnx.ModelProto:
    """x [N, 6] -> logits [N, classes]; `noise` is added to the weights."""
    w = weight(FEATURES, classes, scale=1.0)
    w = w + noise * weight(FEATURES, classes, seed=seed + 1, scale=1.0)
    nodes = [node("MatMul", ["x", "w"], ["logits"])]
    shapes = {"x": [batch, FEATURES]}, {"logits": [batch, classes]}
    return model(graph(nodes, *shapes, {"w": w}))


def regressor(*, noise: float = 0.0) -> onnx.ModelProto:
    """x [N, 6] -> score [N, 1]."""
    w = weight(FEATURES, 1, scale=1.0) + noise * weight(FEATURES, 1, seed=1, scale=1.0)
    nodes = [node("MatMul", ["x", "w"], ["score"])]
    return model(graph(nodes, {"x": ["N", FEATURES]}, {"score": ["N", 1]}, {"w": w}))


def text_encoder(*, noise: float = 0.0, mask: bool = True) -> onnx.ModelProto:
    """input_ids, attention_mask [N, L] -> hidden [N, L, 5], each token alone."""
    table = weight(9, 5, scale=1.0) + noise * weight(9, 5, seed=1, scale=1.0)
    nodes = [
        node("Gather", ["table", "input_ids"], ["found"]),
        node("Cast", ["attention_mask"], ["m"], to=TensorProto.FLOAT),
        node("Unsqueeze", ["m", "last"], ["m3"]),
        node("Mul", ["found", "m3"], ["hidden"]),
    ]
    inputs = dict.fromkeys(("input_ids", "attention_mask"), ("N", "L"))
    if not mask:
        nodes, inputs = (
            [node("Gather", ["table", "input_ids"], ["hidden"])],
            {"input_ids": ("N", "L")},
        )
    weights: dict[str, Array] = {"table": table, "last": np.array([2], np.int64)}
    if not mask:
        del weights["last"]
    types = dict.fromkeys(inputs, TensorProto.INT64)
    return model(graph(nodes, inputs, {"hidden": ["N", "L", 5]}, weights, types=types))


def contenders(folder: Path, *models: onnx.ModelProto) -> list[NamedModel]:
    """Save models; float is the first, candidates are c1, c2, ..."""
    names = ["float", *(f"c{i}" for i in range(1, len(models)))]
    return [
        NamedModel(name=name, path=save(proto, folder / f"{name}.onnx"))
        for name, proto in zip(names, models, strict=True)
    ]


def rows(count: int, seed: int = 0) -> Array:
    return rng(seed).standard_normal((count, FEATURES)).astype(np.float32)


def labelled(count: int, proto: onnx.ModelProto, *, wrong: float = 0.2) -> dict[str, Array]:
    """Inputs with the classes that the model gives, some of them wrong."""
    w = onnx.numpy_helper.to_array(proto.graph.initializer[0])
    x = rows(count)
    labels = (x @ w).argmax(axis=1)
    mixed = rng(5).random(count) < wrong
    labels[mixed] = rng(6).integers(0, w.shape[1], int(mixed.sum()))
    return {"x": x, "label": labels}


def evaluated(
    models: list[NamedModel],
    data: object,
    settings: DataSettings | None = None,
    **options: Any,
) -> MeasuredOutputs:
    found = measure_outputs(
        models, data, settings or DataSettings(), AccuracyOptions(**options), Silent()
    )
    # What a result holds are plain numbers: numpy's own are refused.
    msgspec.json.encode((found.metrics, found.drift, found.data, found.notes))
    return found


def without(mapping: Mapping[str, Array], *names: str) -> dict[str, Array]:
    return {key: value for key, value in mapping.items() if key not in names}


def batched(size: int | None) -> DataSettings:
    return replace(DataSettings(), batch=size)
