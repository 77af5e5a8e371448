"""Static quantization from data to file, judged on samples that it did not see."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import Array, graph, model, node, rng, run, sqnr, weight
from static_cases import chain

from quantkit import QuantizeResult, quantize_static
from quantkit.quantize.plan import Mode
from quantkit.settings import RecoverSettings

FAST = RecoverSettings(rounding=False, equalize=False, smooth=False)
IMAGES = rng(1).standard_normal((64, 8, 6, 6)).astype(np.float32)
OTHERS = rng(2).standard_normal((16, 8, 6, 6)).astype(np.float32)
BORDER = {"border": np.array([0, 0, 1, 1, 0, 0, 1, 1])}
FORMATS = ["qdq", "qoperator"]


def judged(
    proto: onnx.ModelProto, folder: Path, data: Array, others: Array, quant_format: str
) -> tuple[float, QuantizeResult]:
    """Return the SQNR of all other samples together."""
    out = folder / "q.onnx"
    result = quantize_static(proto, out, data, quant_format=quant_format, recover=FAST)
    pairs = [(run(proto, {"x": x[None]})[0], run(out, {"x": x[None]})[0]) for x in others]
    return sqnr(np.stack([p[0] for p in pairs]), np.stack([p[1] for p in pairs])), result


def mode_of(result: QuantizeResult, name: str) -> Mode | None:
    decided = result.plan.node.get(name)
    return None if decided is None else decided.mode


def clipped(low: float, high: float) -> tuple[onnx.NodeProto, dict[str, Array]]:
    bounds = {"low": np.array(low, np.float32), "high": np.array(high, np.float32)}
    return node("Clip", ["a", "low", "high"], ["b"], "clip"), bounds


@pytest.mark.parametrize("quant_format", FORMATS)
def test_products_around_a_clip_that_does_not_start_at_0_run_in_integers(
    quant_format: str, tmp_path: Path
) -> None:
    clip, bounds = clipped(-1, 1)
    found, result = judged(chain(clip, constants=bounds), tmp_path, IMAGES, OTHERS, quant_format)
    assert found > 22
    assert result.fusion is not None
    assert result.fusion.integer == {"QLinearConv": 2}


@pytest.mark.parametrize("quant_format", FORMATS)
@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("value", [-3.0, 5.0])
@pytest.mark.slow
def test_a_range_holds_the_values_that_a_pad_adds(
    value: float, *, pooled: bool, quant_format: str, tmp_path: Path
) -> None:
    nodes = [
        node("Relu", ["a"], ["r"], "relu"),
        node("Pad", ["r", "border", "value"], ["p" if pooled else "b"], "pad"),
    ]
    if pooled:
        nodes.append(node("MaxPool", ["p"], ["b"], "pool", kernel_shape=[2, 2]))
    proto = chain(*nodes, constants=BORDER | {"value": np.array(value, np.float32)})
    found, result = judged(proto, tmp_path, IMAGES, OTHERS, quant_format)
    assert found > 30
    assert mode_of(result, "c2") is Mode.STATIC


def test_a_pad_with_minus_infinity_for_a_maxpool_is_no_range(tmp_path: Path) -> None:
    nodes = [
        node("Pad", ["a", "border", "value"], ["p"], "pad"),
        node("MaxPool", ["p"], ["b"], "pool", kernel_shape=[3, 3]),
    ]
    proto = chain(*nodes, constants=BORDER | {"value": np.array(-np.inf, np.float32)})
    found, result = judged(proto, tmp_path, IMAGES, OTHERS, "qdq")
    assert found > 30
    assert mode_of(result, "c2") is Mode.STATIC


@pytest.mark.parametrize("quant_format", FORMATS)
@pytest.mark.parametrize("value", [0.0, -3.0, 5.0])
@pytest.mark.slow
def test_a_resize_that_extrapolates_stays_float(
    value: float, quant_format: str, tmp_path: Path
) -> None:
    resize = node(
        "Resize",
        ["a", "roi", "scales"],
        ["b"],
        "resize",
        coordinate_transformation_mode="tf_crop_and_resize",
        extrapolation_value=value,
    )
    window = np.array([0, 0, -0.2, -0.2, 1, 1, 1.2, 1.2], np.float32)
    constants = {"roi": window, "scales": np.array([1, 1, 2, 2], np.float32)}
    found, result = judged(
        chain(resize, constants=constants), tmp_path, IMAGES, OTHERS, quant_format
    )
    assert found > 25
    assert "extrapolation_value" in result.plan.node["resize"].why


@pytest.mark.parametrize("quant_format", FORMATS)
@pytest.mark.parametrize(
    ("attributes", "opset"),
    [({"ceil_mode": 1, "count_include_pad": 1, "pads": [1] * 4}, 13), ({"dilations": [2, 2]}, 19)],
)
def test_an_average_that_its_kernel_computes_otherwise_stays_float_in_the_file_too(
    attributes: dict[str, Any], opset: int, quant_format: str, tmp_path: Path
) -> None:
    pool = node("AveragePool", ["a"], ["b"], "pool", kernel_shape=[2, 2], strides=[2, 2])
    pool.attribute.extend(onnx.helper.make_node("x", [], [], **attributes).attribute)
    proto = chain(pool, opset=opset)
    found, result = judged(proto, tmp_path, IMAGES, OTHERS, quant_format)
    assert found > 22
    assert mode_of(result, "pool") is Mode.FLOAT
    assert result.fusion is not None
    assert result.fusion.integer == {"QLinearConv": 2}


def attention(length: int, mask: float | None = None, how: str = "") -> onnx.ModelProto:
    """One head of 16 channels, with a causal mask that is added or chosen by Where."""
    later = np.triu(np.ones((length, length), bool), 1)
    weights: dict[str, Array] = {
        name: weight(16, 16, seed=seed, scale=0.3) for seed, name in enumerate("qkvo")
    }
    weights["quarter"] = np.array(0.25, np.float32)
    nodes = [node("MatMul", ["x", name], [f"x{name}"], name) for name in "qkv"]
    nodes += [
        node("Transpose", ["xk"], ["xt"], "turn", perm=[0, 2, 1]),
        node("MatMul", ["xq", "xt"], ["raw"], "scores"),
        node("Mul", ["raw", "quarter"], ["scaled"], "scale"),
    ]
    if how == "Add":
        weights["mask"] = np.where(later, np.float32(mask), np.float32(0))
        nodes.append(node("Add", ["scaled", "mask"], ["masked"], "mask"))
    elif how == "Where":
        weights |= {"seen": ~later, "mask": np.array(mask, np.float32)}
        nodes.append(node("Where", ["seen", "scaled", "mask"], ["masked"], "mask"))
    nodes += [
        node("Softmax", ["masked" if how else "scaled"], ["p"], "softmax", axis=-1),
        node("MatMul", ["p", "xv"], ["mixed"], "mix"),
        node("MatMul", ["mixed", "o"], ["y"], "out"),
    ]
    return model(graph(nodes, {"x": [1, length, 16]}, {"y": None}, weights))


def sentences(count: int, length: int, seed: int) -> Array:
    return rng(seed).standard_normal((count, length, 16)).astype(np.float32)


@pytest.mark.parametrize("quant_format", FORMATS)
@pytest.mark.parametrize(("how", "mask"), [("Add", -1e9), ("Add", -1e4), ("Where", -1e4)])
@pytest.mark.slow
def test_a_mask_does_not_drown_the_scores_of_an_attention(
    how: str, mask: float, quant_format: str, tmp_path: Path
) -> None:
    proto = attention(24, mask, how)
    data, others = sentences(32, 24, 1), sentences(8, 24, 2)
    found, result = judged(proto, tmp_path, data, others, quant_format)
    assert found > 28
    assert mode_of(result, "mask") is Mode.FLOAT
    assert "'mask'" in result.plan.node["mask"].why


@pytest.mark.parametrize("quant_format", FORMATS)
def test_a_softmax_of_small_values_has_the_range_that_was_observed(
    quant_format: str, tmp_path: Path
) -> None:
    data, others = sentences(8, 256, 1) * np.float32(0.5), sentences(4, 256, 2) * np.float32(0.5)
    found, result = judged(attention(256), tmp_path, data, others, quant_format)
    assert found > 25
    assert mode_of(result, "softmax") is Mode.STATIC
    assert result.plan.activation["p"].high < 0.3


@pytest.mark.parametrize("quant_format", FORMATS)
def test_a_softmax_with_few_large_values_among_many_stays_float(
    quant_format: str, tmp_path: Path
) -> None:
    data, others = sentences(8, 256, 1), sentences(4, 256, 2)
    found, result = judged(attention(256), tmp_path, data, others, quant_format)
    assert found > 28
    assert mode_of(result, "softmax") is Mode.FLOAT
