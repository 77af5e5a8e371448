"""Equalization: which tensors can be evened out, and that outputs stay."""

from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from builders import Array, graph, initializers, model, node, rng, run, weight
from hypothesis import given, settings
from hypothesis import strategies as st
from static_cases import IMAGE, X, conv, conv_weights, ready

from calibrators import ChannelExtremes
from quantkit.model.graph.products import products_of
from quantkit.numerics.grids import lossless_rows
from quantkit.quantize.rewrite.equalize import Group, equalize, extreme_requests, groups_of

BOUNDS = {"low": np.array(0, np.float32), "high": np.array(6, np.float32)}


def net(
    *nodes: onnx.NodeProto, weights: Mapping[str, Array] | None = None, outputs: str = "y"
) -> onnx.ModelProto:
    """Convolutions c1, c2, c3 of eight channels whose sizes differ a hundredfold."""
    sizes = np.logspace(0, -2, 8, dtype=np.float32)
    found = conv_weights("c1", "c2", "c3")
    for name in ("c1", "c2"):
        found[f"{name}_w"] *= sizes[:, np.newaxis, np.newaxis, np.newaxis]
        found[f"{name}_b"] *= sizes
    every = {**found, **(weights or {})}
    used = {name for item in nodes for name in item.input}
    constants = {k: v for k, v in every.items() if k in used}
    return model(graph(nodes, IMAGE, dict.fromkeys(outputs.split(), None), constants))


def groups(proto: onnx.ModelProto) -> list[Group]:
    prepared = ready(proto)
    return groups_of(prepared.view, products_of(prepared.view))


def names(proto: onnx.ModelProto) -> list[tuple[str, str, str]]:
    """Return tensors, makers and readers of each group, as words."""
    return [
        (
            " ".join(sorted(g.tensors)),
            " ".join(p.node for p in g.makers),
            " ".join(p.node for p in g.readers),
        )
        for g in groups(proto)
    ]


def equalized(proto: onnx.ModelProto, x: Array) -> tuple[onnx.ModelProto, int]:
    prepared = ready(proto)
    found = groups_of(prepared.view, products_of(prepared.view))
    tapped = ir.to_proto(prepared.model)
    asked = [r.tensor for r in extreme_requests(found)]
    tapped.graph.output.extend(onnx.ValueInfoProto(name=name) for name in asked)
    largest = {}
    values = run(tapped, {"x": x}, optimize=False)[len(proto.graph.output) :]
    for name, array in zip(asked, values, strict=True):
        seen = ChannelExtremes(1)
        seen.observe(array)
        largest[name] = seen.largest
    done = equalize(prepared.model, found, largest)
    return ir.to_proto(prepared.model), len(done)


def check_same(before: onnx.ModelProto, after: onnx.ModelProto, x: Array) -> None:
    for optimize in (True, False):
        for a, b in zip(
            run(before, {"x": x}), run(after, {"x": x}, optimize=optimize), strict=True
        ):
            np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-4 * float(np.abs(a).max()))


def relu(source: str, result: str, name: str = "relu") -> onnx.NodeProto:
    return node("Relu", [source], [result], name)


def clip(source: str, result: str) -> onnx.NodeProto:
    return node("Clip", [source, "low", "high"], [result], "clip")


def depthwise(source: str, result: str) -> onnx.NodeProto:
    return node("Conv", [source, "dw", "db"], [result], "d", pads=[1] * 4, group=8)


DEPTHWISE = {"dw": weight(8, 1, 3, 3, seed=7), "db": weight(8, seed=8)}


def chain(*between: onnx.NodeProto, weights: Mapping[str, Array] | None = None) -> onnx.ModelProto:
    return net(conv("x", "a", "c1"), *between, conv("b", "y", "c2"), weights=weights)


