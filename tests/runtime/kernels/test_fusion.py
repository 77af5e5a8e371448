"""What onnxruntime computes in integers is read from the graph that it runs, not from the file."""

from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import Array, graph, matmul_model, model, node, save, weight
from onnx import TensorProto

from quantkit import quantize_dynamic
from quantkit.runtime.kernels import fusion_of
from quantkit.runtime.session import RUNTIME_ERRORS, make_session


def conv_net(*, named: bool = True) -> onnx.ModelProto:
    """x -> Conv 'c1' -> BatchNormalization -> Clip -> Conv 'c2' -> y."""
    nodes = [
        node("Conv", ["x", "w1"], ["a"], "c1" if named else "", pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["a", "s", "b", "m", "v"], ["n"]),
        node("Clip", ["n", "low", "high"], ["r"]),
        node("Conv", ["r", "w2"], ["y"], "c2" if named else ""),
    ]
    weights: dict[str, Array] = {
        "w1": weight(16, 8, 3, 3),
        "w2": weight(8, 16, 1, 1),
        **{k: np.ones(16, np.float32) for k in ("s", "b", "m", "v")},
        "low": np.array(0, np.float32),
        "high": np.array(6, np.float32),
    }
    shapes = {"x": [1, 8, 8, 8]}, {"y": [1, 8, 8, 8]}
    return model(graph(nodes, *shapes, weights))


def qdq(op: str, shape: list[int], w: Array, *, quantized_output: bool) -> onnx.ModelProto:
    """One product between DequantizeLinear and, if asked, QuantizeLinear."""
    nodes = [
        node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
        node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
        node("DequantizeLinear", ["w", "ws", "wz"], ["wd"]),
        node(op, ["xd", "wd"], ["p"], "product"),
    ]
    last = ["p"]
    if quantized_output:
        nodes.append(node("QuantizeLinear", ["p", "xs", "xz"], ["pq"]))
        nodes.append(node("DequantizeLinear", ["pq", "xs", "xz"], ["pd"]))
        last = ["pd"]
    nodes.append(node("Identity", last, ["y"]))
    weights = {
        "w": w,
        "xs": np.array(0.1, np.float32),
        "xz": np.array(128, np.uint8),
        "ws": np.array(0.01, np.float32),
        "wz": np.array(0, np.int8),
    }
    return model(graph(nodes, {"x": shape}, {"y": None}, weights))


KERNELS = np.ones((4, 4, 1, 1), np.int8)
MATRIX = np.ones((16, 16), np.int8)


@pytest.mark.parametrize("named", [True, False])
def test_float_products_go_by_the_name_they_have_in_the_model(tmp_path: Path, named: bool) -> None:  # noqa: FBT001
    fusion = fusion_of(save(conv_net(named=named), tmp_path / "m.onnx"))
    assert not fusion.integer
    assert not fusion.conversions
    assert sum(fusion.float.values()) == fusion.product_count == 2
    assert fusion.integer_count == 0
    assert fusion.float_products == (("c1", "c2") if named else ("a", "y"))


@pytest.mark.parametrize(
    ("op", "shape", "w", "quantized_output", "kernel"),
    [
        ("Conv", [1, 4, 6, 6], KERNELS, True, "QLinearConv"),
        ("MatMul", [2, 16], MATRIX, True, "QLinearMatMul"),
        ("MatMul", [2, 16], MATRIX, False, "MatMulIntegerToFloat"),
        ("Gemm", [2, 16], MATRIX, True, "QGemm"),
    ],
)
def test_a_product_in_integers_is_counted_by_its_kernel(
    tmp_path: Path,
    op: str,
    shape: list[int],
    w: Array,
    quantized_output: bool,  # noqa: FBT001
    kernel: str,
) -> None:
    proto = qdq(op, shape, w, quantized_output=quantized_output)
    fusion = fusion_of(save(proto, tmp_path / "m.onnx"))
    assert fusion.integer == {kernel: 1}
    assert fusion.integer_count == fusion.product_count == 1
    assert fusion.float_products == ()
    assert "QuantizeLinear" in fusion.conversions


def test_a_product_that_is_not_fused_is_named_and_its_conversions_are_counted(
    tmp_path: Path,
) -> None:
    # onnxruntime has no kernel for a Conv of integers that gives float.
    proto = qdq("Conv", [1, 4, 6, 6], KERNELS, quantized_output=False)
    fusion = fusion_of(save(proto, tmp_path / "m.onnx"))
    assert not fusion.integer
    assert fusion.float_products == ("product",)
    assert fusion.conversions["DequantizeLinear"] >= 1


