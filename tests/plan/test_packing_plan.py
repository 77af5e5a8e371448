"""Fewer bits on disk for weights that kernels read as int8: nothing else of a plan changes, and no pair can saturate."""

import pytest
from block_cases import language_model, layers
from builders import conv_model, graph, model, node, weight
from hypothesis import given
from hypothesis import strategies as st

from quantkit.model.graph.load import load
from quantkit.model.graph.view import view_of
from quantkit.model.ops.view import View
from quantkit.quantize.plan import Plan, plan_dynamic
from quantkit.quantize.plan.blocks import int8_grid, same_bits, with_bits
from quantkit.settings import DynamicSettings


def planned(proto: object, **options: object) -> tuple[View, Plan]:
    view = view_of(load(proto).model)  # type: ignore[arg-type]
    return view, plan_dynamic(view, DynamicSettings(**options))  # type: ignore[arg-type]


@given(bits=st.integers(2, 7), inputs=st.integers(1, 5000))
def test_integers_of_few_bits_cannot_saturate(bits: int, inputs: int) -> None:
    grid = int8_grid(bits, inputs)
    assert grid.symmetric
    assert grid.middle * grid.largest <= 64


@pytest.mark.parametrize("proto", [layers(256, 256), language_model(), conv_model()])
def test_modes_stay_and_only_weights_change(proto: object) -> None:
    view, plan = planned(proto)
    packed = with_bits(plan, view, dict.fromkeys(view.weights, 4))
    assert packed.nodes == plan.nodes
    assert packed.activations == plan.activations
    for before, after in zip(plan.weights, packed.weights, strict=True):
        assert before.spec.granularity == after.spec.granularity
        if after.blocks is not None:
            assert after.spec.dtype.name == "int8"
            assert after.spec.symmetric
            assert not after.spec.pair_axes


def test_eight_bits_are_written_as_they_are() -> None:
    view, plan = planned(layers(256, 256))
    assert with_bits(plan, view, dict.fromkeys(view.weights, 8)) is plan


def test_what_would_not_become_smaller_stays() -> None:
    view, plan = planned(layers(40, 40), op_types=())
    assert all(
        w.blocks is None for w in with_bits(plan, view, dict.fromkeys(view.weights, 7)).weights
    )


def test_the_first_and_depthwise_layers_keep_eight_bits() -> None:
    nodes = [
        node("Conv", ["x", "first"], ["a"], "c1"),
        node("Conv", ["a", "depthwise"], ["b"], "c2", group=64),
        node("Conv", ["b", "pointwise"], ["y"], "c3"),
    ]
    held = {
        "first": weight(64, 3, 7, 7),
        "depthwise": weight(64, 1, 3, 3),
        "pointwise": weight(256, 64, 1, 1),
    }
    proto = model(graph(nodes, {"x": [1, 3, 32, 32]}, {"y": None}, held))
    view, _ = planned(proto)
    assert same_bits(4, view) == {"first": 8, "depthwise": 8, "pointwise": 4}


def test_one_scale_for_a_whole_tensor_is_not_packed() -> None:
    view, plan = planned(layers(256, 256), per_channel=False)
    assert with_bits(plan, view, dict.fromkeys(view.weights, 4)) is plan


def test_plans_round_trip_with_blocks() -> None:
    view, plan = planned(layers(256, 256))
    packed = with_bits(plan, view, dict.fromkeys(view.weights, 5))
    assert Plan.from_json(packed.to_json()) == packed
