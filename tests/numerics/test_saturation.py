from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from quantkit.numerics.pairs import PAIR_LIMIT, is_pair_safe, pair_peak

Array = NDArray[Any]

PROPERTY = settings(max_examples=50, deadline=None)
SHAPES = hnp.array_shapes(min_dims=2, max_dims=4, min_side=1, max_side=9)


def brute_peak(column: Array) -> float:
    """Return the largest one-signed pair sum of one column, the slow way."""
    peak = 0.0
    for j in range(0, len(column), 2):
        pair = column[j : j + 2].tolist()
        peak = max(peak, sum(v for v in pair if v > 0), -sum(v for v in pair if v < 0))
    return peak


@PROPERTY
@given(weight=hnp.arrays(np.int32, SHAPES, elements=st.integers(-128, 127)))
def test_pair_peak_is_the_largest_one_signed_pair_sum_of_each_column(weight: Array) -> None:
    peak = pair_peak(weight)
    assert peak.shape == (*weight.shape[:-2], 1, weight.shape[-1])
    expected = np.apply_along_axis(brute_peak, -2, weight)
    np.testing.assert_array_equal(peak.squeeze(-2), expected)


@PROPERTY
@given(weight=hnp.arrays(np.float32, SHAPES, elements=st.floats(-4, 4, width=16)))
def test_pair_peak_of_floats(weight: Array) -> None:
    expected = np.apply_along_axis(brute_peak, -2, weight.astype(np.float64))
    np.testing.assert_allclose(pair_peak(weight).squeeze(-2), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("column", "peak"),
    [
        pytest.param([100, 100], 200, id="both-positive"),
        pytest.param([-100, -101], 201, id="both-negative"),
        pytest.param([100, -101], 101, id="signs-do-not-add"),
        pytest.param([0, 100, 100, 0], 100, id="neighbours-of-different-pairs-do-not-add"),
        pytest.param([1, 1, 90], 90, id="odd-k-pairs-the-last-with-zero"),
        pytest.param([-7], 7, id="single-row"),
        pytest.param([0, 0], 0, id="zeros"),
    ],
)
def test_pairs(column: list[int], peak: int) -> None:
    assert pair_peak(np.array(column, np.int32)[:, None]).item() == peak


def test_pair_safe_means_that_no_activation_saturates_for_all_pairs_of_int8() -> None:
    every = np.arange(-128, 128, dtype=np.int64)
    first, second = (m.ravel() for m in np.meshgrid(every, every))
    # Extremes of a0 w0 + a1 w1 over a in 0..255 are at a in {0, 255}, by sign of w.
    highest = 255 * (np.maximum(first, 0) + np.maximum(second, 0))
    lowest = 255 * (np.minimum(first, 0) + np.minimum(second, 0))
    exact = (highest <= np.iinfo(np.int16).max) & (lowest >= np.iinfo(np.int16).min)
    safe = pair_peak(np.stack([first, second])).ravel() <= PAIR_LIMIT
    np.testing.assert_array_equal(safe, exact)


@pytest.mark.parametrize(
    ("pair", "safe"),
    [
        pytest.param([64, 64], True, id="at-the-limit"),
        pytest.param([65, 64], False, id="one-above"),
        pytest.param([-64, -64], True, id="negative-at-the-limit"),
        pytest.param([-128, -1], False, id="negative-one-above"),
        pytest.param([-128, 127], True, id="opposite-signs"),
    ],
)
def test_is_pair_safe_at_its_limit_without_int8_overflow(pair: list[int], *, safe: bool) -> None:
    assert is_pair_safe(np.array(pair, np.int8)[:, None]) is safe


def test_one_bad_column_makes_a_weight_unsafe() -> None:
    q = np.zeros((3, 6, 5), np.int8)
    assert is_pair_safe(q)
    q[1, 2:4, 3] = 100
    assert not is_pair_safe(q)
    assert is_pair_safe(q.swapaxes(-1, -2))
