import json
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from builders import graph, model, node, rng, run, weight
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from onnx import TensorProto

from calibrators import RangeMethod
from quantkit.errors import UsageError
from quantkit.numerics.affine import sqnr
from quantkit.numerics.dtypes import INT4, INT8, INT16, UINT4, UINT8, UINT16, IntType
from quantkit.numerics.pairs import is_pair_safe
from quantkit.numerics.weights import (
    analyze_weight,
    dequantize_weight,
    fit,
    quantize_weight,
)
from quantkit.spec import Granularity, PerAxis, PerBlock, PerTensor, QuantSpec

Array = NDArray[Any]

PROPERTY = settings(max_examples=50, deadline=None)
VALUES = st.floats(-(2.0**40), 2.0**40, width=32)
MATRICES = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=8),
    elements=VALUES,
)
GRANULARITIES = st.one_of(
    st.just(PerTensor()),
    st.builds(PerAxis, st.integers(-2, 1)),
    st.builds(PerBlock, st.integers(-2, 1), st.integers(1, 8)),
)
SCHEMES = [
    pytest.param(INT8, True, id="int8-symmetric"),
    pytest.param(UINT8, False, id="uint8-asymmetric"),
    pytest.param(UINT8, True, id="uint8-symmetric"),
    pytest.param(INT4, True, id="int4-symmetric"),
    pytest.param(UINT4, False, id="uint4-asymmetric"),
]


def f32(values: Any) -> NDArray[np.float32]:
    return np.asarray(values, np.float32)


def spec(**changes: Any) -> QuantSpec:
    values: dict[str, Any] = {
        "dtype": INT8,
        "granularity": PerTensor(),
        "symmetric": True,
    } | changes
    return QuantSpec(**values)


def round_trip(array: Array, how: QuantSpec, method: RangeMethod = RangeMethod.MINMAX) -> Array:
    qparams = fit(array, how, method)
    return dequantize_weight(quantize_weight(array, qparams), qparams)


def spread(scale: Array, shape: tuple[int, ...], granularity: Granularity) -> Array:
    """Return the scale of each element, straight from the granularity's docstring."""
    match granularity:
        case PerTensor():
            return np.broadcast_to(scale, shape)
        case PerAxis(axis=axis):
            return np.broadcast_to(
                np.moveaxis(scale.reshape(-1, *[1] * (len(shape) - 1)), 0, axis), shape
            )
        case PerBlock(axis=axis, size=size):
            return np.repeat(scale, size, axis=axis).take(range(shape[axis]), axis=axis)


