"""How many axes values have; and a Softmax over the last axis that stays one when the opset is raised."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from builders import Array, Shape, graph, model, node, rng, run
from onnx import TensorProto

from quantkit.model.graph.load import load
from quantkit.model.graph.opset import raise_opset, ranks_of

SHAPE = (2, 3, 4, 5)


def computed_reshape(*nodes: onnx.NodeProto, opset: int = 11) -> onnx.ModelProto:
    """x -> Reshape to a shape that is an input -> r -> `nodes` -> y: of r nothing is known."""
    first = node("Reshape", ["x", "shape"], ["r"], "reshape")
    inputs: dict[str, Shape] = {"x": [120], "shape": [None]}
    types = {"shape": TensorProto.INT64}
    return model(graph([first, *nodes], inputs, {"y": None}, types=types), opset=opset)


def raised(proto: onnx.ModelProto) -> ir.Model:
    return raise_opset(load(proto).model, 13)


def check_same(proto: onnx.ModelProto, after: ir.Model) -> None:
    x = rng().standard_normal(120).astype(np.float32)
    feeds: dict[str, Array] = {"x": x, "shape": np.array(SHAPE, np.int64)}
    (expected,) = run(proto, feeds)
    for optimize in (True, False):
        (y,) = run(ir.to_proto(after), feeds, optimize=optimize)
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def ops(after: ir.Model) -> list[str]:
    return [item.op_type for item in after.graph]


TURN = node("Transpose", ["r"], ["t"], "turn", perm=[0, 2, 1, 3])


@pytest.mark.parametrize("kind", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("between", ["Transpose", "Mul"])
def test_a_softmax_over_the_last_axis_stays_one_node(kind: str, between: str) -> None:
    nodes = [TURN]
    if between == "Mul":
        nodes.append(node("Mul", ["t", "t"], ["m"], "scale"))
    nodes.append(node(kind, ["m" if between == "Mul" else "t"], ["y"], "soft", axis=3))
    proto = computed_reshape(*nodes)
    after = raised(proto)
    assert "Flatten" not in ops(after)
    assert "Shape" not in ops(after)
    assert ops(after).count("Reshape") == 1
    (soft,) = (item for item in after.graph if item.op_type == kind)
    assert soft.attributes.get_int("axis") == -1
    assert [v.name for v in after.graph.outputs] == ["y"]
    check_same(proto, after)


@pytest.mark.parametrize("axis", [1, 2])
def test_a_softmax_over_other_axes_keeps_its_meaning(axis: int) -> None:
    proto = computed_reshape(TURN, node("Softmax", ["t"], ["y"], "soft", axis=axis))
    after = raised(proto)
    assert "Flatten" in ops(after)
    check_same(proto, after)


def test_a_softmax_of_unknown_rank_keeps_its_meaning() -> None:
    proto = computed_reshape(node("Softmax", ["r"], ["y"], "soft", axis=3))
    after = raised(proto)
    assert "Flatten" in ops(after)
    check_same(proto, after)


def test_two_softmaxes_of_one_value_are_both_kept() -> None:
    nodes = [TURN]
    nodes += [node("Softmax", ["t"], [f"s{i}"], f"soft{i}", axis=3) for i in range(2)]
    proto = computed_reshape(*nodes, node("Add", ["s0", "s1"], ["y"], "add"))
    after = raised(proto)
    assert "Flatten" not in ops(after)
    check_same(proto, after)


def test_a_softmax_that_others_read_too_is_one_node() -> None:
    nodes = [TURN, node("Softmax", ["t"], ["s"], "soft", axis=3)]
    nodes += [node("Relu", ["s"], ["u"], "relu"), node("Add", ["s", "u"], ["y"], "add")]
    proto = computed_reshape(*nodes)
    after = raised(proto)
    assert "Flatten" not in ops(after)
    check_same(proto, after)


def ranks(proto: onnx.ModelProto) -> dict[str, int]:
    return {value.name or "": rank for value, rank in ranks_of(ir.from_proto(proto)).items()}


def test_ranks_follow_from_operators() -> None:
    proto = computed_reshape(
        TURN,
        node("Relu", ["t"], ["relu"], "relu"),
        node("MatMul", ["relu", "t"], ["mm"], "mm"),
        node("Unsqueeze", ["mm"], ["un"], "un", axes=[0, 1]),
        node("Add", ["un", "x"], ["y"], "add"),
    )
    found = ranks(proto)
    assert "r" not in found
    assert [found[name] for name in ("x", "t", "relu", "mm", "un", "y")] == [1, 4, 4, 4, 6, 6]


def test_what_is_not_certain_is_left_out() -> None:
    proto = computed_reshape(
        node("Relu", ["r"], ["relu"], "relu"),
        node("Add", ["relu", "x"], ["sum"], "add"),
        node("Transpose", ["sum"], ["y"], "turn"),
    )
    assert set(ranks(proto)) == {"x", "shape"}


def test_axes_of_unsqueeze_may_be_an_input() -> None:
    first = node("Unsqueeze", ["x", "axes"], ["u"], "un")
    weights = {"axes": np.array([0, 2], np.int64)}
    proto = model(graph([first, node("Tanh", ["u"], ["y"], "t")], {"x": [3]}, {"y": None}, weights))
    del proto.graph.value_info[:]
    assert ranks(proto)["y"] == 3
