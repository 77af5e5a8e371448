"""What has 16 bits, and why not: rules about constants, ranges and neighbours."""

import sys
from dataclasses import replace

import numpy as np
import onnx
import pytest
from builders import MS, Array, graph, model, node, weight
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from quantkit.errors import UnknownNodeError, UsageError
from quantkit.model.graph.load import load
from quantkit.model.graph.normalize import lift_floats
from quantkit.model.graph.view import half_view_of
from quantkit.model.ops.view import FloatConstant, HalfView
from quantkit.numerics.half import half_loss
from quantkit.quantize.plan import Mode, Plan, check_target_of, plan_half, read_plan, write_plan
from quantkit.settings import Float16Settings
from quantkit.targets import DEFAULT

COMPUTE = Float16Settings(compute=True)
FITS = (-10.0, 10.0)


def view_of(proto: onnx.ModelProto, kind: str = "float16") -> HalfView:
    loaded = load(proto)
    lift_floats(loaded.model)
    return half_view_of(loaded.model, kind, computed=True)


def planned(
    proto: onnx.ModelProto,
    given: Float16Settings = COMPUTE,
    ranges: dict[str, tuple[float, float]] | None = None,
) -> Plan:
    half = view_of(proto, given.dtype)
    seen = None if ranges is None else dict.fromkeys(half.floats, FITS) | ranges
    return plan_half(half, given, seen)


def one_weight(array: Array, op: str = "MatMul") -> onnx.ModelProto:
    nodes = [node(op, ["x", "w"], ["y"], "n")]
    return model(graph(nodes, {"x": [1, array.shape[0]]}, {"y": None}, {"w": array}))


def modes(plan: Plan) -> dict[str, Mode]:
    return {n.node: n.mode for n in plan.nodes}


# ---------------------------------------------------------------------------------------- in the file


def test_a_weight_is_stored_and_its_reader_says_so() -> None:
    plan = planned(one_weight(weight(40, 40)), Float16Settings())
    assert [(h.tensor, h.dtype) for h in plan.halves] == [("w", "float16")]
    assert modes(plan) == {"n": Mode.STORED}
    assert "become float32 when it is loaded" in plan.node["n"].why


def with_value(value: float) -> Array:
    array = weight(40, 40)
    array[3, 5] = value
    return array


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (with_value(1e5), "beyond 65504: 'w' up to 1e+05"),
        (with_value(np.nan), "NaN or infinity: 'w'"),
        (with_value(-np.inf), "NaN or infinity: 'w'"),
        (weight(40, 40) * 1e-6, "float16 keeps too little of a weight: 'w' at "),
    ],
    ids=["overflow", "nan", "infinite", "underflow"],
)
def test_what_float16_does_not_hold_stays_float32_with_the_reason(
    array: Array, reason: str
) -> None:
    plan = planned(one_weight(array.astype(np.float32)), Float16Settings())
    assert not plan.halves
    assert plan.node["n"].mode is Mode.FLOAT
    assert reason in plan.node["n"].why


def test_bfloat16_has_the_range_of_float32() -> None:
    for array in (with_value(1e5), weight(40, 40) * np.float32(1e-6)):
        assert planned(one_weight(array), Float16Settings(dtype="bfloat16")).halves


@settings(deadline=None, max_examples=25)
@given(st.integers(-60, 60))
def test_a_weight_is_stored_just_where_its_scale_lets_float16_keep_it(exponent: int) -> None:
    array = weight(40, 40) * np.float32(2.0**exponent)
    found = half_loss(array, np.float16)
    stored = bool(planned(one_weight(array), Float16Settings()).halves)
    assert stored == (not found.overflows and found.sqnr_db >= 60)


def test_small_tensors_and_vectors_stay() -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["m"], "mm"),
        node("Add", ["m", "b"], ["a"], "add"),
        node("MatMul", ["a", "small"], ["y"], "mm2"),
    ]
    held = {"w": weight(200, 100), "b": weight(100), "small": weight(100, 1)}
    plan = planned(model(graph(nodes, {"x": [1, 200]}, {"y": None}, held)), Float16Settings())
    assert plan.half.keys() == {"w"}
    assert plan.node.keys() == {"mm"}  # of the others there is nothing to say


def test_a_vector_that_is_a_good_part_of_the_file_is_stored() -> None:
    nodes = [node("Mul", ["x", "v"], ["y"], "mul")]
    plan = planned(
        model(graph(nodes, {"x": [500]}, {"y": None}, {"v": weight(500)})), Float16Settings()
    )
    assert plan.half.keys() == {"v"}


