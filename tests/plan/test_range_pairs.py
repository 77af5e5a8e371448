"""Every range that a plan asks for was observed: all pairs of operators between two products, for every target."""

from collections.abc import Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import Array, Shape, graph, model, node, rng, weight
from static_cases import Ready, chain, conv, conv_weights, open_ranges, planned, ready

from quantkit import RecoverSettings, calibrate, quantize_static
from quantkit.calibration.points import points_of
from quantkit.model.graph.load import load
from quantkit.model.graph.view import view_of
from quantkit.pipeline.calibrate import needed_by_any
from quantkit.quantize.plan import Mode, Plan
from quantkit.settings import StaticSettings
from quantkit.targets import TARGETS, Target

# How an operator is written behind tensor "T": its inputs and attributes, and how many outputs it has.
Form = tuple[list[str], dict[str, Any]]
_UNARY: Form = (["T"], {})
_BINARY: list[Form] = [(["T", "vector"], {}), (["T", "T"], {}), (["T", "x"], {})]
_REDUCED: list[Form] = [(["T", "axis"], {"keepdims": 1})]
FORMS: dict[str, list[Form]] = {
    "Add": _BINARY,
    "AveragePool": [(["T"], {"kernel_shape": [1, 1]})],
    "Clip": [(["T", "zero", "six"], {}), (["T", "below", "six"], {}), (["T", "zero", "zero"], {})],
    "Concat": [(["T", "vector"], {"axis": 1}), (["T", "T"], {"axis": 1})],
    "DepthToSpace": [(["T"], {"blocksize": 2})],
    "Div": _BINARY,
    "Expand": [(["T", "extents"], {})],
    "Gather": [(["T", "axis"], {"axis": 1})],
    "GatherElements": [(["T", "extents"], {})],
    "InstanceNormalization": [(["T", "ones", "ones"], {})],
    "LayerNormalization": [(["T", "ones"], {})],
    "MaxPool": [(["T"], {"kernel_shape": [1, 1]})],
    "Mul": _BINARY,
    "PRelu": [(["T", "ones"], {})],
    "Pad": [(["T", "pads"], {}), (["T", "pads", "six"], {})],
    "ReduceMax": _REDUCED,
    "ReduceMean": _REDUCED,
    "ReduceMin": _REDUCED,
    "ReduceSum": _REDUCED,
    "Reshape": [(["T", "extents"], {})],
    "Resize": [(["T", "", "factors"], {"mode": "nearest"})],
    "Slice": [(["T", "axis", "last", "axis"], {})],
    "SpaceToDepth": [(["T"], {"blocksize": 2})],
    "Split": [(["T"], {"num_outputs": 1})],
    "Squeeze": [(["T", "axis"], {})],
    "Sub": _BINARY,
    "Tile": [(["T", "extents"], {})],
    "Transpose": [(["T"], {"perm": [0, 1, 3, 2]})],
    "Unsqueeze": [(["T", "axis"], {})],
    "Where": [(["yes", "T", "vector"], {}), (["yes", "T", "T"], {})],
}
CONSTANTS: dict[str, Array] = {
    **conv_weights("c"),
    "axis": np.array([0], np.int64),
    "below": np.array(-1, np.float32),
    "extents": np.array([1, 8, 6, 6], np.int64),
    "factors": np.array([1, 1, 2, 2], np.float32),
    "last": np.array([1], np.int64),
    "ones": np.ones(8, np.float32),
    "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64),
    "six": np.array(6, np.float32),
    "vector": weight(1, 8, 1, 1),
    "yes": np.ones((1, 8, 1, 1), np.bool_),
    "zero": np.array(0, np.float32),
}


def forms(target: Target) -> list[tuple[str, Form]]:
    operators = sorted(target.computes | target.moves)
    return [(op, form) for op in operators for form in FORMS.get(op, [_UNARY])]


Pair = tuple[tuple[str, Form], tuple[str, Form]]


def side_by_side(pairs: Sequence[Pair]) -> onnx.ModelProto:
    """Input -> Conv -> A -> B -> Conv for each pair. No shapes: nothing is folded, or refused."""
    nodes, starts, ends = [], ["x"], []
    for number, ((a, (a_inputs, a_attributes)), (b, (b_inputs, b_attributes))) in enumerate(pairs):
        at = f"{a}_{b}_{number}"
        one = [f"{at}_0" if name == "T" else name for name in a_inputs]
        two = [f"{at}_1" if name == "T" else name for name in b_inputs]
        nodes += [
            node("Conv", [f"{at}_x", "c_w", "c_b"], [f"{at}_0"], f"{at}_first"),
            node(a, one, [f"{at}_1"], f"{at}_a", **a_attributes),
            node(b, two, [f"{at}_2"], f"{at}_b", **b_attributes),
            node("Conv", [f"{at}_2", "c_w", "c_b"], [f"{at}_3"], f"{at}_second"),
        ]
        starts.append(f"{at}_x")
        ends.append(f"{at}_3")
    inputs: dict[str, Shape] = dict.fromkeys(starts)
    return model(graph(nodes, inputs, dict.fromkeys(ends), CONSTANTS), opset=21)


def unknown(plan: Plan) -> list[str]:
    return [f"{n.node}: {n.why}" for n in plan.nodes if "is not known" in n.why]