class TestFit:
    @pytest.mark.parametrize(
        ("granularity", "shape"),
        [
            pytest.param(PerTensor(), (), id="tensor"),
            pytest.param(PerAxis(0), (6,), id="axis-0"),
            pytest.param(PerAxis(1), (10,), id="axis-1"),
            pytest.param(PerAxis(-1), (3,), id="axis-last"),
            pytest.param(PerBlock(1, 5), (6, 2, 3), id="block-divides"),
            pytest.param(PerBlock(1, 4), (6, 3, 3), id="block-does-not-divide"),
            pytest.param(PerBlock(-1, 64), (6, 10, 1), id="block-larger-than-axis"),
        ],
    )
    @pytest.mark.parametrize(("dtype", "symmetric"), SCHEMES)
    def test_parameters_have_the_documented_shape_and_type(
        self, granularity: Granularity, shape: tuple[int, ...], dtype: IntType, *, symmetric: bool
    ) -> None:
        how = spec(granularity=granularity, dtype=dtype, symmetric=symmetric)
        qparams = fit(weight(6, 10, 3), how)
        assert qparams.spec is how
        assert qparams.scale.shape == qparams.zero_point.shape == shape
        assert qparams.scale.dtype == np.float32
        assert qparams.zero_point.dtype == dtype.storage
        assert (qparams.scale > 0).all()

    @pytest.mark.parametrize(("dtype", "symmetric"), SCHEMES)
    @PROPERTY
    @given(array=MATRICES, granularity=GRANULARITIES, reduced=st.booleans())
    def test_error_is_at_most_half_a_step(
        self,
        array: Array,
        granularity: Granularity,
        dtype: IntType,
        *,
        symmetric: bool,
        reduced: bool,
    ) -> None:
        how = spec(granularity=granularity, dtype=dtype, symmetric=symmetric, reduced=reduced)
        qparams = fit(array, how)
        q = quantize_weight(array, qparams)
        assert q.shape == array.shape
        assert q.dtype == dtype.storage
        assert q.min() >= how.qmin
        assert q.max() <= how.qmax
        error = np.abs(dequantize_weight(q, qparams).astype(np.float64) - array)
        step = spread(qparams.scale, array.shape, granularity).astype(np.float64)
        assert (error <= step * 0.5001).all()

    @PROPERTY
    @given(array=MATRICES, granularity=GRANULARITIES)
    def test_zero_is_exact(self, array: Array, granularity: Granularity) -> None:
        array = np.where(np.abs(array) < 1, np.float32(0), array)
        back = round_trip(array, spec(granularity=granularity, dtype=UINT8, symmetric=False))
        assert (back[array == 0] == 0).all()

    def test_each_block_has_the_scale_of_its_own_values(self) -> None:
        array = f32([[1.27, 0], [0, 12.7], [127, 0]])
        scale = fit(array, spec(granularity=PerBlock(0, 2))).scale
        np.testing.assert_allclose(scale, f32([[0.01, 0.1], [1, 1]]), rtol=1e-6)

    @pytest.mark.parametrize("granularity", [PerAxis(1), PerBlock(0, 16)], ids=["axis", "block"])
    @pytest.mark.parametrize("dtype", [INT8, UINT8], ids=lambda t: t.name)
    def test_onnxruntime_reads_the_same_values(
        self, granularity: Granularity, dtype: IntType
    ) -> None:
        array = weight(64, 24)
        qparams = fit(array, spec(granularity=granularity, dtype=dtype, symmetric=dtype.signed))
        q = quantize_weight(array, qparams)
        attributes: dict[str, Any] = {"axis": 1}
        if isinstance(granularity, PerBlock):
            attributes = {"axis": 0, "block_size": granularity.size}
        body = graph(
            [node("DequantizeLinear", ["q", "s", "z"], ["y"], **attributes)],
            {"q": q.shape},
            {"y": q.shape},
            {"s": qparams.scale, "z": qparams.zero_point},
            types={"q": TensorProto.INT8 if dtype.signed else TensorProto.UINT8},
        )
        (y,) = run(model(body, opset=21, ir_version=10), {"q": q}, optimize=False)
        np.testing.assert_array_equal(dequantize_weight(q, qparams), y)

    @pytest.mark.parametrize(("dtype", "symmetric"), SCHEMES)
    @PROPERTY
    @given(seed=st.integers(0, 9999), size=st.integers(1, 60), positive=st.booleans())
    def test_mse_is_never_worse_than_minmax(
        self, dtype: IntType, seed: int, size: int, *, symmetric: bool, positive: bool
    ) -> None:
        array = rng(seed).standard_normal(size).astype(np.float32)
        array = np.abs(array) if positive else array
        how = spec(dtype=dtype, symmetric=symmetric)
        plain, best = (
            float(np.square(round_trip(array, how, method).astype(np.float64) - array).sum())
            for method in (RangeMethod.MINMAX, RangeMethod.MSE)
        )
        assert best <= plain * (1 + 1e-4) + 1e-10 * float(np.square(array).sum())


PAIRED = [
    pytest.param(PerTensor(), 0, id="tensor-axis-0"),
    pytest.param(PerTensor(), 1, id="tensor-axis-1"),
    pytest.param(PerAxis(1), 0, id="columns-axis-0"),
    pytest.param(PerAxis(0), 1, id="rows-axis-1"),
    pytest.param(PerAxis(-1), -2, id="negative-axes"),
]