def test_what_onnxruntime_does_not_fold_stays() -> None:
    half = view_of(one_weight(weight(40, 40)))
    huge = replace(half.constants["w"], shape=(1 << 14, 1 << 14))
    plan = plan_half(replace(half, constants={"w": huge}), Float16Settings())
    assert not plan.halves
    assert "does not turn a weight of this size into float32 at load" in plan.node["n"].why
    one_less = replace(huge, shape=((1 << 28) - 1,))
    assert plan_half(replace(half, constants={"w": one_less}), Float16Settings()).halves


def test_inputs_and_outputs_stay() -> None:
    proto = one_weight(weight(40, 40))
    proto.graph.input.append(onnx.helper.make_tensor_value_info("w", TensorProto.FLOAT, [40, 40]))
    plan = planned(proto, Float16Settings())
    assert not plan.halves
    assert "is an input or output of its graph" in plan.node["n"].why


def test_a_weight_that_is_not_there_stays() -> None:
    half = view_of(one_weight(weight(40, 40)))
    gone = replace(half.constants["w"], loss=None)
    assert "is not there" in plan_half(replace(half, constants={"w": gone}), COMPUTE).node["n"].why


def test_a_divisor_that_would_vanish_stays() -> None:
    divisor = np.ones((40, 40), np.float32)
    divisor[0, 0] = 1e-9
    for op, stored in (("Div", False), ("Mul", True)):
        plan = planned(one_weight(divisor, op), Float16Settings())
        assert bool(plan.halves) == stored
    assert "a divisor would become 0" in planned(one_weight(divisor, "Div")).node["n"].why


def test_an_excluded_node_keeps_its_weights() -> None:
    nodes = [node("MatMul", ["x", "w"], ["a"], "one"), node("MatMul", ["x", "w"], ["b"], "two")]
    nodes.append(node("MatMul", ["x", "v"], ["c"], "three"))
    held = {"w": weight(40, 40), "v": weight(40, 50)}
    proto = model(graph(nodes, {"x": [1, 40]}, dict.fromkeys("abc"), held))
    plan = planned(proto, Float16Settings(exclude=("two",)))
    assert plan.half.keys() == {"v"}
    assert plan.node["one"].why == plan.node["two"].why == "excluded"
    assert (
        planned(proto, Float16Settings(compute=True, exclude=("t*",))).node["two"].mode
        is Mode.FLOAT
    )
    with pytest.raises(UnknownNodeError, match="no node 'tow'; did you mean 'two'"):
        planned(proto, Float16Settings(exclude=("tow",)))


# ---------------------------------------------------------------------------------------- in arithmetic


def chain(*ops: str, k: int = 16) -> onnx.ModelProto:
    """x -> MatMul 'mm' -> the operators, each named by its place -> MatMul 'end' -> y."""
    nodes, last = [node("MatMul", ["x", "w"], ["t0"], "mm")], "t0"
    for i, op in enumerate(ops, 1):
        nodes.append(node(op, [last], [f"t{i}"], f"{op}{i}"))
        last = f"t{i}"
    nodes.append(node("MatMul", [last, "v"], ["y"], "end"))
    return model(graph(nodes, {"x": [4, k]}, {"y": None}, {"w": weight(k, k), "v": weight(k, k)}))


def test_everything_that_fits_computes_in_float16() -> None:
    plan = planned(chain("Relu", "Sigmoid", "Sqrt"), ranges={})
    assert set(modes(plan).values()) == {Mode.HALF}
    assert plan.half.keys() == {"w", "v"}
    assert all("only float16 nodes" in h.why for h in plan.halves)


@pytest.mark.parametrize(
    ("seen", "floats", "reason"),
    [
        (
            (0.0, 1e5),
            {"Relu1", "Sigmoid2"},
            "values exceed 65504, or come near it: 't1' up to 1e+05",
        ),
        ((-4e4, 0.0), {"Relu1", "Sigmoid2"}, "come near it"),
        ((-3e4, 3e4), set(), ""),
        ((0.0, 1e-5), {"Relu1", "Sigmoid2"}, "so small that float16 loses digits"),
        ((0.0, 0.0), set(), ""),
    ],
    ids=["overflow", "near", "fits", "underflow", "zero"],
)
def test_what_was_seen_of_a_value_decides_for_who_makes_and_reads_it(
    seen: tuple[float, float], floats: set[str], reason: str
) -> None:
    plan = planned(chain("Relu", "Sigmoid"), ranges={"t1": seen})
    assert {n.node for n in plan.nodes if n.mode is not Mode.HALF} == floats
    assert all(reason in plan.node[name].why for name in floats)