def convs(plan: Plan) -> set[Mode]:
    return {n.mode for n in plan.nodes if n.op_type == "Conv"}


# Targets that compute and move the same ask for the same.
DISTINCT = {(t.products, t.computes, t.moves, t.needs_output): n for n, t in TARGETS.items()}


@pytest.mark.parametrize("name", DISTINCT.values())
@pytest.mark.slow
def test_what_is_observed_is_all_that_a_plan_asks_for_in_every_pair(name: str) -> None:
    target = TARGETS[name]
    loaded = load(side_by_side(list(product(forms(target), forms(target))))).model
    prepared = Ready(loaded, view_of(loaded))
    options = StaticSettings(target=name)
    plan = prepared.plan(open_ranges(prepared, options=options), options)
    assert not unknown(plan)
    assert convs(plan) == {Mode.STATIC}


@pytest.mark.parametrize("name", DISTINCT.values())
def test_ranges_of_the_model_as_it_is_serve_a_plan_for_any_target(name: str) -> None:
    target = TARGETS[name]
    found = forms(target)
    proto = side_by_side([*zip(found, found, strict=True), *pairwise(found)])
    raw = load(proto).model
    ranges = dict.fromkeys(points_of(view_of(raw), needed_by_any(raw)).tensors, (-4.0, 4.0))
    plan = ready(proto).plan(ranges, StaticSettings(target=name))
    assert not unknown(plan)
    assert convs(plan) == {Mode.STATIC}


# Bounds of a Clip; None: computed by the graph.
BOUNDS = [(0, 6), (-1, 1), (0.5, 6), (-2, -1), (0, 0), (0, -1), None]


def clipped(bounds: tuple[float, float] | None) -> onnx.ModelProto:
    """Conv -> Clip -> Conv -> Clip -> Conv."""
    low, high = bounds or (0, 6)
    nodes = [
        node("ReduceMax", ["x"], ["most"], "most", keepdims=0),
        conv("x", "a", "c1"),
        node("Clip", ["a", "low", "high" if bounds else "most"], ["b"], "k1"),
        conv("b", "d", "c2"),
        node("Clip", ["d", "low", "high" if bounds else "most"], ["e"], "k2"),
        conv("e", "y", "c3"),
    ]
    weights: dict[str, Array] = {
        **conv_weights("c1", "c2", "c3"),
        "low": np.array(low, np.float32),
        "high": np.array(high, np.float32),
    }
    return model(graph(nodes, {"x": ["N", 8, 6, 6]}, {"y": None}, weights))


@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
@pytest.mark.parametrize("name", DISTINCT.values())
def test_a_conv_in_front_of_any_clip_runs_in_integers(
    name: str, bounds: tuple[float, float] | None
) -> None:
    plan = planned(clipped(bounds), StaticSettings(target=name))
    assert convs(plan) == {Mode.STATIC}


IMAGES = rng(3).standard_normal((8, 8, 6, 6)).astype(np.float32)
FAST = RecoverSettings(equalize=False, smooth=False, rounding=False, bias=False)


@pytest.mark.parametrize("output_format", ["qdq", "qoperator"])
@pytest.mark.parametrize("bounds", [(-1, 1), (0, 0)], ids=str)
def test_it_does_with_real_data_in_both_formats(
    bounds: tuple[float, float], output_format: str, tmp_path: Path
) -> None:
    result = quantize_static(
        clipped(bounds), tmp_path / "q.onnx", IMAGES, quant_format=output_format, recover=FAST
    )
    assert convs(result.plan) == {Mode.STATIC}


def normalized_by_what_is_computed() -> onnx.ModelProto:
    """Conv -> BatchNormalization, which cannot be folded -> Conv."""
    between = [
        node("ReduceMax", ["x", "axes"], ["most"], "most", keepdims=0),
        node("BatchNormalization", ["a", "most", "ones", "ones", "ones"], ["b"], "bn"),
    ]
    constants: dict[str, Array] = {
        "axes": np.array([0, 2, 3], np.int64),
        "ones": np.ones(8, np.float32),
    }
    return chain(*between, constants=constants, opset=18)


def test_a_conv_in_front_of_a_normalization_that_stays_runs_in_integers() -> None:
    assert convs(planned(normalized_by_what_is_computed())) == {Mode.STATIC}


@pytest.mark.parametrize("given", ["data", "calibration"])
def test_operators_that_only_one_target_computes_get_their_ranges(
    given: str, tmp_path: Path
) -> None:
    between = [
        node("Tanh", ["a"], ["t"], "tanh"),
        node("Sub", ["t", "half"], ["s"], "sub"),
        node("Exp", ["s"], ["b"], "exp"),
    ]
    proto = chain(*between, constants={"half": np.array(0.5, np.float32)})
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    data: object = IMAGES
    if given == "calibration":
        data = tmp_path / "c.calibration"
        calibrate(proto, IMAGES, data)
    result = quantize_static(proto, tmp_path / "q.onnx", data, target="qnn", recover=FAST)
    modes = {n.node: n.mode for n in result.plan.nodes}
    assert modes == dict.fromkeys(("c1", "tanh", "sub", "exp", "c2"), Mode.STATIC)
    assert not any("has no range" in warning for warning in result.warnings)
