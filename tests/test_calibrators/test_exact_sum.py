"""`ExactSum` against `fractions.Fraction`."""

import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrators import ExactSum

PROPERTY = settings(max_examples=100, deadline=None)
UNIT = Fraction(1, 2**320)

# Multiples of the window's unit: what sums of float32 numbers and their squares are.
IN_WINDOW = st.floats(-(2.0**319), 2.0**319).filter(lambda v: Fraction(v) % UNIT == 0)
ANY = st.floats(-(2.0**319), 2.0**319, allow_subnormal=True)


def summed(rows: list[list[float]], n: int) -> ExactSum:
    total = ExactSum(n)
    for row in rows:
        total.add(np.array(row))
    return total


def same(a: ExactSum, b: ExactSum) -> bool:
    mine, its = a.state(), b.state()
    return all(
        mine[name].dtype == its[name].dtype and np.array_equal(mine[name], its[name])
        for name in ("first", "limbs")
    )


@PROPERTY
@given(values=st.lists(IN_WINDOW, max_size=40))
def test_the_sum_is_the_rounded_exact_one(values: list[float]) -> None:
    expected = float(sum((Fraction(v) for v in values), Fraction(0)))
    assert summed([[v] for v in values], 1).value().tolist() == [expected]


@PROPERTY
@given(value=ANY)
def test_a_number_finer_than_the_window_is_rounded_to_its_unit(value: float) -> None:
    expected = float(round(Fraction(value) / UNIT) * UNIT)
    assert summed([[value]], 1).value().tolist() == [expected]


@PROPERTY
@given(
    rows=st.lists(st.lists(ANY, min_size=3, max_size=3), max_size=12),
    order=st.randoms(use_true_random=False),
    cut=st.integers(0, 12),
)
def test_order_and_grouping_do_not_change_a_bit(
    rows: list[list[float]], order: random.Random, cut: int
) -> None:
    whole = summed(rows, 3)
    turned = rows.copy()
    order.shuffle(turned)
    merged, other = summed(turned[:cut], 3), summed(turned[cut:], 3)
    before = other.state()
    merged.merge(other)
    assert same(merged, whole)
    assert np.array_equal(other.state()["limbs"], before["limbs"])


@PROPERTY
@given(rows=st.lists(st.lists(ANY, min_size=2, max_size=2), max_size=12))
def test_a_state_comes_back(rows: list[list[float]]) -> None:
    whole = summed(rows, 2)
    back = ExactSum.from_state(whole.state())
    assert same(back, whole)
    assert back.value().tobytes() == whole.value().tobytes()


@PROPERTY
@given(values=st.lists(IN_WINDOW, max_size=10))
def test_equal_sums_have_equal_states(values: list[float]) -> None:
    total = summed([[v] for v in values], 1)
    for value in values:
        total.add(np.array([-value]))
    assert same(total, ExactSum(1))
    assert total.state()["limbs"].size == 0


def test_sums_are_independent_of_each_other() -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((700, 5)) * 10.0 ** rng.integers(-90, 90, (700, 5))
    together = summed(rows.tolist(), 5)
    alone = [summed([[v] for v in column], 1).value().item() for column in rows.T.tolist()]
    assert together.value().tolist() == alone


def test_many_numbers_cancel_exactly() -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal(5000) * 1e30
    signed = np.concatenate([values, [2.0**-300], -values])
    assert summed(signed[:, None].tolist(), 1).value().item() == 2.0**-300


def test_the_state_is_compact() -> None:
    assert summed([[1.5] * 2000] * 3, 2000).state()["limbs"].shape == (2, 2000)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 2.0**320, -1e300])
def test_numbers_beyond_the_window_are_refused(value: float) -> None:
    total = ExactSum(2)
    with pytest.raises(ValueError, match=r"finite numbers below 2\^320"):
        total.add(np.array([1.0, value]))
    assert total.value().tolist() == [0, 0]


def test_the_number_of_sums_must_agree() -> None:
    with pytest.raises(ValueError, match="Cannot merge 3 sums into 2"):
        ExactSum(2).merge(ExactSum(3))
