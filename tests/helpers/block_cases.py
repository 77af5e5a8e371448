"""Models whose weights are quantized in blocks, and what comes of them: shared by the tests of plans, emitters and the whole line."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from builders import Array, Shape, graph, model, node, weight
from onnx import TensorProto

from quantkit.model.graph.load import load
from quantkit.model.graph.opset import raise_opset
from quantkit.model.graph.protos import to_proto
from quantkit.model.graph.save import copy_of
from quantkit.model.graph.view import view_of
from quantkit.numerics.blocks import BlockCodes, as_rows, fit_blocks, from_rows
from quantkit.quantize.emit.blocks import emit_blocks
from quantkit.quantize.plan import Plan, plan_blocks
from quantkit.quantize.plan.solved import SolvedIntegers
from quantkit.quantize.rewrite.simplify.initializers import tie_weights
from quantkit.settings import WeightsSettings

ROWS, WIDTH = 4200, 256  # of a table that is large enough to be looked up in blocks


def layers(
    k: int = 96, n: int = 80, *, opset: int = 17, gemm: dict[str, Any] | None = None
) -> onnx.ModelProto:
    """x [N, k] -> MatMul 'first' (k, n) -> Relu -> MatMul or Gemm 'second' (n, k) -> y."""
    held = {"w1": weight(k, n), "w2": weight(n, k, seed=1)}
    inputs = ["a", "w2"]
    if gemm is not None and gemm.get("transB"):
        held["w2"] = weight(k, n, seed=1)
    if gemm is not None:
        held["b"] = weight(k, seed=2)
        inputs.append("b")
    second = node("Gemm" if gemm is not None else "MatMul", inputs, ["y"], "second", **(gemm or {}))
    nodes = [
        node("MatMul", ["x", "w1"], ["m"], "first"),
        node("Relu", ["m"], ["a"], "relu"),
        second,
    ]
    return model(graph(nodes, {"x": ["N", k]}, {"y": ["N", k]}, held), opset=opset)


def language_model(*, tied: bool = True, rows: int = ROWS, width: int = WIDTH) -> onnx.ModelProto:
    """ids [N] -> Gather 'look_up' -> MatMul 'layer' -> Add -> MatMul 'head', the table's transpose if tied."""
    table = weight(rows, width)
    head = table.T if tied else weight(width, rows, seed=9)
    held = {"table": table, "layer": weight(width, width, seed=1, scale=0.05), "head": head}
    nodes = [
        node("Gather", ["table", "ids"], ["rows"], "look_up"),
        node("MatMul", ["rows", "layer"], ["m"], "layer"),
        node("Add", ["rows", "m"], ["h"], "add"),
        node("MatMul", ["h", "head"], ["logits"], "head"),
    ]
    held = {name: np.ascontiguousarray(array) for name, array in held.items()}
    proto = graph(
        nodes, {"ids": ["N"]}, {"logits": ["N", rows]}, held, types={"ids": TensorProto.INT64}
    )
    return model(proto)


def chain(depth: int = 3, k: int = 64, *, seed: int = 0, skips: bool = False) -> onnx.ModelProto:
    """x [N, k] -> MatMul 'layer0' by 'w0' -> Relu -> ... -> y, `depth` layers; with skips each adds what it reads."""
    nodes, held, last = [], {}, "x"
    for i in range(depth):
        held[f"w{i}"] = weight(k, k, seed=seed + i, scale=1.4 / k**0.5)
        end = "y" if i == depth - 1 else f"a{i}"
        nodes.append(node("MatMul", [last, f"w{i}"], [f"m{i}"], f"layer{i}"))
        if skips:
            nodes.append(node("Add", [f"m{i}", last], [f"s{i}"], f"skip{i}"))
        nodes.append(node("Relu", [f"s{i}" if skips else f"m{i}"], [end], f"relu{i}"))
        last = end
    return model(graph(nodes, {"x": ["N", k]}, {"y": ["N", k]}, held))


