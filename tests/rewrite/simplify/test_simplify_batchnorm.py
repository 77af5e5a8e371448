"""BatchNormalization becomes part of what is before it."""

from typing import Any

import numpy as np
import onnx
import pytest
from builders import Array, graph, initializers, node, op_types, rng, weight
from onnx import numpy_helper
from rewrite.simplify.simplify_cases import (
    OPSETS,
    assert_kept,
    both_ways,
    build,
    if_graph,
    simplified,
)

PASSES = ("batchnorm", "initializers")


def parameters(channels: int, seed: int = 0) -> dict[str, Array]:
    """Return scale, shift, mean and variance."""
    return {
        "s": weight(channels, seed=seed, scale=1.0),
        "b": weight(channels, seed=seed + 1, scale=1.0),
        "m": weight(channels, seed=seed + 2, scale=1.0),
        "v": rng(seed + 3).uniform(0.2, 3.0, channels).astype(np.float32),
    }


def norm(source: str, target: str, **attributes: Any) -> onnx.NodeProto:
    return node("BatchNormalization", [source, "s", "b", "m", "v"], [target], **attributes)


def before(
    op: str,
    shape: list[int | str],
    weights: dict[str, Array],
    channels: int,
    *,
    opset: int = 17,
    epsilon: float = 1e-3,
    **attributes: Any,
) -> onnx.ModelProto:
    """x -> op -> BatchNormalization -> Relu -> y."""
    nodes = [
        node(op, ["x", *weights], ["c"], "layer", **attributes),
        norm("c", "n", epsilon=epsilon),
        node("Relu", ["n"], ["y"]),
    ]
    return build(graph(nodes, {"x": shape}, {"y": None}, weights | parameters(channels)), opset)


CASES = {
    "conv": before("Conv", [1, 3, 8, 8], {"w": weight(6, 3, 3, 3), "cb": weight(6)}, 6),
    "conv-no-bias": before("Conv", [1, 3, 8, 8], {"w": weight(6, 3, 3, 3)}, 6),
    "conv-1d": before("Conv", [1, 3, 8], {"w": weight(6, 3, 3)}, 6),
    "conv-3d": before("Conv", [1, 2, 4, 4, 4], {"w": weight(3, 2, 2, 2, 2)}, 3),
    "conv-groups": before("Conv", [1, 4, 8, 8], {"w": weight(6, 2, 3, 3)}, 6, group=2),
    "conv-depthwise": before("Conv", [1, 4, 8, 8], {"w": weight(4, 1, 3, 3)}, 4, group=4),
    "conv-free": before("Conv", ["n", 3, "h", "w_"], {"w": weight(6, 3, 1, 1)}, 6),
    "transposed": before("ConvTranspose", [1, 3, 4, 4], {"w": weight(3, 6, 2, 2)}, 6),
    "transposed-groups": before(
        "ConvTranspose", [1, 4, 4, 4], {"w": weight(4, 3, 2, 2), "cb": weight(6)}, 6, group=2
    ),
    "gemm": before("Gemm", [2, 5], {"w": weight(5, 7), "cb": weight(7)}, 7),
    "gemm-transposed": before(
        "Gemm", [2, 5], {"w": weight(7, 5), "cb": weight(1, 7)}, 7, transB=1, alpha=0.5, beta=3.0
    ),
    "gemm-square": before("Gemm", [2, 7], {"w": weight(7, 7), "cb": weight(7)}, 7, transB=1),
    "gemm-no-bias": before("Gemm", [2, 5], {"w": weight(5, 7)}, 7, opset=11, alpha=2.0),
    "gemm-one-number": before("Gemm", [2, 5], {"w": weight(5, 7), "cb": weight(1)}, 7, beta=0.5),
    "epsilon-is-zero": before("Conv", [1, 3, 8, 8], {"w": weight(6, 3, 3, 3)}, 6, epsilon=0.0),
}


@pytest.mark.parametrize("case", CASES)
def test_is_folded(case: str) -> None:
    proto = CASES[case]
    result = assert_kept(proto, *PASSES, exact=False)
    assert op_types(result) == [proto.graph.node[0].op_type, "Relu"]
    assert result.graph.node[0].output[0] == "n"
    assert result.graph.node[0].name == "layer"
    held = initializers(result)
    assert held["w"].shape == initializers(proto)["w"].shape
    assert set(held) == ({"w", "cb"} if "cb" in initializers(proto) else {"w", "w_bias"})


@pytest.mark.parametrize("opset", OPSETS)
def test_is_folded_at_every_opset(opset: int) -> None:
    proto = before("Conv", [1, 3, 8, 8], {"w": weight(6, 3, 3, 3), "cb": weight(6)}, 6, opset=opset)
    assert op_types(assert_kept(proto, *PASSES, exact=False)) == ["Conv", "Relu"]


def test_the_weight_is_computed_in_float64() -> None:
    proto = CASES["conv"]
    held, folded = initializers(proto), initializers(simplified(proto, *PASSES)[0])
    wide = {k: v.astype(np.float64) for k, v in held.items()}
    f = wide["s"] / np.sqrt(wide["v"] + float(np.float32(1e-3)))
    np.testing.assert_array_equal(
        folded["w"], (wide["w"] * f[:, None, None, None]).astype(np.float32)
    )
    bias = (wide["cb"] - wide["m"]) * f + wide["b"]
    np.testing.assert_array_equal(folded["cb"], bias.astype(np.float32))


