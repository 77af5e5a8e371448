"""From samples to metrics: a `Scorer` keeps a few bytes per sample, a `Figure` turns them into a value with its intervals.

A `Figure` holds one metric of all models on the same samples. Drops are positive where the candidate is worse,
whatever the direction of the metric, and redrawn in pairs: a draw takes the same samples for both models.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quantkit.data import Label
from quantkit.errors import DataError
from quantkit.evaluate.accuracy.chunks import Chunk, Unit
from quantkit.numerics.rates import wilson
from quantkit.numerics.statistics import (
    Bounds,
    detectable_drop,
    drop_interval,
    mean_interval,
    percentiles,
    redrawn_means,
)
from quantkit.result import Interval, Metric

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]


class Figure(ABC):
    """One metric of all models; model 0 is float."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What the metric is called."""

    @property
    def higher_is_better(self) -> bool:
        """Whether more is better: not for errors."""
        return True

    @property
    def chance(self) -> float | None:
        """What answers score that do not look at the sample; None: not known."""
        return None

    @property
    @abstractmethod
    def samples(self) -> int:
        """How many samples were scored."""

    @abstractmethod
    def value(self, model: int) -> float:
        """Return the metric of a model."""

    @abstractmethod
    def interval(self, model: int, confidence: float, seed: int) -> Bounds | None:
        """Return the interval of the metric.

        Args:
            model: Its number; 0 is float.
            confidence: Of the interval, 0.95 for example.
            seed: Of the redraws.
        """

    def drop(self, model: int) -> float:
        """Return how much worse a candidate is than float."""
        difference = self.value(0) - self.value(model)
        return difference if self.higher_is_better else -difference

    def drop_interval(self, model: int, confidence: float, seed: int) -> Bounds | None:
        """Return the interval of the drop: by default of the mean of what samples add to it.

        Args:
            model: The candidate's number.
            confidence: Of the interval.
            seed: Of the redraws, which are the same for both models.
        """
        drops = self.contributions(model)
        return drop_interval(drops, reach=self.failure(), seed=seed, confidence=confidence)

    def failure(self) -> float:
        """Return what a failed sample costs, in units of `contributions`."""
        return 1.0

    @abstractmethod
    def contributions(self, model: int) -> Floats:
        """Return what each sample adds to the drop; their mean is the drop."""

    @abstractmethod
    def only(self, chosen: Indices) -> Self:
        """Return the same of some samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean(Figure):
    """The mean of each sample's score: top-1, top-5, squared error, a user's own.

    Attributes:
        name: Of the metric.
        scores: (models, samples).
        higher_is_better: False for errors.
        chance: What answers score that do not look at the sample; None: not known.
        reach: What a failed sample costs; None: all of a share, else as much as float's highest score.
    """

    name: str
    scores: Floats
    higher_is_better: bool = True
    chance: float | None = None
    reach: float | None = None

    @property
    def samples(self) -> int:
        """How many samples were scored."""
        return int(self.scores.shape[1])

    def value(self, model: int) -> float:
        """Return the mean score."""
        return float(self.scores[model].mean())

    def interval(self, model: int, confidence: float, seed: int) -> Bounds | None:
        """Return Wilson's interval for hits, else the bootstrap's."""
        return mean_interval(self.scores[model], seed=seed, confidence=confidence)

    def failure(self) -> float:
        """Return `reach`, or what it is by default."""
        if self.reach is not None:
            return self.reach
        share = self.scores.min() >= 0 and self.scores.max() <= 1
        return 1.0 if share else float(np.abs(self.scores[0]).max(initial=0.0))

    def contributions(self, model: int) -> Floats:
        """Return each sample's loss of score."""
        difference: Floats = self.scores[0] - self.scores[model]
        return difference if self.higher_is_better else -difference

    def only(self, chosen: Indices) -> Self:
        """Return the same of some samples."""
        return replace(self, scores=self.scores[:, chosen])


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio(Figure):
    """A sum over a sum: errors by words.

    Attributes:
        name: Of the metric.
        parts: (models, samples).
        wholes: Of each sample.
        higher_is_better: False for errors.
        chance: What answers score that do not look at the sample; None: not known.
    """

    name: str
    parts: Floats
    wholes: Floats
    higher_is_better: bool = True
    chance: float | None = None

    @property
    def samples(self) -> int:
        """How many samples were scored."""
        return int(self.wholes.size)

    def value(self, model: int) -> float:
        """Return the ratio of the sums."""
        return float(self.parts[model].sum() / max(self.wholes.sum(), 1))

    def interval(self, model: int, confidence: float, seed: int) -> Bounds | None:
        """Return the percentiles of the ratio over redrawn samples; Wilson's where all parts are 0."""
        total = int(self.wholes.sum())
        if not self.parts[model].any() and total:
            return wilson(0, total, confidence)
        if self.samples <= 1:
            return None
        drawn = redrawn_means(np.column_stack([self.parts[model], self.wholes]), seed=seed)
        return percentiles(drawn[:, 0] / np.maximum(drawn[:, 1], 1e-12), confidence)

    def failure(self) -> float:
        """Return the distance from chance; where that is not known, what the largest sample adds."""
        if self.chance is not None:
            return abs(self.chance - self.value(0))
        return float(self.wholes.max(initial=0.0)) / max(float(self.wholes.mean()), 1e-12)

    def contributions(self, model: int) -> Floats:
        """Return what each sample adds to the drop."""
        added = (self.parts[0] - self.parts[model]) / max(float(self.wholes.mean()), 1e-12)
        return np.asarray(added if self.higher_is_better else -added)

    def only(self, chosen: Indices) -> Self:
        """Return the same of some samples."""
        return replace(self, parts=self.parts[:, chosen], wholes=self.wholes[chosen])


