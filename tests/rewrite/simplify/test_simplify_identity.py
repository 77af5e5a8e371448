"""Identity goes, names stay."""

import pytest
from builders import graph, node, op_types, weight
from rewrite.simplify.simplify_cases import OPSETS, assert_kept, both_ways, build, if_graph


@pytest.mark.parametrize("opset", OPSETS)
def test_a_chain_goes(opset: int) -> None:
    nodes = [node("Identity", ["x"], ["a"]), node("Identity", ["a"], ["b"])]
    nodes += [node("Relu", ["b"], ["c"]), node("Identity", ["c"], ["y"])]
    result = assert_kept(build(graph(nodes, {"x": [2, 3]}, {"y": [2, 3]}), opset), "identity")
    assert op_types(result) == ["Relu"]
    assert result.graph.node[0].output[0] == "y"


def test_an_input_cannot_take_an_outputs_name() -> None:
    proto = build(graph([node("Identity", ["x"], ["y"])], {"x": [2]}, {"y": [2]}))
    assert op_types(assert_kept(proto, "identity")) == ["Identity"]


def test_two_outputs_of_one_value_stay_two() -> None:
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("Identity", ["a"], ["b"]),
        node("Identity", ["a"], ["c"]),
    ]
    result = assert_kept(
        build(graph(nodes, {"x": [2]}, {"a": [2], "b": [2], "c": [2]})), "identity"
    )
    assert op_types(result) == ["Relu", "Identity", "Identity"]


def test_one_output_takes_the_name_and_the_other_stays() -> None:
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("Identity", ["a"], ["b"]),
        node("Identity", ["a"], ["c"]),
    ]
    result = assert_kept(build(graph(nodes, {"x": [2]}, {"b": [2], "c": [2]})), "identity")
    assert op_types(result) == ["Relu", "Identity"]


def test_an_initializer_that_is_an_output_stays_behind_its_identity() -> None:
    proto = build(graph([node("Identity", ["w"], ["y"])], {}, {"y": [2]}, {"w": weight(2)}))
    assert op_types(assert_kept(proto, "identity")) == ["Identity"]


def test_of_an_outer_value_as_a_branchs_output_it_stays() -> None:
    before = [node("Relu", ["x"], ["outer"])]
    proto = build(if_graph([node("Identity", ["outer"], ["t"])], "t", before=before))
    assert op_types(both_ways(proto, "identity")) == ["Relu", "If", "Neg", "Identity"]


def test_inside_a_branch_it_goes_and_the_outer_value_is_read() -> None:
    before = [node("Identity", ["x"], ["outer"])]
    branch = [
        node("Identity", ["outer"], ["i"]),
        node("Relu", ["i"], ["r"]),
        node("Identity", ["r"], ["t"]),
    ]
    result = both_ways(build(if_graph(branch, "t", before=before)), "identity")
    assert op_types(result) == ["If", "Neg", "Relu"]
