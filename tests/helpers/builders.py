"""Tiny models for tests."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]
Shape = Sequence[int | str | None] | None
MS = "com.microsoft"


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def weight(*shape: int, seed: int = 0, scale: float = 0.2) -> NDArray[np.float32]:
    return (rng(seed).standard_normal(shape) * scale).astype(np.float32)


def node(
    op: str, inputs: Sequence[str], outputs: Sequence[str], name: str = "", **attributes: Any
) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), list(outputs), name=name, **attributes)


def graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Shape],
    outputs: Mapping[str, Shape],
    weights: Mapping[str, Array] | None = None,
    *,
    name: str = "g",
    types: Mapping[str, int] | None = None,
) -> onnx.GraphProto:
    """`inputs` and `outputs` map names to shapes; all float32 unless `types` says otherwise."""
    types = types or {}

    def info(key: str, shape: Shape) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(key, types.get(key, TensorProto.FLOAT), shape)

    return helper.make_graph(
        list(nodes),
        name,
        [info(k, s) for k, s in inputs.items()],
        [info(k, s) for k, s in outputs.items()],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in (weights or {}).items()],
    )


def model(
    proto: onnx.GraphProto,
    *,
    opset: int = 17,
    ir_version: int = 8,
    domains: Mapping[str, int] | None = None,
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    imports = [helper.make_opsetid("", opset)]
    imports += [helper.make_opsetid(d, v) for d, v in (domains or {}).items()]
    return helper.make_model(
        proto, opset_imports=imports, ir_version=ir_version, functions=list(functions)
    )


def save(proto: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(proto.SerializeToString())
    return path


def matmul_model(
    k: int = 128, n: int = 192, *, opset: int = 17, bias: bool = True
) -> onnx.ModelProto:
    """x [N, k] -> MatMul 'mm' (weight 'w') -> Add 'add' -> y; large enough to run in integers."""
    nodes = [node("MatMul", ["x", "w"], ["m" if bias else "y"], "mm")]
    weights = {"w": weight(k, n)}
    if bias:
        nodes.append(node("Add", ["m", "b"], ["y"], "add"))
        weights["b"] = weight(n, seed=1)
    return model(graph(nodes, {"x": ["N", k]}, {"y": ["N", n]}, weights), opset=opset)


def conv_model() -> onnx.ModelProto:
    """x [N, 3, 8, 8] -> Conv 'c1' -> Relu 'r' -> a -> Conv 'c2' -> y."""
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["m"], "c1", pads=[1, 1, 1, 1]),
        node("Relu", ["m"], ["a"], "r"),
        node("Conv", ["a", "w2"], ["y"], "c2"),
    ]
    held = {"w1": weight(8, 3, 3, 3), "b1": weight(8, seed=1), "w2": weight(4, 8, 1, 1, seed=2)}
    return model(graph(nodes, {"x": ["N", 3, 8, 8]}, {"y": ["N", 4, 8, 8]}, held))


def run(
    proto: onnx.ModelProto | Path | str, feeds: Mapping[str, Array], *, optimize: bool = True
) -> list[Array]:
    """Run in onnxruntime with default optimization, or with none."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    source = proto.SerializeToString() if isinstance(proto, onnx.ModelProto) else str(proto)
    session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    result: list[Array] = session.run(None, dict(feeds))
    return result


def sqnr(expected: Array, actual: Array) -> float:
    noise = float(((expected - actual) ** 2).sum())
    return float("inf") if noise == 0 else 10 * float(np.log10((expected**2).sum() / noise))


def fused_ops(path: Path, folder: Path) -> list[str]:
    """Return the operator types of onnxruntime's optimized graph, subgraphs included."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return op_types(onnx.load(folder / "optimized.onnx"))


def op_types(proto: onnx.ModelProto) -> list[str]:
    """Return the operator types of a model, subgraphs included."""

    def walk(part: onnx.GraphProto) -> list[str]:
        found = []
        for item in part.node:
            found.append(item.op_type)
            for attribute in item.attribute:
                if attribute.HasField("g"):
                    found += walk(attribute.g)
        return found

    return walk(proto.graph)


def initializers(proto: onnx.ModelProto) -> dict[str, Array]:
    return {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
