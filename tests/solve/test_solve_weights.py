"""Integers of weights: within their limits, and no worse than rounding to nearest."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from builders import Array, graph, model, node, rng, run, weight
from hypothesis import given, settings
from hypothesis import strategies as st
from pair_limits import is_within
from static_cases import IMAGE, Ready, X, conv, conv_weights, ready, seen_ranges

import quantkit
from calibrators import PatchMoments, Window
from quantkit.calibration import Calibration
from quantkit.model.graph.products import Layout, Product, products_of
from quantkit.numerics.dtypes import INT4, INT8, INT16, UINT4, UINT8, UINT16, IntType
from quantkit.numerics.pairs import FREE, PAIRED
from quantkit.numerics.second_order import output_error
from quantkit.numerics.weights import dequantize_weight, fit, quantize_weight
from quantkit.quantize.emit import emit_static
from quantkit.quantize.plan import Plan
from quantkit.quantize.solve.empirical_bias import correct_biases
from quantkit.quantize.solve.weights import Rounding, moment_requests, solve, solve_weight
from quantkit.spec import PerAxis, PerTensor, QuantSpec

CONV = Layout(shape=(6, 3, 3, 3), channel=0, summed=(2, 3, 1))
DEPTHWISE = Layout(shape=(8, 1, 3, 3), channel=0, summed=(2, 3, 1), group=8)
MATRIX = Layout(shape=(20, 7), channel=1, summed=(0,))
LAYOUTS = {"conv": CONV, "depthwise": DEPTHWISE, "matrix": MATRIX}
PAIRS = QuantSpec(dtype=INT8, granularity=PerAxis(0), symmetric=True, pair_axes=((0,),))
PLAIN = Rounding(second_order=False)


def spec_for(layout: Layout, *, pairs: bool = True, per_tensor: bool = False) -> QuantSpec:
    return replace(
        PAIRS,
        granularity=PerTensor() if per_tensor else PerAxis(layout.channel),
        pair_axes=(layout.summed,) if pairs else (),
    )


def moments_for(layout: Layout, seed: int = 0, count: int = 400) -> PatchMoments:
    """Moments of inputs that have a mean, and that depend on each other."""
    k = layout.inputs
    mixed = rng(seed).standard_normal((layout.group, k, k))
    x = np.maximum(rng(seed + 1).standard_normal((layout.group, count, k)) @ mixed + 1, 0)
    return PatchMoments.of(Window(), count=count, total=x.sum(axis=1), matrix=x.swapaxes(1, 2) @ x)


def error_of(
    array: Array, layout: Layout, moments: PatchMoments, spec: QuantSpec, how: Rounding
) -> float:
    """Return the mean square of the output's error."""
    found, _ = solve_weight(array, spec, layout, moments, how, centred=False)
    restored = dequantize_weight(found.integers, found.qparams)
    error = layout.rows(array.astype(np.float64) - restored)
    return float(output_error(error, moments.second).sum())


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(sorted(LAYOUTS)),
    pairs=st.booleans(),
    per_tensor=st.booleans(),
    how=st.builds(
        Rounding, ranges=st.booleans(), second_order=st.booleans(), adaptive=st.booleans()
    ),
    seed=st.integers(0, 50),
)
def test_integers_keep_to_their_limits(
    *, name: str, pairs: bool, per_tensor: bool, how: Rounding, seed: int
) -> None:
    layout = LAYOUTS[name]
    spec = spec_for(layout, pairs=pairs, per_tensor=per_tensor)
    array = rng(seed).standard_t(2, layout.shape).astype(np.float32)
    moments = moments_for(layout, seed)
    found, shift = solve_weight(array, spec, layout, moments, how, centred=True)
    assert found.integers.dtype == np.int8
    assert found.integers.shape == layout.shape
    assert is_within(layout.rows(found.integers), PAIRED if pairs else FREE)
    channels = layout.shape[layout.channel]
    assert found.qparams.scale.shape == (() if per_tensor else (channels,))
    assert found.qparams.scale.dtype == np.float32
    assert (found.qparams.scale > 0).all()
    assert not found.qparams.zero_point.any()
    error = layout.rows(array - dequantize_weight(found.integers, found.qparams))
    means = np.einsum("gnk,gk->gn", error, moments.mean).reshape(-1)
    np.testing.assert_allclose(shift, means, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", sorted(LAYOUTS))
@pytest.mark.parametrize("pairs", [False, True])
def test_a_channel_of_zeros_does_not_widen_the_scale_of_all(name: str, *, pairs: bool) -> None:
    layout = LAYOUTS[name]
    array = 1e-2 * weight(*layout.shape)
    np.moveaxis(array, layout.channel, 0)[0] = 0
    spec, moments = spec_for(layout, pairs=pairs, per_tensor=True), moments_for(layout)
    found, _ = solve_weight(array, spec, layout, moments, PLAIN, centred=True)
    assert found.qparams.scale <= 2.1 * np.abs(array).max() / 127
    nothing, _ = solve_weight(0 * array, spec, layout, moments, PLAIN, centred=True)
    assert not nothing.integers.any()


@settings(max_examples=15, deadline=None)
@given(name=st.sampled_from(sorted(LAYOUTS)), per_tensor=st.booleans(), seed=st.integers(0, 50))
def test_unsigned_integers_are_the_signed_ones_beside_128(
    *, name: str, per_tensor: bool, seed: int
) -> None:
    layout = LAYOUTS[name]
    signed = spec_for(layout, pairs=False, per_tensor=per_tensor)
    array = weight(*layout.shape, seed=seed)
    moments = moments_for(layout)
    mine, _ = solve_weight(array, signed, layout, moments, Rounding(), centred=False)
    unsigned = replace(signed, dtype=UINT8)
    its, _ = solve_weight(array, unsigned, layout, moments, Rounding(), centred=False)
    assert its.integers.dtype == np.uint8
    assert (its.qparams.zero_point == 128).all()
    assert np.array_equal(its.integers.astype(int) - 128, mine.integers)
    assert np.array_equal(its.qparams.scale, mine.qparams.scale)


@pytest.mark.parametrize("pairs", [True, False])
@pytest.mark.parametrize("name", sorted(LAYOUTS))
def test_each_step_leaves_less_error_than_the_one_before(name: str, *, pairs: bool) -> None:
    layout = LAYOUTS[name]
    spec = spec_for(layout, pairs=pairs)
    totals = np.zeros(3)
    for seed in range(8):
        array, moments = weight(*layout.shape, seed=seed), moments_for(layout, seed, 4000)
        steps = (PLAIN, Rounding(), Rounding(adaptive=True))
        totals += [error_of(array, layout, moments, spec, how) for how in steps]
    assert totals[1] < 0.9 * totals[0]
    assert totals[2] < totals[1]


def test_a_weight_of_zeros_stays_zero() -> None:
    for how in (PLAIN, Rounding(), Rounding(ranges=True, adaptive=True)):
        found, shift = solve_weight(
            np.zeros(CONV.shape, np.float32), spec_for(CONV), CONV, None, how, centred=False
        )
        assert not found.integers.any()
        assert not shift.any()
        assert (found.qparams.scale == 1).all()


def test_inputs_that_are_always_zero_do_no_harm() -> None:
    k = MATRIX.inputs
    nothing = PatchMoments.of(Window(), count=9, total=np.zeros((1, k)), matrix=np.zeros((1, k, k)))
    found, shift = solve_weight(
        weight(*MATRIX.shape), spec_for(MATRIX), MATRIX, nothing, Rounding(), centred=True
    )
    assert is_within(MATRIX.rows(found.integers), PAIRED)
    assert not shift.any()


# Whole models.


def two_convs(*, bias: bool = True) -> onnx.ModelProto:
    nodes = [
        conv("x", "a", "c1"),
        node("Relu", ["a"], ["b"], "relu"),
        conv("b", "y", "c2"),
    ]
    weights = conv_weights("c1", "c2")
    if not bias:
        for item in nodes:
            del item.input[2:]
        weights = {k: v for k, v in weights.items() if k.endswith("_w")}
    return model(graph(nodes, IMAGE, {"y": None}, weights))


def case(
    proto: onnx.ModelProto, feed: Array, folder: Path
) -> tuple[Ready, Plan, tuple[Product, ...], Calibration]:
    prepared = ready(proto)
    found = products_of(prepared.view)
    samples = {"x": np.concatenate([feed, feed[:, ::-1]])} if feed.ndim > 2 else {"x": feed}
    seen = quantkit.calibrate(
        proto, samples, folder / "c.calibration", requests=moment_requests(found), workers=1
    )
    return prepared, prepared.plan(seen_ranges(prepared, {"x": feed})), found, seen


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
def test_every_weight_and_bias_of_a_plan_is_solved(
    tmp_path: Path, *, bias: bool, workers: int
) -> None:
    prepared, plan, found, seen = case(two_convs(bias=bias), X, tmp_path)
    done = solve(prepared.model, plan, found, seen, Rounding(), workers=workers)
    assert set(done.weights) == {"c1_w", "c2_w"}
    assert set(done.biases) == {"c1", "c2"}
    for product in found:
        assert is_within(product.layout.rows(done.weights[product.weight].integers), PAIRED)
    alone = solve(prepared.model, plan, found, seen, Rounding(), bias=False)
    assert not alone.biases
    blind = solve(prepared.model, plan, found, None, Rounding())
    assert set(blind.weights) == {"c1_w", "c2_w"}
    assert not blind.biases  # nothing is known of what they would correct


def test_a_shared_weight_is_not_solved(tmp_path: Path) -> None:
    nodes = [conv("x", "a", "c1"), conv("a", "y", "c2")]
    nodes[1].input[1] = "c1_w"
    proto = model(graph(nodes, IMAGE, {"y": None}, conv_weights("c1", "c2")))
    prepared, plan, found, seen = case(proto, X, tmp_path)
    done = solve(prepared.model, plan, found, seen, Rounding())
    assert not done.weights
    assert not done.biases


@pytest.mark.parametrize("alpha", [1.0, 0.25])
@pytest.mark.parametrize("bias", [True, False])
def test_a_corrected_bias_keeps_the_mean_of_a_gemm(
    tmp_path: Path, *, bias: bool, alpha: float
) -> None:
    x = (rng().standard_normal((300, 16)) + 2).astype(np.float32)
    operands = ["x", "w", "b"] if bias else ["x", "w"]
    gemm = node("Gemm", operands, ["y"], "p", alpha=alpha, beta=3.0)
    weights = {"w": weight(16, 5)} | ({"b": weight(5)} if bias else {})
    proto = model(graph([gemm], {"x": ["N", 16]}, {"y": None}, weights))
    prepared, plan, found, seen = case(proto, x, tmp_path)
    done = solve(prepared.model, plan, found, seen, PLAIN)
    restored = dequantize_weight(done.weights["w"].integers, done.weights["w"].qparams)
    (expected,) = run(proto, {"x": x})
    actual = alpha * x @ restored + done.biases["p"]
    uncorrected = alpha * x @ restored + 3 * weights.get("b", np.zeros(5, np.float32))
    off = np.abs((actual - expected).mean(axis=0)).max()
    assert off < 0.02 * np.abs((uncorrected - expected).mean(axis=0)).max()


def off_by(proto: ir.Model, feeds: Array, expected: Array) -> Array:
    (y,) = run(ir.to_proto(proto), {"x": feeds})
    difference: Array = (y - expected).mean(axis=(0, 2, 3), dtype=np.float64)
    return difference


@pytest.mark.parametrize("clip", [False, True])
def test_biases_corrected_by_running_keep_the_mean_of_each_channel(
    tmp_path: Path, *, clip: bool
) -> None:
    proto = two_convs()
    if clip:
        proto.graph.node[1].op_type = "Clip"
        proto.graph.node[1].input.extend(["low", "high"])
        for name, value in (("low", 0.0), ("high", 1.0)):
            proto.graph.initializer.append(
                onnx.numpy_helper.from_array(np.array(value, np.float32), name)
            )
    x = rng(3).standard_normal((6, 8, 6, 6)).astype(np.float32)
    proto.graph.input[0].CopyFrom(onnx.helper.make_tensor_value_info("x", 1, ["N", 8, 6, 6]))
    prepared, plan, found, seen = case(proto, x, tmp_path)
    before = solve(prepared.model, plan, found, seen, Rounding(), bias=True)
    told: list[str] = []
    untouched = ir.to_proto(prepared.model).SerializeToString()
    after = correct_biases(prepared.model, plan, before, [{"x": x}], told.append)
    assert len(told) == len(after.biases) == 2
    assert ir.to_proto(prepared.model).SerializeToString() == untouched
    assert after.weights is before.weights
    (expected,) = run(proto, {"x": x})
    errors = []
    for done in (before, after):
        emitted = prepared.model.clone()
        emit_static(emitted, plan, done)
        errors.append(np.abs(off_by(emitted, x, expected)).max())
    assert errors[1] < errors[0]
    step = plan.activation["y"].scale
    assert errors[1] < 0.1 * step


def test_without_biases_or_samples_nothing_is_corrected(tmp_path: Path) -> None:
    x = rng().standard_normal((20, 16)).astype(np.float32)
    product = node("MatMul", ["x", "w"], ["y"], "p")
    proto = model(graph([product], {"x": ["N", 16]}, {"y": None}, {"w": weight(16, 5)}))
    prepared, plan, found, seen = case(proto, x, tmp_path)
    done = solve(prepared.model, plan, found, seen, Rounding())
    assert correct_biases(prepared.model, plan, done, [{"x": x}]) is done
    prepared, plan, found, seen = case(two_convs(), X, tmp_path)
    done = solve(prepared.model, plan, found, seen, Rounding())
    assert correct_biases(prepared.model, plan, done, []) is done


@pytest.mark.parametrize("per_tensor", [False, True])
@pytest.mark.parametrize("dtype", [INT4, UINT4, UINT8, INT16, UINT16], ids=lambda t: t.name)
def test_whole_grids_are_solved_at_their_own_scale(dtype: IntType, *, per_tensor: bool) -> None:
    layout = LAYOUTS["matrix"]
    granularity = PerTensor() if per_tensor else PerAxis(layout.channel)
    spec = QuantSpec(dtype=dtype, granularity=granularity, symmetric=True, whole=True)
    array = rng(1).standard_normal(layout.shape).astype(np.float32)
    moments = moments_for(layout, 1)
    found, _ = solve_weight(array, spec, layout, moments, Rounding(), centred=False)
    plain = fit(array, spec)
    np.testing.assert_array_equal(found.qparams.scale, plain.scale)
    np.testing.assert_array_equal(found.qparams.zero_point, plain.zero_point)
    assert found.integers.dtype == dtype.storage
    assert found.integers.min() >= spec.qmin
    assert found.integers.max() <= spec.qmax

    def loss(q: Any) -> float:
        error = layout.rows(array - dequantize_weight(q, plain).astype(np.float64))
        return float(output_error(error, moments.second).sum())

    assert loss(found.integers) <= loss(quantize_weight(array, plain)) * 1.0001
