"""All passes together: in a good order, until nothing changes, and right on any graph."""

import numpy as np
import onnx
import pytest
from builders import Array, graph, node, op_types, weight
from graph.cases import MODELS, feeds_for
from hypothesis import given, settings
from hypothesis import strategies as st
from rewrite.simplify.simplify_cases import OPSETS, assert_kept, build, simplified

from quantkit.errors import UsageError
from quantkit.model.graph.load import load
from quantkit.quantize.rewrite.simplify import PASSES, select, simplify


def test_a_report_counts_nodes_and_changes() -> None:
    nodes = [node("Identity", ["x"], ["a"]), node("Relu", ["a"], ["b"]), node("Neg", ["b"], ["y"])]
    _, report = simplified(build(graph(nodes, {"x": [2]}, {"y": [2]})), *PASSES)
    assert report.before == {"Identity": 1, "Neg": 1, "Relu": 1}
    assert report.after == {"Neg": 1, "Relu": 1}
    assert (report.nodes_before, report.nodes_after) == (3, 2)
    assert list(report.changes) == list(PASSES)
    assert {k: v for k, v in report.changes.items() if v} == {"shapes": 2, "identity": 1}
    assert report.changed
    assert report.to_json()["after"] == {"Neg": 1, "Relu": 1}


def test_nothing_to_do_is_one_round() -> None:
    _, report = simplified(
        build(graph([node("Relu", ["x"], ["y"])], {"x": [2]}, {"y": [2]})), *PASSES
    )
    assert (report.rounds, report.changed) == (1, False)


def test_only_chosen_passes_run() -> None:
    nodes = [node("Identity", ["x"], ["a"]), node("Sum", ["a"], ["b"]), node("Neg", ["b"], ["y"])]
    proto = build(graph(nodes, {"x": [2]}, {"y": [2]}))
    result, report = simplified(proto, "noops")
    assert op_types(result) == ["Identity", "Neg"]
    assert list(report.changes) == ["noops"]
    assert not result.graph.value_info, "shapes were inferred, but not asked for"


def test_selection_keeps_the_order_and_knows_near_names() -> None:
    assert select(["noops", "identity"]) == ("identity", "noops")
    assert select(exclude=["shapes"]) == tuple(PASSES)[1:]
    with pytest.raises(UsageError, match="no pass 'batchnorms'; did you mean 'batchnorm'"):
        select(["batchnorms"])
    with pytest.raises(UsageError, match="no pass 'zzz'; there are shapes, identity"):
        select(exclude=["zzz"])


@pytest.mark.parametrize("case", MODELS)
@pytest.mark.parametrize("taken", [True, False])
def test_models_with_subgraphs_and_functions(case: str, *, taken: bool) -> None:
    proto = MODELS[case]()
    assert_kept(proto, *PASSES, feeds=feeds_for(proto, taken=taken), exact=False)


def test_one_pass_makes_work_for_another() -> None:
    """Constants make a Reshape a no-op, whose going makes two Transposes meet, then two equal nodes."""
    nodes = [
        node("Transpose", ["x"], ["t"]),
        node("Shape", ["t"], ["s"]),
        node("Reshape", ["t", "s"], ["r"]),
        node("Transpose", ["r"], ["u"]),
        node("Relu", ["u"], ["a"]),
        node("Relu", ["x"], ["b"]),
        node("Add", ["a", "b"], ["y"]),
    ]
    result = assert_kept(build(graph(nodes, {"x": [2, 3]}, {"y": [2, 3]})), *PASSES)
    assert op_types(result) == ["Relu", "Add"]


def test_a_long_chain_does_not_recurse() -> None:
    nodes = [node("Identity", [f"v{i}"], [f"v{i + 1}"]) for i in range(3000)]
    proto = build(graph([*nodes, node("Relu", ["v3000"], ["y"])], {"v0": [2]}, {"y": [2]}))
    report = simplify(load(proto).model)
    assert (report.nodes_after, report.changes["identity"]) == (1, 3000)


UNARY = (
    "Identity",
    "Relu",
    "Neg",
    "Dropout",
    "Sum",
    "transpose",
    "reshape",
    "zero",
    "one",
    "constant",
)
BINARY = ("Add", "Mul", "Max")
Step = tuple[str, int, int]


def step(op: str, a: str, b: str, out: str) -> onnx.NodeProto:
    match op:
        case "transpose":
            return node("Transpose", [a], [out], perm=[1, 0])
        case "reshape":
            return node("Reshape", [a, "shape"], [out])
        case "zero":
            return node("Add", [a, "zero"], [out])
        case "one":
            return node("Mul", ["one", a], [out])
        case "constant":
            return node("Neg", ["w"], [out])
    return node(op, [a, b] if op in BINARY else [a], [out])


def random_graph(steps: list[Step], outputs: list[int], opset: int) -> onnx.ModelProto:
    """Build a graph of square matrices, each node reading any value before it."""
    nodes: list[onnx.NodeProto] = []
    held: dict[str, Array] = {
        "shape": np.array([3, -1]),
        "zero": np.zeros(3, np.float32),
        "one": np.ones((3, 1), np.float32),
        "w": weight(3, 3),
        "w2": weight(3, 3),
    }
    names = ["x", "w", "w2"]
    for op, first, second in steps:
        a, b, out = names[first % len(names)], names[second % len(names)], f"v{len(names)}"
        nodes.append(step(op, a, b, out))
        names.append(out)
    chosen = [names[3:][i % len(steps)] for i in outputs]
    return build(graph(nodes, {"x": [3, 3]}, {name: [3, 3] for name in chosen}, held), opset)


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(UNARY + BINARY), st.integers(0, 30), st.integers(0, 30)),
        min_size=1,
        max_size=12,
    ),
    outputs=st.lists(st.integers(0, 30), min_size=1, max_size=3),
    opset=st.sampled_from(OPSETS),
)
@pytest.mark.slow
def test_any_graph_keeps_its_results(steps: list[Step], outputs: list[int], opset: int) -> None:
    assert_kept(random_graph(steps, outputs, opset), *PASSES)
