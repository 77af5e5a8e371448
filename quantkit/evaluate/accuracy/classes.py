"""Answers that are classes: which output decides, what it decides, and top-1, top-5 and macro F1 of the decisions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from quantkit.errors import DataError, UsageError
from quantkit.evaluate.accuracy.chunks import Array, Chunk, OutputSpec, Unit
from quantkit.evaluate.accuracy.scorer import (
    Figure,
    Floats,
    Indices,
    Mean,
    SampleColumn,
    Scorer,
    is_class,
)
from quantkit.numerics.rates import wilson
from quantkit.numerics.statistics import (
    Bounds,
    drop_interval,
    mcnemar_exact,
    percentiles,
    unseen_weights,
)
from quantkit.result import Decision, Interval

_SCORES = 2  # axes of [batch, classes]
_CALLED = ("logit", "prob", "class", "score", "label")
_TOP = 5
_DRAWS = 1000
_BLOCK = 1 << 18  # counts that are drawn at once


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

    def __init__(self, decider: Decider) -> None:
        self.decider = decider
        self._decided = SampleColumn(np.int64)

    def observe(self, answers: Sequence[Mapping[str, Sequence[Array]]]) -> None:
        """Take in a chunk."""
        self._decided.add([self.decider.decide(own[self.decider.output]) for own in answers])

    @property
    def values(self) -> NDArray[np.int64]:
        """The decisions of all models: (models, units)."""
        return self._decided.values

    def of(self, model: int) -> NDArray[np.int64]:
        """Return the decisions of a model."""
        own: NDArray[np.int64] = self.values[model]
        return own

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


class ClassScorer(Scorer):
    """top-1, top-5 and F1 of an output that decides."""

    def __init__(self, decisions: Decisions, main: str) -> None:
        self.main = main
        self._decisions = decisions
        self._labels = SampleColumn(np.int64)
        self._near = SampleColumn()
        self.fewest: int | None = None  # classes that have a score

    def observe(self, chunk: Chunk) -> None:
        """Take in a chunk."""
        decider = self._decisions.decider
        expected = chunk.answers[0][decider.output]
        labels = _class_labels(chunk.units, expected if decider.scores else None, self.main)
        self._labels.add(labels)
        if not decider.scores:
            return
        smallest = min(array.size for array in expected)
        self.fewest = smallest if self.fewest is None else min(self.fewest, smallest)
        self._near.add([_among_best(answers[decider.output], labels) for answers in chunk.answers])

    def figures(self) -> tuple[Figure, ...]:
        """Return top-1, top-5 where there are more than 5 classes, and F1."""
        answers, labels = self._decisions.values, self._labels.values
        hits = (answers == labels).astype(np.float64)
        found: list[Figure] = [Mean(name="top-1", scores=hits, chance=self._chance(1))]
        if self.fewest is not None and self.fewest > _TOP:
            found.append(Mean(name="top-5", scores=self._near.values, chance=self._chance(_TOP)))
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

    def answer(self, model: int, unit: int) -> str:
        """Return the class."""
        return str(self._decisions.of(model)[unit])


def _class_labels(
    units: Sequence[Unit], scores: Sequence[Array] | None, metric: str
) -> NDArray[np.int64]:
    """Return the labels as class indices.

    Args:
        units: Whose.
        scores: Each unit's scores, one for each class; None: the output holds no scores.
        metric: Who asks.

    Raises:
        DataError: A label is a text, no whole number, or beyond the model's classes.
    """
    found = []
    for place, unit in enumerate(units):
        if not is_class(unit.label):
            what = "the text" if isinstance(unit.label, str) else "the number"
            raise DataError(
                f"The label of '{unit.name}' is {what} '{unit.label}', and {metric} needs the index of a "
                "class: number the classes from 0, in the order of the model's output."
            )
        index, classes = int(unit.label), None if scores is None else scores[place].size
        if classes is not None and not 0 <= index < classes:
            raise DataError(
                f"The label of '{unit.name}' is {index}, and the model has {classes} classes: use "
                f"labels from 0 to {classes - 1}."
            )
        found.append(index)
    return np.array(found, np.int64)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class F1(Figure):
    """Macro F1: the mean over the classes that occur among the labels of ``2 tp / (labelled + answered)``.

    Attributes:
        labels: The right class of each sample.
        answers: (models, samples): the class that each model gives.
    """

    labels: Indices
    answers: Indices
    name: str = "f1"

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

    def only(self, chosen: Indices) -> Self:
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
    classes = np.unique(labels)
    of_label, of_answer = (_by_class(classes, x) for x in (labels, answers))
    labelled, answered = counts @ of_label, counts @ of_answer
    hits = (counts * (labels == answers)) @ of_label
    occurs = labelled > 0
    single = np.divide(2 * hits, labelled + answered, out=np.zeros_like(hits), where=occurs)
    return np.asarray(single.sum(axis=1) / occurs.sum(axis=1))


def _by_class(classes: Indices, values: Indices) -> csr_array:
    """Return a table (cells, classes) that sums counts of cells by class; of what is none of them nothing is summed."""
    place = _places(classes, values)
    cells = np.flatnonzero(place < classes.size)
    ones = np.ones(cells.size)
    return csr_array((ones, (cells, place[cells])), shape=(values.size, classes.size))
