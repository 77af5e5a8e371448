"""What a sketch knows, against numpy on the values themselves."""

import math
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from calibrators import Range, Sketch

Array = NDArray[Any]
PROPERTY = settings(max_examples=60, deadline=None)
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
BAD = st.sampled_from([np.nan, np.inf, -np.inf])
VECTORS = hnp.arrays(np.float32, st.integers(1, 40), elements=FLOATS)
BROKEN = hnp.arrays(np.float32, st.integers(1, 40), elements=FLOATS | BAD)


def sketch_of(*arrays: Array, axis: int | None = None, most: int | None = None) -> Sketch:
    found = Sketch(axis=axis, most=most)
    for array in arrays:
        found.observe(array)
    return found


def assert_same_channel(one: Sketch, i: int, other: Sketch, j: int) -> None:
    for name in ("low", "high", "count", "nan", "inf", "seen"):
        mine, its = getattr(one, name), getattr(other, name)
        assert mine[i : i + 1].tobytes() == its[j : j + 1].tobytes(), name
    # A tensor leaves out values that are not finite where channels have zeros: numpy adds in another order then.
    clean = one.nan[i] == one.inf[i] == 0
    rounding = 0.0 if clean else float(one.seen[i]) * np.finfo(np.float64).eps
    largest = max(abs(float(one.low[i])), abs(float(one.high[i])))
    assert abs(one.mean[i] - other.mean[j]) <= rounding * largest
    assert abs(one.variance[i] - other.variance[j]) <= 3 * rounding * largest**2
    mine, its = one.histogram(i), other.histogram(j)
    for name in ("lower", "upper", "center", "count"):
        np.testing.assert_array_equal(getattr(mine, name), getattr(its, name))


