"""The planner: pure facts in, decisions out."""

from typing import Any

import pytest
from builders import graph, matmul_model, model, node, weight

from quantkit.errors import UnknownNodeError, UsageError
from quantkit.model.graph.load import load
from quantkit.model.graph.view import view_of
from quantkit.model.ops.view import View
from quantkit.quantize.plan import Mode, Plan, plan_dynamic
from quantkit.settings import DynamicSettings
from quantkit.spec import PerAxis, PerTensor


def view(proto: Any) -> View:
    return view_of(load(proto).model)


def plan_of(proto: Any, **options: Any) -> Plan:
    return plan_dynamic(view(proto), DynamicSettings(**options))


def test_large_matmul_runs_in_integers_per_output_channel() -> None:
    plan = plan_of(matmul_model())
    assert plan.node["mm"].mode is Mode.INTEGER
    assert plan.weight["w"].spec.granularity == PerAxis(1)
    assert plan.min_opset == 11


def test_small_matmul_is_stored_because_float_is_faster() -> None:
    plan = plan_of(matmul_model(32, 48))
    assert plan.node["mm"].mode is Mode.STORED
    assert "faster in float" in plan.node["mm"].why
    assert plan.min_opset < 11


def test_a_node_asked_for_by_name_runs_in_integers_whatever_its_size() -> None:
    assert plan_of(matmul_model(32, 48), include=["mm"]).node["mm"].mode is Mode.INTEGER


def test_tiny_weight_stays_float_with_the_reason() -> None:
    plan = plan_of(matmul_model(8, 8))
    assert plan.node["mm"].mode is Mode.FLOAT
    assert "too small" in plan.node["mm"].why
    assert not plan.weights


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"exclude": ["mm"]}, "excluded"),
        ({"exclude": ["m*"]}, "excluded"),
        ({"op_types": ["Conv"]}, "not asked for"),
    ],
    ids=["by-name", "by-pattern", "by-type"],
)
def test_user_choice_keeps_a_node_float(options: dict[str, Any], why: str) -> None:
    plan = plan_of(matmul_model(), **options)
    assert plan.node["mm"].mode is Mode.FLOAT
    assert why in plan.node["mm"].why


@pytest.mark.parametrize("field", ["include", "exclude"])
def test_a_rule_that_matches_nothing_names_the_nearest_node(field: str) -> None:
    with pytest.raises(UnknownNodeError, match=r"no node 'mn'.*'mm'"):
        plan_of(matmul_model(), **{field: ["mn"]})


def test_unknown_operator_type_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"'Relu'.*MatMul"):
        plan_of(matmul_model(), op_types=["Relu"])


def test_int8_weights_are_symmetric_and_pair_safe() -> None:
    spec = plan_of(matmul_model(), weight_type="int8").weight["w"].spec
    assert spec.symmetric
    assert spec.pair_axes == ((0,),)


def test_uint8_weights_need_no_pair_safety() -> None:
    spec = plan_of(matmul_model(), weight_type="uint8").weight["w"].spec
    assert not spec.symmetric
    assert spec.pair_axes == ()


def test_per_tensor_is_one_scale() -> None:
    assert plan_of(matmul_model(), per_channel=False).weight["w"].spec.granularity == PerTensor()


def test_plan_round_trips_through_json() -> None:
    plan = plan_of(matmul_model(), weight_type="int8")
    assert Plan.from_json(plan.to_json()) == plan


def test_weight_with_nan_stays_float() -> None:
    w = weight(128, 192)
    w[3, 4] = float("nan")
    proto = model(
        graph([node("MatMul", ["x", "w"], ["y"], "mm")], {"x": ["N", 128]}, {"y": None}, {"w": w})
    )
    plan = plan_of(proto)
    assert plan.node["mm"].mode is Mode.FLOAT
    assert "NaN" in plan.node["mm"].why


