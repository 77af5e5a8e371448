"""`quantkit.ort.quantize_dynamic`: what onnxruntime would quantize is quantized where it is asked for."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime.quantization.registry as peer
import pytest
from builders import MS, graph, matmul_model, model, node, op_types, rng, run, save, sqnr, weight

from quantkit import ort, quantize_dynamic
from quantkit.api.verify import reproduce
from quantkit.errors import NothingToQuantizeError, UsageError


def cnn() -> onnx.ModelProto:
    """x -> Conv 'c' -> Relu -> Flatten -> Gemm 'g' of 400 x 160 -> y."""
    nodes = [
        node("Conv", ["x", "w", "b"], ["m"], "c"),
        node("Relu", ["m"], ["a"], "r"),
        node("Flatten", ["a"], ["f"], "flat"),
        node("Gemm", ["f", "v"], ["y"], "g"),
    ]
    held = {"w": weight(16, 8, 3, 3), "b": weight(16, seed=1), "v": weight(400, 160, seed=2)}
    return model(graph(nodes, {"x": [1, 8, 7, 7]}, {"y": [1, 160]}, held))


def made(proto: onnx.ModelProto, folder: Path, **options: Any) -> list[str]:
    target = folder / "out.onnx"
    ort.quantize_dynamic(save(proto, folder / "in.onnx"), target, **options)
    return op_types(onnx.load(target))


def test_left_to_itself_it_quantizes_what_gains(tmp_path: Path) -> None:
    found = made(cnn(), tmp_path)
    assert "Conv" in found
    assert found.count("MatMulInteger") == 1


def test_operators_that_are_named_are_quantized(tmp_path: Path) -> None:
    found = made(cnn(), tmp_path, op_types_to_quantize=["Conv", "MatMul", "Gemm"])
    assert found.count("ConvInteger") == 1
    assert found.count("MatMulInteger") == 1


def test_nodes_that_are_named_are_quantized_whatever_their_size(tmp_path: Path) -> None:
    assert "MatMulInteger" in made(matmul_model(4, 4), tmp_path, nodes_to_quantize=["mm"])


def test_the_native_call_forces_a_small_node_that_is_named(tmp_path: Path) -> None:
    quantize_dynamic(matmul_model(4, 4), tmp_path / "o.onnx", nodes_to_quantize=["mm"])
    assert "MatMulInteger" in op_types(onnx.load(tmp_path / "o.onnx"))


def test_where_nothing_gains_everything_is_quantized(tmp_path: Path) -> None:
    assert "MatMulInteger" in made(matmul_model(10, 10), tmp_path)
    with pytest.raises(NothingToQuantizeError):
        quantize_dynamic(matmul_model(10, 10), tmp_path / "o.onnx")


def test_seven_bits_are_for_integer_kernels_so_there_is_one(tmp_path: Path) -> None:
    proto = model(
        graph(
            [node("Conv", ["x", "w"], ["y"], "c")],
            {"x": [1, 8, 9, 9]},
            {"y": None},
            {"w": weight(16, 8, 3, 3)},
        )
    )
    assert "ConvInteger" in made(proto, tmp_path, reduce_range=True)
    assert "ConvInteger" not in made(proto, tmp_path)


@pytest.mark.parametrize(
    ("coverage", "count"), [("gain", 0), ("all", 1), (None, 1)], ids=["gain", "all", "left-out"]
)
def test_coverage_settles_it(tmp_path: Path, coverage: str | None, count: int) -> None:
    found = made(cnn(), tmp_path, op_types_to_quantize=["Conv"], coverage=coverage)
    assert found.count("ConvInteger") == count


def test_what_is_not_faster_is_said_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    result = ort.quantize_dynamic(cnn(), tmp_path / "o.onnx", ["Conv"])
    said = [w for w in result.warnings if "not faster" in w]
    assert said
    assert "'c'" in said[0]
    assert said[0] in caplog.text


def test_nothing_to_quantize_gives_the_float_model(tmp_path: Path) -> None:
    proto = model(graph([node("Relu", ["x"], ["y"], "r")], {"x": [2, 3]}, {"y": [2, 3]}))
    result = ort.quantize_dynamic(proto, tmp_path / "o.onnx")
    assert op_types(onnx.load(tmp_path / "o.onnx")) == ["Relu"]
    assert any("Nothing to quantize" in w for w in result.warnings)


def registered() -> list[str]:
    tables = (peer.IntegerOpsRegistry, peer.QLinearOpsRegistry, peer.QDQRegistry)
    return sorted({name for table in tables for name in table})


@pytest.mark.parametrize("name", registered())
def test_every_operator_that_onnxruntime_registers_can_be_named(tmp_path: Path, name: str) -> None:
    result = ort.quantize_dynamic(matmul_model(), tmp_path / "o.onnx", ["MatMul", name])
    assert [n.mode for n in result.plan.nodes] == ["integer"]
    weighted = {"Attention", "Conv", "ConvTranspose", "EmbedLayerNormalization", "Gather", "Gemm"}
    idle = name not in weighted | {"LSTM", "MatMul"}
    assert any(f"nothing to do for {name}" in w for w in result.warnings) == idle


def test_operators_that_hold_no_weights_leave_the_model_float(tmp_path: Path) -> None:
    result = ort.quantize_dynamic(matmul_model(), tmp_path / "o.onnx", ["Transpose"])
    assert "MatMulInteger" not in op_types(onnx.load(tmp_path / "o.onnx"))
    assert any("nothing to do for Transpose" in w for w in result.warnings)


def test_an_operator_that_there_is_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'MatMul'"):
        ort.quantize_dynamic(matmul_model(), tmp_path / "o.onnx", ["Matmull"])


@pytest.mark.parametrize(
    "options",
    [
        {"WeightSymmetric": True},
        {"WeightSymmetric": False},
        {"ActivationSymmetric": False},
        {"ActivationSymmetric": True},
        {"EnableSubgraph": False},
        {"EnableSubgraph": True},
        {"MatMulConstBOnly": True},
        {"MatMulConstBOnly": False},
        {"DefaultTensorType": 1},
        {"ForceQuantizeNoInputCheck": True},
        {"extra.Sigmoid.nnapi": False},
        {"AddQDQPairToWeight": True},
        {"NumBins": 512},
    ],
    ids=lambda given: "-".join(f"{k}={v}" for k, v in given.items()),
)
def test_options_that_onnxruntime_takes_are_taken(tmp_path: Path, options: dict[str, Any]) -> None:
    proto, feeds = matmul_model(), {"x": rng(1).standard_normal((3, 128)).astype(np.float32)}
    for weight_type in (ort.QuantType.QInt8, ort.QuantType.QUInt8):
        made(proto, tmp_path, weight_type=weight_type, extra_options=options)
        assert sqnr(run(proto, feeds)[0], run(tmp_path / "out.onnx", feeds)[0]) > 25


def test_an_option_that_there_is_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'WeightSymmetric'"):
        made(matmul_model(), tmp_path, extra_options={"WeightSymetric": True})


def test_products_of_activations_are_quantized_where_that_is_asked_for(tmp_path: Path) -> None:
    proto = model(
        graph([node("MatMul", ["a", "b"], ["y"], "m")], {"a": [4, 4], "b": [4, 4]}, {"y": None})
    )
    assert "MatMulInteger" not in made(proto, tmp_path)
    assert "MatMulInteger" in made(proto, tmp_path, extra_options={"MatMulConstBOnly": False})


def test_a_configuration_of_dynamic_quantization_does_the_same(tmp_path: Path) -> None:
    source = save(cnn(), tmp_path / "in.onnx")
    given: dict[str, Any] = {"op_types_to_quantize": ["Conv"], "weight_type": ort.QuantType.QUInt8}
    ort.quantize(source, tmp_path / "a.onnx", ort.DynamicQuantConfig(**given))
    ort.quantize_dynamic(source, tmp_path / "b.onnx", **given)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_a_result_that_covers_all_can_be_made_again(tmp_path: Path) -> None:
    source = save(matmul_model(10, 10), tmp_path / "in.onnx")
    ort.quantize_dynamic(source, tmp_path / "o.onnx")
    assert reproduce(tmp_path / "o.onnx", source).outcome == "ok"


def test_attention_and_what_follows_it_are_quantized_however_small(tmp_path: Path) -> None:
    nodes = [
        node("Attention", ["x", "w", "b"], ["a"], "att", num_heads=2, domain=MS),
        node("MatMul", ["a", "v"], ["y"], "mm"),
    ]
    held = {"w": weight(8, 24), "b": weight(24, seed=1), "v": weight(8, 8, seed=2)}
    proto = model(graph(nodes, {"x": [1, 4, 8]}, {"y": None}, held), domains={MS: 1})
    found = made(proto, tmp_path)
    assert "QAttention" in found
    assert "MatMulInteger" in found


def test_what_belongs_to_an_outer_table_stands_beside_it(tmp_path: Path) -> None:
    branches = {
        f"{name}_branch": graph(
            [node("Gather", ["table", "i"], [name], f"gather_{name}")], {}, {name: None}
        )
        for name in ("then", "else")
    }
    nodes = [node("If", ["c"], ["y"], "if", **branches)]
    types = {"c": onnx.TensorProto.BOOL, "i": onnx.TensorProto.INT64}
    inputs: dict[str, Any] = {"i": [3], "c": []}
    proto = model(graph(nodes, inputs, {"y": None}, {"table": weight(9, 4)}, types=types))
    assert made(proto, tmp_path, op_types_to_quantize=["Gather"]).count("Gather") == 2
    written = onnx.load(tmp_path / "out.onnx")
    assert {"table_quantized", "table_scale"} <= {t.name for t in written.graph.initializer}
    assert not any(
        a.g.initializer for n in written.graph.node for a in n.attribute if a.HasField("g")
    )


def test_a_subgraph_is_left_alone_where_that_is_asked_for(tmp_path: Path) -> None:
    inner = graph(
        [node("MatMul", ["x", "w"], ["t"], "inner")], {}, {"t": None}, {"w": weight(128, 128)}
    )
    other = graph([node("Identity", ["x"], ["e"], "same")], {}, {"e": None})
    nodes = [node("If", ["c"], ["y"], "if", then_branch=inner, else_branch=other)]
    proto = model(
        graph(nodes, {"x": [2, 128], "c": []}, {"y": None}, types={"c": onnx.TensorProto.BOOL})
    )
    assert "MatMulInteger" in made(proto, tmp_path)
    assert "MatMulInteger" not in made(proto, tmp_path, extra_options={"EnableSubgraph": False})


@pytest.mark.parametrize("form", ["dynamic", "QDQ", "QOperator"])
def test_small_weights_in_constant_nodes_are_weights(tmp_path: Path, form: str) -> None:
    held = onnx.numpy_helper.from_array(weight(6, 5), "w")
    nodes = [node("Constant", [], ["w"], "k", value=held), node("MatMul", ["x", "w"], ["y"], "mm")]
    proto = model(graph(nodes, {"x": [2, 6]}, {"y": None}))
    target, values = tmp_path / "o.onnx", rng(2).standard_normal((2, 6)).astype(np.float32)
    if form == "dynamic":
        ort.quantize_dynamic(proto, target)
    else:
        ort.quantize_static(
            proto, target, [{"x": values}], quant_format=getattr(ort.QuantFormat, form)
        )
    kinds = {t.data_type for t in onnx.load(target).graph.initializer if len(t.dims) == 2}
    assert kinds == {onnx.TensorProto.INT8}
    assert sqnr(run(proto, {"x": values})[0], run(target, {"x": values})[0]) > 25
