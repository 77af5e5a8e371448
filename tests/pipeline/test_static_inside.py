"""Models whose body stands inside of If, Loop or Scan: calibrated and quantized there, and never refused."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import Array, Shape, graph, model, node, op_types, rng, run, save, sqnr, weight
from onnx import TensorProto

from quantkit import QuantizeResult, quantize_static
from quantkit.quantize.plan import Mode

Feeds = Sequence[Mapping[str, Array]]
PADS = [1, 1, 1, 1]


def branch(name: str, seed: int, *, scale: float = 1.0) -> onnx.GraphProto:
    """Two Conv; the values of all branches have the same names."""
    nodes = [
        node("Conv", ["x", "w"], ["c"], f"{name}_first", pads=PADS),
        node("Relu", ["c"], ["r"], f"{name}_relu"),
        node("Conv", ["r", "v"], ["y"], f"{name}_second", pads=PADS),
    ]
    weights = {
        "w": weight(16, 3, 3, 3, seed=seed, scale=scale),
        "v": weight(16, 16, 3, 3, seed=seed + 1),
    }
    return graph(nodes, {}, {"y": None}, weights, name=name)


def by_rate() -> onnx.ModelProto:
    """An input decides which branch is taken, as in models for several sampling rates."""
    chosen = {
        "then_branch": branch("then", 1),
        "else_branch": branch("else", 5, scale=20.0),
    }
    nodes = [
        node("Equal", ["rate", "sixteen"], ["is_sixteen"]),
        node("If", ["is_sixteen"], ["out"], "if", **chosen),
    ]
    inputs = {"x": [1, 3, 12, 12], "rate": []}
    types = {"rate": TensorProto.INT64}
    proto = graph(nodes, inputs, {"out": None}, {"sixteen": np.array(16)}, types=types)
    return model(proto)


def samples(*rates: int) -> Feeds:
    draw = rng(3)
    return [
        {"x": draw.standard_normal((1, 3, 12, 12)).astype(np.float32), "rate": np.array(rate)}
        for rate in rates
    ]


def quantized(proto: onnx.ModelProto, data: object, folder: Path) -> tuple[Path, QuantizeResult]:
    path = save(proto, folder / "float.onnx")
    return folder / "int8.onnx", quantize_static(path, folder / "int8.onnx", data)


def modes(result: QuantizeResult) -> dict[str, Mode]:
    return {n.node: n.mode for n in result.plan.nodes}


def assert_near(proto: onnx.ModelProto, path: Path, feeds: Feeds, least: float = 25.0) -> None:
    for sample in feeds:
        expected = run(proto, sample)[0]
        for optimize in (True, False):
            actual = run(onnx.load(path), sample, optimize=optimize)[0]
            assert sqnr(expected, actual) > least


def test_both_branches_of_an_if_are_calibrated_and_run_in_integers(tmp_path: Path) -> None:
    proto = by_rate()
    path, result = quantized(proto, samples(*[16, 8] * 8), tmp_path)
    found = modes(result)
    for name in ("then_first", "then_second", "else_first", "else_second"):
        assert found[name] is Mode.STATIC
    assert result.fusion is not None
    assert result.fusion.integer_count == 4
    assert_near(proto, path, samples(16, 8))
    # Names that both branches use were told apart: their ranges differ by a factor of 20.
    scales = sorted(a.scale for a in result.plan.activations if "r" in a.tensor)
    assert scales[-1] > 5 * scales[0]


def test_a_branch_that_no_sample_takes_is_not_calibrated_and_that_is_said(tmp_path: Path) -> None:
    proto = by_rate()
    path, result = quantized(proto, samples(*[16] * 8), tmp_path)
    found = modes(result)
    assert found["then_second"] is Mode.STATIC
    assert found["else_second"] is not Mode.STATIC
    assert any("no sample takes their branch" in text for text in result.warnings)
    assert_near(proto, path, samples(16, 8))


def test_an_if_is_not_specialised_to_the_branch_that_samples_take(tmp_path: Path) -> None:
    path, _ = quantized(by_rate(), samples(*[16] * 8), tmp_path)
    assert "If" in op_types(onnx.load(path))


def test_an_if_inside_an_if_is_calibrated(tmp_path: Path) -> None:
    inner = by_rate().graph.node[1]
    outer = {
        "then_branch": graph([inner], {}, {"out": None}, name="outer"),
        "else_branch": graph([node("Neg", ["rated"], ["neg"])], {}, {"neg": None}, name="other"),
    }
    nodes = [
        node("Equal", ["rate", "sixteen"], ["is_sixteen"]),
        node("Less", ["rate", "many"], ["few"]),
        node("Conv", ["x", "k"], ["rated"], "stem", pads=PADS),
        node("If", ["few"], ["all"], "outer_if", **outer),
    ]
    weights = {"sixteen": np.array(16), "many": np.array(100), "k": weight(16, 3, 3, 3)}
    types = {"rate": TensorProto.INT64}
    shapes = {"x": [1, 3, 12, 12], "rate": []}
    proto = model(graph(nodes, shapes, {"all": None}, weights, types=types))
    path, result = quantized(proto, samples(*[16, 8, 200] * 4), tmp_path)
    found = modes(result)
    assert found["then_second"] is found["else_second"] is Mode.STATIC
    assert_near(proto, path, samples(16, 8, 200))


def body_of(kind: str) -> onnx.ModelProto:
    """h = tanh(h W + x_t U) over time, and all h behind each other."""
    step = [
        node("MatMul", ["h", "W"], ["hw"], "recurrent"),
        node("MatMul", ["xt", "U"], ["xu"], "input"),
        node("Add", ["hw", "xu"], ["sum"], "sum"),
        node("Tanh", ["sum"], ["h2"], "tanh"),
        node("Identity", ["h2"], ["each"], "each"),
    ]
    weights = {"W": weight(64, 64, scale=0.1), "U": weight(32, 64), "h0": np.zeros((1, 64), "f4")}
    shape = [1, 64]
    if kind == "Scan":
        inner = {"h": shape, "xt": [1, 32]}
        body = graph(step, inner, {"h2": shape, "each": shape}, name="body")
        nodes = [node("Scan", ["h0", "x"], ["last", "y"], "scan", body=body, num_scan_inputs=1)]
    else:
        first = node("Gather", ["x", "t"], ["xt"], "take", axis=0)
        go = node("Identity", ["go"], ["on"], "go_on")
        types = {"t": TensorProto.INT64, "go": TensorProto.BOOL, "on": TensorProto.BOOL}
        results = {"on": [], "h2": shape, "each": shape}
        body = graph([first, *step, go], {"t": [], "go": [], "h": shape}, results, types=types)
        nodes = [node("Loop", ["turns", "", "h0"], ["last", "y"], "loop", body=body)]
        weights["turns"] = np.array(5)
    return model(graph(nodes, {"x": [5, 1, 32]}, {"y": None, "last": None}, weights))


@pytest.mark.parametrize("kind", ["Loop", "Scan"])
def test_the_body_of_a_loop_is_calibrated(kind: str, tmp_path: Path) -> None:
    proto = body_of(kind)
    draw = rng(1)
    data = [{"x": draw.standard_normal((5, 1, 32)).astype(np.float32)} for _ in range(8)]
    path, result = quantized(proto, data, tmp_path)
    found = modes(result)
    assert found["recurrent"] is found["input"] is Mode.STATIC
    assert_near(proto, path, data[:2], least=20.0)
    ranges = {a.tensor: a for a in result.plan.activations}
    assert ranges["h"].scale * 255 <= 2.05  # tanh


def test_a_product_in_a_loop_is_not_fused_with_the_sum_behind_it(tmp_path: Path) -> None:
    """onnxruntime knows the shapes in the body, the file does not: as one Gemm it would run in float."""
    proto = body_of("Loop")
    data = [{"x": rng(i).standard_normal((5, 1, 32)).astype(np.float32)} for i in range(8)]
    step = proto.graph.node[0].attribute[0].g
    (recurrent,) = [one for one in step.node if one.name == "recurrent"]
    recurrent.op_type = "Mul"  # so that a Gemm is made of the other product and the sum
    recurrent.input[1] = "half"
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(0.5, "f4"), "half"))
    _, result = quantized(proto, data, tmp_path)
    assert modes(result)["input"] is Mode.STATIC
    assert not any("in float that were to be integers" in text for text in result.warnings)


def test_a_loop_whose_tensors_change_their_shape_is_calibrated(tmp_path: Path) -> None:
    # What was made so far grows with each turn, and is empty before the first.
    step = [
        node("Concat", ["rows", "x"], ["more"], "grow", axis=0),
        node("MatMul", ["rows", "W"], ["past"], "past"),
        node("ReduceSum", ["past"], ["total"], "sum", keepdims=0),
        node("Identity", ["go"], ["on"], "go_on"),
    ]
    types = {"t": TensorProto.INT64, "go": TensorProto.BOOL, "on": TensorProto.BOOL}
    inner: dict[str, Shape] = {"t": [], "go": [], "rows": ["n", 48]}
    body = graph(step, inner, {"on": [], "more": ["m", 48], "total": []}, types=types)
    nodes = [
        node("Loop", ["turns", "", "none"], ["all", "sums"], "loop", body=body),
        node("MatMul", ["all", "V"], ["y"], "last"),
    ]
    weights = {"turns": np.array(4), "none": np.zeros((0, 48), "f4")}
    weights |= {"W": weight(48, 48), "V": weight(48, 48, seed=1)}
    proto = model(graph(nodes, {"x": [1, 48]}, {"y": None, "sums": None}, weights))
    data = {"x": rng(2).standard_normal((12, 48)).astype(np.float32)}
    path, result = quantized(proto, data, tmp_path)
    assert modes(result)["past"] is modes(result)["last"] is Mode.STATIC
    assert_near(proto, path, [{"x": data["x"][:1]}])


def test_a_model_without_products_gets_what_dynamic_quantization_has_for_it(tmp_path: Path) -> None:
    nodes = [node("LSTM", ["x", "w", "r"], ["y"], "lstm", hidden_size=64)]
    weights = {"w": weight(1, 256, 32), "r": weight(1, 256, 64)}
    proto = model(graph(nodes, {"x": [5, 1, 32]}, {"y": None}, weights))
    draw = rng(0)
    data = [{"x": draw.standard_normal((5, 1, 32)).astype(np.float32)} for _ in range(4)]
    path, result = quantized(proto, data, tmp_path)
    assert path.stat().st_size < 0.4 * (tmp_path / "float.onnx").stat().st_size
    assert any("Nothing runs in calibrated integers" in text for text in result.warnings)
    assert_near(proto, path, data[:1])
