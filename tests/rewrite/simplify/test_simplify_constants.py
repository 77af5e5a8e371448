"""What does not depend on the inputs is computed once, here."""

from typing import Any

import numpy as np
import onnx
import pytest
from builders import Array, graph, initializers, node, op_types, weight
from onnx import TensorProto, numpy_helper
from rewrite.simplify.simplify_cases import (
    OPSETS,
    assert_kept,
    both_ways,
    build,
    if_graph,
    simplified,
)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def constant(name: str, value: Array) -> onnx.NodeProto:
    return node("Constant", [], [name], value=numpy_helper.from_array(value))


def ending(
    nodes: list[onnx.NodeProto],
    weights: dict[str, Array] | None = None,
    *,
    kind: int = 1,
    opset: int = 17,
) -> onnx.ModelProto:
    """Nodes that compute `c`, then y = x + c, cast to float if it is not."""
    held = weights or {}
    if kind == TensorProto.FLOAT:
        return build(
            graph([*nodes, node("Add", ["x", "c"], ["y"])], {"x": [2, 3]}, {"y": None}, held), opset
        )
    nodes = [
        *nodes,
        node("Cast", ["c"], ["f"], to=TensorProto.FLOAT),
        node("Add", ["x", "f"], ["y"]),
    ]
    return build(graph(nodes, {"x": [2, 3]}, {"y": None}, held), opset)


F = weight(2, 3)
OPERATORS: dict[str, tuple[list[Array], dict[str, Any]]] = {
    "Abs": ([F], {}),
    "Add": ([F, weight(3)], {}),
    "Ceil": ([F], {}),
    "Concat": ([F[:1], F[1:]], {"axis": 0}),
    "Div": ([F, weight(2, 1, seed=3)], {}),
    "Expand": ([F[:1], ints(2, 3)], {}),
    "Flatten": ([F], {"axis": 1}),
    "Floor": ([F], {}),
    "Gather": ([F, ints(1, 0)], {"axis": 0}),
    "Max": ([F, weight(2, 3, seed=1)], {}),
    "Min": ([F, weight(2, 3, seed=1)], {}),
    "Mul": ([F, weight(2, 3, seed=1)], {}),
    "Neg": ([F], {}),
    "Reciprocal": ([F], {}),
    "Reshape": ([F.reshape(3, 2), ints(2, -1)], {}),
    "Slice": ([weight(5, 3), ints(1), ints(3)], {}),
    "Sqrt": ([np.abs(F)], {}),
    "Squeeze": ([F[None], ints(0)], {}),
    "Sub": ([F, weight(3)], {}),
    "Tile": ([F[:1], ints(2, 1)], {}),
    "Transpose": ([np.ascontiguousarray(F.T)], {"perm": [1, 0]}),
    "Unsqueeze": ([weight(3), ints(0)], {}),
    "Where": ([F > 0, F, weight(2, 3, seed=1)], {}),
}


@pytest.mark.parametrize("op", OPERATORS)
def test_operator(op: str) -> None:
    arrays, attributes = OPERATORS[op]
    held = {f"i{n}": a for n, a in enumerate(arrays)}
    proto = ending([node(op, list(held), ["c"], **attributes)], held)
    assert op_types(assert_kept(proto, "constants")) == ["Add"]


