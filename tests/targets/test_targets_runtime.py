"""The data of the CPU targets against onnxruntime: every operator that is listed runs in integers, and no other.

An operator runs in integers if nothing but the ends of the optimized graph converts: one QuantizeLinear
an input, one DequantizeLinear an output.
"""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import fused_ops, graph, initializers, model, node, rng, run, save
from integer_cases import CASES, FLOAT_CASES, SHAPE, STEP_OUT, Case, ints, product, resize, wrapped

from quantkit.numerics.dtypes import INT8, INT16, UINT8, UINT16, IntType
from quantkit.targets import TARGETS, this_machine

CPU = TARGETS["cpu"]
OPSETS = (CPU.min_opset, 21)


def in_integers(proto: onnx.ModelProto, folder: Path) -> bool:
    """Whether conversions are left at the ends of the optimized graph only."""
    found = Counter(fused_ops(save(proto, folder / "m.onnx"), folder))
    ends = (len(proto.graph.input), len(proto.graph.output))
    return found["QuantizeLinear"] == ends[0] and found["DequantizeLinear"] <= ends[1]


def check_values(proto: onnx.ModelProto, step: float) -> None:
    """What runs in integers differs from what is computed in float by a step at most."""
    feeds = {
        i.name: rng().standard_normal([d.dim_value for d in i.type.tensor_type.shape.dim])
        for i in proto.graph.input
    }
    given = {k: v.astype(np.float32) for k, v in feeds.items()}
    for fast, plain in zip(run(proto, given), run(proto, given, optimize=False), strict=True):
        assert np.abs(fast - plain).max() <= step * 1.001


def test_every_operator_has_a_case() -> None:
    assert set(CASES) == CPU.computes | CPU.moves
    assert not set(FLOAT_CASES) & CPU.operators


def with_axes(op: str, case: Case, opset: int) -> Case:
    """Reductions take their axes as an attribute, and as an input from opset 18 (sums: 13) on."""
    if not op.startswith("Reduce"):
        return case
    if opset >= (13 if op == "ReduceSum" else 18):
        return Case(rest=ints(2, 3))
    return Case(attributes={"axes": [2, 3]})


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("dtype", [UINT8, INT8], ids=["uint8", "int8"])
@pytest.mark.parametrize("op", sorted(CPU.computes - CPU.written_as_sums))
def test_computed_operators_have_an_integer_kernel(
    op: str, dtype: IntType, opset: int, tmp_path: Path
) -> None:
    proto = wrapped(op, CASES[op], dtype, shared=False, opset=opset)
    assert in_integers(proto, tmp_path)
    assert f"QLinear{op}" in fused_ops(tmp_path / "m.onnx", tmp_path)
    check_values(proto, STEP_OUT)


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("dtype", [UINT8, INT8], ids=["uint8", "int8"])
@pytest.mark.parametrize("op", sorted(CPU.moves - CPU.bare))
def test_moves_run_on_integers_only_if_the_scale_is_shared(
    op: str, dtype: IntType, opset: int, tmp_path: Path
) -> None:
    case = with_axes(op, CASES[op], opset)
    proto = wrapped(op, case, dtype, shared=True, opset=opset)
    assert in_integers(proto, tmp_path)
    assert op in fused_ops(tmp_path / "m.onnx", tmp_path)
    check_values(proto, 0.0)
    assert not in_integers(wrapped(op, case, dtype, shared=False, opset=opset), tmp_path)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("dtype", [UINT8, INT8], ids=["uint8", "int8"])
def test_a_pad_runs_on_integers_only_if_it_is_written_so(
    mode: str, dtype: IntType, opset: int, tmp_path: Path
) -> None:
    case = replace(CASES["Pad"], attributes={"mode": mode})
    between = wrapped("Pad", case, dtype, shared=True, opset=opset)
    assert not in_integers(between, tmp_path)
    x = rng().standard_normal(SHAPE).astype(np.float32)
    expected = run(between, {"x0": x})[0]
    first, pad, last = between.graph.node[0], between.graph.node[2], between.graph.node[4]
    pad.input[:] = [first.output[0], "rest0", "zero"]
    last.input[0] = pad.output[0]
    bare = graph([first, pad, last], {"x0": SHAPE}, {"y0": None}, initializers(between))
    proto = model(bare, opset=opset, ir_version=10)
    assert in_integers(proto, tmp_path)
    assert (run(proto, {"x0": x})[0] == expected).all()


@pytest.mark.parametrize("dtype", [UINT8, INT8], ids=["uint8", "int8"])
@pytest.mark.parametrize("op", sorted(CPU.written_as_sums | {"Max", "Min"}))
def test_what_is_written_otherwise_runs_in_float_as_it_is(
    op: str, dtype: IntType, tmp_path: Path
) -> None:
    assert not in_integers(wrapped(op, CASES[op], dtype, shared=True, opset=13), tmp_path)


