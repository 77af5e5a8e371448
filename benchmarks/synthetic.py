"""Models made for measuring scale: one over 2 GB, graphs of any number of nodes, and the layers of ResNet-50."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

__all__ = ["big_model", "long_graph", "resnet50"]

_WIDTH = 5120
# Blocks and inner width of each stage of ResNet-50; the outer width is four times the inner.
_STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))
_QUIET = 0.3  # of a branch, so that sums of many do not grow


def big_model(path: Path, layers: int = 25, width: int = _WIDTH) -> Path:
    """Write `layers` MatMuls of width x width with external data: 2.6 GB for the defaults."""
    data = path.with_name(f"{path.name}.data")
    generator = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    nbytes = width * width * 4
    with data.open("wb") as file:
        for i in range(layers):
            block = generator.standard_normal((width, 64), np.float32) / np.sqrt(width)
            array = np.tile(block, (1, width // 64)).astype(np.float32)
            # Layers differ in scale only: a shift would drive every Tanh to exactly 1, and an output
            # that is constant agrees with anything.
            array *= np.float32(1 + 1e-3 * i)
            file.write(array.tobytes())
            tensor = TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=[width, width])
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (
                ("location", data.name),
                ("offset", str(i * nbytes)),
                ("length", str(nbytes)),
            ):
                tensor.external_data.add(key=key, value=value)
            weights.append(tensor)
            nodes.append(helper.make_node("MatMul", [last, f"w{i}"], [f"m{i}"], name=f"mm{i}"))
            nodes.append(helper.make_node("Tanh", [f"m{i}"], [f"y{i}"], name=f"tanh{i}"))
            last = f"y{i}"
    _write(path, nodes, weights, ["N", width], last)
    return path


def long_graph(path: Path, nodes: int, width: int = 64) -> Path:
    """Write `nodes` nodes, alternately MatMul (each with its own weight) and a residual Add."""
    generator = np.random.default_rng(0)
    made, weights, last = [], [], "x"
    for i in range(nodes // 2):
        array = generator.standard_normal((width, width), np.float32) * 0.01 / np.sqrt(width)
        weights.append(onnx.numpy_helper.from_array(array.astype(np.float32), f"w{i}"))
        made.append(helper.make_node("MatMul", [last, f"w{i}"], [f"m{i}"], name=f"mm{i}"))
        made.append(helper.make_node("Add", [last, f"m{i}"], [f"y{i}"], name=f"add{i}"))
        last = f"y{i}"
    _write(path, made, weights, ["N", width], last)
    return path


class _Layers:
    """Nodes and weights of a network of convolutions, one after the other."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._generator = np.random.default_rng(0)

    def weight(self, shape: tuple[int, ...], gain: float = 1.0) -> str:
        """Return the name of a new weight, of He's variance."""
        spread = gain * np.sqrt(2 / np.prod(shape[1:]))
        array = self._generator.standard_normal(shape, np.float32) * np.float32(spread)
        return self.constant(array)

    def constant(self, array: np.ndarray) -> str:
        """Return the name of a new constant."""
        name = f"w{len(self.weights)}"
        self.weights.append(onnx.numpy_helper.from_array(array, name))
        return name

    def add(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Return the output of a new node."""
        name = f"{op_type}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], name=name, **attributes))
        return name

    def conv(self, x: str, shape: tuple[int, ...], stride: int = 1, gain: float = 1.0) -> str:
        """Return a Conv with a small bias, whose padding keeps the extents."""
        bias = self._generator.standard_normal(shape[0], np.float32) * np.float32(0.05)
        pads, strides = [shape[-1] // 2] * 4, [stride] * 2
        weight = self.weight(shape, gain)
        return self.add("Conv", x, weight, self.constant(bias), pads=pads, strides=strides)


def resnet50(path: Path) -> Path:
    """Write a model of ResNet-50's 53 Conv and one Gemm, with made-up weights: 102 MB."""
    net = _Layers()
    x = net.add("Relu", net.conv("x", (64, 3, 7, 7), 2))
    x = net.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    width = 64
    for stage, (blocks, inner) in enumerate(_STAGES):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            short = x
            if not block:
                short = net.conv(x, (4 * inner, width, 1, 1), stride)
            x = net.add("Relu", net.conv(x, (inner, width, 1, 1)))
            x = net.add("Relu", net.conv(x, (inner, inner, 3, 3), stride))
            x = net.conv(x, (4 * inner, inner, 1, 1), gain=_QUIET)
            x = net.add("Relu", net.add("Add", x, short))
            width = 4 * inner
    x = net.add("Flatten", net.add("GlobalAveragePool", x))
    x = net.add("Gemm", x, net.weight((1000, width)), transB=1)
    _write(path, net.nodes, net.weights, ["N", 3, 224, 224], x, ["N", 1000])
    return path


def _write(
    path: Path,
    nodes: list[onnx.NodeProto],
    weights: list[onnx.TensorProto],
    shape: list[int | str],
    output: str,
    result: list[int | str] | None = None,
) -> None:
    graph = helper.make_graph(
        nodes,
        "synthetic",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, result or shape)],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
