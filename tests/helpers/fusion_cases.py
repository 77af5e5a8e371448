"""Products in QDQ form with one thing wrong each."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from builders import Array, graph, model, node, rng

__all__ = ["Case", "residual"]

_STEP, _WEIGHT = 0.05, 0.01
_SHAPES = {
    "Conv": ((1, 4, 6, 6), (4, 4, 1, 1)),
    "ConvTranspose": ((1, 4, 6, 6), (4, 4, 1, 1)),
    "Gemm": ((2, 8), (8, 4)),
    "MatMul": ((2, 4), (4, 4)),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One product between DequantizeLinear and QuantizeLinear.

    Attributes:
        op: Its operator.
        read: Type of what it reads; None: float.
        made: Type of what it makes; None: float.
        weight: Type of its weight; None: float.
        bias: "int32", "float", "computed", "uint8", "shifted" (a zero point), "wrong" (another scale) or "".
        between: Operators between it and QuantizeLinear.
        zero: The zero point of what it makes, above the lowest integer.
        channels: Scales of the weight along this axis.
        zeros: Zero points are written.
        other: Another node reads its float output.
        integers: The model's input is what DequantizeLinear reads.
        attributes: Of the product.
    """

    op: str = "Conv"
    read: type | None = np.uint8
    made: type | None = np.uint8
    weight: type | None = np.int8
    bias: str = ""
    between: tuple[str, ...] = ()
    zero: int = 0
    channels: int | None = None
    zeros: bool = True
    other: bool = False
    integers: bool = False
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def build(self) -> onnx.ModelProto:
        """Return the model; its product is called "product"."""
        nodes: list[onnx.NodeProto] = []
        constants: dict[str, Array] = {}
        operands = [self._input(nodes, constants), self._weight(nodes, constants)]
        if self.bias:
            operands.append(self._bias(nodes, constants))
        nodes.append(node(self.op, operands, ["m"], "product", **self.attributes))
        last = self._after(nodes, constants)
        outputs: dict[str, Any] = {last: None}
        if self.other:
            nodes.append(node("Neg", ["m"], ["n"], "neg"))
            outputs["n"] = None
        kind = (
            {"x": onnx.helper.np_dtype_to_tensor_dtype(np.dtype(self.read))}
            if self.integers
            else {}
        )
        inputs = {"x": _SHAPES[self.op][0]}
        return model(graph(nodes, inputs, outputs, constants, types=kind), opset=21, ir_version=10)

    def _input(self, nodes: list[onnx.NodeProto], constants: dict[str, Array]) -> str:
        if self.read is None:
            return "x"
        constants["xs"] = np.array(_STEP, np.float32)
        constants["xz"] = np.array(np.iinfo(self.read).min, self.read)
        if not self.integers:
            nodes.append(node("QuantizeLinear", ["x", "xs", "xz"], ["xq"], "xq"))
        source = "x" if self.integers else "xq"
        zero = ["xz"] if self.zeros else []
        nodes.append(node("DequantizeLinear", [source, "xs", *zero], ["xd"], "xd"))
        return "xd"

    def _weight(self, nodes: list[onnx.NodeProto], constants: dict[str, Array]) -> str:
        shape = _SHAPES[self.op][1]
        if self.weight is None:
            constants["w"] = rng().standard_normal(shape).astype(np.float32)
            return "w"
        count = () if self.channels is None else (shape[self.channels],)
        constants["w"] = rng().integers(0, 64, shape).astype(self.weight)
        constants["ws"] = np.full(count, _WEIGHT, np.float32)
        constants["wz"] = np.zeros(count, self.weight)
        axis = {} if self.channels is None else {"axis": self.channels}
        zero = ["wz"] if self.zeros else []
        nodes.append(node("DequantizeLinear", ["w", "ws", *zero], ["wd"], "wd", **axis))
        return "wd"

    def _bias(self, nodes: list[onnx.NodeProto], constants: dict[str, Array]) -> str:
        if self.bias == "float":
            constants["b"] = np.ones(4, np.float32)
            return "b"
        if self.bias == "computed":
            nodes.append(node("ReduceMean", ["x"], ["mean"], keepdims=0))
            constants["four"] = np.array([4], np.int64)
            nodes.append(node("Expand", ["mean", "four"], ["b"]))
            return "b"
        dtype = np.uint8 if self.bias == "uint8" else np.int32
        scale = _STEP * _WEIGHT * (2 if self.bias == "wrong" else 1)
        constants["b"] = np.arange(4).astype(dtype)
        constants["bs"] = np.array(scale, np.float32)
        constants["bz"] = np.array(int(self.bias == "shifted"), dtype)
        nodes.append(node("DequantizeLinear", ["b", "bs", "bz"], ["bd"], "bd"))
        return "bd"

    def _after(self, nodes: list[onnx.NodeProto], constants: dict[str, Array]) -> str:
        last = "m"
        for op in self.between:
            more = []
            if op == "BatchNormalization":
                more = [f"bn{i}" for i in range(4)]
                constants.update({name: np.ones(4, np.float32) for name in more})
            nodes.append(node(op, [last, *more], [f"{last}_{op}"], op))
            last = f"{last}_{op}"
        if self.made is None:
            return last
        constants["ys"] = np.array(_STEP, np.float32)
        constants["yz"] = np.array(np.iinfo(self.made).min + self.zero, self.made)
        nodes.append(node("QuantizeLinear", [last, "ys", "yz"], ["yq"], "yq"))
        nodes.append(node("DequantizeLinear", ["yq", "ys", "yz"], ["y"], "yd"))
        return "y"


def residual() -> onnx.ModelProto:
    """Float: x -> Conv 'stem' -> Relu -> (Conv 'a' -> Relu -> Conv 'b') + itself -> Conv 'head' -> y."""
    nodes, constants = [], {}
    chain = [
        ("x", "stem", "Relu"),
        ("stem_out", "a", "Relu"),
        ("a_out", "b", ""),
        ("sum", "head", ""),
    ]
    for seed, (source, name, after) in enumerate(chain):
        shape = (8, 8, 3, 3)
        constants[f"{name}_w"] = (rng(seed).standard_normal(shape) * 0.1).astype(np.float32)
        constants[f"{name}_b"] = rng(seed + 9).standard_normal(8).astype(np.float32)
        made = f"{name}_raw" if after else f"{name}_out"
        reads = [source, f"{name}_w", f"{name}_b"]
        nodes.append(node("Conv", reads, [made], name, pads=[1, 1, 1, 1]))
        if after:
            nodes.append(node(after, [made], [f"{name}_out"], f"{name}_relu"))
        if name == "b":
            nodes.append(node("Add", ["stem_out", "b_out"], ["sum"], "add"))
    shapes = {"x": [1, 8, 12, 12]}, {"head_out": [1, 8, 12, 12]}
    return model(graph(nodes, *shapes, constants))
