"""Files that saturate are found, those of the default target never do."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import Array, graph, model, node, rng
from integer_cases import pair, product
from static_cases import X, chain, conv, conv_weights, matmuls, write

from quantkit.evaluate.integer_layers import integer_layers, share, worst_db
from quantkit.model.graph.load import load
from quantkit.numerics.dtypes import INT8, UINT8, IntType
from quantkit.quantize.emit import Format
from quantkit.runtime.saturation import integer_products, saturating_nodes
from quantkit.settings import StaticSettings

VNNI = StaticSettings(target="x86-vnni")


def found(source: onnx.ModelProto | Path) -> tuple[str, ...]:
    return saturating_nodes(load(source).model)


def with_weight(proto: onnx.ModelProto, array: Array) -> onnx.ModelProto:
    for item in proto.graph.initializer:
        if item.name == "w":
            item.CopyFrom(onnx.numpy_helper.from_array(array, "w"))
    return proto


def relu_chain() -> onnx.ModelProto:
    return chain(node("Relu", ["a"], ["b"], "relu"))


@pytest.mark.parametrize("output_format", list(Format))
def test_the_default_target_is_proof_and_one_with_vnni_is_not(
    tmp_path: Path, output_format: Format
) -> None:
    proto = relu_chain()
    safe = write(proto, tmp_path / "safe.onnx", {"x": X}, output_format).path
    assert found(safe) == ()
    assert len(list(integer_products(load(safe).model))) == 2
    full = write(proto, tmp_path / "full.onnx", {"x": X}, output_format, VNNI).path
    assert len(found(full)) == 2


@pytest.mark.parametrize("output_format", list(Format))
def test_matrices_are_looked_at_too(tmp_path: Path, output_format: Format) -> None:
    x = rng().standard_normal((2, 3, 16)).astype(np.float32)
    proto = matmuls(node("Relu", ["a"], ["b"], "relu"))
    safe = write(proto, tmp_path / "safe.onnx", {"x": x}, output_format).path
    assert found(safe) == ()
    assert len(list(integer_products(load(safe).model))) == 2
    full = write(proto, tmp_path / "full.onnx", {"x": x}, output_format, VNNI).path
    assert len(found(full)) == 2


@pytest.mark.parametrize("dtype", [UINT8, INT8])
@pytest.mark.parametrize("op", ["Conv", "Gemm", "MatMul"])
def test_one_pair_is_enough(op: str, dtype: IntType) -> None:
    proto = product(op, dtype, channels=True)
    assert found(proto) == ()
    shape = (4, 8, 3, 3) if op == "Conv" else (8, 4)
    w = np.zeros(shape, np.int8)
    first, second = ((2, 4, 1, 1), (2, 5, 1, 1)) if op == "Conv" else ((4, 2), (5, 2))
    w[first], w[second] = 64, 64
    assert found(with_weight(proto, w)) == ()
    w[second] = 65
    assert found(with_weight(proto, w)) == (op,)
    w[first] = -64
    assert found(with_weight(proto, w)) == ()


def test_neighbours_in_memory_that_are_not_summed_together_do_not_count() -> None:
    w = np.zeros((4, 8, 3, 3), np.int8)
    w[0, 0, 0, :] = 127  # neighbours of a Conv are channels, not taps
    assert found(with_weight(product("Conv", UINT8, channels=True), w)) == ()
    w = np.zeros((8, 4), np.int8)
    w[1:3] = 127  # rows 0 and 1 are a pair, 2 and 3
    assert found(with_weight(product("MatMul", UINT8, channels=True), w)) == ()


def test_an_odd_number_of_channels_pairs_across_taps() -> None:
    weights: dict[str, Array] = {
        "scale": np.array(0.1, np.float32),
        "zero": np.array(0, np.uint8),
        "w": np.zeros((1, 3, 1, 2), np.int8),
        "w_zero": np.array(0, np.int8),
    }
    weights["w"][0, 2, 0, 0], weights["w"][0, 0, 0, 1] = 100, 100  # the third and fourth summand
    nodes = [*pair("x", "d", "scale"), node("DequantizeLinear", ["w", "scale", "w_zero"], ["f"])]
    nodes.append(node("Conv", ["d", "f"], ["y"], "conv"))
    proto = model(graph(nodes, {"x": [1, 3, 4, 4]}, {"y": None}, weights))
    assert found(proto) == ("conv",)


def test_a_transposed_weight_is_summed_along_its_other_axis() -> None:
    weights: dict[str, Array] = {
        "scale": np.array(0.1, np.float32),
        "zero": np.array(0, np.uint8),
        "w": np.zeros((4, 8), np.int8),
        "w_zero": np.array(0, np.int8),
    }
    weights["w"][0, :2] = 100
    for flag, turn in ((1, False), (0, True)):
        nodes = pair("x", "d", "scale")
        if turn:
            nodes.append(node("Transpose", ["w"], ["t"], perm=[1, 0]))
        source = "t" if turn else "w"
        nodes.append(node("DequantizeLinear", [source, "scale", "w_zero"], ["f"]))
        nodes.append(node("Gemm", ["d", "f"], ["y"], "gemm", transB=flag))
        proto = model(graph(nodes, {"x": [2, 8]}, {"y": None}, weights))
        assert found(proto) == ("gemm",)
        column = {**weights, "w": np.zeros((4, 8), np.int8)}
        column["w"][:2, 0] = 100
        assert found(model(graph(nodes, {"x": [2, 8]}, {"y": None}, column))) == ()


def test_depthwise_kernels_widen_first(tmp_path: Path) -> None:
    nodes = [conv("x", "a", "c1"), node("Conv", ["a", "dw"], ["y"], "d", group=8)]
    weights = conv_weights("c1") | {"dw": np.ones((8, 1, 3, 3), np.float32)}
    proto = model(graph(nodes, {"x": [1, 8, 6, 6]}, {"y": None}, weights))
    path = write(proto, tmp_path / "full.onnx", {"x": X}, options=VNNI).path
    assert len(list(integer_products(load(path).model))) == 2
    assert found(path) == ("c1",)


def test_unsigned_weights_and_wide_activations_do_not_saturate() -> None:
    proto = product("MatMul", UINT8, channels=True)
    array = np.full((8, 4), 255, np.uint8)
    proto = with_weight(proto, array)
    for item in proto.graph.initializer:
        if item.name == "w_zero":
            item.CopyFrom(onnx.numpy_helper.from_array(np.zeros(4, np.uint8), "w_zero"))
    assert found(proto) == ()


@pytest.mark.parametrize("output_format", list(Format))
def test_what_may_saturate_does_so_on_some_inputs(tmp_path: Path, output_format: Format) -> None:
    x = np.abs(rng().standard_normal((4, 64))).astype(np.float32) + 4
    dense = node("MatMul", ["x", "w"], ["y"], "dense")
    w = np.abs(rng(1).standard_normal((64, 8))).astype(np.float32) + 1
    proto = model(graph([dense], {"x": ["N", 64]}, {"y": None}, {"w": w}))
    full = write(proto, tmp_path / "full.onnx", {"x": x}, output_format, VNNI).path
    (layer,) = integer_layers(full, [{"x": x}], 8)
    assert layer.sums == 4 * 8
    assert layer.pairs == 4 * 32 * 8
    assert layer.clipped > 0
    assert layer.differing <= layer.clipped
    assert share([layer]) == layer.differing / 32 > 0
    assert worst_db([layer]) is not None
    safe = write(proto, tmp_path / "safe.onnx", {"x": x}, output_format).path
    (layer,) = integer_layers(safe, [{"x": x}], 8)
    assert (layer.sums, layer.clipped, layer.differing) == (32, 0, 0)
    assert worst_db([layer]) is None