def test_weight_shared_with_a_node_that_stays_float_is_not_stored_twice() -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["a"], "mm"),
        node("Mul", ["w", "w"], ["b"], "square"),
        node("ReduceSum", ["b"], ["c"], "sum", keepdims=0),
        node("Add", ["a", "c"], ["y"], "add"),
    ]
    plan = plan_of(model(graph(nodes, {"x": ["N", 128]}, {"y": None}, {"w": weight(128, 192)})))
    assert plan.node["mm"].mode is Mode.FLOAT
    assert "'square'" in plan.node["mm"].why


def test_excluding_one_of_two_readers_keeps_the_weight_float() -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["a"], "one"),
        node("MatMul", ["a", "w"], ["y"], "two"),
    ]
    proto = model(graph(nodes, {"x": ["N", 128]}, {"y": None}, {"w": weight(128, 128)}))
    plan = plan_of(proto, exclude=["two"])
    assert plan.node["one"].mode is Mode.FLOAT
    assert "shared with node 'two'" in plan.node["one"].why


def test_weight_that_is_a_graph_input_stays_float() -> None:
    proto = model(
        graph(
            [node("MatMul", ["x", "w"], ["y"], "mm")],
            {"x": ["N", 128], "w": [128, 192]},
            {"y": None},
            {"w": weight(128, 192)},
        )
    )
    assert plan_of(proto).node["mm"].mode is Mode.FLOAT


@pytest.mark.parametrize(("op", "gates"), [("GRU", 3), ("RNN", 1)])
def test_recurrent_layers_without_a_kernel_compute_in_float_and_say_why(
    op: str, gates: int
) -> None:
    nodes = [node(op, ["x", "w", "r"], ["y"], "rnn", hidden_size=32)]
    weights = {"w": weight(1, gates * 32, 48), "r": weight(1, gates * 32, 32)}
    plan = plan_of(model(graph(nodes, {"x": [5, 2, 48]}, {"y": None}, weights)))
    assert plan.node["rnn"].mode is Mode.STORED
    assert "no dynamic int8 kernel" in plan.node["rnn"].why


def test_product_of_two_activations_stays_float() -> None:
    nodes = [
        node("MatMul", ["x", "z"], ["a"], "attention"),
        node("MatMul", ["a", "w"], ["y"], "mm"),
    ]
    proto = model(
        graph(
            nodes,
            {"x": ["N", 16, 64], "z": ["N", 64, 128]},
            {"y": None},
            {"w": weight(128, 192)},
        )
    )
    plan = plan_of(proto)
    assert plan.node["attention"].mode is Mode.FLOAT
    assert plan.node["mm"].mode is Mode.INTEGER


def test_constant_left_operand_and_batched_weights_are_stored() -> None:
    nodes = [
        node("MatMul", ["w", "x"], ["a"], "left"),
        node("MatMul", ["a", "b"], ["y"], "batched"),
    ]
    proto = model(
        graph(
            nodes,
            {"x": [2, 128, 96]},
            {"y": None},
            {"w": weight(160, 128), "b": weight(2, 96, 128)},
        )
    )
    plan = plan_of(proto)
    assert plan.node["left"].mode is Mode.STORED
    assert plan.node["batched"].mode is Mode.STORED
    assert plan.weight["w"].spec.granularity == PerAxis(0)


@pytest.mark.parametrize("weight_type", ["uint8", "int8"])
def test_a_bit_is_given_away_only_where_products_are_summed_in_integers(weight_type: str) -> None:
    nodes = [
        node("Conv", ["x", "c"], ["a"], "conv"),
        node("MatMul", ["a", "w"], ["y"], "mm"),
    ]
    weights = {"c": weight(16, 8, 3, 3), "w": weight(128, 192)}
    plan = plan_of(
        model(graph(nodes, {"x": ["N", 8, 16, 130]}, {"y": None}, weights)),
        reduce_range=True,
        weight_type=weight_type,
    )
    assert plan.node["conv"].mode is Mode.STORED
    assert not plan.weight["c"].spec.reduced
    assert plan.node["mm"].mode is Mode.INTEGER
    assert plan.weight["w"].spec.reduced
