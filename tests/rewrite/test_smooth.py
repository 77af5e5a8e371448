"""Smoothing: the outputs stay, and channels become even."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from builders import Array, graph, initializers, model, node, rng, run, weight
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrators import ChannelMoments, PatchMoments, Window
from quantkit.calibration.requests import MomentsOf
from quantkit.model.graph.view import view_of
from quantkit.numerics.grids import lossless_rows
from quantkit.quantize.rewrite.smooth import (
    Smoothable,
    Smoothed,
    smooth,
    smoothable,
    smoothing_requests,
)

K, N = 8, 6


def loud(seed: int = 0, channel: int = 3) -> Array:
    """Return data of which one channel is much larger than the others."""
    x = rng(seed).standard_normal((2, 5, K)).astype(np.float32)
    x[..., channel] *= 40
    return x


def found_in(proto: onnx.ModelProto) -> tuple[Smoothable, ...]:
    loaded = ir.from_proto(proto)
    return smoothable(view_of(loaded))


def observed(proto: onnx.ModelProto, x: Array) -> dict[str, ChannelMoments]:
    """Return the moments of what may be smoothed."""
    tapped = onnx.ModelProto()
    tapped.CopyFrom(proto)
    names = [one.tensor for one in found_in(proto)]
    for name in names:
        tapped.graph.output.append(onnx.helper.make_tensor_value_info(name, 1, None))
    seen = {name: ChannelMoments(-1) for name in names}
    for name, array in zip(names, run(tapped, {"x": x})[-len(names) :], strict=True):
        seen[name].observe(array)
    return seen


def smoothed(
    proto: onnx.ModelProto, x: Array, strength: float | None = None
) -> tuple[onnx.ModelProto, tuple[Smoothed, ...]]:
    loaded = ir.from_proto(proto)
    found = smoothable(view_of(loaded))
    done = smooth(loaded, found, observed(proto, x), strength)
    result = ir.to_proto(loaded)
    return result, done


def check_same(before: onnx.ModelProto, after: onnx.ModelProto, x: Array) -> None:
    for optimize in (True, False):
        for a, b in zip(
            run(before, {"x": x}, optimize=optimize),
            run(after, {"x": x}, optimize=optimize),
            strict=True,
        ):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * float(np.abs(a).max()))


def op_types(proto: onnx.ModelProto) -> list[str]:
    return [n.op_type for n in proto.graph.node]


def of(
    nodes: list[onnx.NodeProto], weights: Mapping[str, Array], outputs: Sequence[str] = ("y",)
) -> onnx.ModelProto:
    return model(graph(nodes, {"x": [None, None, K]}, dict.fromkeys(outputs, None), dict(weights)))


def norm(name: str = "n") -> onnx.NodeProto:
    return node("LayerNormalization", ["x", "gamma", "beta"], [name], name="norm", axis=-1)


def gains(seed: int = 0) -> dict[str, Array]:
    """Return a normalization whose channel 3 is loud."""
    gamma = 1 + weight(K, seed=seed)
    gamma[3] = 30
    return {"gamma": gamma, "beta": weight(K, seed=seed + 1)}


def projections() -> list[onnx.NodeProto]:
    return [
        norm(),
        node("MatMul", ["n", "q"], ["query"], name="query"),
        node("MatMul", ["n", "k"], ["key"], name="key"),
        node("Add", ["query", "key"], ["y"], name="sum"),
    ]


QK = {"q": weight(K, N, seed=2), "k": weight(K, N, seed=3)}


def test_a_normalization_that_only_weights_read_takes_the_division() -> None:
    before = of(projections(), {**gains(), **QK})
    after, (done,) = smoothed(before, loud())
    check_same(before, after, loud())
    assert op_types(after) == op_types(before)
    assert done.made == done.tensor == "n"
    assert done.gain > 3
    assert done.scale[3] == done.scale.max()


def test_beside_a_residual_a_product_stands_in_front_of_the_weights_only() -> None:
    nodes = [*projections()[:2], node("Tanh", ["query"], ["bent"], name="tanh")]
    nodes.append(node("MatMul", ["bent", "o"], ["out"], name="out"))
    nodes.append(node("Add", ["out", "n"], ["y"], name="residual"))
    before = of(nodes, {**gains(), "q": QK["q"], "o": weight(N, K, seed=4)})
    after, (done,) = smoothed(before, loud())
    check_same(before, after, loud())
    assert op_types(after).count("Mul") == 1
    assert done.made != done.tensor
    (residual,) = (n for n in after.graph.node if n.name == "residual")
    assert list(residual.input) == ["out", "n"]


def decomposed() -> tuple[list[onnx.NodeProto], dict[str, Array]]:
    nodes = [
        node("ReduceMean", ["x"], ["mean"], axes=[-1]),
        node("Sub", ["x", "mean"], ["centred"]),
        node("Mul", ["centred", "gamma"], ["scaled"], name="scaled"),
        node("Add", ["beta", "scaled"], ["n"], name="shifted"),
    ]
    return nodes, gains()


def test_a_decomposed_normalization_takes_it_too() -> None:
    nodes, weights = decomposed()
    before = of([*nodes, *projections()[1:]], {**weights, **QK})
    (one,) = found_in(before)
    assert [fold.node for fold in one.folds] == ["shifted", "scaled"]
    assert one.stale == ("scaled",)
    after, _ = smoothed(before, loud())
    check_same(before, after, loud())
    assert op_types(after) == op_types(before)


@pytest.mark.parametrize("shared", ["gamma", "beta"])
def test_a_vector_that_others_read_is_copied(shared: str) -> None:
    nodes = [*projections(), node("Add", ["x", shared], ["z"], name="other")]
    before = of(nodes, {**gains(), **QK}, ("y", "z"))
    after, done = smoothed(before, loud())
    assert len(done) == 1
    check_same(before, after, loud())


@pytest.mark.parametrize("trans", [0, 1])
def test_the_product_before_a_relu_takes_it(trans: int) -> None:
    first = weight(K, N, seed=5)
    first[:, 2] *= 50
    weights = {"a": first.T.copy() if trans else first, "b": weight(N, seed=6)}
    nodes = [
        node("Reshape", ["x", "rows"], ["flat"], name="flat"),
        node("Gemm", ["flat", "a", "b"], ["hidden"], name="first", transB=trans),
        node("Relu", ["hidden"], ["positive"], name="relu"),
        node("MatMul", ["positive", "c"], ["y"], name="second"),
    ]
    rows = {"rows": np.array([-1, K])}
    before = of(nodes, {**weights, **rows, "c": weight(N, 4, seed=7)})
    (one,) = found_in(before)
    assert one.tensor == "positive"
    assert one.stale == ("hidden",)
    after, (done,) = smoothed(before, loud())
    assert done.gain > 3
    check_same(before, after, loud())
    assert op_types(after) == op_types(before)


def test_a_weight_read_through_a_transpose() -> None:
    nodes = [
        norm(),
        node("Transpose", ["w"], ["turned"], name="turn", perm=[1, 0]),
        node("MatMul", ["n", "turned"], ["y"], name="product"),
    ]
    before = of(nodes, {**gains(), "w": weight(N, K, seed=8)})
    after, done = smoothed(before, loud())
    assert len(done) == 1
    check_same(before, after, loud())


def test_gelu_keeps_its_form() -> None:
    """A scalar does not become a vector: onnxruntime would no longer see a GELU."""
    nodes = [
        node("Erf", ["x"], ["e"], name="erf"),
        node("Mul", ["x", "e"], ["g"], name="gate"),
        node("Mul", ["g", "half"], ["h"], name="halve"),
        node("MatMul", ["h", "q"], ["y"], name="down"),
    ]
    before = of(nodes, {"half": np.array(0.5, np.float32), "q": QK["q"]})
    after, (done,) = smoothed(before, loud())
    check_same(before, after, loud())
    assert done.made != done.tensor
    half = next(t for t in after.graph.initializer if t.name == "half")
    assert not half.dims


def test_a_shared_weight_an_input_and_an_average_are_left_alone() -> None:
    shared = [norm(), node("MatMul", ["n", "w"], ["a"]), node("MatMul", ["a", "w"], ["y"])]
    assert found_in(of(shared, {**gains(), "w": weight(K, K)})) == ()
    assert found_in(of([node("MatMul", ["x", "q"], ["y"], name="p")], {"q": QK["q"]})) == ()
    pooled = [
        node("ReduceMean", ["x"], ["mean"], axes=[1], keepdims=0),
        node("MatMul", ["mean", "q"], ["y"], name="p"),
    ]
    assert found_in(of(pooled, {"q": QK["q"]})) == ()


def test_what_would_not_gain_is_left_alone() -> None:
    nodes = [*projections(), node("Add", ["n", "beta"], ["z"], name="residual")]
    even = {"gamma": np.ones(K, np.float32), "beta": np.zeros(K, np.float32)}
    x = rng(1).uniform(-1, 1, (2, 400, K)).astype(np.float32)
    weights = {name: np.sign(w) for name, w in QK.items()}
    before = of(nodes, {**even, **weights}, ("y", "z"))
    after, done = smoothed(before, x)
    assert done == ()
    assert after == ir.to_proto(ir.from_proto(before))


def test_what_was_not_observed_is_left_alone() -> None:
    loaded = ir.from_proto(of(projections(), {**gains(), **QK}))
    found = smoothable(view_of(loaded))
    assert smooth(loaded, found, {}) == ()
    (request,) = smoothing_requests(found)
    assert (request.tensor, request.statistic) == ("n", MomentsOf(axis=-1))


def test_range_and_moments_of_the_quotient_follow_from_those_of_the_activation() -> None:
    before = of(projections(), {**gains(), **QK})
    seen = observed(before, loud())["n"]
    after, (done,) = smoothed(before, loud())
    activations = []
    for proto in (before, after):
        proto.graph.output.append(onnx.helper.make_tensor_value_info("n", 1, None))
        activations.append(run(proto, {"x": loud()})[-1])
    quotient = activations[1]
    assert done.range(seen) == pytest.approx((quotient.min(), quotient.max()), rel=1e-4)
    direct, told = (PatchMoments(Window(), 64) for _ in range(2))
    told.observe(activations[0])
    direct.observe(quotient)
    np.testing.assert_allclose(done.moments(told).second, direct.second, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(done.moments(told).mean, direct.mean, rtol=1e-3, atol=1e-4)


@settings(max_examples=20, deadline=None)
@given(
    strength=st.floats(0, 1) | st.none(),
    seed=st.integers(0, 1000),
    silent=st.integers(0, K - 1),
    residual=st.booleans(),
)
def test_outputs_stay_whatever_the_strength(
    strength: float | None, seed: int, silent: int, *, residual: bool
) -> None:
    nodes, outputs = projections(), ["y"]
    if residual:
        nodes, outputs = [*nodes, node("Add", ["n", "beta"], ["z"], name="residual")], ["y", "z"]
    weights = gains(seed)
    weights["gamma"][silent] = weights["beta"][silent] = 0
    before = of(nodes, {**weights, **QK}, outputs)
    x = loud(seed, silent)
    after, done = smoothed(before, x, strength)
    check_same(before, after, x)
    for one in done:
        assert np.isfinite(one.scale).all()
        assert (one.scale > 0).all()
        assert strength is not None or one.gain >= 0


def test_weights_of_few_values_stay_exact() -> None:
    few = {
        name: rng(i).integers(-1, 2, (K, N)).astype(np.float32) * np.float32(0.37)
        for i, name in enumerate(("q", "k"))
    }
    before = of(projections(), {**gains(), **few})
    after, (done,) = smoothed(before, loud())
    check_same(before, after, loud())
    assert done.gain > 3
    made = initializers(after)
    assert all(lossless_rows(made[name].T).all() for name in few)
