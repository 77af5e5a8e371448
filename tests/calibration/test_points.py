"""Which tensors are observed: what enters and leaves operators that can run in integers."""

import sys
from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from builders import Array, graph, model, node, weight
from onnx import TensorProto

from quantkit.calibration.points import Points, points_of
from quantkit.model.graph.shapes import infer_types
from quantkit.model.graph.view import view_of


def points(proto: onnx.ModelProto) -> Points:
    loaded = ir.serde.deserialize_model(proto)
    infer_types(loaded)
    return points_of(view_of(loaded))


def chain(*ops: tuple[str, Sequence[str]], k: int = 4) -> onnx.ModelProto:
    """x -> op -> op -> ...; the outputs are named t0, t1, ...; the last is the graph's."""
    nodes, last = [], "x"
    for i, (op, rest) in enumerate(ops):
        nodes.append(node(op, [last, *rest], [f"t{i}"], f"n{i}"))
        last = f"t{i}"
    weights: dict[str, Array] = {
        "w": weight(k, k),
        "c": weight(3, 3, 1, 1),
        "v": np.ones(3, np.float32),
        "low": np.array(0, np.float32),
        "below": np.array(-1, np.float32),
        "high": np.array(6, np.float32),
        "shape": np.array([1, -1], np.int64),
    }
    return model(graph(nodes, {"x": [1, 3, 4, 4]}, {last: None}, weights))


NORM = ("v", "v", "v", "v")
CASES: dict[str, tuple[list[tuple[str, Sequence[str]]], tuple[str, ...]]] = {
    "conv-bn-clip": (
        [("Conv", ["c"]), ("BatchNormalization", NORM), ("Clip", ["low", "high"])],
        ("x", "t2"),
    ),
    "conv-bn-relu": ([("Conv", ["c"]), ("BatchNormalization", NORM), ("Relu", [])], ("x", "t2")),
    "a-clip-that-does-not-start-at-0-is-not-absorbed": (
        [("Conv", ["c"]), ("BatchNormalization", NORM), ("Clip", ["below", "high"])],
        ("x", "t1"),
    ),
    "a-clip-without-a-start-is-not-absorbed": (
        [("Conv", ["c"]), ("Clip", ["", "high"])],
        ("x", "t0"),
    ),
    "conv-relu-conv": ([("Conv", ["c"]), ("Relu", []), ("Conv", ["c"])], ("x", "t1", "t2")),
    "matmul-relu": ([("MatMul", ["w"]), ("Relu", [])], ("x", "t1")),
    "a-norm-is-not-absorbed-by-matmul": (
        [("MatMul", ["w"]), ("BatchNormalization", NORM)],
        ("x", "t0"),
    ),
    "transpose-is-looked-through": ([("Transpose", []), ("MatMul", ["w"])], ("x", "t1")),
    "two-movements-are-looked-through": (
        [("Conv", ["c"]), ("Transpose", []), ("Reshape", ["shape"]), ("Softmax", [])],
        ("x", "t0", "t3"),
    ),
    "float-only-in-between-is-left-out": (
        [("Conv", ["c"]), ("Exp", []), ("Sin", []), ("Cos", []), ("MatMul", ["w"])],
        ("x", "t0", "t3", "t4"),
    ),
    "float-only-at-the-end-is-left-out": ([("MatMul", ["w"]), ("Exp", [])], ("x", "t0")),
    "nothing-computes": ([("Exp", []), ("Sin", [])], ()),
}


@pytest.mark.parametrize("case", CASES)
def test_tensors_around_a_chain(case: str) -> None:
    ops, expected = CASES[case]
    assert points(chain(*ops)).tensors == expected


def test_what_another_node_reads_is_not_absorbed() -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["m"]),
        node("Relu", ["m"], ["r"]),
        node("Exp", ["m"], ["e"]),
    ]
    proto = model(graph(nodes, {"x": [1, 4]}, {"r": None, "e": None}, {"w": weight(4, 4)}))
    assert points(proto).tensors == ("x", "m")


def test_what_the_graph_gives_out_is_not_absorbed() -> None:
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("Relu", ["m"], ["r"])]
    proto = model(graph(nodes, {"x": [1, 4]}, {"m": None, "r": None}, {"w": weight(4, 4)}))
    assert points(proto).tensors == ("x", "m")


def test_constants_and_integers_are_never_listed() -> None:
    nodes = [
        node("Constant", [], ["c"], value=onnx.numpy_helper.from_array(weight(4, 4))),
        node("Transpose", ["c"], ["ct"]),
        node("MatMul", ["x", "ct"], ["m"]),
        node("Add", ["m", "b"], ["a"]),
        node("Add", ["i", "i"], ["j"]),
    ]
    inputs = {"x": [1, 4], "i": [1]}
    types = {"i": TensorProto.INT64, "j": TensorProto.INT64}
    proto = model(graph(nodes, inputs, {"a": None, "j": [1]}, {"b": weight(4)}, types=types))
    assert points(proto).tensors == ("x", "m", "a")


def test_every_graph_input_is_listed_once() -> None:
    nodes = [node("Add", ["x", "y"], ["s"]), node("Mul", ["x", "s"], ["p"])]
    proto = model(graph(nodes, {"x": [1, 4], "y": [1, 4]}, {"p": None}))
    assert points(proto).tensors == ("x", "y", "s", "p")


def test_tensors_inside_if_are_observed() -> None:
    def branch(name: str) -> onnx.GraphProto:
        inner = node("MatMul", ["h", "w"], [name])
        return graph([inner], {}, {name: [1, 4]}, name=name)

    nodes = [
        node("MatMul", ["x", "w"], ["h"]),
        node("If", ["c"], ["y"], then_branch=branch("a"), else_branch=branch("b")),
    ]
    types = {"c": TensorProto.BOOL}
    inputs = {"x": [1, 4], "c": []}
    proto = model(graph(nodes, inputs, {"y": [1, 4]}, {"w": weight(4, 4)}, types=types))
    assert points(proto) == Points(tensors=("x", "h", "b", "a"), branched=True)


def test_long_graphs_take_work_in_proportion() -> None:
    def calls(count: int) -> int:
        loaded = ir.serde.deserialize_model(
            chain(*[("Sin", []), ("Transpose", []), ("Sigmoid", [])] * (count // 3))
        )
        made = 0

        def counted(_: object, event: str, __: object) -> None:
            nonlocal made
            made += event == "call"

        sys.setprofile(counted)
        try:
            found = points_of(view_of(loaded))
        finally:
            sys.setprofile(None)
        assert len(found.tensors) > count // 2
        return made

    calls(30)  # what is made once
    assert calls(2000) < 4.5 * calls(500)
