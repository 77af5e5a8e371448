"""Coverage "all" of dynamic quantization: what has an integer kernel runs in it, exactly, optimized or not."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import Array, graph, initializers, model, node, op_types, rng, run, sqnr, weight
from onnx import helper

from quantkit import QInt8, QUInt8, quantize_dynamic
from quantkit.numerics.pairs import is_pair_safe
from quantkit.quantize.plan import Mode

TYPES = pytest.mark.parametrize("weight_type", [QUInt8, QInt8], ids=["uint8", "int8"])


def x(*shape: int) -> Array:
    return rng(7).standard_normal(shape).astype(np.float32)


def check(
    proto: onnx.ModelProto, folder: Path, feeds: dict[str, Array], **options: Any
) -> onnx.ModelProto:
    """Quantize all of a model; its outputs are float's, with and without optimization. Return what was written."""
    target = folder / "q.onnx"
    quantize_dynamic(proto, target, coverage="all", **options)
    expected = run(proto, feeds)
    for optimize in (True, False):
        for e, a in zip(expected, run(target, feeds, optimize=optimize), strict=True):
            assert e.shape == a.shape
            assert sqnr(e, a) > 25
    return onnx.load(target)


def conv_model(shape: tuple[int, ...], *, group: int = 1, bias: bool = True) -> onnx.ModelProto:
    """x -> Conv 'c' of windows of 3, padded on one side only -> y."""
    axes = len(shape) - 2
    held = {"w": weight(6, shape[1] // group, *(3,) * axes)}
    held |= {"b": weight(6, seed=1)} if bias else {}
    pads = [1] * axes + [0] * axes
    made = node(
        "Conv", ["x", *held], ["y"], "c", group=group, pads=pads, strides=[2, *(1,) * (axes - 1)]
    )
    return model(graph([made], {"x": shape}, {"y": None}, held))


@TYPES
@pytest.mark.parametrize("per_channel", [True, False], ids=["channel", "tensor"])
@pytest.mark.parametrize(
    ("shape", "group"), [((2, 4, 9), 1), ((1, 4, 8, 7), 2), ((1, 2, 5, 6, 5), 1)]
)
@pytest.mark.slow
def test_conv_of_any_rank_becomes_conv_integer(
    tmp_path: Path,
    weight_type: Any,
    per_channel: bool,  # noqa: FBT001
    shape: tuple[int, ...],
    group: int,
) -> None:
    made = check(
        conv_model(shape, group=group),
        tmp_path,
        {"x": x(*shape)},
        weight_type=weight_type,
        per_channel=per_channel,
    )
    assert op_types(made).count("ConvInteger") == 1
    assert "Conv" not in op_types(made)


def test_weights_of_conv_integer_are_uint8_with_one_zero_point(tmp_path: Path) -> None:
    """No other are computed by every onnxruntime, and none saturates."""
    made = check(conv_model((1, 4, 8, 8)), tmp_path, {"x": x(1, 4, 8, 8) - 3}, weight_type=QInt8)
    product = next(n for n in made.graph.node if n.op_type == "ConvInteger")
    held = initializers(made)
    assert held[product.input[1]].dtype == np.uint8
    assert held[product.input[3]].shape == ()


def test_conv_integer_computes_what_its_integers_say(tmp_path: Path) -> None:
    """Against numpy: quantize as DynamicQuantizeLinear is defined, sum in integers, scale once."""
    values = x(1, 3, 6, 6)
    proto = model(
        graph(
            [node("Conv", ["x", "w"], ["y"], "c")],
            {"x": [1, 3, 6, 6]},
            {"y": None},
            {"w": weight(5, 3, 1, 1)},
        )
    )
    made = check(proto, tmp_path, {"x": values})
    held = initializers(made)
    conv = next(n for n in made.graph.node if n.op_type == "ConvInteger")
    low, high = min(values.min(), 0.0), max(values.max(), 0.0)
    step = np.float32((high - low) / np.float32(255))
    zero = np.clip(np.rint(-low / step), 0, 255)
    q = np.clip(np.rint(values / step) + zero, 0, 255).astype(np.int64)
    w = held[conv.input[1]].astype(np.int64) - int(held[conv.input[3]])
    sums = np.einsum("nchw,mc->nmhw", q - int(zero), w[:, :, 0, 0])
    (scale,) = (v for k, v in held.items() if k == "w_scale")
    expected = sums.astype(np.float32) * (step * scale)
    (actual,) = run(tmp_path / "q.onnx", {"x": values}, optimize=False)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@TYPES
def test_a_product_of_any_size_runs_in_integers(tmp_path: Path, weight_type: Any) -> None:
    proto = model(
        graph(
            [
                node("MatMul", ["x", "w"], ["m"], "mm"),
                node("Gemm", ["m", "v", "b"], ["y"], "gemm", transB=1, alpha=0.5, beta=2.0),
            ],
            {"x": ["N", 5]},
            {"y": None},
            {"w": weight(5, 7), "v": weight(3, 7, seed=1), "b": weight(3, seed=2)},
        )
    )
    made = check(proto, tmp_path, {"x": x(4, 5)}, weight_type=weight_type)
    assert op_types(made).count("MatMulInteger") == 2
    assert op_types(made).count("DynamicQuantizeLinear") == 2


@TYPES
def test_a_stack_of_matrices_runs_in_integers_with_one_scale(
    tmp_path: Path, weight_type: Any
) -> None:
    proto = model(
        graph(
            [node("MatMul", ["x", "w"], ["y"], "mm")],
            {"x": [2, 3, 4, 8]},
            {"y": None},
            {"w": weight(2, 3, 8, 6)},
        )
    )
    made = check(proto, tmp_path, {"x": x(2, 3, 4, 8)}, weight_type=weight_type)
    assert "MatMulInteger" in op_types(made)
    assert initializers(made)["w_scale"].shape == ()


def test_an_asymmetric_int8_weight_keeps_to_pairs_that_do_not_saturate(tmp_path: Path) -> None:
    from quantkit.api.quantize import Task, quantize
    from quantkit.settings import DynamicSettings

    proto = model(
        graph(
            [node("MatMul", ["x", "w"], ["y"], "mm")],
            {"x": ["N", 16]},
            {"y": None},
            {"w": np.abs(weight(16, 8))},
        )
    )
    target = tmp_path / "q.onnx"
    quantize(
        Task(
            source=proto,
            how=DynamicSettings(weight_type="int8", symmetric_weights=False, coverage="all"),
        ),
        target,
    )
    held = initializers(onnx.load(target))
    q = next(v for v in held.values() if v.dtype == np.int8 and v.ndim == 2)
    assert is_pair_safe(q)
    assert held["w_zero_point"].any()
    assert sqnr(run(proto, {"x": x(4, 16)})[0], run(target, {"x": x(4, 16)})[0]) > 25


@pytest.mark.parametrize(
    ("axis", "shape"), [(0, (9, 4)), (1, (9, 4)), (1, (3, 9, 4)), (-1, (3, 4))]
)
def test_look_ups_along_any_axis_work_on_integers(
    tmp_path: Path, axis: int, shape: tuple[int, ...]
) -> None:
    proto = model(
        graph(
            [node("Gather", ["t", "i"], ["y"], "g", axis=axis)],
            {"i": [2, 2]},
            {"y": None},
            {"t": weight(*shape)},
            types={"i": onnx.TensorProto.INT64},
        )
    )
    made = check(proto, tmp_path, {"i": np.asarray([[0, 2], [1, 2]])})
    held = initializers(made)
    (gather,) = (n for n in made.graph.node if n.op_type == "Gather")
    assert held[gather.input[0]].dtype == np.uint8


def test_who_else_reads_a_weight_reads_it_dequantized_along_its_axis(tmp_path: Path) -> None:
    proto = model(
        graph(
            [
                node("MatMul", ["x", "w"], ["y"], "mm"),
                node("Identity", ["w"], ["copy"], "other"),
            ],
            {"x": ["N", 6]},
            {"y": None, "copy": [6, 5]},
            {"w": weight(6, 5)},
        ),
        opset=11,
    )
    made = check(proto, tmp_path, {"x": x(3, 6)}, weight_type=QInt8)
    (restored,) = (n for n in made.graph.node if n.op_type == "DequantizeLinear")
    assert [a.i for a in restored.attribute if a.name == "axis"] == [-1]
    held = initializers(made)
    assert held[restored.input[1]].shape == (5,)
    (_, copy) = run(tmp_path / "q.onnx", {"x": x(3, 6)})
    expected = held[restored.input[0]] * held[restored.input[1]]
    np.testing.assert_array_equal(copy, expected)


def test_an_excluded_reader_keeps_a_weight_float(tmp_path: Path) -> None:
    proto = model(
        graph(
            [node("MatMul", ["x", "w"], ["m"], "a"), node("MatMul", ["m", "w"], ["y"], "b")],
            {"x": ["N", 16]},
            {"y": None},
            {"w": weight(16, 16), "v": weight(16, 16, seed=1)},
        )
    )
    proto.graph.node.append(node("MatMul", ["y", "v"], ["z"], "c"))
    proto.graph.output.append(helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, None))
    result = quantize_dynamic(proto, tmp_path / "q.onnx", coverage="all", nodes_to_exclude=["b"])
    assert {n.node: n.mode for n in result.plan.nodes} == {
        "a": Mode.FLOAT,
        "b": Mode.FLOAT,
        "c": Mode.INTEGER,
    }


def test_products_of_two_activations_are_quantized_as_they_come(tmp_path: Path) -> None:
    from quantkit.api.quantize import Task, quantize
    from quantkit.settings import DynamicSettings

    proto = model(
        graph(
            [node("MatMul", ["a", "b"], ["y"], "mm")],
            {"a": [2, 3, 8], "b": [2, 8, 4]},
            {"y": None},
        )
    )
    target = tmp_path / "q.onnx"
    quantize(
        Task(source=proto, how=DynamicSettings(activation_products=True, coverage="all")), target
    )
    made = op_types(onnx.load(target))
    assert made.count("DynamicQuantizeLinear") == 2
    feeds = {"a": x(2, 3, 8), "b": x(2, 8, 4) + 1}
    for optimize in (True, False):
        assert sqnr(run(proto, feeds)[0], run(target, feeds, optimize=optimize)[0]) > 25
