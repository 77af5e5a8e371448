"""Graphs that grow at random, one operator after the other; every value has the shape (1, 8, 6, 6)."""

import random
from typing import Any

import numpy as np
import onnx
from builders import Array, graph, model, node, weight

POOL: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1] * 4}
# Each keeps the shape (1, 8, 6, 6), and values of about the same size.
ONE = ["Relu", "Sigmoid", "LeakyRelu", "MaxPool", "AveragePool", "Tanh", "Transpose", "Identity"]
ONE += ["Conv", "depthwise", "ConvTranspose", "Clip", "scale", "shift", "MatMul", "Slice"]
TWO = ["Add", "Mul", "Sub", "Concat", "Where", "Max"]


# More of what models hold: steps of (operator, inputs, attributes), the last of which gives the result.
# "a" and "b" are values of the graph, ".1" is the first result within the piece, "w:8,8" a new weight of that shape,
# "_" an input that is left out; all else is a constant below. ">2" is the number of results, where it is not one.
Steps = list[tuple[str, str, dict[str, Any]]]
PIECES: dict[str, Steps] = {
    "HardTanh": [("Clip", "a minus one", {})],
    "HardSigmoid": [("HardSigmoid", "a", {"alpha": 0.3})],
    "HardSwish": [("HardSwish", "a", {})],
    "Swish": [("Sigmoid", "a", {}), ("Mul", "a .1", {})],
    "Gelu": [
        ("Div", "a root", {}),
        ("Erf", ".1", {}),
        ("Add", ".2 one", {}),
        ("Mul", "a .3", {}),
        ("Mul", ".4 half", {}),
    ],
    "Elu": [("Elu", "a", {"alpha": 0.5})],
    "PRelu": [("PRelu", "a w:8,1,1", {})],
    "Softplus": [("Softplus", "a", {})],
    "Exp": [("Tanh", "a", {}), ("Exp", ".1", {})],
    "Sqrt": [("Abs", "a", {}), ("Sqrt", ".1", {})],
    "Pow": [("Tanh", "a", {}), ("Pow", ".1 two", {})],
    "Neg": [("Neg", "a", {})],
    "Softmax": [("Softmax", "a", {"axis": -1})],
    "Div": [("Div", "a two", {})],
    "Quotient": [("Softplus", "b", {}), ("Add", ".1 one", {}), ("Div", "a .2", {})],
    "Min": [("Min", "a b", {})],
    "Sum": [("Sum", "a b", {})],
    "Mean": [("Mean", "a b a", {})],
    "Choice": [("Greater", "a b", {}), ("Where", ".1 a b", {})],
    "BatchNormalization": [("BatchNormalization", "a w:8 w:8 w:8 spread", {})],
    "ConvBatchNormalization": [
        ("Conv", "a w:8,8,1,1", {}),
        ("BatchNormalization", ".1 spread w:8 w:8 spread", {}),
    ],
    "InstanceNormalization": [("InstanceNormalization", "a spread w:8", {})],
    "LayerNormalization": [("LayerNormalization", "a ones w:6", {"axis": -1})],
    "ReduceMean": [("ReduceMean", "a", {"axes": [2, 3]}), ("Add", "a .1", {})],
    "ReduceMax": [("ReduceMax", "a", {"axes": [1]}), ("Sub", "a .1", {})],
    "ReduceMin": [("ReduceMin", "a", {"axes": [3]}), ("Add", "a .1", {})],
    "ReduceSum": [("ReduceSum", "a axes", {}), ("Mul", ".1 half", {}), ("Sub", "a .2", {})],
    "SqueezeExcite": [
        ("GlobalAveragePool", "a", {}),
        ("Conv", ".1 w:8,8,1,1 w:8", {}),
        ("Sigmoid", ".2", {}),
        ("Mul", "a .3", {}),
    ],
    "GlobalMaxPool": [("GlobalMaxPool", "a", {}), ("Sub", "a .1", {})],
    "Expand": [("GlobalAveragePool", "a", {}), ("Expand", ".1 image", {})],
    "Tile": [("GlobalAveragePool", "a", {}), ("Tile", ".1 tiles", {})],
    "PadPool": [("Pad", "a pads", {}), ("MaxPool", ".1", {"kernel_shape": [3, 3]})],
    "PadConv": [("Pad", "a pads", {}), ("Conv", ".1 w:8,8,3,3", {})],
    "ConvAuto": [("Conv", "a w:8,8,3,3 w:8", {"auto_pad": "SAME_UPPER"})],
    "ConvGroup": [("Conv", "a w:8,4,1,1", {"group": 2}), ("Relu", ".1", {})],
    "ConvClip": [("Conv", "a w:8,8,1,1 w:8", {}), ("Clip", ".1 zero six", {})],
    "ConvHardTanh": [("Conv", "a w:8,8,1,1 w:8", {}), ("Clip", ".1 minus one", {})],
    "TiedConv": [("Conv", "a tied", {}), ("Conv", ".1 tied", {})],
    "DownUp": [
        ("Conv", "a w:8,8,3,3 w:8", {"pads": [1] * 4, "strides": [2, 2]}),
        ("ConvTranspose", ".1 w:8,8,2,2 w:8", {"strides": [2, 2]}),
    ],
    "Conv1D": [
        ("Reshape", "a line", {}),
        ("Conv", ".1 w:8,8,3 w:8", {"pads": [1, 1]}),
        ("Reshape", ".2 image", {}),
    ],
    "Resize": [
        ("Resize", "a _ scales", {"mode": "nearest"}),
        ("AveragePool", ".1", {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ],
    "ResizeLinear": [
        ("Resize", "a _ scales", {"mode": "linear"}),
        ("MaxPool", ".1", {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ],
    "DepthToSpace": [
        ("DepthToSpace", "a", {"blocksize": 2}),
        ("SpaceToDepth", ".1", {"blocksize": 2}),
    ],
    "Split": [("Split>2", "a halves", {"axis": 1}), ("Concat", ".2 .1", {"axis": 1})],
    "SplitAdd": [
        ("Split>2", "a halves", {"axis": 1}),
        ("Add", ".1 .2", {}),
        ("Concat", ".1 .3", {"axis": 1}),
    ],
    "Squeeze": [("Unsqueeze", "a first", {}), ("Squeeze", ".1 first", {})],
    "Flatten": [("Flatten", "a", {}), ("Reshape", ".1 image", {})],
    "Cast": [("Cast", "a", {"to": 10}), ("Cast", ".1", {"to": 1})],
    "Dropout": [("Dropout", "a", {})],
    "Gather": [("Gather", "a order", {"axis": 1})],
    "GatherElements": [("GatherElements", "a places", {"axis": 1})],
    "Gemm": [
        ("Flatten", "a", {}),
        ("Gemm", ".1 w:288,96 w:96", {}),
        ("Relu", ".2", {}),
        ("Gemm", ".3 w:288,96 w:288", {"transB": 1}),
        ("Reshape", ".4 image", {}),
    ],
    "GemmScaled": [
        ("Flatten", "a", {}),
        ("Gemm", ".1 w:288,288 w:288", {"alpha": 0.5, "beta": 2.0}),
        ("Reshape", ".2 image", {}),
    ],
    "Rows": [
        ("Flatten", "a", {}),
        ("MatMul", ".1 w:288,288", {}),
        ("Add", ".2 w:288", {}),
        ("Reshape", ".3 image", {}),
    ],
    "Attention": [
        ("Reshape", "a tokens", {}),
        ("MatMul", ".1 w:36,36", {}),
        ("MatMul", ".1 w:36,36", {}),
        ("MatMul", ".1 w:36,36", {}),
        ("Transpose", ".3", {"perm": [0, 2, 1]}),
        ("MatMul", ".2 .5", {}),
        ("Softmax", ".6", {"axis": -1}),
        ("MatMul", ".7 .4", {}),
        ("Reshape", ".8 image", {}),
    ],
    "MatMulBoth": [
        ("Transpose", "b", {"perm": [0, 1, 3, 2]}),
        ("MatMul", "a .1", {}),
        ("Tanh", ".2", {}),
    ],
    "Einsum": [("Einsum", "a w:8,8", {"equation": "bchw,cd->bdhw"})],
    "LSTM": [
        ("Reshape", "a steps", {}),
        ("LSTM", ".1 w:1,192,48 w:1,192,48 w:1,384", {"hidden_size": 48}),
        ("Reshape", ".2 image", {}),
    ],
    "GRU": [
        ("Reshape", "a steps", {}),
        ("GRU", ".1 w:1,144,48 w:1,144,48", {"hidden_size": 48}),
        ("Reshape", ".2 image", {}),
    ],
}
CONSTANTS: dict[str, Array] = {
    "minus": np.array(-1, np.float32),
    "one": np.array(1, np.float32),
    "two": np.array(2, np.float32),
    "half": np.array(0.5, np.float32),
    "root": np.array(2**0.5, np.float32),
    "ones": np.ones(6, np.float32),
    "spread": np.linspace(0.25, 2, 8, dtype=np.float32),
    "tied": weight(8, 8, 1, 1, seed=7),
    "scales": np.array([1, 1, 2, 2], np.float32),
    "image": np.array([1, 8, 6, 6]),
    "line": np.array([1, 8, 36]),
    "tokens": np.array([1, 8, 36]),
    "steps": np.array([6, 1, 48]),
    "tiles": np.array([1, 1, 6, 6]),
    "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
    "halves": np.array([4, 4]),
    "first": np.array([0]),
    "order": np.array([7, 6, 5, 4, 3, 2, 1, 0]),
    "places": np.arange(288).reshape(1, 8, 6, 6) % 8,
}
PRODUCTS = ["Conv", "depthwise", "MatMul", "ConvClip", "Rows", "Gemm"]
OPERATORS = [*ONE, *TWO, *PIECES, "If"]


def random_graph(seed: int) -> onnx.ModelProto:
    """Of 3 to 14 operators or pieces; a third of them products. Those of as many seeds as there are operators hold all."""
    source = random.Random(seed)  # noqa: S311 - the same graphs every time
    wanted = [
        source.choice(PRODUCTS if source.random() < 1 / 3 else OPERATORS)
        for _ in range(source.randint(2, 13))
    ]
    wanted.insert(source.randint(0, len(wanted)), OPERATORS[seed % len(OPERATORS)])
    grower = Grower()
    for op in wanted:
        grower.add(op, source.randint(0, 99), source.randint(0, 99))
    return grower.model()


class Grower:
    """Adds nodes one by one; `values` can all be read."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, Array] = {
            "zero": np.array(0, np.float32),
            "six": np.array(2, np.float32),
            "starts": np.array([0]),
            "ends": np.array([8]),
            "axes": np.array([1]),
            "flags": np.arange(36).reshape(1, 1, 6, 6) % 2 == 0,
            **CONSTANTS,
        }
        self.values = ["x"]

    def add(self, op: str, first: int, second: int) -> None:
        a = self.values[-1 - first % min(3, len(self.values))]
        b = self.values[second % len(self.values)]
        name = f"n{len(self.nodes)}"
        made = getattr(self, f"_{op.lower()}", None)
        if op in PIECES:
            self._piece(PIECES[op], a, b, name)
        elif made is not None:
            made(op, a, b, name)
        elif op in TWO:
            self._put(op, [a, b], name)
        else:
            self._put(op, [a], name)
        self.values.append(name)

    def _put(self, op: str, inputs: list[str], name: str, **attributes: Any) -> None:
        self.nodes.append(node(op, inputs, [name], f"{name}_{op}", **attributes))

    def _weight(self, name: str, *shape: int, scale: float = 0.1) -> str:
        self.weights[f"{name}_w"] = weight(*shape, seed=len(self.nodes), scale=scale)
        return f"{name}_w"

    def _piece(self, steps: Steps, a: str, b: str, name: str) -> None:
        within: list[str] = []

        def named(word: str) -> str:
            if word.startswith("w:"):
                shape = [int(extent) for extent in word[2:].split(",")]
                made = f"{name}_{len(self.weights)}"
                return self._weight(made, *shape, scale=0.8 / max(shape[1:], default=4) ** 0.5)
            if word.startswith("."):
                return within[int(word[1:]) - 1]
            return {"a": a, "b": b, "_": ""}.get(word, word)

        for i, (text, words, attributes) in enumerate(steps, start=1):
            op, _, count = text.partition(">")
            inputs = [named(word) for word in words.split()]
            results = [f"{name}_{len(within) + k}" for k in range(1, int(count or 1) + 1)]
            if i == len(steps):
                results = [name]
            within += results
            self.nodes.append(node(op, inputs, results, f"{name}_{op}_{i}", **attributes))

    def _if(self, op: str, a: str, _: str, name: str) -> None:
        inner = {
            "then": [node("Conv", [a, self._weight(name, 8, 8, 3, 3)], ["then"], pads=[1] * 4)],
            "else": [node("Relu", [a], ["else"])],
        }
        self._put("ReduceMean", [a], f"{name}_mean", keepdims=0)
        self._put("Greater", [f"{name}_mean", "zero"], f"{name}_positive")
        branches = {f"{k}_branch": graph(v, {}, {k: None}, name=k) for k, v in inner.items()}
        self._put(op, [f"{name}_positive"], name, **branches)

    def _conv(self, op: str, a: str, _: str, name: str) -> None:
        self.weights[f"{name}_b"] = weight(8, seed=len(name))
        self._put(op, [a, self._weight(name, 8, 8, 3, 3), f"{name}_b"], name, pads=[1] * 4)

    def _depthwise(self, _op: str, a: str, _: str, name: str) -> None:
        w = self._weight(name, 8, 1, 3, 3, scale=0.3)
        self._put("Conv", [a, w], name, pads=[1] * 4, group=8)

    def _convtranspose(self, op: str, a: str, _: str, name: str) -> None:
        self._put(op, [a, self._weight(name, 8, 8, 3, 3)], name, pads=[1] * 4)

    def _matmul(self, op: str, a: str, _: str, name: str) -> None:
        self._put(op, [a, self._weight(name, 6, 6, scale=0.4)], name)

    def _scale(self, _op: str, a: str, _: str, name: str) -> None:
        self._put("Mul", [self._weight(name, 1, 8, 1, 1, scale=1), a], name)

    def _shift(self, _op: str, a: str, _: str, name: str) -> None:
        self._put("Add", [a, self._weight(name, 8, 1, 1, scale=1)], name)

    def _clip(self, op: str, a: str, _: str, name: str) -> None:
        self._put(op, [a, "zero", "six"], name)

    def _maxpool(self, op: str, a: str, _: str, name: str) -> None:
        self._put(op, [a], name, **POOL)

    def _averagepool(self, op: str, a: str, _: str, name: str) -> None:
        self._put(op, [a], name, **POOL)

    def _transpose(self, op: str, a: str, _: str, name: str) -> None:
        self._put(op, [a], name, perm=[0, 1, 3, 2])

    def _slice(self, op: str, a: str, _: str, name: str) -> None:
        self._put(op, [a, "starts", "ends", "axes"], name)

    def _where(self, op: str, a: str, b: str, name: str) -> None:
        self._put(op, ["flags", a, b], name)

    def _concat(self, op: str, a: str, b: str, name: str) -> None:
        self._put(op, [a, b], f"{name}_all", axis=1)
        self._put("Conv", [f"{name}_all", self._weight(name, 8, 16, 1, 1, scale=0.2)], name)

    def _mul(self, _op: str, a: str, b: str, name: str) -> None:
        self._put("Tanh", [b], f"{name}_gate")
        self._put("Mul", [a, f"{name}_gate"], name)

    def model(self) -> onnx.ModelProto:
        inner = [n for item in self.nodes for a in item.attribute for n in a.g.node]
        read = {name for item in [*self.nodes, *inner] for name in item.input}
        results = [v for v in self.values[1:] if v not in read] + self.values[1:2]
        known = {k: v for k, v in self.weights.items() if k in read}
        return model(
            graph(self.nodes, {"x": [1, 8, 6, 6]}, dict.fromkeys(dict.fromkeys(results)), known)
        )
