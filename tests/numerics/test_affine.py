import tracemalloc
from typing import Any

import numpy as np
import pytest
from builders import graph, model, node, rng, run
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from onnx import TensorProto

from quantkit.numerics import affine as module
from quantkit.numerics.affine import (
    Affine,
    affine_from_range,
    bias_scale,
    blocks,
    dequantize,
    quantize,
    sqnr,
    unblocks,
)
from quantkit.numerics.dtypes import (
    INT2,
    INT4,
    INT8,
    INT16,
    UINT2,
    UINT4,
    UINT8,
    UINT16,
    IntType,
)

Array = NDArray[Any]

PROPERTY = settings(max_examples=50, deadline=None)
TYPES = [INT2, UINT2, INT4, UINT4, INT8, UINT8, INT16, UINT16]
EACH_TYPE = pytest.mark.parametrize("dtype", TYPES, ids=lambda t: t.name)
SYMMETRIC = pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])

FINITE = st.floats(-(2.0**100), 2.0**100, width=32)  # subnormals and both zeros included
DTYPES = st.sampled_from(TYPES)
TENSORS = hnp.arrays(
    np.float32, hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=9), elements=FINITE
)


def f32(values: Any) -> NDArray[np.float32]:
    return np.asarray(values, np.float32)


def affine_of(array: Array, dtype: IntType, axis: int | None = None, *, symmetric: bool) -> Affine:
    """One scale, or one for each index of `axis`, from the array's own range."""
    axes = tuple(i for i in range(array.ndim) if axis is None or i != axis % array.ndim)
    return affine_from_range(
        array.min(axis=axes, keepdims=True),
        array.max(axis=axes, keepdims=True),
        qmin=dtype.qmin,
        qmax=dtype.qmax,
        symmetric=symmetric,
    )


def quantized(array: Array, affine: Affine, dtype: IntType) -> Array:
    return quantize(array, affine, dtype, qmin=dtype.qmin, qmax=dtype.qmax)


def plain(array: Array, affine: Affine, dtype: IntType) -> Array:
    q = np.clip(np.rint(array / affine.scale) + affine.zero_point, dtype.qmin, dtype.qmax)
    return np.asarray(q, dtype.storage)


class TestParameters:
    @PROPERTY
    @given(array=TENSORS, dtype=DTYPES, symmetric=st.booleans())
    def test_scale_is_finite_and_positive_and_zero_point_inside(
        self, array: Array, dtype: IntType, *, symmetric: bool
    ) -> None:
        affine = affine_of(array, dtype, -1, symmetric=symmetric)
        shape = (1,) * (array.ndim - 1) + array.shape[-1:]
        assert affine.scale.shape == affine.zero_point.shape == shape
        assert affine.scale.dtype == affine.zero_point.dtype == np.float32
        assert np.isfinite(affine.scale).all()
        assert (affine.scale > 0).all()
        assert (affine.zero_point == np.rint(affine.zero_point)).all()
        assert (affine.zero_point >= dtype.qmin).all()
        assert (affine.zero_point <= dtype.qmax).all()

    @pytest.mark.parametrize(
        ("dtype", "middle"),
        [
            pytest.param(INT8, 0, id="int8"),
            pytest.param(UINT8, 128, id="uint8"),
            pytest.param(INT4, 0, id="int4"),
            pytest.param(UINT4, 8, id="uint4"),
            pytest.param(INT2, 0, id="int2"),
            pytest.param(UINT2, 2, id="uint2"),
            pytest.param(UINT16, 32768, id="uint16"),
        ],
    )
    def test_symmetric_zero_point_stands_in_the_middle(self, dtype: IntType, middle: int) -> None:
        affine = affine_of(f32([-1, 3]), dtype, symmetric=True)
        assert affine.zero_point.item() == middle

    @pytest.mark.parametrize(
        ("low", "high", "scale", "zero"),
        [
            pytest.param(-1.0, 1.55, 0.01, 100, id="around-zero"),
            pytest.param(0.0, 2.55, 0.01, 0, id="positive"),
            pytest.param(1.0, 2.55, 0.01, 0, id="positive-is-widened-to-hold-zero"),
            pytest.param(-2.55, 0.0, 0.01, 255, id="negative"),
            pytest.param(-2.55, -1.0, 0.01, 255, id="negative-is-widened-to-hold-zero"),
            pytest.param(0.0, 0.0, 1.0, 0, id="empty"),
        ],
    )
    def test_asymmetric_uint8(self, low: float, high: float, scale: float, zero: int) -> None:
        affine = affine_from_range(f32(low), f32(high), qmin=0, qmax=255)
        assert affine.scale.item() == pytest.approx(scale)
        assert affine.zero_point.item() == zero

    @pytest.mark.parametrize(
        ("low", "high"), [(-2.54, 1.0), (-1.0, 2.54), (1.0, 2.54)], ids=["low", "high", "positive"]
    )
    def test_symmetric_int8_follows_the_larger_end(self, low: float, high: float) -> None:
        affine = affine_from_range(f32(low), f32(high), qmin=-128, qmax=127, symmetric=True)
        assert affine.scale.item() == pytest.approx(0.02)

    @pytest.mark.parametrize("tiny", [1e-45, 1e-40, 1e-38, 3e-36], ids=str)
    @SYMMETRIC
    def test_a_subnormal_scale_becomes_one(self, tiny: float, *, symmetric: bool) -> None:
        affine = affine_of(f32([-tiny, tiny]), INT8, symmetric=symmetric)
        scale = affine.scale.item()
        assert scale == 1 or scale >= np.finfo(np.float32).tiny
        assert (scale == 1) == (tiny < 1e-36)

    def test_the_widest_float32_range_does_not_overflow(self) -> None:
        most = np.finfo(np.float32).max
        affine = affine_of(np.array([-most, most]), UINT8, symmetric=False)
        assert np.isfinite(affine.scale).all()


