"""Intervals cover as often as they say; tests and ranks agree with scipy and with brute force."""

from collections import Counter
from collections.abc import Callable
from itertools import product
from math import comb, exp

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from quantkit.numerics.rates import wilson
from quantkit.numerics.statistics import (
    Bounds,
    bootstrap_mean,
    detectable_drop,
    drop_interval,
    flips_interval,
    holm,
    mcnemar_exact,
    mean_interval,
    median_interval,
    percentiles,
    redrawn_counts,
    redrawn_means,
    spearman,
)

Values = NDArray[np.float64]

COVERED = 0.925  # of nominal 0.95: room for the chance of some hundred data sets and for skew
DATA_SETS = 1200
REDRAWN = 500  # data sets that are redrawn themselves, which takes a millisecond each
PROPERTY = settings(max_examples=60, deadline=None)

values = st.lists(st.floats(-1e3, 1e3, allow_subnormal=False), min_size=2, max_size=40)
flips = st.lists(st.sampled_from([-1.0, 0.0, 0.0, 1.0]), min_size=1, max_size=60)


# ---- coverage ----


@pytest.mark.parametrize("n", [50, 200, 1000])
@pytest.mark.parametrize("discordance", [0.005, 0.02, 0.1])
@pytest.mark.parametrize("lost", [0.5, 0.8, 1.0])  # of the flips; 0.5 is a drop of 0
def test_intervals_of_drops_cover(n: int, discordance: float, lost: float) -> None:
    rates = [discordance * (1 - lost), discordance * lost]
    rng = np.random.default_rng([n, int(discordance * 1000), int(lost * 10)])
    seen = rng.multinomial(n, [*rates, 1 - discordance], DATA_SETS)
    drop, covered = rates[1] - rates[0], 0
    for (gained, worse), times in Counter((int(g), int(w)) for g, w, _ in seen).items():
        low, high = flips_interval(gained, worse, n)
        covered += times * (low <= drop <= high)
    assert covered / DATA_SETS >= COVERED


@pytest.mark.parametrize("n", [1, 20, 200])
@pytest.mark.parametrize("rate", [0.02, 0.3, 0.912])
def test_wilson_covers(n: int, rate: float) -> None:
    chance = stats.binom(n, rate).pmf(np.arange(n + 1))
    ends = [wilson(count, n) for count in range(n + 1)]
    covered = sum(p for p, (low, high) in zip(chance, ends, strict=True) if low <= rate <= high)
    # A score interval covers on average over the rates; at single ones it may miss by some points.
    assert covered >= 0.91


def _covered(draw: Callable[[np.random.Generator], Values], truth: float, **given: float) -> float:
    rng, hits = np.random.default_rng(7), 0
    for seed in range(REDRAWN):
        ends = drop_interval(draw(rng), draws=250, seed=seed, **given)
        hits += ends is not None and ends[0] <= truth <= ends[1]
    return hits / REDRAWN


@pytest.mark.parametrize(
    ("draw", "truth"),
    [
        (lambda r: r.exponential(size=50), 1.0),
        (lambda r: r.lognormal(size=50), exp(0.5)),
        (lambda r: r.exponential(size=200) ** 2 - r.exponential(size=200), 1.0),
        (lambda r: r.normal(size=200) * (r.random(200) < 0.02), 0.0),
        (lambda r: r.exponential(size=200) * (r.random(200) < 0.02), 0.02),
    ],
    ids=["exponential", "lognormal", "difference of squares", "rare", "rare and one-sided"],
)
def test_intervals_of_skewed_means_cover(
    draw: Callable[[np.random.Generator], Values], truth: float
) -> None:
    assert _covered(draw, truth) >= COVERED


@pytest.mark.parametrize("n", [6, 25, 200])
def test_intervals_of_medians_cover(n: int) -> None:
    samples = np.random.default_rng(n).lognormal(size=(DATA_SETS, n))
    ends = [median_interval(row) for row in samples]
    assert all(ends)
    covered = np.mean([e is not None and e[0] <= 1.0 <= e[1] for e in ends])
    assert covered >= 0.94


def test_percentiles_of_redrawn_samples_cover_an_ordinary_figure() -> None:
    rng, hits = np.random.default_rng(3), 0
    for seed in range(REDRAWN):
        top, bottom = rng.exponential(size=100), 1 + rng.random(100)
        ratios = [(w @ top) / (w @ bottom) for w in redrawn_counts(100, draws=250, seed=seed)]
        low, high = percentiles(np.concatenate(ratios))
        hits += low <= 1 / 1.5 <= high
    assert hits / REDRAWN >= 0.9


# ---- against scipy and brute force ----


@pytest.mark.parametrize(("count", "n"), [(0, 7), (3, 200), (200, 200), (50, 99)])
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_wilson_is_scipys(count: int, n: int, confidence: float) -> None:
    want = stats.binomtest(count, n).proportion_ci(confidence, method="wilson")
    assert wilson(count, n, confidence) == pytest.approx((want.low, want.high), abs=1e-12)


