"""What users say about nodes and tensors, and weights that cannot be quantized."""

from typing import Any

import numpy as np
import pytest
from builders import graph, model, node, weight
from static_cases import IMAGE, chain, conv, conv_weights, matmuls, modes, planned, why

from quantkit.errors import UnknownNodeError, UsageError
from quantkit.numerics.dtypes import INT8
from quantkit.quantize.plan import Mode, Plan
from quantkit.settings import Coverage, NodeRule, StaticSettings, TensorRule


def test_exclude_leaves_nodes_alone_whatever_they_are() -> None:
    proto = chain(node("Add", ["a", "a"], ["b"], "add"))
    assert modes(planned(proto))["add"] is Mode.STATIC
    plan = planned(proto, StaticSettings(exclude=("add",)))
    assert (modes(plan)["add"], why(plan, "add")) == (Mode.FLOAT, "excluded")
    plan = planned(proto, StaticSettings(exclude=("c1",)))
    assert (modes(plan)["c1"], why(plan, "c1")) == (Mode.FLOAT, "excluded")
    assert "c1_w" not in plan.weight


def test_what_only_an_excluded_node_reads_is_not_rounded() -> None:
    between = [
        conv("a", "p", "c0"),
        node("Relu", ["p"], ["r"], "relu"),
        node("MaxPool", ["r"], ["q"], "pool", kernel_shape=[1, 1]),
        conv("q", "b", "out"),
    ]
    proto = chain(*between, constants=conv_weights("c1", "c2", "c0", "out"))
    plan = planned(proto, StaticSettings(exclude=("out",)))
    assert {"p", "r", "q"}.isdisjoint(plan.activation)
    assert modes(plan)["c0"] is Mode.STORED
    assert why(plan, "c0").startswith("it feeds excluded nodes only")
    # No further: what c0 reads may be rounded, and so is what the node behind reads.
    assert modes(plan)["c1"] is modes(plan)["c2"] is Mode.STATIC
    forced = planned(
        proto, StaticSettings(exclude=("out",), nodes=(NodeRule(node="c0", mode="integer"),))
    )
    assert modes(forced)["c0"] is Mode.STATIC


def test_what_others_read_in_integers_stays_so_beside_an_excluded_node() -> None:
    between = [conv("a", "p", "left"), conv("a", "q", "right"), node("Add", ["p", "q"], ["b"])]
    plan = planned(
        chain(*between, constants=conv_weights("c1", "c2", "left", "right")),
        StaticSettings(exclude=("left",)),
    )
    assert modes(plan)["c1"] is modes(plan)["right"] is Mode.STATIC
    assert "a" in plan.activation


def test_include_and_op_types_leave_the_rest_alone() -> None:
    proto = matmuls(node("Tanh", ["a"], ["b"], "tanh"))
    for options in (StaticSettings(include=("m1",)), StaticSettings(include=("m1", "tanh"))):
        plan = planned(proto, options)
        assert modes(plan) == {"m1": Mode.STATIC, "m2": Mode.FLOAT}
        assert set(plan.weight) == {"w1"}
        assert why(plan, "m2") == "not among the chosen nodes (--include, --exclude)"
    proto = chain(
        node("Add", ["a", "a"], ["p"], "add"),
        node("MaxPool", ["p"], ["b"], "pool", kernel_shape=[1, 1]),
    )
    plan = planned(proto, StaticSettings(op_types=("Conv",)))
    assert modes(plan)["c1"] is modes(plan)["c2"] is Mode.STATIC
    assert why(plan, "add") == "operator type Add not asked for"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (StaticSettings(exclude=("nope",)), UnknownNodeError),
        (StaticSettings(include=("c*x",)), UnknownNodeError),
        (StaticSettings(nodes=(NodeRule(node="nope", mode="integer"),)), UnknownNodeError),
        (StaticSettings(op_types=("Nope",)), UsageError),
        (StaticSettings(tensors=(TensorRule(tensor="nope", keep_float=True),)), UsageError),
    ],
)
def test_a_rule_that_matches_nothing_is_an_error(
    options: StaticSettings, error: type[Exception]
) -> None:
    with pytest.raises(error):
        planned(chain(node("Relu", ["a"], ["b"])), options)


