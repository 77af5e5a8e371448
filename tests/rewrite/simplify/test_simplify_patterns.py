"""What exporters write in several nodes: HardSigmoid, HardSwish, pooling, numbers per channel behind a Conv."""

from typing import Any

import numpy as np
import onnx
import pytest
from builders import Array, graph, node, op_types, weight
from rewrite.simplify.simplify_cases import assert_kept, build, simplified

SHAPE = [2, 4, 6, 6]
NUMBERS = {
    "three": np.array(3, np.float32),
    "low": np.array(0, np.float32),
    "six": np.array(6, np.float32),
    "sixth": np.array([1 / 6], np.float32),
    "five": np.array(5, np.float32),
    "minus": np.array(-1, np.float32),
}


def gate(*last: onnx.NodeProto, outputs: tuple[str, ...] = ("y",), **given: Any) -> Any:
    """Clip(x + 3, 0, 6) 'c', and what follows."""
    nodes = [
        node("Add", given.get("add", ["x", "three"]), ["s"], "add"),
        node("Clip", ["s", *given.get("bounds", ["low", "six"])], ["c"], "clip"),
        *last,
    ]
    return build(graph(nodes, {"x": SHAPE}, dict.fromkeys(outputs), NUMBERS))


@pytest.mark.parametrize(
    "proto",
    [
        gate(node("Div", ["c", "six"], ["y"], "d")),
        gate(node("Mul", ["sixth", "c"], ["y"], "d"), add=["three", "x"]),
    ],
)
def test_a_clipped_sum_is_a_hard_sigmoid(proto: onnx.ModelProto) -> None:
    assert op_types(assert_kept(proto, "hard_sigmoid", exact=False)) == ["HardSigmoid"]


@pytest.mark.parametrize("flipped", [False, True])
def test_times_its_input_it_is_a_hard_swish(*, flipped: bool) -> None:
    product = node("Mul", ["c", "x"] if flipped else ["x", "c"], ["m"], "m")
    proto = gate(product, node("Div", ["m", "six"], ["y"], "d"))
    result = assert_kept(proto, "hard_sigmoid", exact=False)
    assert op_types(result) == ["HardSigmoid", "Mul"]
    assert result.graph.node[1].name == "d"


OTHERS = {
    "another divisor": gate(node("Div", ["c", "five"], ["y"])),
    "divided by it": gate(node("Div", ["six", "c"], ["y"])),
    "from below 0": gate(node("Div", ["c", "six"], ["y"]), bounds=["minus", "six"]),
    "read inside": gate(node("Div", ["c", "six"], ["y"]), outputs=("y", "c")),
    "the sum is read": gate(node("Div", ["c", "six"], ["y"]), outputs=("y", "s")),
    "times something else": gate(
        node("Mul", ["s", "c"], ["m"]), node("Div", ["m", "six"], ["y"]), add=["x", "three"]
    ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_sums_stay(case: str) -> None:
    assert "HardSigmoid" not in op_types(assert_kept(OTHERS[case], "hard_sigmoid"))


@pytest.mark.parametrize(("shape", "axes"), [(SHAPE, [2, 3]), (SHAPE, [-1, -2]), (SHAPE[:3], [2])])
@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("opset", [13, 18])
def test_a_mean_over_places_is_pooling(
    shape: list[int], axes: list[int], keep: int, opset: int
) -> None:
    given = {"axes": axes} if opset < 18 else {}
    held = {} if opset < 18 else {"axes": np.asarray(axes, np.int64)}
    reduced = node("ReduceMean", ["x", *held], ["y"], "r", keepdims=keep, **given)
    result = assert_kept(
        build(graph([reduced], {"x": shape}, {"y": None}, held), opset), "global_pool", exact=False
    )
    assert op_types(result) == ["GlobalAveragePool", *([] if keep else ["Flatten"])]


@pytest.mark.parametrize("given", [{"axes": [1, 2]}, {"axes": [3]}, {}])
def test_other_means_stay(given: dict[str, Any]) -> None:
    reduced = node("ReduceMean", ["x"], ["y"], "r", **given)
    proto = build(graph([reduced], {"x": SHAPE}, {"y": None}), 13)
    assert op_types(assert_kept(proto, "global_pool")) == ["ReduceMean"]


def behind(op: str, number: Array, product: str = "Conv", **given: Any) -> onnx.ModelProto:
    """A product of four channels to five with a bias, and what is done to it."""
    channels = (5, 4) if product == "Conv" else (4, 5)
    operands = ["m", "k"] if not given.get("flipped") else ["k", "m"]
    nodes = [
        node(product, ["x", "w", "b"][: given.get("inputs", 3)], ["m"], "c"),
        node(op, operands, ["y"], "op"),
    ]
    held = {"w": weight(*channels, 3, 3), "b": weight(5, seed=1), "k": number}
    outputs = dict.fromkeys(given.get("outputs", ("y",)))
    return build(graph(nodes, {"x": SHAPE}, outputs, held))


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
@pytest.mark.parametrize("product", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("shape", [(1, 5, 1, 1), (5, 1, 1), (1,), ()])
def test_numbers_per_channel_go_into_the_product(
    op: str, product: str, shape: tuple[int, ...]
) -> None:
    number = (1.5 + weight(*shape)).astype(np.float32)
    for inputs in (2, 3):
        proto = behind(op, number, product, inputs=inputs)
        assert op_types(assert_kept(proto, "scale_shift", exact=False)) == [product]


STAYS = {
    "a number less it": behind("Sub", weight(5, 1, 1), flipped=True),
    "a number by it": behind("Div", weight(5, 1, 1), flipped=True),
    "divided by 0": behind("Div", np.zeros((5, 1, 1), np.float32)),
    "per place": behind("Add", weight(1, 1, 4, 4)),
    "per column": behind("Mul", weight(4)),
    "more axes": behind("Add", weight(5, 1, 1, 1, 1)),
    "read by others": behind("Mul", weight(5, 1, 1), outputs=("y", "m")),
}


@pytest.mark.parametrize("case", STAYS)
def test_other_numbers_stay(case: str) -> None:
    made, _ = simplified(STAYS[case], "scale_shift")
    assert op_types(made) == op_types(STAYS[case])