@pytest.mark.parametrize(("gained", "lost", "n"), [(1, 7, 40), (0, 3, 200), (5, 5, 60), (0, 0, 30)])
def test_interval_of_a_drop_is_what_the_score_test_does_not_refuse(
    gained: int, lost: int, n: int
) -> None:
    """Brute force: the likeliest rate of gains under each drop, searched for instead of solved for."""
    low, high = flips_interval(gained, lost, n)
    z = stats.norm.ppf(0.975)

    def refused(drop: float) -> bool:
        rates = np.linspace(max(0, -drop), min(1, (1 - drop) / 2), 200_001)[1:-1]
        likelihood = (
            gained * np.log(rates)
            + lost * np.log(np.maximum(rates + drop, 1e-300))
            + (n - gained - lost) * np.log1p(-np.minimum(2 * rates + drop, 1 - 1e-12))
        )
        rate = rates[np.argmax(likelihood)]
        deviation = np.sqrt(n * (2 * rate + drop - drop * drop))
        return bool(abs(lost - gained - n * drop) > z * deviation)

    for end, outwards in ((low, -1), (high, 1)):
        assert not refused(end - outwards * 2e-4)
        assert refused(end + outwards * 2e-4)


def test_mirrored_flips_mirror_the_interval() -> None:
    low, high = flips_interval(3, 11, 150)
    assert flips_interval(11, 3, 150) == pytest.approx((-high, -low), abs=1e-12)


def test_studentized_bootstrap_is_the_one_written_out() -> None:
    data = np.random.default_rng(0).lognormal(size=60)
    rng = np.random.default_rng(1)
    drawn = data[rng.integers(60, size=(20_000, 60))]
    t = (drawn.mean(1) - data.mean()) / drawn.std(1, ddof=1)
    wide, narrow = np.quantile(t, [0.025, 0.975])
    want = data.mean() - narrow * data.std(ddof=1), data.mean() - wide * data.std(ddof=1)
    low, high = bootstrap_mean(data, draws=20_000) or (0.0, 0.0)
    student = stats.t(59, data.mean(), data.std(ddof=1) / np.sqrt(60)).interval(0.95)
    assert low == pytest.approx(min(want[0], student[0]), rel=0.03)
    assert high == pytest.approx(max(want[1], student[1]), rel=0.03)


def test_percentile_bootstrap_is_scipys() -> None:
    data = np.random.default_rng(0).normal(size=100)
    want = stats.bootstrap((data,), np.std, n_resamples=4000, method="percentile", rng=1)
    blocks = list(redrawn_counts(100, draws=4000))
    assert len(blocks) > 1
    weights = np.concatenate(blocks)
    assert weights.shape == (4000, 100)
    assert (weights.sum(axis=1) == 100).all()
    drawn = np.sqrt(weights @ data**2 / 100 - (weights @ data / 100) ** 2)
    assert percentiles(drawn) == pytest.approx(tuple(want.confidence_interval), abs=0.01)


@pytest.mark.parametrize("columns", [1, 2])
def test_counted_draws_have_the_moments_of_drawn_rows(columns: int) -> None:
    """Few distinct rows are drawn as counts, many as indices: both are draws with replacement."""
    rng = np.random.default_rng(5)
    few = rng.integers(-1, 2, (300, columns)).astype(float)
    many = few + rng.normal(size=(300, columns)) * 1e-9
    for table in (few, many):
        means = redrawn_means(table, draws=20_000)
        assert means.shape == (20_000, columns)
        assert means.mean(0) == pytest.approx(table.mean(0), abs=2e-3)
        assert means.std(0) == pytest.approx(table.std(0) / np.sqrt(300), rel=0.05)
        if columns == 2:
            want = stats.pearsonr(*table.T).statistic
            assert stats.pearsonr(*means.T).statistic == pytest.approx(want, abs=0.03)


@pytest.mark.parametrize("gained", range(6))
@pytest.mark.parametrize("lost", range(6))
def test_mcnemar_is_the_binomial_test(gained: int, lost: int) -> None:
    total = gained + lost
    want = stats.binomtest(gained, total).pvalue if total else 1.0
    assert mcnemar_exact(gained, lost) == pytest.approx(want, abs=1e-12)
    tosses = list(product([0, 1], repeat=total))
    uneven = [t for t in tosses if abs(2 * sum(t) - total) >= abs(gained - lost)]
    assert mcnemar_exact(gained, lost) == pytest.approx(len(uneven) / len(tosses), abs=1e-12)


def test_holm_by_hand() -> None:
    assert holm([]) == ()
    assert holm([0.01, 0.04, 0.03]) == pytest.approx((0.03, 0.06, 0.06))
    assert holm([0.5, 0.6, 0.001]) == pytest.approx((1.0, 1.0, 0.003))


