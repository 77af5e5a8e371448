"""Emitted graphs: right in onnxruntime, optimized or not, and of the shape that it fuses."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import (
    MS,
    Array,
    fused_ops,
    graph,
    initializers,
    matmul_model,
    model,
    node,
    op_types,
    rng,
    run,
    sqnr,
    weight,
)
from onnx import TensorProto, helper, numpy_helper

from quantkit import QInt8, QuantizeResult, QUInt8, quantize_dynamic
from quantkit.numerics.pairs import is_pair_safe
from quantkit.spec import PerAxis

TYPES = pytest.mark.parametrize("weight_type", [QUInt8, QInt8], ids=["uint8", "int8"])


def quantized(
    proto: onnx.ModelProto, tmp_path: Path, **options: Any
) -> tuple[QuantizeResult, Path]:
    target = tmp_path / "q.onnx"
    result = quantize_dynamic(proto, target, **options)
    return result, target


def close(
    proto: onnx.ModelProto, target: Path, feeds: dict[str, Array], *, at_least: float = 25
) -> None:
    """Every output is near float's, with and without onnxruntime's optimizations."""
    expected = run(proto, feeds)
    for optimize in (True, False):
        actual = run(target, feeds, optimize=optimize)
        for e, a in zip(expected, actual, strict=True):
            assert e.shape == a.shape
            assert sqnr(e, a) > at_least


def x(*shape: int) -> Array:
    return rng(7).standard_normal(shape).astype(np.float32)


@TYPES
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
def test_matmul_becomes_one_fused_kernel(tmp_path: Path, weight_type: Any, bias: bool) -> None:  # noqa: FBT001
    proto = matmul_model(bias=bias)
    _, target = quantized(proto, tmp_path, weight_type=weight_type)
    close(proto, target, {"x": x(5, 128)}, at_least=30)
    assert fused_ops(target, tmp_path) == ["DynamicQuantizeMatMul"]
    assert "w" not in initializers(onnx.load(target))


@TYPES
def test_three_products_of_one_activation_share_its_quantization(
    tmp_path: Path, weight_type: Any
) -> None:
    nodes = [node("MatMul", ["x", f"w{i}"], [f"y{i}"], f"mm{i}") for i in range(3)]
    proto = model(
        graph(
            nodes,
            {"x": ["N", 7, 128]},
            {f"y{i}": None for i in range(3)},
            {f"w{i}": weight(128, 160, seed=i) for i in range(3)},
        )
    )
    _, target = quantized(proto, tmp_path, weight_type=weight_type)
    close(proto, target, {"x": x(2, 7, 128)}, at_least=30)
    assert op_types(onnx.load(target)).count("DynamicQuantizeLinear") == 1
    assert Counter(fused_ops(target, tmp_path)) == {
        "DynamicQuantizeLinear": 1,
        "MatMulIntegerToFloat": 3,
    }


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize(
    ("alpha", "beta", "bias"),
    [(1.0, 1.0, True), (0.5, 2.0, True), (1.5, 1.0, False)],
    ids=["plain", "scaled", "no-bias"],
)
@TYPES
def test_gemm(
    tmp_path: Path,
    trans_a: int,
    trans_b: int,
    alpha: float,
    beta: float,
    bias: bool,  # noqa: FBT001
    weight_type: Any,
) -> None:
    weights = {"w": weight(160, 128) if trans_b else weight(128, 160)}
    if bias:
        weights["c"] = weight(160, seed=3)
    attributes = {"transA": trans_a, "transB": trans_b, "alpha": alpha, "beta": beta}
    nodes = [node("Gemm", ["x", *weights], ["y"], "gemm", **attributes)]
    shape = (128, 6) if trans_a else (6, 128)
    proto = model(graph(nodes, {"x": shape}, {"y": None}, weights))
    result, target = quantized(proto, tmp_path, weight_type=weight_type)
    assert result.plan.node["gemm"].mode == "integer"
    close(proto, target, {"x": x(*shape)}, at_least=30)
    assert "DynamicQuantizeMatMul" in fused_ops(target, tmp_path)


def test_int8_weights_cannot_saturate(tmp_path: Path) -> None:
    w = rng().uniform(-1, 1, (129, 192)).astype(np.float32)  # full range everywhere: the worst case
    proto = model(
        graph([node("MatMul", ["x", "w"], ["y"], "mm")], {"x": ["N", 129]}, {"y": None}, {"w": w})
    )
    _, target = quantized(proto, tmp_path, weight_type=QInt8)
    assert is_pair_safe(initializers(onnx.load(target))["w_quantized"])
    worst = np.full((1, 129), 1.0, np.float32)
    close(proto, target, {"x": worst}, at_least=30)


def test_an_int8_weight_read_both_ways_cannot_saturate_either_way(tmp_path: Path) -> None:
    w = weight(128, 128, scale=0.01)
    w[::2] = 0.5  # pairs along one axis are harmless, along the other they are the worst case
    nodes = [
        node("MatMul", ["x", "w"], ["h"], "one"),
        node("Transpose", ["w"], ["t"], "turn", perm=[1, 0]),
        node("MatMul", ["h", "t"], ["y"], "two"),
    ]
    proto = model(graph(nodes, {"x": ["N", 128]}, {"y": None}, {"w": w}))
    result, target = quantized(proto, tmp_path, weight_type=QInt8)
    assert {n.mode.value for n in result.plan.nodes} == {"integer"}
    q = initializers(onnx.load(target))["w_quantized"]
    assert is_pair_safe(q)
    assert is_pair_safe(q.T)


@pytest.mark.parametrize("kind", ["conv1d", "conv2d", "conv3d", "depthwise", "grouped"])
@TYPES
def test_conv_weights_are_stored_and_folded_at_load(
    tmp_path: Path, kind: str, weight_type: Any
) -> None:
    shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...], int]] = {
        "conv1d": ((1, 16, 40), (32, 16, 5), 1),
        "conv2d": ((1, 16, 12, 12), (32, 16, 3, 3), 1),
        "conv3d": ((1, 8, 6, 6, 6), (16, 8, 3, 3, 3), 1),
        "depthwise": ((1, 64, 12, 12), (64, 1, 5, 5), 64),
        "grouped": ((1, 32, 12, 12), (32, 8, 3, 3), 4),
    }
    data, kernel, group = shapes[kind]
    nodes = [node("Conv", ["x", "w"], ["c"], "conv", group=group), node("Relu", ["c"], ["y"], "r")]
    proto = model(graph(nodes, {"x": data}, {"y": None}, {"w": weight(*kernel)}))
    result, target = quantized(proto, tmp_path, weight_type=weight_type)
    assert result.plan.node["conv"].mode == "stored"
    close(proto, target, {"x": x(*data)}, at_least=35)
    fused = set(fused_ops(target, tmp_path))
    assert not fused & {"Cast", "Sub", "Mul", "DequantizeLinear", "ConvInteger"}


def test_conv_transpose_and_einsum_are_stored(tmp_path: Path) -> None:
    nodes = [
        node("ConvTranspose", ["x", "w"], ["c"], "up", strides=[2, 2]),
        node("Einsum", ["c", "e"], ["y"], "einsum", equation="nchw,cd->ndhw"),
    ]
    proto = model(
        graph(
            nodes,
            {"x": [1, 16, 8, 8]},
            {"y": None},
            {"w": weight(16, 24, 3, 3), "e": weight(24, 40)},
        )
    )
    _, target = quantized(proto, tmp_path)
    close(proto, target, {"x": x(1, 16, 8, 8)}, at_least=35)


@TYPES
@pytest.mark.parametrize(("rows", "mode"), [(20_000, "integer"), (500, "stored")])
def test_rows_of_large_tables_are_looked_up_as_integers(
    tmp_path: Path, rows: int, mode: str, weight_type: Any
) -> None:
    proto = model(
        graph(
            [node("Gather", ["table", "ids"], ["y"], "embed")],
            {"ids": ["N", "S"]},
            {"y": None},
            {"table": weight(rows, 64)},
            types={"ids": TensorProto.INT64},
        )
    )
    result, target = quantized(proto, tmp_path, weight_type=weight_type)
    assert result.plan.node["embed"].mode == mode
    close(proto, target, {"ids": rng().integers(0, rows, (2, 9))}, at_least=35)
    assert ("Cast" in fused_ops(target, tmp_path)) == (mode == "integer")


@pytest.mark.parametrize("head", ["transpose", "gemm"])
@pytest.mark.parametrize("rows", [600, 9000], ids=["small", "large"])
@TYPES
def test_tied_embedding_and_head_are_stored_once(
    tmp_path: Path, head: str, rows: int, weight_type: Any
) -> None:
    nodes = [node("Gather", ["table", "ids"], ["h"], "embed")]
    if head == "transpose":
        nodes += [
            node("Transpose", ["table"], ["t"], "turn", perm=[1, 0]),
            node("MatMul", ["h", "t"], ["y"], "head"),
        ]
    else:
        nodes += [node("Gemm", ["h", "table"], ["y"], "head", transB=1)]
    proto = model(
        graph(
            nodes,
            {"ids": ["N"]},
            {"y": None},
            {"table": weight(rows, 128)},
            types={"ids": TensorProto.INT64},
        )
    )
    result, target = quantized(proto, tmp_path, weight_type=weight_type)
    assert result.plan.node["head"].mode == "integer"
    assert result.plan.node["embed"].mode == ("integer" if rows > 1000 else "stored")
    assert result.plan.weight["table"].spec.granularity == PerAxis(0)
    assert result.output_bytes < 0.3 * result.input_bytes
    close(proto, target, {"ids": rng().integers(0, rows, 9)})


def test_weight_shared_by_two_layers_through_identity_stays_tied(tmp_path: Path) -> None:
    nodes = [
        node("Identity", ["w"], ["w2"], "share"),
        node("MatMul", ["x", "w"], ["a"], "one"),
        node("Relu", ["a"], ["b"], "relu"),
        node("MatMul", ["b", "w2"], ["y"], "two"),
    ]
    proto = model(graph(nodes, {"x": ["N", 128]}, {"y": None}, {"w": weight(128, 128)}))
    _, target = quantized(proto, tmp_path)
    close(proto, target, {"x": x(4, 128)})
    stored = [t for t in onnx.load(target).graph.initializer if t.data_type == TensorProto.UINT8]
    assert sum(1 for t in stored if len(t.dims) == 2) == 1


def _lstm(directions: int, *, bias: bool, extra: bool, **attributes: Any) -> onnx.ModelProto:
    hidden, width = 40, 48
    weights: dict[str, Array] = {
        "w": weight(directions, 4 * hidden, width),
        "r": weight(directions, 4 * hidden, hidden, seed=1),
    }
    inputs = ["x", "w", "r", "", "", "", "", ""]
    if bias:
        weights["b"] = weight(directions, 8 * hidden, seed=2)
        inputs[3] = "b"
    if extra:
        weights["h0"] = weight(directions, 2, hidden, seed=3)
        weights["c0"] = weight(directions, 2, hidden, seed=4)
        weights["p"] = weight(directions, 3 * hidden, seed=5)
        inputs[5:8] = ["h0", "c0", "p"]
    nodes = [node("LSTM", inputs, ["y", "yh", "yc"], "lstm", hidden_size=hidden, **attributes)]
    outputs = {"y": None, "yh": None, "yc": None}
    return model(graph(nodes, {"x": [9, 2, width]}, outputs, weights))


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("extra", [True, False], ids=["states-and-peepholes", "plain"])
@TYPES
def test_lstm(tmp_path: Path, direction: str, extra: bool, weight_type: Any) -> None:  # noqa: FBT001
    proto = _lstm(
        2 if direction == "bidirectional" else 1, bias=extra, extra=extra, direction=direction
    )
    result, target = quantized(proto, tmp_path, weight_type=weight_type)
    assert result.plan.node["lstm"].mode == "integer"
    assert op_types(onnx.load(target)) == ["DynamicQuantizeLSTM"]
    close(proto, target, {"x": x(9, 2, 48)})


def test_lstm_attributes_survive(tmp_path: Path) -> None:
    proto = _lstm(1, bias=True, extra=False, clip=0.3, input_forget=1)
    _, target = quantized(proto, tmp_path)
    close(proto, target, {"x": x(9, 2, 48)}, at_least=20)


@pytest.mark.parametrize("op", ["GRU", "RNN"])
def test_recurrent_layers_without_a_kernel_still_shrink(tmp_path: Path, op: str) -> None:
    gates = {"GRU": 3, "RNN": 1}[op]
    weights = {"w": weight(1, gates * 64, 48), "r": weight(1, gates * 64, 64)}
    proto = model(
        graph(
            [node(op, ["x", "w", "r"], ["y"], "rnn", hidden_size=64)],
            {"x": [5, 2, 48]},
            {"y": None},
            weights,
        )
    )
    result, target = quantized(proto, tmp_path)
    assert result.output_bytes < 0.5 * result.input_bytes
    close(proto, target, {"x": x(5, 2, 48)}, at_least=30)
    assert op in fused_ops(target, tmp_path)


@pytest.mark.parametrize("mask", ["none", "lengths", "full"])
@TYPES
def test_attention(tmp_path: Path, mask: str, weight_type: Any) -> None:
    inputs = ["x", "w", "b"] + (["mask"] if mask != "none" else [])
    shapes: dict[str, Any] = {"x": [2, 8, 64]}
    feeds: dict[str, Array] = {"x": x(2, 8, 64)}
    if mask == "lengths":
        shapes["mask"], feeds["mask"] = [2], np.array([8, 5], np.int32)
    elif mask == "full":
        shapes["mask"], feeds["mask"] = [2, 8], np.ones((2, 8), np.int32)
    proto = model(
        graph(
            [node("Attention", inputs, ["y"], "attn", domain=MS, num_heads=4)],
            shapes,
            {"y": None},
            {"w": weight(64, 192), "b": weight(192, seed=1)},
            types={"mask": TensorProto.INT32},
        ),
        domains={MS: 1},
    )
    result, target = quantized(proto, tmp_path, weight_type=weight_type)
    assert result.plan.node["attn"].mode == "integer"
    assert "QAttention" in op_types(onnx.load(target))
    close(proto, target, feeds)


@pytest.mark.parametrize("segments", [True, False])
def test_embed_layer_normalization(tmp_path: Path, segments: bool) -> None:  # noqa: FBT001
    tables: dict[str, Array] = {
        "word": weight(300, 64),
        "pos": weight(32, 64, seed=1),
        "seg": weight(32, 64, seed=2),
        "gamma": weight(64, seed=3) + 1,
        "beta": weight(64, seed=4),
    }
    inputs = ["ids", "sid" if segments else "", "word", "pos", "seg" if segments else ""]
    if not segments:
        tables.pop("seg")
    shapes: dict[str, Any] = {"ids": [2, 8]} | ({"sid": [2, 8]} if segments else {})
    proto = model(
        graph(
            [
                node(
                    "EmbedLayerNormalization",
                    [*inputs, "gamma", "beta"],
                    ["y", "mask"],
                    "embed",
                    domain=MS,
                )
            ],
            shapes,
            {"y": None},
            tables,
            types={"ids": TensorProto.INT32, "sid": TensorProto.INT32},
        ),
        domains={MS: 1},
    )
    _, target = quantized(proto, tmp_path)
    feeds = {"ids": rng().integers(0, 300, (2, 8)).astype(np.int32)}
    if segments:
        feeds["sid"] = rng().integers(0, 32, (2, 8)).astype(np.int32)
    assert "QEmbedLayerNormalization" in op_types(onnx.load(target))
    assert "gamma" not in initializers(onnx.load(target))
    close(proto, target, feeds)


def _branch(name: str, seed: int, *, outer: bool) -> onnx.GraphProto:
    """A branch with its own weight 'w' (the same name in both), and a captured one."""
    nodes = [
        node("MatMul", ["x", "w"], [f"{name}_a"], f"{name}_mm"),
        node("Conv", [f"{name}_r", "k"], [f"{name}_c"], f"{name}_conv"),
    ]
    nodes.insert(1, node("Reshape", [f"{name}_a", "shape"], [f"{name}_r"], f"{name}_reshape"))
    last = f"{name}_c"
    if outer:
        nodes.append(node("Flatten", [last], [f"{name}_f"], f"{name}_flat"))
        nodes.append(node("MatMul", [f"{name}_f", "captured"], [f"{name}_y"], f"{name}_mm2"))
        last = f"{name}_y"
    return helper.make_graph(
        nodes,
        name,
        [],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(weight(128, 256, seed=seed), "w"),
            numpy_helper.from_array(weight(16, 4, 3, 3, seed=seed + 1), "k"),
            numpy_helper.from_array(np.array([-1, 4, 8, 8]), "shape"),
        ],
    )


@pytest.mark.parametrize("condition", [True, False])
@TYPES
def test_whole_graphs_inside_if_are_quantized(
    tmp_path: Path,
    condition: bool,  # noqa: FBT001
    weight_type: Any,
) -> None:
    branches = {
        "then_branch": _branch("then", 0, outer=True),
        "else_branch": _branch("else", 10, outer=True),
    }
    proto = model(
        graph(
            [node("If", ["cond"], ["y"], "if", **branches)],
            {"x": ["N", 128], "cond": []},
            {"y": None},
            {"captured": weight(576, 128, seed=5)},
            types={"cond": TensorProto.BOOL},
        )
    )
    result, target = quantized(proto, tmp_path, weight_type=weight_type)
    assert {n.mode.value for n in result.plan.nodes} == {"integer", "stored"}
    assert result.output_bytes < 0.3 * result.input_bytes
    close(proto, target, {"x": x(3, 128), "cond": np.array(condition)})


def test_loop_and_scan_bodies_are_quantized(tmp_path: Path) -> None:
    body = helper.make_graph(
        [
            node("Identity", ["keep"], ["keep_out"], "k"),
            node("MatMul", ["state", "w"], ["m"], "loop_mm"),
            node("Tanh", ["m"], ["state_out"], "t"),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("keep", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("keep_out", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state_out", TensorProto.FLOAT, None),
        ],
        [numpy_helper.from_array(weight(128, 128), "w")],
    )
    scan = helper.make_graph(
        [
            node("MatMul", ["row", "outer"], ["sm"], "scan_mm"),
            node("Add", ["sm", "acc"], ["acc_out"], "sa"),
            node("Identity", ["acc_out"], ["row_out"], "si"),
        ],
        "scan",
        [
            helper.make_tensor_value_info("acc", TensorProto.FLOAT, [1, 128]),
            helper.make_tensor_value_info("row", TensorProto.FLOAT, [1, 128]),
        ],
        [
            helper.make_tensor_value_info("acc_out", TensorProto.FLOAT, [1, 128]),
            helper.make_tensor_value_info("row_out", TensorProto.FLOAT, [1, 128]),
        ],
    )
    nodes = [
        node("Loop", ["trips", "go", "x"], ["looped"], "loop", body=body),
        node("Unsqueeze", ["looped", "one"], ["rows"], "u"),
        node("Scan", ["zero", "rows"], ["last", "y"], "scan", body=scan, num_scan_inputs=1),
    ]
    proto = model(
        graph(
            nodes,
            {"x": [4, 128]},
            {"y": None},
            {
                "trips": np.array(3),
                "go": np.array(True),
                "one": np.array([1]),
                "zero": np.zeros((1, 128), np.float32),
                "outer": weight(128, 128, seed=3),
            },
        )
    )
    result, target = quantized(proto, tmp_path)
    assert {n.mode.value for n in result.plan.nodes} == {"integer"}
    close(proto, target, {"x": x(4, 128)}, at_least=20)


@pytest.mark.parametrize("opset", [9, 10, 11, 12, 13, 17, 21, 22])
@TYPES
def test_every_opset_from_9_on(tmp_path: Path, opset: int, weight_type: Any) -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["m"], "mm"),
        node("Add", ["m", "b"], ["a"], "add"),
        node("Relu", ["a"], ["r"], "relu"),
        node("Softmax", ["r"], ["y"], "soft", axis=1),
    ]
    proto = model(
        graph(
            nodes,
            {"x": ["N", 128]},
            {"y": ["N", 192]},
            {"w": weight(128, 192), "b": weight(192, seed=1)},
        ),
        opset=opset,
        ir_version=4 if opset < 11 else 8,
    )
    result, target = quantized(proto, tmp_path, weight_type=weight_type)
    assert result.plan.node["mm"].mode == "integer"
    close(proto, target, {"x": x(5, 128)})
    written = onnx.load(target).opset_import[0].version
    assert written == max(opset, 11)


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        quantize_dynamic(matmul_model(), tmp_path / f"{name}.onnx")
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_names_that_quantkit_would_use_may_be_taken(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["x_quantized"], "mm"),
        node("Relu", ["x_quantized"], ["w_scale"], "x_quantized_DynamicQuantizeLinear"),
        node("MatMul", ["w_scale", "w_quantized"], ["y"], "mm2"),
    ]
    proto = model(
        graph(
            nodes,
            {"x": ["N", 128]},
            {"y": None},
            {"w": weight(128, 160), "w_quantized": weight(160, 128, seed=1)},
        )
    )
    _, target = quantized(proto, tmp_path)
    close(proto, target, {"x": x(4, 128)})
    assert [o.name for o in onnx.load(target).graph.output] == ["y"]


def test_quantized_node_may_be_a_graph_output_and_feed_others(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["y"], "mm"),
        node("Relu", ["y"], ["z"], "relu"),
    ]
    proto = model(graph(nodes, {"x": ["N", 128]}, {"y": None, "z": None}, {"w": weight(128, 160)}))
    _, target = quantized(proto, tmp_path)
    close(proto, target, {"x": x(4, 128)})


def test_dead_float_weights_do_not_survive(tmp_path: Path) -> None:
    proto = matmul_model()
    proto.graph.initializer.append(numpy_helper.from_array(weight(500, 500), "dead"))
    _, target = quantized(proto, tmp_path)
    assert "dead" not in initializers(onnx.load(target))


def test_recurrent_weights_assembled_from_slices_are_quantized(tmp_path: Path) -> None:
    """Exporters write LSTM cells as Slice, Concat and Unsqueeze of one matrix."""
    hidden, width = 32, 48
    ends = [hidden, 2 * hidden, 3 * hidden, 4 * hidden]
    nodes = []
    for name, source in (("W", "wi"), ("R", "wh")):
        nodes += [
            node("Slice", [source, f"s{i}", f"e{i}", "zero"], [f"{name}{i}"], f"{name}_slice{i}")
            for i in range(len(ends))
        ]
        order = [f"{name}{i}" for i in (0, 3, 1, 2)]
        nodes.append(node("Concat", order, [f"{name}c"], f"{name}_concat", axis=0))
        nodes.append(node("Unsqueeze", [f"{name}c", "zero"], [name], f"{name}_unsqueeze"))
    nodes.append(node("LSTM", ["x", "W", "R"], ["", "y"], "lstm", hidden_size=hidden))
    weights: dict[str, Array] = {
        "wi": weight(4 * hidden, width),
        "wh": weight(4 * hidden, hidden, seed=1),
        "zero": np.array([0]),
    }
    for i, end in enumerate(ends):
        weights[f"s{i}"], weights[f"e{i}"] = np.array([end - hidden]), np.array([end])
    proto = model(graph(nodes, {"x": [5, 2, width]}, {"y": None}, weights))
    result, target = quantized(proto, tmp_path)
    assert result.plan.node["lstm"].mode == "integer"
    assert op_types(onnx.load(target)) == ["DynamicQuantizeLSTM"]
    close(proto, target, {"x": x(5, 2, width)})


def test_rows_of_a_transposed_table_are_not_taken_from_the_table_itself(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["a"], "head"),
        node("Transpose", ["w"], ["t"], "turn", perm=[1, 0]),
        node("Gather", ["t", "ids"], ["b"], "embed"),
    ]
    proto = model(
        graph(
            nodes,
            {"x": ["N", 1024], "ids": ["M"]},
            {"a": None, "b": None},
            {"w": weight(1024, 1024)},
            types={"ids": TensorProto.INT64},
        )
    )
    result, target = quantized(proto, tmp_path)
    assert "Transpose" in result.plan.node["embed"].why
    close(proto, target, {"x": x(2, 1024), "ids": np.array([3, 900])})


def test_lstms_that_share_weights_with_one_that_cannot_run_in_integers(tmp_path: Path) -> None:
    hidden, width = 40, 160  # width == 4 * hidden: a wrong layout would not even fail
    weights: dict[str, Array] = {
        "w": weight(1, 4 * hidden, width),
        "r": weight(1, 4 * hidden, hidden, seed=1),
        "r2": weight(1, 4 * hidden, hidden, seed=2),
    }
    nodes = [
        node("LSTM", ["x", "w", "r"], ["", "a"], "integer", hidden_size=hidden),
        node("Mul", ["r2", "one"], ["computed"], "mul"),
        node("LSTM", ["x", "w", "computed"], ["", "b"], "stored", hidden_size=hidden),
    ]
    proto = model(
        graph(
            nodes,
            {"x": [5, 2, width], "one": [1]},
            {"a": None, "b": None},
            weights,
        )
    )
    result, target = quantized(proto, tmp_path)
    assert result.plan.node["integer"].mode == "integer"
    assert result.plan.node["stored"].mode == "stored"
    close(proto, target, {"x": x(5, 2, width), "one": np.ones(1, np.float32)})


@pytest.mark.parametrize("used", [True, False], ids=["used", "unused"])
def test_an_embedding_sum_keeps_the_float_operator(tmp_path: Path, used: bool) -> None:  # noqa: FBT001
    tables: dict[str, Array] = {
        "word": weight(300, 64),
        "pos": weight(32, 64, seed=1),
        "gamma": weight(64, seed=3) + 1,
        "beta": weight(64, seed=4),
    }
    embed = node(
        "EmbedLayerNormalization",
        ["ids", "", "word", "pos", "", "gamma", "beta"],
        ["y", "unused_mask", "sum"],
        "embed",
        domain=MS,
    )
    outputs: dict[str, Any] = {"y": None} | ({"sum": None} if used else {})
    proto = model(
        graph([embed], {"ids": [2, 8]}, outputs, tables, types={"ids": TensorProto.INT32}),
        domains={MS: 1},
    )
    result, target = quantized(proto, tmp_path)
    assert result.plan.node["embed"].mode == ("stored" if used else "integer")
    close(proto, target, {"ids": rng().integers(0, 300, (2, 8)).astype(np.int32)})


def test_a_weight_with_more_scales_than_values_saved_stays_float(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", ["x", "thin"], ["h"], "thin"),
        node("MatMul", ["h", "w"], ["y"], "mm"),
    ]
    proto = model(
        graph(
            nodes,
            {"x": ["N", 1]},
            {"y": None},
            {"thin": weight(1, 1024), "w": weight(1024, 128)},
        )
    )
    result, _ = quantized(proto, tmp_path)
    assert result.plan.node["thin"].mode == "float"


def test_an_lstm_needs_no_newer_opset(tmp_path: Path) -> None:
    proto = _lstm(1, bias=True, extra=False)
    proto.opset_import[0].version = 9
    result, target = quantized(proto, tmp_path)
    assert result.plan.node["lstm"].mode == "integer"
    assert onnx.load(target).opset_import[0].version == 9
    close(proto, target, {"x": x(9, 2, 48)})