class TestRoundTrip:
    @EACH_TYPE
    @SYMMETRIC
    @PROPERTY
    @given(array=TENSORS, axis=st.none() | st.integers(-1, 0))
    def test_error_is_at_most_half_a_step(
        self, array: Array, axis: int | None, dtype: IntType, *, symmetric: bool
    ) -> None:
        affine = affine_of(array, dtype, axis, symmetric=symmetric)
        back = dequantize(quantized(array, affine, dtype), affine)
        # float32 has 24 bits: x / s is known to (levels * 2**-24) steps, likewise the product.
        slack = 0.5 + (dtype.qmax - dtype.qmin) * 2.0**-22
        error = np.abs(back.astype(np.float64) - array)
        assert (error <= affine.scale.astype(np.float64) * slack).all()

    @PROPERTY
    @given(array=TENSORS, dtype=DTYPES, symmetric=st.booleans())
    def test_zero_is_exact(self, array: Array, dtype: IntType, *, symmetric: bool) -> None:
        affine = affine_of(array, dtype, symmetric=symmetric)
        zeros = np.zeros_like(array)
        q = quantized(zeros, affine, dtype)
        assert (q == affine.zero_point).all()
        assert (dequantize(q, affine) == 0).all()

    @PROPERTY
    @given(array=TENSORS, dtype=DTYPES)
    def test_symmetric_gives_opposite_values_to_opposite_numbers(
        self, array: Array, dtype: IntType
    ) -> None:
        affine = affine_of(array, dtype, symmetric=True)
        positive, negative = (
            quantized(x, affine, dtype) - affine.zero_point for x in (array, -array)
        )
        np.testing.assert_array_equal(positive, -negative)

    @PROPERTY
    @given(array=TENSORS, dtype=DTYPES, symmetric=st.booleans())
    def test_quantizing_again_changes_nothing(
        self, array: Array, dtype: IntType, *, symmetric: bool
    ) -> None:
        affine = affine_of(array, dtype, symmetric=symmetric)
        q = quantized(array, affine, dtype)
        np.testing.assert_array_equal(quantized(dequantize(q, affine), affine, dtype), q)

    @EACH_TYPE
    @SYMMETRIC
    def test_all_zeros_get_scale_one(self, dtype: IntType, *, symmetric: bool) -> None:
        array = np.zeros((3, 4), np.float32)
        affine = affine_of(array, dtype, 1, symmetric=symmetric)
        assert (affine.scale == 1).all()
        np.testing.assert_array_equal(dequantize(quantized(array, affine, dtype), affine), array)

    @pytest.mark.parametrize("shape", [(1,), (1, 1), (1, 1, 1)], ids=str)
    @pytest.mark.parametrize("value", [-3.25, 0.0, 1e-30, 7.0], ids=str)
    def test_a_single_element_is_exact(self, shape: tuple[int, ...], value: float) -> None:
        array = np.full(shape, value, np.float32)
        affine = affine_of(array, UINT8, symmetric=False)
        back = dequantize(quantized(array, affine, UINT8), affine)
        np.testing.assert_allclose(back, array, rtol=1e-6)

    @pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)], ids=str)
    def test_an_empty_tensor_stays_empty(self, shape: tuple[int, ...]) -> None:
        one = np.ones((1,) * len(shape), np.float32)
        affine = Affine(scale=one, zero_point=np.zeros_like(one))
        q = quantized(np.zeros(shape, np.float32), affine, INT8)
        assert q.shape == dequantize(q, affine).shape == shape

    def test_rounding_is_half_to_even_and_saturating(self) -> None:
        affine = Affine(scale=f32([1]), zero_point=f32([0]))
        array = f32([0.5, 1.5, 2.5, -0.5, -1.5, 126.5, 1e9, -1e9, np.inf, -np.inf])
        q = quantized(array, affine, INT8)
        assert q.tolist() == [0, 2, 2, 0, -2, 126, 127, -128, 127, -128]

    def test_a_reduced_range_is_never_left(self) -> None:
        affine = Affine(scale=f32([1]), zero_point=f32([0]))
        q = quantize(f32([-100, -64, 63, 100]), affine, INT8, qmin=-64, qmax=63)
        assert q.tolist() == [-64, -64, 63, 63]

    @pytest.mark.parametrize("source", [np.float16, np.float64], ids=["float16", "float64"])
    def test_other_float_types_are_computed_in_float32(self, source: type) -> None:
        array: Array = rng().standard_normal((5, 6)).astype(source)
        affine = affine_of(array, INT8, 1, symmetric=True)
        expected = plain(array.astype(np.float32), affine, INT8)
        np.testing.assert_array_equal(quantized(array, affine, INT8), expected)


