"""Products, the matrices that their weights are, and what is asked about what they read."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from builders import Array, graph, model, node, rng, run, weight

import quantkit
from calibrators import ChannelExtremes, PatchMoments, Window
from quantkit.calibration import Calibration, Request
from quantkit.calibration.requests import ExtremesOf, PatchesOf
from quantkit.model.graph.products import Product, products_of
from quantkit.model.graph.view import view_of
from quantkit.numerics.dtypes import INT8
from quantkit.quantize.solve.weights import moment_requests


def products(*nodes: onnx.NodeProto, weights: dict[str, Array], **inputs: Any) -> list[Product]:
    proto = model(graph(nodes, inputs or {"x": [1, 8, 6, 6]}, {"y": None}, weights))
    loaded = ir.from_proto(proto)
    return list(products_of(view_of(loaded)))


def product(*nodes: onnx.NodeProto, weights: dict[str, Array], **inputs: Any) -> Product:
    (found,) = products(*nodes, weights=weights, **inputs)
    return found


GEOMETRIES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "plain": ((6, 8, 3, 3), (1, 8, 6, 6), {}),
    "padded": ((6, 8, 3, 2), (2, 8, 6, 6), {"pads": [1, 0, 1, 1], "strides": [2, 1]}),
    "dilated": ((6, 8, 3, 3), (1, 8, 9, 9), {"dilations": [2, 3]}),
    "same": ((6, 8, 2, 2), (1, 8, 5, 5), {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
    "groups": ((6, 4, 3, 3), (1, 8, 6, 6), {"group": 2}),
    "depthwise": ((8, 1, 3, 3), (1, 8, 6, 6), {"group": 8, "pads": [1] * 4}),
    "signal": ((6, 8, 3), (2, 8, 9), {"pads": [1, 1]}),
    "volume": ((6, 8, 2, 2, 2), (1, 8, 4, 4, 4), {}),
}


@pytest.mark.parametrize("case", GEOMETRIES)
def test_the_matrix_of_a_conv_times_its_patches_is_its_output(case: str) -> None:
    shape, extents, attributes = GEOMETRIES[case]
    conv = node("Conv", ["x", "w"], ["y"], "conv", **attributes)
    w, x = weight(*shape), rng(1).standard_normal(extents).astype(np.float32)
    found = product(conv, weights={"w": w}, x=extents)
    moments = PatchMoments(found.window, 1 << 20)
    moments.observe(x)
    rows = found.layout.rows(w)
    assert rows.shape[-1] == found.layout.inputs == moments.mean.shape[-1]
    (y,) = run(model(graph([conv], {"x": extents}, {"y": None}, {"w": w})), {"x": x})
    means = np.einsum("gnk,gk->gn", rows, moments.mean).reshape(-1)
    np.testing.assert_allclose(means, y.mean(axis=(0, *range(2, y.ndim))), atol=1e-4)


@pytest.mark.parametrize("case", GEOMETRIES)
def test_a_weight_comes_back_from_its_matrix(case: str) -> None:
    shape, extents, attributes = GEOMETRIES[case]
    found = product(
        node("Conv", ["x", "w"], ["y"], "conv", **attributes),
        weights={"w": weight(*shape)},
        x=extents,
    )
    q = rng().integers(-127, 128, shape).astype(np.int8)
    back = found.layout.back(found.layout.rows(q), INT8)
    assert back.dtype == np.int8
    assert np.array_equal(back, q)


MATRICES: dict[str, tuple[list[onnx.NodeProto], tuple[int, int], bool]] = {
    "matmul": ([node("MatMul", ["x", "w"], ["y"], "p")], (8, 5), False),
    "gemm": ([node("Gemm", ["x", "w"], ["y"], "p")], (8, 5), False),
    "gemm transB": ([node("Gemm", ["x", "w"], ["y"], "p", transB=1)], (5, 8), True),
    "turned": (
        [
            node("Transpose", ["w"], ["t"], "t", perm=[1, 0]),
            node("MatMul", ["x", "t"], ["y"], "p"),
        ],
        (5, 8),
        True,
    ),
}


@pytest.mark.parametrize("case", MATRICES)
def test_a_matrix_has_its_outputs_as_rows(case: str) -> None:
    nodes, shape, turned = MATRICES[case]
    w = weight(*shape)
    found = product(*nodes, weights={"w": w}, x=[3, 8])
    assert found.window == Window()
    assert np.array_equal(found.layout.rows(w)[0], w if turned else w.T)
    q = rng().integers(-127, 128, shape).astype(np.int8)
    assert np.array_equal(found.layout.back(found.layout.rows(q), INT8), q)


def test_bias_and_factors_are_read() -> None:
    gemm = node("Gemm", ["x", "w", "b"], ["y"], "p", alpha=0.5, beta=2.0)
    found = product(gemm, weights={"w": weight(8, 5), "b": weight(5)}, x=[3, 8])
    assert (found.bias, found.biased, found.alpha, found.beta) == ("b", True, 0.5, 2.0)
    found = product(node("MatMul", ["x", "w"], ["y"], "p"), weights={"w": weight(8, 5)}, x=[3, 8])
    assert (found.bias, found.biased, found.alpha, found.beta) == ("", False, 1.0, 1.0)


def test_what_has_no_matrix_is_no_product() -> None:
    of_three = node("MatMul", ["x", "w"], ["y"], "p")
    assert not products(of_three, weights={"w": weight(2, 8, 5)}, x=[2, 3, 8])
    left = node("MatMul", ["w", "x"], ["y"], "p")
    assert not products(left, weights={"w": weight(5, 3)}, x=[3, 8])
    turned = node("Gemm", ["x", "w"], ["y"], "p", transA=1)
    assert not products(turned, weights={"w": weight(8, 5)}, x=[8, 3])
    computed = node("MatMul", ["x", "z"], ["y"], "p")
    assert not products(computed, weights={}, x=[3, 8], z=[8, 5])


def two_layers() -> tuple[list[onnx.NodeProto], dict[str, Array]]:
    nodes = [
        node("MatMul", ["x", "q"], ["a"], "q"),
        node("MatMul", ["x", "k"], ["b"], "k"),
        node("Add", ["a", "b"], ["c"], "sum"),
        node("MatMul", ["c", "o"], ["y"], "o"),
    ]
    return nodes, {"q": weight(4, 32), "k": weight(4, 32), "o": weight(32, 4)}


def test_products_that_read_the_same_ask_once_and_cheap_ones_first() -> None:
    nodes, weights = two_layers()
    found = products(*nodes, weights=weights, x=[3, 4])
    assert [r.tensor for r in moment_requests(found)] == ["x", "c"]
    assert [r.tensor for r in moment_requests(found, budget=4 * 4)] == ["x"]
    assert moment_requests(found, budget=0) == ()


def test_moments_and_extremes_come_back_from_a_file(tmp_path: Path) -> None:
    conv = node("Conv", ["x", "w"], ["y"], "conv", pads=[1, 0, 0, 1], strides=[1, 2], group=2)
    proto = model(graph([conv], {"x": ["N", 8, 6, 6]}, {"y": None}, {"w": weight(4, 4, 2, 2)}))
    loaded = ir.from_proto(proto)
    asked = (
        *moment_requests(products_of(view_of(loaded))),
        Request(tensor="y", statistic=ExtremesOf(axis=1)),
    )
    data = {"x": rng().standard_normal((6, 8, 6, 6)).astype(np.float32)}
    made = quantkit.calibrate(proto, data, tmp_path / "c.calibration", requests=asked, workers=1)
    found = Calibration.load(tmp_path / "c.calibration")
    for request, kind in zip(asked, (PatchMoments, ChannelExtremes), strict=True):
        mine = made.seen.answers[request.tensor][request.statistic]
        back = found.seen.answers[request.tensor][request.statistic]
        assert isinstance(back, kind)
        for name, array in mine.state().items():
            assert np.array_equal(back.state()[name], array), name
    moments = found.seen.answers["x"][asked[0].statistic]
    assert isinstance(moments, PatchMoments)
    assert isinstance(asked[0].statistic, PatchesOf)
    assert moments.window == asked[0].statistic.window
    assert moments.count == 6 * min(asked[0].statistic.rows, 6 * 3)
    found.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "c.calibration").read_bytes()
