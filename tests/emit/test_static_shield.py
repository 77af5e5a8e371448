"""What onnxruntime would fuse to the user's harm is kept apart, in both formats."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import graph, model, node, op_types, run, weight
from static_cases import IMAGE, X, chain, conv, conv_weights, write

from quantkit.quantize.emit.static import Format
from quantkit.runtime.kernels import fusion_of
from quantkit.settings import NodeRule, StaticSettings

FORMATS = list(Format)
VECTOR = weight(16, seed=3)


def spread(*shape: int, axis: int) -> Any:
    """Weights whose channels differ so much that one scale for all would lose most of them."""
    wide = np.logspace(-3, 0, shape[axis]).astype(np.float32)
    return weight(*shape, seed=7) * wide.reshape(
        [-1 if i == axis else 1 for i in range(len(shape))]
    )


@pytest.mark.parametrize("output_format", FORMATS)
@pytest.mark.parametrize("clip", ["", "Relu", "Clip"])
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_a_float_product_between_integers_keeps_its_weight(
    op: str, clip: str, output_format: Format, tmp_path: Path
) -> None:
    axis = 0 if op == "Conv" else 1
    middle = node(op, ["a", "m_w"], ["m" if clip else "b"], "middle", pads=[1] * 4)
    rest = [node(clip, ["m"], ["b"])] if clip else []
    proto = chain(middle, *rest, constants={"m_w": spread(8, 8, 3, 3, axis=axis)})
    options = StaticSettings(exclude=("middle",), nodes=(NodeRule(node="c1", mode="integer"),))
    written = write(proto, tmp_path / "q.onnx", {"x": X}, output_format, options)
    assert op_types(onnx.load(written.path)).count("Max") == 1
    fusion = fusion_of(written.path)
    assert fusion.float_products == ("middle",)
    assert fusion.integer == {"QLinearConv": 2}
    # Without the shield optimization changes what is computed.
    fast, plain = (run(written.path, {"x": X}, optimize=o)[0] for o in (True, False))
    step = written.plan.activation["y"].scale
    assert np.abs(fast - plain).max() <= 1.001 * step


@pytest.mark.parametrize("output_format", FORMATS)
def test_conversions_that_onnxruntime_moves_do_not_reach_a_float_product(
    output_format: Format, tmp_path: Path
) -> None:
    pool = {"kernel_shape": [2, 2], "strides": [1, 1], "pads": [0, 0, 1, 1]}
    nodes = (
        node("MaxPool", ["a"], ["p"], "before", **pool),
        conv("p", "m", "middle"),
        node("Relu", ["m"], ["r"], "relu"),
        node("MaxPool", ["r"], ["b"], "behind", **pool),
    )
    constants = {"middle_w": spread(8, 8, 3, 3, axis=0), "middle_b": weight(8)}
    options = StaticSettings(exclude=("middle",), nodes=(NodeRule(node="c1", mode="integer"),))
    written = write(
        chain(*nodes, constants=constants), tmp_path / "q.onnx", {"x": X}, output_format, options
    )
    assert fusion_of(written.path).float_products == ("middle",)


def test_without_the_shield_the_weight_would_be_lost(tmp_path: Path) -> None:
    """If this fails, onnxruntime no longer does it, and the shield can go."""
    middle = node("ConvTranspose", ["a", "m_w"], ["b"], "middle", pads=[1] * 4)
    proto = chain(middle, constants={"m_w": spread(8, 8, 3, 3, axis=1)})
    options = StaticSettings(exclude=("middle",), nodes=(NodeRule(node="c1", mode="integer"),))
    written = write(proto, tmp_path / "q.onnx", {"x": X}, Format.QDQ, options)
    bare = onnx.load(written.path)
    shield = next(n for n in bare.graph.node if n.op_type == "Max")
    reader = next(n for n in bare.graph.node if n.name == "middle")
    reader.input[0] = shield.input[0]
    bare.graph.node.remove(shield)
    fast, plain = (run(bare, {"x": X}, optimize=o)[0] for o in (True, False))
    assert np.abs(fast - plain).max() > 1.5 * written.plan.activation["y"].scale


@pytest.mark.parametrize("output_format", FORMATS)
def test_no_node_is_added_where_none_is_needed(output_format: Format, tmp_path: Path) -> None:
    nodes = [
        conv("x", "a", "c1"),
        node("Tanh", ["a"], ["t"]),
        node("ConvTranspose", ["t", "u"], ["b"], "up"),  # its input is float
        conv("b", "y", "c2"),
    ]
    weights = {**conv_weights("c1", "c2"), "u": weight(8, 8, 2, 2)}
    proto = model(graph(nodes, IMAGE, {"y": None}, weights))
    written = write(proto, tmp_path / "q.onnx", {"x": X}, output_format)
    assert "Max" not in op_types(onnx.load(written.path))


@pytest.mark.parametrize(
    ("name", "excluded", "gemm"),
    [("cpu", 1, 1), ("arm64", 1, 1), ("qnn", 1, 0), ("tensorrt", 0, 0), ("openvino", 0, 0)],
)
def test_only_targets_that_need_it_get_such_nodes(
    name: str, excluded: int, gemm: int, tmp_path: Path
) -> None:
    options = StaticSettings(target=name)
    add = node("Add", ["a", "x"], ["s"], "add")  # computed in integers on every target
    own = {"middle_w": spread(8, 8, 3, 3, axis=0), "middle_b": weight(8, seed=77)}
    proto = chain(add, conv("s", "b", "middle"), constants=own)
    left = replace(
        options,
        exclude=("middle",),
        nodes=tuple(NodeRule(node=n, mode="integer") for n in ("c1", "add")),
    )
    written = write(proto, tmp_path / "conv.onnx", {"x": X}, Format.QDQ, left)
    assert op_types(onnx.load(written.path)).count("Max") == excluded

    nodes = [
        node("Gemm", ["x", "w", "b"], ["h"], "g"),
        node("Relu", ["h"], ["r"]),
        node("Tanh", ["r"], ["y"]),
    ]
    weights = {"w": weight(16, 16), "b": VECTOR}
    proto = model(graph(nodes, {"x": [4, 16]}, {"y": None}, weights))
    x = {"x": weight(4, 16, seed=5, scale=1)}
    written = write(proto, tmp_path / "gemm.onnx", x, Format.QDQ, options)
    assert op_types(onnx.load(written.path)).count("Max") == gemm


def integers_of(nodes: list[onnx.NodeProto], shape: Any, folder: Path, **weights: Any) -> Any:
    constants = {"w": weight(16, 16), "v": weight(16, 16, seed=1), **weights}
    used = {name for n in nodes for name in n.input}
    known = {k: v for k, v in constants.items() if k in used}
    proto = model(graph(nodes, {"x": shape}, {"y": None}, known))
    x = {"x": weight(*(n if isinstance(n, int) else 2 for n in shape), seed=5, scale=1)}
    written = write(proto, folder / "q.onnx", x)
    np.testing.assert_allclose(
        run(written.path, x)[0], run(written.path, x, optimize=False)[0], rtol=1e-3, atol=1e-3
    )
    fusion = fusion_of(written.path)
    assert not fusion.float
    return fusion.integer


SHAPES = [(4, 16), ("N", 16), (2, 3, 16), ("N", 3, 16)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_matmul_and_a_residual_stay_two_nodes(shape: Any, tmp_path: Path) -> None:
    nodes = [
        node("Tanh", ["x"], ["t"]),
        node("MatMul", ["t", "w"], ["h"], "m"),
        node("Add", ["h", "t"], ["y"]),
    ]
    assert integers_of(nodes, shape, tmp_path) == {"MatMulIntegerToFloat": 1}


@pytest.mark.parametrize("shape", SHAPES[2:], ids=str)
def test_matmul_and_its_bias_stay_two_nodes(shape: Any, tmp_path: Path) -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["h"], "m"),
        node("Add", ["h", "b"], ["z"]),
        node("Tanh", ["z"], ["y"]),
    ]
    assert integers_of(nodes, shape, tmp_path, b=VECTOR) == {"MatMulIntegerToFloat": 1}


@pytest.mark.parametrize("activation", ["Relu", "Clip"])
def test_gemm_and_a_float_relu_stay_two_nodes(activation: str, tmp_path: Path) -> None:
    nodes = [
        node("Gemm", ["x", "w", "b"], ["h"], "g"),
        node(activation, ["h"], ["r"]),
        node("Tanh", ["r"], ["y"]),
    ]
    assert integers_of(nodes, (4, 16), tmp_path, b=VECTOR) == {"QGemm": 1}


@pytest.mark.parametrize("activation", ["Relu", "Clip"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_matmul_and_a_float_relu_stay_two_nodes(
    activation: str, shape: Any, tmp_path: Path
) -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["h"], "m"),
        node(activation, ["h"], ["r"]),
        node("Tanh", ["r"], ["y"]),
    ]
    assert integers_of(nodes, shape, tmp_path) == {"MatMulIntegerToFloat": 1}
    nodes = [*nodes[:2], node("Tanh", ["r"], ["s"]), node("Sub", ["s", "h"], ["y"])]
    assert integers_of(nodes, shape, tmp_path) == {"MatMulIntegerToFloat": 1}


@pytest.mark.parametrize("op", ["MatMul", "Gemm"])
def test_a_product_whose_result_floats_and_integers_read(op: str, tmp_path: Path) -> None:
    nodes = [
        node(op, ["x", "w"], ["h"], "m1"),
        node(op, ["h", "v"], ["z"], "m2"),
        node("Tanh", ["h"], ["t"]),
        node("Sub", ["z", "t"], ["y"]),
    ]
    kernel = {"MatMul": "MatMulIntegerToFloat", "Gemm": "QGemm"}[op]
    assert integers_of(nodes, (4, 16), tmp_path) == {kernel: 2}
