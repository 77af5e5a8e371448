"""What each sample scores: by class, by number, by pair of texts. A few bytes per sample are kept."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from quantkit.errors import DataError, UsageError
from quantkit.evaluate.accuracy.chunks import Array, Chunk, Unit
from quantkit.evaluate.accuracy.decisions import Decisions
from quantkit.evaluate.accuracy.f1 import F1, Spearman
from quantkit.evaluate.accuracy.figures import Figure, Mean
from quantkit.evaluate.accuracy.labels import Column, class_labels, number_labels

__all__ = ["ClassScorer", "NumberScorer", "PairScorer", "Scorer"]

_TOP = 5
_TOKENS = 3  # axes of [batch, tokens, features]


class Scorer(Protocol):
    """Takes in chunks, and knows at the end what came of them. Without labels of a kind, and without notes by default.

    Attributes:
        main: The metric that is judged.
        together: Units that are one sample of the metric: 2 for pairs.
    """

    main: str
    together: int = 1

    def observe(self, chunk: Chunk) -> None:
        """Take in a chunk."""

    def figures(self) -> tuple[Figure, ...]:
        """Return every metric of all models."""

    def classes(self) -> NDArray[np.int64] | None:
        """Return the class of each sample, where labels are classes."""
        return None

    def numbers(self) -> NDArray[np.float64] | None:
        """Return the label of each sample, where labels are numbers."""
        return None

    def notes(self) -> tuple[str, ...]:
        """Return what a reader should know about how samples were scored."""
        return ()

    def answer(self, model: int, unit: int) -> str | None:
        """Return a model's answer to a unit, for people."""


class ClassScorer(Scorer):
    """top-1, top-5 and F1 of an output that decides."""

    def __init__(self, decisions: Decisions, models: int, main: str) -> None:
        self.main = main
        self._decisions = decisions
        self._labels = Column(np.int64)
        self._near = [Column(np.bool_) for _ in range(models)]
        self.fewest: int | None = None  # classes that have a score

    def observe(self, chunk: Chunk) -> None:
        """Take in a chunk."""
        decider = self._decisions.decider
        expected = chunk.answers[0][decider.output]
        labels = class_labels(chunk.units, expected if decider.scores else None, self.main)
        self._labels.add(labels)
        if not decider.scores:
            return
        smallest = min(array.size for array in expected)
        self.fewest = smallest if self.fewest is None else min(self.fewest, smallest)
        for column, answers in zip(self._near, chunk.answers, strict=True):
            column.add(_among_best(answers[decider.output], labels))

    def figures(self) -> tuple[Figure, ...]:
        """Return top-1, top-5 where there are more than 5 classes, and F1."""
        answers = np.stack([self._decisions.of(m) for m in range(len(self._near))])
        labels = self._labels.values
        hits = (answers == labels).astype(np.float64)
        found: list[Figure] = [Mean(name="top-1", scores=hits, chance=self._chance(1))]
        if self.fewest is not None and self.fewest > _TOP:
            near = np.stack([column.values for column in self._near]).astype(np.float64)
            found.append(Mean(name="top-5", scores=near, chance=self._chance(_TOP)))
        elif self.main == "top-5":
            raise UsageError(
                f"top-5 needs more than 5 classes; the output '{self._decisions.decider.output}' "
                f"has {self.fewest or 'no scores'}: use top-1."
            )
        return (*found, F1(labels=labels, answers=answers))

    def _chance(self, answers: int) -> float:
        """Return the hits of the most frequent classes as answer to every sample, or of classes drawn by lot."""
        counts = np.sort(np.unique(self._labels.values, return_counts=True)[1])
        always = counts[-answers:].sum() / counts.sum()
        return float(max(always, min(1.0, answers / (self.fewest or counts.size))))

    def classes(self) -> NDArray[np.int64] | None:
        """Return the labels."""
        return self._labels.values

    def answer(self, model: int, unit: int) -> str | None:
        """Return the class."""
        return str(self._decisions.of(model)[unit])


