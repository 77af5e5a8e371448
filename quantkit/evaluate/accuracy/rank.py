"""Spearman's rank correlation, and how it varies: samples are sorted once, not once a draw."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from quantkit.evaluate.accuracy.figures import Floats, Indices
from quantkit.numerics.statistics import (
    Bounds,
    drop_interval,
    percentiles,
    redrawn_counts,
    spearman,
)

__all__ = ["Spearman"]

_DRAWS = 1000


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
        drawn = _redrawn(seed, self.labels, self.answers[model])
        found = [_correlation(weights, labels, own) for weights, (labels, own) in drawn]
        return percentiles(np.concatenate(found), confidence)

    def drop_interval(self, model: int, confidence: float, seed: int) -> Bounds | None:
        """Return the percentiles of the drop over redrawn samples."""
        if np.array_equal(self.answers[0], self.answers[model]):
            return drop_interval(np.zeros(self.samples), confidence=confidence)
        if self.samples <= 1:
            return None
        drawn = _redrawn(seed, self.labels, self.answers[0], self.answers[model])
        found = [
            _correlation(weights, labels, before) - _correlation(weights, labels, now)
            for weights, (labels, before, now) in drawn
        ]
        return percentiles(np.concatenate(found), confidence)

    def contributions(self, model: int) -> Floats:
        """Return the products of standardized ranks, whose mean is the correlation, float's less the model's."""
        columns = (self.labels, self.answers[0], self.answers[model])
        labels, before, now = map(_standardized, columns)
        return labels * (before - now)

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


def _redrawn(seed: int, *columns: Floats) -> Iterator[tuple[Floats, list[Floats]]]:
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


def _standardized(values: Floats) -> Floats:
    ranks = _Ranked.of(values).redrawn(np.ones((1, values.size)))[0]
    spread = ranks.std()
    centred: Floats = ranks - ranks.mean()
    return centred / spread if spread > 0 else np.zeros(ranks.size)
