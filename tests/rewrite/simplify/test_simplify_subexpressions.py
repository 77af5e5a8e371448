"""Nodes that compute the same become one."""

import numpy as np
import pytest
from builders import graph, node, op_types, weight
from rewrite.simplify.simplify_cases import (
    OPSETS,
    assert_kept,
    both_ways,
    build,
    if_graph,
    simplified,
)


@pytest.mark.parametrize("opset", OPSETS)
def test_chains_that_are_equal_become_one(opset: int) -> None:
    nodes = []
    for side in "ab":
        nodes += [node("Transpose", ["x"], [f"t{side}"], perm=[1, 0])]
        nodes += [node("LeakyRelu", [f"t{side}"], [f"r{side}"], alpha=0.3)]
    proto = build(
        graph([*nodes, node("Add", ["ra", "rb"], ["y"])], {"x": [2, 3]}, {"y": [3, 2]}), opset
    )
    assert op_types(assert_kept(proto, "subexpressions")) == ["Transpose", "LeakyRelu", "Add"]


@pytest.mark.parametrize(
    "second",
    [
        node("LeakyRelu", ["x"], ["b"], alpha=0.4),
        node("Elu", ["x"], ["b"], alpha=0.3),
        node("LeakyRelu", ["z"], ["b"], alpha=0.3),
        node("LeakyRelu", ["x"], ["b"]),
    ],
    ids=["attribute", "operator", "input", "default"],
)
def test_what_differs_stays(second: object) -> None:
    nodes = [node("LeakyRelu", ["x"], ["a"], alpha=0.3), second, node("Add", ["a", "b"], ["y"])]
    proto = build(graph(nodes, {"x": [3], "z": [3]}, {"y": [3]}))  # type: ignore[arg-type]
    assert len(op_types(assert_kept(proto, "subexpressions"))) == 3


@pytest.mark.parametrize(("terms", "left"), [(100, 2), (1100, 1101)])
def test_terms_of_a_sum_of_thousands_stay(terms: int, left: int) -> None:
    """Each that changed would cost as much as all: 100,000 equal ones took longer than an hour."""
    made = [f"r{i}" for i in range(terms)]
    nodes = [*(node("Relu", ["x"], [r]) for r in made), node("Sum", made, ["y"])]
    proto = build(graph(nodes, {"x": [3]}, {"y": [3]}))
    assert len(op_types(assert_kept(proto, "subexpressions"))) == left


def test_random_numbers_are_drawn_twice() -> None:
    nodes = [node("RandomNormalLike", ["x"], ["a"]), node("RandomNormalLike", ["x"], ["b"])]
    nodes += [node("Bernoulli", ["x"], ["c"]), node("Bernoulli", ["x"], ["d"])]
    nodes += [node("Sum", ["a", "b", "c", "d"], ["y"])]
    result, _ = simplified(build(graph(nodes, {"x": [3]}, {"y": [3]})), "subexpressions")
    assert len(op_types(result)) == 5


def test_two_outputs_stay_two() -> None:
    nodes = [node("Relu", ["x"], ["y"]), node("Relu", ["x"], ["z"]), node("Relu", ["x"], ["a"])]
    nodes += [node("Neg", ["a"], ["n"])]
    proto = build(graph(nodes, {"x": [3]}, {"y": [3], "z": [3], "n": [3]}))
    assert op_types(assert_kept(proto, "subexpressions")) == ["Relu", "Relu", "Neg"]


def test_an_output_that_comes_second_keeps_its_name() -> None:
    nodes = [node("Relu", ["x"], ["a"]), node("Neg", ["a"], ["n"]), node("Relu", ["x"], ["y"])]
    proto = build(graph(nodes, {"x": [3]}, {"n": [3], "y": [3]}))
    assert op_types(assert_kept(proto, "subexpressions")) == ["Relu", "Neg"]


def test_several_outputs() -> None:
    nodes = [node("TopK", ["x", "k"], [f"v{i}", f"i{i}"]) for i in (0, 1)]
    nodes += [node("Add", ["v0", "v1"], ["y"]), node("Gather", ["x", "i1"], ["z"])]
    proto = build(graph(nodes, {"x": [5]}, {"y": None, "z": None}, {"k": np.array([2])}))
    assert op_types(assert_kept(proto, "subexpressions")) == ["TopK", "Add", "Gather"]


def test_an_output_that_only_one_asks_for() -> None:
    nodes = [node("MaxPool", ["x"], ["a"], kernel_shape=[2])]
    nodes += [node("MaxPool", ["x"], ["b", "i"], kernel_shape=[2])]
    nodes += [node("Add", ["a", "b"], ["y"]), node("Cast", ["i"], ["z"], to=1)]
    proto = build(graph(nodes, {"x": [1, 1, 5]}, {"y": None, "z": None}))
    assert op_types(assert_kept(proto, "subexpressions")).count("MaxPool") == 2


def test_graphs_are_apart() -> None:
    outer = [node("Relu", ["x"], ["o"])]
    branch = [
        node("Relu", ["x"], ["a"]),
        node("Relu", ["x"], ["b"]),
        node("Add", ["a", "b"], ["t"]),
    ]
    after = [node("Add", ["y", "o"], ["out"])]
    proto = build(if_graph(branch, "t", before=outer, after=after, output="out"))
    assert op_types(both_ways(proto, "subexpressions")) == [
        "Relu",
        "If",
        "Neg",
        "Relu",
        "Add",
        "Add",
    ]


def test_subgraphs_are_not_compared() -> None:
    one = if_graph([node("Relu", ["x"], ["t"])], "t").node[0]
    two = if_graph([node("Abs", ["x"], ["t"])], "t").node[0]
    two.output[0] = "z"
    two.name = "second"
    proto = if_graph([node("Relu", ["x"], ["t"])], "t")
    del proto.node[:]
    proto.node.extend([one, two, node("Add", ["y", "z"], ["sum"])])
    proto.output[0].name = "sum"
    assert op_types(both_ways(build(proto), "subexpressions")).count("If") == 2


def test_weights_decide_too() -> None:
    nodes = [
        node("MatMul", ["x", "v"], ["a"]),
        node("MatMul", ["x", "w"], ["b"]),
        node("Add", ["a", "b"], ["y"]),
    ]
    held = {"v": weight(3, 3), "w": weight(3, 3)}
    proto = build(graph(nodes, {"x": [2, 3]}, {"y": [2, 3]}, held))
    assert op_types(assert_kept(proto, "subexpressions")).count("MatMul") == 2
    assert op_types(assert_kept(proto, "subexpressions", "initializers")).count("MatMul") == 1
