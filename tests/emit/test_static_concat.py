"""What is moved together has one scale, which holds the values of all of it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import Array, graph, model, node, run, sqnr, weight
from static_cases import IMAGE, X, conv, conv_weights, modes, planned, why, write

from quantkit.quantize.plan import Mode
from quantkit.settings import StaticSettings, TensorRule
from quantkit.targets import TARGETS

MOVING = ("tensorrt", "openvino", "qnn")  # where a Concat is moved data
FEEDS = {"x": X}


def joined(
    *between: onnx.NodeProto, parts: tuple[str, ...] = ("a", "b"), loud: float = 100.0
) -> onnx.ModelProto:
    """Conv 'ca' makes a, Conv 'cb' makes b, which is `loud` times as large; Concat of `parts` is read by Conv 'cj'."""
    weights: dict[str, Array] = {
        **conv_weights("ca", "cb"),
        "cj_w": weight(8, 8 * len(parts), 1, 1),
    }
    weights["cb_w"] = weights["cb_w"] * np.float32(loud)
    nodes = [conv("x", "a", "ca"), conv("x", "b", "cb"), *between]
    nodes += [node("Concat", parts, ["j"], "join", axis=1)]
    nodes += [node("Conv", ["j", "cj_w"], ["y"], "cj")]
    return model(graph(nodes, IMAGE, {"y": None}, weights))


@pytest.mark.parametrize("parts", [("a", "b"), ("b", "a"), ("a", "b", "a")], ids="".join)
@pytest.mark.parametrize("name", TARGETS)
def test_a_concat_of_small_and_large_values_cuts_nothing_off(
    tmp_path: Path, name: str, parts: tuple[str, ...]
) -> None:
    proto = joined(parts=parts)
    expected = run(proto, FEEDS)[0]
    written = write(proto, tmp_path / "q.onnx", FEEDS, options=StaticSettings(target=name))
    for optimize in (True, False):
        found = run(written.path, FEEDS, optimize=optimize)[0]
        assert sqnr(expected, found) > 25, optimize


@pytest.mark.parametrize("name", MOVING)
def test_all_that_a_concat_joins_has_one_scale(name: str) -> None:
    options = StaticSettings(target=name)
    plan = planned(joined(), options, a=(-1.0, 2.0), b=(-50.0, 100.0))
    assert modes(plan)["join"] is Mode.STATIC
    shared = {(plan.activation[t].scale, plan.activation[t].zero_point) for t in ("a", "b", "j")}
    assert len(shared) == 1
    assert plan.activation["a"].low <= -50 < 100 <= plan.activation["a"].high + 0.5


@pytest.mark.parametrize("name", MOVING)
def test_moves_between_and_concats_of_concats_share_it_as_well(tmp_path: Path, name: str) -> None:
    between = [
        node("MaxPool", ["a"], ["p"], "pool", kernel_shape=[1, 1]),
        node("Concat", ["p", "b"], ["i"], "inner", axis=1),
        node("Split", ["i"], ["s", "t"], "split", axis=1),
    ]
    proto = joined(*between, parts=("t", "s", "b"))
    written = write(proto, tmp_path / "q.onnx", FEEDS, options=StaticSettings(target=name))
    plan = written.plan
    assert {modes(plan)[n] for n in ("pool", "inner", "split", "join")} == {Mode.STATIC}
    assert len({plan.activation[v].scale for v in "apbistj"}) == 1
    expected = run(proto, FEEDS)[0]
    assert sqnr(expected, run(written.path, FEEDS)[0]) > 25
    assert sqnr(expected, run(written.path, FEEDS, optimize=False)[0]) > 25


@pytest.mark.parametrize("name", MOVING)
def test_a_part_that_others_read_keeps_its_steps(tmp_path: Path, name: str) -> None:
    """A scale for hundreds would leave what reads the small values alone three integers."""
    proto = joined(conv("a", "z", "cz"))
    proto.graph.output.append(onnx.ValueInfoProto(name="z"))
    for key, value in conv_weights("cz").items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(value, key))
    written = write(proto, tmp_path / "q.onnx", FEEDS, options=StaticSettings(target=name))
    assert modes(written.plan)["join"] is Mode.FLOAT
    assert "too few integers for 'a', which others read as well" in why(written.plan, "join")
    for optimize in (True, False):
        found = run(written.path, FEEDS, optimize=optimize)
        for exact, made in zip(run(proto, FEEDS), found, strict=True):
            assert sqnr(exact, made) > 25


def test_parts_of_like_ranges_are_shared_whoever_reads_them() -> None:
    proto = joined(conv("a", "z", "ca2"), node("Relu", ["z"], ["r"], "relu"))
    for key, value in conv_weights("ca2").items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(value, key))
    proto.graph.output.append(onnx.ValueInfoProto(name="r"))
    plan = planned(proto, StaticSettings(target="tensorrt"), a=(-1, 1), b=(-4, 4))
    assert modes(plan)["join"] is Mode.STATIC


@pytest.mark.parametrize("name", MOVING)
def test_a_relu_in_front_is_kept_where_the_shared_range_does_not_end_at_0(
    tmp_path: Path, name: str
) -> None:
    proto = joined(node("Relu", ["a"], ["r"], "relu"), parts=("r", "b"), loud=1.0)
    written = write(proto, tmp_path / "q.onnx", FEEDS, options=StaticSettings(target=name))
    assert modes(written.plan)["relu"] is Mode.STATIC
    expected = run(proto, FEEDS)[0]
    for optimize in (True, False):
        assert sqnr(expected, run(written.path, FEEDS, optimize=optimize)[0]) > 25


def test_a_scale_that_the_target_fixes_is_not_shared_with_larger_values() -> None:
    """The NPU's Sigmoid has results in 256ths."""
    options = StaticSettings(target="qnn")
    sigmoid = node("Sigmoid", ["a"], ["s"], "sigmoid")
    plan = planned(joined(sigmoid, parts=("s", "b")), options)
    assert "the scale of 's' is fixed" in why(plan, "join")
    both = planned(joined(sigmoid, parts=("s", "s")), options)
    assert modes(both)["join"] is Mode.STATIC