@pytest.mark.parametrize(
    ("op", "arrays", "attributes"),
    [
        ("Equal", [ints(1, 2, 3), ints(1, 0, 3)], {}),
        ("Greater", [F, weight(3)], {}),
        ("Less", [F, weight(3)], {}),
        ("GreaterOrEqual", [F, F], {}),
        ("LessOrEqual", [F, F], {}),
        ("And", [F > 0, F < 1], {}),
        ("Or", [F > 0, F < 1], {}),
        ("Xor", [F > 0, F < 1], {}),
        ("Not", [F > 0], {}),
        ("Div", [ints(-7, 7, 8), ints(2, -2, 3)], {}),
        ("Mod", [ints(-7, 7, 8), ints(2, -2, 3)], {}),
        ("Range", [np.array(0), np.array(3), np.array(1)], {}),
        ("ConstantOfShape", [ints(2, 3)], {}),
        ("Cast", [np.array([1.7, -1.7, 2.5], np.float32)], {"to": TensorProto.INT64}),
        ("ReduceProd", [ints(2, 3, 4)], {"keepdims": 1}),
        ("ReduceMax", [F], {"axes": [0]}),
        ("Sign", [ints(-2, 0, 3)], {}),
        ("GatherND", [F, ints(0, 1)[None]], {}),
        ("GatherElements", [F, np.array([[0, 1, 1]])], {}),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_operator_on_other_types(op: str, arrays: list[Array], attributes: dict[str, Any]) -> None:
    held = {f"i{n}": a for n, a in enumerate(arrays)}
    proto = ending([node(op, list(held), ["c"], **attributes)], held, kind=TensorProto.INT64)
    assert op_types(assert_kept(proto, "constants")) == ["Add"]


@pytest.mark.parametrize("opset", OPSETS)
def test_the_shape_arithmetic_of_exporters(opset: int) -> None:
    """Reshape(x, Concat(Unsqueeze(Gather(Shape(x), 0)), [-1])), of a batch that is free or given."""
    axes: dict[str, Any] = {} if opset >= 13 else {"axes": [0]}
    nodes = [
        constant("zero", np.array(1)),
        constant("rest", ints(-1)),
        *([constant("axes", ints(0))] if opset >= 13 else []),
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["g"], axis=0),
        node("Unsqueeze", ["g", "axes"] if opset >= 13 else ["g"], ["u"], **axes),
        node("Concat", ["u", "rest"], ["t"], axis=0),
        node("Reshape", ["x", "t"], ["y"]),
    ]
    proto = build(graph(nodes, {"x": ["n", 3, 4]}, {"y": None}), opset)
    result = assert_kept(proto, "constants", "initializers")
    assert op_types(result) == ["Reshape"]
    assert initializers(result)["t"].tolist() == [3, -1]


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([node("Shape", ["x"], ["c"])], [2, 3, 4]),
        ([node("Shape", ["x"], ["c"], start=1)], [3, 4]),
        ([node("Shape", ["x"], ["c"], start=-1, end=9)], [4]),
        ([node("Size", ["x"], ["c"])], 24),
        ([node("Shape", ["x"], ["s"]), node("Slice", ["s", "one", "end"], ["c"])], [3, 4]),
    ],
    ids=["shape", "from", "to", "size", "slice"],
)
def test_shape_of_a_static_value(nodes: list[onnx.NodeProto], expected: Any) -> None:
    nodes = [*nodes, node("Cast", ["c"], ["y"], to=TensorProto.FLOAT)]
    held = {"one": ints(1), "end": ints(99)}
    result = assert_kept(build(graph(nodes, {"x": [2, 3, 4]}, {"y": None}, held)), "constants")
    assert op_types(result) == ["Cast"]
    np.testing.assert_array_equal(initializers(result)["c"], expected)


def test_a_free_extent_is_not_folded() -> None:
    nodes = [node("Shape", ["x"], ["s"]), node("Gather", ["s", "i"], ["y"])]
    proto = build(
        graph(nodes, {"x": ["n", 3]}, {"y": None}, {"i": ints(0)}, types={"y": TensorProto.INT64})
    )
    assert op_types(assert_kept(proto, "constants")) == ["Shape", "Gather"]


NOT_FOLDED = {
    "random": ([node("RandomNormal", [], ["c"], shape=[2, 3])], {}),
    "random-like": ([node("RandomNormalLike", ["w"], ["c"])], {"w": F}),
    "text": (
        [node("Cast", ["w"], ["t"], to=TensorProto.STRING), node("Cast", ["t"], ["c"], to=1)],
        {"w": F},
    ),
    "overflow": ([node("Div", ["w", "z"], ["c"])], {"w": F, "z": np.zeros(3, np.float32)}),
    "huge": (
        [node("ConstantOfShape", ["s"], ["h"]), node("ReduceSum", ["h"], ["c"], keepdims=0)],
        {"s": ints(1024, 1024)},
    ),
    "outer-product": (
        [node("Mul", ["a", "b"], ["h"]), node("ReduceSum", ["h"], ["c"], keepdims=0)],
        {"a": weight(1024, 1), "b": weight(1, 1024)},
    ),
}