LARGE = [
    pytest.param((200_000,), None, id="vector"),
    pytest.param((200_000,), 0, id="vector-a-scale-each"),
    pytest.param((3, 70_000), None, id="long-rows"),
    pytest.param((3, 70_000), 0, id="long-rows-axis-0"),
    pytest.param((3, 70_000), 1, id="long-rows-axis-1"),
    pytest.param((1000, 300), 0, id="short-rows-axis-0"),
    pytest.param((1000, 300), 1, id="short-rows-axis-1"),
    pytest.param((2, 3, 70_000), 0, id="3d-axis-0"),
    pytest.param((2, 3, 70_000), 1, id="3d-axis-1"),
    pytest.param((2, 3, 70_000), 2, id="3d-axis-2"),
    pytest.param((2, 400, 300), 1, id="3d-long-planes-axis-1"),
    pytest.param((65_536, 2), 0, id="exactly-one-block-of-rows"),
    pytest.param((2, 65_537), 1, id="one-more-than-a-block"),
]


class TestBlockwiseWork:
    @pytest.mark.parametrize(("shape", "axis"), LARGE)
    @pytest.mark.parametrize("dtype", [INT8, UINT8], ids=lambda t: t.name)
    def test_large_tensors_equal_the_plain_formula(
        self, shape: tuple[int, ...], axis: int | None, dtype: IntType
    ) -> None:
        array = rng(len(shape)).standard_normal(shape).astype(np.float32)
        affine = affine_of(array, dtype, axis, symmetric=dtype.signed)
        q = quantized(array, affine, dtype)
        assert q.dtype == dtype.storage
        np.testing.assert_array_equal(q, plain(array, affine, dtype))
        expected = (q.astype(np.float32) - affine.zero_point) * affine.scale
        back = dequantize(q, affine)
        assert back.dtype == np.float32
        np.testing.assert_array_equal(back, expected)

    @PROPERTY
    @given(
        shape=hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=8),
        shared=st.tuples(*[st.booleans()] * 4),
        chunk=st.integers(1, 40),
    )
    def test_the_block_size_never_shows(
        self, shape: tuple[int, ...], shared: tuple[bool, ...], chunk: int
    ) -> None:
        """Parameters of any broadcastable shape, tensors cut anywhere."""
        generator = rng(chunk)
        array = generator.standard_normal(shape).astype(np.float32)
        own = tuple(1 if one else n for one, n in zip(shared, shape, strict=False))
        affine = Affine(
            scale=generator.uniform(0.01, 0.1, own).astype(np.float32),
            zero_point=generator.integers(0, 256, own).astype(np.float32),
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "_CHUNK", chunk)
            q = quantized(array, affine, UINT8)
            back = dequantize(q, affine)
            ratio = sqnr(array, back)
        np.testing.assert_array_equal(q, plain(array, affine, UINT8))
        np.testing.assert_array_equal(back, (q - affine.zero_point) * affine.scale)
        assert ratio == pytest.approx(sqnr(array, back))

    def test_a_scalar_parameter_serves_any_shape(self) -> None:
        affine = Affine(scale=np.asarray(0.5, np.float32), zero_point=np.asarray(3, np.float32))
        array = np.arange(12, dtype=np.float32).reshape(3, 4)
        q = quantized(array, affine, UINT8)
        np.testing.assert_array_equal(q, 2 * array + 3)
        np.testing.assert_array_equal(dequantize(q, affine), array)

    def test_a_view_is_read_right(self) -> None:
        array = rng().standard_normal((300, 400)).astype(np.float32)
        view = array.T[::2]
        affine = affine_of(view, INT8, 0, symmetric=True)
        np.testing.assert_array_equal(quantized(view, affine, INT8), plain(view, affine, INT8))

    @pytest.mark.parametrize("shape", [(4_000_000,), (2000, 2000), (2, 2_000_000)], ids=str)
    def test_memory_does_not_grow_with_the_tensor(self, shape: tuple[int, ...]) -> None:
        array = np.ones(shape, np.float32)
        affine = affine_of(array, INT8, symmetric=True)
        tracemalloc.start()
        try:
            q = quantized(array, affine, INT8)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < q.nbytes + 2_000_000