def conv_graph(
    *more: onnx.NodeProto, outputs: tuple[str, ...] = ("y",), **kw: Any
) -> onnx.ModelProto:
    """x -> Conv(w, cb) -> c -> BatchNormalization -> y, and more nodes."""
    nodes = [node("Conv", ["x", "w", "cb"], ["c"]), norm("c", "y"), *more]
    held = {"w": weight(4, 3, 1, 1), "cb": weight(4), **parameters(4)}
    inputs = {"x": [1, 3, 5, 5], **kw}
    return build(graph(nodes, inputs, dict.fromkeys(outputs), held))


@pytest.mark.parametrize(
    "proto",
    [
        conv_graph(node("Neg", ["c"], ["z"]), outputs=("y", "z")),
        conv_graph(outputs=("y", "c")),
        conv_graph(w=[4, 3, 1, 1]),
        conv_graph(cb=[4]),
        conv_graph(m=[4]),
    ],
    ids=["others-read-it", "it-is-an-output", "weight-is-an-input", "bias-is", "mean-is"],
)
def test_stays(proto: onnx.ModelProto) -> None:
    assert "BatchNormalization" in op_types(assert_kept(proto, *PASSES))


def test_training_stays() -> None:
    nodes = [
        node("Conv", ["x", "w"], ["c"]),
        node("BatchNormalization", ["c", "s", "b", "m", "v"], ["y", "rm", "rv"], training_mode=1),
    ]
    held = {"w": weight(4, 3, 1, 1), **parameters(4)}
    proto = build(graph(nodes, {"x": [1, 3, 5, 5]}, {"y": None, "rm": None, "rv": None}, held))
    assert op_types(assert_kept(proto, *PASSES)) == ["Conv", "BatchNormalization"]


def test_a_bias_of_rows_stays() -> None:
    held = {"w": weight(5, 4), "cb": weight(4, 1)}
    proto = before("Gemm", [4, 5], held, 4)
    assert "BatchNormalization" in op_types(assert_kept(proto, *PASSES))


@pytest.mark.parametrize(
    ("name", "value"), [("v", -1.0), ("v", np.nan), ("m", np.inf)], ids=["negative", "nan", "inf"]
)
def test_parameters_that_make_no_sense_stay_as_they_are(name: str, value: float) -> None:
    proto = onnx.ModelProto()
    proto.CopyFrom(CASES["gemm-transposed"])
    parameter = next(t for t in proto.graph.initializer if t.name == name)
    parameter.CopyFrom(numpy_helper.from_array(np.full(7, value, np.float32), name))
    result, _ = simplified(proto, "batchnorm")
    assert [n.op_type for n in result.graph.node] == ["Gemm", "BatchNormalization", "Relu"]
    assert result.graph.node[0].attribute == proto.graph.node[0].attribute


def test_a_shared_weight_is_left_to_the_others() -> None:
    nodes = [
        node("Conv", ["x", "w", "cb"], ["c"]),
        norm("c", "y"),
        node("Conv", ["x", "w", "cb"], ["z"], pads=[0, 0, 0, 0]),
    ]
    held = {"w": weight(4, 3, 1, 1), "cb": weight(4), **parameters(4)}
    proto = build(graph(nodes, {"x": [1, 3, 5, 5]}, {"y": None, "z": None}, held))
    result = assert_kept(proto, *PASSES, exact=False)
    assert op_types(result) == ["Conv", "Conv"]
    np.testing.assert_array_equal(initializers(result)["w"], held["w"])
    assert set(initializers(result)) == {"w", "cb", "w_1", "cb_1"}


def test_equal_norms_after_one_weight_are_stored_once() -> None:
    nodes = [
        node("Conv", ["x", "w"], ["c"]),
        norm("c", "d"),
        node("Conv", ["d", "w"], ["e"]),
        norm("e", "y"),
    ]
    proto = build(
        graph(nodes, {"x": [1, 4, 5, 5]}, {"y": None}, {"w": weight(4, 4, 1, 1), **parameters(4)})
    )
    result = assert_kept(proto, *PASSES, exact=False)
    assert op_types(result) == ["Conv", "Conv"]
    assert set(initializers(result)) == {"w", "w_bias"}


def test_two_in_a_row_are_both_folded() -> None:
    nodes = [node("Conv", ["x", "w"], ["c"]), norm("c", "d"), norm("d", "y")]
    proto = build(
        graph(nodes, {"x": [1, 3, 5, 5]}, {"y": None}, {"w": weight(4, 3, 1, 1), **parameters(4)})
    )
    assert op_types(assert_kept(proto, *PASSES, exact=False)) == ["Conv"]


def test_a_weight_in_a_constant_node() -> None:
    tensor = numpy_helper.from_array(weight(4, 3, 1, 1))
    nodes = [
        node("Constant", [], ["w"], value=tensor),
        node("Conv", ["x", "w"], ["c"]),
        norm("c", "y"),
    ]
    proto = build(graph(nodes, {"x": [1, 3, 5, 5]}, {"y": None}, parameters(4)))
    assert op_types(assert_kept(proto, *PASSES, exact=False)) == ["Conv"]


def test_in_a_branch() -> None:
    branch = [node("Gemm", ["x", "w"], ["g"]), norm("g", "t")]
    proto = build(if_graph(branch, "t", weights={"w": weight(4, 4), **parameters(4)}))
    x = weight(2, 4, scale=1.0)
    for cond in (True, False):
        feeds = {"cond": np.array(cond), "x": x}
        result = assert_kept(proto, *PASSES, feeds=feeds, exact=False)
    assert op_types(result) == ["If", "Neg", "Gemm"]


def test_across_a_branch_it_stays() -> None:
    outer = [node("Gemm", ["x", "w"], ["g"])]
    held = {"w": weight(4, 4), **parameters(4)}
    proto = build(if_graph([norm("g", "t")], "t", before=outer, weights=held))
    assert "BatchNormalization" in op_types(both_ways(proto, *PASSES))
