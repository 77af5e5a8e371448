"""Graphs of every form: subgraphs, shared constants, results that are read on, names that are taken, old opsets."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import Array, graph, initializers, model, node, op_types, run, sqnr, weight
from onnx import TensorProto, helper, numpy_helper
from static_cases import IMAGE, X, chain, check_formats, conv, conv_weights, write

from quantkit.quantize.emit.static import Format
from quantkit.quantize.plan import Mode
from quantkit.runtime.kernels import fusion_of
from quantkit.settings import StaticSettings

NEWEST = 24
ROWS: dict[str, Any] = {"x": [4, 160]}
ROW = weight(4, 160, seed=5, scale=1)


def several(
    nodes: list[onnx.NodeProto], weights: dict[str, Array], *outputs: str
) -> onnx.ModelProto:
    return model(graph(nodes, IMAGE, dict.fromkeys(outputs), weights))


@pytest.mark.parametrize("reader", ["output", "Tanh", "Relu and Tanh"])
def test_a_value_that_integers_and_floats_read(reader: str, tmp_path: Path) -> None:
    weights = conv_weights("c1", "c2")
    if reader == "output":
        proto = several([conv("x", "y", "c1"), conv("y", "z", "c2")], weights, "y", "z")
    elif reader == "Tanh":
        nodes = [conv("x", "a", "c1"), conv("a", "y", "c2"), node("Tanh", ["a"], ["z"])]
        proto = several(nodes, weights, "y", "z")
    else:
        nodes = [conv("x", "a", "c1"), node("Relu", ["a"], ["r"]), conv("r", "y", "c2")]
        proto = several([*nodes, node("Tanh", ["r"], ["z"])], weights, "y", "z")
    for written in check_formats(proto, tmp_path, {"x": X}).values():
        assert fusion_of(written.path).integer == {"QLinearConv": 2}


def test_an_input_that_is_an_output_stays_exact(tmp_path: Path) -> None:
    nodes = [conv("x", "y", "c1"), node("Identity", ["x"], ["z"])]
    proto = several(nodes, conv_weights("c1"), "y", "z")
    for written in check_formats(proto, tmp_path, {"x": X}).values():
        np.testing.assert_array_equal(run(written.path, {"x": X})[1], X)


@pytest.mark.parametrize("part", ["bias", "weight"])
def test_a_constant_that_two_products_share(part: str, tmp_path: Path) -> None:
    weights = conv_weights("c1", "c2")
    w2, b2 = ("c1_w", "c2_b") if part == "weight" else ("c2_w", "c1_b")
    nodes = [conv("x", "a", "c1"), node("Conv", ["a", w2, b2], ["y"], "c2", pads=[1] * 4)]
    weights.pop("c2_w" if part == "weight" else "c2_b")
    proto = several(nodes, weights, "y")
    for written in check_formats(proto, tmp_path, {"x": X}).values():
        assert fusion_of(written.path).integer == {"QLinearConv": 2}
        stored = [a for a in initializers(onnx.load(written.path)).values() if a.ndim == 4]
        assert [a.dtype for a in stored] == [np.int8] * (1 if part == "weight" else 2)


def test_a_tied_embedding_is_stored_once(tmp_path: Path) -> None:
    nodes = [
        node("Gather", ["e", "i"], ["a"], "embed"),
        node("MatMul", ["a", "w"], ["h"], "m1"),
        node("Transpose", ["e"], ["et"], "turn", perm=[1, 0]),
        node("MatMul", ["h", "et"], ["y"], "m2"),
    ]
    weights = {"e": weight(5000, 64), "w": weight(64, 64, seed=1)}
    proto = model(graph(nodes, {"i": [2, 5]}, {"y": None}, weights, types={"i": TensorProto.INT64}))
    for written in check_formats(proto, tmp_path, {"i": np.arange(10).reshape(2, 5)}).values():
        assert fusion_of(written.path).integer_count == 2
        assert written.path.stat().st_size < 0.3 * proto.ByteSize()


def test_a_weight_that_is_read_both_ways_is_stored_once(tmp_path: Path) -> None:
    nodes = [
        node("Transpose", ["e"], ["et"], "turn", perm=[1, 0]),
        node("MatMul", ["x", "et"], ["h"], "m"),
        node("Gemm", ["h", "e"], ["z"], "g"),
        node("Neg", ["z"], ["y"]),
    ]
    proto = model(graph(nodes, ROWS, {"y": None}, {"e": weight(2000, 160)}))
    for written in check_formats(proto, tmp_path, {"x": ROW}).values():
        assert not {"Cast", "Mul"} & {
            *op_types(onnx.load(written.path))
        }  # nobody reads it in float
        assert fusion_of(written.path).integer_count == 2
        assert written.path.stat().st_size < 0.3 * proto.ByteSize()


def test_names_that_are_taken(tmp_path: Path) -> None:
    nodes = [
        conv("x", "x_quantized", "c1"),
        node("Relu", ["x_quantized"], ["x_dequantized"], "x_scale"),
        conv("x_dequantized", "x_zero_point", "c2"),
        node("Neg", ["x_zero_point"], ["c1_w_quantized"], "x_quantized_QuantizeLinear"),
    ]
    proto = several(nodes, conv_weights("c1", "c2"), "c1_w_quantized", "x_quantized")
    for written in check_formats(proto, tmp_path, {"x": X}).values():
        outputs = [o.name for o in onnx.load(written.path).graph.output]
        assert outputs == ["c1_w_quantized", "x_quantized"]


def test_dynamic_shapes_and_empty_batches(tmp_path: Path) -> None:
    nodes = [conv("x", "a", "c1"), node("Relu", ["a"], ["r"]), conv("r", "y", "c2")]
    proto = model(graph(nodes, {"x": ["N", 8, "H", "W"]}, {"y": None}, conv_weights("c1", "c2")))
    for written in check_formats(proto, tmp_path, {"x": X}).values():
        for optimize in (True, False):
            wide = np.concatenate([X, X]).repeat(2, axis=3)
            assert run(written.path, {"x": wide}, optimize=optimize)[0].shape == (2, 8, 6, 12)
    nodes = [node("MatMul", ["x", "w"], ["h"], "m1"), node("MatMul", ["h", "v"], ["y"], "m2")]
    weights = {"w": weight(16, 8), "v": weight(8, 4, seed=1)}
    proto = model(graph(nodes, {"x": ["N", 16]}, {"y": None}, weights))
    for written in check_formats(proto, tmp_path, {"x": weight(3, 16)}).values():
        assert run(written.path, {"x": np.zeros((0, 16), np.float32)})[0].shape == (0, 4)


@pytest.mark.parametrize("opset", [7, 9, 11, 12, 13, 17, 21, NEWEST])
def test_opsets(opset: int, tmp_path: Path) -> None:
    nodes = [
        conv("x", "a", "c1"),
        node("Relu", ["a"], ["r"]),
        node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2]),
        conv("p", "c", "c2"),
        node("GlobalAveragePool", ["c"], ["g"]),
        node("Flatten", ["g"], ["f"]),
        node("Gemm", ["f", "w", "b"], ["y"], "fc", transB=1),
    ]
    weights = {**conv_weights("c1", "c2"), "w": weight(10, 8), "b": weight(10)}
    proto = graph(nodes, IMAGE, {"y": None}, weights)
    ir_version = {7: 3, 9: 4}.get(opset, 8)
    if ir_version == 3:  # initializers had to be inputs
        proto.input.extend(
            helper.make_tensor_value_info(k, TensorProto.FLOAT, v.shape) for k, v in weights.items()
        )
    whole = model(proto, opset=opset, ir_version=ir_version)
    for written in check_formats(whole, tmp_path, {"x": X}).values():
        assert fusion_of(written.path).integer == {
            "QGemm": 1, "QLinearConv": 2, "QLinearGlobalAveragePool": 1
        }  # fmt: skip


def branch(name: str, read: str, size: int = 8) -> onnx.GraphProto:
    """A Conv of an outer value, with a weight of its own."""
    made = node("Conv", [read, f"w_{name}"], [f"y_{name}"], f"conv_{name}")
    own = {f"w_{name}": weight(size, 8, 3, 3, seed=len(name))}
    return graph([made], {}, {f"y_{name}": None}, own, name=name)


def with_if() -> onnx.ModelProto:
    choice = node(
        "If", ["f"], ["z"], "if", then_branch=branch("then", "a"), else_branch=branch("no", "a")
    )
    nodes = [
        conv("x", "a", "c1"),
        choice,
        node("Conv", ["z", "w"], ["y"], "c2"),
        conv("a", "u", "c3"),
    ]
    weights = {**conv_weights("c1", "c3"), "w": weight(8, 8, 3, 3, seed=9)}
    inputs: dict[str, Any] = {**IMAGE, "f": []}
    outputs = {"y": None, "u": None}
    return model(graph(nodes, inputs, outputs, weights, types={"f": TensorProto.BOOL}))


def test_products_inside_if_shrink_and_run_in_integers_if_their_ranges_are_known(
    tmp_path: Path,
) -> None:
    proto = with_if()
    for flag in (True, False):
        feeds = {"x": X, "f": np.array(flag)}
        for written in check_formats(proto, tmp_path, feeds).values():
            assert written.modes()["conv_then"] is written.modes()["conv_no"] is Mode.STORED
            assert fusion_of(written.path).integer == {"QLinearConv": 3}
            assert written.path.stat().st_size < 0.65 * proto.ByteSize()
        ranges = {"y_then": (-12.0, 12.0), "y_no": (-12.0, 12.0)}
        for written in check_formats(proto, tmp_path, feeds, more=ranges).values():
            assert fusion_of(written.path).integer == {"QLinearConv": 5}


def test_matmul_inside_if_reads_what_is_quantized_outside(tmp_path: Path) -> None:
    branches = {
        f"{name}_branch": graph(
            [node("MatMul", ["x", "et"], [f"y_{name}"], f"mm_{name}")], {}, {f"y_{name}": None}
        )
        for name in ("then", "else")
    }
    nodes = [
        node("Transpose", ["e"], ["et"], "turn", perm=[1, 0]),
        node("If", ["f"], ["z"], "if", **branches),
        node("MatMul", ["x", "et"], ["h"], "outside"),
        node("Add", ["z", "h"], ["y"]),
    ]
    inputs: dict[str, Any] = {**ROWS, "f": []}
    types: dict[str, int] = {"f": TensorProto.BOOL}
    proto = model(graph(nodes, inputs, {"y": None}, {"e": weight(160, 160)}, types=types))
    for written in check_formats(
        proto, tmp_path, {"x": ROW, "f": np.array([True]).reshape(())}
    ).values():
        assert fusion_of(written.path).integer == {"MatMulIntegerToFloat": 3}


def with_loop() -> onnx.ModelProto:
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            node("MatMul", ["s", "w1"], ["h"], "mm1"),
            node("Relu", ["h"], ["r"], "relu"),
            node("MatMul", ["r", "w2"], ["s_out"], "mm2"),
            node("Identity", ["go"], ["go_out"]),
        ],
        "body",
        [
            info("i", TensorProto.INT64, []),
            info("go", TensorProto.BOOL, []),
            info("s", TensorProto.FLOAT, [4, 160]),
        ],
        [info("go_out", TensorProto.BOOL, []), info("s_out", TensorProto.FLOAT, [4, 160])],
        [numpy_helper.from_array(weight(160, 160, seed=i, scale=0.11), f"w{i}") for i in (1, 2)],
    )
    nodes = [
        node("MatMul", ["x", "v1"], ["a"], "m1"),
        node("Loop", ["n", "yes", "a"], ["z"], "loop", body=body),
        node("MatMul", ["z", "v2"], ["y"], "m2"),
    ]
    weights: dict[str, Array] = {f"v{i}": weight(160, 160, seed=i + 5, scale=0.1) for i in (1, 2)}
    weights |= {"n": np.array(3), "yes": np.array([True]).reshape(())}
    return model(graph(nodes, ROWS, {"y": None}, weights))


def test_products_inside_loop(tmp_path: Path) -> None:
    proto = with_loop()
    for written in check_formats(proto, tmp_path, {"x": ROW}).values():
        assert fusion_of(written.path).integer_count == 4
        assert written.path.stat().st_size < 0.3 * proto.ByteSize()
    ranges = {"s": (-6.0, 6.0), "r": (0.0, 8.0), "s_out": (-6.0, 6.0)}
    for written in check_formats(proto, tmp_path, {"x": ROW}, more=ranges, least=20).values():
        assert written.modes()["relu"] is Mode.ABSORBED
        assert {written.modes()[n] for n in ("mm1", "mm2")} == {Mode.STATIC}


def test_constants_are_operands(tmp_path: Path) -> None:
    nodes = (
        node("Mul", ["a", "k"], ["m"], "mul"),
        node("Add", ["one", "m"], ["n"], "add"),
        node("Concat", ["n", "k"], ["q"], "concat", axis=0),
        node("Slice", ["q", "from", "to"], ["b"], "slice"),
    )
    constants: dict[str, Array] = {
        "k": weight(1, 8, 6, 6, scale=1),
        "one": np.array(1, np.float32),
        "from": np.array([0]),
        "to": np.array([1]),
    }
    proto = chain(*nodes, constants=constants)
    for written in check_formats(proto, tmp_path, {"x": X}).values():
        assert {written.modes()[n] for n in ("mul", "add", "concat", "slice")} == {Mode.STATIC}


def test_a_value_that_is_read_twice_by_one_node(tmp_path: Path) -> None:
    proto = chain(node("Mul", ["a", "a"], ["s"], "mul"), node("Add", ["s", "s"], ["b"], "add"))
    for written in check_formats(proto, tmp_path, {"x": X}).values():
        assert fusion_of(written.path).integer == {
            "QLinearAdd": 1,
            "QLinearConv": 2,
            "QLinearMul": 1,
        }


def test_what_is_excluded_is_written_as_it_was(tmp_path: Path) -> None:
    proto = chain(node("Relu", ["a"], ["b"]))
    for output_format in Format:
        options = StaticSettings(exclude=("c2",))
        written = write(proto, tmp_path / "q.onnx", {"x": X}, output_format, options)
        found = initializers(onnx.load(written.path))
        np.testing.assert_array_equal(found["c2_w"], initializers(proto)["c2_w"])
        assert "Conv" in op_types(onnx.load(written.path))
        assert sqnr(run(proto, {"x": X})[0], run(written.path, {"x": X})[0]) > 30