def test_dynamic_products_are_integer_products(tmp_path: Path) -> None:
    source = save(matmul_model(), tmp_path / "m.onnx")
    quantize_dynamic(source, tmp_path / "q.onnx")
    fusion = fusion_of(tmp_path / "q.onnx")
    assert fusion.integer == {"DynamicQuantizeMatMul": 1}
    assert (fusion.integer_count, fusion.product_count) == (1, 1)


def test_other_integer_kernels_are_no_products(tmp_path: Path) -> None:
    nodes = [
        *(node("QuantizeLinear", [x, "s", "z"], [f"{x}q"]) for x in ("a", "b")),
        *(node("DequantizeLinear", [f"{x}q", "s", "z"], [f"{x}d"]) for x in ("a", "b")),
        node("Add", ["ad", "bd"], ["c"]),
        node("QuantizeLinear", ["c", "s", "z"], ["cq"]),
        node("DequantizeLinear", ["cq", "s", "z"], ["y"]),
    ]
    constants: dict[str, Array] = {
        "s": np.array(0.1, np.float32),
        "z": np.array(128, np.uint8),
    }
    proto = model(graph(nodes, {"a": [4], "b": [4]}, {"y": [4]}, constants))
    fusion = fusion_of(save(proto, tmp_path / "m.onnx"))
    assert fusion.integer == {"QLinearAdd": 1}
    assert fusion.product_count == 0


def test_a_product_that_is_fused_with_its_scale_keeps_its_name(tmp_path: Path) -> None:
    nodes = [node("MatMul", ["a", "b"], ["m"], "scores"), node("Div", ["m", "root"], ["y"])]
    constants = {"root": np.array(8, np.float32)}
    proto = model(graph(nodes, {"a": [4, 8], "b": [8, 4]}, {"y": [4, 4]}, constants))
    fusion = fusion_of(save(proto, tmp_path / "m.onnx"))
    assert fusion.float == {"FusedMatMul": 1}
    assert fusion.float_products == ("scores",)


def test_products_of_subgraphs_are_counted(tmp_path: Path) -> None:
    branches = {
        f"{name}_branch": graph(
            [node("MatMul", ["x", f"w_{name}"], [f"y_{name}"], name)],
            {},
            {f"y_{name}": None},
            {f"w_{name}": weight(8, 8)},
        )
        for name in ("then", "else")
    }
    choice = node("If", ["flag"], ["y"], **branches)
    inputs = {"x": [2, 8], "flag": []}
    proto = model(graph([choice], inputs, {"y": None}, types={"flag": TensorProto.BOOL}))
    fusion = fusion_of(save(proto, tmp_path / "m.onnx"))
    assert fusion.float == {"MatMul": 2}
    assert set(fusion.float_products) == {"then", "else"}


def test_external_data_is_found_and_nothing_is_left_beside_the_model(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(matmul_model(), path, save_as_external_data=True, location="m.data")
    assert fusion_of(path).float_products == ("mm",)
    assert {p.name for p in tmp_path.iterdir()} == {"m.onnx", "m.data"}


def test_what_does_not_load_is_the_runtimes_error(tmp_path: Path) -> None:
    proto = matmul_model()
    proto.opset_import[0].version = 9999
    path = save(proto, tmp_path / "m.onnx")
    with pytest.raises(RUNTIME_ERRORS):
        fusion_of(path)


def test_a_fusion_is_frozen(tmp_path: Path) -> None:
    fusion = fusion_of(save(matmul_model(), tmp_path / "m.onnx"))
    with pytest.raises(FrozenInstanceError):
        fusion.float_products = ()  # type: ignore[misc]


def test_a_saved_graph_has_its_weights_beside_it_and_runs(tmp_path: Path) -> None:
    saved = tmp_path / "optimized.onnx"
    x = {"x": weight(2, 128)}
    expected = make_session(
        matmul_model().SerializeToString(), threads=1, optimized_path=saved
    ).run(None, x)
    assert saved.stat().st_size < 10_000 < (tmp_path / "optimized.onnx.data").stat().st_size
    actual = make_session(str(saved), threads=1).run(None, x)
    np.testing.assert_array_equal(actual[0], expected[0])
