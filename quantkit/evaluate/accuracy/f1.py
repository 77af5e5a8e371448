"""Macro F1, and how it varies: what is redrawn is how often each pair of label and answer occurs."""

from dataclasses import dataclass, replace

import numpy as np

from quantkit.evaluate.accuracy.figures import Floats, Indices
from quantkit.numerics.statistics import Bounds, drop_interval, percentiles

__all__ = ["F1"]

_DRAWS = 1000


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
        """How many."""
        return self.labels.size

    def value(self, model: int) -> float:
        """Return the metric of a model."""
        cells, counts = _cells(self.labels, self.answers[model])
        return float(_f1(counts[None], cells[0], cells[1])[0])

    def interval(self, model: int, confidence: float, seed: int) -> Bounds | None:
        """Return the percentiles of the metric over redrawn samples."""
        if self.samples <= 1:
            return None
        cells, counts = _cells(self.labels, self.answers[model])
        drawn = _redrawn(counts, seed)
        return percentiles(_f1(drawn, cells[0], cells[1]), confidence)

    def drop_interval(self, model: int, confidence: float, seed: int) -> Bounds | None:
        """Return the percentiles of the drop over redrawn samples."""
        if np.array_equal(self.answers[0], self.answers[model]):
            return drop_interval(np.zeros(self.samples), confidence=confidence)
        if self.samples <= 1:
            return None
        cells, counts = _cells(self.labels, self.answers[0], self.answers[model])
        drawn = _redrawn(counts, seed)
        drops = _f1(drawn, cells[0], cells[1]) - _f1(drawn, cells[0], cells[2])
        return percentiles(drops, confidence)

    def contributions(self, model: int) -> Floats:
        """Return the lost hits: F1 itself is no mean over samples."""
        before, now = (self.answers[m] == self.labels for m in (0, model))
        return np.asarray(before.astype(np.float64) - now)

    def only(self, chosen: Indices) -> "F1":
        """Return the same of some samples."""
        return replace(self, labels=self.labels[chosen], answers=self.answers[:, chosen])


def _cells(*columns: Indices) -> tuple[Indices, Indices]:
    """Return the combinations that occur, (columns, cells), and how often each does."""
    found, counts = np.unique(np.stack(columns), axis=1, return_counts=True)
    return found, counts


def _redrawn(counts: Indices, seed: int) -> Indices:
    """Return how often each cell is drawn, (draws, cells): samples of one cell are alike."""
    n = int(counts.sum())
    return np.random.default_rng(seed).multinomial(n, counts / n, _DRAWS)


def _f1(counts: Indices, labels: Indices, answers: Indices) -> Floats:
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


def _by_class(counts: Indices, classes: Indices) -> tuple[Indices, Indices]:
    """Return the classes, ascending, and the sums of the counts of the cells of each."""
    order = np.argsort(classes, kind="stable")
    found, starts = np.unique(classes[order], return_index=True)
    return found, np.add.reduceat(counts[:, order], starts, axis=1)