def test_holm_refuses_where_the_step_down_procedure_does() -> None:
    p = np.random.default_rng(2).random(12) ** 4
    corrected = holm(p.tolist())
    for alpha in (0.01, 0.05, 0.2, 0.7):
        refused = set()
        for step, index in enumerate(np.argsort(p)):
            if p[index] > alpha / (len(p) - step):
                break
            refused.add(int(index))
        assert {i for i, c in enumerate(corrected) if c <= alpha} == refused


@pytest.mark.parametrize("n", [6, 7, 30, 101])
def test_interval_of_a_median_takes_the_innermost_order_statistics_that_suffice(n: int) -> None:
    low, high = median_interval(np.arange(1.0, n + 1)) or (0.0, 0.0)
    outside = [sum(comb(n, j) for j in range(k)) / 2**n for k in range(n)]
    assert low + high == n + 1
    assert outside[int(low)] <= 0.025 < outside[int(low) + 1]


def test_too_few_values_have_no_interval() -> None:
    assert median_interval([1.0] * 5) is None
    assert bootstrap_mean([1.0]) is None
    assert drop_interval([0.3]) is None


@PROPERTY
@given(st.lists(st.integers(0, 4), min_size=3, max_size=30), st.randoms())
def test_spearman_is_scipys(a: list[int], random: object) -> None:
    b = list(a)
    random.shuffle(b)  # type: ignore[attr-defined]
    want = stats.spearmanr(a, b).statistic if len(set(a)) > 1 else 0.0
    assert spearman(a, b) == pytest.approx(want, abs=1e-9)


# ---- what the interval of a drop means ----


def test_nothing_seen_is_not_nothing_there() -> None:
    low, high = drop_interval(np.zeros(200)) or (0.0, 0.0)
    assert (low, high) == pytest.approx((-0.0188, 0.0188), abs=1e-4)
    assert detectable_drop(low, high) == high  # "a drop under 1.9 points cannot be ruled out"
    # A drop of that size shows no flip in 200 samples more often than one time in fifty.
    assert (1 - high) ** 200 > 0.02
    assert drop_interval(np.zeros(200), reach=3.0) == pytest.approx((3 * low, 3 * high))


def test_detectable_drop() -> None:
    assert detectable_drop(-0.01, 0.02) == 0.02
    assert detectable_drop(-0.02, -0.01) == 0.0
    assert detectable_drop(0.01, 0.02) is None


def test_hits_are_recognized() -> None:
    assert mean_interval([1.0, 0.0, 1.0, 1.0]) == wilson(3, 4)
    assert mean_interval([1.0, 0.5, 1.0, 1.0]) == bootstrap_mean([1.0, 0.5, 1.0, 1.0])
    assert drop_interval([1.0, 0.0, -1.0, 1.0]) == flips_interval(1, 2, 4)


# ---- laws ----


def _all_of(drops: list[float], confidence: float) -> list[tuple[float, Bounds | None]]:
    mean, median = float(np.mean(drops)), float(np.median(drops))
    return [
        (mean, bootstrap_mean(drops, draws=60, confidence=confidence)),
        (mean, drop_interval(drops, draws=60, confidence=confidence)),
        (mean, mean_interval(drops, draws=60, confidence=confidence)),
        (median, median_interval(drops, confidence)),
    ]


@PROPERTY
@given(values | flips, st.floats(0.5, 0.9))
def test_intervals_hold_the_estimate_and_widen_with_confidence(
    drops: list[float], confidence: float
) -> None:
    nearly = 1e-9 * max(map(abs, drops))
    both = zip(_all_of(drops, confidence), _all_of(drops, confidence + 0.09), strict=True)
    for (estimate, narrow), (_, wide) in both:
        if narrow is not None:
            assert narrow[0] - nearly <= estimate <= narrow[1] + nearly
        if narrow is not None and wide is not None:
            assert wide[0] <= narrow[0] + nearly
            assert wide[1] >= narrow[1] - nearly


@PROPERTY
@given((values | flips).flatmap(lambda v: st.tuples(st.just(v), st.permutations(v))))
def test_order_does_not_matter(pair: tuple[list[float], list[float]]) -> None:
    tiny = 1e-9 * max(map(abs, pair[0]))
    for (_, one), (_, other) in zip(_all_of(pair[0], 0.9), _all_of(pair[1], 0.9), strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert one == pytest.approx(other, rel=1e-6, abs=tiny)


@PROPERTY
@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 2000))
def test_intervals_of_drops_are_never_empty(gained: int, lost: int, more: int) -> None:
    n = gained + lost + more
    low, high = flips_interval(gained, lost, n)
    assert -1 <= low < (lost - gained) / n < high <= 1


def test_percentiles_of_draws() -> None:
    assert percentiles(np.arange(101.0), 0.9) == pytest.approx((5, 95))
