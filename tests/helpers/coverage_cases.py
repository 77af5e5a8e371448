"""One small piece of a graph for each operator that some target quantizes where all is to be quantized."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from builders import Array, graph, model, node, rng, weight
from onnx import TensorProto

SHAPE = (2, 4, 6, 6)
X = rng(3).standard_normal(SHAPE).astype(np.float32)
FEEDS: dict[str, Array] = {"x": X}


@dataclass(frozen=True)
class Piece:
    """An operator that reads 'a' first, and further inputs; its first output is what is looked at.

    `pairs`: tensors besides 'a' that are quantized as activations: results, mostly.
    """

    inputs: Sequence[str] = ("a",)
    constants: Mapping[str, Array] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1
    result: int = TensorProto.FLOAT
    pairs: int = 1


def _ints(*values: int) -> Array:
    return np.asarray(values, np.int64)


def _floats(*values: float) -> Array:
    return np.asarray(values, np.float32)


_VECTORS = {"gamma": 1 + weight(4, seed=8), "beta": weight(4, seed=9)}
_MEANS = {"mean": weight(4, seed=5), "var": 1 + np.abs(weight(4, seed=6))}
_ROWS = {"gamma": 1 + weight(6, seed=8), "beta": weight(6, seed=9)}
_BINARY = Piece(("a", "k"), {"k": 2 + weight(4, 1, 1, seed=4)})
_KERNEL = {"kernel_shape": [2, 2]}

PIECES: Mapping[str, Piece] = {
    **dict.fromkeys(("Add", "Div", "Max", "Min", "Mul", "Sub", "Sum"), _BINARY),
    **dict.fromkeys(
        [
            "Abs",
            "Ceil",
            "Cos",
            "Elu",
            "Exp",
            "Floor",
            "HardSigmoid",
            "HardSwish",
            "LeakyRelu",
            "Neg",
            "Relu",
            "Round",
            "Sigmoid",
            "Sign",
            "Sin",
            "Softmax",
            "LogSoftmax",
            "Softplus",
            "Tanh",
            "GlobalAveragePool",
            "GlobalMaxPool",
            "LpNormalization",
            "Flatten",
            "Transpose",
        ],
        Piece(),
    ),
    "ArgMax": Piece(attributes={"axis": 1}, result=TensorProto.INT64, pairs=0),
    "ArgMin": Piece(attributes={"axis": 1}, result=TensorProto.INT64, pairs=0),
    "AveragePool": Piece(attributes=_KERNEL),
    "BatchNormalization": Piece(("a", "gamma", "beta", "mean", "var"), _VECTORS | _MEANS),
    "Clip": Piece(
        ("a", "low", "high"),
        {"low": np.asarray(-0.7, np.float32), "high": np.asarray(0.9, np.float32)},
    ),
    "Concat": Piece(("a", "x"), attributes={"axis": 1}),
    "Conv": Piece(("a", "w", "b"), {"w": weight(5, 4, 3, 3), "b": weight(5)}),
    "ConvTranspose": Piece(("a", "w", "b"), {"w": weight(4, 5, 3, 3), "b": weight(5)}),
    "CumSum": Piece(("a", "axis"), {"axis": np.asarray(2, np.int64)}),
    "DepthToSpace": Piece(attributes={"blocksize": 2}),
    "Expand": Piece(("a", "to"), {"to": _ints(2, 4, 6, 6)}),
    "Gather": Piece(("a", "at"), {"at": _ints(0, 3)}, {"axis": 1}),
    "GatherElements": Piece(("a", "at"), {"at": np.zeros((2, 4, 6, 1), np.int64)}, {"axis": 3}),
    "GatherND": Piece(("a", "at"), {"at": np.asarray([[0, 1], [1, 2]], np.int64)}),
    "Gelu": Piece(),
    "Gemm": Piece(("flat", "w", "b"), {"w": weight(7, 144), "b": weight(7)}, {"transB": 1}),
    "GridSample": Piece(("a", "grid"), {"grid": weight(2, 3, 3, 2)}),
    "InstanceNormalization": Piece(("a", "gamma", "beta"), _VECTORS),
    "LayerNormalization": Piece(("a", "gamma", "beta"), _ROWS),
    "Log": Piece(("positive",)),
    "MatMul": Piece(("a", "w"), {"w": weight(6, 5)}),
    "MaxPool": Piece(attributes=_KERNEL),
    "PRelu": Piece(("a", "slope"), {"slope": np.abs(weight(4, 1, 1))}),
    "Pad": Piece(("a", "pads"), {"pads": _ints(0, 0, 1, 1, 0, 0, 1, 1)}),
    "Pow": Piece(("positive", "two"), {"two": np.asarray(2, np.float32)}),
    **dict.fromkeys(("ReduceMax", "ReduceMean", "ReduceMin"), Piece(attributes={"axes": [2, 3]})),
    "ReduceSum": Piece(("a", "axes"), {"axes": _ints(2, 3)}),
    "Reshape": Piece(("a", "to"), {"to": _ints(2, -1)}),
    "Resize": Piece(("a", "", "scales"), {"scales": _floats(1, 1, 2, 2)}),
    "ScatterElements": Piece(
        ("a", "at", "new"), {"at": np.zeros((1, 1, 1, 2), np.int64), "new": weight(1, 1, 1, 2)}
    ),
    "ScatterND": Piece(
        ("a", "at", "new"), {"at": _ints(1).reshape(1, 1), "new": weight(1, 4, 6, 6)}
    ),
    "Slice": Piece(
        ("a", "from", "to", "axes"), {"from": _ints(1), "to": _ints(5), "axes": _ints(2)}
    ),
    "SpaceToDepth": Piece(attributes={"blocksize": 2}),
    "Split": Piece(("a", "sizes"), {"sizes": _ints(1, 3)}, {"axis": 1}, outputs=2, pairs=2),
    "Sqrt": Piece(("positive",)),
    "Squeeze": Piece(("wide", "axes"), {"axes": _ints(0)}),
    "Tile": Piece(("a", "times"), {"times": _ints(1, 2, 1, 1)}),
    "TopK": Piece(("a", "k"), {"k": _ints(2)}, outputs=2),
    "Unsqueeze": Piece(("a", "axes"), {"axes": _ints(0)}),
    "Upsample": Piece(),
    "Where": Piece(("mask", "a", "x"), {"mask": X > 0}),
}
"""By operator; a name of a constant is the piece's own. `Upsample` is gone before the opsets that are written."""