EQUAL = {
    "linear": net(conv("x", "b", "c1"), conv("b", "y", "c2")),
    "relu": chain(relu("a", "b")),
    "clip": chain(clip("a", "b"), weights=BOUNDS),
    "maxpool": chain(node("MaxPool", ["a"], ["b"], "pool", kernel_shape=[2, 2])),
    "maxpool with indices": chain(
        node("MaxPool", ["a"], ["b", "places"], "pool", kernel_shape=[2, 2]),
        node("Cast", ["places"], ["cast"], "cast", to=1),
        node("ReduceMean", ["cast"], ["mean"], "mean"),
    ),
    "leaky": chain(node("LeakyRelu", ["a"], ["b"], "leaky")),
    "the larger of it and of it times slopes": chain(
        node("Mul", ["a", "k"], ["s"], "mul"),
        node("Max", ["a", "s"], ["b"], "max"),
        weights={"k": weight(8, 1, 1)},
    ),
    "average": chain(
        relu("a", "r"), node("AveragePool", ["r"], ["b"], "p", kernel_shape=[3, 3], pads=[1] * 4)
    ),
    "depthwise": net(
        conv("x", "a", "c1"),
        relu("a", "b"),
        depthwise("b", "e"),
        relu("e", "f", "r2"),
        conv("f", "y", "c2"),
        weights=DEPTHWISE,
    ),
    "depthwise with two outputs a channel": net(
        conv("x", "a", "c1"),
        relu("a", "b"),
        depthwise("b", "e"),
        relu("e", "f", "r2"),
        node("Conv", ["f", "pw"], ["y"], "p"),
        weights={"dw": weight(16, 1, 3, 3, seed=7), "db": weight(16), "pw": weight(8, 16, 1, 1)},
    ),
    "residual": net(
        conv("x", "a", "c1"),
        relu("a", "b"),
        conv("b", "e", "c2"),
        node("Add", ["b", "e"], ["f"], "add"),
        relu("f", "g", "r2"),
        conv("g", "y", "c3"),
    ),
}


def test_a_linear_or_relu_or_clip_link_is_one_group() -> None:
    assert names(EQUAL["linear"]) == [("b", "c1", "c2")]
    assert names(EQUAL["relu"]) == [("b", "c1", "c2")]
    assert names(EQUAL["clip"]) == [("b", "c1", "c2")]
    assert groups(EQUAL["clip"])[0].bound == 6
    assert groups(EQUAL["relu"])[0].bound == np.inf


def test_a_depthwise_conv_is_reader_of_one_group_and_maker_of_the_next() -> None:
    assert names(EQUAL["depthwise"]) == [("b", "c1", "d"), ("f", "d", "c2")]


def test_an_addition_ties_its_tensors_together() -> None:
    assert names(EQUAL["residual"]) == [("b e g", "c1 c2", "c2 c3")]


@pytest.mark.parametrize("case", EQUAL)
def test_outputs_stay_and_channels_become_even(case: str) -> None:
    after, count = equalized(EQUAL[case], X)
    assert count == len(groups(EQUAL[case])) > 0
    check_same(EQUAL[case], after, X)
    for key in ("x", "y"):
        assert key in {v.name for v in (*after.graph.input, *after.graph.output)}


def test_the_largest_and_smallest_channel_come_closer() -> None:
    def spread(proto: onnx.ModelProto) -> float:
        tapped = onnx.ModelProto()
        tapped.CopyFrom(proto)
        tapped.graph.output.append(onnx.ValueInfoProto(name="b"))
        sizes = np.abs(run(tapped, {"x": X}, optimize=False)[-1]).max(axis=(0, 2, 3))
        return float(sizes.max() / sizes.min())

    before = EQUAL["relu"]
    after, _ = equalized(before, X)
    assert spread(after) < spread(before) / 7  # factors are at least 1/8


def test_before_a_depthwise_conv_channels_become_alike_and_before_a_dense_one_half_so() -> None:
    sizes = np.array([8, 4, 2, 4, 8, 4, 2, 4], np.float64)
    after = {}
    for name in ("depthwise", "relu"):
        group = groups(EQUAL[name])[0]
        divided = equalize(ir.from_proto(EQUAL[name]), [group], {"b": sizes})[0].divisor.values
        after[name] = sizes / divided
    assert np.ptp(after["depthwise"]) < 0.1
    np.testing.assert_allclose(after["relu"].max() / after["relu"].min(), 2, rtol=0.02)


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(sorted(EQUAL)), st.integers(0, 1000))
def test_outputs_stay_also_on_data_that_was_not_seen(case: str, seed: int) -> None:
    after, _ = equalized(EQUAL[case], X)
    # Below what was seen in every channel, so that no Clip is reached.
    check_same(EQUAL[case], after, (X * rng(seed).random()).astype(np.float32))


def test_a_clip_that_was_seen_to_clip_is_left_alone() -> None:
    for size in (20, 1000):
        after, count = equalized(EQUAL["clip"], X * np.float32(size))
        assert count == 0
        check_same(EQUAL["clip"], after, X * np.float32(size))


def test_a_clip_in_which_most_channels_are_silent_is_left_alone_too() -> None:
    group = Group(tensors=["b"], makers=[], readers=[], bound=6.0)
    silent = np.array([0, 0, 0, 0, 0, 0, 0, 6.0])
    assert equalize(ir.from_proto(EQUAL["clip"]), [group], {"b": silent}) == ()


