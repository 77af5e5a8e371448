"""Metrics and their intervals against scipy and brute force."""

from itertools import pairwise

import numpy as np
import pytest
from builders import Array, rng
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from quantkit.evaluate.accuracy.f1 import F1
from quantkit.evaluate.accuracy.figures import Mean, metrics_of
from quantkit.evaluate.accuracy.rank import Spearman
from quantkit.evaluate.accuracy.sentence import sentence_of
from quantkit.evaluate.accuracy.slices import groups_by_class, groups_by_range, worst_slices


def macro_f1(labels: Array, answers: Array) -> float:
    """By definition: over the classes that occur among the labels."""
    found = []
    for c in np.unique(labels):
        hits = ((labels == c) & (answers == c)).sum()
        found.append(2 * hits / ((labels == c).sum() + (answers == c).sum()))
    return float(np.mean(found))


@given(st.lists(st.tuples(*[st.integers(0, 4)] * 3), min_size=2, max_size=40))
def test_f1_is_its_definition(cells: list[tuple[int, int, int]]) -> None:
    labels, before, now = np.array(cells).T
    figure = F1(labels=labels, answers=np.stack([before, now]))
    assert figure.value(0) == pytest.approx(macro_f1(labels, before))
    assert figure.value(1) == pytest.approx(macro_f1(labels, now))
    assert figure.drop_interval(1, 0.95, 0) is not None


def test_f1_is_redrawn_as_samples_are() -> None:
    labels = rng(0).integers(0, 5, 400)
    before, now = (np.where(rng(s).random(400) < 0.8, labels, 0) for s in (1, 2))
    figure = F1(labels=labels, answers=np.stack([before, now]))
    drawn = [rng(s).integers(0, 400, 400) for s in range(1000)]
    values = [macro_f1(labels[i], now[i]) for i in drawn]
    drops = [macro_f1(labels[i], before[i]) - v for i, v in zip(drawn, values, strict=True)]
    assert figure.interval(1, 0.95, 0) == pytest.approx(
        np.quantile(values, (0.025, 0.975)), abs=0.006
    )
    assert figure.drop_interval(1, 0.95, 0) == pytest.approx(
        np.quantile(drops, (0.025, 0.975)), abs=0.006
    )


@given(st.lists(st.tuples(*[st.integers(-5, 5)] * 2), min_size=3, max_size=30), st.data())
def test_a_redraw_ranks_as_sorting_would(pairs: list[tuple[int, int]], data: st.DataObject) -> None:
    from quantkit.evaluate.accuracy.rank import _correlation, _Ranked

    a, b = np.array(pairs, float).T
    n = len(pairs)
    drawn = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=n, max_size=n)))
    weights = np.bincount(drawn, minlength=n).astype(float)
    found = _correlation(weights, _Ranked.of(a).redrawn(weights), _Ranked.of(b).redrawn(weights))
    constant = np.ptp(a[drawn]) == 0 or np.ptp(b[drawn]) == 0
    expected = 0.0 if constant else stats.spearmanr(a[drawn], b[drawn])[0]
    assert found == pytest.approx(expected, abs=1e-9)


def test_spearman_and_its_contributions() -> None:
    labels = rng(0).standard_normal(200)
    before, now = (labels + s * rng(s).standard_normal(200) for s in (1, 2))
    figure = Spearman(labels=labels, answers=np.stack([before, now]))
    assert figure.value(1) == pytest.approx(stats.spearmanr(labels, now)[0])
    drop = figure.value(0) - figure.value(1)
    assert figure.contributions(1).mean() == pytest.approx(drop)
    low, high = figure.drop_interval(1, 0.95, 0) or (1.0, -1.0)
    assert low < drop < high


def test_a_mean_of_losses() -> None:
    scores = np.abs(rng(0).standard_normal((2, 100)))
    figure = Mean(name="mse", scores=scores, higher_is_better=False)
    (metric,) = metrics_of([figure], 1, main="mse", confidence=0.9, seed=0)
    assert metric.value == pytest.approx(scores[1].mean())
    assert metric.drop == pytest.approx(scores[1].mean() - scores[0].mean())
    assert metric.drop is not None
    assert metric.drop_interval is not None
    assert metric.drop_interval.confidence == 0.9
    assert metric.drop_interval.low < metric.drop < metric.drop_interval.high


@given(st.lists(st.booleans(), min_size=1, max_size=30), st.sampled_from(["top-1", "mse"]))
def test_a_candidate_like_float_has_no_drop(hits: list[bool], name: str) -> None:
    row = np.array(hits, float)
    figure = Mean(name=name, scores=np.stack([row, row]), higher_is_better=name == "top-1")
    (metric,) = metrics_of([figure], 1, main=name, confidence=0.95, seed=0)
    assert metric.drop == 0
    assert metric.detectable is not None
    assert metric.detectable > 0


def test_sentences() -> None:
    def sentence(scores: Array, name: str = "top-1") -> str:
        figure = Mean(name=name, scores=scores)
        (metric,) = metrics_of([figure], 1, main=name, confidence=0.95, seed=0)
        return sentence_of(metric, scores.shape[1])

    hits = np.ones((2, 200))
    hits[1, :1] = 0
    assert sentence(hits) == (
        "A drop of 0.5 points of top-1 was measured; with 200 samples a drop under 2.8 points cannot be "
        "ruled out."
    )
    hits[1, :40] = 0
    assert sentence(hits).startswith("top-1 drops by 20.0 points (15.")
    assert "with 95% confidence, 200 samples" in sentence(hits)
    assert sentence(hits[::-1]).startswith("top-1 is better by 20.0 points (15.")
    assert sentence(np.array([[1.5], [1.0]]), "own:score") == (
        "A drop of 0.5 of own:score was measured; with 1 sample no more can be said."
    )


def test_the_slice_that_is_worse_comes_first() -> None:
    labels = np.repeat(np.arange(5), 40)
    scores = np.ones((2, 200))
    scores[1, 80:100] = 0  # half of class 2
    scores[:, :4] = 0
    figure = Mean(name="top-1", scores=scores)
    slices = worst_slices(figure, 1, list(groups_by_class(labels)), confidence=0.95, seed=0)
    assert slices[0].name == "2"
    assert (slices[0].float_value, slices[0].value, slices[0].drop) == (1.0, 0.5, 0.5)
    assert slices[0].p_value == pytest.approx(5 * stats.binomtest(0, 20).pvalue)
    assert all(s.p_value == 1 for s in slices[1:])
    assert len(slices) == 5


def test_small_slices_are_left_out_and_ten_are_shown() -> None:
    labels = np.concatenate([np.repeat(np.arange(15), 6), [99] * 4])
    figure = Mean(name="top-1", scores=np.zeros((2, labels.size)))
    slices = worst_slices(figure, 1, list(groups_by_class(labels)), confidence=0.95, seed=0)
    assert len(slices) == 10
    assert "99" not in {s.name for s in slices}


@given(st.lists(st.integers(0, 6), min_size=1, max_size=60))
def test_ranges_hold_every_sample_once(values: list[int]) -> None:
    numbers = np.array(values, float)
    groups = list(groups_by_range("length", numbers, "tokens"))
    if len(set(values)) == 1:
        assert not groups
        return
    places = np.concatenate([g.chosen for g in groups])
    assert sorted(places.tolist()) == list(range(len(values)))
    assert 2 <= len(groups) <= 4
    for one, other in pairwise(groups):
        assert numbers[one.chosen].max() < numbers[other.chosen].min()
    assert all(g.name.endswith(" tokens") for g in groups)
