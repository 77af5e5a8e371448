"""Laws of the ranges of arrays. The folder is not called calibrators: that would hide the package of its name."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from calibrators import Range, RangeMethod, estimate, minmax, mse, percentile

Array = NDArray[Any]
Estimator = Callable[..., Range]

PROPERTY = settings(max_examples=50, deadline=None)
INSIDE = [
    pytest.param(minmax, id="minmax"),
    pytest.param(percentile, id="percentile"),
    pytest.param(partial(percentile, keep=90), id="percentile-90"),
    pytest.param(mse, id="mse"),
    pytest.param(partial(mse, levels=15), id="mse-4-bits"),
]
ALL = [*INSIDE, pytest.param(partial(mse, symmetric=True), id="mse-symmetric")]

VALUES = st.floats(-1000, 1000, width=32)
MATRICES = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=8),
    elements=VALUES,
)
WITH_BAD = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=8),
    elements=VALUES | st.sampled_from([np.nan, np.inf, -np.inf]),
)


def f32(values: Any) -> NDArray[np.float32]:
    return np.asarray(values, np.float32)


@pytest.mark.parametrize("estimator", ALL)
class TestEveryEstimator:
    @PROPERTY
    @given(array=MATRICES, axes=st.sampled_from([None, (0,), (1,), (0, 1)]))
    def test_range_is_finite_and_holds_zero(
        self, estimator: Estimator, array: Array, axes: tuple[int, ...] | None
    ) -> None:
        found = estimator(array, axes)
        assert found.low.dtype == found.high.dtype == np.float32
        assert np.isfinite(found.low).all()
        assert np.isfinite(found.high).all()
        assert (found.low <= 0).all()
        assert (found.high >= 0).all()

    @pytest.mark.parametrize(
        ("axes", "shape"),
        [
            pytest.param(None, (1, 1, 1), id="all"),
            pytest.param((0, 1, 2), (1, 1, 1), id="all-named"),
            pytest.param((0,), (1, 3, 4), id="axis-0"),
            pytest.param((1, 2), (2, 1, 1), id="axes-1-and-2"),
            pytest.param((-1,), (2, 3, 1), id="negative"),
        ],
    )
    def test_axes_are_kept_with_length_one(
        self, estimator: Estimator, axes: tuple[int, ...] | None, shape: tuple[int, ...]
    ) -> None:
        array = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
        found = estimator(array, axes)
        assert found.low.shape == found.high.shape == shape

    @PROPERTY
    @given(array=MATRICES)
    def test_channels_are_independent(self, estimator: Estimator, array: Array) -> None:
        together = estimator(array, (1,))
        for i in {0, len(array) - 1}:
            alone = estimator(array[i : i + 1], (1,))
            assert together.low[i] == alone.low[0]
            assert together.high[i] == alone.high[0]

    @PROPERTY
    @given(array=MATRICES, power=st.integers(-8, 8))
    def test_range_scales_with_the_values(
        self, estimator: Estimator, array: Array, power: int
    ) -> None:
        array = np.where(np.abs(array) < 1e-30, np.float32(0), array)  # stay clear of subnormals
        unit = np.float32(2.0**power)
        found, scaled = estimator(array, (0,)), estimator(array * unit, (0,))
        np.testing.assert_array_equal(scaled.low, found.low * unit)
        np.testing.assert_array_equal(scaled.high, found.high * unit)

    def test_a_constant_is_inside_its_own_range(self, estimator: Estimator) -> None:
        up, down = estimator(np.full((3, 4), 2.5, np.float32)), estimator(np.full(7, -2.5, "f4"))
        assert up.high.item() == 2.5
        assert down.low.item() == -2.5

    def test_all_zeros_have_an_empty_range(self, estimator: Estimator) -> None:
        found = estimator(np.zeros((3, 4), np.float32), (0,))
        assert not found.low.any()
        assert not found.high.any()

    @pytest.mark.parametrize("source", [np.float16, np.float64, np.int8], ids=lambda t: t.__name__)
    def test_other_types_are_taken(self, estimator: Estimator, source: type) -> None:
        array = np.arange(-10, 10)
        found, expected = estimator(array.astype(source)), estimator(array.astype(np.float32))
        assert found.low.dtype == found.high.dtype == np.float32
        np.testing.assert_array_equal(found.low, expected.low)
        np.testing.assert_array_equal(found.high, expected.high)

    def test_the_input_is_untouched(self, estimator: Estimator) -> None:
        array = f32([[1, np.nan, -3, np.inf]])
        before = array.copy()
        estimator(array)
        np.testing.assert_array_equal(array, before)


@pytest.mark.parametrize("estimator", INSIDE)
class TestAsymmetricEstimators:
    @PROPERTY
    @given(array=MATRICES, axes=st.sampled_from([None, (0,), (1,)]))
    def test_range_is_inside_the_exact_one(
        self, estimator: Estimator, array: Array, axes: tuple[int, ...] | None
    ) -> None:
        found = estimator(array, axes)
        assert (found.low >= np.minimum(array.min(axis=axes, keepdims=True), 0)).all()
        assert (found.high <= np.maximum(array.max(axis=axes, keepdims=True), 0)).all()

    @PROPERTY
    @given(array=WITH_BAD)
    def test_nan_and_infinities_are_left_out(self, estimator: Estimator, array: Array) -> None:
        good = array[np.isfinite(array)]
        if not good.size:
            return
        found, expected = estimator(array), estimator(good)
        np.testing.assert_array_equal(found.low.ravel(), expected.low)
        np.testing.assert_array_equal(found.high.ravel(), expected.high)

    def test_bad_values_of_one_channel_do_not_touch_the_others(self, estimator: Estimator) -> None:
        array = f32([[1, -2, 3, -4], [np.nan, np.inf, -np.inf, 5]])
        found = estimator(array, (1,))
        expected = estimator(array[:1], (1,))
        assert found.low.ravel().tolist() == [expected.low.item(), 0]
        assert found.high.ravel().tolist() == [expected.high.item(), 5]


NO_VALUES = [
    pytest.param(minmax, id="minmax"),
    pytest.param(mse, id="mse"),
    pytest.param(percentile, id="percentile"),
]


@pytest.mark.parametrize("estimator", NO_VALUES)
@pytest.mark.parametrize(
    "array",
    [
        pytest.param(np.zeros((2, 0), np.float32), id="empty-axis"),
        pytest.param(np.full((2, 3), np.nan, np.float32), id="all-nan"),
        pytest.param(f32([[np.inf, -np.inf], [0, 0]]), id="all-infinite"),
    ],
)
def test_a_channel_without_values_has_an_empty_range(estimator: Estimator, array: Array) -> None:
    found = estimator(array, (1,))
    assert found.low.ravel().tolist() == found.high.ravel().tolist() == [0, 0]


class TestMinmax:
    def test_is_the_smallest_and_largest_value(self) -> None:
        found = minmax(f32([[1, -2], [3, -4]]), (0,))
        assert found.low.tolist() == [[0, -4]]
        assert found.high.tolist() == [[3, 0]]


class TestPercentile:
    def test_cuts_outliers_that_minmax_keeps(self) -> None:
        array = np.random.default_rng(0).uniform(-1, 1, 100_000).astype(np.float32)
        array[:2] = [-1000, 1000]
        assert minmax(array).high.item() == 1000
        assert percentile(array).high.item() <= 1
        assert percentile(array).low.item() >= -1

    def test_keeping_all_is_minmax(self) -> None:
        array = np.random.default_rng(0).standard_normal((5, 50)).astype(np.float32)
        found, exact = percentile(array, (1,), keep=100), minmax(array, (1,))
        np.testing.assert_array_equal(found.low, exact.low)
        np.testing.assert_array_equal(found.high, exact.high)

    def test_cuts_the_same_share_at_both_ends(self) -> None:
        found = percentile(np.arange(-100, 101, dtype=np.float32), keep=90)
        assert found.low.item() == pytest.approx(-90)
        assert found.high.item() == pytest.approx(90)

    @PROPERTY
    @given(array=MATRICES)
    def test_keeping_more_never_narrows(self, array: Array) -> None:
        narrow, wide = percentile(array, keep=80), percentile(array, keep=95)
        assert (wide.low <= narrow.low).all()
        assert (wide.high >= narrow.high).all()


def squared_error(array: Array, found: Range, levels: int) -> float:
    """Squared error after rounding to `levels` steps of a range."""
    low, high = found.low.item(), found.high.item()
    if low == high:
        return float(np.square(array.astype(np.float64)).sum())
    step = (high - low) / levels
    q = np.clip(np.rint(array / step), np.rint(low / step), np.rint(high / step))
    return float(np.square(q * step - array.astype(np.float64)).sum())


class TestMse:
    @PROPERTY
    @given(
        seed=st.integers(0, 9999),
        size=st.integers(1, 300),
        levels=st.sampled_from([3, 15, 255]),
        heavy=st.booleans(),
    )
    def test_is_never_worse_than_minmax(
        self, seed: int, size: int, levels: int, *, heavy: bool
    ) -> None:
        generator = np.random.default_rng(seed)
        array = generator.standard_t(2, size) if heavy else generator.standard_normal(size)
        array = array.astype(np.float32)
        best = squared_error(array, mse(array, levels=levels), levels)
        plain = squared_error(array, minmax(array), levels)
        energy = float(np.square(array).sum())
        assert best <= plain * (1 + 1e-4) + 1e-10 * energy

    def test_gains_where_an_outlier_wastes_the_range(self) -> None:
        array = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
        array[0] = 8
        best = squared_error(array, mse(array, levels=15), 15)
        assert best < 0.7 * squared_error(array, minmax(array), 15)

    def test_a_tie_keeps_the_wider_range(self) -> None:
        assert mse(f32([-1, 0, 1]), levels=2).high.item() == 1

    @PROPERTY
    @given(array=MATRICES)
    def test_symmetric_range_is_symmetric_and_not_wider_than_needed(self, array: Array) -> None:
        found = mse(array, (1,), symmetric=True)
        np.testing.assert_array_equal(found.low, -found.high)
        assert (found.high <= np.abs(array).max(axis=1, keepdims=True)).all()

    @PROPERTY
    @given(array=MATRICES)
    def test_at_most_half_of_the_range_is_given_up(self, array: Array) -> None:
        found, exact = mse(array), minmax(array)
        assert found.high.item() >= exact.high.item() * 0.4999
        assert found.low.item() <= exact.low.item() * 0.4999


class TestEstimate:
    @pytest.mark.parametrize(
        ("method", "direct"),
        [
            pytest.param(RangeMethod.MINMAX, minmax, id="minmax"),
            pytest.param(RangeMethod.PERCENTILE, percentile, id="percentile"),
            pytest.param(RangeMethod.MSE, partial(mse, levels=15, symmetric=True), id="mse"),
        ],
    )
    def test_calls_the_method_by_its_name(self, method: RangeMethod, direct: Estimator) -> None:
        array = np.random.default_rng(0).standard_normal((4, 500)).astype(np.float32)
        found = estimate(array, (1,), method, levels=15, symmetric=True)
        expected = direct(array, (1,))
        np.testing.assert_array_equal(found.low, expected.low)
        np.testing.assert_array_equal(found.high, expected.high)

    def test_methods_can_be_named_by_strings(self) -> None:
        assert [RangeMethod(name) for name in ("minmax", "percentile", "mse")] == list(RangeMethod)