_NEWER = {"Gelu": 20}


def covering(operators: Sequence[str], *, opset: int = 17) -> onnx.ModelProto:
    """x -> Mul -> a -> each operator -> its output, named after it in lower case."""
    nodes = [
        node("Mul", ["x", "factors"], ["a"], "head"),
        node("Mul", ["a", "a"], ["square"], "square"),
        node("Add", ["square", "one"], ["positive"], "positive"),
        node("Flatten", ["a"], ["flat"], "flat"),
        node("Unsqueeze", ["a", "front"], ["wide"], "wide"),
    ]
    constants: dict[str, Array] = {"one": np.asarray(0.25, np.float32), "front": _ints(0)}
    constants["factors"] = 1 + weight(4, 1, 1, seed=7)
    outputs: dict[str, None] = {}
    types: dict[str, int] = {}
    for op_type in operators:
        piece, name = PIECES[op_type], op_type.lower()
        own = {key: f"{name}_{key}" for key in piece.constants}
        results = [name, *(f"{name}_{i}" for i in range(1, piece.outputs))]
        inputs = [own.get(key, key) for key in piece.inputs]
        nodes.append(node(op_type, inputs, results, op_type, **piece.attributes))
        constants.update({own[key]: array for key, array in piece.constants.items()})
        outputs.update(dict.fromkeys(results))
        types[name] = piece.result
    types |= {"topk_1": TensorProto.INT64}
    made = graph(nodes, {"x": list(SHAPE)}, outputs, constants, types=types)
    newest = max([opset, *(_NEWER.get(op_type, 0) for op_type in operators)])
    return onnx.shape_inference.infer_shapes(model(made, opset=newest))
