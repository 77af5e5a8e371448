"""MatMul and Add become Gemm where that is the same."""

from typing import Any

import numpy as np
import onnx
import pytest
from builders import Array, graph, node, op_types, weight
from rewrite.simplify.simplify_cases import OPSETS, assert_kept, build, if_graph


def product(
    w: Array | None = None,
    b: Array | None = None,
    *,
    shape: Any = ("n", 5),
    opset: int = 17,
    flipped: bool = False,
    more: tuple[onnx.NodeProto, ...] = (),
    outputs: tuple[str, ...] = ("y",),
    weight_input: bool = False,
    bias_input: bool = False,
) -> onnx.ModelProto:
    nodes = [
        node("MatMul", ["x", "w"], ["m"], "mm"),
        node("Add", ["b", "m"] if flipped else ["m", "b"], ["y"], "add"),
        *more,
    ]
    held = {"w": weight(5, 7) if w is None else w, "b": weight(7) if b is None else b}
    inputs = (
        {"x": shape} | ({"w": (5, 7)} if weight_input else {}) | ({"b": (7,)} if bias_input else {})
    )
    return build(graph(nodes, inputs, dict.fromkeys(outputs), held), opset)


@pytest.mark.parametrize("opset", OPSETS)
def test_becomes_gemm(opset: int) -> None:
    result = assert_kept(product(opset=opset), "matmul_add", exact=False)
    assert op_types(result) == ["Gemm"]
    gemm = result.graph.node[0]
    assert (gemm.name, list(gemm.input), list(gemm.output)) == ("mm", ["x", "w", "b"], ["y"])


@pytest.mark.parametrize(
    "b", [weight(7), weight(1, 7), weight(1), np.array(2, np.float32), weight(1, 1)]
)
@pytest.mark.parametrize("flipped", [False, True])
def test_a_row_or_a_number(b: Array, *, flipped: bool) -> None:
    result = assert_kept(product(b=b, flipped=flipped), "matmul_add", exact=False)
    assert op_types(result) == ["Gemm"]


STAYS = {
    "three-axes": product(shape=(2, "n", 5)),
    "rank-not-known": product(shape=None),
    "bias-of-three-axes": product(b=weight(1, 1, 7)),
    "bias-of-rows": product(b=weight(2, 1)),
    "bias-of-a-matrix": product(b=weight(2, 7), shape=(2, 5)),
    "bias-that-broadcasts-the-product": product(w=weight(5, 1)),
    "weights-of-a-batch": product(w=weight(2, 5, 7)),
    "weights-of-a-vector": product(w=weight(5), b=weight(2), shape=(2, 5)),
    "others-read-it": product(more=(node("Neg", ["m"], ["z"]),), outputs=("y", "z")),
    "it-is-an-output": product(outputs=("y", "m")),
    "weight-is-an-input": product(weight_input=True),
    "bias-is-an-input": product(bias_input=True),
}
FEEDS = {"x": weight(2, 5)}


@pytest.mark.parametrize("case", STAYS)
def test_stays(case: str) -> None:
    feeds = FEEDS if case == "rank-not-known" else None
    assert op_types(assert_kept(STAYS[case], "matmul_add", feeds=feeds))[:2] == ["MatMul", "Add"]


def test_in_a_branch() -> None:
    branch = [node("MatMul", ["x", "w"], ["m"]), node("Add", ["m", "b"], ["t"])]
    proto = build(if_graph(branch, "t", weights={"w": weight(4, 4), "b": weight(4)}))
    x = weight(2, 4, seed=4)
    for cond in (True, False):
        feeds = {"cond": np.array(cond), "x": x}
        result = assert_kept(proto, "matmul_add", feeds=feeds, exact=False)
    assert op_types(result) == ["If", "Neg", "Gemm"]
