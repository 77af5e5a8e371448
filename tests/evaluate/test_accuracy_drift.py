"""Drift in one pass over chunks is that of everything at once."""

import numpy as np
import pytest
from builders import Array, rng
from hypothesis import given
from hypothesis import strategies as st

from quantkit.evaluate.accuracy.classes import Decider
from quantkit.evaluate.accuracy.drift import Flat, OutputTally, floored_db, output_drifts


def tallied(expected: list[Array], actual: list[Array], size: int) -> OutputTally:
    tally = OutputTally("y")
    for start in range(0, len(expected), size):
        part = slice(start, start + size)
        tally.observe(Flat.of(expected[part]), Flat.of(actual[part]))
    return tally


def samples(lengths: list[int], seed: int) -> list[Array]:
    generator = rng(seed)
    return [generator.standard_normal((1, n, 3)).astype(np.float32) for n in lengths]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.integers(1, 7))
def test_chunks_change_nothing(lengths: list[int], size: int) -> None:
    expected, noise = samples(lengths, 0), samples(lengths, 1)
    actual = [a + np.float32(0.1) * b for a, b in zip(expected, noise, strict=True)]
    one, whole = (tallied(expected, actual, s) for s in (size, len(lengths)))
    np.testing.assert_array_equal(one.signal.values, whole.signal.values)
    np.testing.assert_array_equal(one.noise.values, whole.noise.values)
    (a,), (b,) = (output_drifts([t], confidence=0.95, seed=0) for t in (one, whole))
    assert (a.sqnr_db, a.max_error, a.p99_error) == (b.sqnr_db, b.max_error, b.p99_error)
    assert a.sqnr_interval == b.sqnr_interval
    assert a.mean_error == pytest.approx(b.mean_error)


def test_sums_of_units_of_any_length() -> None:
    expected, actual = samples([2, 0, 3], 0), samples([2, 0, 3], 1)
    tally = tallied(expected, actual, 3)
    assert tally.signal.values == pytest.approx([(a.astype(float) ** 2).sum() for a in expected])
    errors = [(a.astype(float) - b) ** 2 for a, b in zip(expected, actual, strict=True)]
    assert tally.noise.values == pytest.approx([e.sum() for e in errors])


@given(st.lists(st.integers(1, 5), min_size=2, max_size=10))
def test_equal_outputs_have_no_error(lengths: list[int]) -> None:
    values = samples(lengths, 0)
    (found,) = output_drifts([tallied(values, values, 4)], confidence=0.95, seed=0)
    assert found.sqnr_db is None
    assert found.sqnr_interval is None
    assert (found.max_error, found.p99_error, found.mean_error, found.not_finite) == (0, 0, 0, 0)
    assert found.cosine == pytest.approx(1)


def test_the_interval_of_the_sqnr_is_that_of_redrawn_samples() -> None:
    n = 300
    scale = np.exp(rng(2).standard_normal(n))[:, None]
    expected = rng(0).standard_normal((n, 4)) * scale
    actual = expected + 0.1 * rng(1).standard_normal((n, 4))
    tally = tallied(list(expected[:, None]), list(actual[:, None]), 64)
    (found,) = output_drifts([tally], confidence=0.95, seed=0)
    signal, noise = (expected**2).sum(1), ((actual - expected) ** 2).sum(1)
    drawn = [rng(s).integers(0, n, n) for s in range(1000)]
    ratios = [10 * np.log10(signal[i].sum() / noise[i].sum()) for i in drawn]
    assert found.sqnr_interval is not None
    ends = (found.sqnr_interval.low, found.sqnr_interval.high)
    assert ends == pytest.approx(np.quantile(ratios, (0.025, 0.975)), abs=0.15)


def test_ratios_tell_the_unchanged_and_the_broken() -> None:
    expected = [np.ones((1, 2), np.float32)] * 3
    actual = [np.ones((1, 2), np.float32), np.array([[1, np.nan]], np.float32), expected[0] * 2]
    ratio = OutputTally("y").observe(Flat.of(expected), Flat.of(actual))
    assert ratio.tolist() == [np.inf, -1.0, 1.0]


