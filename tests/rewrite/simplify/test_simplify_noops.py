"""Nodes that do nothing go; those that look like it stay."""

from typing import Any

import numpy as np
import onnx
import pytest
from builders import Array, graph, model, node, op_types
from onnx import TensorProto
from rewrite.simplify.simplify_cases import OPSETS, assert_kept, both_ways, build, if_graph

INT = np.int64
F32 = np.float32
TO_THE_END = np.iinfo(np.int64).max
Weights = dict[str, Array]


def around(
    op: str,
    weights: Weights | None = None,
    *,
    first: bool = True,
    opset: int = 17,
    shape: tuple[int | str, ...] = (2, 3, 4),
    out: Any = "same",
    **attributes: Any,
) -> onnx.ModelProto:
    """x -> Abs -> op -> Neg -> y."""
    names = list(weights or {})
    inputs = ["a", *names] if first else [*names, "a"]
    nodes = [
        node("Abs", ["x"], ["a"]),
        node(op, inputs, ["b"], **attributes),
        node("Neg", ["b"], ["y"]),
    ]
    out_shape = shape if out == "same" else out
    return build(graph(nodes, {"x": shape}, {"y": out_shape}, weights), opset)


def ints(*values: int) -> Array:
    return np.array(values, INT)


GONE: dict[str, onnx.ModelProto] = {
    "dropout-12": around("Dropout", {"ratio": np.array(0.5, F32)}),
    "dropout-not-training": around("Dropout", {"r": np.array(0.5, F32), "t": np.array(False)}),
    "dropout-7": around("Dropout", opset=7, ratio=0.3),
    "cast": around("Cast", to=TensorProto.FLOAT),
    "transpose": around("Transpose", perm=[0, 1, 2]),
    "transpose-of-a-row": around("Transpose", shape=(5,)),
    "reshape": around("Reshape", {"s": ints(2, 3, 4)}),
    "reshape-minus-one": around("Reshape", {"s": ints(2, -1, 4)}),
    "reshape-zeros": around("Reshape", {"s": ints(0, 0, -1)}, shape=("n", 3, 4)),
    "reshape-free": around("Reshape", {"s": ints(-1, 3, 4)}, shape=("n", 3, 4)),
    "flatten": around("Flatten", shape=(2, 3)),
    "expand": around("Expand", {"s": ints(1, 3, 1)}),
    "tile": around("Tile", {"r": ints(1, 1, 1)}),
    "slice-1": around("Slice", opset=9, starts=[0], ends=[TO_THE_END], axes=[1]),
    "slice-free": around("Slice", {"s": ints(0), "e": ints(TO_THE_END)}, shape=("n", 3)),
    "slice-static": around("Slice", {"s": ints(0, 0), "e": ints(2, 99), "ax": ints(0, 1)}),
    "slice-from-far-left": around(
        "Slice", {"s": ints(-2), "e": ints(2), "ax": ints(0), "st": ints(1)}
    ),
    "pad": around("Pad", {"p": ints(0, 0, 0, 0, 0, 0)}),
    "pad-2": around("Pad", opset=9, pads=[0] * 6),
    "concat": around("Concat", axis=1),
    "sum": around("Sum"),
    "max": around("Max"),
    "min": around("Min"),
    "mean": around("Mean"),
    "split": around("Split", axis=1),
    "split-18": around("Split", opset=18, axis=1, num_outputs=1),
    "add-0": around("Add", {"z": np.zeros((3, 1), F32)}),
    "0-add": around("Add", {"z": np.array(0, F32)}, first=False),
    "sub-0": around("Sub", {"z": np.zeros(1, F32)}),
    "mul-1": around("Mul", {"z": np.ones((1, 1, 4), F32)}, shape=("n", 3, 4)),
    "1-mul": around("Mul", {"z": np.ones(4, F32)}, first=False),
    "div-1": around("Div", {"z": np.array(1, F32)}, shape=("n", "m")),
}
STAYS: dict[str, onnx.ModelProto] = {
    "transpose": around("Transpose", perm=[1, 0, 2], shape=(3, 3, 3)),
    "reshape-free": around("Reshape", {"s": ints(-1, 6, 2)}, shape=("n", 3, 4), out=None),
    "reshape-swapped": around("Reshape", {"s": ints(4, 3, 2)}, out=(4, 3, 2)),
    "expand-free": around("Expand", {"s": ints(2, 1)}, shape=("n", 3), out=None),
    "tile": around("Tile", {"r": ints(1, 2, 1)}, out=(2, 6, 4)),
    "slice-backwards": around(
        "Slice", {"s": ints(-1), "e": ints(-99), "ax": ints(0), "st": ints(-1)}
    ),
    "slice-part": around("Slice", {"s": ints(1), "e": ints(TO_THE_END)}, out=None),
    "pad-that-shifts": around("Pad", {"p": ints(1, 0, 0, -1, 0, 0)}),
    "add-that-broadcasts": around("Add", {"z": np.zeros((5, 2, 3, 4), F32)}, out=None),
    "add-that-adds-an-axis": around("Add", {"z": np.zeros((1, 1, 1, 1), F32)}, out=None),
    "add-a-row-to-a-free-extent": around("Add", {"z": np.zeros(4, F32)}, shape=(2, "n"), out=None),
    "0-sub": around("Sub", {"z": np.array(0, F32)}, first=False),
    "1-div": around("Div", {"z": np.array(1, F32)}, first=False),
    "mul-2": around("Mul", {"z": np.array(2, F32)}),
}
FREE = {"x": np.abs(np.random.default_rng(1).standard_normal((2, 4))).astype(F32)}


