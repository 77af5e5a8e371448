"""Complaints about static quantization with other tools, each a test. The numbers are those of the list they come from."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import Array, graph, initializers, model, node, rng, run, save, sqnr, weight
from onnx import TensorProto, helper, numpy_helper
from static_cases import IMAGE, X, chain, check_formats, conv, conv_weights, write

from quantkit import (
    calibrate,
    evaluate_models,
    optimize,
    quantize_dynamic,
    quantize_static,
    verify_file,
)
from quantkit.errors import UsageError
from quantkit.numerics.dtypes import INT8, UINT8
from quantkit.quantize.emit.static import Format
from quantkit.quantize.plan import Mode
from quantkit.runtime.kernels import fusion_of
from quantkit.settings import RecoverSettings, StaticSettings

FAST = RecoverSettings(rounding=False, equalize=False, smooth=False)
IMAGES = rng(3).standard_normal((16, 8, 6, 6)).astype(np.float32)


def network(opset: int = 17, batch: int | str = "N") -> onnx.ModelProto:
    """Two branches that are added, pooled and classified."""
    nodes = [
        conv("x", "a", "c1"),
        node("Relu", ["a"], ["r"], "relu"),
        conv("r", "b", "c2"),
        node("Add", ["r", "b"], ["s"], "add"),
        node("Relu", ["s"], ["t"], "relu2"),
        node("MaxPool", ["t"], ["p"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("GlobalAveragePool", ["p"], ["g"], "mean"),
        node("Flatten", ["g"], ["f"], "flatten"),
        node("Gemm", ["f", "w", "k"], ["y"], "fc", transB=1),
    ]
    weights = {**conv_weights("c1", "c2"), "w": weight(10, 8), "k": weight(10)}
    return model(graph(nodes, {"x": [batch, 8, 6, 6]}, {"y": None}, weights), opset=opset)


def test_1_by_default_every_product_runs_in_integers_and_nothing_is_converted_between(
    tmp_path: Path,
) -> None:
    result = quantize_static(network(), tmp_path / "q.onnx", IMAGES)
    assert result.fusion is not None
    assert not result.fusion.float
    assert result.fusion.integer == {
        "QGemm": 1, "QLinearAdd": 1, "QLinearConv": 2, "QLinearGlobalAveragePool": 1
    }  # fmt: skip
    assert result.fusion.conversions == {"QuantizeLinear": 1}
    assert not any("in float" in warning for warning in result.warnings)


def test_5_weights_cannot_overflow_int16_on_any_cpu(tmp_path: Path) -> None:
    proto = network()
    for tensor in proto.graph.initializer:  # all of one sign, near the end of the range
        if tensor.name.endswith("w"):
            array = 0.2 + 0.01 * np.abs(numpy_helper.to_array(tensor))
            tensor.CopyFrom(numpy_helper.from_array(array.astype(np.float32), tensor.name))
    quantize_static(proto, tmp_path / "q.onnx", IMAGES)
    stored = initializers(onnx.load(tmp_path / "q.onnx"))
    for name, array in stored.items():
        if array.dtype != np.int8 or array.ndim < 2:
            continue
        rows = array.reshape(array.shape[0], -1) if array.ndim == 2 else array.transpose(0, 2, 3, 1)
        flat = rows.reshape(array.shape[0], -1).astype(np.int64)
        flat = np.pad(flat, ((0, 0), (0, flat.shape[1] % 2)))
        pairs = flat.reshape(array.shape[0], -1, 2)
        assert 255 * np.maximum(pairs, 0).sum(axis=2).max() <= 32767, name
        assert 255 * np.minimum(pairs, 0).sum(axis=2).min() >= -32768, name


@pytest.mark.parametrize("behind", ["nothing", "Transpose"])
def test_6_scores_of_a_detector_survive_beside_its_boxes(behind: str, tmp_path: Path) -> None:
    nodes = [
        conv("x", "boxes", "c1"),
        conv("x", "logits", "c2"),
        node("Sigmoid", ["logits"], ["scores"], "sigmoid"),
        node(
            "Concat", ["boxes", "scores"], ["y" if behind == "nothing" else "d"], "concat", axis=1
        ),
    ]
    weights = conv_weights("c1", "c2")
    weights["c1_w"] *= 100  # pixels
    weights["c2_b"] -= 4  # most scores are near zero
    if behind == "Transpose":
        nodes.append(node("Transpose", ["d"], ["y"], "turn", perm=[0, 2, 3, 1]))
    proto = model(graph(nodes, IMAGE, {"y": None}, weights))
    expected = run(proto, {"x": X})[0]
    for output_format in Format:
        written = write(proto, tmp_path / "q.onnx", {"x": X}, output_format)
        actual = run(written.path, {"x": X})[0]
        axis = 3 if behind == "Transpose" else 1
        expected_scores, scores = (np.split(v, 2, axis=axis)[1] for v in (expected, actual))
        assert sqnr(expected_scores, scores) > 25


def test_7_one_scale_a_channel_is_not_worse_for_a_transformer(tmp_path: Path) -> None:
    spread = np.logspace(-1.5, 0, 32).astype(np.float32)
    nodes = [
        *(node("MatMul", ["x", f"w{n}"], [n], f"to_{n}") for n in "qkv"),
        node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        node("MatMul", ["q", "kt"], ["s"], "scores"),
        node("Softmax", ["s"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["o"], "mix"),
        node("MatMul", ["o", "wo"], ["z"], "out"),
        node("Add", ["z", "x"], ["y"], "residual"),
    ]
    weights = {f"w{n}": weight(32, 32, seed=i) * spread for i, n in enumerate("qkvo")}
    proto = model(graph(nodes, {"x": [2, 7, 32]}, {"y": None}, weights))
    x = {"x": weight(2, 7, 32, scale=1)}
    found = []
    for per_channel in (True, False):
        options = StaticSettings(per_channel=per_channel)
        path = check_formats(proto, tmp_path, x, options)[Format.QDQ].path
        found.append(sqnr(run(proto, x)[0], run(path, x)[0]))
    assert found[0] >= found[1] - 0.5


def test_8_and_9_each_product_has_a_mode_and_a_reason_and_the_loss_is_measured(
    tmp_path: Path,
) -> None:
    result = quantize_static(network(), tmp_path / "q.onnx", IMAGES, nodes_to_exclude=["c2"])
    assert all(n.why for n in result.plan.nodes)
    assert result.plan.node["c2"].why == "excluded"
    assert result.verification is not None
    assert result.verification.compared["y"] > 20


@pytest.mark.parametrize("activation", [UINT8, INT8], ids=["uint8", "int8"])
@pytest.mark.parametrize("weights", [UINT8, INT8], ids=["by uint8", "by int8"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_11_every_combination_of_types_loads_or_is_refused_in_a_sentence(
    activation: Any, weights: Any, *, symmetric: bool, tmp_path: Path
) -> None:
    proto, options = network(), StaticSettings(
        activation_type=activation.name, weight_type=weights.name, symmetric_activations=symmetric
    )  # fmt: skip
    feeds = {"x": X}
    if (activation, weights) != (INT8, UINT8):
        check_formats(proto, tmp_path, feeds, options)
        return
    written = write(proto, tmp_path / "q.onnx", feeds, Format.QDQ, options)
    assert sqnr(run(proto, feeds)[0], run(written.path, feeds)[0]) > 25
    with pytest.raises(UsageError, match="for which there is no QLinear operator"):
        write(proto, tmp_path / "q.onnx", feeds, Format.QOPERATOR, options)


@pytest.mark.parametrize("opset", [9, 11, 12])
def test_12_a_scale_a_channel_with_an_old_opset(opset: int, tmp_path: Path) -> None:
    out = tmp_path / "q.onnx"
    quantize_static(network(opset), out, IMAGES, recover=FAST)
    assert onnx.load(out).opset_import[0].version == 13
    assert initializers(onnx.load(out))["c1_w_scale"].shape == (8,)
    onnx.checker.check_model(onnx.load(out))


def test_13_names_are_new_and_no_initializer_is_changed_for_others(tmp_path: Path) -> None:
    proto = chain(
        node("Mul", ["a", "c2_b_row"], ["b"], "mul"), constants={"c2_b_row": weight(8, 1, 1)}
    )
    for item in proto.graph.node:
        item.name = ""  # exporters do that
    extra = numpy_helper.from_array(weight(8), "x_scale")
    proto.graph.initializer.append(extra)
    proto.graph.node.append(node("Add", ["x_scale", "c2_b"], ["z"], "sum"))
    proto.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    for found in check_formats(proto, tmp_path, {"x": X}).values():
        expected, actual = (run(p, {"x": X})[1] for p in (proto, found.path))
        np.testing.assert_array_equal(expected, actual)  # what no product reads is exact


@pytest.mark.parametrize("kind", ["Constant nodes", "Identity", "nobody reads"])
def test_16_the_file_shrinks_however_weights_are_written(kind: str, tmp_path: Path) -> None:
    names = ["w1", "w2"]
    arrays = {name: weight(256, 256, seed=i) for i, name in enumerate(names)}
    nodes = [
        node("MatMul", ["x", "v1" if kind == "Identity" else "w1"], ["h"], "m1"),
        node("MatMul", ["h", "w2"], ["y"], "m2"),
    ]
    kept: dict[str, Array] = dict(arrays)
    if kind == "Constant nodes":
        kept = {}
        made = [node("Constant", [], [n], value=numpy_helper.from_array(arrays[n])) for n in names]
        nodes = [*made, *nodes]
    elif kind == "Identity":
        nodes.insert(0, node("Identity", ["w1"], ["v1"], "same"))
    else:
        kept["dead"] = weight(256, 256, seed=9)
    proto = model(graph(nodes, {"x": [4, 256]}, {"y": None}, kept))
    save(proto, tmp_path / "float.onnx")
    x = [{"x": weight(4, 256, seed=5)}]
    result = quantize_static(tmp_path / "float.onnx", tmp_path / "q.onnx", x, recover=FAST)
    assert result.output_bytes < 0.28 * 2 * 256 * 256 * 4


def test_18_a_model_whose_shapes_nobody_can_infer(tmp_path: Path) -> None:
    nodes = [
        conv("x", "a", "c1"),
        node("Shape", ["a"], ["shape"], "shape"),
        node("Reshape", ["a", "shape"], ["u"], "unknown"),
        node("NonZero", ["u"], ["places"], "where"),
        node("Shape", ["places"], ["count"], "count"),
        node("Cast", ["count"], ["number"], "cast", to=TensorProto.FLOAT),
        node("ReduceMax", ["number"], ["largest"], "largest", keepdims=0),
        node("Div", ["u", "largest"], ["b"], "div"),
        conv("b", "y", "c2"),
    ]
    proto = model(graph(nodes, {"x": None}, {"y": None}, conv_weights("c1", "c2")))
    for written in check_formats(proto, tmp_path, {"x": X}).values():
        assert fusion_of(written.path).integer == {"QLinearConv": 2}


def test_19_dynamic_axes_and_empty_tensors(tmp_path: Path) -> None:
    nodes = [
        conv("x", "a", "c1"),
        node("Resize", ["a", "roi", "factors"], ["b"], "resize", mode="nearest"),
        node("Concat", ["b", "empty"], ["d"], "concat", axis=0),
        conv("d", "y", "c2"),
    ]
    weights: dict[str, Array] = {
        **conv_weights("c1", "c2"),
        "roi": np.zeros(0, np.float32),
        "factors": np.array([1, 1, 2, 2], np.float32),
        "empty": np.zeros((0, 8, 12, 12), np.float32),
    }
    proto = model(graph(nodes, {"x": ["N", 8, 6, 6]}, {"y": None}, weights))
    quantize_static(proto, tmp_path / "q.onnx", IMAGES, recover=FAST)
    for count in (3, 0):
        assert run(tmp_path / "q.onnx", {"x": IMAGES[:count]})[0].shape == (count, 8, 12, 12)


def test_20_a_tensor_without_a_range_is_a_reason_and_no_failure(tmp_path: Path) -> None:
    proto = network()
    calibrate(proto, IMAGES, tmp_path / "c.calibration")
    other = network()
    for item in other.graph.node:  # the same model, exported again: one tensor has another name
        for names in (item.input, item.output):
            names[:] = ["renamed" if name == "r" else name for name in names]
    result = quantize_static(other, tmp_path / "q.onnx", tmp_path / "c.calibration")
    assert "the range of 'renamed' is not known" in result.plan.node["c1"].why
    assert any("made with another model" in warning for warning in result.warnings)
    missing = "no range of 1 tensor that target 'cpu' needs (the first: 'renamed')"
    assert any(missing in warning for warning in result.warnings)


@pytest.mark.parametrize("method", ["minmax", "percentile", "entropy", "mse"])
def test_21_batches_of_any_size_calibrate_with_every_method(method: str, tmp_path: Path) -> None:
    scales = []
    for size in (1, 4, 16):
        batches = [{"x": IMAGES[i : i + size]} for i in range(0, 16, size)]
        result = quantize_static(
            network(),
            tmp_path / "q.onnx",
            batches,
            method=method,
            recover=replace(FAST, activation_ranges=False),  # batches have other peaks than samples
        )
        scales.append([a.scale for a in result.plan.activations])
    np.testing.assert_allclose(scales[0], scales[1], rtol=0.05)
    np.testing.assert_allclose(scales[0], scales[2], rtol=0.05)


def test_22_a_calibration_is_made_once_and_used_often(tmp_path: Path) -> None:
    source = save(network(), tmp_path / "float.onnx")
    calibrate(source, IMAGES, tmp_path / "c.calibration")
    expected = run(source, {"x": IMAGES})[0]
    for quant_format in ("qdq", "qoperator"):
        for method in (None, "minmax"):
            out = tmp_path / "q.onnx"
            quantize_static(
                source, out, tmp_path / "c.calibration", quant_format=quant_format, method=method
            )
            assert sqnr(expected, run(out, {"x": IMAGES})[0]) > 20


def test_23_no_temporary_file_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "out").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    quantize_static(network(), tmp_path / "out" / "q.onnx", IMAGES)
    with pytest.raises(UsageError):
        quantize_static(network(), tmp_path / "out" / "r.onnx", IMAGES, nodes_to_exclude=["c9"])
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["q.onnx"]
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("per_channel", [True, False])
def test_24_gemm_and_matmul_by_column_or_by_tensor(*, per_channel: bool, tmp_path: Path) -> None:
    nodes = [
        node("Gemm", ["x", "w1", "b"], ["h"], "turned", transB=1),
        node("Relu", ["h"], ["r"], "relu"),
        node("MatMul", ["r", "w2"], ["y"], "plain"),
    ]
    weights = {"w1": weight(24, 16), "w2": weight(24, 8), "b": weight(24)}
    proto = model(graph(nodes, {"x": ["N", 16]}, {"y": None}, weights))
    options = StaticSettings(per_channel=per_channel)
    for written in check_formats(proto, tmp_path, {"x": weight(5, 16, scale=1)}, options).values():
        stored = initializers(onnx.load(written.path))
        shapes = [stored[f"{name}_scale"].shape for name in ("w1", "w2")]
        assert shapes == ([(24,), (8,)] if per_channel else [(), ()])
        assert written.modes() == {
            "turned": Mode.STATIC, "relu": Mode.ABSORBED, "plain": Mode.STATIC
        }  # fmt: skip


def _branch(name: str, reads: str, weight_name: str) -> onnx.GraphProto:
    nodes = [node("MatMul", [reads, weight_name], [f"{name}_y"], f"{name}_mm")]
    return graph(nodes, {}, {f"{name}_y": [-1, -1]}, name=name)


def _undeclared() -> onnx.ModelProto:
    """-1 wherever an extent is declared: inputs, outputs, values, and inside an If and a Loop."""
    body = graph(
        [node("MatMul", ["s", "w3"], ["t"], "step"), node("Identity", ["go"], ["on"])],
        {"i": [], "go": [], "s": [-1, -1]},
        {"on": [], "t": [-1, 64]},
        types={"i": TensorProto.INT64, "go": TensorProto.BOOL, "on": TensorProto.BOOL},
    )
    branches = {f"{k}_branch": _branch(k, "r", "w2") for k in ("then", "else")}
    nodes = [
        node("MatMul", ["x", "w"], ["h"], "a"),
        node("Relu", ["h"], ["r"], "relu"),
        node("If", ["c"], ["z"], "if", **branches),
        node("Loop", ["n", "", "z"], ["l"], "loop", body=body),
        node("MatMul", ["l", "w3"], ["y"], "b"),
    ]
    weights = {"w": weight(64, 128), "w2": weight(128, 64, seed=2, scale=0.1)}
    weights["w3"] = weight(64, 64, seed=3, scale=0.1)
    proto = model(
        graph(
            nodes,
            {"x": [-1, 64], "c": []},
            {"y": [-1, -7], "r": [-1, 128]},
            {**weights, "n": np.array(2, np.int64)},
            types={"c": TensorProto.BOOL},
        )
    )
    proto.graph.value_info.append(helper.make_tensor_value_info("h", TensorProto.FLOAT, [-1, -1]))
    return proto


def test_a_negative_extent_is_unknown_to_every_call(tmp_path: Path) -> None:
    source = save(_undeclared(), tmp_path / "m.onnx")
    samples = [
        {"x": rng(i).standard_normal((1 + i % 3, 64)).astype(np.float32), "c": np.array(i % 2 > 0)}
        for i in range(6)
    ]
    quantize_static(source, tmp_path / "s.onnx", samples)
    quantize_dynamic(source, tmp_path / "d.onnx", nodes_to_quantize=["a"])
    optimize(source, tmp_path / "o.onnx")
    names = ("s", "d", "o")
    result = evaluate_models(source, [tmp_path / f"{name}.onnx" for name in names], samples)
    assert len(result.candidates) == len(names)
    assert verify_file(tmp_path / "s.onnx", float_model=source).ok


@pytest.mark.parametrize("options", [{}, {"per_channel": False}, {"weight_type": "uint8"}], ids=str)
def test_ternary_weights_are_exact_in_the_file(options: dict[str, Any], tmp_path: Path) -> None:
    """Channels of the first layer are far apart, so that they are equalized."""
    proto = network()
    loudness = np.geomspace(0.05, 1, 8).astype(np.float32).reshape(-1, 1, 1, 1)
    for i, tensor in enumerate(proto.graph.initializer):
        array = numpy_helper.to_array(tensor)
        if array.ndim > 1:
            array = rng(i).integers(-1, 2, array.shape).astype(np.float32) * np.float32(0.37)
            array = array * loudness if tensor.name == "c1_w" else array
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    result = quantize_static(proto, tmp_path / "q.onnx", IMAGES, **options)
    assert "w" in result.plan.weight
    made = initializers(onnx.load(tmp_path / "q.onnx"))
    for name in ("c2_w", "w"):
        q = made[f"{name}_quantized"].astype(int) - (128 if "weight_type" in options else 0)
        for channel in q:
            least = np.abs(channel[channel != 0]).min()
            assert not (channel % least).any()  # all are multiples of the least


def test_dynamic_ternary_weights_lose_nothing(tmp_path: Path) -> None:
    proto = chain(node("Relu", ["a"], ["b"], "relu"))
    for i, tensor in enumerate(proto.graph.initializer):
        array = rng(i).integers(-1, 2, tuple(tensor.dims)).astype(np.float32) * np.float32(0.37)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    source = save(proto, tmp_path / "m.onnx")
    for weight_type in ("uint8", "int8"):
        quantize_dynamic(source, tmp_path / "q.onnx", weight_type)
        (wanted,), (got,) = (run(p, {"x": X}) for p in (source, tmp_path / "q.onnx"))
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
