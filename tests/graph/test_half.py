"""Models in float16 are named as such, and become int8 like others."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import graph, model, node, op_types, rng, run, save, sqnr, weight
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, numpy_helper

from quantkit import calibrate, quantize_dynamic, quantize_static
from quantkit.cli.app import run as quantkit
from quantkit.model.graph.half import half_type, widen
from quantkit.model.graph.load import load
from quantkit.model.graph.protos import to_proto
from quantkit.pipeline.inspect import inspect_model

HALF = TensorProto.FLOAT16


def network(*, outside: bool) -> onnx.ModelProto:
    """Conv, Relu, Conv, Gemm in float16; `outside`: inputs and outputs too, else behind casts."""
    x, y = ("x", "y") if outside else ("xh", "yh")
    nodes = [
        node("Conv", [x, "w0", "b0"], ["c"], "conv0", pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"], "relu"),
        node(
            "Constant",
            [],
            ["k"],
            "k",
            value=onnx.numpy_helper.from_array(np.array(0.5, np.float16), "k"),
        ),
        node("Mul", ["r", "k"], ["h"], "half"),
        node("Conv", ["h", "w1"], ["d"], "conv1", strides=[4, 4]),
        node("Flatten", ["d"], ["f"], "flat"),
        node("Gemm", ["f", "w2", "b2"], [y], "gemm"),
    ]
    if not outside:
        nodes.insert(0, node("Cast", ["x"], ["xh"], "in", to=HALF))
        nodes.append(node("Cast", ["yh"], ["y"], "out", to=TensorProto.FLOAT))
    weights = {
        "w0": weight(16, 3, 3, 3).astype(np.float16),
        "b0": weight(16).astype(np.float16),
        "w1": weight(32, 16, 3, 3).astype(np.float16),
        "w2": weight(128, 160).astype(np.float16),
        "b2": weight(160).astype(np.float16),
    }
    types = {"x": HALF, "y": HALF} if outside else {}
    return model(graph(nodes, {"x": ["N", 3, 8, 8]}, {"y": ["N", 160]}, weights, types=types))


def samples(*, outside: bool) -> np.ndarray:
    return rng().random((24, 3, 8, 8)).astype(np.float16 if outside else np.float32)


OUTSIDE = pytest.mark.parametrize("outside", [True, False], ids=["float16 ends", "float32 ends"])


@OUTSIDE
def test_what_is_computed_in_float32_is_the_same(*, outside: bool) -> None:
    proto = network(outside=outside)
    x = samples(outside=outside)
    loaded = load(proto)
    assert half_type(loaded.model) == "float16"
    widen(loaded.model)
    wide = to_proto(loaded.model)
    onnx.checker.check_model(wide, full_check=True)
    expected, actual = run(proto, {"x": x})[0], run(wide, {"x": x})[0]
    assert actual.dtype == expected.dtype
    assert sqnr(expected.astype(np.float64), actual.astype(np.float64)) > 50
    assert half_type(loaded.model) == ""
    assert op_types(wide).count("Cast") == (2 if outside else 1)  # an output keeps its own


@OUTSIDE
@pytest.mark.parametrize("how", ["dynamic", "static", "qoperator", "calibration"])
def test_a_float16_model_becomes_int8_and_is_called_float16(
    how: str, *, outside: bool, tmp_path: Path
) -> None:
    path, out = save(network(outside=outside), tmp_path / "m.onnx"), tmp_path / "o.onnx"
    x = samples(outside=outside)
    if how == "dynamic":
        said = quantize_dynamic(path, out).warnings
    elif how == "calibration":
        said = quantize_static(path, out, calibrate(path, {"x": x})).notes
    else:
        said = quantize_static(
            path, out, {"x": x}, quant_format="qdq" if how == "static" else "qoperator"
        ).notes
    assert any("It is a float16 model" in text for text in said)
    assert out.stat().st_size < 0.7 * path.stat().st_size
    expected, actual = run(path, {"x": x})[0], run(out, {"x": x})[0]
    assert actual.dtype == expected.dtype
    assert sqnr(expected.astype(np.float64), actual.astype(np.float64)) > 25


@OUTSIDE
def test_inspect_names_it_and_shows_what_quantizing_would_do(*, outside: bool) -> None:
    found = inspect_model(network(outside=outside))
    assert any("it is a float16 model" in hazard for hazard in found.hazards)
    assert found.plans["dynamic"].weights
    assert found.inputs[0].dtype == ("float16" if outside else "float")


def test_evaluate_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(network(outside=True), tmp_path / "m.onnx")
    quantize_dynamic(path, tmp_path / "o.onnx")
    np.savez(tmp_path / "x.npz", x=samples(outside=True))
    line = ["evaluate", path, tmp_path / "o.onnx", "--data", tmp_path / "x.npz"]
    line += ["-o", tmp_path / "r", "--skip", "latency", "--skip", "memory"]
    assert quantkit([str(part) for part in line]) == 0
    captured = capsys.readouterr()
    assert "is a float16 model" in captured.out + captured.err


def test_a_float32_model_with_one_cast_to_float16_is_left_alone() -> None:
    nodes = [node("Cast", ["x"], ["y"], "c", to=HALF)]
    proto = model(graph(nodes, {"x": [4]}, {"y": [4]}, types={"y": HALF}))
    assert half_type(load(proto).model) == ""


@settings(deadline=None, max_examples=15)
@given(st.data())
def test_any_chain_of_halves_and_floats_computes_the_same(data: st.DataObject) -> None:
    """Operators and casts in any order, weights in either type, an If in between."""
    kind, name = data.draw(st.sampled_from([HALF, TensorProto.FLOAT])), "x"
    types = {"x": kind}
    nodes, weights = [], {"w": weight(8, 8).astype(np.float16)}
    for i in range(data.draw(st.integers(1, 6))):
        op = data.draw(st.sampled_from(["Cast", "MatMul", "Relu", "Add", "If"]))
        out = f"v{i}"
        if op == "Cast":
            kind = data.draw(st.sampled_from([HALF, TensorProto.FLOAT]))
            nodes.append(node("Cast", [name], [out], to=kind))
        elif op == "If":
            bodies = [
                graph([node(o, [name], [o])], {}, {o: None}, types={o: kind})
                for o in ("Neg", "Abs")
            ]
            nodes.append(node("If", ["q"], [out], then_branch=bodies[0], else_branch=bodies[1]))
        elif op == "Relu":
            nodes.append(node("Relu", [name], [out]))
        else:
            held = f"w{i}"
            weights[held] = weight(8, 8, seed=i).astype(np.float16 if kind == HALF else np.float32)
            nodes.append(node(op, [name, held], [out]))
        name = out
    weights["q"] = np.array(data.draw(st.booleans()))
    proto = model(graph(nodes, {"x": [8, 8]}, {name: [8, 8]}, weights, types={**types, name: kind}))
    loaded = load(proto)
    widen(loaded.model)
    x = rng().random((8, 8)).astype(np.float16 if types["x"] == HALF else np.float32)
    expected, actual = run(proto, {"x": x})[0], run(to_proto(loaded.model), {"x": x})[0]
    assert expected.dtype == actual.dtype
    np.testing.assert_allclose(actual, expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("coverage", ["gain", "all"])
def test_an_input_that_is_an_output_too_stays_half(coverage: str, tmp_path: Path) -> None:
    proto = network(outside=True)
    made = [value for value in proto.graph.input if value.name == "x"]
    proto.graph.output.extend(made)
    data = [{"x": x} for x in rng(4).standard_normal((4, 1, 3, 8, 8)).astype(np.float16)]
    path = tmp_path / "q.onnx"
    quantize_static(proto, path, data, coverage=coverage)
    _, same = run(path, data[0])
    np.testing.assert_array_equal(same, data[0]["x"])
    quantize_dynamic(proto, path)
    np.testing.assert_array_equal(run(path, data[0])[1], data[0]["x"])


def test_a_part_in_halves_is_quantized_in_an_opset_that_has_it(tmp_path: Path) -> None:
    # Between Casts, its weight in a Constant: QuantizeLinear takes float16 from opset 19 on, its scales from 21.
    held = numpy_helper.from_array(weight(8, 8).astype(np.float16), "k")
    nodes = [
        node("Constant", [], ["w"], value=held),
        node("MatMul", ["x", "v"], ["m"], "first"),
        node("Cast", ["m"], ["h"], to=TensorProto.FLOAT16),
        node("MatMul", ["h", "w"], ["p"], "second"),
        node("Cast", ["p"], ["y"], to=TensorProto.FLOAT),
    ]
    proto = model(graph(nodes, {"x": ["N", 8]}, {"y": None}, {"v": weight(8, 8)}))
    path, out = save(proto, tmp_path / "m.onnx"), tmp_path / "o.onnx"
    x = rng().standard_normal((16, 8)).astype(np.float32)
    quantize_static(path, out, {"x": x}, coverage="all")
    assert sqnr(run(path, {"x": x[:1]})[0], run(out, {"x": x[:1]})[0]) > 20
