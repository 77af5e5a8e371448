"""The integers of emitted models against the numpy reference, exact and as x86 without VNNI computes them.

onnxruntime and the reference must agree bit for bit. Exact and saturating sums must agree as well: then the same file
gives the same integers on every CPU, whatever this one is.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import Array, graph, initializers, model, node, rng, run, weight
from onnx import TensorProto, helper, numpy_helper
from reference_kernels import ConvGeometry, Output, Quantized, qlinear_conv, qlinear_matmul
from static_cases import write

from quantkit import quantize_static
from quantkit.numerics.dtypes import UINT8
from quantkit.quantize.emit.static import Format
from quantkit.settings import NodeRule, StaticSettings


def geometry(item: onnx.NodeProto) -> ConvGeometry:
    given = {a.name: helper.get_attribute_value(a) for a in item.attribute}
    return ConvGeometry(
        strides=tuple(given.get("strides", (1, 1))),
        pads=tuple(given.get("pads", (0, 0, 0, 0))),
        dilations=tuple(given.get("dilations", (1, 1))),
        group=given.get("group", 1),
    )


def reference(item: onnx.NodeProto, known: dict[str, Array], x: Array, *, saturate: bool) -> Array:
    """What a QLinear product makes of `x`."""
    values = [known.get(name) for name in item.input]

    def taken(slot: int) -> Array:
        found = values[slot]
        assert found is not None
        return found

    a = Quantized(values=x, scale=taken(1), zero_point=taken(2))
    bias = None
    if item.op_type == "QGemm":
        scale, zero, extra = taken(7), taken(8), values[6]
        turned = any(a.name == "transB" and a.i for a in item.attribute)
        matrix = taken(3).T if turned else taken(3)
        kernel = matrix.T.reshape(*matrix.T.shape, 1, 1)  # a product is a Conv of one pixel
        w = Quantized(values=kernel, scale=np.atleast_1d(taken(4)), zero_point=taken(5))
        pixels = Quantized(values=x.reshape(*x.shape, 1, 1), scale=a.scale, zero_point=a.zero_point)
        y = Output(scale=float(scale), zero_point=int(zero), dtype=UINT8)
        bias = None if extra is None else extra.astype(np.int32)
        return qlinear_conv(pixels, w, y, bias=bias, saturate=saturate).reshape(x.shape[0], -1)
    y = Output(scale=float(taken(6)), zero_point=int(taken(7)), dtype=UINT8)
    w = Quantized(values=taken(3), scale=taken(4), zero_point=taken(5))
    if item.op_type == "QLinearMatMul":
        return qlinear_matmul(a, w, y, saturate=saturate)
    if len(values) > 8:
        bias = taken(8).astype(np.int32)
    return qlinear_conv(a, w, y, bias=bias, geometry=geometry(item), saturate=saturate)


def product_of(path: Path) -> tuple[onnx.ModelProto, onnx.NodeProto]:
    """Return a model whose results are integers, and its only product."""
    proto = onnx.load(path)
    products = {"QLinearConv", "QLinearMatMul", "QGemm"}
    item = next(n for n in proto.graph.node if n.op_type in products)
    proto.graph.output.append(
        helper.make_tensor_value_info(item.output[0], TensorProto.UINT8, None)
    )
    proto.graph.output.append(helper.make_tensor_value_info(item.input[0], TensorProto.UINT8, None))
    return proto, item


def check_integers(path: Path, x: Array) -> None:
    """onnxruntime, the exact and the saturating reference agree on `x`, and the latter on all that can come in."""
    proto, item = product_of(path)
    known = initializers(proto)
    for optimize in (True, False):
        _, made, read = run(proto, {"x": x}, optimize=optimize)
        np.testing.assert_array_equal(made, reference(item, known, read, saturate=False))
    worst = [np.full_like(read, 255), np.zeros_like(read), read]
    worst.append(rng().choice(np.array([0, 255], np.uint8), read.shape))
    for given in worst:
        exact, clipped = (reference(item, known, given, saturate=s) for s in (False, True))
        np.testing.assert_array_equal(exact, clipped)


CONVS: dict[str, tuple[tuple[int, ...], int, dict[str, Any]]] = {
    "3x3": ((8, 8, 3, 3), 8, {"pads": [1, 1, 1, 1]}),
    "3x3, odd channels": ((5, 7, 3, 3), 7, {"strides": [2, 2]}),
    "1x1": ((6, 8, 1, 1), 8, {}),
    "1x1, odd channels": ((3, 5, 1, 1), 5, {}),
    "grouped": ((10, 9, 3, 3), 18, {"group": 2, "dilations": [2, 2]}),
    "small groups": ((8, 3, 3, 3), 6, {"group": 2, "dilations": [2, 2]}),
    "one channel": ((4, 1, 3, 3), 1, {"pads": [1, 0, 0, 1]}),
    "depthwise": ((6, 1, 3, 3), 6, {"group": 6}),
    "depthwise, twice the channels": ((12, 1, 3, 3), 6, {"group": 6}),
}
# Those in small groups are slower in integers, and right if somebody wants them.
FORCED = (NodeRule(node="c", mode="integer"),)
KINDS = ["random", "positive", "negative", "spikes", "alternating"]


def shaped(kind: str, *shape: int) -> Array:
    """Weights that overflow pairs of sums where nothing is done about it."""
    base = weight(*shape, seed=3)
    sign = np.where(np.arange(base.size) % 2, -1, 1).reshape(shape)
    spikes = np.where(rng(4).random(shape) < 0.3, 50.0, 1.0)
    made: dict[str, Array] = {
        "random": base,
        "positive": np.full(shape, 0.3) + 0.01 * np.abs(base),
        "negative": np.full(shape, -0.3) - 0.01 * np.abs(base),
        "spikes": np.abs(base) * spikes,
        "alternating": 0.3 * sign,
    }
    return np.asarray(made[kind], np.float32)


def conv_model(name: str, kind: str) -> tuple[onnx.ModelProto, Array]:
    shape, channels, attributes = CONVS[name]
    made = node("Conv", ["x", "w", "b"], ["y"], "c", **attributes)
    weights = {"w": shaped(kind, *shape), "b": weight(shape[0])}
    proto = model(graph([made], {"x": ["N", channels, 9, 9]}, {"y": None}, weights))
    return proto, rng(1).standard_normal((2, channels, 9, 9)).astype(np.float32)


@pytest.mark.parametrize("options", [StaticSettings(), StaticSettings(per_channel=False)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CONVS)
def test_planned_convolutions(
    name: str, kind: str, options: StaticSettings, tmp_path: Path
) -> None:
    proto, x = conv_model(name, kind)
    options = replace(options, nodes=FORCED)
    write(proto, tmp_path / "q.onnx", {"x": x}, Format.QOPERATOR, options)
    check_integers(tmp_path / "q.onnx", x)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CONVS)
@pytest.mark.slow
def test_convolutions_of_quantize_static(name: str, kind: str, tmp_path: Path) -> None:
    proto, x = conv_model(name, kind)
    data = rng(2).standard_normal((8, *x.shape[1:])).astype(np.float32)
    quantize_static(proto, tmp_path / "q.onnx", data, quant_format="qoperator", nodes=FORCED)
    check_integers(tmp_path / "q.onnx", x)


def matrix_model(op: str, kind: str, k: int) -> tuple[onnx.ModelProto, Array]:
    w = shaped(kind, k, 6)
    turned = op == "Gemm transB"
    attributes = {"transB": 1} if turned else {}
    inputs = ["x", "w"] if op == "MatMul" else ["x", "w", "b"]
    nodes = [node(op.removesuffix(" transB"), inputs, ["h"], "m", **attributes)]
    nodes.append(node("MatMul", ["h", "v"], ["y"], "last"))
    weights = {"w": w.T.copy() if turned else w, "v": weight(6, 4)}
    if op != "MatMul":
        weights["b"] = weight(6, seed=8)
    proto = model(graph(nodes, {"x": ["N", k]}, {"y": None}, weights))
    return proto, rng(1).standard_normal((5, k)).astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [16, 17])
@pytest.mark.parametrize("op", ["MatMul", "Gemm", "Gemm transB"])
@pytest.mark.slow
def test_matrix_products(op: str, k: int, kind: str, tmp_path: Path) -> None:
    proto, x = matrix_model(op, kind, k)
    write(proto, tmp_path / "q.onnx", {"x": x}, Format.QOPERATOR)
    check_integers(tmp_path / "q.onnx", x)
    data = rng(2).standard_normal((32, 1, k)).astype(np.float32)
    quantize_static(
        proto, tmp_path / "s.onnx", [{"x": row} for row in data], quant_format="qoperator"
    )
    check_integers(tmp_path / "s.onnx", x)


def test_the_last_product_is_safe_too(tmp_path: Path) -> None:
    """A MatMul that hands on floats has no QLinear form: its weights are looked at."""
    proto, x = matrix_model("MatMul", "spikes", 16)
    for output_format in Format:
        path = tmp_path / "q.onnx"
        write(proto, path, {"x": x}, output_format)
        stored = {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
        v = stored["v_quantized"].astype(np.int64)
        for pair in (v[i : i + 2] for i in range(0, len(v), 2)):
            assert 255 * np.maximum(pair, 0).sum(axis=0).max() <= 32767
            assert 255 * np.minimum(pair, 0).sum(axis=0).min() >= -32768


def test_without_care_the_same_weights_would_overflow() -> None:
    """The cases above are hard enough to show something."""
    worst = np.full((16, 4), 127, np.int8)
    a = Quantized(
        values=np.full((2, 16), 255, np.uint8),
        scale=np.ones((), np.float32),
        zero_point=np.zeros((), np.uint8),
    )
    w = Quantized(values=worst, scale=np.ones(4, np.float32), zero_point=np.zeros(4, np.int8))
    y = Output(scale=5000.0, zero_point=0, dtype=UINT8)
    exact, clipped = (qlinear_matmul(a, w, y, saturate=s) for s in (False, True))
    assert (exact != clipped).all()


@pytest.mark.parametrize("form", [Format.QDQ, Format.QOPERATOR])
@pytest.mark.parametrize("values", [2, 3, 10, 40, 300])
@pytest.mark.parametrize("spread", [0.01, 1.0])
@pytest.mark.slow
def test_the_kernel_of_softmax_never_wraps(
    values: int, spread: float, form: Format, tmp_path: Path
) -> None:
    # Nearly equal values lie far below 1, and steps as fine as these overflow the kernel's 32 bits.
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("Softmax", ["m"], ["y"], axis=-1)]
    held = {"w": spread * weight(8, values)}
    proto = model(graph(nodes, {"x": ["N", 8]}, {"y": ["N", values]}, held))
    samples = rng().standard_normal((64, 8)).astype(np.float32)
    quantize_static(
        proto,
        tmp_path / "q.onnx",
        [{"x": x[None]} for x in samples],
        coverage="all",
        quant_format=form.value,
    )
    assert "Softmax" in {
        n.op_type.removeprefix("QLinear") for n in onnx.load(tmp_path / "q.onnx").graph.node
    }
    expected, made = run(proto, {"x": samples})[0], run(tmp_path / "q.onnx", {"x": samples})[0]
    assert np.abs(made - expected).max() < 0.2 * expected.max()