class TestHistogram:
    @PROPERTY
    @given(array=VECTORS)
    def test_every_value_is_in_one_bin(self, array: Array) -> None:
        bins = sketch_of(array).histogram()
        assert bins.count.sum() == array.size
        x = np.where(np.abs(array.astype(np.float64)) < 2.0**-133, 0, array.astype(np.float64))
        inside = (bins.lower <= x[:, None]) & (x[:, None] <= bins.upper)
        assert inside.any(axis=1).all()

    @PROPERTY
    @given(array=VECTORS)
    def test_bins_ascend_and_are_narrow(self, array: Array) -> None:
        bins = sketch_of(array).histogram()
        assert (bins.lower <= bins.center).all()
        assert (bins.center <= bins.upper).all()
        assert (bins.upper[:-1] <= bins.lower[1:]).all()
        inner = np.minimum(np.abs(bins.lower), np.abs(bins.upper))
        assert (bins.upper - bins.lower <= np.maximum(inner / 128, 2.0**-133)).all()

    def test_counts_are_those_of_the_top_bits(self) -> None:
        array = np.random.default_rng(0).standard_normal(5000).astype(np.float32)
        bins = sketch_of(array).histogram()
        tops, counts = np.unique(array.view(np.uint32) >> 16, return_counts=True)
        lower = (tops << 16).astype(np.uint32).view(np.float32)
        order = np.argsort(lower)
        np.testing.assert_array_equal(bins.count, counts[order])

    def test_ends_are_the_exact_extremes(self) -> None:
        array = np.random.default_rng(0).standard_normal(5000).astype(np.float32)
        bins = sketch_of(array).histogram()
        assert bins.lower[0] == array.min()
        assert bins.upper[-1] == array.max()

    def test_both_zeros_and_the_smallest_numbers_are_one_entry(self) -> None:
        bins = sketch_of(np.array([0.0, -0.0, 1e-45, -1e-45, 1, -1], np.float32)).histogram()
        assert bins.center.tolist() == [-1, 0, 1]
        assert bins.count.tolist() == [1, 4, 1]

    def test_a_constant_has_a_bin_without_width(self) -> None:
        bins = sketch_of(np.full(10, 1.2345, np.float32)).histogram()
        assert bins.lower.item() == bins.center.item() == bins.upper.item() == np.float32(1.2345)

    def test_magnitudes_fold_the_signs_and_leave_zero_out(self) -> None:
        bins = sketch_of(np.array([0, 1, -1, 2, -4], np.float32)).magnitudes()
        assert bins.lower.tolist() == [1, 2, 4]
        assert bins.count.tolist() == [2, 1, 1]

    @pytest.mark.parametrize("size", [2**17 - 1, 2**17, 2**17 + 1, 300_001])
    def test_long_arrays_are_counted_in_full(self, size: int) -> None:
        array = np.random.default_rng(size).standard_normal(size).astype(np.float32)
        found = sketch_of(array, array[: size // 3])
        pair = np.concatenate([array, array[: size // 3]])
        assert found.histogram().count.sum() == found.count.item() == pair.size
        assert (found.low.item(), found.high.item()) == (pair.min(), pair.max())
        assert found.mean.item() == pytest.approx(pair.astype(np.float64).mean(), rel=1e-9)
        assert found.variance.item() == pytest.approx(pair.astype(np.float64).var(), rel=1e-9)


class TestBadValues:
    @PROPERTY
    @given(array=BROKEN)
    def test_nan_and_infinities_are_only_counted(self, array: Array) -> None:
        good = array[np.isfinite(array)]
        found, expected = sketch_of(array), sketch_of(good)
        assert found.nan.item() == np.isnan(array).sum()
        assert found.inf.item() == np.isinf(array).sum()
        assert found.seen.item() == array.size
        assert found.count.item() == good.size
        assert found.low.item() == expected.low.item()
        assert found.high.item() == expected.high.item()
        assert found.empty == (good.size == 0)
        np.testing.assert_array_equal(found.histogram().center, expected.histogram().center)
        np.testing.assert_array_equal(found.histogram().count, expected.histogram().count)
        assert found.mean.item() == pytest.approx(expected.mean.item(), rel=1e-9, abs=1e25)

    @PROPERTY
    @given(array=BROKEN, most=st.integers(1, 10))
    def test_all_are_found_even_where_few_values_are_counted(self, array: Array, most: int) -> None:
        found, full = sketch_of(array, most=most), sketch_of(array)
        for name in ("low", "high", "nan", "inf", "seen", "empty"):
            assert getattr(found, name) == getattr(full, name), name
        assert found.count <= full.count

    def test_float64_beyond_float32_is_infinite(self) -> None:
        found = sketch_of(np.array([1e300, -1e300, 2.0]))
        assert found.inf.item() == 2
        assert found.high.item() == 2

    def test_words_are_refused(self) -> None:
        with pytest.raises(TypeError, match="real numbers"):
            Sketch().observe(np.array(["a"]))
        with pytest.raises(TypeError, match="real numbers"):
            Sketch().observe(np.array([1j]))


class TestMost:
    @PROPERTY
    @given(n=st.integers(1, 3000), most=st.integers(1, 400))
    def test_at_most_so_many_values_are_counted(self, n: int, most: int) -> None:
        array = np.random.default_rng(n).standard_normal(n).astype(np.float32)
        found = sketch_of(array, most=most)
        assert 1 <= found.count.item() <= most
        assert found.seen.item() == n
        assert found.low.item() == array.min()
        assert found.high.item() == array.max()

    @pytest.mark.parametrize("columns", [2, 3, 4, 7, 10, 12])
    def test_every_column_is_visited_in_the_end(self, columns: int) -> None:
        names = np.tile(np.arange(1, columns + 1, dtype=np.float32), 840)
        noise = np.random.default_rng(0).random(100).astype(np.float32) / 1e3
        found = sketch_of(*(names + n for n in noise), most=names.size // columns)
        assert set(np.rint(found.histogram().center)) == set(range(1, columns + 1))

    def test_the_values_counted_are_evenly_spaced(self) -> None:
        array = np.random.default_rng(0).standard_normal(400_000).astype(np.float32)
        k = math.ceil(array.size / 1000)
        found = sketch_of(array, most=1000).state()
        starts = (sketch_of(array[start::k]).state() for start in range(k))
        assert any(
            np.array_equal(found["bins"], s["bins"])
            and np.array_equal(found["bin_counts"], s["bin_counts"])
            for s in starts
        )

    def test_nothing_to_count_is_refused(self) -> None:
        with pytest.raises(ValueError, match="at least one value"):
            Sketch(most=0)


class TestChannels:
    @PROPERTY
    @given(
        array=hnp.arrays(
            np.float32,
            hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=5),
            elements=FLOATS | BAD,
        ),
        axis=st.integers(-3, 2),
    )
    def test_each_is_the_sketch_of_its_slice(self, array: Array, axis: int) -> None:
        if not -array.ndim <= axis < array.ndim:
            axis = 0
        together = sketch_of(array, array * np.float32(0.5), axis=axis)
        assert together.channels == array.shape[axis]
        for i in range(array.shape[axis]):
            part = np.take(array, i, axis=axis)
            assert_same_channel(together, i, sketch_of(part, part * np.float32(0.5)), 0)

    def test_each_is_the_sketch_of_its_slice_when_long(self) -> None:
        array = np.random.default_rng(0).standard_normal((2, 3, 70_001)).astype(np.float32)
        together = sketch_of(array, axis=1)
        for i in range(3):
            assert_same_channel(together, i, sketch_of(array[:, i]), 0)

    def test_their_number_must_not_change(self) -> None:
        found = sketch_of(np.zeros((2, 3), np.float32), axis=1)
        with pytest.raises(ValueError, match="3 channels met 4 along axis 1"):
            found.observe(np.zeros((2, 4), np.float32))
        with pytest.raises(ValueError, match="3 channels met 4"):
            found.merge(sketch_of(np.zeros((2, 4), np.float32), axis=1))

    def test_the_axis_must_exist(self) -> None:
        with pytest.raises(ValueError, match=r"shape \(3,\) has no axis 1"):
            sketch_of(np.zeros(3, np.float32), axis=1)

    def test_there_are_none_before_the_first_array(self) -> None:
        found = Sketch(axis=0)
        assert found.channels == 0
        assert found.empty
        assert found.low.shape == (0,)


class TestReading:
    def test_an_unused_sketch_has_zeros(self) -> None:
        found = Sketch()
        assert found.channels == 1
        assert found.empty
        assert found.low.tolist() == found.high.tolist() == found.mean.tolist() == [0]
        assert found.std.tolist() == [0]
        assert found.histogram().count.size == 0

    def test_share_outside_counts_what_a_range_cuts(self) -> None:
        array = np.array([[-8, -1, 0, 1], [1, 2, 4, 8]], np.float32)
        cut = Range(low=np.array([-2, 0], np.float32), high=np.array([2, 3], np.float32))
        assert sketch_of(array, axis=0).share_outside(cut).tolist() == [0.25, 0.5]
        everything = Range(low=np.array([-8, 0], np.float32), high=np.array([1, 8], np.float32))
        assert sketch_of(array, axis=0).share_outside(everything).tolist() == [0, 0]
        assert Sketch().share_outside(cut).tolist() == [0]

    @pytest.mark.parametrize(
        "other",
        [pytest.param(Sketch(axis=0), id="axis"), pytest.param(Sketch(most=9), id="most")],
    )
    def test_unlike_sketches_do_not_merge(self, other: Sketch) -> None:
        with pytest.raises(ValueError, match="Cannot merge a sketch"):
            Sketch().merge(other)

    def test_a_state_is_sparse(self) -> None:
        state = sketch_of(np.ones((5, 1000), np.float32), axis=0).state()
        assert sum(array.nbytes for array in state.values()) < 2000

    def test_sums_are_exact_over_arrays(self) -> None:
        big, small = np.array([3e38], np.float32), np.array([1e-30], np.float32)
        found = sketch_of(big, small, -big)
        assert found.mean.item() == float(small[0]) / 3


def test_threads_do_not_disturb_each_other() -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(200_003).astype(np.float32) for _ in range(4)]
    sketches = [Sketch(most=50_000) for _ in range(4)]

    def work(i: int) -> None:
        for array in arrays:
            sketches[i].observe(array)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = sketch_of(*arrays, most=50_000).state()
    for found in sketches:
        state = found.state()
        assert all(state[name].tobytes() == expected[name].tobytes() for name in expected)