def test_what_is_not_finite_enters_no_figure() -> None:
    """As if it were not there: in sums, mean and percentile alike."""
    n = 1000
    expected, actual = rng(0).standard_normal((2, n, 1, 4))
    broken = expected.copy()
    broken[:, :, 1:3] = np.nan  # float's own, so that half of all values are left out
    clean, partial = (
        output_drifts([tallied(list(f), list(actual[..., at]), 64)], confidence=0.95, seed=0)[0]
        for f, at in ((expected[..., [0, 3]], [0, 3]), (broken, slice(None)))
    )
    assert partial.not_finite == 0
    assert partial.p99_error == clean.p99_error
    for name in ("sqnr_db", "cosine", "max_error", "mean_error", "signal"):
        assert getattr(partial, name) == pytest.approx(getattr(clean, name)), name


def test_no_signal_is_no_infinite_figure() -> None:
    tally = tallied([np.zeros((1, 2))] * 2, [np.ones((1, 2))] * 2, 2)
    (found,) = output_drifts([tally], confidence=0.95, seed=0)
    assert found.sqnr_db == floored_db(0.0) == -200.0
    assert found.cosine is None


def test_quantiles_are_of_each_sample_alone() -> None:
    """One sample of many is noise: pooled figure and median hide it, the lowest does not."""
    n = 400
    expected = rng(0).standard_normal((n, 1, 50))
    actual = expected + 0.01 * rng(1).standard_normal(expected.shape)
    actual[7] = expected[7] + 0.6 * np.sign(expected[7])
    (found,) = output_drifts([tallied(list(expected), list(actual), 64)], confidence=0.95, seed=0)
    each = 10 * np.log10((expected**2).sum((1, 2)) / ((actual - expected) ** 2).sum((1, 2)))
    each.sort()
    assert found.per_sample is not None
    assert found.per_sample.samples == n
    assert found.per_sample.median == pytest.approx(np.median(each))
    assert found.per_sample.p1 == pytest.approx(each[3])  # the 4th of 400
    assert found.per_sample.p1_low == found.per_sample.worst == pytest.approx(each[0])


def test_quantiles_of_few_broken_and_uncomparable_samples() -> None:
    expected = [
        np.ones((1, 2)),
        np.ones((1, 2)),
        np.ones((1, 2)),
        np.full((1, 2), np.nan),
        np.ones((1, 2)),
    ]
    actual = [
        np.ones((1, 2)),
        np.full((1, 2), 1.1),
        np.full((1, 2), np.nan),
        np.ones((1, 2)),
        np.ones((1, 3)),
    ]
    (found,) = output_drifts([tallied(expected, actual, 2)], confidence=0.95, seed=0)
    # Unchanged, 20 dB and not finite; float's own NaN and another shape are not samples of a figure.
    quantiles = found.per_sample
    assert quantiles is not None
    assert (quantiles.samples, quantiles.other_shape) == (3, 1)
    assert quantiles.median == pytest.approx(20)
    assert (quantiles.p1, quantiles.worst, quantiles.p1_low) == (-200, -200, None)
    nothing = tallied([np.full((1, 2), np.nan)], [np.ones((1, 2))], 1)
    assert output_drifts([nothing], confidence=0.95, seed=0)[0].per_sample is None


def test_one_value_has_no_direction() -> None:
    tally = tallied([np.ones((1, 1))] * 3, [np.full((1, 1), 2.0)] * 3, 2)
    assert output_drifts([tally], confidence=0.95, seed=0)[0].cosine is None


@given(st.lists(st.integers(1, 6), min_size=1, max_size=8))
def test_decisions_of_any_length_are_those_of_each_alone(lengths: list[int]) -> None:
    decider = Decider(output="y", scores=True)
    arrays = [rng(n).standard_normal((1, n)) for n in lengths]
    assert decider.decide(arrays).tolist() == [int(a.argmax()) for a in arrays]


def test_no_decision_from_nan() -> None:
    decider = Decider(output="y", scores=True)
    rows = [np.array([[1.0, np.nan]]), np.array([[1.0, 2.0]])]
    assert decider.decide(rows).tolist() == [-1, 1]
    assert decider.decide([rows[0], np.zeros((1, 0))]).tolist() == [-1, -1]
