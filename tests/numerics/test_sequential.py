"""Tests that are looked at after every sample err no more often than they say, and clear cases end early."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from quantkit.numerics.sequential import Sequential, decide

Values = NDArray[np.float64]
Draw = Callable[[], Values]

ALPHA = 0.05
RUNS = 400
# Of 400 runs with a chance of 0.05 each more than 32 are wrong once in 250 times; the seeds are fixed.
MOST_WRONG = 32
PROPERTY = settings(max_examples=60, deadline=None)
flips = st.lists(st.sampled_from([-1.0, 0.0, 0.0, 0.0, 1.0]), min_size=1, max_size=80)


def _flips(rng: np.random.Generator, n: int, lost: float, gained: float) -> Values:
    """Draw n samples of which a share is lost or won; the rest is as with float."""
    return np.asarray(rng.choice([1.0, -1.0, 0.0], size=n, p=[lost, gained, 1 - lost - gained]))


def _shuffled(rng: np.random.Generator, n: int, lost: int, gained: int) -> Values:
    """Return n samples of which just so many are lost and won, in a random order."""
    values = np.zeros(n)
    values[:lost], values[lost : lost + gained] = 1.0, -1.0
    rng.shuffle(values)
    return values


# ---- error rates ----

# The hardest case for both sides: the mean is the limit itself. Rare flips, many that cancel, losses alone.
AT_THE_LIMIT = [(0.005, 0.0), (0.01, 0.005), (0.03, 0.025), (0.3, 0.295), (0.055, 0.05)]


@pytest.mark.parametrize(("lost", "gained"), AT_THE_LIMIT)
def test_draws_are_judged_wrongly_no_more_often_than_said(lost: float, gained: float) -> None:
    rng = np.random.default_rng([int(lost * 1000), int(gained * 1000)])
    found = Counter(
        decide(_flips(rng, 1000, lost, gained), lost - gained, alpha=ALPHA).verdict
        for _ in range(RUNS)
    )
    assert found["in"] <= MOST_WRONG
    assert found["out"] <= MOST_WRONG


@pytest.mark.parametrize(("lost", "gained"), [(1, 0), (3, 2), (12, 4), (60, 55), (200, 190)])
@pytest.mark.parametrize("n", [420, 700])
def test_shuffled_samples_are_judged_wrongly_no_more_often_than_said(
    n: int, lost: int, gained: int
) -> None:
    rng = np.random.default_rng([n, lost, gained])
    limit = (lost - gained) / n
    # One sample from the end the answer is not arithmetic yet; a hair beside the limit it is wrong to say so.
    above, below = Counter[str](), Counter[str]()
    for _ in range(RUNS):
        values = _shuffled(rng, n, lost, gained)[:-1]
        above[decide(values, limit - 1e-4 / n, alpha=ALPHA, population=n).verdict] += 1
        below[decide(values, limit + 1e-4 / n, alpha=ALPHA, population=n).verdict] += 1
    assert above["in"] <= MOST_WRONG
    assert below["out"] <= MOST_WRONG


@pytest.mark.parametrize("shape", ["uniform", "skewed", "two values"])
def test_other_bounded_scores_are_judged_wrongly_no_more_often_than_said(shape: str) -> None:
    rng = np.random.default_rng(len(shape))
    draws: dict[str, Draw] = {
        "uniform": lambda: rng.uniform(-2.0, 4.0, 800),
        "skewed": lambda: rng.beta(0.05, 1.0, 800) * 6.0 - 2.0,
        "two values": lambda: np.where(rng.random(800) < 0.004, 4.0, -0.01),
    }
    means = {"uniform": 1.0, "skewed": 0.05 / 1.05 * 6.0 - 2.0, "two values": 0.004 * 4.01 - 0.01}
    found = Counter(
        decide(draws[shape](), means[shape], alpha=ALPHA, bounds=(-2.0, 4.0)).verdict
        for _ in range(RUNS)
    )
    assert found["in"] <= MOST_WRONG
    assert found["out"] <= MOST_WRONG


def test_an_interval_of_one_look_would_err_far_more_often() -> None:
    # What the module is for: the usual interval, looked at after every 25 samples, is wrong in 30 of 100 runs.
    rng, wrong = np.random.default_rng(3), 0
    for _ in range(RUNS):
        values = _flips(rng, 1500, 0.3, 0.295)
        looks = np.arange(25, 1501, 25)
        means = np.cumsum(values)[looks - 1] / looks
        half = 1.96 * np.sqrt(0.595 / looks)
        wrong += bool((np.abs(means - 0.005) > half).any())
    assert wrong > RUNS / 4


# ---- early ends ----


def test_clear_candidates_end_early() -> None:
    rng = np.random.default_rng(0)
    bad = [decide(_flips(rng, 2000, 0.15, 0.02), 0.005).seen for _ in range(50)]
    assert np.median(bad) < 150
    good = [decide(_flips(rng, 2000, 0.01, 0.01), 0.05).seen for _ in range(50)]
    assert np.median(good) < 300
    assert decide(np.ones(100), 0.005).seen < 15


def test_where_nothing_flips_the_answer_comes_when_about_four_losses_were_to_be_expected() -> None:
    found = decide(np.zeros(2000), 0.005)
    assert found.verdict == "in"
    assert 600 < found.seen < 800
    assert decide(np.zeros(500), 0.005).verdict == "open"
    # Of 500 samples in all no answer is needed of those that cannot matter any more.
    assert decide(np.zeros(400), 0.005, population=500).verdict == "in"


# ---- laws ----


@PROPERTY
@given(values=flips, limit=st.floats(-0.5, 0.5))
def test_more_samples_do_not_change_an_answer(values: list[float], limit: float) -> None:
    whole = decide(values, limit, alpha=0.3)
    for k in range(len(values)):
        part = decide(values[:k], limit, alpha=0.3)
        if part.verdict != "open":
            assert (part.verdict, part.seen) == (whole.verdict, whole.seen)


@PROPERTY
@given(values=flips, limit=st.floats(-1.0, 1.0))
def test_all_samples_seen_is_exact(values: list[float], limit: float) -> None:
    n, mean = len(values), float(np.mean(values))
    found = decide(values, limit, alpha=1e-12, population=n)
    assert found.mean == pytest.approx(mean)
    if abs(mean - limit) > 1e-6:
        assert found.verdict == ("in" if mean <= limit else "out")
    assert decide(values, mean, alpha=1e-12, population=n).verdict == "in"


@PROPERTY
@given(values=flips, limit=st.floats(-0.5, 0.5))
def test_other_units_give_the_same_answer(values: list[float], limit: float) -> None:
    scaled = np.asarray(values) * 7 + 3
    found = decide(scaled, limit * 7 + 3, alpha=0.2, bounds=(-4.0, 10.0))
    plain = decide(values, limit, alpha=0.2)
    assert (found.verdict, found.seen) == (plain.verdict, plain.seen)


@pytest.mark.parametrize(
    ("limit", "verdict"), [(1.0, "in"), (2.0, "in"), (-1.5, "out"), (0.0, "open"), (-1.0, "open")]
)
def test_without_samples_only_what_is_always_so_is_known(limit: float, verdict: str) -> None:
    assert decide([], limit) == Sequential(verdict=verdict, seen=0, mean=0.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "population", "message"),
    [
        ([1.5], None, "between -1.0 and 1.0"),
        ([float("nan")], None, "between -1.0 and 1.0"),
        ([0.0, 0.0], 1, "2 values of 1 samples"),
    ],
)
def test_what_breaks_the_promise_is_refused(
    values: list[float], population: int | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        decide(values, 0.0, population=population)
