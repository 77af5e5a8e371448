from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from quantkit.numerics import weights as rounding
from quantkit.numerics.weights import round_keeping_sum

Array = NDArray[Any]

ROWS = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=20),
    elements=st.floats(-127, 127, width=32) | st.sampled_from([-2.5, -0.5, 0.5, 1.5, 126.5]),
)
PROPERTY = settings(max_examples=50, deadline=None)


def shift(result: Array, scaled: Array) -> Array:
    return np.asarray((result.astype(np.float64) - scaled.astype(np.float64)).sum(axis=1))


@PROPERTY
@given(scaled=ROWS)
def test_result_is_integers_less_than_one_step_away(scaled: Array) -> None:
    result = round_keeping_sum(scaled)
    assert result.dtype == np.float32
    assert (result == np.rint(result)).all()
    # A value just above an integer moves by all but 1: the difference is < 1 up to float64.
    assert (np.abs(result.astype(np.float64) - scaled.astype(np.float64)) < 1).all()


@PROPERTY
@given(scaled=ROWS)
def test_sum_of_each_row_moves_by_at_most_half(scaled: Array) -> None:
    assert (np.abs(shift(round_keeping_sum(scaled), scaled)) <= 0.5 + 1e-9).all()


@PROPERTY
@given(scaled=ROWS)
def test_integers_stay_as_they_are(scaled: Array) -> None:
    whole = np.rint(scaled)
    np.testing.assert_array_equal(round_keeping_sum(whole), whole)


@PROPERTY
@given(scaled=ROWS)
def test_rows_are_independent_and_the_input_is_untouched(scaled: Array) -> None:
    before = scaled.copy()
    alone = np.concatenate([round_keeping_sum(row[None]) for row in scaled])
    np.testing.assert_array_equal(round_keeping_sum(scaled), alone)
    np.testing.assert_array_equal(scaled, before)


@PROPERTY
@given(
    row=hnp.arrays(
        np.float32, st.integers(1, 8), elements=st.floats(-3, 3, width=16, allow_subnormal=False)
    )
)
def test_no_other_rounding_to_the_same_sum_has_less_squared_error(row: Array) -> None:
    result = round_keeping_sum(row[None])[0]
    choices = [(np.floor(x), np.ceil(x)) for x in row]
    least = min(
        float(np.square(np.array(c) - row).sum())
        for c in product(*choices)
        if sum(c) == result.sum()
    )
    assert float(np.square(result - row).sum()) <= least + 1e-5


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        pytest.param([0.4, 0.4, 0.3], [1, 0, 0], id="one-up"),
        pytest.param([-0.4, -0.3, -0.4], [0, 0, -1], id="one-down"),
        pytest.param([0.5, 0.5, 0.5, 0.5], [0, 0, 1, 1], id="ties-all-round-to-even"),
        pytest.param([1.2, 1.2, 1.2, 1.2, 1.2], [1, 1, 1, 1, 2], id="one-of-equals"),
        pytest.param([0.1, -0.1], [0, 0], id="nothing-to-move"),
    ],
)
def test_values_nearest_to_the_other_step_move(row: list[float], expected: list[float]) -> None:
    result = round_keeping_sum(np.array([row], np.float32))[0]
    assert sorted(result.tolist()) == sorted(expected)
    assert result.sum() == sum(expected)


def test_plain_rounding_would_not_keep_the_sum() -> None:
    scaled = np.random.default_rng(0).uniform(0, 100, (32, 4096)).astype(np.float32)
    assert np.abs(shift(np.rint(scaled), scaled)).max() > 5
    assert np.abs(shift(round_keeping_sum(scaled), scaled)).max() <= 0.5


def test_rows_are_balanced_wherever_the_array_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    scaled = np.random.default_rng(1).normal(0, 20, (23, 17)).astype(np.float32)
    whole = round_keeping_sum(scaled)
    monkeypatch.setattr(rounding, "_ROWS", 50)
    np.testing.assert_array_equal(round_keeping_sum(scaled), whole)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0), (1, 1)], ids=str)
def test_empty_and_tiny_shapes(shape: tuple[int, int]) -> None:
    assert round_keeping_sum(np.zeros(shape, np.float32)).shape == shape