@pytest.mark.parametrize("dtype", [UINT8, INT8], ids=["uint8", "int8"])
@pytest.mark.parametrize("op", sorted(FLOAT_CASES))
def test_operators_that_are_not_listed_run_in_float(
    op: str, dtype: IntType, tmp_path: Path
) -> None:
    case = with_axes(op, FLOAT_CASES[op], CPU.min_opset)
    proto = wrapped(op, case, dtype, shared=True, opset=CPU.min_opset)
    assert not in_integers(proto, tmp_path)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_resize_runs_on_integers_in_mode_nearest_alone(mode: str, tmp_path: Path) -> None:
    assert not in_integers(wrapped("Resize", resize(mode), UINT8, shared=True, opset=13), tmp_path)


@pytest.mark.parametrize("by", ["channel", "tensor"])
@pytest.mark.parametrize("dtype", [UINT8, INT8], ids=["uint8", "int8"])
@pytest.mark.parametrize("op", sorted(CPU.products))
def test_products_run_in_integers(op: str, dtype: IntType, by: str, tmp_path: Path) -> None:
    assert op in CPU.channelwise
    for opset in OPSETS:
        proto = product(op, dtype, channels=by == "channel", opset=opset)
        assert in_integers(proto, tmp_path)
        check_values(proto, STEP_OUT)


@pytest.mark.parametrize("op", sorted(CPU.products))
def test_which_products_need_a_quantized_output(op: str, tmp_path: Path) -> None:
    proto = product(op, UINT8, channels=True, output=False)
    assert in_integers(proto, tmp_path) == (op not in CPU.needs_output)


@pytest.mark.parametrize(
    ("bounds", "scale", "zero", "vanishes"),
    [
        ((0.0, np.inf), STEP_OUT, 0, True),
        ((0.0, np.inf), STEP_OUT, 1, False),
        ((0.0, 6.0), 6 / 255, 0, True),
        ((0.0, 6.0), 5 / 255, 0, True),
        ((0.0, 6.0), 7 / 255, 0, False),
        ((-1.0, 1.0), 1 / 128, 128, True),
        ((-1.0, 1.0), 2 / 255, 128, False),
    ],
)
@pytest.mark.parametrize("op", sorted(CPU.products))
def test_a_bound_vanishes_into_a_product_if_no_integer_lies_outside(
    op: str, bounds: tuple[float, float], scale: float, zero: int, vanishes: object, tmp_path: Path
) -> None:
    proto = product(op, UINT8, channels=True)
    before, after = proto.graph.node[:-2], proto.graph.node[-2:]
    before[-1].output[0] = "unbounded"
    relu = node("Relu", ["unbounded"], ["m"])
    clip = node("Clip", ["unbounded", "low", "high"], ["m"])
    for item in after:
        item.input[1:] = ["bound_scale", "bound_zero"]
    nodes = [*before, relu if bounds[1] == np.inf else clip, *after]
    weights = initializers(proto) | {
        "low": np.array(bounds[0], np.float32),
        "high": np.array(bounds[1], np.float32),
        "bound_scale": np.array(scale, np.float32),
        "bound_zero": np.array(zero, np.uint8),
    }
    shape = [d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim]
    bounded = model(graph(nodes, {"x": shape}, {"y": None}, weights), opset=13)
    assert in_integers(bounded, tmp_path) is vanishes


@pytest.mark.parametrize("dtype", [UINT16, INT16], ids=["uint16", "int16"])
@pytest.mark.parametrize("op", sorted(CPU.products | CPU.computes))
def test_nothing_is_computed_in_integers_of_16_bits(
    op: str, dtype: IntType, tmp_path: Path
) -> None:
    assert not CPU.int16
    proto = (
        product(op, dtype, channels=True, opset=21)
        if op in CPU.products
        else wrapped(op, CASES[op], dtype, shared=False, opset=21)
    )
    assert not in_integers(proto, tmp_path)


def test_this_machine_saturates_as_it_says() -> None:
    expected = this_machine().saturates
    if expected is None:
        pytest.skip("nothing is known of this CPU")
    w = np.full((64, 64), 127, np.int8)
    nodes = [node("MatMulInteger", ["x", "w"], ["y"])]
    proto = model(graph(nodes, {"x": [4, 64]}, {"y": None}, {"w": w}, types={"x": 2, "y": 6}))
    x = np.full((4, 64), 255, np.uint8)
    exact = (run(proto, {"x": x})[0] == 64 * 255 * 127).all()
    assert bool(exact) is not expected