@settings(deadline=None, max_examples=30)
@given(st.floats(1e-9, 1e9))
def test_no_value_beyond_what_float16_holds_is_float16(most: float) -> None:
    plan = planned(chain("Relu", "Sigmoid"), ranges={"t1": (0.0, most)})
    fits = 2.0**-14 <= most <= 65504 / 2
    assert (plan.node["Relu1"].mode is Mode.HALF) == fits
    assert (plan.node["Sigmoid2"].mode is Mode.HALF) == fits


def test_what_no_sample_computes_stays() -> None:
    half = view_of(chain("Relu", "Sigmoid"))
    seen = dict.fromkeys((name for name in half.floats if name != "t1"), FITS)
    assert "no sample computes" in plan_half(half, COMPUTE, seen).node["Relu1"].why


def test_sums_inside_of_a_mean_count() -> None:
    nodes = [
        node("Conv", ["x", "w"], ["c"], "conv"),
        node("GlobalAveragePool", ["c"], ["p"], "pool"),
        node("ReduceMean", ["c"], ["y"], "mean", axes=[1]),
    ]
    proto = model(
        graph(nodes, {"x": [1, 4, 50, 50]}, {"p": None, "y": None}, {"w": weight(4, 4, 1, 1)})
    )
    plan = planned(proto, ranges={"p": (0.0, 20.0), "y": (0.0, 20.0)})
    assert plan.node["pool"].mode is Mode.FLOAT  # 2500 times 20
    assert "2500 values make up to 5e+04" in plan.node["pool"].why
    assert plan.node["mean"].mode is Mode.HALF  # four times 20


def test_squares_inside_count() -> None:
    proto = chain("LpNormalization")
    assert planned(proto, ranges={"t0": (-100.0, 50.0)}).node["LpNormalization1"].mode is Mode.HALF
    why = planned(proto, ranges={"t0": (-200.0, 50.0)}).node["LpNormalization1"].why
    assert "squares inside of it exceed 65504" in why


@pytest.mark.parametrize(
    ("least", "mode"), [(1e-6, Mode.FLOAT), (0.01, Mode.HALF), (-1.0, Mode.HALF)]
)
def test_a_logarithm_of_values_that_vanish_stays(least: float, mode: Mode) -> None:
    plan = planned(chain("Log"), ranges={"t0": (least, 4.0)})
    assert plan.node["Log1"].mode is mode


def normalization(epsilon: float) -> onnx.ModelProto:
    """What exporters make of a LayerNormalization, between two products."""
    nodes = [
        node("MatMul", ["x", "w"], ["a"], "mm"),
        node("ReduceMean", ["a"], ["m"], "mean", axes=[-1]),
        node("Sub", ["a", "m"], ["d"], "sub"),
        node("Pow", ["d", "two"], ["s"], "square"),
        node("ReduceMean", ["s"], ["v"], "variance", axes=[-1]),
        node("Add", ["v", "eps"], ["e"], "add_eps"),
        node("Sqrt", ["e"], ["r"], "root"),
        node("Div", ["d", "r"], ["n"], "div"),
        node("MatMul", ["n", "u"], ["y"], "end"),
    ]
    held = {"w": weight(16, 16), "u": weight(16, 16)}
    held |= {"two": np.array(2, np.float32), "eps": np.array(epsilon, np.float32)}
    return model(graph(nodes, {"x": [2, 16]}, {"y": None}, held))


def test_an_epsilon_that_float16_does_not_hold_keeps_its_node() -> None:
    plan = planned(normalization(1e-12))
    assert plan.node["add_eps"].mode is Mode.FLOAT
    assert "keeps too little of a weight: 'eps'" in plan.node["add_eps"].why
    assert {n for n, mode in modes(plan).items() if mode is not Mode.HALF} == {"add_eps"}
    assert "two" not in plan.half  # an exponent has a type of its own, and stays exact
    assert planned(normalization(0.25)).node["add_eps"].mode is Mode.HALF


