"""Coverage "all" as QLinear operators: each operator that has one, or moves integers, is written on integers."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import Array, graph, initializers, model, node, op_types, rng, run, sqnr, weight
from static_cases import Written, write

from quantkit.quantize.plan import Format, Mode
from quantkit.settings import QdqSettings, StaticSettings

X = rng(3).standard_normal((1, 4, 6, 6)).astype(np.float32)
FEEDS = {"x": X}
CONV = {"w": weight(4, 4, 1, 1), "b": weight(4, seed=1)}


def ints(*values: int) -> Array:
    return np.asarray(values, np.int64)


def behind_conv(*between: onnx.NodeProto, constants: dict[str, Any] | None = None) -> Any:
    """x -> Conv 'c' -> m -> `between` -> y."""
    nodes = [node("Conv", ["x", "w", "b"], ["m"], "c"), *between]
    held = {**CONV, **(constants or {})}
    return model(graph(nodes, {"x": list(X.shape)}, {"y": None}, held))


def covered(proto: onnx.ModelProto, folder: Path, **options: Any) -> Written:
    """Write it as QLinear operators; what it computes is float's, optimized or not."""
    settings = StaticSettings(coverage="all", format="qoperator", **options)
    made = write(proto, folder / "q.onnx", FEEDS, Format.QOPERATOR, settings)
    (expected,) = run(proto, FEEDS)
    for optimize in (True, False):
        (actual,) = run(made.path, FEEDS, optimize=optimize)
        assert actual.shape == expected.shape
        assert sqnr(expected, actual) > 20 or expected.dtype != np.float32
    return made


COMPUTED: dict[str, tuple[list[str], dict[str, Array], dict[str, Any]]] = {
    # A number for each place: what has one per channel goes into the Conv.
    "Add": (["m", "k"], {"k": weight(4, 6, 6, seed=2)}, {}),
    "Mul": (["m", "k"], {"k": 1 + weight(4, 6, 6, seed=2)}, {}),
    "Concat": (["m", "x"], {}, {"axis": 1}),
    "Sigmoid": (["m"], {}, {}),
    "LeakyRelu": (["m"], {}, {"alpha": 0.2}),
    "Softmax": (["m"], {}, {"axis": -1}),
    "AveragePool": (["m"], {}, {"kernel_shape": [2, 2]}),
    "GlobalAveragePool": (["m"], {}, {}),
    "Where": (["mask", "m", "x"], {"mask": X > 0}, {}),
    "MatMul": (["m", "x"], {}, {}),
}
MOVED: dict[str, tuple[list[str], dict[str, Array], dict[str, Any]]] = {
    "Flatten": (["m"], {}, {}),
    "Gather": (["m", "i"], {"i": ints(1, 3)}, {"axis": 1}),
    "MaxPool": (["m"], {}, {"kernel_shape": [2, 2]}),
    "Pad": (["m", "p"], {"p": ints(0, 0, 1, 1, 0, 0, 1, 1)}, {}),
    "Reshape": (["m", "s"], {"s": ints(1, -1)}, {}),
    "Resize": (["m", "", "s"], {"s": np.asarray([1, 1, 2, 2], np.float32)}, {"mode": "nearest"}),
    "Slice": (["m", "f", "t", "a"], {"f": ints(1), "t": ints(5), "a": ints(2)}, {}),
    "Squeeze": (["m", "a"], {"a": ints(0)}, {}),
    "Transpose": (["m"], {}, {"perm": [0, 2, 3, 1]}),
    "Unsqueeze": (["m", "a"], {"a": ints(0)}, {}),
}


@pytest.mark.parametrize("op_type", COMPUTED)
def test_an_operator_that_computes_is_written_as_its_qlinear_operator(
    tmp_path: Path, op_type: str
) -> None:
    inputs, constants, attributes = COMPUTED[op_type]
    proto = behind_conv(node(op_type, inputs, ["y"], "n", **attributes), constants=constants)
    made = covered(proto, tmp_path)
    found = op_types(onnx.load(made.path))
    assert found.count(f"QLinear{op_type}") == 1
    assert found.count("QuantizeLinear") == 1
    assert found.count("DequantizeLinear") == 1


@pytest.mark.parametrize("op_type", MOVED)
def test_an_operator_that_moves_works_on_integers(tmp_path: Path, op_type: str) -> None:
    inputs, constants, attributes = MOVED[op_type]
    proto = behind_conv(node(op_type, inputs, ["y"], "n", **attributes), constants=constants)
    made = covered(proto, tmp_path)
    found = op_types(onnx.load(made.path))
    assert [t for t in found if t != "QLinearConv"] == [
        "QuantizeLinear",
        op_type,
        "DequantizeLinear",
    ]
    plans = made.plan.activation
    assert (plans["m"].scale, plans["m"].zero_point) == (plans["y"].scale, plans["y"].zero_point)