def test_tensors_of_different_types_are_not_joined_in_integers() -> None:
    wide = (TensorRule(tensor="b", dtype="uint16"),)
    plan = planned(joined(), StaticSettings(target="qnn", tensors=wide))
    assert why(plan, "join") == "'a' and 'b', which it joins, have different types"


@pytest.mark.parametrize("name", MOVING)
def test_a_constant_part_is_written_in_the_shared_scale(tmp_path: Path, name: str) -> None:
    proto = joined(parts=("a", "k"))
    large = weight(1, 8, 6, 6, seed=3, scale=40.0)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(large, "k"))
    written = write(proto, tmp_path / "q.onnx", FEEDS, options=StaticSettings(target=name))
    assert modes(written.plan)["join"] is Mode.STATIC
    expected = run(proto, FEEDS)[0]
    for optimize in (True, False):
        assert sqnr(expected, run(written.path, FEEDS, optimize=optimize)[0]) > 25


def test_values_that_are_written_into_others_are_joined_with_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No target that comes with the product moves these; one of others may."""
    more = {"Max", "ScatterElements"}
    moving = replace(TARGETS["qnn"], name="moving", moves=TARGETS["qnn"].moves | more)
    monkeypatch.setattr("quantkit.targets.registry.TARGETS", {**TARGETS, "moving": moving})
    for made in (
        node("Max", ["a", "b"], ["m"], "max"),
        node("ScatterElements", ["a", "i", "b"], ["m"], "scatter", axis=1),
    ):
        proto = joined(made, parts=("m", "m"))
        proto.graph.initializer.append(
            onnx.numpy_helper.from_array(np.zeros((1, 8, 6, 6), np.int64), "i")
        )
        plan = planned(proto, StaticSettings(target="moving"), a=(-1.0, 1.0), b=(-9.0, 9.0))
        assert len({plan.activation[t].scale for t in "abmj"}) == 1
