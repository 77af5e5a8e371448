"""What a model decides: the class with the highest score, or an integer that it puts out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantkit.evaluate.accuracy.chunks import Array
from quantkit.evaluate.accuracy.labels import Column
from quantkit.evaluate.accuracy.models import OutputSpec
from quantkit.numerics.statistics import mcnemar_exact, percentiles, redrawn_means, wilson
from quantkit.result import Decision, Interval

__all__ = ["Agreement", "Decider", "Decisions", "deciding_output", "is_embedding"]

_SCORES = 2  # axes of [batch, classes]
_CALLED = ("logit", "prob", "class", "score", "label")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decider:
    """The output that decides.

    Attributes:
        output: Its name.
        scores: Whether the highest of its values decides; else its value is the decision.
    """

    output: str
    scores: bool

    def decide(self, arrays: Sequence[Array]) -> NDArray[np.int64]:
        """Return one decision per unit; -1 where a score is NaN or the output is empty."""
        if len({array.shape for array in arrays}) > 1 or not arrays[0].size:
            return np.array([self._single(array) for array in arrays], np.int64)
        table = np.concatenate([array.reshape(1, -1) for array in arrays])
        if not self.scores:
            return np.asarray(table[:, 0], np.int64)
        decided: NDArray[np.int64] = table.argmax(axis=1)
        decided[np.isnan(table).any(axis=1)] = -1
        return decided

    def _single(self, array: Array) -> int:
        if not array.size:
            return -1
        flat = array.reshape(-1)
        if not self.scores:
            return int(flat[0])
        return -1 if np.isnan(flat).any() else int(flat.argmax())


def is_embedding(output: str) -> bool:
    """Say whether an output is called an embedding: features, of which the largest decides nothing."""
    return any(word in output.lower() for word in ("embed", "sentence"))


def deciding_output(
    outputs: Sequence[OutputSpec], answers: Mapping[str, Sequence[Array]], highest: int = -1
) -> Decider | None:
    """Return the output that decides, as the first unit's answer shows it.

    That is one of real numbers with a row of at least two for each unit: of several the first that has a class for
    the highest label that was seen, and sooner one that is called logits or the like. Else the first of one integer
    for each unit.

    Args:
        outputs: Those that may decide.
        answers: Of the float model, by output, one array per unit.
        highest: The highest label that was seen; -1: none.
    """
    # A model with several outputs of shape [1, n] gives no sign which of them is the class: features and scores look
    # alike. So: a name that says scores, with room for the highest label seen; then any with room; then any at all
    # (labels may start at 1, or the data be wrong, which the metric will show). Integers come last: an exported
    # ArgMax is a decision, but so looks a count.
    rows = [o.name for o in outputs if o.is_float and _is_row_of_scores(answers[o.name][0])]
    fitting = [name for name in rows if answers[name][0].shape[1] > highest]
    called = [name for name in fitting if any(word in name.lower() for word in _CALLED)]
    for name in (*called, *fitting, *rows):
        return Decider(output=name, scores=True)
    for spec in outputs:
        first = answers[spec.name][0]
        if first.dtype.kind in "iub" and first.size == 1 and first.ndim in {1, _SCORES}:
            return Decider(output=spec.name, scores=False)
    return None


def _is_row_of_scores(first: Array) -> bool:
    return first.ndim == _SCORES and first.shape[0] == 1 and first.shape[1] > 1


class Decisions:
    """The decisions of all models, 8 bytes each."""

    def __init__(self, decider: Decider, models: int) -> None:
        self.decider = decider
        self._columns = [Column(np.int64) for _ in range(models)]

    def observe(self, answers: Sequence[Mapping[str, Sequence[Array]]]) -> None:
        """Take in a chunk."""
        for column, own in zip(self._columns, answers, strict=True):
            column.add(self.decider.decide(own[self.decider.output]))

    def of(self, model: int) -> NDArray[np.int64]:
        """Return the decisions of a model."""
        return self._columns[model].values

    def compared(
        self,
        model: int,
        labels: NDArray[np.int64] | None,
        confidence: float,
        distinct: NDArray[np.int64] | None = None,
    ) -> Decision | None:
        """Return how often a candidate decides differently from float, and with what gain; None if float never decides.

        Args:
            model: Its number; 0 is float.
            labels: The right classes, one per unit; None: not known.
            confidence: Of the intervals.
            distinct: The units that are not copies of others, by which the interval is made; None: all.
        """
        before, now = self.of(0), self.of(model)
        single = np.ones(before.size, np.bool_)
        if distinct is not None:
            single = np.isin(np.arange(before.size), distinct)
        if self.decider.scores:  # what float cannot decide, nobody can decide differently
            decided = before >= 0
            before, now, single = before[decided], now[decided], single[decided]
            labels = None if labels is None else labels[decided]
        if not before.size:
            return None
        flips = int(np.count_nonzero(before != now))
        rate = flips / before.size
        known = int(np.count_nonzero((before != now) & single)), int(np.count_nonzero(single))
        low, high = wilson(*known, confidence) if known[1] else (0.0, 1.0)
        gained = lost = None
        if labels is not None:
            gained = int(np.count_nonzero((before != labels) & (now == labels)))
            lost = int(np.count_nonzero((before == labels) & (now != labels)))
        return Decision(
            output=self.decider.output,
            samples=before.size,
            flips=flips,
            flip_rate=rate,
            interval=Interval(low=min(low, rate), high=max(high, rate), confidence=confidence),
            gained=gained,
            lost=lost,
            p_value=None if gained is None or lost is None else mcnemar_exact(gained, lost),
        )


class Agreement:
    """How many values of an output that holds no real numbers are float's; by unit, 16 bytes each."""

    def __init__(self, output: str) -> None:
        self.output = output
        self.other_shapes = 0
        self._values, self._different = Column(), Column()

    def observe(self, expected: Sequence[Array], actual: Sequence[Array]) -> None:
        """Take in a chunk."""
        pairs = list(zip(expected, actual, strict=True))
        alike = [(a, b) for a, b in pairs if a.shape == b.shape]
        self.other_shapes += len(pairs) - len(alike)
        self._values.add(np.array([a.size for a, _ in alike], np.float64))
        self._different.add(np.array([np.count_nonzero(a != b) for a, b in alike], np.float64))

    @property
    def values(self) -> int:
        """How many values were compared."""
        return int(self._values.values.sum())

    @property
    def different(self) -> int:
        """How many of them differ."""
        return int(self._different.values.sum())

    def decision(self, confidence: float, seed: int) -> Decision:
        """Return it as one decision per value, its interval by redrawing units: their values belong together."""
        rate = self.different / max(1, self.values)
        low, high = wilson(self.different, max(1, self.values), confidence)
        if self._values.values.size > 1 and 0 < self.different < self.values:
            table = np.column_stack([self._different.values, self._values.values])
            drawn = redrawn_means(table, seed=seed)
            low, high = percentiles(drawn[:, 0] / np.maximum(drawn[:, 1], 1e-12), confidence)
        return Decision(
            output=self.output,
            samples=self.values,
            flips=self.different,
            flip_rate=rate,
            interval=Interval(low=low, high=high, confidence=confidence),
        )
