"""Models of one operator between QuantizeLinear and DequantizeLinear."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from builders import Array, graph, model, node, rng

from quantkit.numerics.dtypes import IntType

SHAPE = (1, 8, 6, 6)
STEP_IN, STEP_OUT = 0.05, 0.07


@dataclass(frozen=True)
class Case:
    """An operator between floats; `rest` are constants behind its inputs, `first` before them."""

    inputs: int = 1
    outputs: int = 1
    first: tuple[Array, ...] = ()
    rest: tuple[Array | None, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)


def ints(*values: int) -> tuple[Array]:
    return (np.array(values, np.int64),)


def resize(mode: str) -> Case:
    return Case(rest=(None, np.array([1, 1, 2, 2], np.float32)), attributes={"mode": mode})


CASES = {
    "Add": Case(inputs=2),
    "AveragePool": Case(attributes={"kernel_shape": [2, 2]}),
    "Concat": Case(inputs=2, attributes={"axis": 1}),
    "GlobalAveragePool": Case(),
    "HardSigmoid": Case(),
    "LeakyRelu": Case(attributes={"alpha": 0.1}),
    "Mul": Case(inputs=2),
    "Sigmoid": Case(),
    "Softmax": Case(),
    "Where": Case(inputs=2, first=(rng().random(SHAPE) > 0.5,)),
    "DepthToSpace": Case(attributes={"blocksize": 2}),
    "Expand": Case(rest=ints(2, 8, 6, 6)),
    "Flatten": Case(),
    "Gather": Case(rest=ints(0, 2), attributes={"axis": 1}),
    "GatherElements": Case(rest=(np.zeros(SHAPE, np.int64),)),
    "Max": Case(inputs=2),
    "MaxPool": Case(attributes={"kernel_shape": [2, 2]}),
    "Min": Case(inputs=2),
    "Pad": Case(rest=ints(0, 0, 1, 1, 0, 0, 1, 1)),
    "ReduceMax": Case(),
    "ReduceMin": Case(),
    "Reshape": Case(rest=ints(1, -1)),
    "Resize": resize("nearest"),
    "Slice": Case(rest=(*ints(0), *ints(4), *ints(1))),
    "Split": Case(outputs=2, rest=ints(3, 5), attributes={"axis": 1}),
    "Squeeze": Case(rest=ints(0)),
    "Tile": Case(rest=ints(2, 1, 1, 1)),
    "Transpose": Case(attributes={"perm": [0, 2, 3, 1]}),
    "Unsqueeze": Case(rest=ints(0)),
}
FLOAT_CASES = {
    "Abs": Case(),
    "Clip": Case(rest=(np.array(0, np.float32), np.array(6, np.float32))),
    "Div": Case(inputs=2),
    "Elu": Case(),
    "Erf": Case(),
    "Exp": Case(),
    "GlobalMaxPool": Case(),
    "Neg": Case(),
    "PRelu": Case(rest=(np.array([0.1], np.float32),)),
    "ReduceMean": Case(),
    "ReduceSum": Case(),
    "Relu": Case(),
    "SpaceToDepth": Case(attributes={"blocksize": 2}),
    "Sqrt": Case(),
    "Sub": Case(inputs=2),
    "Sum": Case(inputs=2),
    "Tanh": Case(),
}


def middle(dtype: IntType) -> Array:
    return np.array((dtype.qmin + dtype.qmax + 1) // 2, dtype.storage)


def wrapped(op: str, case: Case, dtype: IntType, *, shared: bool, opset: int) -> onnx.ModelProto:
    """QuantizeLinear and DequantizeLinear around one operator; `shared`: the same scale behind it."""
    scale_out = "in_scale" if shared else "out_scale"
    weights: dict[str, Array] = {
        "in_scale": np.array(STEP_IN, np.float32),
        "out_scale": np.array(STEP_OUT, np.float32),
        "zero": middle(dtype),
    }
    nodes, operands = [], []
    for i, constant in enumerate(case.first):
        weights[f"first{i}"] = constant
        operands.append(f"first{i}")
    for i in range(case.inputs):
        nodes += pair(f"x{i}", f"d{i}", "in_scale")
        operands.append(f"d{i}")
    for i, extra in enumerate(case.rest):
        if extra is not None:
            weights[f"rest{i}"] = np.asarray(extra)
        operands.append("" if extra is None else f"rest{i}")
    made = [f"m{i}" for i in range(case.outputs)]
    nodes.append(node(op, operands, made, op, **case.attributes))
    for i, name in enumerate(made):
        nodes += pair(name, f"y{i}", scale_out)
    return model(
        graph(
            nodes,
            {f"x{i}": SHAPE for i in range(case.inputs)},
            {f"y{i}": None for i in range(case.outputs)},
            weights,
        ),
        opset=opset,
        ir_version=10,
    )


def pair(source: str, result: str, scale: str, zero: str = "zero") -> list[onnx.NodeProto]:
    return [
        node("QuantizeLinear", [source, scale, zero], [f"{result}_q"]),
        node("DequantizeLinear", [f"{result}_q", scale, zero], [result]),
    ]


def product(
    op: str, dtype: IntType, *, channels: bool, output: bool = True, opset: int = 13
) -> onnx.ModelProto:
    """A product with an int32 bias (MatMul takes none), weights by channel or by tensor."""
    shape, axis, x = ((4, 8, 3, 3), 0, SHAPE) if op == "Conv" else ((8, 4), 1, (3, 8))
    count = (4,) if channels else ()
    w_scale = np.full(count, 0.01, np.float32)
    weights: dict[str, Array] = {
        "x_scale": np.array(STEP_IN, np.float32),
        "y_scale": np.array(STEP_OUT, np.float32),
        "zero": middle(dtype),
        # Below 64: pair-safe, so that the integers are the same on every CPU.
        "w": rng().integers(-63, 64, shape).astype(np.int8),
        "w_scale": w_scale,
        "w_zero": np.zeros(count, np.int8),
        "b": rng(1).integers(-99, 99, 4).astype(np.int32),
        "b_scale": (np.float32(STEP_IN) * w_scale).astype(np.float32),
        "b_zero": np.zeros(count, np.int32),
    }
    w_axis: dict[str, Any] = {"axis": axis} if channels else {}
    b_axis: dict[str, Any] = {"axis": 0} if channels else {}
    nodes = pair("x", "d", "x_scale")
    nodes.append(node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["wf"], **w_axis))
    operands = ["d", "wf"]
    if op != "MatMul":
        nodes.append(node("DequantizeLinear", ["b", "b_scale", "b_zero"], ["bf"], **b_axis))
        operands.append("bf")
    nodes.append(node(op, operands, ["m" if output else "y"], op))
    nodes += pair("m", "y", "y_scale") if output else []
    return model(graph(nodes, {"x": x}, {"y": None}, weights), opset=opset, ir_version=10)
