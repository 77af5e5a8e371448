"""Shape inference: from inputs and constants only, and never in the way."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from builders import graph, model, node, weight
from onnx import TensorProto, helper
from rewrite.simplify.simplify_cases import assert_kept, build, if_graph, simplified

from quantkit.errors import ModelError
from quantkit.model.graph.load import load
from quantkit.model.graph.shapes import dims, known
from quantkit.quantize.rewrite.simplify import PASSES, simplify

shapes = PASSES["shapes"]


def values(built: ir.Model) -> dict[str, ir.Value]:
    return {o.name or "": o for n in built.graph.all_nodes() for o in n.outputs}


def test_values_get_shapes() -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Relu", ["a"], ["b"]),
        node("Neg", ["b"], ["y"]),
    ]
    proto = build(graph(nodes, {"x": ["n", 20]}, {"y": ["n", 30]}, {"w": weight(20, 30)}))
    result = assert_kept(proto, "shapes")
    found = {
        v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in result.graph.value_info
    }
    assert found["a"] == found["b"] == [0, 30]


def test_what_is_declared_inside_is_not_believed_nor_changed() -> None:
    nodes = [node("Relu", ["x"], ["a"]), node("Neg", ["a"], ["y"])]
    proto = graph(nodes, {"x": ["n", 3]}, {"y": None})
    proto.value_info.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, [1, 3]))
    built = load(model(proto)).model
    shapes(built)
    found = values(built)
    assert dims(found["a"]) == (None, 3)
    assert found["a"].shape == ir.Shape([1, 3])


@pytest.mark.parametrize("extent", [0, -1])
def test_exporters_that_write_zero_for_free(extent: int) -> None:
    nodes = [node("Concat", ["x", "x"], ["y"], axis=0)]
    built = load(model(graph(nodes, {"x": [extent, 3]}, {"y": None}))).model
    shapes(built)
    assert dims(values(built)["y"]) == (None, 3)


def test_loops_do_not_keep_the_first_shape() -> None:
    """A body's declared input is what the first iteration sees; here it grows."""
    body = graph(
        [node("Concat", ["h", "h"], ["next"], axis=0), node("Identity", ["go"], ["goes"])],
        {"i": [], "go": [], "h": [1, 3]},
        {"goes": [], "next": [2, 3]},
        name="body",
        types={"i": TensorProto.INT64, "go": TensorProto.BOOL, "goes": TensorProto.BOOL},
    )
    nodes = [node("Loop", ["count", "", "x"], ["y"], body=body)]
    proto = model(graph(nodes, {"x": [1, 3]}, {"y": None}, {"count": np.array(3)}))
    built = load(proto).model
    shapes(built)
    inner = dims(values(built)["next"])
    assert inner is None or inner[0] is None
    assert_kept(proto, *PASSES, feeds={"x": weight(1, 3)})


def test_unknown_operators_are_passed_over() -> None:
    nodes = [node("Strange", ["x"], ["a"], domain="custom"), node("Relu", ["x"], ["b"])]
    built = load(
        model(graph(nodes, {"x": [3]}, {"a": None, "b": None}), domains={"custom": 1})
    ).model
    shapes(built)
    assert known(values(built)["a"]) is None or dims(values(built)["a"]) is None
    assert dims(values(built)["b"]) == (3,)


def test_a_failure_changes_nothing_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise onnx.shape_inference.InferenceError("[ShapeInferenceError] no\nmore")

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", fail)
    proto = build(
        graph([node("Relu", ["x"], ["a"]), node("Identity", ["a"], ["y"])], {"x": [3]}, {"y": [3]})
    )
    built = load(proto).model
    with pytest.raises(ModelError, match=r"Shapes cannot be inferred: \[ShapeInferenceError\] no$"):
        shapes(built)
    report = simplify(built)
    assert report.notes == ("Shapes cannot be inferred: [ShapeInferenceError] no",)
    assert report.changes["identity"] == 1


def test_shapes_inside_branches() -> None:
    proto = build(if_graph([node("Relu", ["x"], ["r"]), node("Neg", ["r"], ["t"])], "t"))
    result, _ = simplified(proto, "shapes")
    chosen = next(a.g for a in result.graph.node[0].attribute if a.name == "then_branch")
    assert [v.name for v in chosen.value_info] == ["r"]
