"""What removing units costs, and what makes up for them, against plain linear algebra."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit.reduce.prune.cross_moments import CrossMoments
from quantkit.reduce.prune.importance import (
    Reading,
    made_up,
    rank_units,
    shrunk_moments,
)


def reading(seed: int, units: int = 12, each: int = 1, channels: int = 5) -> Reading:
    chance = np.random.default_rng(seed)
    inputs = units * each
    rows = chance.standard_normal((400, inputs)) @ chance.standard_normal((inputs, inputs))
    columns = chance.permutation(inputs).reshape(units, each)
    weight = chance.standard_normal((channels, inputs))
    return Reading(weight=weight, moments=rows.T @ rows / 400, columns=columns)


def lost(one: Reading, gone: list[int]) -> float:
    """The error of the best weights without some units, as a share of what is computed."""
    kept = np.ones(one.weight.shape[1], bool)
    kept[one.columns[gone].reshape(-1)] = False
    error = one.weight - made_up(one.weight, one.moments, kept)
    return float(np.trace(error @ one.moments @ error.T)) / one.power


@given(st.integers(0, 10_000), st.integers(1, 3), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_costs_are_those_of_least_squares(seed: int, each: int, at_once: int) -> None:
    both = [reading(seed, each=each), reading(seed + 1, each=each, channels=3)]
    ranking = rank_units(both, leave=2, at_once=at_once)
    assert len(ranking.order) == len(set(ranking.order)) == 10
    for count in range(at_once, 11, at_once):
        gone = list(ranking.order[:count])
        assert ranking.error[count - 1] == pytest.approx(sum(lost(r, gone) for r in both), rel=1e-5)
    assert list(ranking.error) == sorted(ranking.error)


@given(st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_one_at_a_time_takes_the_least(seed: int) -> None:
    one = reading(seed)
    ranking = rank_units([one], leave=1, at_once=1)
    gone: list[int] = []
    for unit in ranking.order:
        left = [u for u in range(12) if u not in gone]
        best = min(lost(one, [*gone, other]) for other in left)
        assert lost(one, [*gone, unit]) == pytest.approx(best, rel=1e-6)
        gone.append(unit)


def test_copies_and_constants_go_for_nothing() -> None:
    chance = np.random.default_rng(0)
    rows = chance.standard_normal((500, 6))
    rows[:, 4], rows[:, 5] = 2 * rows[:, 0], 0
    moments = shrunk_moments(rows.T @ rows / 500, 1_000_000)
    weight = chance.standard_normal((4, 6))
    columns = np.arange(6)[:, np.newaxis]
    ranking = rank_units([Reading(weight=weight, moments=moments, columns=columns)], 2, 1)
    assert set(ranking.order[:2]) <= {0, 4, 5}
    assert 5 in ranking.order[:2]
    assert ranking.error[1] < 1e-3 < ranking.error[2]


def test_refit_gives_what_least_squares_gives() -> None:
    chance = np.random.default_rng(1)
    x = chance.standard_normal((1, 50_000, 5)) + 1
    z = x @ chance.standard_normal((5, 5)) * 0.3 + x + 0.1 * chance.standard_normal(x.shape)
    weight = chance.standard_normal((1, 3, 5))
    kept = np.array([True, True, False, True, True])
    prior = weight * kept
    moments = CrossMoments()
    for part in range(0, 50_000, 10_000):
        moments.observe(x[:, part : part + 10_000], z[:, part : part + 10_000])
    found, shift = moments.fitted(weight, prior, kept, centred=True)
    target = x[0] @ weight[0].T
    design = np.hstack([z[0][:, kept], np.ones((len(z[0]), 1))])
    best, *_ = np.linalg.lstsq(design, target, rcond=None)
    np.testing.assert_allclose(found[0][:, kept], best[:-1].T, atol=0.02)
    np.testing.assert_allclose(shift, best[-1], atol=0.02)
    assert not found[0][:, ~kept].any()
    unchanged, none = moments.fitted(weight, prior, kept, centred=False)
    assert not none.any()
    assert unchanged.shape == weight.shape


def test_few_rows_leave_weights_as_they_are() -> None:
    chance = np.random.default_rng(2)
    x = chance.standard_normal((1, 4, 300))
    weight = chance.standard_normal((1, 2, 300))
    moments = CrossMoments()
    moments.observe(x, x * 1.05)
    found, _ = moments.fitted(weight, weight, np.ones(300, bool), centred=True)
    assert np.abs(found - weight).max() < 0.05
