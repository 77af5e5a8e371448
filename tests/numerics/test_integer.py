"""The numpy reference against int64 arithmetic and against onnxruntime's kernels."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import graph, model, node, rng, run
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto
from reference_kernels import (
    ConvGeometry,
    Output,
    Quantized,
    qlinear_conv,
    qlinear_matmul,
    requantize,
)

from quantkit.evaluate.integer_layers import matmul_integer
from quantkit.numerics.dtypes import INT8, UINT8, IntType
from quantkit.numerics.pairs import is_pair_safe
from quantkit.numerics.weights import fit, quantize_weight
from quantkit.spec import PerAxis, QuantSpec

Array = NDArray[Any]

PROPERTY = settings(max_examples=50, deadline=None)
ONNX = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8}


def cpu_flags() -> set[str]:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return {flag for line in lines if line.startswith("flags") for flag in line.split()}


def saturates() -> bool:
    """Say whether onnxruntime multiplies u8 by s8 with vpmaddubsw on this machine."""
    flags = cpu_flags()
    return "avx2" in flags and not any("vnni" in f or f.startswith("amx") for f in flags)


AVX2_ONLY = pytest.mark.skipif(
    not saturates(), reason="needs x86 with AVX2 and without VNNI: only there do pair sums saturate"
)


def f32(values: Any) -> NDArray[np.float32]:
    return np.asarray(values, np.float32)


def full(dtype: IntType, *shape: int, seed: int = 0) -> Array:
    """Values over the whole range of a type."""
    return rng(seed).integers(dtype.qmin, dtype.qmax + 1, shape).astype(dtype.storage)


def pair_safe_weight(k: int, n: int, seed: int = 0) -> Array:
    """int8 weights that reach +-127 where they may."""
    array = rng(seed).uniform(-1, 1, (k, n)).astype(np.float32)
    spec = QuantSpec(dtype=INT8, granularity=PerAxis(1), symmetric=True, pair_axes=((0,),))
    q = quantize_weight(array, fit(array, spec))
    assert is_pair_safe(q)
    return q


def kernel(
    op: str,
    feeds: dict[str, Array],
    constants: dict[str, Array],
    order: list[str],
    output: int,
    **attributes: Any,
) -> Array:
    """Run one operator in onnxruntime."""
    types = {name: ONNX[a.dtype.name] for name, a in feeds.items()} | {"y": output}
    shapes = {name: a.shape for name, a in feeds.items()}
    body = graph(
        [node(op, order, ["y"], **attributes)], shapes, {"y": None}, constants, types=types
    )
    return run(model(body), feeds)[0]


def ort_matmul_integer(
    a: Array, b: Array, a_zero: Array, b_zero: Array, *, constant: bool = True
) -> Array:
    feeds, constants = {"a": a}, {"az": a_zero, "bz": b_zero}
    (constants if constant else feeds)["b"] = b  # constant weights are packed, others are not
    order = ["a", "b", "az", "bz"]
    return kernel("MatMulInteger", feeds, constants, order, TensorProto.INT32)


SIZES = [
    pytest.param((1, 64, 32), id="vector"),
    pytest.param((1, 65, 33), id="vector-odd"),
    pytest.param((5, 1, 3), id="k-1"),
    pytest.param((3, 7, 5), id="small-odd"),
    pytest.param((17, 129, 70), id="odd"),
    pytest.param((16, 512, 256), id="large"),
]
PAIRS = [
    pytest.param(UINT8, UINT8, id="u8u8"),
    pytest.param(INT8, INT8, id="s8s8"),
    pytest.param(UINT8, INT8, id="u8s8"),
    pytest.param(INT8, UINT8, id="s8u8"),
]
WEIGHTS = pytest.mark.parametrize("constant", [True, False], ids=["packed", "unpacked"])


class TestMatMulInteger:
    @pytest.mark.parametrize(("left", "right"), PAIRS)
    @PROPERTY
    @given(
        size=st.tuples(*[st.integers(1, 12)] * 3),
        seed=st.integers(0, 9999),
        columns=st.booleans(),
    )
    def test_exact_equals_int64_arithmetic(
        self,
        left: IntType,
        right: IntType,
        size: tuple[int, int, int],
        seed: int,
        *,
        columns: bool,
    ) -> None:
        m, k, n = size
        a, b = full(left, m, k, seed=seed), full(right, k, n, seed=seed + 1)
        a_zero = full(left, seed=seed + 2)
        b_zero = full(right, *([n] if columns else []), seed=seed + 3)
        expected = (a.astype(np.int64) - a_zero) @ (b.astype(np.int64) - b_zero)
        y = matmul_integer(a, b, a_zero, b_zero)
        assert y.dtype == np.int32
        np.testing.assert_array_equal(y, expected)

    def test_zero_points_default_to_zero(self) -> None:
        a, b = full(UINT8, 3, 5), full(INT8, 5, 2)
        np.testing.assert_array_equal(matmul_integer(a, b), a.astype(int) @ b.astype(int))

    def test_leading_axes_are_batches(self) -> None:
        a, b = full(UINT8, 2, 3, 4, 7), full(INT8, 7, 5)
        for saturate in (False, True):
            y = matmul_integer(a, b, 7, full(INT8, 5), saturate=saturate)
            flat = matmul_integer(a.reshape(-1, 7), b, 7, full(INT8, 5), saturate=saturate)
            np.testing.assert_array_equal(y.reshape(-1, 5), flat)

    @pytest.mark.parametrize(
        ("a", "b", "expected"),
        [
            pytest.param([255, 255], [127, 127], 32767, id="positive-pair"),
            pytest.param([255, 255], [-128, -128], -32768, id="negative-pair"),
            pytest.param([255, 255], [64, 64], 32640, id="just-fits"),
            pytest.param([255, 255], [127, -128], -255, id="signs-cancel-inside-the-pair"),
            pytest.param([255] * 4, [127, 127, -128, -128], -1, id="pairs-clip-before-they-add"),
            pytest.param([0, 255, 255, 0], [127] * 4, 64770, id="one-of-each-pair-is-safe"),
            pytest.param([255] * 3, [127] * 3, 32767 + 32385, id="odd-k-pairs-the-last-with-zero"),
        ],
    )
    def test_saturation_clips_each_pair_of_neighbours(
        self, a: list[int], b: list[int], expected: int
    ) -> None:
        left, right = np.array([a], np.uint8), np.array(b, np.int8)[:, None]
        assert matmul_integer(left, right, saturate=True).item() == expected

    def test_zero_points_are_an_exact_correction_of_the_saturated_sum(self) -> None:
        a, b = full(UINT8, 4, 9), full(INT8, 9, 3)
        zero = full(INT8, 3, seed=5)
        correction = matmul_integer(a, b, 77, zero).astype(int) - matmul_integer(a, b)
        saturated = matmul_integer(a, b, saturate=True) + correction
        np.testing.assert_array_equal(matmul_integer(a, b, 77, zero, saturate=True), saturated)

    @PROPERTY
    @given(
        size=st.tuples(*[st.integers(1, 12)] * 3), seed=st.integers(0, 9999), extreme=st.booleans()
    )
    def test_pair_safe_weights_never_saturate(
        self, size: tuple[int, int, int], seed: int, *, extreme: bool
    ) -> None:
        m, k, n = size
        a = full(UINT8, m, k, seed=seed)
        if extreme:
            a = np.where(a > 99, np.uint8(255), np.uint8(0))
        b = pair_safe_weight(k, n, seed=seed)
        np.testing.assert_array_equal(
            matmul_integer(a, b, 128, saturate=True), matmul_integer(a, b, 128)
        )


class TestMatMulIntegerAgainstOnnxruntime:
    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize(("left", "right"), [PAIRS[0], PAIRS[1], PAIRS[3]])
    @WEIGHTS
    def test_types_that_are_exact_on_every_cpu(
        self, size: tuple[int, int, int], left: IntType, right: IntType, *, constant: bool
    ) -> None:
        m, k, n = size
        a, b = full(left, m, k), full(right, k, n, seed=1)
        zeros = full(left, seed=2), full(right, n, seed=3)
        y = ort_matmul_integer(a, b, *zeros, constant=constant)
        np.testing.assert_array_equal(matmul_integer(a, b, *zeros), y)

    @pytest.mark.parametrize("size", SIZES)
    @WEIGHTS
    def test_u8s8_with_pair_safe_weights_is_exact_on_every_cpu(
        self, size: tuple[int, int, int], *, constant: bool
    ) -> None:
        m, k, n = size
        a, b = full(UINT8, m, k), pair_safe_weight(k, n)
        a[0] = 255
        zeros = full(UINT8, seed=2), np.zeros((), np.int8)
        y = ort_matmul_integer(a, b, *zeros, constant=constant)
        np.testing.assert_array_equal(matmul_integer(a, b, *zeros), y)

    @AVX2_ONLY
    @pytest.mark.parametrize("size", SIZES)
    @WEIGHTS
    @pytest.mark.parametrize("zero", [True, False], ids=["zero-points", "no-zero-points"])
    def test_u8s8_saturates_bit_for_bit_on_avx2(
        self, size: tuple[int, int, int], *, constant: bool, zero: bool
    ) -> None:
        m, k, n = size
        a, b = full(UINT8, m, k), full(INT8, k, n, seed=1)
        a[0] = 255
        zeros = np.zeros((), np.uint8), np.zeros((), np.int8)
        if zero:
            zeros = full(UINT8, seed=2), full(INT8, n, seed=3)
        y = ort_matmul_integer(a, b, *zeros, constant=constant)
        np.testing.assert_array_equal(matmul_integer(a, b, *zeros, saturate=True), y)
        if k > 100:
            assert (matmul_integer(a, b, *zeros) != y).any()


class TestRequantize:
    @pytest.mark.parametrize(
        ("accumulator", "expected"),
        [
            pytest.param(1, 10, id="half-to-even-down"),
            pytest.param(3, 12, id="half-to-even-up"),
            pytest.param(-1, 10, id="negative-half-to-even"),
            pytest.param(-20, 0, id="at-the-low-end"),
            pytest.param(-1000, 0, id="clips-low"),
            pytest.param(1000, 255, id="clips-high"),
        ],
    )
    def test_rounds_then_adds_the_zero_point_then_clips(
        self, accumulator: int, expected: int
    ) -> None:
        y = requantize(np.array([accumulator], np.int32), 0.5, 10, UINT8)
        assert y.dtype == np.uint8
        assert y.tolist() == [expected]

    def test_takes_a_scale_for_each_column(self) -> None:
        y = requantize(np.full((2, 3), 10, np.int32), f32([1, 2, -1]), 0, INT8)
        assert y.tolist() == [[10, 20, -10]] * 2


def assert_close(ours: Array, theirs: Array) -> None:
    """At most one step apart, and all but one in a thousand equal."""
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    assert theirs.std() > 5, "a saturated output proves nothing"
    apart = np.abs(ours.astype(int) - theirs)
    assert apart.max() <= 1
    assert (apart == 0).mean() >= 0.999


def operand(values: Array, scale: Array, zero_point: Array) -> Quantized:
    return Quantized(values=values, scale=np.asarray(scale, np.float32), zero_point=zero_point)


def weight_parameters(dtype: IntType, n: int, *, columns: bool) -> tuple[Array, Array]:
    """Scale and zero point of a weight; the zero point stands in the middle of the type."""
    middle = dtype.qmax - 127
    shape = (n,) if columns else ()
    scale = np.asarray(rng(4).uniform(0.001, 0.02, shape), np.float32)
    return scale, np.full(shape, middle, dtype.storage)


def output_for(dtype: IntType, x: Quantized, w: Quantized, k: int) -> Output:
    """Choose a scale that spreads random products over the type: each factor's sigma is about 74."""
    step = float(x.scale) * float(w.scale.mean()) * np.sqrt(k) * 74**2 / 50
    return Output(scale=float(np.float32(step)), zero_point=dtype.qmax - 127, dtype=dtype)