class TestAgainstOnnxruntime:
    @pytest.mark.parametrize("dtype", [INT8, UINT8], ids=lambda t: t.name)
    @pytest.mark.parametrize("axis", [None, 0, 1, 2], ids=["tensor", "axis0", "axis1", "axis2"])
    def test_equals_quantizelinear_and_dequantizelinear(
        self, dtype: IntType, axis: int | None
    ) -> None:
        shape = (5, 7, 33)
        generator = rng(axis or 9)
        own = (
            (1,) * 3 if axis is None else tuple(n if i == axis else 1 for i, n in enumerate(shape))
        )
        affine = Affine(
            scale=np.exp2(generator.integers(-6, 0, own)).astype(np.float32),
            zero_point=generator.integers(dtype.qmin, dtype.qmax + 1, own).astype(np.float32),
        )
        # Multiples of 1/128 with scales that are powers of two: many ties, many out of range.
        array = (generator.integers(-9000, 9000, shape) / 128).astype(np.float32)
        array[0, 0, :5] = generator.standard_normal(5)
        kept = () if axis is None else (-1,)
        weights = {
            "s": affine.scale.reshape(kept),
            "z": affine.zero_point.astype(dtype.storage).reshape(kept),
        }
        attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
        proto = model(
            graph(
                [
                    node("QuantizeLinear", ["x", "s", "z"], ["q"], **attributes),
                    node("DequantizeLinear", ["q", "s", "z"], ["y"], **attributes),
                ],
                {"x": shape},
                {"q": shape, "y": shape},
                weights,
                types={"q": TensorProto.INT8 if dtype.signed else TensorProto.UINT8},
            )
        )
        q, y = run(proto, {"x": array}, optimize=False)
        ours = quantized(array, affine, dtype)
        np.testing.assert_array_equal(ours, q)
        np.testing.assert_array_equal(dequantize(ours, affine), y)

    @pytest.mark.parametrize("dtype", [INT8, UINT8], ids=lambda t: t.name)
    @SYMMETRIC
    def test_equals_quantizelinear_with_scales_of_real_weights(
        self, dtype: IntType, *, symmetric: bool
    ) -> None:
        array = rng(3).standard_normal((64, 257)).astype(np.float32)
        affine = affine_of(array, dtype, 1, symmetric=symmetric)
        weights = {"s": affine.scale.ravel(), "z": affine.zero_point.ravel().astype(dtype.storage)}
        proto = model(
            graph(
                [node("QuantizeLinear", ["x", "s", "z"], ["q"], axis=1)],
                {"x": array.shape},
                {"q": array.shape},
                weights,
                types={"q": TensorProto.INT8 if dtype.signed else TensorProto.UINT8},
            )
        )
        np.testing.assert_array_equal(quantized(array, affine, dtype), run(proto, {"x": array})[0])


