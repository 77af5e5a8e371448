"""Peaks of single samples, and ranges for samples that were not seen."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators import Peaks, Sketch, unseen_range

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


def samples(count: int, seed: int = 0, spread: float = 0.5) -> list[Floats]:
    found = np.random.default_rng(seed)
    return [
        (found.standard_normal((1, 500)) * np.exp(found.normal(0, spread))).astype(np.float32)
        for _ in range(count)
    ]


def seen(arrays: list[Floats]) -> tuple[Sketch, Peaks]:
    sketch, peaks = Sketch(), Peaks()
    for array in arrays:
        sketch.observe(array)
        peaks.observe(array)
    return sketch, peaks


@given(st.integers(1, 80), st.integers(0, 5))
def test_peaks_merge_exactly(count: int, seed: int) -> None:
    arrays = samples(count, seed)
    whole, first, second = (seen(part)[1] for part in (arrays, arrays[::2], arrays[1::2]))
    first.merge(second)
    for name, array in whole.state().items():
        np.testing.assert_array_equal(first.state()[name], array)
    again = Peaks.from_state(whole.state())
    assert again.count == count
    np.testing.assert_array_equal(again.high, np.sort([a.max() for a in arrays])[::-1][:33])


@given(st.integers(1, 20), st.integers(1, 12), st.integers(0, 99))
def test_peaks_without_some_samples_are_those_of_the_others(
    some: int, others: int, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    arrays = [draw.integers(-9, 9, 6).astype(np.float32) for _ in range(some + others)]
    whole, first, rest = (seen(part)[1] for part in (arrays, arrays[:some], arrays[some:]))
    left = whole.without(first)
    assert left.count == rest.count
    np.testing.assert_array_equal(left.high, rest.high)
    np.testing.assert_array_equal(left.low, rest.low)


def test_samples_of_a_batch_have_peaks_of_their_own() -> None:
    arrays = samples(6)
    batched = Peaks(rows=4)
    batched.observe(np.concatenate(arrays[:4]))
    batched.observe(np.concatenate(arrays[4:]))  # the last batch is short
    np.testing.assert_array_equal(batched.high, seen(arrays)[1].high)


def test_nan_and_infinity_are_not_peaks() -> None:
    peaks = Peaks()
    peaks.observe(np.array([[1.0, np.nan, -2.0, np.inf]], np.float32))
    peaks.observe(np.array([[np.nan]], np.float32))
    assert (peaks.count, peaks.low.tolist(), peaks.high.tolist()) == (1, [-2.0], [1.0])


def cost(ends: tuple[float, float], arrays: list[Floats], weight: float = 1.0) -> float:
    values = np.concatenate(arrays, axis=None).astype(np.float64)
    step = (ends[1] - ends[0]) / 255
    clipped = np.clip(values, *ends)
    return float(
        np.square(np.rint(clipped / step) * step - clipped).sum()
        + weight * np.square(values - clipped).sum()
    )


@pytest.mark.parametrize("weight", [1.0, 20.0])
def test_few_samples_leave_headroom_that_pays_on_others(weight: float) -> None:
    gains = []
    for seed in range(8):
        sketch, peaks = seen(samples(24, seed))
        low, high = sketch.bounds
        found = unseen_range(sketch, peaks, clip_weight=weight)
        others = samples(400, seed + 100)
        gains.append(cost((low, high), others, weight) / cost(found, others, weight))
    assert np.median(gains) > 1.2


def test_a_larger_weight_makes_no_range_narrower_and_bounded_values_need_no_headroom() -> None:
    sketch, peaks = seen(samples(24))
    widths = [np.subtract(*unseen_range(sketch, peaks, clip_weight=w)[::-1]) for w in (0.1, 1, 10)]
    assert widths == sorted(widths)
    clipped = [np.clip(3 * a, 0, 6) for a in samples(24)]
    assert unseen_range(*seen(clipped), clip_weight=100.0) == (0.0, 6.0)
