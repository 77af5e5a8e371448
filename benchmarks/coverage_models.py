"""One small model for each operator that a target may list: what coverage.py quantizes.

Each reads an image, has a Conv (or two) in front of the operator, with weights whose channels differ as those of trained
layers do, and hands out what the operator makes. Used by coverage.py alone.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

__all__ = ["OPERATORS", "operator_model", "operator_samples"]

Array = NDArray[Any]

_OPSET = 20  # Gelu
_IR_VERSION = 9
_CHANNELS, _SIDE = 8, 16
_INT = np.int64


class _Graph:
    """Nodes and constants, as they are added."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(7)

    def constant(self, values: Any, dtype: Any = np.float32) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def weight(self, *shape: int, fan_in: int) -> str:
        """Weights of normal distribution; output channels differ by up to four times."""
        scale = np.exp(self.random.uniform(-0.7, 0.7, shape[0])) / np.sqrt(fan_in)
        values = self.random.normal(size=shape)
        return self.constant(values * scale.reshape(-1, *[1] * (len(shape) - 1)))

    def ints(self, *values: int) -> str:
        return self.constant(values, _INT)

    def add(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """Add a node; return its first output."""
        name = f"n{len(self.nodes)}"
        made = [f"{name}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, made, name=name, **attributes))
        return made[0]

    def conv(self, source: str, gain: float = 1.0) -> str:
        weight = self.weight(_CHANNELS, _CHANNELS, 3, 3, fan_in=int(_CHANNELS * 9 / gain**2))
        bias = self.constant(self.random.normal(0, 0.2, _CHANNELS))
        return self.add("Conv", source, weight, bias, pads=[1, 1, 1, 1])


Maker = Callable[[_Graph, str, str], str]
_ONES = [1, 1]


def _plain(op: str, **attributes: Any) -> Maker:
    return lambda g, a, _b: g.add(op, a, **attributes)


def _both(op: str) -> Maker:
    return lambda g, a, b: g.add(op, a, b)


def _with(op: str, *values: int, **attributes: Any) -> Maker:
    return lambda g, a, _b: g.add(op, a, g.ints(*values), **attributes)


def _rows(g: _Graph, a: str) -> str:
    return g.add("Reshape", a, g.ints(1, _SIDE, -1))


_WIDE = _CHANNELS * _SIDE
_BATCH = ((0.5, 1.5), (-0.3, 0.3), (-0.2, 0.2), (0.5, 1.5))

# By operator (or "operator: kind") what is put behind the Conv.
OPERATORS: Mapping[str, Maker] = {
    "Conv": lambda g, a, _b: g.conv(g.add("Relu", a)),
    "ConvTranspose": lambda g, a, _b: g.add(
        "ConvTranspose",
        a,
        g.weight(_CHANNELS, 6, 2, 2, fan_in=_CHANNELS),
        g.constant(g.random.normal(0, 0.1, 6)),
        strides=[2, 2],
    ),
    "Gemm": lambda g, a, _b: g.add(
        "Gemm",
        g.add("Flatten", a),
        g.weight(32, _WIDE * _SIDE, fan_in=_WIDE * _SIDE),
        g.constant(g.random.normal(0, 0.1, 32)),
        transB=1,
    ),
    "MatMul": lambda g, a, _b: g.add("MatMul", _rows(g, a), g.weight(_WIDE, 48, fan_in=_WIDE)),
    "MatMul: two activations": lambda g, a, b: g.add(
        "MatMul", _rows(g, a), g.add("Transpose", _rows(g, b), perm=[0, 2, 1])
    ),
    "MatMul: 4-D weight": lambda g, a, _b: g.add(
        "MatMul", a, g.weight(1, _CHANNELS, _SIDE, 12, fan_in=_SIDE)
    ),
    "Add": _both("Add"),
    # Behind a Relu: a preparation cannot fold it into the Conv.
    "Add: constant": lambda g, a, _b: g.add(
        "Add", g.add("Relu", a), g.constant(g.random.normal(0, 0.5, (_CHANNELS, 1, 1)))
    ),
    "Sub": _both("Sub"),
    "Mul": _both("Mul"),
    "Mul: gate": lambda g, a, b: g.add("Mul", a, g.add("Sigmoid", b)),
    "Div": lambda g, a, b: g.add("Div", a, g.add("Exp", b)),
    "Where": lambda g, a, b: g.add(
        "Where", g.constant(g.random.integers(0, 2, (_SIDE, _SIDE)), np.bool_), a, b
    ),
    "AveragePool": _plain("AveragePool", kernel_shape=[2, 2], strides=[2, 2]),
    "GlobalAveragePool": _plain("GlobalAveragePool"),
    "GlobalMaxPool": _plain("GlobalMaxPool"),
    "LeakyRelu": _plain("LeakyRelu", alpha=0.1),
    "Relu": lambda g, a, b: g.add("Relu", g.add("Add", a, b)),
    "Clip": lambda g, a, b: g.add(
        "Clip", g.add("Add", a, b), g.constant(-0.5), g.constant(np.float32(1.5))
    ),
    "PRelu": lambda g, a, _b: g.add(
        "PRelu", a, g.constant(g.random.uniform(0.1, 0.4, (_CHANNELS, 1, 1)))
    ),
    "Sigmoid": _plain("Sigmoid"),
    "Tanh": _plain("Tanh"),
    "Elu": _plain("Elu"),
    "Exp": _plain("Exp"),
    "Gelu": _plain("Gelu"),
    "HardSigmoid": _plain("HardSigmoid"),
    "HardSwish": _plain("HardSwish"),
    "Sqrt": lambda g, a, _b: g.add("Sqrt", g.add("Relu", a)),
    "Softmax": _plain("Softmax", axis=-1),
    "InstanceNormalization": lambda g, a, _b: g.add(
        "InstanceNormalization",
        a,
        g.constant(g.random.uniform(0.5, 1.5, _CHANNELS)),
        g.constant(g.random.normal(0, 0.3, _CHANNELS)),
    ),
    "LayerNormalization": lambda g, a, _b: g.add(
        "LayerNormalization",
        _rows(g, a),
        g.constant(g.random.uniform(0.5, 1.5, _WIDE)),
        g.constant(g.random.normal(0, 0.3, _WIDE)),
    ),
    "BatchNormalization": lambda g, a, b: g.add(
        "BatchNormalization",
        g.add("Add", a, b),
        *(g.constant(g.random.uniform(low, high, _CHANNELS)) for low, high in _BATCH),
    ),
    "ReduceMean": _with("ReduceMean", 2, 3),
    "ReduceSum": _with("ReduceSum", 1),
    "ReduceMax": _with("ReduceMax", 1),
    "ReduceMin": _with("ReduceMin", 1),
    "Concat": lambda g, a, b: g.add("Concat", a, b, axis=1),
    "DepthToSpace": _plain("DepthToSpace", blocksize=2),
    "SpaceToDepth": _plain("SpaceToDepth", blocksize=2),
    "Expand": lambda g, a, _b: g.add(
        "Expand", g.add("GlobalAveragePool", a), g.ints(1, _CHANNELS, 4, 4)
    ),
    "Flatten": _plain("Flatten"),
    "Gather": lambda g, a, _b: g.add("Gather", a, g.ints(3, 0, 5), axis=1),
    "GatherElements": lambda g, a, _b: g.add(
        "GatherElements",
        a,
        g.constant(g.random.integers(0, _CHANNELS, (1, 2, 16, 16)), _INT),
        axis=1,
    ),
    "MaxPool": _plain("MaxPool", kernel_shape=[2, 2], strides=[2, 2]),
    "Pad": _with("Pad", 0, 0, 1, 1, 0, 0, 2, 2),
    "Reshape": _with("Reshape", 1, -1),
    "Resize": lambda g, a, _b: g.add(
        "Resize", a, "", g.constant([1, 1, 2, 2]), mode="nearest", nearest_mode="floor"
    ),
    "Resize: linear": lambda g, a, _b: g.add(
        "Resize", a, "", g.constant([1, 1, 2, 2]), mode="linear"
    ),
    "Slice": lambda g, a, _b: g.add("Slice", a, g.ints(1, 2), g.ints(7, 14), g.ints(1, 2)),
    "Split": lambda g, a, _b: g.add("Split", a, outputs=2, axis=1, num_outputs=2),
    "Squeeze": lambda g, a, _b: g.add("Squeeze", g.add("GlobalAveragePool", a), g.ints(2, 3)),
    "Unsqueeze": _with("Unsqueeze", 0),
    "Tile": _with("Tile", 1, 1, 2, 1),
    "Transpose": _plain("Transpose", perm=[0, 2, 3, 1]),
    "TopK": lambda g, a, _b: g.add("TopK", a, g.ints(4), outputs=2, axis=1),
    "ArgMax": _plain("ArgMax", axis=1),
    "ArgMin": _plain("ArgMin", axis=1),
    **{
        op: _plain(op)
        for op in ("Abs", "Ceil", "Cos", "Floor", "Neg", "Round", "Sign", "Sin", "Softplus")
    },
    **{op: _both(op) for op in ("Max", "Min", "Sum")},
    "Log": lambda g, a, _b: g.add("Log", g.add("Softplus", a)),
    "LogSoftmax": _plain("LogSoftmax", axis=1),
    "LpNormalization": _plain("LpNormalization", axis=1),
    "Pow": lambda g, a, _b: g.add("Pow", a, g.constant(np.float32(2))),
    "CumSum": lambda g, a, _b: g.add("CumSum", a, g.constant(2, _INT)),
    "GatherND": lambda g, a, _b: g.add("GatherND", a, g.constant([[0, 3], [0, 5]], _INT)),
    "ScatterND": lambda g, a, b: g.add(
        "ScatterND", a, g.constant([[0, 3]], _INT), g.add("Gather", b, g.constant(0, _INT), axis=1)
    ),
    "ScatterElements": lambda g, a, b: g.add(
        "ScatterElements",
        a,
        g.constant(np.zeros((1, 1, _SIDE, _SIDE)), _INT),
        g.add("Slice", b, g.ints(0), g.ints(1), g.ints(1)),
        axis=1,
    ),
    "GridSample": lambda g, a, _b: g.add(
        "GridSample", a, g.constant(g.random.uniform(-1, 1, (1, _SIDE, _SIDE, 2)))
    ),
}


def operator_model(name: str) -> onnx.ModelProto:
    """Return the model of an operator of `OPERATORS`."""
    g = _Graph()
    first, second = g.conv("x"), g.conv("x", gain=0.4)
    made = OPERATORS[name](g, first, second)
    needed = _needed(g.nodes, made)
    last = next(node for node in needed if made in node.output)
    shape = [1, _CHANNELS, _SIDE, _SIDE]
    graph = helper.make_graph(
        needed,
        "operator",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_empty_tensor_value_info(n) for n in last.output],
        [c for c in g.constants if any(c.name in node.input for node in needed)],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION
    )
    inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    onnx.checker.check_model(inferred)
    return inferred


def _needed(nodes: Sequence[onnx.NodeProto], output: str) -> list[onnx.NodeProto]:
    """Return the nodes that `output` depends on, in their order."""
    wanted, kept = {output}, []
    for node in reversed(nodes):
        if wanted & set(node.output):
            kept.append(node)
            wanted |= set(node.input)
    return kept[::-1]


def operator_samples(count: int, seed: int) -> list[dict[str, Array]]:
    """Return inputs as smooth as images are, with channels of their own means."""
    random = np.random.default_rng(seed)
    shape = (count, 1, _CHANNELS, _SIDE, _SIDE)
    rough = random.normal(size=shape)
    smooth = sum(np.roll(rough, (i, j), (-2, -1)) for i in (-1, 0, 1) for j in (-1, 0, 1)) / 3
    means = np.random.default_rng(0).normal(0, 0.5, (_CHANNELS, 1, 1))
    return [{"x": sample} for sample in (smooth + means).astype(np.float32)]
