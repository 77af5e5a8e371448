"""Transposes in a row."""

from itertools import permutations
from typing import Any

import numpy as np
import onnx
import pytest
from builders import graph, node, op_types
from hypothesis import given, settings
from hypothesis import strategies as st
from rewrite.simplify.simplify_cases import OPSETS, assert_kept, both_ways, build, if_graph

PERMUTATIONS = st.sampled_from([None, *permutations(range(3))])


def transposed(source: str, target: str, perm: tuple[int, ...] | None) -> onnx.NodeProto:
    attributes: dict[str, Any] = {} if perm is None else {"perm": list(perm)}
    return node("Transpose", [source], [target], **attributes)


@settings(max_examples=40, deadline=None)
@given(perms=st.lists(PERMUTATIONS, min_size=1, max_size=5))
def test_any_chain_is_at_most_one(perms: list[tuple[int, ...] | None]) -> None:
    nodes = [node("Abs", ["x"], ["v0"])]
    nodes += [transposed(f"v{i}", f"v{i + 1}", p) for i, p in enumerate(perms)]
    nodes += [node("Neg", [f"v{len(perms)}"], ["y"])]
    shape = np.empty((2, 3, 4))
    for p in perms:
        shape = shape.transpose(p)
    proto = build(graph(nodes, {"x": [2, 3, 4]}, {"y": shape.shape}))
    ops = op_types(assert_kept(proto, "transposes", "noops"))
    assert ops.count("Transpose") == (0 if shape.shape == (2, 3, 4) else 1)


@pytest.mark.parametrize("opset", OPSETS)
def test_two_that_cancel_go(opset: int) -> None:
    nodes = [
        node("Transpose", ["x"], ["a"]),
        node("Transpose", ["a"], ["b"]),
        node("Relu", ["b"], ["y"]),
    ]
    proto = build(graph(nodes, {"x": None}, {"y": None}), opset)
    feeds = {"x": np.ones((2, 3, 4), np.float32)}
    assert op_types(assert_kept(proto, "transposes", feeds=feeds)) == ["Relu"]


def test_one_that_others_read_stays_for_them() -> None:
    nodes = [
        node("Transpose", ["x"], ["a"]),
        node("Transpose", ["a"], ["b"]),
        node("Neg", ["b"], ["y"]),
    ]
    proto = build(
        graph([*nodes, node("Neg", ["a"], ["z"])], {"x": [2, 3]}, {"y": [2, 3], "z": [3, 2]})
    )
    assert op_types(assert_kept(proto, "transposes")) == ["Transpose", "Neg", "Neg"]


def test_one_that_others_read_is_not_fused() -> None:
    nodes = [
        node("Transpose", ["x"], ["a"], perm=[1, 2, 0]),
        node("Transpose", ["a"], ["y"], perm=[1, 2, 0]),
    ]
    proto = build(graph(nodes, {"x": [2, 3, 4]}, {"a": [3, 4, 2], "y": [4, 2, 3]}))
    assert op_types(assert_kept(proto, "transposes")) == ["Transpose", "Transpose"]


def test_an_output_keeps_its_name() -> None:
    nodes = [
        node("Abs", ["x"], ["r"]),
        node("Transpose", ["r"], ["a"]),
        node("Transpose", ["a"], ["y"]),
    ]
    result = assert_kept(build(graph(nodes, {"x": [2, 3]}, {"y": [2, 3]})), "transposes")
    assert op_types(result) == ["Abs"]


def test_an_input_does_not_become_an_output() -> None:
    nodes = [node("Transpose", ["x"], ["a"]), node("Transpose", ["a"], ["y"])]
    result = assert_kept(build(graph(nodes, {"x": [2, 3]}, {"y": [2, 3]})), "transposes")
    assert op_types(result) == ["Transpose", "Transpose"]


def test_work_does_not_move_into_a_branch() -> None:
    before = [
        node("Unsqueeze", ["x", "axes"], ["u"]),
        node("Transpose", ["u"], ["o"], perm=[1, 2, 0]),
    ]
    branch = [node("Transpose", ["o"], ["i"], perm=[1, 2, 0]), node("Relu", ["i"], ["t"])]
    proto = build(if_graph(branch, "t", before=before, weights={"axes": np.array([0])}))
    assert op_types(both_ways(proto, "transposes")).count("Transpose") == 2