def parameters(x: Quantized, w: Quantized, y: Output) -> dict[str, Array]:
    return {
        "xs": x.scale,
        "xz": x.zero_point,
        "w": w.values,
        "ws": w.scale,
        "wz": w.zero_point,
        "ys": np.asarray(y.scale, np.float32),
        "yz": np.asarray(y.zero_point, y.dtype.storage),
    }


COLUMNS = pytest.mark.parametrize("columns", [True, False], ids=["per-column", "per-tensor"])
ORDER = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"]


class TestQLinearMatMulAgainstOnnxruntime:
    @pytest.mark.parametrize("size", SIZES[3:])
    @pytest.mark.parametrize(
        ("left", "right", "safe"),
        [
            pytest.param(UINT8, UINT8, False, id="u8u8"),
            pytest.param(INT8, INT8, False, id="s8s8"),
            pytest.param(UINT8, INT8, True, id="u8s8-pair-safe"),
            pytest.param(UINT8, INT8, False, id="u8s8-saturating", marks=AVX2_ONLY),
        ],
    )
    @COLUMNS
    def test_agrees(
        self,
        size: tuple[int, int, int],
        left: IntType,
        right: IntType,
        *,
        safe: bool,
        columns: bool,
    ) -> None:
        m, k, n = size
        scale, zero = weight_parameters(right, n, columns=columns)
        values = pair_safe_weight(k, n) if safe else full(right, k, n, seed=1)
        a = operand(full(left, m, k), f32(0.013), np.asarray(left.qmax - 127, left.storage))
        b = operand(values, scale, zero)
        y = output_for(left, a, b, k)
        saturate = left is UINT8 and right is INT8 and not safe
        theirs = kernel(
            "QLinearMatMul", {"x": a.values}, parameters(a, b, y), ORDER, ONNX[left.name]
        )
        assert_close(qlinear_matmul(a, b, y, saturate=saturate), theirs)