def masked(largest: float) -> onnx.ModelProto:
    """scores + mask * -largest, and a softmax, between products."""
    nodes = [
        node("MatMul", ["x", "w"], ["s"], "scores"),
        node("Mul", ["mask", "large"], ["b"], "mul"),
        node("Add", ["s", "b"], ["m"], "add"),
        node("Softmax", ["m"], ["p"], "softmax"),
        node("MatMul", ["p", "u"], ["y"], "end"),
    ]
    held = {"w": weight(16, 16), "u": weight(16, 16), "large": np.array(-largest, np.float32)}
    return model(graph(nodes, {"x": [2, 16], "mask": [2, 16]}, {"y": None}, held))


@pytest.mark.parametrize("seen", [None, {}], ids=["unknown", "ranges"])
def test_what_a_huge_constant_reaches_stays_up_to_what_bounds_it(
    seen: dict[str, tuple[float, float]] | None,
) -> None:
    """Samples without padding do not show what a mask does."""
    plan = planned(masked(3e38), ranges=seen)
    stay = {n for n, mode in modes(plan).items() if mode is not Mode.HALF}
    assert stay == {"mul", "add", "softmax"}
    assert "beyond 65504: 'large'" in plan.node["mul"].why
    assert "by a constant: 'm'" in plan.node["softmax"].why
    small = planned(masked(1e4), ranges=seen)
    assert {n for n, mode in modes(small).items() if mode is not Mode.HALF} == set()


def test_a_bound_beyond_float16_bounds_as_little_as_before() -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["a"], "mm"),
        node("Clip", ["a", "low", "high"], ["c"], "clip"),
        node("MatMul", ["c", "u"], ["y"], "end"),
    ]
    held = {"w": weight(16, 16), "u": weight(16, 16)}
    held |= {"low": np.array(0, np.float32), "high": np.array(3e38, np.float32)}
    plan = planned(model(graph(nodes, {"x": [2, 16]}, {"y": None}, held)))
    assert plan.node["clip"].mode is Mode.HALF
    assert "high" in plan.half


def test_nothing_without_a_product_around_it() -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["a"], "mm"),
        node("Relu", ["a"], ["b"], "relu"),
        node("Neg", ["z"], ["n"], "neg"),
        node("Exp", ["n"], ["e"], "exp"),
    ]
    proto = model(
        graph(nodes, {"x": [2, 16], "z": [4]}, {"b": None, "e": None}, {"w": weight(16, 16)})
    )
    plan = planned(proto)
    assert {n for n, mode in modes(plan).items() if mode is Mode.HALF} == {"mm", "relu"}
    assert plan.node["neg"].why == plan.node["exp"].why == "nothing around it multiplies in float16"


def test_operators_without_float_results_read_what_is_there() -> None:
    nodes = [
        node("Shape", ["x"], ["sx"], "of_input"),
        node("MatMul", ["x", "w"], ["a"], "mm"),
        node("Shape", ["a"], ["sa"], "of_half"),
        node("ArgMax", ["a"], ["i"], "argmax"),
    ]
    types = dict.fromkeys(("sx", "sa", "i"), TensorProto.INT64)
    outputs = {**dict.fromkeys(types), "a": None}
    proto = model(graph(nodes, {"x": [2, 16]}, outputs, {"w": weight(16, 16)}, types=types))
    assert {n for n, mode in modes(planned(proto)).items() if mode is Mode.HALF} == {
        *("mm", "of_half", "argmax")
    }


def test_a_cast_makes_what_its_readers_want() -> None:
    nodes = [
        node("Cast", ["i"], ["f"], "for_half", to=TensorProto.FLOAT),
        node("Cast", ["i"], ["g"], "for_both", to=TensorProto.FLOAT),
        node("MatMul", ["f", "w"], ["a"], "mm"),
        node("Mul", ["a", "g"], ["y"], "mul"),
        node("NonMaxSuppression", ["g3", "s"], ["k"], "nms"),
        node("Unsqueeze", ["g", "axis"], ["g3"], "unsqueeze"),
    ]
    nodes[4], nodes[5] = nodes[5], nodes[4]
    types = {"i": TensorProto.INT64, "k": TensorProto.INT64}
    held = {"w": weight(4, 4), "axis": np.array([0])}
    outputs = {"y": None, "k": None}
    proto = model(graph(nodes, {"i": [4, 4], "s": [1, 1, 4]}, outputs, held, types=types))
    plan = planned(proto)
    assert plan.node["for_half"].mode is Mode.HALF
    assert plan.node["nms"].mode is Mode.FLOAT
    assert plan.node["nms"].why == "ONNX has no float16 input for it"


