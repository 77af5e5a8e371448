"""What onnxruntime fused is standard operators again."""

from typing import Any

import numpy as np
import onnx
import pytest
from builders import graph, node, op_types, run, weight
from rewrite.simplify.simplify_cases import build, made_up, serialized

from quantkit.model.graph.load import load
from quantkit.quantize.rewrite.split import split_fused

ACTIVATIONS: list[tuple[str, list[float]]] = [
    ("Relu", []),
    ("Sigmoid", []),
    ("Tanh", []),
    ("LeakyRelu", [0.3]),
    ("HardSigmoid", [0.3, 0.4]),
    ("Clip", [-0.5, 0.75]),
]


def assert_split(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Split; the results are the same, with and without onnxruntime's own fusion."""
    built = load(proto).model
    assert split_fused(built) == 1
    result, feeds = serialized(built), made_up(proto)
    for optimize in (False, True):
        expected = run(proto, feeds, optimize=optimize)
        actual = run(result, feeds, optimize=optimize)
        for e, a in zip(expected, actual, strict=True):
            np.testing.assert_allclose(e, a, rtol=1e-5, atol=1e-6)
    return result


def convolution(activation: str, numbers: list[float], *, opset: int = 17) -> onnx.ModelProto:
    attributes: dict[str, Any] = {"activation": activation, "pads": [1, 1, 1, 1]}
    if numbers:
        attributes["activation_params"] = numbers
    nodes = [
        node("FusedConv", ["x", "w", "b", "z"], ["f"], "conv", domain="com.microsoft", **attributes)
    ]
    nodes += [node("Relu", ["f"], ["y"])]
    shapes = {"x": [1, 3, 5, 5], "z": [1, 4, 5, 5]}
    held = {"w": weight(4, 3, 3, 3), "b": weight(4)}
    proto = build(graph(nodes, shapes, {"y": [1, 4, 5, 5], "f": [1, 4, 5, 5]}, held), opset)
    proto.opset_import.add(domain="com.microsoft", version=1)
    return proto


@pytest.mark.parametrize("opset", [9, 17])
@pytest.mark.parametrize(("activation", "numbers"), ACTIVATIONS)
def test_a_convolution_is_a_product_a_sum_and_an_activation(
    activation: str, numbers: list[float], opset: int
) -> None:
    proto = convolution(activation, numbers, opset=opset)
    result = assert_split(proto)
    assert op_types(result) == ["Conv", "Add", activation, "Relu"]
    assert result.graph.node[0].name == "conv"


def test_a_gemm_is_a_product_and_an_activation() -> None:
    more: dict[str, Any] = {"transB": 1, "activation": "LeakyRelu", "activation_alpha": 0.2}
    nodes = [node("FusedGemm", ["x", "w", "b"], ["y"], domain="com.microsoft", **more)]
    held = {"w": weight(4, 3), "b": weight(4)}
    result = assert_split(build(graph(nodes, {"x": [2, 3]}, {"y": [2, 4]}, held)))
    assert op_types(result) == ["Gemm", "LeakyRelu"]


def test_an_activation_that_is_not_known_stays_fused() -> None:
    built = load(convolution("Softplus", [])).model
    assert not split_fused(built)
    result = serialized(built)
    assert op_types(result) == ["FusedConv", "Relu"]


def test_without_an_activation_it_is_the_product() -> None:
    nodes = [node("FusedConv", ["x", "w"], ["y"], domain="com.microsoft")]
    proto = build(graph(nodes, {"x": [1, 2, 4, 4]}, {"y": None}, {"w": np.ones((2, 2, 1, 1), "f")}))
    assert op_types(assert_split(proto)) == ["Conv"]