@pytest.mark.parametrize("op_type", [*MOVED, "GlobalAveragePool"])
def test_what_is_done_to_floats_for_others_sake_stays_float(tmp_path: Path, op_type: str) -> None:
    inputs, constants, attributes = {**MOVED, **COMPUTED}[op_type]
    moved = node(op_type, ["x", *inputs[1:]], ["y"], "n", **attributes)
    made = covered(model(graph([moved], {"x": list(X.shape)}, {"y": None}, constants)), tmp_path)
    assert made.modes()["n"] is Mode.FLOAT
    assert op_types(onnx.load(made.path)) == [op_type]


@pytest.mark.parametrize("op_type", ["InstanceNormalization", "ConvTranspose", "Tanh", "Div"])
def test_an_operator_without_a_qlinear_form_stays_float_with_the_reason(
    tmp_path: Path, op_type: str
) -> None:
    more = {
        "InstanceNormalization": {"g": 1 + weight(4, seed=3), "h": weight(4, seed=4)},
        "ConvTranspose": {"g": weight(4, 3, 2, 2)},
        "Tanh": {},
        "Div": {"g": 2 + np.abs(weight(4, 6, 6))},
    }[op_type]
    proto = behind_conv(node(op_type, ["m", *more], ["y"], "n"), constants=more)
    made = covered(proto, tmp_path, op_types=("Conv", op_type))
    assert made.modes()["n"] is Mode.FLOAT
    assert "no QLinear operator" in made.plan.node["n"].why
    assert "QLinearConv" in op_types(onnx.load(made.path))


@pytest.mark.parametrize("fill", [0.0, 3.5, -9.0])
def test_what_a_pad_fills_in_is_within_the_scale_that_it_shares(
    tmp_path: Path, fill: float
) -> None:
    held = {"p": ints(0, 0, 1, 2, 0, 0, 2, 1), "v": np.float32(fill)}
    proto = behind_conv(node("Pad", ["m", "p", "v"], ["y"], "n"), constants=held)
    made = covered(proto, tmp_path)
    assert made.modes()["n"] is Mode.STATIC
    (actual,) = run(made.path, FEEDS)
    assert abs(float(actual[0, 0, 0, 0]) - fill) <= made.plan.activation["y"].scale


def test_what_a_pad_fills_in_may_be_computed(tmp_path: Path) -> None:
    proto = behind_conv(
        node("ReduceMax", ["x"], ["v"], "top", keepdims=0),
        node("Pad", ["m", "p", "v"], ["y"], "n"),
        constants={"p": ints(0, 0, 1, 2, 0, 0, 2, 1)},
    )
    made = covered(proto, tmp_path, op_types=("Conv", "Pad"))
    assert op_types(onnx.load(made.path)).count("QuantizeLinear") == 2
    assert made.plan.activation["v"].scale == made.plan.activation["y"].scale


def test_the_index_of_the_largest_is_found_among_integers(tmp_path: Path) -> None:
    proto = behind_conv(node("ArgMax", ["m"], ["y"], "n", axis=3))
    proto.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    made = covered(proto, tmp_path)
    assert "DequantizeLinear" not in op_types(onnx.load(made.path))
    assert (run(proto, FEEDS)[0] == run(made.path, FEEDS)[0]).mean() > 0.9


def test_every_part_of_a_split_has_the_scale_of_the_whole(tmp_path: Path) -> None:
    proto = behind_conv(
        node("Split", ["m", "s"], ["p", "q"], "n", axis=1),
        node("Add", ["p", "q"], ["y"], "sum"),
        constants={"s": ints(2, 2)},
    )
    made = covered(proto, tmp_path)
    scales = {made.plan.activation[name].scale for name in ("m", "p", "q")}
    assert len(scales) == 1
    assert op_types(onnx.load(made.path)).count("DequantizeLinear") == 1


@pytest.mark.parametrize("transposed", [0, 1])
def test_a_gemm_keeps_its_factors_and_its_transposed_input(tmp_path: Path, transposed: int) -> None:
    shape = [7, 5] if transposed else [5, 7]
    values = rng(4).standard_normal(shape).astype(np.float32)
    proto = model(
        graph(
            [node("Gemm", ["x", "w", "b"], ["y"], "g", transA=transposed, alpha=0.5, beta=2.0)],
            {"x": shape},
            {"y": None},
            {"w": weight(7, 6), "b": weight(6, seed=1)},
        )
    )
    settings = StaticSettings(coverage="all", format="qoperator")
    made = write(proto, tmp_path / "q.onnx", {"x": values}, Format.QOPERATOR, settings)
    assert "QGemm" in op_types(onnx.load(made.path))
    assert sqnr(run(proto, {"x": values})[0], run(made.path, {"x": values})[0]) > 30