def _among_best(arrays: Sequence[Array], labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return whether each label is among the five best; of equal scores the first class is the better."""
    if len({array.shape for array in arrays}) > 1:
        rows = [array.reshape(1, -1) for array in arrays]
        pairs = zip(rows, labels, strict=True)
        return np.array([_among_best([row], np.array([label]))[0] for row, label in pairs])
    table = np.concatenate([array.reshape(1, -1) for array in arrays])
    own = table[np.arange(len(table)), labels][:, None]
    earlier = np.arange(table.shape[1]) < labels[:, None]
    better = (table > own) | ((table == own) & earlier)
    # Comparisons with NaN are false, so that a NaN would count as the best.
    near: NDArray[np.bool_] = (better.sum(axis=1) < _TOP) & ~np.isnan(table).any(axis=1)
    return near


class NumberScorer(Scorer):
    """Mean squared error and Spearman of an output with one number for each sample."""

    def __init__(self, output: str, models: int, main: str) -> None:
        self.main = main
        self._output = output
        self._labels = Column()
        self._answers = [Column() for _ in range(models)]

    def observe(self, chunk: Chunk) -> None:
        """Take in a chunk.

        Raises:
            DataError: A label is no number, or a sample has more than one answer.
        """
        self._labels.add(number_labels(chunk.units, self.main))
        for column, answers in zip(self._answers, chunk.answers, strict=True):
            for unit, array in zip(chunk.units, answers[self._output], strict=True):
                if array.size != 1:
                    raise DataError(
                        f"{self.main} needs one number per sample, and the output '{self._output}' has "
                        f"{array.size} for '{unit.name}'."
                    )
            column.add(np.array([array.item() for array in answers[self._output]], np.float64))

    def figures(self) -> tuple[Figure, ...]:
        """Return both. An answer that is not finite is as wrong as the worst, and ranks in the middle of its model's."""
        answers, labels = np.stack([c.values for c in self._answers]), self._labels.values
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

    def answer(self, model: int, unit: int) -> str | None:
        """Return the number."""
        return f"{self._answers[model].values[unit]:.4g}"


class PairScorer(Scorer):
    """Spearman of the cosine of two texts' embeddings with the label of the pair."""

    main = "spearman"
    together = 2

    def __init__(self, output: str, models: int) -> None:
        self._output = output
        self._labels = Column()
        self._cosines = [Column() for _ in range(models)]

    def observe(self, chunk: Chunk) -> None:
        """Take in a chunk of whole pairs."""
        self._labels.add(number_labels(chunk.units[::2], self.main))
        for column, answers in zip(self._cosines, chunk.answers, strict=True):
            pooled = [
                _embedding(array, unit)
                for array, unit in zip(answers[self._output], chunk.units, strict=True)
            ]
            first, second = np.stack(pooled[::2]), np.stack(pooled[1::2])
            norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
            product = (first * second).sum(axis=1)
            column.add(np.divide(product, norms, out=np.zeros_like(product), where=norms > 0))

    def figures(self) -> tuple[Figure, ...]:
        """Return Spearman."""
        cosines = np.stack([column.values for column in self._cosines])
        return (Spearman(labels=self._labels.values, answers=cosines),)

    def numbers(self) -> NDArray[np.float64] | None:
        """Return the labels of the pairs."""
        return self._labels.values

    def answer(self, model: int, unit: int) -> str | None:
        """Return the cosine of the pair."""
        return f"{self._cosines[model].values[unit // 2]:.4f}"


def _embedding(array: Array, unit: Unit) -> NDArray[np.float64]:
    """Return a text's embedding: as it is, or the mean of those of its real tokens."""
    if array.ndim < _TOKENS:
        return array.reshape(-1).astype(np.float64)
    tokens = array[0].astype(np.float64)
    if unit.mask is None or unit.mask.size != len(tokens):
        return np.asarray(tokens.mean(axis=0))
    weights = unit.mask.astype(np.float64)
    return np.asarray(weights @ tokens / max(1.0, weights.sum()))
