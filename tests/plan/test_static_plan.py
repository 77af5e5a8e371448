"""The rules by which static quantization decides."""

from math import inf, nan
from typing import Any

import numpy as np
import pytest
from builders import graph, model, node, weight
from static_cases import (
    IMAGE,
    X,
    chain,
    conv,
    conv_weights,
    modes,
    planned,
    ready,
    seen_ranges,
    why,
)

from quantkit.numerics.dtypes import UINT8
from quantkit.quantize.plan import Mode, Plan
from quantkit.settings import ActivationType, NodeRule, QdqSettings, StaticSettings, TensorRule

ZERO, ONE = np.array(0, np.float32), np.array(1, np.float32)


def test_activations_are_uint8_and_conv_outputs_are_quantized() -> None:
    plan = planned(chain(node("Tanh", ["a"], ["b"])))
    assert {a.dtype for a in plan.activations} == {UINT8}
    assert set(plan.activation) == {"x", "a", "b", "y"}
    assert not plan.node["c2"].float_output


def test_after_relu_the_zero_point_is_zero_and_relu_is_gone() -> None:
    plan = planned(chain(node("Relu", ["a"], ["b"], "relu")))
    assert plan.activation["b"].zero_point == 0
    assert "a" not in plan.activation
    assert modes(plan)["relu"] is Mode.ABSORBED


def test_bounds_of_clip_cut_the_range() -> None:
    clip = node("Clip", ["a", "low", "high"], ["b"], "clip")
    plan = planned(chain(clip, constants={"low": ZERO, "high": ONE}))
    assert plan.activation["b"].zero_point == 0
    assert plan.activation["b"].high == pytest.approx(1.0)
    assert modes(plan)["clip"] is Mode.ABSORBED


def test_relu_and_clip_in_a_row_are_both_gone() -> None:
    clips = (node("Relu", ["a"], ["r"], "relu"), node("Clip", ["r", "", "high"], ["b"], "clip"))
    plan = planned(chain(clips[0], clips[1], constants={"high": ONE}))
    assert modes(plan)["relu"] is Mode.ABSORBED
    # Clip without a lower bound is not one from 0: it stays.
    assert modes(plan).get("clip") is not Mode.ABSORBED
    both = node("Clip", ["r", "low", "high"], ["b"], "clip")
    plan = planned(chain(clips[0], both, constants={"low": ZERO, "high": ONE}))
    assert {modes(plan)[n] for n in ("relu", "clip")} == {Mode.ABSORBED}


def test_relu_stays_where_the_range_does_not_end_at_zero() -> None:
    proto = chain(node("Relu", ["a"], ["b"], "relu"))
    said = TensorRule(tensor="b", range=(-1.0, 1.0))
    for options in (StaticSettings(symmetric_activations=True), StaticSettings(tensors=(said,))):
        assert modes(planned(proto, options))["relu"] is Mode.STATIC


def test_clip_stays_where_the_range_goes_beyond_its_bounds() -> None:
    clip = node("Clip", ["a", "low", "high"], ["b"], "clip")
    proto = chain(clip, constants={"low": ZERO, "high": ONE})
    said = TensorRule(tensor="b", range=(0.0, 2.0))
    assert modes(planned(proto, StaticSettings(tensors=(said,))))["clip"] is Mode.STATIC


def test_where_all_is_quantized_what_only_a_clip_reads_has_no_steps_beyond_its_bounds() -> None:
    clip = node("Clip", ["a", "low", "high"], ["b"], "clip")
    proto = chain(clip, constants={"low": np.array(-0.25, np.float32), "high": ONE / 2})
    everything = StaticSettings(coverage="all", qdq=QdqSettings(keep_clips=True))
    plan = planned(proto, everything)
    assert plan.activation["a"].scale == plan.activation["b"].scale == pytest.approx(0.75 / 255)
    other = graph(
        [conv("x", "a", "c1"), clip, conv("b", "y", "c2")],
        IMAGE,
        {"y": None, "a": None},
        conv_weights("c1", "c2") | {"low": np.array(-0.25, np.float32), "high": ONE / 2},
    )
    assert planned(model(other), everything).activation["a"].scale > 1 / 255


def test_relu_that_others_read_past_stays() -> None:
    nodes = [conv("x", "a", "c1"), node("Relu", ["a"], ["b"], "relu"), conv("b", "y", "c2")]
    proto = model(graph(nodes, IMAGE, {"y": None, "a": None}, conv_weights("c1", "c2")))
    plan = planned(proto)
    assert "relu" not in plan.node or modes(plan)["relu"] is Mode.FLOAT
    assert {"a", "b"} <= set(plan.activation)