def branches() -> onnx.ModelProto:
    """x, c -> MatMul 'outside' -> If 'if': MatMul 'inside' by a weight of its branch, or 'captured' by one of the main graph -> y."""
    inner = graph(
        [node("MatMul", ["a", "k"], ["t"], "inside")], {}, {"t": ["N", 80]}, {"k": weight(96, 80)}
    )
    other = graph([node("MatMul", ["a", "outer"], ["e"], "captured")], {}, {"e": ["N", 80]})
    nodes = [
        node("MatMul", ["x", "w"], ["a"], "outside"),
        node("If", ["c"], ["y"], "if", then_branch=inner, else_branch=other),
    ]
    held = {"w": weight(64, 96, seed=1), "outer": weight(96, 80, seed=2)}
    types = {"c": TensorProto.BOOL}
    return model(graph(nodes, {"x": ["N", 64], "c": []}, {"y": ["N", 80]}, held, types=types))


def loop() -> onnx.ModelProto:
    """x -> Loop 'loop', three times: MatMul 'inside' -> Tanh -> y."""
    nodes = [
        node("MatMul", ["h", "k"], ["m"], "inside"),
        node("Tanh", ["m"], ["out"], "tanh"),
        node("Identity", ["go"], ["on"], "same"),
    ]
    types = {"i": TensorProto.INT64, "go": TensorProto.BOOL, "on": TensorProto.BOOL}
    inputs: dict[str, Shape] = {"i": [], "go": [], "h": ["N", 96]}
    outputs: dict[str, Shape] = {"on": [], "out": ["N", 96]}
    body = graph(nodes, inputs, outputs, {"k": weight(96, 96)}, types=types)
    held = {"count": np.array(3), "yes": np.array(True)}
    whole = [node("Loop", ["count", "yes", "x"], ["y"], "loop", body=body)]
    return model(graph(whole, {"x": ["N", 96]}, {"y": ["N", 96]}, held))


def pictures() -> onnx.ModelProto:
    """x [N, 3, 12, 12] -> Conv 'first' -> Conv 'depthwise' -> Conv 'point' -> Conv 'wide' -> pool -> Gemm 'head' -> y [N, 40]."""
    held: dict[str, Array] = {
        "first_w": weight(32, 3, 3, 3),
        "depthwise_w": weight(32, 1, 3, 3, seed=1),
        "point_w": weight(48, 32, 1, 1, seed=2),
        "wide_w": weight(96, 48, 3, 3, seed=3, scale=0.07),
        "head_w": weight(40, 96, seed=4),
        "head_b": weight(40, seed=5),
    }
    convs: dict[str, dict[str, Any]] = {
        "first": {"pads": [1] * 4, "strides": [2, 2]},
        "depthwise": {"pads": [1] * 4, "group": 32},
        "point": {},
        "wide": {"pads": [1] * 4},
    }
    nodes, last = [], "x"
    for seed, (name, attributes) in enumerate(convs.items()):
        held[f"{name}_b"] = weight(held[f"{name}_w"].shape[0], seed=10 + seed)
        made = node("Conv", [last, f"{name}_w", f"{name}_b"], [f"{name}_c"], name, **attributes)
        nodes += [made, node("Relu", [f"{name}_c"], [f"{name}_r"], f"{name}_relu")]
        last = f"{name}_r"
    nodes += [
        node("GlobalAveragePool", [last], ["pooled"], "pool"),
        node("Flatten", ["pooled"], ["flat"], "flatten"),
        node("Gemm", ["flat", "head_w", "head_b"], ["y"], "head", transB=1),
    ]
    return model(graph(nodes, {"x": ["N", 3, 12, 12]}, {"y": ["N", 40]}, held))


def prepared(proto: onnx.ModelProto | Path, opset: int = 0) -> ir.Model:
    built = copy_of(load(proto).model)
    tie_weights(built)
    return raise_opset(built, opset) if opset else built


def planned(
    proto: onnx.ModelProto | Path, options: WeightsSettings | None = None, **more: Any
) -> tuple[ir.Model, Plan]:
    """Return a float model and its plan in blocks."""
    options = options or WeightsSettings(**more)
    built = prepared(proto, 21 if options.format == "onnx" else 0)
    return built, plan_blocks(view_of(built), options)


