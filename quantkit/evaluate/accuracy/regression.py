"""Answers that are numbers, and embeddings of pairs of texts: squared error and Spearman's rank correlation."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Self

import numpy as np
from numpy.typing import NDArray

from quantkit.errors import DataError
from quantkit.evaluate.accuracy.chunks import Array, Chunk, Unit
from quantkit.evaluate.accuracy.scorer import (
    Figure,
    Floats,
    Indices,
    Mean,
    SampleColumn,
    Scorer,
    is_number,
)
from quantkit.numerics.statistics import Bounds, percentiles, redrawn_counts, spearman

_TOKENS = 3  # axes of [batch, tokens, features]
_DRAWS = 1000


class NumberScorer(Scorer):
    """Mean squared error and Spearman of an output with one number for each sample."""

    def __init__(self, output: str, main: str) -> None:
        self.main = main
        self._output = output
        self._labels = SampleColumn()
        self._answers = SampleColumn()

    def observe(self, chunk: Chunk) -> None:
        """Take in a chunk.

        Raises:
            DataError: A label is no number, or a sample has more than one answer.
        """
        self._labels.add(_number_labels(chunk.units, self.main))
        found = [answers[self._output] for answers in chunk.answers]
        for own in found:
            for unit, array in zip(chunk.units, own, strict=True):
                if array.size != 1:
                    raise DataError(
                        f"{self.main} needs one number per sample, and the output '{self._output}' has "
                        f"{array.size} for '{unit.name}'."
                    )
        self._answers.add([[array.item() for array in own] for own in found])

    def figures(self) -> tuple[Figure, ...]:
        """Return both. An answer that is not finite is as wrong as the worst, and ranks in the middle of its model's."""
        answers, labels = self._answers.values, self._labels.values
        known = np.isfinite(answers)
        squares = np.where(known, answers - labels, 0.0) ** 2
        # The worst is at least another sample's label, which is twice the variance away on average.
        worst = max(float(squares.max()), 2 * float(np.var(labels)))
        squares[~known] = worst
        middle = [
            np.median(row[found]) if found.any() else 0.0
            for row, found in zip(answers, known, strict=True)
        ]
        ranked = np.where(known, answers, np.array(middle)[:, None])
        return (
            Mean(
                name="mse",
                scores=squares,
                higher_is_better=False,
                chance=float(np.var(labels)),
                reach=worst,
            ),
            Spearman(labels=labels, answers=ranked),
        )

    def numbers(self) -> NDArray[np.float64] | None:
        """Return the labels."""
        return self._labels.values

    def answer(self, model: int, unit: int) -> str:
        """Return the number."""
        return f"{self._answers.values[model, unit]:.4g}"


def _number_labels(units: Sequence[Unit], metric: str) -> NDArray[np.float64]:
    """Return the labels as numbers.

    Raises:
        DataError: A label is no finite number.
    """
    for unit in units:
        if not is_number(unit.label):
            raise DataError(
                f"The label of '{unit.name}' is '{unit.label}', and {metric} needs a number."
            )
    return np.array([unit.label for unit in units], np.float64)


class PairScorer(Scorer):
    """Spearman of the cosine of two texts' embeddings with the label of the pair."""

    main = "spearman"
    together = 2

    def __init__(self, output: str) -> None:
        self._output = output
        self._labels = SampleColumn()
        self._cosines = SampleColumn()

    def observe(self, chunk: Chunk) -> None:
        """Take in a chunk of whole pairs."""
        self._labels.add(_number_labels(chunk.units[::2], self.main))
        self._cosines.add(
            [_pair_cosines(answers[self._output], chunk.units) for answers in chunk.answers]
        )

    def figures(self) -> tuple[Figure, ...]:
        """Return Spearman."""
        return (Spearman(labels=self._labels.values, answers=self._cosines.values),)

    def numbers(self) -> NDArray[np.float64] | None:
        """Return the labels of the pairs."""
        return self._labels.values

    def answer(self, model: int, unit: int) -> str:
        """Return the cosine of the pair."""
        return f"{self._cosines.values[model, unit // 2]:.4f}"


def _pair_cosines(arrays: Sequence[Array], units: Sequence[Unit]) -> Floats:
    pooled = [_embedding(array, unit) for array, unit in zip(arrays, units, strict=True)]
    first, second = np.stack(pooled[::2]), np.stack(pooled[1::2])
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    product = (first * second).sum(axis=1)
    return np.asarray(np.divide(product, norms, out=np.zeros_like(product), where=norms > 0))


def _embedding(array: Array, unit: Unit) -> NDArray[np.float64]:
    """Return a text's embedding: as it is, or the mean of those of its real tokens."""
    if array.ndim < _TOKENS:
        return array.reshape(-1).astype(np.float64)
    tokens = array[0].astype(np.float64)
    if unit.mask is None or unit.mask.size != len(tokens):
        return np.asarray(tokens.mean(axis=0))
    weights = unit.mask.astype(np.float64)
    return np.asarray(weights @ tokens / max(1.0, weights.sum()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Spearman(Figure):
    """The rank correlation of a model's answers with the labels.

    Attributes:
        labels: One number per sample.
        answers: (models, samples).
    """

    labels: Floats
    answers: Floats
    name: str = "spearman"
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

    def failure(self) -> float:
        """Return all of the range of a correlation, which a failed sample may cost.

        Percentiles of redrawn correlations pass 17 to 27 % of the candidates that they should pass 2.5 % of
        (`benchmarks/results/gate_error_rate.md`): few answers fail, and many redraws see none of them.
        """
        return 1 + self.value(0)

    def contributions(self, model: int) -> Floats:
        """Return how fast the drop grows with the weight of each sample (the infinitesimal jackknife's values)."""
        before, now = (_influence(self.labels, self.answers[m]) for m in (0, model))
        return np.asarray(before - now + self.value(0) - self.value(model))

    def only(self, chosen: Indices) -> Self:
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