GEOMETRIES = [
    pytest.param(8, 6, (3, 3), ConvGeometry(), id="plain"),
    pytest.param(5, 6, (3, 3), ConvGeometry(), id="odd-channels"),
    pytest.param(7, 9, (1, 1), ConvGeometry(), id="pointwise"),
    pytest.param(6, 8, (3, 3), ConvGeometry(strides=(2, 1)), id="strides"),
    pytest.param(6, 8, (3, 3), ConvGeometry(pads=(1, 2, 0, 1)), id="uneven-pads"),
    pytest.param(6, 8, (3, 2), ConvGeometry(dilations=(2, 3), pads=(2, 2, 2, 2)), id="dilations"),
    pytest.param(8, 6, (3, 3), ConvGeometry(group=2), id="groups"),
    pytest.param(6, 6, (3, 3), ConvGeometry(group=2), id="groups-of-odd-channels"),
    pytest.param(4, 8, (3, 3), ConvGeometry(group=4, strides=(2, 2)), id="depth-multiplier"),
    pytest.param(
        4,
        8,
        (3, 5),
        ConvGeometry(group=2, strides=(2, 3), dilations=(2, 1), pads=(1, 3, 2, 0)),
        id="all-at-once",
    ),
]
DEPTHWISE = pytest.param(8, 8, (3, 3), ConvGeometry(group=8, pads=(1, 1, 1, 1)), id="depthwise")


