"""Models made for measuring scale: one over 2 GB, and graphs of any number of nodes."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

__all__ = ["big_model", "long_graph"]

_WIDTH = 5120


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


def _write(
    path: Path,
    nodes: list[onnx.NodeProto],
    weights: list[onnx.TensorProto],
    shape: list[int | str],
    output: str,
) -> None:
    graph = helper.make_graph(
        nodes,
        "synthetic",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
