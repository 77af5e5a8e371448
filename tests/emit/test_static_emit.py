"""Every operator between integer products: both formats, near float, in the kernels that were planned."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import pytest
from builders import Array, Shape, graph, model, node, rng, run, sqnr, weight
from integer_cases import CASES, FLOAT_CASES, Case, resize
from static_cases import IMAGE, X, chain, check_formats, conv, conv_weights, write
from targets.test_targets_runtime import with_axes

from quantkit import quantize_static, targets
from quantkit.errors import UsageError
from quantkit.quantize.emit.static import Format
from quantkit.quantize.plan import Mode
from quantkit.runtime.kernels import Fusion, fusion_of
from quantkit.settings import ActivationType, StaticSettings, TensorRule

# What gives NaN, or values that no eight bits hold, on data of both signs.
UNFIT = {"Div", "Sqrt"}


def between(op: str, case: Case) -> onnx.ModelProto:
    """Conv, or two, then the operator 'op', and behind each of its outputs a product."""
    names = [f"c{i}" for i in range(case.inputs)]
    nodes = [conv("x", f"a{i}", name) for i, name in enumerate(names)]
    weights = conv_weights(*names)
    operands = [f"first{i}" for i in range(len(case.first))] + [f"a{i}" for i in range(case.inputs)]
    weights |= {f"first{i}": array for i, array in enumerate(case.first)}
    for i, extra in enumerate(case.rest):
        operands.append("" if extra is None else f"rest{i}")
        if extra is not None:
            weights[f"rest{i}"] = np.asarray(extra)
    made = [f"m{i}" for i in range(case.outputs)]
    nodes.append(node(op, operands, made, "op", **case.attributes))
    head = model(graph(nodes, IMAGE, dict.fromkeys(made), weights), opset=13)
    for i, array in enumerate(run(head, {"x": X})):
        channels, last = array.shape[1], array.shape[-1]
        if array.ndim == 4:
            weights[f"t{i}"] = weight(4, channels, 1, 1, seed=9)
            nodes.append(node("Conv", [made[i], f"t{i}"], [f"y{i}"], f"tail{i}"))
        else:
            weights[f"t{i}"] = weight(last, 5, seed=9)
            nodes.append(node("MatMul", [made[i], f"t{i}"], [f"y{i}"], f"tail{i}"))
    outputs = {f"y{i}": None for i in range(case.outputs)}
    return model(graph(nodes, IMAGE, outputs, weights), opset=13)


def ends_only(fusion: Fusion, outputs: int) -> bool:
    """Whether conversions are left at the ends of the graph only."""
    found = fusion.conversions
    return found["QuantizeLinear"] == 1 and found.get("DequantizeLinear", 0) <= outputs


@pytest.mark.parametrize("op", sorted(CASES))
def test_operators_with_a_kernel_keep_integers_together(op: str, tmp_path: Path) -> None:
    proto = between(op, with_axes(op, CASES[op], 13))
    for written in check_formats(proto, tmp_path, {"x": X}).values():
        assert written.modes()["op"] is Mode.STATIC
        fusion = fusion_of(written.path)
        assert not fusion.float
        assert ends_only(fusion, len(proto.graph.output))


# A mean over all places is pooling, for which there is a kernel.
@pytest.mark.parametrize("op", sorted({*FLOAT_CASES} - {*UNFIT, "Relu", "Clip", "ReduceMean"}))
def test_operators_without_a_kernel_run_in_float_between_integers(op: str, tmp_path: Path) -> None:
    proto = between(op, with_axes(op, FLOAT_CASES[op], 13))
    for written in check_formats(proto, tmp_path, {"x": X}).values():
        fusion = fusion_of(written.path)
        assert not fusion.float
        assert fusion.conversions["QuantizeLinear"] == 2


def test_a_mean_over_all_places_runs_in_integers(tmp_path: Path) -> None:
    proto = between("ReduceMean", with_axes("ReduceMean", FLOAT_CASES["ReduceMean"], 13))
    for written in check_formats(proto, tmp_path, {"x": X}).values():
        assert fusion_of(written.path).conversions["QuantizeLinear"] == 1


def only_if_bare(monkeypatch: pytest.MonkeyPatch, op: str) -> StaticSettings:
    """Return a target that runs one more operator on integers, if it is written so."""
    cpu = targets.DEFAULT
    mine = replace(cpu, name="mine", moves=cpu.moves | {op}, bare=frozenset({op}))
    monkeypatch.setattr(targets.registry, "TARGETS", {**targets.TARGETS, "mine": mine})
    return StaticSettings(target="mine")


def test_movement_that_is_not_found_between_conversions_is_written_on_integers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = only_if_bare(monkeypatch, "SpaceToDepth")
    proto = between("SpaceToDepth", FLOAT_CASES["SpaceToDepth"])
    for written in check_formats(proto, tmp_path, {"x": X}, options).values():
        assert written.modes()["op"] is Mode.STATIC
        assert ends_only(fusion_of(written.path), 1)


@pytest.mark.parametrize("dtype", ["uint16", "int8"])
def test_other_integers_than_uint8_are_not_moved_as_they_are(
    dtype: Literal["uint16", "int8"], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = replace(only_if_bare(monkeypatch, "SpaceToDepth"), activation_type=dtype)
    proto = between("SpaceToDepth", FLOAT_CASES["SpaceToDepth"])
    written = write(proto, tmp_path / "q.onnx", {"x": X}, Format.QDQ, options)
    assert written.modes()["op"] is Mode.STATIC
    assert sqnr(run(proto, {"x": X})[0], run(written.path, {"x": X})[0]) > 30
    assert bool(fusion_of(written.path).float) == (dtype == "uint16")


def test_resize_linear_runs_in_float(tmp_path: Path) -> None:
    for written in check_formats(between("Resize", resize("linear")), tmp_path, {"x": X}).values():
        assert written.modes()["op"] is Mode.FLOAT


@pytest.mark.parametrize("op", ["LayerNormalization", "InstanceNormalization", "PRelu"])
def test_normalizations_run_in_float(op: str, tmp_path: Path) -> None:
    rest: dict[str, tuple[Array, ...]] = {
        "LayerNormalization": (weight(6, scale=1), weight(6, seed=1)),
        "InstanceNormalization": (weight(8, scale=1), weight(8, seed=1)),
        "PRelu": (weight(8, 1, 1),),
    }
    names = [f"r{i}" for i in range(len(rest[op]))]
    constants = dict(zip(names, rest[op], strict=True))
    proto = chain(node(op, ["a", *names], ["b"], "op"), constants=constants)
    for written in check_formats(proto, tmp_path, {"x": X}).values():
        assert fusion_of(written.path).integer == {"QLinearConv": 2}


CONVS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "1d": ((8, 8, 3), (2, 8, 12), {}),
    "2d": ((8, 8, 3, 3), (2, 8, 9, 9), {"pads": [1, 1, 1, 1]}),
    "3d": ((8, 8, 2, 2, 2), (1, 8, 5, 5, 5), {}),
    "1x1": ((8, 8, 1, 1), (2, 8, 5, 5), {}),
    "grouped": ((16, 8, 3, 3), (1, 16, 6, 6), {"group": 2}),
    "depthwise": ((8, 1, 3, 3), (1, 8, 6, 6), {"group": 8}),
    "strides and dilations": ((8, 8, 3, 3), (2, 8, 19, 19), {"strides": [2, 2], "dilations": [2, 2]}),
    "same": ((8, 8, 3, 3), (2, 8, 9, 9), {"auto_pad": "SAME_UPPER"}),
}  # fmt: skip
TYPES = {
    "default": StaticSettings(),
    "by tensor": StaticSettings(per_channel=False),
    "uint8 weights": StaticSettings(weight_type="uint8"),
    "uint8 weights by tensor": StaticSettings(weight_type="uint8", per_channel=False),
    "int8 activations": StaticSettings(activation_type="int8"),
    "symmetric": StaticSettings(symmetric_activations=True),
    "symmetric int8": StaticSettings(activation_type="int8", symmetric_activations=True),
}


@pytest.mark.parametrize("options", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("kind", CONVS)
def test_convolutions(kind: str, options: StaticSettings, tmp_path: Path) -> None:
    shape, x_shape, attributes = CONVS[kind]
    nodes = [
        node("Conv", ["x", "w1"], ["a"], "c1", **attributes),  # without a bias
        node("Conv", ["a", "w2", "b2"], ["y"], "c2", **attributes),
    ]
    weights = {"w1": weight(*shape), "w2": weight(*shape, seed=2), "b2": weight(shape[0], seed=4)}
    proto = model(graph(nodes, {"x": x_shape}, {"y": None}, weights))
    feeds = {"x": rng(1).standard_normal(x_shape).astype(np.float32)}
    for written in check_formats(proto, tmp_path, feeds, options, least=27).values():
        assert fusion_of(written.path).integer == {"QLinearConv": 2}


@pytest.mark.parametrize("options", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("bias", [(8,), (1, 8), (), (1,), None], ids=str)
def test_gemm(
    bias: tuple[int, ...] | None, transposed: int, options: StaticSettings, tmp_path: Path
) -> None:
    weights: dict[str, Array] = {
        "w": weight(8, 16) if transposed else weight(16, 8),
        "v": weight(8, 8),
    }
    if bias is not None:
        weights["b"] = np.asarray(weight(*bias, seed=3))
    inputs = ["x", "w"] + ["b"] * (bias is not None)
    nodes = [
        node("Gemm", inputs, ["a"], "g1", transB=transposed, alpha=0.5, beta=2.0),
        node("Relu", ["a"], ["r"], "relu"),
        node("Gemm", ["r", "v"], ["z"], "g2"),
        node("Neg", ["z"], ["y"]),
    ]
    proto = model(graph(nodes, {"x": [4, 16]}, {"y": None}, weights))
    found = check_formats(proto, tmp_path, {"x": weight(4, 16, seed=5, scale=1)}, options)
    symmetric = options.symmetric_activations  # Relu then keeps onnxruntime from fusing QDQ
    for output_format, written in found.items():
        if output_format is Format.QOPERATOR or not symmetric:
            assert fusion_of(written.path).integer == {"QGemm": 2}


@pytest.mark.parametrize("options", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("shape", [(16,), (4, 16), (2, 3, 16)], ids=str)
def test_matmul(shape: tuple[int, ...], options: StaticSettings, tmp_path: Path) -> None:
    nodes = [node("MatMul", ["x", "w"], ["a"], "m1"), node("MatMul", ["a", "v"], ["y"], "m2")]
    weights = {"w": weight(16, 8), "v": weight(8, 8, seed=1)}
    proto = model(graph(nodes, {"x": shape}, {"y": None}, weights))
    found = check_formats(proto, tmp_path, {"x": weight(*shape, seed=5, scale=1)}, options)
    for written in found.values():
        integer = fusion_of(written.path).integer
        assert integer == {"MatMulIntegerToFloat": 1, "QLinearMatMul": 1}


def test_attention(tmp_path: Path) -> None:
    nodes = [
        *(node("MatMul", ["x", f"w{n}"], [n], f"to_{n}") for n in "qkv"),
        node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        node("MatMul", ["q", "kt"], ["s"], "scores"),
        node("Softmax", ["s"], ["p"], "softmax", axis=-1),
        node("MatMul", ["p", "v"], ["o"], "mix"),
        node("MatMul", ["o", "wo"], ["y"], "out"),
    ]
    weights = {f"w{n}": weight(16, 16, seed=i) for i, n in enumerate("qkvo")}
    proto = model(graph(nodes, {"x": [2, 5, 16]}, {"y": None}, weights))
    found = check_formats(proto, tmp_path, {"x": weight(2, 5, 16, seed=5, scale=1)})
    for written in found.values():
        fusion = fusion_of(written.path)
        assert fusion.integer == {
            "MatMulIntegerToFloat": 1,
            "QLinearMatMul": 5,
            "QLinearSoftmax": 1,
        }
        assert fusion.conversions == {"QuantizeLinear": 1}


@pytest.mark.parametrize("options", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("top", [None, 1.0])
def test_relu_and_clip_behind_a_conv(
    top: float | None, options: StaticSettings, tmp_path: Path
) -> None:
    bounds = {"low": np.array(0, np.float32), "high": np.array(top or 0, np.float32)}
    relu = node("Relu", ["a"], ["b"], "op")
    clip = node("Clip", ["a", "low", "high"], ["b"], "op")
    proto = chain(relu) if top is None else chain(clip, constants=bounds)
    found = check_formats(proto, tmp_path, {"x": X}, options)
    assert fusion_of(found[Format.QOPERATOR].path).integer == {"QLinearConv": 2}


@pytest.mark.parametrize("given", [(-1.0, 8.0), (0.0, 8.0)])
def test_a_range_that_the_user_gave_does_not_undo_a_clip(
    given: tuple[float, float], tmp_path: Path
) -> None:
    bounds = {"low": np.array(0, np.float32), "high": np.array(1, np.float32)}
    proto = chain(node("Clip", ["a", "low", "high"], ["b"], "clip"), constants=bounds)
    options = StaticSettings(tensors=(TensorRule(tensor="b", range=given),))
    check_formats(proto, tmp_path, {"x": X}, options)


@pytest.mark.parametrize("dtype", ["uint16", "int16"])
def test_sixteen_bits_are_more_exact_in_qdq_and_refused_elsewhere(
    dtype: ActivationType, tmp_path: Path
) -> None:
    proto, options = chain(node("Relu", ["a"], ["b"])), StaticSettings(activation_type=dtype)
    expected = run(proto, {"x": X})[0]
    wide = write(proto, tmp_path / "16.onnx", {"x": X}, Format.QDQ, options)
    eight = write(proto, tmp_path / "8.onnx", {"x": X})
    for optimize in (True, False):
        results = [run(w.path, {"x": X}, optimize=optimize)[0] for w in (wide, eight)]
        assert sqnr(expected, results[0]) > sqnr(expected, results[1]) + 2
    with pytest.raises(UsageError, match=r"has 16 bits.*use the QDQ format"):
        write(proto, tmp_path / "no.onnx", {"x": X}, Format.QOPERATOR, options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (StaticSettings(activation_type="int8", weight_type="uint8"), "multiply int8 by uint8 weights"),
        (StaticSettings(tensors=(TensorRule(tensor="b", dtype="int8"),)), "reads and writes int8 and uint8"),
    ],
)  # fmt: skip
def test_types_that_have_no_qlinear_operator_are_refused_and_load_as_qdq(
    options: StaticSettings, message: str, tmp_path: Path
) -> None:
    proto = chain(node("Relu", ["a"], ["b"]))
    with pytest.raises(UsageError, match=message):
        write(proto, tmp_path / "q.onnx", {"x": X}, Format.QOPERATOR, options)
    written = write(proto, tmp_path / "q.onnx", {"x": X}, Format.QDQ, options)
    for optimize in (True, False):
        actual = run(written.path, {"x": X}, optimize=optimize)[0]
        assert sqnr(run(proto, {"x": X})[0], actual) > 25


def test_a_bias_that_does_not_fit_widens_the_scale_of_its_channel(tmp_path: Path) -> None:
    proto = chain(node("Relu", ["a"], ["b"]))
    constants = {t.name: t for t in proto.graph.initializer}
    w, b = (onnx.numpy_helper.to_array(constants[n]).copy() for n in ("c1_w", "c1_b"))
    w[3], b[3] = w[3] * 1e-12, 1.5  # BatchNormalization leaves such channels behind
    for name, array in (("c1_w", w), ("c1_b", b)):
        constants[name].CopyFrom(onnx.numpy_helper.from_array(array, name))
    for options in (
        StaticSettings(),
        StaticSettings(weight_type="uint8"),
        StaticSettings(per_channel=False),
    ):
        check_formats(proto, tmp_path, {"x": X}, options, least=30)


@pytest.mark.parametrize("quant_format", ["qdq", "qoperator"])
def test_a_maxpool_whose_indices_are_read_stays_float(quant_format: str, tmp_path: Path) -> None:
    nodes = [
        node("Conv", ["x", "w0"], ["c"], "c0", pads=[1, 1, 1, 1]),
        node("MaxPool", ["c"], ["p", "places"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["p", "w1"], ["y"], "c1", pads=[1, 1, 1, 1]),
    ]
    weights = {"w0": weight(16, 3, 3, 3), "w1": weight(16, 16, 3, 3)}
    outputs: dict[str, Shape] = {"y": ["N", 16, 4, 4], "places": ["N", 16, 4, 4]}
    proto = graph(nodes, {"x": ["N", 3, 8, 8]}, outputs, weights, types={"places": 7})
    x = np.random.default_rng(0).random((16, 3, 8, 8)).astype(np.float32)
    path = tmp_path / "m.onnx"
    path.write_bytes(model(proto).SerializeToString())
    result = quantize_static(path, tmp_path / "o.onnx", {"x": x}, quant_format=quant_format)
    assert {n.node: n.mode.value for n in result.plan.nodes}["pool"] == "float"
    outputs_of = [run(p, {"x": x}) for p in (path, tmp_path / "o.onnx")]
    assert (outputs_of[0][1] == outputs_of[1][1]).mean() > 0.9