class TestPairSafety:
    @pytest.mark.parametrize(("granularity", "axis"), PAIRED)
    @PROPERTY
    @given(array=MATRICES)
    def test_no_pair_sum_can_saturate(
        self, array: Array, granularity: Granularity, axis: int
    ) -> None:
        qparams = fit(array, spec(granularity=granularity, pair_axes=((axis,),)))
        q = quantize_weight(array, qparams)
        assert is_pair_safe(np.moveaxis(q, axis, -2))

    @pytest.mark.parametrize(("granularity", "axis"), PAIRED)
    @PROPERTY
    @given(steps=hnp.arrays(np.int32, (7, 5), elements=st.integers(-254, 254)))
    @pytest.mark.slow
    def test_no_pair_sum_can_saturate_when_all_values_are_ties(
        self, steps: Array, granularity: Granularity, axis: int
    ) -> None:
        array = (steps / 2).astype(np.float32)
        array[0, 0] = 127
        q = quantize_weight(array, fit(array, spec(granularity=granularity, pair_axes=((axis,),))))
        assert is_pair_safe(np.moveaxis(q, axis, -2))

    @pytest.mark.parametrize("reduced", [False, True], ids=["full", "reduced"])
    @pytest.mark.parametrize(("granularity", "axis"), PAIRED)
    @PROPERTY
    @given(array=MATRICES)
    @pytest.mark.slow
    def test_scale_at_most_doubles_and_never_shrinks(
        self, array: Array, granularity: Granularity, axis: int, *, reduced: bool
    ) -> None:
        how = spec(granularity=granularity, reduced=reduced)
        # On a grid the scale is a step over an integer: pairs may take more than half of that.
        with patch("quantkit.numerics.weights._may_follow_grids", return_value=False):
            plain = fit(array, how).scale
            safe = fit(
                array, spec(granularity=granularity, pair_axes=((axis,),), reduced=reduced)
            ).scale
        assert (safe >= plain).all()
        assert (safe <= plain * 2.0001).all()

    @pytest.mark.parametrize(("granularity", "axis"), PAIRED)
    @PROPERTY
    @given(array=MATRICES)
    @pytest.mark.slow
    def test_scale_stays_when_no_pair_is_large(
        self, array: Array, granularity: Granularity, axis: int
    ) -> None:
        lonely = np.moveaxis(array.copy(), axis, 0)
        lonely[1::2] = 0
        lonely = np.moveaxis(lonely, 0, axis)
        plain = fit(lonely, spec(granularity=granularity))
        safe = fit(lonely, spec(granularity=granularity, pair_axes=((axis,),)))
        np.testing.assert_array_equal(safe.scale, plain.scale)

    @PROPERTY
    @given(array=MATRICES)
    def test_scale_stays_in_a_reduced_range_which_is_safe_by_itself(self, array: Array) -> None:
        plain = fit(array, spec(granularity=PerAxis(1), reduced=True))
        safe = fit(array, spec(granularity=PerAxis(1), reduced=True, pair_axes=((0,),)))
        np.testing.assert_array_equal(safe.scale, plain.scale)
        assert is_pair_safe(quantize_weight(array, safe))

    def test_only_channels_with_large_pairs_are_widened(self) -> None:
        array = f32([[1.013, 1.017, 1.011], [1.009, -1.013, 0], [0, 0, 1.019]])
        plain = fit(array, spec(granularity=PerAxis(1))).scale
        safe = fit(array, spec(granularity=PerAxis(1), pair_axes=((0,),))).scale
        np.testing.assert_allclose(safe / plain, [2.022 / 1.013, 1, 1], rtol=1e-2)

    @pytest.mark.parametrize(
        ("granularity", "axis", "shape"),
        [
            pytest.param(PerTensor(), 1, (), id="tensor"),
            pytest.param(PerAxis(2), 1, (6,), id="batched-matmul"),
            pytest.param(PerAxis(1), 2, (8,), id="lstm-in-two-directions"),
        ],
    )
    def test_a_stack_of_matrices_shares_its_scales(
        self, granularity: Granularity, axis: int, shape: tuple[int, ...]
    ) -> None:
        array = weight(2, 8, 6)
        qparams = fit(array, spec(granularity=granularity, pair_axes=((axis,),)))
        assert qparams.scale.shape == shape
        assert is_pair_safe(np.moveaxis(quantize_weight(array, qparams), axis, -2))

    def test_plain_gaussian_weights_per_channel_would_not_be_safe(self) -> None:
        array = rng().uniform(-1, 1, (64, 64)).astype(np.float32)
        plain = quantize_weight(array, fit(array, spec(granularity=PerAxis(1))))
        assert not is_pair_safe(plain)