def test_data_movement_shares_scale_and_zero_point() -> None:
    moved = (
        node(
            "MaxPool", ["a"], ["p"], "pool", kernel_shape=[2, 2], strides=[1, 1], pads=[0, 0, 1, 1]
        ),
        node("Transpose", ["p"], ["t"], "turn", perm=[0, 1, 3, 2]),
        node("Reshape", ["t", "shape"], ["b"], "shape_it"),
    )
    constants = {"shape": np.array([1, 8, 4, 9], np.int64)}
    ranges = {"a": (-3.0, 5.0), "p": (-1.0, 1.0), "t": (-2.0, 2.0), "b": (-9.0, 9.0)}
    plan = planned(chain(*moved, constants=constants), None, **ranges)
    assert {modes(plan)[n] for n in ("pool", "turn", "shape_it")} == {Mode.STATIC}
    numbers = {(plan.activation[t].scale, plan.activation[t].zero_point) for t in "aptb"}
    assert len(numbers) == 1
    assert plan.activation["b"].why == "as 't'"


def test_a_moved_tensor_needs_no_range_of_its_own() -> None:
    plan = planned(chain(node("Transpose", ["a"], ["b"], "turn", perm=[0, 1, 3, 2])), None, b=None)
    assert modes(plan)["c2"] is modes(plan)["turn"] is Mode.STATIC


@pytest.mark.parametrize("product", ["MatMul", "Gemm"])
def test_a_matrix_product_hands_on_floats_where_a_reader_is_float(product: str) -> None:
    nodes = [
        node(product, ["x", "w1"], ["a"], "m1"),
        node(product, ["a", "w2"], ["y"], "m2"),
        node("Tanh", ["a"], ["z"], "tanh"),
    ]
    weights = {"w1": weight(16, 16), "w2": weight(16, 16, seed=1)}
    plan = planned(model(graph(nodes, {"x": [2, 16]}, {"y": None, "z": None}, weights)))
    assert modes(plan) == {"m1": Mode.STATIC, "m2": Mode.STATIC}
    assert why(plan, "m1") == "int8 in, float out"
    assert plan.node["m1"].float_output
    one = planned(model(graph(nodes[:2], {"x": [2, 16]}, {"y": None}, weights)))
    assert why(one, "m1") == "int8 in, int8 out"
    assert why(one, "m2") == "int8 in, float out"


def test_a_conv_without_a_range_for_its_output_stays_float() -> None:
    plan = planned(chain(node("Tanh", ["a"], ["b"])), None, a=None)
    assert modes(plan)["c1"] in {Mode.FLOAT, Mode.STORED}
    assert "the range of 'a' is not known" in why(plan, "c1")
    assert modes(plan)["c2"] is Mode.STATIC


@pytest.mark.parametrize("bad", [(nan, 1.0), (0.0, inf), (-inf, 0.0)])
def test_a_range_that_is_not_finite_is_none(bad: tuple[float, float]) -> None:
    plan = planned(chain(node("Tanh", ["a"], ["b"])), None, b=bad)
    assert "the range of 'b' is not known" in why(plan, "c2")


def test_no_range_at_all_leaves_everything_float() -> None:
    plan = ready(chain(node("Relu", ["a"], ["b"]))).plan({})
    assert not plan.activations
    assert Mode.STATIC not in modes(plan).values()


def detector(*, product_behind: bool) -> Any:
    """Boxes up to hundreds and scores up to one, in one Concat."""
    nodes = [
        conv("x", "boxes", "c1"),
        conv("x", "logits", "c2"),
        node("Sigmoid", ["logits"], ["scores"], "sigmoid"),
        node("Concat", ["boxes", "scores"], ["b"], "concat", axis=1),
    ]
    weights = conv_weights("c1", "c2")
    if product_behind:
        nodes.append(node("Conv", ["b", "w"], ["y"], "c3"))
        weights["w"] = weight(4, 16, 1, 1)
    output: dict[str, Any] = {"y": None} if product_behind else {"b": None}
    return model(graph(nodes, IMAGE, output, weights))


def test_the_concat_of_a_detector_head_is_float() -> None:
    plan = planned(detector(product_behind=False), None, boxes=(0.0, 640.0))
    assert modes(plan)["concat"] is Mode.FLOAT
    assert "no layer in integers reads it" in why(plan, "concat")