@pytest.mark.parametrize(("name", "reason"), [("tanh", "no integer kernel"), ("c1", "excluded")])
def test_what_cannot_be_forced_is_an_error(name: str, reason: str) -> None:
    proto = chain(node("Tanh", ["a"], ["b"], "tanh"))
    options = StaticSettings(nodes=(NodeRule(node=name, mode="integer"),), exclude=("c1",))
    with pytest.raises(UsageError, match=f"Node '{name}' cannot run in integers: .*{reason}"):
        planned(proto, options)


def test_overrides_of_range_type_and_float() -> None:
    proto = chain(node("Tanh", ["a"], ["b"]))
    wide = TensorRule(tensor="b", range=(-2.55, 0.0), dtype="int8")
    found = planned(proto, StaticSettings(tensors=(wide,))).activation["b"]
    assert (found.dtype, found.zero_point, found.why) == (INT8, 127, "given: -2.55 to 0")
    assert found.scale == pytest.approx(0.01)
    plan = planned(proto, StaticSettings(tensors=(TensorRule(tensor="b", dtype="uint16"),)))
    assert plan.min_opset == 21
    plan = planned(proto, StaticSettings(tensors=(TensorRule(tensor="[ab]", keep_float=True),)))
    assert {m for n, m in modes(plan).items() if n in {"c1", "c2"}} <= {Mode.FLOAT, Mode.STORED}
    assert "tensor 'a' is to stay float" in why(plan, "c1")


def test_the_result_of_a_move_can_be_kept_float() -> None:
    proto = chain(node("Transpose", ["a"], ["b"], "turn", perm=[0, 1, 3, 2]))
    plan = planned(proto, StaticSettings(tensors=(TensorRule(tensor="b", keep_float=True),)))
    assert modes(plan)["turn"] is Mode.FLOAT
    assert "b" not in plan.activation


def shared(*, options: StaticSettings | None = None, finite: bool = True) -> Plan:
    """Two Conv that read one weight."""
    w = weight(8, 8, 3, 3)
    if not finite:
        w[0, 0, 0, 0] = np.nan
    nodes = [
        node("Conv", ["x", "w"], ["a"], "c1", pads=[1] * 4),
        node("Conv", ["a", "w"], ["y"], "c2", pads=[1] * 4),
        node("Conv", ["x", "v"], ["z"], "c3"),
    ]
    weights = {"w": w, "v": weight(8, 8, 3, 3, seed=1)}
    return planned(model(graph(nodes, IMAGE, {"y": None, "z": None}, weights)), options)


def test_a_shared_weight_is_quantized_once_or_not_at_all() -> None:
    assert set(shared().weight) == {"w", "v"}
    for options in (StaticSettings(exclude=("c2",)), StaticSettings(include=("c1", "c3"))):
        plan = shared(options=options)
        assert modes(plan) == {"c1": Mode.FLOAT, "c2": Mode.FLOAT, "c3": Mode.STATIC}
        assert "shared with node 'c2', which stays float" in why(plan, "c1")
        assert set(plan.weight) == {"v"}


@pytest.mark.parametrize("coverage", ["gain", "all"])
def test_weights_that_are_not_finite_stay(coverage: Coverage) -> None:
    plan = shared(options=StaticSettings(coverage=coverage), finite=False)
    assert why(plan, "c1") == "its weight holds NaN or infinity"
    assert modes(plan)["c3"] is Mode.STATIC


@pytest.mark.parametrize("coverage", ["gain", "all"])
def test_a_weight_that_users_can_feed_stays(coverage: Coverage) -> None:
    nodes = [node("Conv", ["x", "w"], ["y"], "c1"), node("Conv", ["x", "v"], ["z"], "c2")]
    weights = {"w": weight(8, 8, 3, 3), "v": weight(8, 8, 3, 3, seed=1)}
    inputs: dict[str, Any] = {**IMAGE, "w": [8, 8, 3, 3]}
    proto = model(graph(nodes, inputs, {"y": None, "z": None}, weights))
    plan = planned(proto, StaticSettings(coverage=coverage))
    assert modes(plan)["c1"] is Mode.FLOAT
    assert "keep_initializers_as_inputs=False" in why(plan, "c1")
