from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pair_limits import is_within

from quantkit.numerics.pairs import FREE, PAIRED, Limits, round_pairs
from quantkit.numerics.second_order import (
    carries_of,
    damped,
    damping_share,
    improve,
    output_error,
    round_carried,
)
from quantkit.quantize.solve.weights import choose_scale, peak_scale, refit_scale, safe_scale

Array = NDArray[Any]

PROPERTY = settings(max_examples=25, deadline=None)
SEEDS = st.integers(0, 10_000)
TIGHT = Limits(peak=7, pair=8)


def problem(seed: int, groups: int, n: int, k: int) -> tuple[Array, Array]:
    """Return weights (groups, n, k) with outliers, and moments of correlated inputs with a mean."""
    generator = np.random.default_rng(seed)
    mixed = generator.normal(size=(groups, 4 * k, k)) @ generator.normal(size=(groups, k, k))
    x = np.maximum(mixed, 0)
    return generator.standard_t(4, size=(groups, n, k)), np.swapaxes(x, 1, 2) @ x / (4 * k)


def noise(q: Array, weight: Array, scale: Array, h: Array) -> Array:
    return output_error(weight - q * scale[..., np.newaxis], h)


@PROPERTY
@given(seed=SEEDS, n=st.integers(1, 5), k=st.integers(1, 13), free=st.booleans())
def test_roundings_keep_to_the_limits_and_improve_never_makes_it_worse(
    *, seed: int, n: int, k: int, free: bool
) -> None:
    weight, moments = problem(seed, 2, n, k)
    limits = Limits(peak=7, pair=14) if free else TIGHT
    h = damped(moments)
    scale = peak_scale(weight, limits)
    for start in (
        round_pairs(weight / scale[..., np.newaxis], limits),
        round_carried(weight, scale, carries_of(h), limits),
    ):
        before = noise(start, weight, scale, h)
        better = improve(start, weight, scale, h, limits, sweeps=3)
        assert is_within(start, limits)
        assert is_within(better, limits)
        assert (noise(better, weight, scale, h) <= before * (1 + 1e-9)).all()
        refitted = refit_scale(better, weight, scale, h)
        after = noise(better, weight, refitted, h)
        assert (after <= noise(better, weight, scale, h) * (1 + 1e-6)).all()


@PROPERTY
@given(seed=SEEDS, k=st.integers(1, 12))
def test_groups_are_solved_as_if_each_stood_alone(seed: int, k: int) -> None:
    weight, moments = problem(seed, 3, 2, k)
    h, scale = damped(moments), safe_scale(weight)
    together = round_carried(weight, scale, carries_of(h))
    improved = improve(together, weight, scale, h)
    for g in range(3):
        alone = round_carried(weight[g], scale[g], carries_of(h[g]))
        np.testing.assert_array_equal(alone, together[g])
        np.testing.assert_array_equal(improve(alone, weight[g], scale[g], h[g]), improved[g])


@pytest.mark.parametrize("k", [64, 301])
def test_second_order_beats_nearest_on_correlated_inputs_across_blocks(k: int) -> None:
    weight, moments = problem(1, 1, 8, k)
    h = damped(moments, 0.01)
    scale = safe_scale(weight)
    nearest = noise(round_pairs(weight / scale[..., np.newaxis]), weight, scale, h).sum()
    second = noise(round_carried(weight, scale, carries_of(h)), weight, scale, h).sum()
    assert second < 0.7 * nearest


def test_uncorrelated_inputs_round_to_nearest() -> None:
    weight, _ = problem(2, 1, 4, 10)
    h = np.diag(np.arange(1.0, 11))[np.newaxis]
    scale = safe_scale(weight)
    nearest = round_pairs(weight / scale[..., np.newaxis])
    np.testing.assert_array_equal(round_carried(weight, scale, carries_of(h)), nearest)
    np.testing.assert_array_equal(improve(nearest, weight, scale, h), nearest)


def test_improve_finds_the_optimum_of_a_single_pair() -> None:
    h = np.array([[2.0, 1.9], [1.9, 2.0]])
    weight = np.array([[3.4, -2.6]])
    q = improve(np.zeros((1, 2)), weight, np.ones(1), h, TIGHT, sweeps=5)
    grid = [np.array([[a, b]]) for a in range(-7, 8) for b in range(-7, 8) if abs(a + b) <= 8]
    best = min(noise(np.asarray(g, np.float64), weight, np.ones(1), h).item() for g in grid)
    assert noise(q, weight, np.ones(1), h).item() == pytest.approx(best)


def test_an_input_that_is_always_zero_and_a_channel_of_zeros() -> None:
    weight = np.array([[[1.0, -0.5, 0.25], [0, 0, 0]]])
    h = damped(np.zeros((1, 3, 3)))
    scale = choose_scale(weight, np.zeros((1, 3)))
    q = round_carried(weight, scale, carries_of(h))
    assert scale[0, 1] == 1
    np.testing.assert_array_equal(q[0, 1], 0)
    np.testing.assert_array_equal(refit_scale(q, weight, scale, h)[0, 1], 1)


def test_damping_grows_with_inputs_and_falls_with_rows() -> None:
    assert damping_share(9, 10**6) == pytest.approx(0.1, rel=1e-3)
    assert damping_share(1000, 1000) == pytest.approx(2.1)
    assert damping_share(1280, 32) == 4
    moments = np.array([[4.0, 2], [2, 0]])
    np.testing.assert_allclose(damped(moments, 0.5), [[5, 2], [2, 1]])


@PROPERTY
@given(seed=SEEDS, n=st.integers(1, 5), k=st.integers(1, 13))
def test_scales(seed: int, n: int, k: int) -> None:
    weight, _ = problem(seed, 1, n, k)
    safe, peak = safe_scale(weight), peak_scale(weight)
    plain = np.rint(weight / safe[..., np.newaxis])
    assert is_within(plain, PAIRED)
    assert (safe >= peak).all()
    np.testing.assert_array_equal(safe_scale(weight, FREE), peak_scale(weight, FREE))
    chosen = choose_scale(weight, 1.0)
    errors = [
        ((weight - round_pairs(weight / s[..., np.newaxis]) * s[..., np.newaxis]) ** 2).sum(axis=-1)
        for s in (chosen, safe)
    ]
    assert (errors[0] <= errors[1]).all()
    np.testing.assert_array_equal(chosen, chosen.astype(np.float32))