class TestQLinearConvAgainstOnnxruntime:
    @staticmethod
    def both(
        types: tuple[IntType, IntType],
        channels: tuple[int, int],
        window: tuple[int, int],
        geometry: ConvGeometry,
        *,
        columns: bool,
        limit: int = 255,
        saturate: bool = False,
        bias: bool = True,
    ) -> tuple[Array, Array]:
        """Compute one convolution in numpy and in onnxruntime; weights are cut to +-`limit`."""
        left, right = types
        inputs, outputs = channels
        values = full(right, outputs, inputs // geometry.group, *window, seed=1)
        if right is INT8:
            values = np.clip(values, -limit, limit).astype(np.int8)
        scale, zero = weight_parameters(right, outputs, columns=columns)
        x_zero = np.asarray(left.qmax - 120, left.storage)
        x = operand(full(left, 2, inputs, 11, 13), f32(0.013), x_zero)
        w = operand(values, scale, zero)
        y = output_for(left, x, w, values[0].size)
        offsets = rng(2).integers(-20_000, 20_000, outputs).astype(np.int32) if bias else None
        constants = parameters(x, w, y)
        order = ORDER
        if offsets is not None:
            constants["b"] = offsets
            order = [*ORDER, "b"]
        theirs = kernel(
            "QLinearConv",
            {"x": x.values},
            constants,
            order,
            ONNX[left.name],
            strides=geometry.strides,
            pads=geometry.pads,
            dilations=geometry.dilations,
            group=geometry.group,
        )
        ours = qlinear_conv(x, w, y, bias=offsets, geometry=geometry, saturate=saturate)
        return ours, theirs

    @pytest.mark.parametrize(("inputs", "outputs", "window", "geometry"), [*GEOMETRIES, DEPTHWISE])
    @pytest.mark.parametrize(
        ("left", "right", "limit"),
        [
            pytest.param(UINT8, UINT8, 255, id="u8u8"),
            pytest.param(INT8, INT8, 128, id="s8s8"),
            pytest.param(UINT8, INT8, 64, id="u8s8-pair-safe"),
        ],
    )
    @COLUMNS
    def test_agrees_where_the_kernel_is_exact(
        self,
        left: IntType,
        right: IntType,
        limit: int,
        inputs: int,
        outputs: int,
        window: tuple[int, int],
        geometry: ConvGeometry,
        *,
        columns: bool,
    ) -> None:
        ours, theirs = self.both(
            (left, right), (inputs, outputs), window, geometry, columns=columns, limit=limit
        )
        assert_close(ours, theirs)

    @AVX2_ONLY
    @pytest.mark.parametrize(("inputs", "outputs", "window", "geometry"), GEOMETRIES)
    @COLUMNS
    def test_agrees_where_pair_sums_saturate(
        self,
        inputs: int,
        outputs: int,
        window: tuple[int, int],
        geometry: ConvGeometry,
        *,
        columns: bool,
    ) -> None:
        """Only with columns ordered (kh, kw, c), c fastest, do the pairs fall as in onnxruntime."""
        ours, theirs = self.both(
            (UINT8, INT8), (inputs, outputs), window, geometry, columns=columns, saturate=True
        )
        assert_close(ours, theirs)

    @COLUMNS
    def test_the_depthwise_kernel_never_saturates(self, *, columns: bool) -> None:
        geometry = ConvGeometry(group=8, pads=(1, 1, 1, 1))
        ours, theirs = self.both((UINT8, INT8), (8, 8), (3, 3), geometry, columns=columns)
        assert_close(ours, theirs)

    def test_agrees_without_a_bias(self) -> None:
        both = self.both((UINT8, UINT8), (4, 6), (3, 3), ConvGeometry(), columns=True, bias=False)
        assert_close(*both)


def test_a_pointwise_convolution_is_a_matrix_product() -> None:
    x = operand(full(UINT8, 2, 7, 3, 4), f32(0.01), np.asarray(120, np.uint8))
    scale, zero = weight_parameters(INT8, 5, columns=True)
    w = operand(full(INT8, 5, 7, 1, 1), scale, zero)
    y = output_for(UINT8, x, w, 7)
    rows = operand(x.values.transpose(0, 2, 3, 1), x.scale, x.zero_point)
    matrix = operand(w.values.reshape(5, 7).T, scale, zero)
    for saturate in (False, True):
        np.testing.assert_array_equal(
            qlinear_conv(x, w, y, saturate=saturate).transpose(0, 2, 3, 1),
            qlinear_matmul(rows, matrix, y, saturate=saturate),
        )
