"""The planners' view says what is in a graph, in plain data, and leaves the graph as it is."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from builders import graph, model, node, save, weight
from onnx import TensorProto, helper

from quantkit.model.graph.load import load
from quantkit.model.graph.view import view_of
from quantkit.model.ops.view import View


def view(proto: onnx.ModelProto | Path, **how: Any) -> View:
    return view_of(load(proto).model, **how)


def branching() -> onnx.ModelProto:
    """x -> MatMul -> h; If(c) gives h times another weight, or h."""
    inner = [node("MatMul", ["h", "v"], ["t"], "inner")]
    branches = {
        "then_branch": graph(inner, {}, {"t": None}, {"v": weight(4, 4)}, name="then"),
        "else_branch": graph([node("Relu", ["h"], ["e"], "else")], {}, {"e": None}, name="else"),
    }
    nodes = [
        node("MatMul", ["x", "w"], ["h"], "outer"),
        node("If", ["c"], ["y"], "if", **branches),
    ]
    types = {"c": TensorProto.BOOL}
    inputs = {"x": [1, 4], "c": []}
    return model(graph(nodes, inputs, {"y": None}, {"w": weight(4, 4)}, types=types))


def test_nodes_of_subgraphs_come_after_the_node_that_holds_them_and_say_so() -> None:
    seen = view(branching())
    assert [(n.name, n.in_subgraph) for n in seen.nodes] == [
        ("outer", False),
        ("if", False),
        ("else", True),
        ("inner", True),
    ]
    assert seen.outputs == {"y", "t", "e"}
    assert seen.inputs == ("x", "c")
    assert [seen.nodes[i].name for i in seen.readers["h"]] == ["else", "inner"]
    assert seen.only_reader("h") is None
    assert {w: [u.node for u in fact.uses] for w, fact in seen.weights.items()} == {
        "w": ["outer"],
        "v": ["inner"],
    }
    assert "c" in seen.not_float


def test_a_weight_is_seen_through_the_transpose_that_reads_it() -> None:
    nodes = [
        node("Transpose", ["w"], ["wt"], "turn", perm=[1, 0]),
        node("MatMul", ["x", "wt"], ["y"], "product"),
    ]
    seen = view(model(graph(nodes, {"x": [1, 8]}, {"y": None}, {"w": weight(5, 8)})))
    product = seen.nodes[1]
    assert product.weights == {1: "w"}
    assert product.transposes(1)
    assert product.channel_axis(1, 2) == 0  # of five columns as they are stored
    (use,) = seen.weights["w"].uses
    assert (use.node, use.slot, use.transposed, use.known) == ("product", 1, True, True)


def test_a_gather_of_activations_holds_no_weight() -> None:
    nodes = [
        node("Gather", ["x", "i"], ["a"], "of x"),
        node("Gather", ["table", "i"], ["b"], "of a table"),
    ]
    weights = {"i": np.array([0, 1]), "table": weight(8, 8)}
    seen = view(model(graph(nodes, {"x": [4, 8]}, {"a": None, "b": None}, weights)))
    assert [n.name for n in seen.weighted] == ["of a table"]


def test_a_default_that_can_be_fed_is_a_weight_and_no_constant() -> None:
    nodes = [node("MatMul", ["x", "w"], ["y"], "product")]
    proto = model(graph(nodes, {"x": [1, 4], "w": [4, 4]}, {"y": None}, {"w": weight(4, 4)}))
    seen = view(proto)
    assert seen.weights["w"].exposed
    assert "w" in seen.initializers
    assert "w" not in seen.constants


@pytest.mark.parametrize(
    ("attribute", "ends"),
    [
        ({"value_float": 0.5}, (0.5, 0.5)),
        ({"value_floats": [1.0, -2.0]}, (-2.0, 1.0)),
        ({"value": helper.make_tensor("", TensorProto.FLOAT, [2], [3.0, 4.0])}, (3.0, 4.0)),
        ({"value_int": 3}, (None, None)),
    ],
)
def test_what_constant_nodes_hold_is_constant(
    attribute: dict[str, Any], ends: tuple[float | None, float | None]
) -> None:
    nodes = [node("Constant", [], ["k"], "constant", **attribute)]
    nodes.append(node("Cast", ["k"], ["y"], "use", to=TensorProto.FLOAT))
    found = view(model(graph(nodes, {"x": [1]}, {"y": None}))).constants["k"]
    assert (found.low, found.high) == ends


def test_weights_that_are_not_finite_are_told_unless_they_are_not_read(tmp_path: Path) -> None:
    large = weight(300, 300)
    large[1, 2] = np.nan
    nodes = [node("MatMul", ["x", "w"], ["y"], "product")]
    proto = model(graph(nodes, {"x": [1, 300]}, {"y": None}, {"w": large}))
    assert not view(proto).weights["w"].finite
    assert view(proto, read_weights=False).weights["w"].finite
    path = tmp_path / "m.onnx"
    onnx.save(proto, str(path), save_as_external_data=True, location="gone", size_threshold=0)
    (tmp_path / "gone").unlink()
    assert view(path, read_weights=False).weights["w"].shape == (300, 300)


def test_the_model_is_left_as_it_is(tmp_path: Path) -> None:
    loaded = load(save(branching(), tmp_path / "m.onnx")).model
    before = ir.to_proto(loaded).SerializeToString()
    view_of(loaded)
    assert ir.to_proto(loaded).SerializeToString() == before