@pytest.mark.parametrize("op", ["Sigmoid", "Softmax"])
def test_fixed_ranges_are_not_observed(op: str) -> None:
    plan = planned(chain(node(op, ["a"], ["b"], "op")), None, b=(-50.0, 50.0))
    assert plan.activation["b"].scale == pytest.approx(1 / 256)
    assert plan.activation["b"].zero_point == 0
    assert "cannot leave it" in plan.activation["b"].why


@pytest.mark.parametrize("op", ["Sigmoid", "Softmax"])
def test_what_lies_far_below_a_fixed_range_has_its_own_but_where_the_target_fixes_it(
    op: str,
) -> None:
    proto = chain(node(op, ["a"], ["b"], "op"))
    # Finer steps overflow the kernel of a Softmax over 10 values, the fewest that lie below 0.1.
    end = 0.2 if op == "Softmax" else 0.1
    assert planned(proto, None, b=(0.0, 0.1)).activation["b"].high == pytest.approx(end)
    assert planned(proto, None, b=(0.0, 0.6)).activation["b"].high == pytest.approx(255 / 256)
    fixed = planned(proto, StaticSettings(target="qnn"), b=(0.0, 0.1))
    assert fixed.activation["b"].high == pytest.approx(255 / 256)


@pytest.mark.parametrize("op", ["Tanh", "Exp", "Erf", "Neg", "GlobalMaxPool", "SpaceToDepth"])
def test_operators_without_a_kernel_are_not_quantized(op: str) -> None:
    attributes = {"blocksize": 1} if op == "SpaceToDepth" else {}
    plan = planned(chain(node(op, ["a"], ["b"], "op", **attributes)))
    assert modes(plan).get("op", Mode.FLOAT) is Mode.FLOAT
    assert modes(plan)["c1"] is modes(plan)["c2"] is Mode.STATIC


def test_resize_in_another_mode_than_nearest_is_float_and_says_why() -> None:
    scales = np.array([1, 1, 2, 2], np.float32)
    for mode, expected in (("nearest", Mode.STATIC), ("linear", Mode.FLOAT)):
        resize = node("Resize", ["a", "", "s"], ["b"], "resize", mode=mode)
        plan = planned(chain(resize, constants={"s": scales}))
        assert modes(plan)["resize"] is expected
    assert "mode linear has no integer kernel" in why(plan, "resize")


def test_conv_transpose_stays_float_and_its_weight_shrinks() -> None:
    up = node("ConvTranspose", ["a", "u"], ["b"], "up", pads=[1] * 4)
    plan = planned(chain(up, constants={"u": weight(8, 8, 3, 3, seed=7)}))
    assert modes(plan)["up"] is Mode.STORED
    assert "no integer kernel for ConvTranspose" in why(plan, "up")
    other = planned(
        chain(up, constants={"u": weight(8, 8, 3, 3, seed=7)}), StaticSettings(target="qnn")
    )
    assert modes(other)["up"] is Mode.STATIC


def test_an_operator_joins_only_if_all_it_reads_is_integer() -> None:
    add = node("Add", ["a", "t"], ["b"], "add")
    plan = planned(chain(node("Tanh", ["a"], ["t"]), add))
    assert modes(plan)["add"] is Mode.FLOAT
    assert why(plan, "add") == "its input is float"
    forced = planned(
        chain(node("Tanh", ["a"], ["t"]), add),
        StaticSettings(nodes=(NodeRule(node="add", mode="integer"),)),
    )
    assert modes(forced)["add"] is Mode.STATIC


def test_add_of_a_constant_joins() -> None:
    add = node("Add", ["a", "k"], ["b"], "add")
    plan = planned(chain(add, constants={"k": weight(1, 8, 6, 6)}))
    assert modes(plan)["add"] is Mode.STATIC
    assert plan.activation["k"].why.startswith("constant")


def gemm(bias: Any = None, **attributes: Any) -> Plan:
    inputs = ["x", "w"] + (["k"] if bias is not None else [])
    constants = {"w": weight(4, 4), "v": weight(4, 4, seed=1)}
    if bias is not None:
        constants["k"] = bias
    nodes = [node("Gemm", inputs, ["a"], "g", **attributes), node("Gemm", ["a", "v"], ["y"], "g2")]
    return planned(model(graph(nodes, {"x": [4, 4]}, {"y": None}, constants)))


