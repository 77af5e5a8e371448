"""What users of other tools complain about, each as a test: it must not happen here.

The numbers are those of the themes: will not load (10-13), size and 2 GB (15-17), preparation
(18-20), coverage (24).
"""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from builders import (
    Array,
    graph,
    initializers,
    matmul_model,
    model,
    node,
    op_types,
    rng,
    run,
    save,
    sqnr,
    weight,
)
from onnx import TensorProto, helper, numpy_helper

from quantkit import QInt8, QUInt8, quantize_dynamic, quantize_weights
from quantkit.errors import QuantkitError
from quantkit.model.graph import save as saving

TYPES = pytest.mark.parametrize("weight_type", [QUInt8, QInt8], ids=["uint8", "int8"])


def conv_model(opset: int = 17) -> onnx.ModelProto:
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], "conv", pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"], "relu"),
        node("GlobalAveragePool", ["r"], ["p"], "pool"),
        node("Flatten", ["p"], ["f"], "flat"),
        node("Gemm", ["f", "fc", "fb"], ["y"], "fc", transB=1),
    ]
    weights = {
        "w": weight(256, 16, 3, 3),
        "b": weight(256, seed=1),
        "fc": weight(160, 256, seed=2),
        "fb": weight(160, seed=3),
    }
    return model(graph(nodes, {"x": ["N", 16, "H", "W"]}, {"y": None}, weights), opset=opset)


@TYPES
def test_10_a_quantized_cnn_loads_and_is_not_made_of_conv_integer(
    tmp_path: Path, weight_type: Any
) -> None:
    quantize_dynamic(conv_model(), tmp_path / "q.onnx", weight_type)
    ort.InferenceSession(str(tmp_path / "q.onnx"))
    assert "ConvInteger" not in op_types(onnx.load(tmp_path / "q.onnx"))


@TYPES
@pytest.mark.parametrize("signs", ["positive", "negative", "mixed"])
def test_11_every_type_combination_that_is_written_has_a_kernel(
    tmp_path: Path, weight_type: Any, signs: str
) -> None:
    w = weight(128, 192)
    w = {"positive": np.abs(w), "negative": -np.abs(w), "mixed": w}[signs]
    proto = model(
        graph([node("MatMul", ["x", "w"], ["y"], "mm")], {"x": ["N", 128]}, {"y": None}, {"w": w})
    )
    quantize_dynamic(proto, tmp_path / "q.onnx", weight_type)
    feeds = {"x": rng().standard_normal((3, 128)).astype(np.float32)}
    assert sqnr(run(proto, feeds)[0], run(tmp_path / "q.onnx", feeds)[0]) > 30


@pytest.mark.parametrize("opset", [9, 10, 11, 12])
def test_12_per_channel_on_an_old_opset_is_a_valid_graph(tmp_path: Path, opset: int) -> None:
    proto = conv_model(opset)
    quantize_dynamic(proto, tmp_path / "q.onnx", per_channel=True)
    written = onnx.load(tmp_path / "q.onnx")
    onnx.checker.check_model(_with_output_shapes(written))
    feeds = {"x": rng().standard_normal((1, 16, 8, 8)).astype(np.float32)}
    for optimize in (True, False):
        actual = run(tmp_path / "q.onnx", feeds, optimize=optimize)[0]
        assert sqnr(run(proto, feeds)[0], actual) > 25


def _with_output_shapes(proto: onnx.ModelProto) -> onnx.ModelProto:
    for value in proto.graph.output:
        value.type.tensor_type.shape.SetInParent()
    return proto


def test_12_the_opset_is_raised_only_if_the_plan_needs_it(tmp_path: Path) -> None:
    nodes = [node("Conv", ["x", "w"], ["y"], "conv")]
    proto = model(
        graph(nodes, {"x": [1, 16, 8, 8]}, {"y": None}, {"w": weight(32, 16, 3, 3)}), opset=9
    )
    quantize_dynamic(proto, tmp_path / "q.onnx")
    assert onnx.load(tmp_path / "q.onnx").opset_import[0].version == 9