@pytest.mark.parametrize("case", GONE)
def test_goes(case: str) -> None:
    assert op_types(assert_kept(GONE[case], "noops")) == ["Abs", "Neg"]


@pytest.mark.parametrize("case", STAYS)
def test_stays(case: str) -> None:
    feeds = FREE if case == "add-a-row-to-a-free-extent" else None
    assert len(op_types(assert_kept(STAYS[case], "noops", feeds=feeds))) == 3


@pytest.mark.parametrize("opset", OPSETS)
def test_several_in_a_row_go(opset: int) -> None:
    nodes = [node("Transpose", ["x"], ["a"], perm=[0, 1]), node("Sum", ["a"], ["b"])]
    nodes += [
        node("Reshape", ["b", "s"], ["c"]),
        node("Relu", ["c"], ["d"]),
        node("Dropout", ["d"], ["y"]),
    ]
    proto = build(graph(nodes, {"x": [2, 3]}, {"y": [2, 3]}, {"s": ints(2, 3)}), opset)
    assert op_types(assert_kept(proto, "noops")) == ["Relu"]


def test_dropout_whose_mask_is_read_stays() -> None:
    nodes = [node("Dropout", ["x"], ["a", "m"]), node("Where", ["m", "a", "x"], ["y"])]
    proto = build(graph(nodes, {"x": [4]}, {"y": [4]}))
    assert op_types(assert_kept(proto, "noops")) == ["Dropout", "Where"]


def test_dropout_that_may_train_stays() -> None:
    nodes = [node("Dropout", ["x", "", "t"], ["a"]), node("Neg", ["a"], ["y"])]
    proto = graph(nodes, {"x": [4], "t": []}, {"y": [4]}, types={"t": TensorProto.BOOL})
    feeds = {"x": np.ones(4, F32), "t": np.array(False)}
    assert op_types(assert_kept(build(proto), "noops", feeds=feeds)) == ["Dropout", "Neg"]


def test_a_default_is_no_constant() -> None:
    nodes = [node("Add", ["x", "z"], ["a"]), node("Neg", ["a"], ["y"])]
    proto = build(graph(nodes, {"x": [4], "z": [4]}, {"y": [4]}, {"z": np.zeros(4, F32)}))
    assert op_types(assert_kept(proto, "noops")) == ["Add", "Neg"]


def test_a_wrong_shape_in_the_file_is_not_believed() -> None:
    nodes = [node("Expand", ["x", "s"], ["a"]), node("Neg", ["a"], ["y"])]
    proto = graph(nodes, {"x": ["n", 4], "s": [2]}, {"y": None}, types={"s": TensorProto.INT64})
    proto.value_info.append(onnx.helper.make_tensor_value_info("a", TensorProto.FLOAT, [1, 4]))
    proto.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    feeds = {"x": np.ones((1, 4), F32), "s": ints(3, 4)}
    assert op_types(assert_kept(model(proto), "noops", feeds=feeds)) == ["Expand", "Neg"]


def test_a_cast_to_another_type_stays() -> None:
    nodes = [node("Cast", ["x"], ["y"], to=TensorProto.DOUBLE)]
    proto = build(graph(nodes, {"x": [4]}, {"y": [4]}, types={"y": TensorProto.DOUBLE}))
    assert op_types(assert_kept(proto, "noops")) == ["Cast"]


def test_in_a_branch_the_output_keeps_its_name() -> None:
    branch = [node("Relu", ["x"], ["r"]), node("Add", ["r", "z"], ["t"])]
    result = both_ways(build(if_graph(branch, "t", weights={"z": np.zeros(4, F32)})), "noops")
    assert op_types(result) == ["If", "Neg", "Relu"]


def test_in_a_branch_an_outer_value_does_not_become_the_output() -> None:
    result = both_ways(build(if_graph([node("Sum", ["x"], ["t"])], "t")), "noops")
    assert op_types(result) == ["If", "Neg", "Sum"]
