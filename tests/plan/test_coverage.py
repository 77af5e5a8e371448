"""Coverage "all": every operator that is asked for is quantized, for every target, as one graph that runs everywhere."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import Array, graph, initializers, model, node, run, sqnr, weight
from coverage_cases import FEEDS, PIECES, covering
from static_cases import X, chain, ready, seen_ranges, write

import quantkit
from quantkit.errors import UsageError
from quantkit.model.ops.float_ops import SELECTS
from quantkit.quantize.plan import Mode, Plan, plan_static, ranges_needed
from quantkit.settings import NodeRule, QdqSettings, RecoverSettings, StaticSettings, TensorRule
from quantkit.targets import target

AS_IT_IS = RecoverSettings(equalize=False, smooth=False)
ALL = StaticSettings(coverage="all")
GONE = {"Upsample"}  # not in the opsets that are written
LATE = {"Gelu"}  # in later ones


def quantized(proto: onnx.ModelProto, path: Path, name: str, **how: Any) -> Plan:
    result = quantkit.quantize_static(
        proto, path, [FEEDS], target=name, coverage="all", simplify=False, recover=AS_IT_IS, **how
    )
    return result.plan


def counts(path: Path) -> Counter[str]:
    return Counter(item.op_type for item in onnx.load(path).graph.node)


def scales(path: Path) -> dict[str, tuple[str, str]]:
    """Names of scale and zero point of each float tensor that is quantized."""
    return {
        item.input[0]: (item.input[1], item.input[2])
        for item in onnx.load(path).graph.node
        if item.op_type == "QuantizeLinear"
    }


@pytest.mark.parametrize("name", ["cpu", "arm64", "tensorrt", "openvino", "qnn"])
def test_every_operator_that_a_target_lists_is_quantized(name: str, tmp_path: Path) -> None:
    operators = sorted(target(name).covered - GONE - LATE)
    proto, path = covering(operators), tmp_path / "q.onnx"
    plan = quantized(proto, path, name)
    onnx.checker.check_model(str(path))
    assert {n.op_type for n in plan.nodes if n.mode is Mode.STATIC} >= set(operators)
    expected = run(proto, FEEDS)
    for optimize in (False, True):
        for output, a, b in zip(
            proto.graph.output, expected, run(path, FEEDS, optimize=optimize), strict=True
        ):
            if a.dtype == np.float32:
                assert sqnr(a, b) > 18, output.name
    # One pair for each activation, a DequantizeLinear alone on each constant.
    held = set(initializers(proto))
    made = {out for item in proto.graph.node for out in item.output}
    read = {name for item in proto.graph.node for name in item.input}
    used = made & (read | {output.name for output in proto.graph.output})
    whole = {
        o.name for o in proto.graph.output if o.type.tensor_type.elem_type != onnx.TensorProto.FLOAT
    }
    assert plan.activation.keys() - held == (used | {"x"}) - whole
    found, biases = counts(path), sum("beta" in n or n.endswith("_b") for n in held)
    assert found["QuantizeLinear"] == len(plan.activation.keys() - held)
    alone = len(plan.activation.keys() & held) + len(plan.weights)
    integer = biases if target(name).bias else 0
    assert found["DequantizeLinear"] == found["QuantizeLinear"] + alone + integer


def test_a_gelu_of_a_later_opset_is_quantized_for_an_npu(tmp_path: Path) -> None:
    proto, path = covering(["Gelu"]), tmp_path / "q.onnx"
    assert quantized(proto, path, "qnn").node["Gelu"].mode is Mode.STATIC
    assert sqnr(run(proto, FEEDS)[0], run(path, FEEDS, optimize=False)[0]) > 30


@pytest.mark.parametrize(
    "op_type", sorted(SELECTS & PIECES.keys() - {"Resize"} - GONE | {"Resize"})
)
def test_what_selects_values_shares_the_numbers_of_its_input(op_type: str, tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    quantized(
        covering([op_type]),
        path,
        "cpu",
        op_types_to_quantize=["Mul", "Flatten", "Unsqueeze", op_type],
    )
    found = scales(path)
    assert found[f"{op_type.lower()}_QuantizeLinear_Input"] == found["a"]


def test_a_bias_is_int32_in_the_scale_of_the_sums(tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    quantized(covering(["Conv", "InstanceNormalization"]), path, "cpu")
    held = initializers(onnx.load(path))
    assert held["conv_b_quantized"].dtype == np.int32
    np.testing.assert_array_equal(
        held["conv_b_quantized_scale"], held["a_scale"] * held["conv_w_scale"]
    )
    np.testing.assert_allclose(
        held["instancenormalization_beta_quantized_scale"],
        held["a_scale"] * held["instancenormalization_gamma_scale"],
        rtol=1e-6,
    )


def test_a_relu_goes_where_its_range_clips_and_stays_where_that_is_asked_for(
    tmp_path: Path,
) -> None:
    proto = chain(node("Relu", ["a"], ["b"], "relu"))
    path = tmp_path / "q.onnx"
    assert write(proto, path, {"x": X}, options=ALL).modes()["relu"] is Mode.ABSORBED
    assert (counts(path)["Relu"], counts(path)["QuantizeLinear"]) == (0, 3)
    kept = StaticSettings(coverage="all", qdq=QdqSettings(keep_clips=True))
    assert write(proto, path, {"x": X}, options=kept).modes()["relu"] is Mode.STATIC
    assert (counts(path)["Relu"], counts(path)["QuantizeLinear"]) == (1, 4)


def test_a_clip_about_zero_goes_too_within_half_a_step(tmp_path: Path) -> None:
    bounds: dict[str, Array] = {
        "low": np.asarray(-0.5, np.float32),
        "high": np.asarray(0.5, np.float32),
    }
    proto = chain(node("Clip", ["a", "low", "high"], ["b"], "clip"), constants=bounds)
    path = tmp_path / "q.onnx"
    found = write(proto, path, {"x": X}, options=ALL)
    assert found.modes()["clip"] is Mode.ABSORBED
    assert sqnr(run(proto, {"x": X})[0], run(path, {"x": X})[0]) > 25
    symmetric = StaticSettings(coverage="all", activation_type="int8", symmetric_activations=True)
    assert write(proto, path, {"x": X}, options=symmetric).modes()["clip"] is Mode.STATIC


def test_a_product_of_activations_and_one_by_four_axes_are_quantized(tmp_path: Path) -> None:
    nodes = [
        node("Transpose", ["x"], ["t"], "t", perm=[0, 1, 3, 2]),
        node("MatMul", ["x", "t"], ["m"], "own"),
        node("MatMul", ["m", "w"], ["y"], "four"),
        node("MatMul", ["left", "m"], ["z"], "left"),
    ]
    held = {"w": weight(2, 4, 6, 5), "left": weight(3, 6)}
    proto = model(graph(nodes, {"x": [2, 4, 6, 6]}, {"y": None, "z": None}, held))
    found = write(proto, tmp_path / "q.onnx", FEEDS, options=ALL)
    assert {found.modes()[n] for n in ("own", "four", "left")} == {Mode.STATIC}
    for optimize in (False, True):
        results = run(found.path, FEEDS, optimize=optimize)
        assert all(sqnr(a, b) > 30 for a, b in zip(run(proto, FEEDS), results, strict=True))


def test_movement_of_floats_stays_float_unless_it_is_to_be_quantized_too() -> None:
    proto = model(graph([node("Transpose", ["x"], ["y"], "t")], {"x": [2, 3]}, {"y": [3, 2]}))
    prepared = ready(proto)
    observed = {"x": (-1.0, 1.0)}
    assert plan_static(prepared.view, observed, ALL).node["t"].mode is Mode.FLOAT
    forced = StaticSettings(coverage="all", qdq=QdqSettings(quantize_moves=True))
    plan = plan_static(prepared.view, observed, forced)
    assert plan.node["t"].mode is Mode.STATIC
    assert plan.activation["y"].shares == "x"
    npu = StaticSettings(coverage="all", target="qnn")
    assert plan_static(prepared.view, observed, npu).node["t"].mode is Mode.STATIC


def test_what_is_excluded_or_not_listed_stays_as_it_is(tmp_path: Path) -> None:
    proto = chain(node("Sigmoid", ["a"], ["b"], "s"))
    some = StaticSettings(
        coverage="all", op_types=("Conv",), nodes=(NodeRule(node="c2", mode="float"),)
    )
    found = write(proto, tmp_path / "q.onnx", {"x": X}, options=some)
    assert found.modes() == {"c1": Mode.STATIC, "s": Mode.FLOAT, "c2": Mode.FLOAT}
    assert found.plan.node["c2"].why == "excluded"
    assert set(initializers(onnx.load(found.path))) >= {"c2_w", "c2_b"}
    assert counts(found.path)["Max"] == 0  # no barrier


def test_a_tensor_that_is_to_stay_float_leaves_its_reader_float(tmp_path: Path) -> None:
    proto = chain(node("Sigmoid", ["a"], ["b"], "s"))
    rule = TensorRule(tensor="b", keep_float=True)
    found = write(
        proto,
        tmp_path / "q.onnx",
        {"x": X},
        options=StaticSettings(coverage="all", tensors=(rule,)),
    )
    assert found.modes() == {"c1": Mode.STATIC, "s": Mode.STATIC, "c2": Mode.FLOAT}
    assert found.plan.node["s"].float_output


def test_each_range_that_is_needed_is_observed() -> None:
    for name in ("cpu", "qnn"):
        operators = sorted(target(name).covered - GONE - LATE)
        options = StaticSettings(coverage="all", target=name)
        prepared = ready(covering(operators))
        observed = seen_ranges(prepared, FEEDS, options)
        assert set(observed) >= set(ranges_needed(prepared.view, options)) - {""}
        plan = plan_static(prepared.view, observed, options)
        assert not [n.node for n in plan.nodes if "is not known" in n.why]


def test_an_operator_that_was_asked_for_and_stays_float_is_a_warning(tmp_path: Path) -> None:
    proto = model(
        graph(
            [node("Transpose", ["x"], ["t"], "t"), node("MatMul", ["t", "w"], ["y"], "m")],
            {"x": [4, 8]},
            {"y": [8, 5]},
            {"w": weight(4, 5)},
        )
    )
    result = quantkit.quantize_static(
        proto,
        tmp_path / "q.onnx",
        [{"x": weight(4, 8)}],
        coverage="all",
        simplify=False,
        op_types_to_quantize=["MatMul", "Transpose"],
    )
    assert (
        "Transpose was asked for and does not run in integers: what it moves is not quantized."
        in result.warnings
    )


def test_a_slip_in_an_operator_is_an_error() -> None:
    prepared = ready(chain(node("Sigmoid", ["a"], ["b"], "s")))
    with pytest.raises(UsageError, match="did you mean 'Conv'"):
        plan_static(prepared.view, {}, StaticSettings(coverage="all", op_types=("Comv",)))


def test_nothing_is_taken_back_because_it_is_noisy(tmp_path: Path) -> None:
    # 1e4 beside values about 1e-3: in eight bits nothing is left of them.
    nodes = [node("Add", ["x", "large"], ["s"], "s"), node("Sub", ["s", "large"], ["y"], "d")]
    proto = model(
        graph(nodes, {"x": [1, 64]}, {"y": [1, 64]}, {"large": np.asarray(1e4, np.float32)})
    )
    result = quantkit.quantize_static(
        proto,
        tmp_path / "q.onnx",
        [{"x": weight(1, 64, seed=i, scale=0.01)} for i in range(4)],
        coverage="all",
        simplify=False,
        op_types_to_quantize=["Add", "Sub"],
    )
    assert result.plan.node["s"].mode is Mode.STATIC
    assert any("noise" in text for text in result.warnings)


def test_the_forms_of_pairs(tmp_path: Path) -> None:
    proto, path = chain(node("Sigmoid", ["a"], ["b"], "s")), tmp_path / "q.onnx"

    def found(**form: Any) -> Counter[str]:
        options = StaticSettings(coverage="all", qdq=QdqSettings(**form))
        write(proto, path, {"x": X}, options=options)
        results = [run(path, {"x": X}, optimize=optimize)[0] for optimize in (False, True)]
        assert all(sqnr(run(proto, {"x": X})[0], y) > 20 for y in results)
        return counts(path)

    plain = found()
    assert (plain["QuantizeLinear"], plain["DequantizeLinear"]) == (4, 8)
    pairs = found(weight_pairs=True)
    assert (pairs["QuantizeLinear"], pairs["DequantizeLinear"]) == (6, 8)
    floats = found(float_bias=True)
    assert (floats["QuantizeLinear"], floats["DequantizeLinear"]) == (4, 6)
    outputs = found(float_outputs=("Conv",))
    assert (outputs["QuantizeLinear"], outputs["DequantizeLinear"]) == (3, 7)
    found(contrib_ops=True)
    domains = {n.domain for n in onnx.load(path).graph.node if n.op_type.endswith("eLinear")}
    assert domains == {"com.microsoft"}


def test_each_reader_has_a_pair_of_its_own_where_that_is_asked_for(tmp_path: Path) -> None:
    nodes = [node("Sigmoid", ["x"], ["y"], "s"), node("Mul", ["x", "k"], ["z"], "m")]
    proto = model(graph(nodes, {"x": [2, 8]}, {"y": [2, 8], "z": [2, 8]}, {"k": weight(8)}))
    feeds = {"x": weight(2, 8)}
    for apart, pairs in ((False, 3), (True, 4)):
        options = StaticSettings(coverage="all", qdq=QdqSettings(pair_per_reader=apart))
        found = write(proto, tmp_path / "q.onnx", feeds, options=options)
        assert counts(found.path)["QuantizeLinear"] == pairs


def test_a_float16_graph_without_weights_has_float16_scales(
    tmp_path: Path,
) -> None:
    half = {"x": onnx.TensorProto.FLOAT16, "y": onnx.TensorProto.FLOAT16}
    proto = model(
        graph([node("Sigmoid", ["x"], ["y"], "s")], {"x": [2, 8]}, {"y": [2, 8]}, types=half)
    )
    feeds = {"x": weight(2, 8).astype(np.float16)}
    result = quantkit.quantize_static(
        proto, tmp_path / "q.onnx", [feeds], coverage="all", simplify=False
    )
    assert result.plan.node["s"].mode is Mode.STATIC
    (expected,), (found,) = run(proto, feeds), run(tmp_path / "q.onnx", feeds)
    assert found.dtype == np.float16
    assert sqnr(expected.astype(np.float32), found.astype(np.float32)) > 40


def test_a_clip_of_which_only_zeros_were_seen_has_the_range_of_its_bounds() -> None:
    bounds: dict[str, Array] = {"low": np.asarray(0, np.float32), "high": np.asarray(6, np.float32)}
    prepared = ready(chain(node("Clip", ["a", "low", "high"], ["b"], "clip"), constants=bounds))
    observed = {"x": (-1.0, 1.0), "a": (-3.0, -1.0), "b": (0.0, 0.0), "y": (-1.0, 1.0)}
    plan = plan_static(prepared.view, observed, ALL)
    assert plan.node["clip"].mode is Mode.ABSORBED
    assert plan.activation["b"].scale == pytest.approx(6 / 255)


def test_a_graph_that_stays_as_it_is_keeps_an_old_opset_where_nothing_has_channels(
    tmp_path: Path,
) -> None:
    pad = node("Pad", ["x"], ["y"], "p", pads=[0, 1, 0, 1], value=10.0)
    proto = model(graph([pad], {"x": [2, 3]}, {"y": [2, 5]}), opset=10)
    feeds = {"x": weight(2, 3, scale=5.0)}
    path = tmp_path / "q.onnx"
    result = quantkit.quantize_static(proto, path, [feeds], coverage="all", simplify=False)
    assert result.plan.node["p"].mode is Mode.STATIC
    assert {i.version for i in onnx.load(path).opset_import if not i.domain} == {10}
    assert counts(path) == {"QuantizeLinear": 2, "DequantizeLinear": 2, "Pad": 1}
    for optimize in (False, True):
        assert sqnr(run(proto, feeds)[0], run(path, feeds, optimize=optimize)[0]) > 35