def test_a_gemm_of_two_activations_has_a_kernel_without_a_bias(tmp_path: Path) -> None:
    values = {k: rng(i).standard_normal((6, 6)).astype(np.float32) for i, k in enumerate("ab")}
    shapes = {"a": [6, 6], "b": [6, 6]}
    for bias in (False, True):
        inputs = ["a", "b", "c"] if bias else ["a", "b"]
        held = {"c": weight(6)} if bias else {}
        proto = model(
            graph(
                [node("Gemm", inputs, ["y"], "g", alpha=0.5, transB=1)], shapes, {"y": None}, held
            )
        )
        settings = StaticSettings(coverage="all", format="qoperator")
        made = write(proto, tmp_path / "q.onnx", values, Format.QOPERATOR, settings)
        assert made.modes()["g"] is (Mode.FLOAT if bias else Mode.STATIC)
        assert sqnr(run(proto, values)[0], run(made.path, values)[0]) > 30


def test_a_bias_that_is_computed_keeps_its_conv_float(tmp_path: Path) -> None:
    """A QLinearConv adds constants only: nothing is lost on the way."""
    nodes = [
        node("ReduceMean", ["x"], ["mean"], "mean", axes=[0, 2, 3], keepdims=0),
        node("Conv", ["x", "w", "mean"], ["m"], "c"),
        node("Add", ["m", "m"], ["y"], "a"),
    ]
    proto = model(graph(nodes, {"x": list(X.shape)}, {"y": None}, {"w": CONV["w"]}))
    made = covered(proto, tmp_path)
    assert made.modes()["c"] is Mode.FLOAT
    assert "QLinearAdd" in op_types(onnx.load(made.path))


@pytest.mark.parametrize("clip", ["Relu", "Clip"])
def test_a_clip_goes_where_the_scale_clips_alike_and_is_float_where_not(
    tmp_path: Path, clip: str
) -> None:
    bounds = {"low": np.float32(0), "high": np.float32(0.3)} if clip == "Clip" else {}
    proto = behind_conv(
        node(clip, ["m", *bounds], ["r"], "n"),
        node("Add", ["r", "r"], ["y"], "sum"),
        constants=bounds,
    )
    made = covered(proto, tmp_path)
    assert clip not in op_types(onnx.load(made.path))
    kept = covered(proto, tmp_path, qdq=QdqSettings(keep_clips=True))
    assert clip in op_types(onnx.load(kept.path))
    assert kept.modes()["n"] is Mode.FLOAT


def test_both_formats_compute_the_same(tmp_path: Path) -> None:
    proto = behind_conv(
        node("Relu", ["m"], ["r"], "relu"),
        node("MaxPool", ["r"], ["p"], "pool", kernel_shape=[2, 2]),
        node("Concat", ["p", "p"], ["k"], "cat", axis=1),
        node("Sigmoid", ["k"], ["s"], "sig"),
        node("GlobalAveragePool", ["s"], ["y"], "gap"),
    )
    results = []
    for name in Format:
        settings = StaticSettings(coverage="all", format=name.value)
        made = write(proto, tmp_path / f"{name}.onnx", FEEDS, name, settings)
        results.append(run(made.path, FEEDS)[0])
    step = made.plan.activation["y"].scale
    assert np.abs(results[0] - results[1]).max() <= 1.001 * step


def test_weights_are_pair_safe_and_biases_int32(tmp_path: Path) -> None:
    made = covered(behind_conv(node("Identity", ["m"], ["y"], "same")), tmp_path)
    product = next(n for n in onnx.load(made.path).graph.node if n.op_type == "QLinearConv")
    held = initializers(onnx.load(made.path))
    assert held[product.input[3]].dtype == np.int8
    assert held[product.input[8]].dtype == np.int32


@pytest.mark.parametrize("output_format", list(Format))
def test_scales_and_zero_points_stand_in_the_fields_of_their_types(
    tmp_path: Path, output_format: Format
) -> None:
    """Scripts for onnxruntime's files read `float_data[0]` of a scale."""
    settings = StaticSettings(coverage="all", format=output_format.value)
    proto = behind_conv(node("Identity", ["m"], ["y"], "same"))
    made = write(proto, tmp_path / "q.onnx", FEEDS, output_format, settings)
    held = {t.name: t for t in onnx.load(made.path).graph.initializer}
    assert held["x_scale"].float_data[0] == np.float32(made.plan.activation["x"].scale)
    assert held["x_zero_point"].int32_data[0] == made.plan.activation["x"].zero_point
    assert len(held["w_scale"].float_data) == 4


def test_symmetric_uint8_weights_reach_both_ends(tmp_path: Path) -> None:
    """With 255 steps for both sides the largest of +-1 would be 0.996."""
    proto = behind_conv(node("Identity", ["m"], ["y"], "same"))
    proto.graph.initializer[0].CopyFrom(
        onnx.numpy_helper.from_array(np.sign(CONV["w"]).astype(np.float32), "w")
    )
    made = covered(proto, tmp_path, weight_type="uint8")
    held = initializers(onnx.load(made.path))
    product = next(n for n in onnx.load(made.path).graph.node if n.op_type == "QLinearConv")
    weights = held[product.input[3]].astype(np.float32) - 128
    exact = weights * held[product.input[4]].reshape(-1, 1, 1, 1)
    np.testing.assert_array_equal(exact, np.sign(CONV["w"]))