def test_subgraphs_and_other_domains_stay_and_their_weights_are_stored() -> None:
    inner = graph(
        [node("MatMul", ["a", "k"], ["t"], "inside")], {}, {"t": None}, {"k": weight(40, 40)}
    )
    other = graph([node("Neg", ["a"], ["e"], "else")], {}, {"e": None})
    nodes = [
        node("MatMul", ["x", "w"], ["a"], "mm"),
        node("If", ["c"], ["b"], "if", then_branch=inner, else_branch=other),
        node("FusedMatMul", ["b", "f"], ["y"], "fused", domain=MS),
    ]
    held = {"w": weight(40, 40), "f": weight(40, 40)}
    proto = graph(nodes, {"x": [2, 40], "c": []}, {"y": None}, held, types={"c": TensorProto.BOOL})
    plan = planned(model(proto, domains={MS: 1}))
    outside = {"mm": Mode.HALF, "if": Mode.FLOAT, "fused": Mode.STORED}
    assert modes(plan) == {**outside, "inside": Mode.STORED, "else": Mode.FLOAT}
    assert plan.half.keys() == {"w", "k", "f"}
    assert plan.node["inside"].why == "it stands inside of If"
    assert plan.node["fused"].why == "operators of com.microsoft stay float32"
    assert plan.node["if"].why == "it holds a graph of its own"


def test_a_weight_of_both_kinds_of_readers_is_stored_once() -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["a"], "mm"),
        node("FusedMatMul", ["x", "w"], ["b"], "fused", domain=MS),
    ]
    proto = graph(nodes, {"x": [2, 40]}, {"a": None, "b": None}, {"w": weight(40, 40)})
    plan = planned(model(proto, domains={MS: 1}))
    assert [h.tensor for h in plan.halves] == ["w"]
    assert plan.halves[0].why == "it becomes float32 at load"


# ---------------------------------------------------------------------------------------- ends, file, time


def test_inputs_and_outputs_are_halves_where_that_is_asked_for_and_fits() -> None:
    proto = chain("Relu")
    assert planned(proto).half.keys() == {"w", "v"}
    both = Float16Settings(half_inputs=True, half_outputs=True)
    assert planned(proto, both).half.keys() == {"w", "v", "x", "y"}
    found = planned(proto, replace(both, compute=True), ranges={"x": (0.0, 1e6)})
    assert "x" not in found.half
    assert "y" in found.half


def test_bfloat16_is_for_the_file_alone() -> None:
    for name in ("compute", "half_inputs", "half_outputs"):
        with pytest.raises(UsageError, match="bfloat16 is for the file alone"):
            replace(Float16Settings(dtype="bfloat16"), **{name: True})  # type: ignore[arg-type]


def test_a_plan_is_read_as_it_was_written(tmp_path: object) -> None:
    plan = planned(masked(3e38), replace(COMPUTE, half_inputs=True))
    path = f"{tmp_path}/plan.json"
    write_plan(plan, path)
    assert read_plan(path) == plan


def test_static_quantization_does_not_take_it_for_one_of_its_own() -> None:
    with pytest.raises(UsageError, match="one of floats of 16 bits"):
        check_target_of(planned(chain("Relu")), DEFAULT)


def test_planning_takes_work_in_proportion() -> None:
    """Also where one node reads all the others."""

    def calls(count: int) -> int:
        nodes = [node("MatMul", ["x", "w"], ["t0"], "mm")]
        nodes += [node("Relu", [f"t{i}"], [f"t{i + 1}"], f"r{i}") for i in range(count)]
        nodes.append(node("Sum", [f"t{i}" for i in range(count)], ["y"], "sum"))
        half = view_of(model(graph(nodes, {"x": [1, 4]}, {"y": None}, {"w": weight(4, 4)})))
        made = 0

        def counted(_: object, event: str, __: object) -> None:
            nonlocal made
            made += event in {"call", "c_call"}

        sys.setprofile(counted)
        try:
            plan = plan_half(half, COMPUTE, dict.fromkeys(half.floats, FITS))
        finally:
            sys.setprofile(None)
        assert len(plan.nodes) == count + 2
        return made

    calls(30)  # what is made once
    assert calls(2000) < 4.5 * calls(500)


def test_a_constant_knows_its_size() -> None:
    found = FloatConstant(tensor="w", shape=(1, 5, 1), exposed=False, loss=None)
    assert (found.size, found.nbytes, found.is_vector) == (5, 20, True)
    assert not replace(found, shape=(2, 5)).is_vector
    assert replace(found, shape=()).is_vector