def metrics_of(
    figures: Sequence[Figure],
    model: int,
    *,
    main: str,
    confidence: float,
    seed: int,
    distinct: Indices | None = None,
) -> tuple[Metric, ...]:
    """Return all metrics of a model, the main one first.

    Args:
        figures: What was measured.
        model: Its number; 0 is float.
        main: The name of the metric that comes first.
        confidence: Of all intervals.
        seed: Of all redraws.
        distinct: The samples that are not copies of others, by which intervals are made; None: all.
    """
    ordered = sorted(figures, key=lambda figure: figure.name != main)
    return tuple(
        replace(_metric(figure, model, confidence, seed, distinct), main=figure.name == main)
        for figure in ordered
    )


def _metric(
    figure: Figure, model: int, confidence: float, seed: int, distinct: Indices | None
) -> Metric:
    # A copy adds no evidence: intervals are those of the distinct samples, widened to hold the value of all of them.
    copies = distinct is not None and distinct.size < figure.samples
    known = figure.only(distinct) if distinct is not None and copies else figure
    value = figure.value(model)
    metric = Metric(
        name=figure.name,
        value=value,
        interval=as_interval(_holding(known.interval(model, confidence, seed), value), confidence),
        higher_is_better=figure.higher_is_better,
        chance=figure.chance,
    )
    if model == 0:
        return metric
    drop = figure.drop(model)
    bounds = _holding(known.drop_interval(model, confidence, seed), drop)
    return replace(
        metric,
        drop=drop,
        drop_interval=as_interval(bounds, confidence),
        detectable=None if bounds is None else detectable_drop(*bounds),
    )


def _holding(bounds: Bounds | None, value: float) -> Bounds | None:
    return None if bounds is None else (min(bounds[0], value), max(bounds[1], value))


def as_interval(bounds: Bounds | None, confidence: float) -> Interval | None:
    """Return bounds as the result holds them."""
    if bounds is None:
        return None
    return Interval(low=bounds[0], high=bounds[1], confidence=confidence)


class Scorer(ABC):
    """Takes in chunks, and knows at the end what came of them. Without labels of a kind, and without notes by default.

    Attributes:
        main: The metric that is judged.
        together: Units that are one sample of the metric: 2 for pairs.
    """

    main: str
    together: int = 1

    @abstractmethod
    def observe(self, chunk: Chunk) -> None:
        """Take in a chunk."""

    @abstractmethod
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

    @abstractmethod
    def answer(self, model: int, unit: int) -> str:
        """Return a model's answer to a unit, for people."""


class SampleColumn:
    """A growing column of numbers of one type, or one of each model: samples are the last axis."""

    __slots__ = ("_dtype", "_parts")

    def __init__(self, dtype: type[np.generic] = np.float64) -> None:
        self._dtype = dtype
        self._parts: list[NDArray[Any]] = []

    def add(self, values: ArrayLike) -> None:
        """Append values: (samples,), or (models, samples)."""
        self._parts.append(np.asarray(values, self._dtype))

    @property
    def values(self) -> NDArray[Any]:
        """All values that were added, in order."""
        if len(self._parts) != 1:
            self._parts = [np.concatenate(self._parts or [np.empty(0, self._dtype)], axis=-1)]
        return self._parts[0]


def is_class(label: Label) -> TypeGuard[int | float]:
    """Return True for a whole number."""
    return isinstance(label, int) or (isinstance(label, float) and label.is_integer())


def is_number(label: Label) -> TypeGuard[int | float]:
    """Return True for a finite number."""
    return isinstance(label, int | float) and bool(np.isfinite(label))


def check_complete(units: Sequence[Unit], *, labelled: bool) -> None:
    """Raise if some samples have a label and others have none."""
    for unit in units:
        if (unit.label is not None) != labelled:
            has, others = ("a label", "none") if not labelled else ("no label", "one")
            raise DataError(
                f"'{unit.name}' has {has} and samples before it have {others}: label all samples, or none."
            )