@pytest.mark.parametrize("suffix", ["_quantized", "_scale", "_zero_point"])
def test_13_names_never_collide(tmp_path: Path, suffix: str) -> None:
    proto = matmul_model()
    proto.graph.node.append(node("Add", ["y", f"w{suffix}"], ["z"], f"w{suffix}"))
    proto.graph.initializer.append(numpy_helper.from_array(weight(192, seed=9), f"w{suffix}"))
    proto.graph.output[0].name = "z"
    quantize_dynamic(proto, tmp_path / "q.onnx")
    feeds = {"x": rng().standard_normal((3, 128)).astype(np.float32)}
    assert sqnr(run(proto, feeds)[0], run(tmp_path / "q.onnx", feeds)[0]) > 30
    np.testing.assert_array_equal(
        initializers(onnx.load(tmp_path / "q.onnx"))[f"w{suffix}"], weight(192, seed=9)
    )


def test_13_quantizing_a_quantized_model_is_refused_not_corrupted(tmp_path: Path) -> None:
    quantize_dynamic(matmul_model(), tmp_path / "q.onnx")
    before = (tmp_path / "q.onnx").read_bytes()
    with pytest.raises(QuantkitError, match="quantized already"):
        quantize_dynamic(tmp_path / "q.onnx", tmp_path / "qq.onnx")
    assert (tmp_path / "q.onnx").read_bytes() == before
    assert not (tmp_path / "qq.onnx").exists()


def test_15_above_the_protobuf_limit_external_data_is_written_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "_PROTOBUF_LIMIT", 10_000)
    proto = matmul_model()
    quantize_dynamic(proto, tmp_path / "q.onnx")
    assert len(list(tmp_path.glob("q.onnx.*.data"))) == 1
    feeds = {"x": rng().standard_normal((3, 128)).astype(np.float32)}
    assert sqnr(run(proto, feeds)[0], run(tmp_path / "q.onnx", feeds)[0]) > 30


def test_15_external_data_goes_in_without_any_flag(tmp_path: Path) -> None:
    proto = matmul_model()
    source = tmp_path / "in.onnx"
    onnx.save(proto, str(source), save_as_external_data=True, location="in.bin", size_threshold=0)
    feeds = {"x": rng().standard_normal((3, 128)).astype(np.float32)}
    expected = run(source, feeds)[0]
    quantize_dynamic(source, tmp_path / "q.onnx")
    assert sqnr(expected, run(tmp_path / "q.onnx", feeds)[0]) > 30
    assert not list(tmp_path.glob("q.onnx*.data"))