def codes_of(built: ir.Model, plan: Plan) -> dict[str, BlockCodes]:
    """Return the nearest codes of every weight of a plan that has few bits."""
    held = {n: v.const_value for part in built.graphs() for n, v in part.initializers.items()}
    found = {}
    for planned_weight in plan.weights:
        tensor = held[planned_weight.tensor]
        assert tensor is not None
        assert planned_weight.blocks is not None
        axis = planned_weight.spec.granularity.axis  # type: ignore[union-attr]
        found[planned_weight.tensor] = fit_blocks(
            as_rows(tensor.numpy(), axis), planned_weight.blocks
        )
    return found


def emitted(
    built: ir.Model, plan: Plan, codes: dict[str, BlockCodes] | None = None
) -> onnx.ModelProto:
    """Return the quantized model, valid ONNX; with the nearest codes if none are given."""
    emit_blocks(built, plan, SolvedIntegers(blocks=codes or codes_of(built, plan)))
    proto = to_proto(built)
    proto.ir_version = 10
    onnx.checker.check_model(proto, full_check=False)
    return proto


def with_floats(
    proto: onnx.ModelProto, plan: Plan, codes: dict[str, BlockCodes]
) -> onnx.ModelProto:
    """Return a float model with the numbers that a plan's codes stand for: what a quantized one is to compute."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    held = {t.name: onnx.numpy_helper.to_array(t) for t in _tensors(made.graph)}
    restored = {}
    for name, found in codes.items():
        axis = plan.weight[name].spec.granularity.axis  # type: ignore[union-attr]
        restored[name] = from_rows(found.dequantized(), held[name].shape, axis)
    for tensor in _tensors(made.graph):
        array = held[tensor.name]
        for name, numbers in restored.items():
            if tensor.name == name:
                tensor.CopyFrom(onnx.numpy_helper.from_array(numbers, name))
            elif array.ndim == 2 and np.array_equal(array, held[name].T):  # was tied to it
                turned = np.ascontiguousarray(numbers.T)
                tensor.CopyFrom(onnx.numpy_helper.from_array(turned, tensor.name))
    return made


def _tensors(part: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield the initializers of a graph and of what is inside of it."""
    yield from part.initializer
    for item in part.node:
        for attribute in item.attribute:
            if attribute.HasField("g"):
                yield from _tensors(attribute.g)


def feeds(proto: onnx.ModelProto, rows: int = 7) -> dict[str, Array]:
    draw = np.random.default_rng(0)
    found: dict[str, Array] = {}
    for value in proto.graph.input:
        if value.type.tensor_type.elem_type == TensorProto.INT64:
            found[value.name] = draw.integers(0, proto.graph.initializer[0].dims[0], rows)
        else:
            width = value.type.tensor_type.shape.dim[-1].dim_value
            found[value.name] = draw.standard_normal((rows, width)).astype(np.float32)
    return found


def samples(proto: onnx.ModelProto, count: int, rows: int = 16) -> list[dict[str, Array]]:
    """Return samples whose values depend on each other, as those of real data do."""
    draw = np.random.default_rng(1)
    found: list[dict[str, Array]] = [{} for _ in range(count)]
    for value in proto.graph.input:
        width = value.type.tensor_type.shape.dim[-1].dim_value
        mixed = draw.standard_normal((8, width))
        for sample in found:
            if value.type.tensor_type.elem_type == TensorProto.INT64:
                sample[value.name] = draw.integers(0, proto.graph.initializer[0].dims[0], rows)
            else:
                x = draw.standard_normal((rows, 8)) @ mixed
                x = x + 0.3 * draw.standard_normal((rows, width))
                sample[value.name] = x.astype(np.float32)
    return found


def data_file(proto: onnx.ModelProto, path: Path, count: int = 40) -> Path:
    """Write so many samples of a model's only input, a row each."""
    ((array,),) = ([*sample.values()] for sample in samples(proto, 1, count))
    np.save(path, array)
    return path