def channel_shift(array: Array, axis: int, how: QuantSpec) -> Array:
    """Return how far each channel's sum moves, in steps."""
    qparams = fit(array, how)
    back = dequantize_weight(quantize_weight(array, qparams), qparams)
    axes = tuple(i for i in range(array.ndim) if i != axis % array.ndim)
    moved = (back.astype(np.float64) - array).sum(axis=axes)
    return np.asarray(np.abs(moved) / qparams.scale)


class TestKeepSum:
    @pytest.mark.parametrize(
        ("dtype", "symmetric"),
        [
            pytest.param(INT8, True, id="int8"),
            pytest.param(UINT8, True, id="uint8-symmetric"),
        ],
    )
    @pytest.mark.parametrize(
        ("shape", "axis"),
        [
            pytest.param((64, 32, 3, 3), 0, id="conv"),
            pytest.param((512, 9), 0, id="depthwise"),
            pytest.param((100, 300), 1, id="matmul"),
            pytest.param((100, 300), -1, id="matmul-negative-axis"),
            pytest.param((300, 1), 0, id="one-value-a-channel"),
        ],
    )
    def test_each_channel_keeps_its_sum_within_half_a_step(
        self, dtype: IntType, shape: tuple[int, ...], axis: int, *, symmetric: bool
    ) -> None:
        array = rng(7).uniform(-0.3, 1, shape).astype(np.float32)
        how = spec(dtype=dtype, symmetric=symmetric, granularity=PerAxis(axis), sum_axis=axis)
        assert (channel_shift(array, axis, how) <= 0.501).all()

    def test_a_channel_keeps_its_sum_when_the_value_nearest_to_a_tie_is_its_smallest(self) -> None:
        array = f32([[-3.4, -0.15, 251.6]])  # scale 1, zero point 3: -3.4 may not become -4
        how = spec(dtype=UINT8, symmetric=False, granularity=PerAxis(0), sum_axis=0)
        assert channel_shift(array, 0, how).item() <= 0.501

    @pytest.mark.parametrize("axis", [0, 1])
    def test_channels_keep_their_sums_when_all_share_one_scale(self, axis: int) -> None:
        array = rng(3).standard_normal((96, 64)).astype(np.float32)
        assert (
            channel_shift(array, axis, spec(granularity=PerTensor(), sum_axis=axis)).max() <= 0.501
        )

    @PROPERTY
    @given(seed=st.integers(0, 9999), k=st.integers(1, 200))
    def test_int8_channels_of_any_length_keep_their_sums(self, seed: int, k: int) -> None:
        array = rng(seed).standard_normal((4, k)).astype(np.float32)
        how = spec(granularity=PerAxis(0), sum_axis=0)
        assert (channel_shift(array, 0, how) <= 0.501).all()

    def test_plain_rounding_shifts_channels(self) -> None:
        array = weight(64, 32, 3, 3)
        assert channel_shift(array, 0, spec(granularity=PerAxis(0))).max() > 5

    @pytest.mark.parametrize("dtype", [INT8, UINT8], ids=lambda t: t.name)
    def test_every_value_stays_within_one_step_and_inside_the_type(self, dtype: IntType) -> None:
        array = rng(1).standard_normal((64, 200)).astype(np.float32)
        how = spec(dtype=dtype, symmetric=dtype.signed, granularity=PerAxis(0), sum_axis=0)
        qparams = fit(array, how)
        q = quantize_weight(array, qparams)
        assert q.dtype == dtype.storage
        error = np.abs(dequantize_weight(q, qparams) - array)
        assert (error <= qparams.scale[:, None] * 1.0001).all()

    def test_costs_little_accuracy(self) -> None:
        array = weight(64, 32, 3, 3)
        plain = sqnr(array, round_trip(array, spec(granularity=PerAxis(0))))
        kept = sqnr(array, round_trip(array, spec(granularity=PerAxis(0), sum_axis=0)))
        assert plain - 0.5 < kept < plain