def _as_constants(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Move every initializer into a Constant node, as some exporters write them."""
    constants = [
        helper.make_node("Constant", [], [t.name], name=f"const_{t.name}", value=t)
        for t in proto.graph.initializer
    ]
    rest = list(proto.graph.node)
    del proto.graph.node[:]
    proto.graph.node.extend([*constants, *rest])
    del proto.graph.initializer[:]
    return proto


@TYPES
def test_16_weights_in_constant_nodes_shrink_too(tmp_path: Path, weight_type: Any) -> None:
    proto = _as_constants(conv_model())
    result = quantize_dynamic(proto, tmp_path / "q.onnx", weight_type)
    assert result.output_bytes < 0.3 * result.input_bytes
    assert {n.mode.value for n in result.plan.nodes} == {"stored", "integer"}


def test_16_no_float_copy_of_a_weight_stays_behind(tmp_path: Path) -> None:
    quantize_dynamic(conv_model(), tmp_path / "q.onnx")
    for tensor in onnx.load(tmp_path / "q.onnx").graph.initializer:
        assert tensor.data_type != TensorProto.FLOAT or np.prod(tensor.dims) <= 256


def test_16_the_file_never_grows(tmp_path: Path) -> None:
    """Many small weights: what would not save bytes is left alone."""
    nodes, weights = [], {}
    for i in range(40):
        nodes.append(node("MatMul", [f"y{i}", f"w{i}"], [f"y{i + 1}"], f"mm{i}"))
        weights[f"w{i}"] = weight(8, 8, seed=i)
    nodes.append(node("MatMul", ["y40", "big"], ["out"], "big"))
    weights["big"] = weight(8, 400)
    proto = model(graph(nodes, {"y0": ["N", 8]}, {"out": None}, weights))
    result = quantize_dynamic(proto, tmp_path / "q.onnx")
    assert result.output_bytes < result.input_bytes
    assert result.plan.node["mm0"].mode == "float"


def test_17_tied_embeddings_stay_tied(tmp_path: Path) -> None:
    nodes = [
        node("Gather", ["table", "ids"], ["h"], "embed"),
        node("Transpose", ["table"], ["t"], "turn"),
        node("MatMul", ["h", "t"], ["y"], "head"),
    ]
    proto = model(
        graph(
            nodes,
            {"ids": ["N"]},
            {"y": None},
            {"table": weight(1000, 128)},
            types={"ids": TensorProto.INT64},
        )
    )
    result = quantize_dynamic(proto, tmp_path / "q.onnx")
    assert result.output_bytes < 0.3 * result.input_bytes


def test_18_no_shape_inference_is_needed(tmp_path: Path) -> None:
    """Shapes of intermediate tensors unknown, an operator of which nothing is known in between."""
    proto = conv_model()
    del proto.graph.value_info[:]
    result = quantize_dynamic(proto, tmp_path / "q.onnx")
    assert result.verification is not None
    assert result.verification.compared


def test_19_dynamic_shapes_and_an_empty_batch(tmp_path: Path) -> None:
    quantize_dynamic(matmul_model(), tmp_path / "q.onnx")
    for batch in (1, 5, 33):
        assert run(tmp_path / "q.onnx", {"x": np.ones((batch, 128), np.float32)})[0].shape == (
            batch,
            192,
        )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"nodes_to_exclude": ["mmm"]}, ("mmm", "mm")),
        ({"weight_type": "QInt7"}, ("QInt7", "QUInt8")),
        ({"op_types_to_quantize": ["Softmax"]}, ("Softmax", "MatMul")),
        ({"extra_options": {"CalibMovingAverage": True}}, ("CalibMovingAverage",)),
    ],
    ids=["node", "type", "operator", "option"],
)
def test_20_errors_name_the_cause_and_the_way_out(
    tmp_path: Path, arguments: dict[str, Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(QuantkitError) as caught:
        quantize_dynamic(matmul_model(), tmp_path / "q.onnx", **arguments)
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in words)


@pytest.mark.parametrize("trans_b", [0, 1])
def test_24_gemm_with_a_transposed_weight(tmp_path: Path, trans_b: int) -> None:
    w = weight(192, 128) if trans_b else weight(128, 192)
    proto = model(
        graph(
            [node("Gemm", ["x", "w", "c"], ["y"], "gemm", transB=trans_b)],
            {"x": [4, 128]},
            {"y": None},
            {"w": w, "c": weight(192, seed=1)},
        )
    )
    result = quantize_dynamic(proto, tmp_path / "q.onnx")
    assert result.plan.node["gemm"].mode == "integer"
    feeds = {"x": rng().standard_normal((4, 128)).astype(np.float32)}
    assert sqnr(run(proto, feeds)[0], run(tmp_path / "q.onnx", feeds)[0]) > 30


def test_24_matmul_has_a_scale_a_column_and_can_be_told_not_to(tmp_path: Path) -> None:
    w = weight(128, 192) * np.geomspace(1, 1000, 192, dtype=np.float32)
    proto = model(
        graph([node("MatMul", ["x", "w"], ["y"], "mm")], {"x": ["N", 128]}, {"y": None}, {"w": w})
    )
    feeds = {"x": rng().standard_normal((4, 128)).astype(np.float32)}
    expected = run(proto, feeds)[0]

    def relative_error(path: Path) -> Array:
        actual = run(path, feeds)[0]
        result: Array = np.abs(actual - expected).mean(0) / np.abs(expected).mean(0)
        return result

    quantize_dynamic(proto, tmp_path / "channel.onnx")
    quantize_dynamic(proto, tmp_path / "tensor.onnx", per_channel=False)
    assert relative_error(tmp_path / "channel.onnx").max() < 0.05
    assert relative_error(tmp_path / "tensor.onnx").max() > 0.5


def test_24_gru_stays_float_in_computation_and_says_so(tmp_path: Path) -> None:
    proto = model(
        graph(
            [node("GRU", ["x", "w", "r"], ["y"], "gru", hidden_size=64)],
            {"x": [5, 1, 32]},
            {"y": None},
            {"w": weight(1, 192, 32), "r": weight(1, 192, 64)},
        )
    )
    result = quantize_dynamic(proto, tmp_path / "q.onnx")
    assert "GRU" in op_types(onnx.load(tmp_path / "q.onnx"))
    assert "no dynamic int8 kernel" in result.plan.node["gru"].why


def test_24_subgraphs_need_no_option(tmp_path: Path) -> None:
    def branch(name: str) -> onnx.GraphProto:
        return helper.make_graph(
            [node("MatMul", ["x", "w"], [f"{name}_y"], f"{name}_mm")],
            name,
            [],
            [helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, None)],
        )

    proto = model(
        graph(
            [node("If", ["c"], ["y"], "if", then_branch=branch("a"), else_branch=branch("b"))],
            {"x": ["N", 128], "c": []},
            {"y": None},
            {"w": weight(128, 192)},
            types={"c": TensorProto.BOOL},
        )
    )
    result = quantize_dynamic(save(proto, tmp_path / "in.onnx"), tmp_path / "q.onnx")
    assert {n.mode.value for n in result.plan.nodes} == {"integer"}
    stored = [t for t in onnx.load(tmp_path / "q.onnx").graph.initializer if len(t.dims) == 2]
    assert len(stored) == 1  # one weight for both branches


@pytest.mark.parametrize("form", ["dynamic", "weights"])
def test_a_result_that_gains_next_to_nothing_says_so_and_why(form: str, tmp_path: Path) -> None:
    """A weight that changes from step to step fills the file; a small Conv alone is stored in fewer bits."""
    step = graph(
        [
            node("MatMul", ["h_in", "w_in"], ["h_out"], "product"),
            node("Mul", ["w_in", "half"], ["w_out"]),
            node("Identity", ["go"], ["go_out"]),
        ],
        {"i": [], "go": [], "h_in": [1, 256], "w_in": [256, 256]},
        {"go_out": [], "h_out": [1, 256], "w_out": [256, 256]},
        types={"i": TensorProto.INT64, "go": TensorProto.BOOL, "go_out": TensorProto.BOOL},
        name="body",
    )
    nodes = [
        node("Conv", ["x", "k"], ["c"], "conv"),
        node("Reshape", ["c", "shape"], ["h"]),
        node("Loop", ["n", "yes", "h", "w"], ["y", "last"], "loop", body=step),
    ]
    weights = {
        "k": weight(16, 16, 3, 3),
        "w": weight(256, 256, scale=0.05),
        "shape": np.asarray([1, 256]),
        "n": np.asarray(2),
        "yes": np.asarray(True),
        "half": np.asarray(0.5, np.float32),
    }
    source = save(
        model(graph(nodes, {"x": [1, 16, 6, 6]}, {"y": [1, 256]}, weights)), tmp_path / "m.onnx"
    )
    quantize: Any = quantize_dynamic if form == "dynamic" else quantize_weights
    result = quantize(source, tmp_path / "q.onnx")
    (said,) = [text for text in result.warnings if "Next to nothing is gained" in text]
    assert "% smaller, and no layer computes with fewer bits" in said
    assert "MatMul: has no constant float32 weight" in said