@pytest.mark.parametrize("case", NOT_FOLDED)
def test_is_not_folded(case: str) -> None:
    nodes, held = NOT_FOLDED[case]
    result, _ = simplified(ending(nodes, held), "constants")
    assert [n.op_type for n in nodes] == op_types(result)[: len(nodes)]


def test_what_replaces_constants_as_large_is_folded() -> None:
    w, b = weight(600, 600), weight(600, seed=1)
    nodes = [node("Mul", ["w", "b"], ["c"]), node("MatMul", ["x", "c"], ["y"])]
    proto = build(graph(nodes, {"x": [2, 600]}, {"y": None}, {"w": w, "b": b}))
    assert op_types(assert_kept(proto, "constants", exact=False)) == ["MatMul"]
    nodes += [node("MatMul", ["x", "w"], ["z"])]
    proto = build(graph(nodes, {"x": [2, 600]}, {"y": None, "z": None}, {"w": w, "b": b}))
    assert op_types(assert_kept(proto, "constants")) == ["Mul", "MatMul", "MatMul"]


def test_a_small_file_does_not_grow_by_the_zeros_that_it_computes() -> None:
    nodes = [
        node("ConstantOfShape", ["shape"], ["zeros"], value=numpy_helper.from_array(weight(1))),
        node("ReduceSum", ["zeros"], ["c"], keepdims=0),
    ]
    model = ending(nodes, {"shape": ints(512, 64), "used": weight(8, 8)})
    assert assert_kept(model, "constants", exact=False).ByteSize() < model.ByteSize() + 4096


def test_a_weight_stored_in_8_bits_stays_stored() -> None:
    q = np.arange(400, dtype=np.uint8).reshape(20, 20)
    nodes = [
        node("Cast", ["q"], ["f"], to=1),
        node("Mul", ["f", "s"], ["w"]),
        node("MatMul", ["x", "w"], ["y"]),
    ]
    proto = build(
        graph(nodes, {"x": [2, 20]}, {"y": None}, {"q": q, "s": np.array(0.1, np.float32)})
    )
    assert op_types(assert_kept(proto, "constants")) == ["Cast", "Mul", "MatMul"]


def test_a_default_is_no_constant() -> None:
    nodes = [node("Neg", ["d"], ["n"]), node("Add", ["x", "n"], ["y"])]
    proto = build(graph(nodes, {"x": [3], "d": [3]}, {"y": [3]}, {"d": weight(3)}))
    assert op_types(assert_kept(proto, "constants")) == ["Neg", "Add"]


def test_an_output_stays_the_output_of_a_node() -> None:
    nodes = [constant("k", weight(3)), node("Neg", ["k"], ["y"]), constant("z", weight(2))]
    proto = build(graph(nodes, {}, {"y": [3], "z": [2]}))
    assert op_types(assert_kept(proto, "constants")) == ["Neg", "Constant"]


@pytest.mark.parametrize(
    "attribute",
    [
        {"value_int": 3},
        {"value_ints": [1, 2, 3]},
        {"value_float": 0.5},
        {"value_floats": [0.5, 1.0, 2.0]},
    ],
    ids=lambda a: next(iter(a)),
)
def test_every_kind_of_constant_node(attribute: dict[str, Any]) -> None:
    proto = ending([node("Constant", [], ["c"], **attribute)], kind=TensorProto.INT64)
    assert op_types(assert_kept(proto, "constants")) == ["Add"]


def test_equal_names_in_two_branches_stay_apart() -> None:
    def branch(value: float, out: str) -> onnx.GraphProto:
        body = [constant("k", np.full(4, value, np.float32)), node("Mul", ["x", "k"], [out])]
        return graph(body, {}, {out: None}, name=out)

    nodes = [node("If", ["cond"], ["y"], then_branch=branch(2, "t"), else_branch=branch(3, "e"))]
    proto = build(
        graph(nodes, {"cond": [], "x": [2, 4]}, {"y": None}, types={"cond": TensorProto.BOOL})
    )
    assert op_types(both_ways(proto, "constants")) == ["If", "Mul", "Mul"]


def test_in_a_branch() -> None:
    branch = [constant("k", weight(4)), node("Neg", ["k"], ["n"]), node("Add", ["x", "n"], ["t"])]
    assert op_types(both_ways(build(if_graph(branch, "t")), "constants")) == ["If", "Neg", "Add"]