def outliers_in_blocks() -> Array:
    """One large value in every channel, each of which spoils one block of 64 only."""
    array = rng(2).uniform(-1, 1, (512, 32)).astype(np.float32)
    array[rng(3).integers(0, 512, 32), np.arange(32)] = 30
    return array


class TestAnalyzeWeight:
    @pytest.mark.parametrize(
        ("array", "expected"),
        [
            pytest.param(weight(1024, 64), "tensor", id="gaussian"),
            pytest.param(rng(1).uniform(-1, 1, (256, 64)).astype("f4"), "tensor", id="uniform"),
            pytest.param(
                weight(1024, 64) * np.logspace(0, 2, 64, dtype="f4"), "channel", id="100x"
            ),
            pytest.param(outliers_in_blocks(), "block", id="outliers-in-blocks"),
            pytest.param(np.zeros((128, 8), np.float32), "tensor", id="zeros"),
            pytest.param(np.ones((128, 8), np.float32), "tensor", id="ones"),
        ],
    )
    def test_asks_for_what_it_needs(self, array: Array, expected: str) -> None:
        assert analyze_weight(array, 1).asks_for == expected

    @pytest.mark.parametrize("axis", [0, 1, -1, -2])
    def test_channels_are_along_the_given_axis(self, axis: int) -> None:
        array = np.moveaxis(weight(64, 1024) * np.logspace(0, 2, 64, dtype="f4")[:, None], 0, axis)
        found = analyze_weight(array, axis)
        assert found.asks_for == "channel"
        assert found.sqnr_channel > found.sqnr_tensor + 3

    @pytest.mark.parametrize("dtype", [INT8, UINT8, INT4], ids=lambda t: t.name)
    def test_figures_are_those_of_the_three_granularities(self, dtype: IntType) -> None:
        array = weight(200, 16)
        found = analyze_weight(array, 1, dtype=dtype)
        for figure, granularity in (
            (found.sqnr_tensor, PerTensor()),
            (found.sqnr_channel, PerAxis(1)),
            (found.sqnr_block, PerBlock(0, 64)),
        ):
            how = spec(dtype=dtype, symmetric=dtype.signed, granularity=granularity)
            assert figure == pytest.approx(sqnr(array, round_trip(array, how)))
        assert found.sqnr_tensor < found.sqnr_channel < found.sqnr_block

    def test_the_range_method_is_used(self) -> None:
        array = weight(200, 16)
        array[0, 0] = 2
        plain = analyze_weight(array, 1, dtype=INT4)
        best = analyze_weight(array, 1, dtype=INT4, method=RangeMethod.MSE)
        assert best.sqnr_tensor > plain.sqnr_tensor + 1

    @pytest.mark.parametrize("axis", [0, 1])
    def test_dead_channels_are_counted(self, axis: int) -> None:
        array = weight(20, 30)
        np.moveaxis(array, axis, 0)[[2, 5, 11]] = 0
        array[1, 1] = 0  # one zero makes no dead channel
        assert analyze_weight(array, axis).dead_channels == 3
        assert analyze_weight(array, 1 - axis).dead_channels == 0

    def test_outlier_share_counts_values_beyond_six_sigma(self) -> None:
        array = weight(100, 100)
        assert analyze_weight(array, 1).outlier_share == 0
        array.flat[:3] = [10, -10, 10]
        assert analyze_weight(array, 1).outlier_share == pytest.approx(3e-4)

    def test_outliers_are_measured_from_the_mean(self) -> None:
        assert analyze_weight(weight(100, 100) + np.float32(50), 1).outlier_share == 0

    @pytest.mark.parametrize(
        ("shape", "axis"), [((300,), 0), ((64, 32, 3, 3), 0), ((1, 1), 1)], ids=str
    )
    def test_any_rank_is_measured(self, shape: tuple[int, ...], axis: int) -> None:
        assert analyze_weight(weight(*shape), axis).sqnr_channel > 30

    def test_plain_data_holds_every_figure(self) -> None:
        found = analyze_weight(weight(128, 8), 1)
        plain = json.loads(json.dumps(found.to_json()))
        assert plain == found.to_json()
        assert set(plain) == {
            "sqnr_tensor",
            "sqnr_channel",
            "sqnr_block",
            "outlier_share",
            "dead_channels",
            "asks_for",
        }


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("dtype", [INT4, UINT4, INT8, UINT8, INT16, UINT16], ids=lambda t: t.name)
@settings(max_examples=10, deadline=None)
@given(array=hnp.arrays(np.float32, 7, elements=st.floats(-8, 8, width=16)))
def test_a_whole_grid_is_that_of_onnxruntimes_tool_and_misses_by_half_a_step(
    dtype: IntType, array: Array, *, symmetric: bool, reduced: bool
) -> None:
    from onnxruntime.quantization.quant_utils import compute_scale_zp, get_qmin_qmax_for_qType

    spec = QuantSpec(
        dtype=dtype, granularity=PerTensor(), symmetric=symmetric, reduced=reduced, whole=True
    )
    qmin, qmax = get_qmin_qmax_for_qType(
        getattr(TensorProto, dtype.name.upper()), reduced, symmetric
    )
    zero, scale = compute_scale_zp(array.min(), array.max(), qmin, qmax, symmetric)
    found = fit(array, spec)
    assert found.scale == np.float32(scale)
    if array.any():
        assert found.zero_point == int(zero)
    error = np.abs(array - dequantize_weight(quantize_weight(array, found), found))
    assert error.max() <= 0.51 * found.scale  # of 16 bits float32 rounds, too


