"""Macro F1 and Spearman's rank correlation, and how they vary.

Of F1 it is redrawn how often each pair of label and answer occurs; for the rank correlation samples are sorted once, not
once per draw.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from quantkit.evaluate.accuracy.figures import Floats, Indices
from quantkit.numerics.statistics import (
    Bounds,
    drop_interval,
    percentiles,
    redrawn_counts,
    spearman,
    unseen_weights,
    wilson,
)

__all__ = ["F1", "Spearman"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spearman:
    """The rank correlation of a model's answers with the labels.

    Attributes:
        labels: One number per sample.
        answers: (models, samples).
    """

    labels: Floats
    answers: Floats
    name: str = "spearman"
    higher_is_better: bool = True
    chance: float = 0.0

    @property
    def samples(self) -> int:
        """How many samples were scored."""
        return self.labels.size

    def value(self, model: int) -> float:
        """Return the metric of a model."""
        return spearman(self.labels, self.answers[model])

    def interval(self, model: int, confidence: float, seed: int) -> Bounds | None:
        """Return the percentiles of the metric over redrawn samples."""
        if self.samples <= 1:
            return None
        drawn = _rank_redrawn(seed, self.labels, self.answers[model])
        found = [_correlation(weights, labels, own) for weights, (labels, own) in drawn]
        return percentiles(np.concatenate(found), confidence)

    def drop_interval(self, model: int, confidence: float, seed: int) -> Bounds | None:
        """Return the interval of the mean contribution; a failed sample may cost all of the range of a correlation.

        Percentiles of redrawn correlations pass 17 to 27 % of the candidates that they should pass 2.5 % of
        (`benchmarks/results/gate_error_rate.md`): few answers fail, and many redraws see none of them.
        """
        return drop_interval(
            self.contributions(model), reach=1 + self.value(0), seed=seed, confidence=confidence
        )

    def contributions(self, model: int) -> Floats:
        """Return how fast the drop grows with the weight of each sample (the infinitesimal jackknife's values)."""
        before, now = (_influence(self.labels, self.answers[m]) for m in (0, model))
        return np.asarray(before - now + self.value(0) - self.value(model))

    def only(self, chosen: Indices) -> "Spearman":
        """Return the same of some samples."""
        return replace(self, labels=self.labels[chosen], answers=self.answers[:, chosen])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ranked:
    """Values sorted once, so that a redraw needs no sorting.

    Attributes:
        order: The values by size.
        starts: Where in that order each distinct value begins.
        place: Which of the distinct values each is.
    """

    order: Indices
    starts: Indices
    place: Indices

    @classmethod
    def of(cls, values: Floats) -> "_Ranked":
        _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
        order = np.argsort(place, kind="stable")
        return cls(order=order, starts=np.cumsum(counts) - counts, place=place)

    def redrawn(self, weights: Floats) -> Floats:
        """Return the middle ranks if each value occurs `weights` times, (draws, samples)."""
        times = np.add.reduceat(weights[:, self.order], self.starts, axis=1)
        middle = np.cumsum(times, axis=1) - times / 2
        return np.asarray(middle[:, self.place])

    def above(self, values: Floats) -> Floats:
        """Return for each sample the mean over all of the values of those ranked above it, of equal ones half."""
        sums = np.add.reduceat(values[self.order], self.starts)
        rest = sums[::-1].cumsum()[::-1] - sums / 2
        return np.asarray(rest[self.place] / values.size)


def _rank_redrawn(seed: int, *columns: Floats) -> Iterator[tuple[Floats, list[Floats]]]:
    """Yield, for some draws at a time, how often each sample is drawn and the ranks of all columns.

    Samples are sorted first: what is drawn does not depend on the order in which they came.
    """
    order = np.lexsort(columns)
    ranked = [_Ranked.of(column[order]) for column in columns]
    for weights in redrawn_counts(order.size, draws=_DRAWS, seed=seed):
        yield weights, [one.redrawn(weights) for one in ranked]


def _correlation(weights: Floats, a: Floats, b: Floats) -> Floats:
    """Return the correlation of each draw; 0 where one of the two is constant."""
    total = weights.sum(axis=1)
    a, b = (x - (_products(weights, x) / total)[:, None] for x in (a, b))
    own = weights * a
    scale = np.sqrt(_products(own, a) * _products(weights, b * b))
    return np.divide(_products(own, b), scale, out=np.zeros_like(scale), where=scale > 0)


def _products(a: Floats, b: Floats) -> Floats:
    """Return the product of each row of one with that of the other."""
    return np.asarray(np.einsum("ij,ij->i", a, b))


def _influence(a: Floats, b: Floats) -> Floats:
    """Return the derivative of the rank correlation by the weight of each sample, times their number; its mean is 0.

    A sample moves the correlation by its own ranks, and by the half or whole rank that it adds to those above it.
    """
    n = a.size
    one, other = (_Ranked.of(x) for x in (a, b))
    ranks = [r.redrawn(np.ones((1, n)))[0] / n - 0.5 for r in (one, other)]
    x, y = ranks
    variances = float(x @ x) / n, float(y @ y) / n
    scale = sqrt(variances[0] * variances[1])
    if not scale:
        return np.zeros(n)
    product = x * y + one.above(y) + other.above(x)
    squares = [r * r + 2 * rank.above(r) for rank, r in zip((one, other), ranks, strict=True)]
    correlation = float(x @ y) / n / scale
    slope = product / scale - correlation / 2 * (
        squares[0] / variances[0] + squares[1] / variances[1]
    )
    return np.asarray(slope - slope.mean())


_DRAWS = 1000
_BLOCK = 1 << 18  # counts that are drawn at once


@dataclass(frozen=True, slots=True, kw_only=True)
class F1:
    """Macro F1: the mean over the classes that occur among the labels of ``2 tp / (labelled + answered)``.

    Attributes:
        labels: The right class of each sample.
        answers: (models, samples): the class that each model gives.
    """

    labels: Indices
    answers: Indices
    name: str = "f1"
    higher_is_better: bool = True

    @property
    def samples(self) -> int:
        """How many samples were scored."""
        return self.labels.size

    @property
    def chance(self) -> float:
        """F1 of the most frequent class for every sample, or of classes drawn by lot: the better of the two."""
        shares = np.unique(self.labels, return_counts=True)[1] / self.samples
        always, lot = 2 * shares.max() / (1 + shares.max()), 1 / shares.size
        return float(max(always / shares.size, np.mean(2 * shares * lot / (shares + lot))))

    def value(self, model: int) -> float:
        """Return the metric of a model."""
        cells, counts = _cells(self.labels, self.answers[model])
        return float(_f1(counts[None], cells[0], cells[1])[0])

    def interval(self, model: int, confidence: float, seed: int) -> Bounds | None:
        """Return the percentiles of the metric over redrawn samples; Wilson's where every answer is right."""
        if np.array_equal(self.answers[model], self.labels):
            return wilson(self.samples, self.samples, confidence)
        if self.samples <= 1:
            return None
        (labels, answers), counts = _cells(self.labels, self.answers[model])
        drawn = [_f1(block, labels, answers) for block in _redrawn(counts, seed)]
        return percentiles(np.concatenate(drawn), confidence)

    def drop_interval(self, model: int, confidence: float, seed: int) -> Bounds | None:
        """Return the interval of the drop with one sample more, of the rarest class, that one of the models fails on.

        Percentiles of redrawn samples cover 54 to 92 % instead of 95 % where few answers change: many redraws see none
        of them (`benchmarks/results/gate_error_rate.md`), and of a rare class there may be nothing to see at all.
        """
        if self.samples <= 1:
            changed = not np.array_equal(self.answers[0], self.answers[model])
            return None if changed else drop_interval(np.zeros(1), confidence=confidence)
        low, high = (self._unseen(*pair, confidence, seed) for pair in ((model, 0), (0, model)))
        return -low, high

    def _unseen(self, right: int, wrong: int, confidence: float, seed: int) -> float:
        """Return how much better one model may be than another, which alone fails on a sample that was not seen."""
        cells, counts = _cells(self.labels, self.answers[right], self.answers[wrong])
        # A class that occurs in float's answers alone may be one of which no sample was drawn.
        known = np.union1d(self.labels, self.answers[0][self.answers[0] >= 0])
        sizes = np.array([(self.labels == c).sum() + (self.answers[0] == c).sum() for c in known])
        rarest, largest = known[sizes.argmin()], known[sizes.argmax()]
        other = largest if largest != rarest else -1
        labels, before, now = np.column_stack([cells, [rarest, rarest, other]])
        drawn = [
            _f1(weights, labels, before) - _f1(weights, labels, now)
            for weights in unseen_weights(counts, draws=_DRAWS, seed=seed)
        ]
        return percentiles(np.concatenate(drawn), confidence)[1]

    def contributions(self, model: int) -> Floats:
        """Return what each sample adds to the drop, to second order in the share of changed answers; 0 if unchanged.

        With h right answers of class c and T = labelled + answered, F1 of c is 2 h / T. An answer that becomes right
        adds 2 / T, any answer c takes F1 / T; both are taken halfway between the two models.
        """
        classes, labels = np.unique(self.labels, return_inverse=True)
        answers = [_places(classes, self.answers[m]) for m in (0, model)]
        sizes = np.bincount(labels, minlength=classes.size)
        gain, cost = np.zeros(classes.size + 1), np.zeros(classes.size + 1)
        for given in answers:
            total = sizes + np.bincount(given, minlength=classes.size + 1)[:-1]
            right = np.bincount(labels[given == labels], minlength=classes.size)
            gain[:-1] += 1 / total
            cost[:-1] += right / total**2
        before, now = (np.where(a == labels, gain[labels], 0.0) - cost[a] for a in answers)
        return np.asarray(self.samples / classes.size * (before - now))

    def only(self, chosen: Indices) -> "F1":
        """Return the same of some samples."""
        return replace(self, labels=self.labels[chosen], answers=self.answers[:, chosen])


def _cells(*columns: Indices) -> tuple[Indices, Indices]:
    """Return the combinations that occur, (columns, cells), and how often each does."""
    found, counts = np.unique(np.stack(columns), axis=1, return_counts=True)
    return found, counts


def _places(classes: Indices, answers: Indices) -> Indices:
    """Return the number of each answer among the classes; how many there are for what is none of them."""
    place = np.minimum(np.searchsorted(classes, answers), classes.size - 1)
    return np.where(classes[place] == answers, place, classes.size)


def _redrawn(counts: Indices, seed: int) -> Iterator[Indices]:
    """Yield how often each cell is drawn, (draws, cells), some draws at a time: samples of one cell are alike."""
    n, rng = int(counts.sum()), np.random.default_rng(seed)
    step = max(1, _BLOCK // counts.size)
    for start in range(0, _DRAWS, step):
        yield rng.multinomial(n, counts / n, min(step, _DRAWS - start))


def _f1(counts: Indices | Floats, labels: Indices, answers: Indices) -> Floats:
    """Return macro F1 for each row of counts of the cells."""
    classes, labelled = _by_class(counts, labels)
    given, answered = _by_class(counts, answers)
    right = labels == answers
    hits = np.zeros(labelled.shape)
    if right.any():
        hit, numbers = _by_class(counts[:, right], labels[right])
        hits[:, np.searchsorted(classes, hit)] = numbers
    wanted = np.zeros(labelled.shape)
    _, here, there = np.intersect1d(classes, given, assume_unique=True, return_indices=True)
    wanted[:, here] = answered[:, there]
    occurs = labelled > 0
    single = np.divide(2 * hits, labelled + wanted, out=np.zeros_like(hits), where=occurs)
    return np.asarray(single.sum(axis=1) / occurs.sum(axis=1))


def _by_class(counts: Indices | Floats, classes: Indices) -> tuple[Indices, Floats]:
    """Return the classes, ascending, and the sums of the counts of the cells of each."""
    order = np.argsort(classes, kind="stable")
    found, starts = np.unique(classes[order], return_index=True)
    return found, np.add.reduceat(counts[:, order], starts, axis=1, dtype=np.float64)
