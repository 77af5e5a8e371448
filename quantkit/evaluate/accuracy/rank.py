"""Spearman's rank correlation, and how it varies: samples are sorted once, not once a draw."""

from dataclasses import dataclass, replace

import numpy as np

from quantkit.evaluate.accuracy.figures import Floats, Indices
from quantkit.numerics.statistics import Bounds, bootstrap, drop_interval, spearman

__all__ = ["Spearman"]

_DRAWS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Spearman:
    """The rank correlation of a model's answers with the labels.

    Attributes:
        labels: One number a sample.
        answers: (models, samples).
    """

    labels: Floats
    answers: Floats
    name: str = "spearman"
    higher_is_better: bool = True

    @property
    def samples(self) -> int:
        """How many."""
        return self.labels.size

    def value(self, model: int) -> float:
        """Return the metric of a model."""
        return spearman(self.labels, self.answers[model])

    def interval(self, model: int, confidence: float, seed: int) -> Bounds | None:
        """Return the percentiles of the metric over redrawn samples."""
        ranks = [_Ranked.of(self.labels), _Ranked.of(self.answers[model])]
        n = self.samples

        def value(drawn: Indices) -> float:
            weights = np.bincount(drawn, minlength=n).astype(np.float64)
            return _correlation(weights, *(r.redrawn(weights) for r in ranks))

        return bootstrap(value, n, draws=_DRAWS, seed=seed, confidence=confidence)

    def drop_interval(self, model: int, confidence: float, seed: int) -> Bounds | None:
        """Return the percentiles of the drop over redrawn samples."""
        if np.array_equal(self.answers[0], self.answers[model]):
            return drop_interval(np.zeros(self.samples), confidence=confidence)
        ranks = [_Ranked.of(x) for x in (self.labels, self.answers[0], self.answers[model])]
        n = self.samples

        def drop(drawn: Indices) -> float:
            weights = np.bincount(drawn, minlength=n).astype(np.float64)
            labels, before, now = (r.redrawn(weights) for r in ranks)
            return _correlation(weights, labels, before) - _correlation(weights, labels, now)

        return bootstrap(drop, n, draws=_DRAWS, seed=seed, confidence=confidence)

    def contributions(self, model: int) -> Floats:
        """Return the products of standardized ranks, whose mean is the correlation, float's less the model's."""
        weights = np.ones(self.samples)
        columns = (self.labels, self.answers[0], self.answers[model])
        labels, before, now = (_standardized(_Ranked.of(x).redrawn(weights)) for x in columns)
        return labels * (before - now)

    def only(self, chosen: Indices) -> "Spearman":
        """Return the same of some samples."""
        return replace(self, labels=self.labels[chosen], answers=self.answers[:, chosen])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ranked:
    """Values sorted once, so that a redraw needs no sorting: `place` is each value's among the distinct ones."""

    place: Indices
    distinct: int

    @classmethod
    def of(cls, values: Floats) -> "_Ranked":
        found, place = np.unique(values, return_inverse=True)
        return cls(place=place, distinct=found.size)

    def redrawn(self, weights: Floats) -> Floats:
        """Return the middle ranks if each value occurs `weights` times."""
        times = np.bincount(self.place, weights, self.distinct)
        middle = np.cumsum(times) - times / 2
        return np.asarray(middle[self.place])


def _correlation(weights: Floats, a: Floats, b: Floats) -> float:
    total = weights.sum()
    a, b = a - (weights @ a) / total, b - (weights @ b) / total
    own = weights * a
    scale = np.sqrt((own @ a) * (weights @ (b * b)))
    return float(own @ b / scale) if scale > 0 else 0.0


def _standardized(ranks: Floats) -> Floats:
    spread = ranks.std()
    return (ranks - ranks.mean()) / spread if spread > 0 else np.zeros(ranks.size)
