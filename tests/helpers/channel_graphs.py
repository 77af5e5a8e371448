"""Graphs whose channels are tied to each other, grown at random; every value has the shape [1, channels, 8, 8]."""

import random
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import onnx
from builders import Array, graph, model, node

SAME: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1] * 4}


class Grower:
    """Adds pieces to a graph; a value is a name and its number of channels."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - a seed is a test's
        self.numpy = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, Array] = {}
        self.values: list[tuple[str, int]] = [("x", 3)]

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        scale = prod(shape[1:]) ** -0.5
        self.weights[name] = (self.numpy.standard_normal(shape) * scale).astype(np.float32)
        return name

    def constant(self, *numbers: int) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.array(numbers, np.int64)
        return name

    def op(self, op: str, *inputs: str, results: int = 1, **attributes: Any) -> list[str]:
        outputs = [f"v{len(self.nodes)}_{i}" for i in range(results)]
        name = f"{op}{len(self.nodes)}"
        self.nodes.append(node(op, list(inputs), outputs, name, **attributes))
        return outputs

    def pick(self) -> tuple[str, int]:
        return self.random.choice(self.values[-3:])

    def conv(self, value: tuple[str, int], channels: int, group: int = 1) -> tuple[str, int]:
        name, read = value
        held = self.weight(channels, read // group, 3, 3), self.weight(channels)
        return self.op("Conv", name, *held, group=group, **SAME)[0], channels

    def grow(self, piece: str) -> None:
        found = PIECES[piece](self, self.pick())
        self.values += found

    def close(self, ends: str) -> onnx.ModelProto:
        names = [self.conv(v, 8)[0] for v in self.values[-2:]]
        (total,) = self.op("Add", *names) if len(names) == 2 else names
        total, _ = self.conv((total, 8), 6)
        if ends == "pooled":
            (total,) = self.op("GlobalAveragePool", total)
            (total,) = self.op("Flatten", total)
            (total,) = self.op("Gemm", total, self.weight(5, 6), self.weight(5), transB=1)
        elif ends == "flat":
            (total,) = self.op("Reshape", total, self.constant(-1, 6 * 64))
            (total,) = self.op("Relu", total)
            (total,) = self.op("Gemm", total, self.weight(6 * 64, 5), self.weight(5))
        shape: Sequence[int | str] = ["N", 6, 8, 8] if ends == "image" else ["N", 5]
        self.nodes.append(node("Identity", [total], ["y"], "last"))
        return model(graph(self.nodes, {"x": ["N", 3, 8, 8]}, {"y": shape}, self.weights))


Value = tuple[str, int]
Piece = Callable[[Grower, Value], list[Value]]


def _unary(op: str, **attributes: Any) -> Piece:
    return lambda g, v: [(g.op(op, v[0], **attributes)[0], v[1])]


def _depthwise(g: Grower, v: Value) -> list[Value]:
    return [g.conv(v, v[1], v[1])]


def _multiplied(g: Grower, v: Value) -> list[Value]:
    return [g.conv(v, 2 * v[1], v[1])]


def _grouped(g: Grower, v: Value) -> list[Value]:
    first = g.conv(v, 8)
    return [g.conv((g.op("Relu", first[0])[0], 8), 12, 4)]


def _residual(g: Grower, v: Value) -> list[Value]:
    inner = g.conv((g.op("Relu", g.conv(v, 8)[0])[0], 8), v[1])
    return [(g.op("Add", inner[0], v[0])[0], v[1])]


def _concat(g: Grower, v: Value) -> list[Value]:
    other = g.conv(v, 4)
    first, count = g.conv(v, 6)
    return [(g.op("Concat", first, other[0], first, axis=1)[0], 2 * count + 4)]


def _split(g: Grower, v: Value) -> list[Value]:
    whole, _ = g.conv(v, 12)
    first, second = g.op("Split", whole, g.constant(4, 8), results=2, axis=1)
    added = g.op("Add", g.conv((first, 4), 8)[0], second)
    return [(added[0], 8), (first, 4)]


def _normalized(g: Grower, v: Value) -> list[Value]:
    held = [g.weight(v[1]) for _ in range(3)]
    g.weights[variance := g.weight(v[1])] = np.full(v[1], 0.7, np.float32)
    return [(g.op("BatchNormalization", v[0], *held, variance)[0], v[1])]


def _instance(g: Grower, v: Value) -> list[Value]:
    held = [g.weight(v[1]) for _ in range(2)]
    return [(g.op("InstanceNormalization", v[0], *held)[0], v[1])]


def _prelu(g: Grower, v: Value) -> list[Value]:
    return [(g.op("PRelu", v[0], g.weight(v[1], 1, 1))[0], v[1])]


def _resized(g: Grower, v: Value) -> list[Value]:
    name, count = g.conv(v, 8)
    (large,) = g.op("Resize", name, "", "", g.constant(1, 8, 16, 16), mode="nearest")
    return [(g.op("MaxPool", large, kernel_shape=[2, 2], strides=[2, 2])[0], count)]


def _scaled(g: Grower, v: Value) -> list[Value]:
    (pooled,) = g.op("GlobalAveragePool", v[0])
    low = g.op("Conv", pooled, g.weight(4, v[1], 1, 1))[0]
    high = g.op("Conv", g.op("Relu", low)[0], g.weight(v[1], 4, 1, 1))[0]
    return [(g.op("Mul", v[0], g.op("Sigmoid", high)[0])[0], v[1])]


def _padded(g: Grower, v: Value) -> list[Value]:
    (wide,) = g.op("Pad", v[0], g.constant(0, 0, 1, 1, 0, 0, 1, 1))
    return [(g.op("AveragePool", wide, kernel_shape=[3, 3])[0], v[1])]


def _transposed_conv(g: Grower, v: Value) -> list[Value]:
    name = g.op("ConvTranspose", v[0], g.weight(v[1], 8, 1, 1), g.weight(8))[0]
    return [(name, 8)]


def _attention(g: Grower, v: Value) -> list[Value]:
    heads, each = 3, 4
    (flat,) = g.op("Reshape", v[0], g.constant(0, v[1], 64))
    (rows,) = g.op("Transpose", flat, perm=[0, 2, 1])
    parts = []
    for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
        made = g.op("MatMul", rows, g.weight(v[1], heads * each))[0]
        made = g.op("Add", made, g.weight(heads * each))[0]
        made = g.op("Reshape", made, g.constant(0, 64, heads, each))[0]
        parts.append(g.op("Transpose", made, perm=perm)[0])
    scores = g.op("Softmax", g.op("MatMul", parts[0], parts[1])[0], axis=-1)[0]
    mixed = g.op("Transpose", g.op("MatMul", scores, parts[2])[0], perm=[0, 2, 1, 3])[0]
    joined = g.op("Reshape", mixed, g.constant(0, 64, heads * each))[0]
    out = g.op("MatMul", joined, g.weight(heads * each, v[1]))[0]
    back = g.op("Transpose", g.op("Add", rows, out)[0], perm=[0, 2, 1])[0]
    return [(g.op("Reshape", back, g.constant(0, v[1], 8, 8))[0], v[1])]


PIECES: dict[str, Piece] = {
    "conv": lambda g, v: [g.conv(v, g.random.choice((6, 8, 12)))],
    "relu": _unary("Relu"),
    "swish": _unary("HardSwish"),
    "pool": _unary("MaxPool", **SAME),
    "depthwise": _depthwise,
    "multiplied": _multiplied,
    "grouped": _grouped,
    "residual": _residual,
    "concat": _concat,
    "split": _split,
    "batch norm": _normalized,
    "instance norm": _instance,
    "prelu": _prelu,
    "resize": _resized,
    "squeeze-excite": _scaled,
    "pad": _padded,
    "conv transpose": _transposed_conv,
    "attention": _attention,
}
ENDS = ("image", "pooled", "flat")


def channel_model(pieces: list[str], ends: str, seed: int) -> onnx.ModelProto:
    """Grow a graph of pieces, behind a Conv, in front of an end."""
    grower = Grower(seed)
    grower.values = [grower.conv(("x", 3), 8)]
    for piece in pieces:
        grower.grow(piece)
    return grower.close(ends)