SPOILED = {
    "tanh": chain(node("Tanh", ["a"], ["b"], "tanh")),
    "a product with a constant of more axes": chain(
        node("Mul", ["a", "k"], ["b"], "mul"), weights={"k": weight(8, 1, 1, 1)}
    ),
    "clip not from zero": chain(clip("a", "b"), weights=BOUNDS | {"low": np.array(-1, np.float32)}),
    "sum with a constant": chain(
        node("Add", ["a", "k"], ["b"], "add"), weights={"k": weight(1, 8, 6, 6)}
    ),
    "sum with the input": chain(node("Add", ["a", "x"], ["b"], "add")),
    "twice the same": chain(node("Add", ["a", "a"], ["b"], "add")),
    "a gate": chain(
        node("Sigmoid", ["a"], ["s"], "sigmoid"), node("Mul", ["a", "s"], ["b"], "mul")
    ),
    "a result": net(conv("x", "b", "c1"), conv("b", "y", "c2"), outputs="y b"),
    "a result before Relu": net(
        conv("x", "a", "c1"), relu("a", "b"), conv("b", "y", "c2"), outputs="y a"
    ),
    "another reader": net(
        conv("x", "b", "c1"),
        conv("b", "y", "c2"),
        node("Tanh", ["b"], ["t"], "tanh"),
        outputs="y t",
    ),
    "groups of several channels": net(
        conv("x", "b", "c1"),
        node("Conv", ["b", "gw"], ["y"], "g", group=2),
        weights={"gw": weight(8, 4, 3, 3)},
    ),
}


@pytest.mark.parametrize("case", SPOILED)
def test_what_lets_no_factor_through_spoils_its_group(case: str) -> None:
    assert names(SPOILED[case]) == []
    after, count = equalized(SPOILED[case], X)
    assert count == 0
    check_same(SPOILED[case], after, X)


def sharing(slot: int, name: str) -> onnx.ModelProto:
    """c1 -> Relu -> c2, and c3 of the input, which shares a constant with c1."""
    nodes = [conv("x", "a", "c1"), relu("a", "b"), conv("b", "y", "c2"), conv("x", "z", "c3")]
    nodes[3].input[slot] = name
    return net(*nodes, outputs="y z")


@pytest.mark.parametrize(
    "proto",
    [sharing(1, "c1_w"), sharing(2, "c1_b"), sharing(1, "c2_w")],
    ids=["maker's weight", "maker's bias", "reader's weight"],
)
def test_constants_that_another_node_reads_are_not_scaled(proto: onnx.ModelProto) -> None:
    after, count = equalized(proto, X)
    assert count == 0
    check_same(proto, after, X)


def test_two_layers_with_one_weight_are_not_scaled_twice() -> None:
    nodes = [conv("x", "a", "c1"), relu("a", "b"), conv("b", "e", "c2"), relu("e", "f", "r2")]
    nodes.append(conv("f", "y", "c3"))
    nodes[4].input[1] = "c1_w"
    proto = net(*nodes)
    after, _ = equalized(proto, X)
    check_same(proto, after, X)


def test_a_bias_that_is_computed_is_not_scaled() -> None:
    nodes = [
        node("Abs", ["c1_b"], ["computed"], "abs"),
        node("Add", ["computed", "s"], ["moved"], "moved"),
        conv("x", "a", "c1"),
        conv("a", "y", "c2"),
    ]
    nodes[2].input[2] = "moved"
    inputs = {**IMAGE, "s": [8]}
    proto = model(graph(nodes, inputs, {"y": None}, conv_weights("c1", "c2")))
    assert groups(proto) == []


def test_channels_that_are_never_on_stay_finite() -> None:
    proto = net(conv("x", "a", "c1"), relu("a", "b"), conv("b", "y", "c2"))
    for item in proto.graph.initializer:
        if item.name in {"c1_w", "c1_b"}:
            array = onnx.numpy_helper.to_array(item).copy()
            array[3] = 0
            item.CopyFrom(onnx.numpy_helper.from_array(array, item.name))
    after, count = equalized(proto, X)
    assert count == 1
    check_same(proto, after, X)


@pytest.mark.parametrize("values", [(-1, 1), (-7, 7)], ids=["ternary", "int4"])
def test_weights_of_few_values_stay_exact_behind_even_channels(values: tuple[int, int]) -> None:
    low, high = values
    few = rng().integers(low, high + 1, (8, 8, 3, 3)).astype(np.float32) * np.float32(0.37)
    before = chain(relu("a", "b"), weights={"c2_w": few})
    after, count = equalized(before, X)
    assert count == 1
    check_same(before, after, X)
    made = initializers(after)["c2_w"]
    assert not np.array_equal(made, few)
    assert lossless_rows(made).all()