def test_numbers_that_are_given_are_not_fitted() -> None:
    array = weight(3, 4)
    spec = QuantSpec(
        dtype=UINT8,
        granularity=PerAxis(0),
        symmetric=False,
        scales=(0.5, 0.25, 1.0),
        zero_points=(1, 2, 3),
        pinned=True,
    )
    found = fit(array, spec)
    assert found.scale.tolist() == [0.5, 0.25, 1.0]
    assert found.zero_point.tolist() == [1, 2, 3]
    with pytest.raises(UsageError, match="3 scales are given for 4 channels"):
        fit(array, replace(spec, granularity=PerAxis(1)))


def test_a_narrow_range_is_widened() -> None:
    spec = QuantSpec(dtype=UINT8, granularity=PerTensor(), symmetric=False, least=0.51)
    assert fit(np.zeros((2, 2), np.float32), spec).scale == np.float32(0.51 / 255)
    assert fit(np.asarray([[-0.5, 0.75]], np.float32), spec).scale == np.float32(1.25 / 255)


def test_integers_beside_another_zero_point_are_safe_in_pairs() -> None:
    array = np.abs(weight(8, 4)) + 1  # all at the upper end
    spec = QuantSpec(dtype=INT8, granularity=PerTensor(), symmetric=False, pair_axes=((0,),))
    found = fit(array, spec)
    q = quantize_weight(array, found)
    assert is_pair_safe(q)
    assert sqnr(array, dequantize_weight(q, found)) > 40
    assert not is_pair_safe(quantize_weight(array, fit(array, replace(spec, pair_axes=()))))
