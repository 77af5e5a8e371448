"""Models and quantized files for the tests of layerwise drift."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from builders import Array, graph, initializers, model, node, rng, save, weight
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType
from onnxruntime.quantization import quantize_dynamic as ort_dynamic
from onnxruntime.quantization import quantize_static as ort_static

from quantkit.api.quantize import Task, quantize
from quantkit.samples import fashion_mnist
from quantkit.settings import DynamicSettings, StaticSettings

Feeds = dict[str, Array]
CNN_NODES = ("stem", "wide", "deep", "narrow", "head")
FASHION_NODES = ("conv1", "conv2", "conv3", "fc1", "fc2")


def conv(x: str, w: str, y: str, name: str, **attributes: Any) -> onnx.NodeProto:
    return node("Conv", [x, w, f"{w}b"], [y], name, kernel_shape=[3, 3], pads=[1] * 4, **attributes)


def cnn() -> onnx.ModelProto:
    """Conv, Relu; an inverted bottleneck with a Relu6, a depthwise Conv and a sum; pooling; a Gemm."""
    nodes = [
        conv("x", "w1", "c1", "stem"),
        node("Relu", ["c1"], ["r1"], "stem_relu"),
        conv("r1", "w2", "c2", "wide"),
        node("Clip", ["c2", "zero", "six"], ["r2"], "wide_clip"),
        conv("r2", "w3", "c3", "deep", group=16),
        node("Relu", ["c3"], ["r3"], "deep_relu"),
        conv("r3", "w4", "c4", "narrow"),
        node("Add", ["c4", "r1"], ["sum"], "add"),
        node("GlobalAveragePool", ["sum"], ["pooled"], "pool"),
        node("Flatten", ["pooled"], ["flat"], "flatten"),
        node("Gemm", ["flat", "w5", "w5b"], ["y"], "head", transB=1),
    ]
    # Channels of unlike size, so that there is something to equalize.
    spread = np.geomspace(0.2, 2.0, 16, dtype=np.float32)
    weights = {
        "w1": weight(8, 3, 3, 3, seed=1) * spread[::2, None, None, None],
        "w2": weight(16, 8, 3, 3, seed=2) * spread[:, None, None, None],
        "w3": weight(16, 1, 3, 3, seed=3, scale=0.4),
        "w4": weight(8, 16, 3, 3, seed=4),
        "w5": weight(10, 8, seed=5, scale=0.6),
        "zero": np.array(0, np.float32),
        "six": np.array(6, np.float32),
    }
    for seed, size in enumerate((8, 16, 16, 8, 10), start=1):
        weights[f"w{seed}b"] = weight(size, seed=10 * seed, scale=0.3)
    return model(graph(nodes, {"x": ["N", 3, 12, 12]}, {"y": ["N", 10]}, weights))


def cnn_feeds(count: int) -> list[Feeds]:
    return [
        {"x": rng(seed).standard_normal((1, 3, 12, 12)).astype(np.float32)} for seed in range(count)
    ]


def fashion_feeds(count: int) -> list[Feeds]:
    images = fashion_mnist().images
    name = onnx.load(fashion_mnist().model).graph.input[0].name
    return [{name: images[i : i + 1]} for i in range(count)]


class Reader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
    def __init__(self, feeds: list[Feeds]) -> None:
        self._feeds = iter(feeds)

    def get_next(self) -> Feeds | None:
        return next(self._feeds, None)


def quantized(kind: str, source: Path, folder: Path, feeds: list[Feeds]) -> Path:
    """Quantize by one of the tools; "ort" calls are those of onnxruntime.quantization."""
    target = folder / f"{source.stem}.{kind}.onnx"
    logging.disable(logging.WARNING)
    try:
        _quantize(kind, source, target, feeds)
    finally:
        logging.disable(logging.NOTSET)
    return target


def _quantize(kind: Any, source: Path, target: Path, feeds: list[Feeds]) -> None:
    if kind in {"qdq", "qoperator"}:
        how = StaticSettings(format=kind)
        quantize(Task(source=source, data=feeds, how=how), target)
    elif kind == "dynamic":
        quantize(Task(source=source, how=DynamicSettings()), target)
    elif kind == "ort dynamic":
        ort_dynamic(str(source), str(target))
    else:
        _, name, dtype = kind.split()
        ort_static(
            str(source),
            str(target),
            Reader(feeds),
            quant_format=QuantFormat.QDQ if name == "qdq" else QuantFormat.QOperator,
            activation_type=QuantType.QUInt8 if dtype == "u8" else QuantType.QInt8,
            weight_type=QuantType.QInt8,
            per_channel=dtype == "u8",
        )


def float_model(name: str, folder: Path) -> tuple[Path, list[Feeds]]:
    """Return a copy of a float model and some samples."""
    path = folder / f"{name}.onnx"
    if name == "cnn":
        return save(cnn(), path), cnn_feeds(16)
    path.write_bytes(fashion_mnist().model.read_bytes())
    return path, fashion_feeds(16)


def rescaled(source: Path, target: Path, name: str, factor: float) -> Path:
    """Multiply one initializer: as a scale, it is wrong from then on."""
    proto = onnx.load(source)
    for tensor in proto.graph.initializer:
        if tensor.name == name:
            array = numpy_helper.to_array(tensor) * np.float32(factor)
            tensor.CopyFrom(numpy_helper.from_array(array.astype(np.float32), name))
    return save(proto, target)


def weight_of(path: Path, name: str) -> str:
    """Return the weight that a node of a float model reads."""
    found = next(n for n in onnx.load(path).graph.node if n.name == name)
    return str(found.input[1])


def activation_scales(path: Path) -> Iterator[tuple[str, set[str]]]:
    """Yield each scale of activations in a QDQ file, and the tensors of the float model that its integers are made into.

    A Relu that is gone may stand between what the candidate and what the float model calls by one name.
    """
    proto = onnx.load(path)
    constants = set(initializers(proto))
    readers: dict[str, list[onnx.NodeProto]] = {}
    for item in proto.graph.node:
        for name in item.input:
            readers.setdefault(name, []).append(item)
    quantizers = [n for n in proto.graph.node if n.op_type == "QuantizeLinear"]
    for scale in dict.fromkeys(n.input[1] for n in quantizers if n.input[0] not in constants):
        made = {n.output[0] for n in quantizers if n.input[1] == scale}
        restored = {r.output[0] for name in made for r in readers.get(name, [])}
        used = {o for name in restored for r in readers.get(name, []) for o in r.output}
        for _ in range(2):  # data that is only moved
            used |= {o for n in used for r in readers.get(n, []) if _moves(r) for o in r.output}
        yield scale, restored | used


def _moves(reader: onnx.NodeProto) -> bool:
    return reader.op_type in {"DequantizeLinear", "Flatten", "Gemm", "MaxPool", "QuantizeLinear"}


def before_relu(path: Path, tensor: str) -> set[str]:
    """Return a tensor of a float model, and what a Relu or Clip makes of it."""
    found = {tensor}
    for item in onnx.load(path).graph.node:
        if item.op_type in {"Relu", "Clip"} and item.input[0] in found:
            found.add(item.output[0])
    return found
