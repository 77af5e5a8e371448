"""Rules for single tensors where all is quantized: numbers that are given are those of the plan, and what cannot be is said."""

from typing import Any

import numpy as np
import pytest
from builders import graph, model, node, weight
from onnx_ir import from_proto

from quantkit.errors import UsageError
from quantkit.model.graph.view import view_of
from quantkit.quantize.plan import Plan, check_settings, plan_static
from quantkit.quantize.plan.model import Format
from quantkit.settings import QdqSettings, StaticSettings, TensorRule

ENDS = {"x": (-1.0, 3.0), "m": (-2.0, 2.0), "y": (0.0, 5.0)}


def plan(*rules: TensorRule, **given: Any) -> Plan:
    """Plan x [1, 3, 6, 6] -> Conv 'c' -> m -> Sigmoid 's' -> y, with ranges that are made up."""
    nodes = [
        node("Conv", ["x", "w", "b"], ["m"], "c"),
        node("Sigmoid", ["m"], ["y"], "s"),
    ]
    held = {"w": weight(4, 3, 1, 1), "b": weight(4, seed=1)}
    made = model(graph(nodes, {"x": [1, 3, 6, 6]}, {"y": [1, 4, 6, 6]}, held), opset=21)
    settings = StaticSettings(coverage="all", op_types=("Conv", "Sigmoid"), tensors=rules, **given)
    return plan_static(view_of(from_proto(made)), ENDS, settings)


def test_scale_and_zero_point_that_are_given_are_those_of_the_plan() -> None:
    found = plan(TensorRule(tensor="x", scales=(0.5,), zero_points=(3,)))
    assert (found.activation["x"].scale, found.activation["x"].zero_point) == (0.5, 3)
    assert "given" in found.activation["x"].why


def test_a_tensor_may_be_symmetric_beside_others_that_are_not() -> None:
    found = plan(TensorRule(tensor="x", symmetric=True))
    assert found.activation["x"].zero_point == 128
    assert found.activation["m"].zero_point == 128  # of a symmetric range
    assert plan().activation["x"].zero_point == 64


def test_readers_get_a_conversion_with_numbers_of_its_own() -> None:
    found = plan(TensorRule(tensor="m", dtype="int16", symmetric=True, readers=("s",)))
    made = found.activation["m"]
    assert made.converted is not None
    assert made.dtype.name == "uint8"
    assert (made.converted.dtype.name, made.converted.zero_point) == ("int16", 0)
    assert made.read_by("s").scale == pytest.approx(2 / 32767)
    assert made.read_by("other") is made
    assert found.min_opset == 21
    assert Plan.from_json(found.to_json()) == found


def test_a_rule_about_a_weight_pins_it_and_one_about_a_bias_takes_it_out_of_int32() -> None:
    found = plan(TensorRule(tensor="w", dtype="int4", axis=0), TensorRule(tensor="b", dtype="int8"))
    spec = found.weight["w"].spec
    assert spec.pinned
    assert (spec.dtype.name, spec.symmetric, spec.whole) == ("int4", True, True)
    assert found.weight["b"].spec.dtype.name == "int8"
    assert not plan().weight["w"].spec.pinned
    assert "b" not in plan().weight


def test_narrow_ranges_are_widened_and_zero_points_restricted() -> None:
    found = plan(qdq=QdqSettings(min_range=25.5))
    assert found.activation["y"].scale == np.float32(0.1)
    assert found.weight["w"].spec.least == 25.5
    found = plan(qdq=QdqSettings(restricted_zero_points=True))
    assert found.activation["x"].zero_point == 128
    assert found.activation["x"].scale == pytest.approx(3 / 127)
    assert found.activation["y"].zero_point == 0


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"tensor": "w", "axis": 7}, "axis 7, and it has 4 axes"),
        ({"tensor": "x", "scales": (1.0, 2.0), "zero_points": (0, 0)}, "takes one scale"),
        ({"tensor": "x", "scales": (1.0,), "zero_points": (999,)}, "zero point of uint8"),
        ({"tensor": "x", "scales": (1.0,)}, "give as many"),
        ({"tensor": "x", "scales": (-1.0,), "zero_points": (0,)}, "above 0"),
        ({"tensor": "x", "scales": (1.0,), "zero_points": (0,), "range": (0.0, 1.0)}, "twice"),
        ({"tensor": "x", "readers": ("c",)}, "to which dtype"),
        ({"tensor": "q", "dtype": "int8"}, "no tensor 'q'"),
    ],
)
def test_rules_that_make_no_sense_are_one_error(rule: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        plan(TensorRule(**rule))


@pytest.mark.parametrize(
    "given",
    [
        {"weight_type": "int4"},
        {"weight_type": "int16"},
        {"activation_type": "uint4"},
        {"tensors": (TensorRule(tensor="w", axis=0),)},
        {"tensors": (TensorRule(tensor="x", dtype="int16", readers=("c",)),)},
    ],
)
def test_what_no_kernel_gains_by_needs_coverage_all(given: Any) -> None:
    with pytest.raises(UsageError, match="coverage 'all'"):
        check_settings(StaticSettings(**given), Format.QDQ)
    check_settings(StaticSettings(coverage="all", **given), Format.QDQ)