class TestBlocks:
    @PROPERTY
    @given(
        shape=hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=9),
        axis=st.integers(-4, 3),
        size=st.integers(1, 12),
    )
    def test_unblocks_undoes_blocks(self, shape: tuple[int, ...], axis: int, size: int) -> None:
        axis = axis % len(shape) - (len(shape) if axis < 0 else 0)
        array = np.arange(1, np.prod(shape) + 1).reshape(shape)
        at = axis % len(shape)
        n = shape[at]
        cut = blocks(array, axis, size)
        assert cut.shape == (*shape[:at], -(-n // size), size, *shape[at + 1 :])
        assert np.count_nonzero(cut) == array.size  # the padding is zeros
        np.testing.assert_array_equal(unblocks(cut, axis, n), array)

    def test_neighbours_along_the_axis_share_a_block(self) -> None:
        array = np.arange(10).reshape(5, 2)
        assert blocks(array, 0, 2)[:, :, 0].tolist() == [[0, 2], [4, 6], [8, 0]]

    def test_no_copy_when_the_size_divides(self) -> None:
        array = np.zeros((8, 4), np.float32)
        assert np.shares_memory(blocks(array, 0, 4), array)


class TestSqnr:
    @pytest.mark.parametrize(
        ("signal", "noise", "expected"),
        [(1.0, 0.1, 20.0), (1.0, 1.0, 0.0), (1.0, 10.0, -20.0), (2.0, 0.002, 60.0)],
        ids=str,
    )
    def test_is_ten_times_the_log_of_the_energy_ratio(
        self, signal: float, noise: float, expected: float
    ) -> None:
        array = np.full((40, 50), signal)
        assert sqnr(array, array + noise) == pytest.approx(expected)

    def test_equal_tensors_have_no_noise(self) -> None:
        assert sqnr(np.ones(3), np.ones(3)) == float("inf")
        assert sqnr(np.zeros(3), np.zeros(3)) == float("inf")

    def test_noise_on_nothing_is_minus_infinity(self) -> None:
        assert sqnr(np.zeros(3), np.ones(3)) == float("-inf")

    @pytest.mark.parametrize("shape", [(), (1,), (200_000,), (3, 70_000), (2, 3, 70_000)], ids=str)
    def test_sums_all_blocks(self, shape: tuple[int, ...]) -> None:
        x = rng().standard_normal(shape).astype(np.float32)
        y = x + rng(1).standard_normal(shape).astype(np.float32) * f32(0.01)
        x64, y64 = np.asarray(x, np.float64), np.asarray(y, np.float64)
        expected = 10 * np.log10(np.square(x64).sum() / np.square(x64 - y64).sum())
        assert sqnr(np.asarray(x), np.asarray(y)) == pytest.approx(expected)

    @PROPERTY
    @given(seed=st.integers(0, 1000), power=st.integers(-20, 20))
    def test_does_not_depend_on_the_unit(self, seed: int, power: int) -> None:
        x = rng(seed).standard_normal(50)
        y = x + rng(seed + 1).standard_normal(50)
        assert sqnr(x * 2.0**power, y * 2.0**power) == pytest.approx(sqnr(x, y))

    def test_large_float32_values_do_not_overflow(self) -> None:
        x = np.full(10, 1e30, np.float32)
        assert sqnr(x, x * np.float32(1.1)) == pytest.approx(20, abs=1e-3)


class TestBiasScale:
    def test_is_the_product_of_input_and_weight_scale(self) -> None:
        weight_scale = f32([0.5, 0.25, 0.1])
        scale = bias_scale(0.02, weight_scale)
        assert scale.dtype == np.float32
        np.testing.assert_array_equal(scale, (0.02 * weight_scale.astype(np.float64)).astype("f4"))

    @pytest.mark.parametrize("shape", [(), (1,), (7,)], ids=str)
    def test_has_the_shape_of_the_weight_scale(self, shape: tuple[int, ...]) -> None:
        assert bias_scale(0.5, np.ones(shape, np.float32)).shape == shape

    def test_an_int32_bias_is_then_added_to_the_accumulator_without_rescaling(self) -> None:
        x_scale, w_scale, bias = 0.02, f32([0.5, 0.03]), f32([1.7, -0.3])
        scale = bias_scale(x_scale, w_scale)
        accumulator = np.array([1000, -500])
        total = (accumulator + np.rint(bias / scale)) * scale
        np.testing.assert_allclose(total, accumulator * x_scale * w_scale + bias, atol=scale.max())
