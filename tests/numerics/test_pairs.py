from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from pair_limits import is_within

from quantkit.numerics.pairs import (
    FREE,
    PAIRED,
    Limits,
    PairForm,
    is_pair_safe,
    nearest_pairs,
    round_pairs,
)

Array = NDArray[Any]

PROPERTY = settings(max_examples=60, deadline=None)
VALUES = st.floats(-20, 20, width=32)
SMALL = st.builds(
    lambda peak, more: Limits(peak=peak, pair=peak + more), st.integers(1, 7), st.integers(0, 8)
)


def allowed(limits: Limits) -> Array:
    """Return every pair of integers whose one-signed sums are within the limit, the slow way."""
    each = range(-limits.peak, limits.peak + 1)
    return np.array(
        [
            (a, b)
            for a, b in product(each, each)
            if max(a, 0) + max(b, 0) <= limits.pair and max(-a, 0) + max(-b, 0) <= limits.pair
        ]
    )


def brute(targets: Array, form: tuple[float, float, float], limits: Limits) -> Array:
    d = targets[:, np.newaxis] - allowed(limits)
    cost = form[0] * d[..., 0] ** 2 + form[1] * (d[..., 1] + form[2] * d[..., 0]) ** 2
    least: Array = cost.min(axis=1)
    return least


@PROPERTY
@given(
    scaled=hnp.arrays(np.float64, st.tuples(st.integers(1, 9), st.just(2)), elements=VALUES),
    weights=st.tuples(st.floats(0.01, 10), st.floats(0.01, 10)),
    limits=SMALL,
)
def test_round_pairs_is_the_exact_optimum(
    scaled: Array, weights: tuple[float, float], limits: Limits
) -> None:
    q = round_pairs(scaled, limits, np.array(weights))
    assert is_within(q, limits)
    cost = (np.array(weights) * (scaled - q) ** 2).sum(axis=1)
    np.testing.assert_allclose(cost, brute(scaled, (*weights, 0.0), limits), rtol=1e-9, atol=1e-9)


@PROPERTY
@given(
    targets=hnp.arrays(np.float64, st.tuples(st.integers(1, 9), st.just(2)), elements=VALUES),
    form=st.tuples(st.floats(0.1, 10), st.floats(0.1, 10), st.floats(-2, 2)),
    limits=SMALL,
)
def test_nearest_pairs_with_a_coupling_is_allowed_and_near_the_optimum(
    targets: Array, form: tuple[float, float, float], limits: Limits
) -> None:
    first, second, coupling = form
    pair_form = PairForm(first=first, second=second, coupling=coupling)
    q0, q1 = nearest_pairs(targets[:, 0], targets[:, 1], pair_form, limits)
    assert is_within(np.stack([q0, q1], axis=1), limits)
    d0, d1 = targets[:, 0] - q0, targets[:, 1] - q1
    cost = first * d0**2 + second * (d1 + coupling * d0) ** 2
    # Half a step of the first and of the second is what rounding may cost beyond the best.
    slack = first + second * (1 + abs(coupling)) ** 2
    assert (cost <= brute(targets, form, limits) + slack).all()


@PROPERTY
@given(scaled=hnp.arrays(np.float64, (3, 7), elements=st.floats(-200, 200)))
def test_pairs_that_fit_are_rounded_plainly_and_an_odd_last_one_is_alone(scaled: Array) -> None:
    plain = np.clip(np.rint(scaled), -127, 127)
    q = round_pairs(scaled)
    fits = np.abs(plain[:, 0:6:2] + plain[:, 1:6:2]) <= 128
    np.testing.assert_array_equal(q[:, 6], plain[:, 6])
    np.testing.assert_array_equal(q[:, 0:6:2][fits], plain[:, 0:6:2][fits])
    np.testing.assert_array_equal(round_pairs(scaled, FREE), plain)
    assert is_pair_safe(q.T.astype(np.int8))


def test_a_dead_input_takes_the_whole_cut() -> None:
    scaled = np.array([100.0, 90])
    np.testing.assert_array_equal(round_pairs(scaled, PAIRED, np.array([0.0, 1])), [38, 90])
    np.testing.assert_array_equal(round_pairs(scaled, PAIRED, 0.0), [69, 59])


def test_a_peak_above_the_pair_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="1 <= peak <= 100"):
        Limits(peak=127, pair=100)