@pytest.mark.parametrize(
    ("attributes", "bias", "reason"),
    [
        ({"transA": 1}, None, "its input is transposed"),
        ({"alpha": 0.0}, weight(4), "alpha is not positive"),
        ({"alpha": -1.0}, weight(4), "alpha is not positive"),
        ({}, weight(4, 4, seed=3), "its bias 'k' is not a vector"),
        ({}, weight(4, 1, seed=3), "its bias 'k' is not a vector"),
    ],
)
def test_gemm_that_has_no_kernel_says_why(attributes: Any, bias: Any, reason: str) -> None:
    assert reason in why(gemm(bias, **attributes), "g")


@pytest.mark.parametrize("bias", [None, weight(4), weight(1, 4), ONE, weight(1)])
def test_gemm_runs_in_integers(bias: Any) -> None:
    assert modes(gemm(bias, alpha=0.5, beta=2.0, transB=1))["g"] is Mode.STATIC


GROUPS = [
    (1, (8, 2, 3, 3), True),
    (16, (16, 1, 3, 3), True),  # depthwise
    (16, (32, 1, 3, 3), False),
    (4, (8, 2, 3, 3), False),
    (2, (16, 8, 3, 3), True),
]


def test_a_product_of_activations_runs_in_integers_between_integers() -> None:
    nodes = [
        node("MatMul", ["x", "w1"], ["q"], "q"),
        node("MatMul", ["x", "w2"], ["k"], "k"),
        node("MatMul", ["q", "k"], ["s"], "scores"),
        node("MatMul", ["s", "w3"], ["y"], "out"),
    ]
    weights = {f"w{i}": weight(16, 16, seed=i) for i in (1, 2, 3)}
    plan = planned(model(graph(nodes, {"x": [16, 16]}, {"y": None}, weights)))
    assert modes(plan)["scores"] is Mode.STATIC


def test_observed_ranges_are_what_is_planned() -> None:
    prepared = ready(chain(node("Tanh", ["a"], ["b"])))
    ranges = seen_ranges(prepared, {"x": X})
    plan = prepared.plan(ranges)
    for tensor in ("x", "a", "b", "y"):
        found = plan.activation[tensor]
        low, high = ranges[tensor]
        assert found.low == pytest.approx(low, abs=found.scale)
        assert found.high == pytest.approx(high, abs=found.scale)


def test_symmetric_activations_have_their_zero_point_in_the_middle() -> None:
    proto = chain(node("Tanh", ["a"], ["b"]))
    cases: list[tuple[ActivationType, int]] = [("uint8", 128), ("int8", 0)]
    for dtype, middle in cases:
        plan = planned(proto, StaticSettings(symmetric_activations=True, activation_type=dtype))
        assert {a.zero_point for a in plan.activations} == {middle}


def test_a_hard_sigmoid_runs_in_integers_where_these_end_at_its_bounds() -> None:
    proto = chain(node("HardSigmoid", ["a"], ["b"], "gate"))
    assert modes(planned(proto))["gate"] is Mode.STATIC
    wide = StaticSettings(tensors=(TensorRule(tensor="b", range=(0.0, 2.0)),))
    assert "beyond 0 and 1" in why(planned(proto, wide), "gate")
    assert "beyond 0 and 1" in why(
        planned(proto, StaticSettings(symmetric_activations=True)), "gate"
    )
    falling = chain(node("HardSigmoid", ["a"], ["b"], "gate", alpha=-0.2))
    assert "not positive" in why(planned(falling), "gate")


def test_the_larger_of_two_activations_is_found_on_integers_and_not_that_of_a_constant() -> None:
    two = chain(
        node("Sigmoid", ["a"], ["s"], "s"),
        node("Max", ["a", "s"], ["b"], "m"),
    )
    plan = planned(two)
    assert modes(plan)["m"] is Mode.STATIC
    assert len({(plan.activation[t].scale, plan.activation[t].zero_point) for t in "asb"}) == 1
    bound = chain(
        node("Max", ["a", "k"], ["b"], "m"), constants={"k": np.array([1e-12], np.float32)}
    )
    assert "constant" in why(planned(bound), "m")


@pytest.mark.parametrize(("groups", "shape", "integer"), GROUPS)
def test_a_conv_in_small_groups_stays_float(
    groups: int, shape: tuple[int, ...], *, integer: bool
) -> None:
    channels = shape[1] * groups
    nodes = [node("Conv", ["x", "w"], ["y"], "c", group=groups, pads=[1] * 4)]
    wide = graph(nodes, {"x": [1, channels, 6, 6]}, {"y": None}, {"w": weight(*shape)})
    assert (modes(planned(model(wide)))["c"] is Mode.STATIC) == integer
    forced = StaticSettings(nodes=(NodeRule(node="c", mode="integer"),))
    assert modes(planned(model(wide), forced))["c"] is Mode.STATIC
