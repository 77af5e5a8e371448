"""One pass over the chunks: the metric that fits, all that is taken in on the way, and what came of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import nsmallest

import numpy as np
from numpy.typing import NDArray

from quantkit.data import Boxes, Description, Label
from quantkit.errors import DataError
from quantkit.evaluate.accuracy.chunks import Array, Chunk, OutputSpec
from quantkit.evaluate.accuracy.classes import (
    ClassScorer,
    Decisions,
    deciding_output,
    is_embedding,
)
from quantkit.evaluate.accuracy.detection import BoxScorer, detector_outputs
from quantkit.evaluate.accuracy.drift import Flat, OutputTally, floored_db
from quantkit.evaluate.accuracy.perplexity import LogitScorer
from quantkit.evaluate.accuracy.regression import NumberScorer, PairScorer
from quantkit.evaluate.accuracy.scorer import (
    SampleColumn,
    Scorer,
    check_complete,
    is_class,
    is_number,
)
from quantkit.evaluate.accuracy.text_errors import WordScorer
from quantkit.evaluate.accuracy.user_metric import UserScorer, import_metric
from quantkit.numerics.rates import wilson
from quantkit.numerics.statistics import percentiles, redrawn_means
from quantkit.result import Decision, Interval, WorstSample
from quantkit.settings import METRICS, TextSettings

_CLASSES = frozenset(("top-1", "top-5", "f1"))
_TEXTS = frozenset(("wer", "cer"))
_UNDECIDED = frozenset(("mse", "spearman", "perplexity", *_TEXTS))
_BOXES = frozenset(("map", "map-50", "iou"))
_EMBEDDING = (2, 3)  # axes of [batch, features], and of [batch, tokens, features]


def decides(metric: str | None, label: Label, *, pairs: bool) -> bool:
    """Return whether the highest score can be a decision: not where the answers are numbers.

    Args:
        metric: What was asked for; None: nothing.
        label: The first sample's.
        pairs: Two texts are one sample.
    """
    fractional = isinstance(label, float) and not label.is_integer()
    listed = isinstance(label, Boxes) or metric in _BOXES
    return not pairs and metric not in _UNDECIDED and not fractional and not listed


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRequest:
    """Which metric is asked for, and what choosing one needs to know.

    Attributes:
        metric: Its name; None: as labels suggest.
        pairs: Two texts are one sample.
        text: Where a vocabulary is.
        warnings: What the data's description warns of.
    """

    metric: str | None = None
    pairs: bool = False
    text: TextSettings = field(default_factory=TextSettings)
    warnings: Sequence[str] = ()


def chosen_scorer(
    asked: MetricRequest, first: Chunk, outputs: Sequence[OutputSpec], decisions: Decisions | None
) -> tuple[Scorer | None, str]:
    """Return what scores the samples, or None and why there is no metric.

    Args:
        asked: The metric, and what choosing one needs to know.
        first: The first chunk: its answers show what the outputs are, its first label what labels are.
        outputs: Those that may be judged.
        decisions: The models' decisions; None where no output decides.

    Raises:
        DataError: Labels, or an output, that the metric needs are not there.
    """
    # 1. Labels or metrics with a format of their own (boxes, texts, a user's function) choose the scorer by
    # themselves. 2. Without labels an asked metric is an error, no metric a note: drift needs none. 3. Pairs of texts
    # are scored by their embeddings. 4. Else the metric that was asked for, or the one that fits label and outputs.
    # The first label alone decides: that all others are of its kind is checked as they come, by `check_complete` and
    # the scorers.
    label = first.units[0].label
    metric, pairs, warnings = asked.metric, asked.pairs, asked.warnings
    own = _own_format(asked, first, outputs)
    if own is not None:
        return own, ""
    if label is None:
        if metric is not None or pairs:
            why = next((w for w in warnings if "label" in w), "")
            raise DataError(
                f"{metric or 'spearman'} needs labels, and the data has none: "
                f"{why or 'give a key or column label, class folders, labels.csv, or --label NAME.'}"
            )
        return None, "The data has no labels: no metric, only drift."
    if pairs:
        return PairScorer(_embedding_output(first, outputs)), ""
    number = _number_output(first, outputs)
    wanted = metric or _suggested(label, decisions, number)
    if wanted is None:
        return None, _why_none(label, decisions)
    if wanted in _CLASSES:
        if decisions is None:
            raise DataError(
                f"{wanted} needs an output [batch, classes], or one class per sample; the model has "
                f"{_shapes_text(first, outputs)}."
            )
        return ClassScorer(decisions, wanted), ""
    if number is None:
        raise DataError(
            f"{wanted} needs an output with one number per sample; the model has "
            f"{_shapes_text(first, outputs)}."
        )
    return NumberScorer(number, wanted), ""


def _own_format(asked: MetricRequest, first: Chunk, outputs: Sequence[OutputSpec]) -> Scorer | None:
    """Return what scores labels of a format of their own; None where labels are classes or numbers, or missing."""
    metric, label = asked.metric, first.units[0].label
    if metric is not None and metric not in METRICS:
        return _own(metric, label)
    if metric == "perplexity":
        return LogitScorer.of(outputs, first)
    if metric in _TEXTS and label is not None:
        return WordScorer.of(outputs, first, asked.text, metric)
    if isinstance(label, Boxes) and metric in {None, *_BOXES}:
        main = metric or "map"
        found = detector_outputs(outputs, first.answers[0], main)
        return BoxScorer(found, len(first.answers), main)
    if label is not None and metric in _BOXES:
        raise DataError(
            f"{metric} needs boxes, and the label of '{first.units[0].name}' is '{label}': give COCO's instances JSON with "
            "--label FILE."
        )
    return None


def _own(metric: str, label: Label) -> UserScorer:
    scorer = UserScorer(metric, import_metric(metric))
    if label is None and scorer.needs_labels:
        raise DataError(
            f"metric '{metric}' gets no labels, for the data has none; if it needs none, say so: "
            f"{metric.rpartition(':')[2]}.needs_labels = False."
        )
    return scorer


def _suggested(label: Label, decisions: Decisions | None, number: str | None) -> str | None:
    if decisions is not None and is_class(label):
        return "top-1"
    return "mse" if number is not None and is_number(label) else None


def _why_none(label: Label, decisions: Decisions | None) -> str:
    if isinstance(label, str):
        return (
            f"Labels are texts ('{label}', ...): no metric. Number the classes from 0, in the order of the "
            "model's output, or give a metric of your own."
        )
    what = "a class" if decisions is not None else "an output"
    return (
        f"Labels are numbers ({label}, ...) that fit {what} of the model in no known way: no metric. --pairs "
        "embeds two texts per row and compares their similarity; --metric takes a function of your own."
    )


def _number_output(first: Chunk, outputs: Sequence[OutputSpec]) -> str | None:
    found = (o.name for o in outputs if o.is_float and first.answers[0][o.name][0].size == 1)
    return next(found, None)


def _embedding_output(first: Chunk, outputs: Sequence[OutputSpec]) -> str:
    """Return the output that embeds a text: one that is called so, else the first of 2 or 3 axes."""
    fitting = [
        o.name for o in outputs if o.is_float and first.answers[0][o.name][0].ndim in _EMBEDDING
    ]
    if not fitting:
        raise DataError(
            "Pairs need an output [batch, features] or [batch, tokens, features]; the model has "
            f"{_shapes_text(first, outputs)}."
        )
    return next(filter(is_embedding, fitting), fitting[0])


def _shapes_text(first: Chunk, outputs: Sequence[OutputSpec]) -> str:
    shapes = (f"'{o.name}' {list(first.answers[0][o.name][0].shape)}" for o in outputs)
    return ", ".join(shapes)


_SHOWN = 10

Place = tuple[float, int, str, Label]
"""Signal over noise, number, name and label of a unit."""


class ValueAgreement:
    """How many values of an output that holds no real numbers are float's; by unit, 16 bytes each."""

    def __init__(self, output: str) -> None:
        self.output = output
        self.other_shapes = 0
        self._values, self._different = SampleColumn(), SampleColumn()

    def observe(self, expected: Sequence[Array], actual: Sequence[Array]) -> None:
        """Take in a chunk."""
        pairs = list(zip(expected, actual, strict=True))
        alike = [(a, b) for a, b in pairs if a.shape == b.shape]
        self.other_shapes += len(pairs) - len(alike)
        self._values.add([a.size for a, _ in alike])
        self._different.add([np.count_nonzero(a != b) for a, b in alike])

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


class CandidateTally:
    """What is known of one candidate's outputs."""

    def __init__(self, outputs: Sequence[OutputSpec], shown: str | None) -> None:
        self.tallies = {o.name: OutputTally(o.name) for o in outputs if o.is_float}
        self.agreements = {o.name: ValueAgreement(o.name) for o in outputs if not o.is_float}
        self._shown = shown  # the output whose worst samples are listed
        self._worst: list[Place] = []
        self._units = 0

    def observe(
        self, chunk: Chunk, expected: Mapping[str, Flat], own: Mapping[str, Sequence[Array]]
    ) -> None:
        """Take in a chunk.

        Args:
            chunk: The units, with names and labels.
            expected: Float's answers, by output.
            own: The candidate's, by output, one array per unit.
        """
        for name, tally in self.tallies.items():
            ratio = tally.observe(expected[name], Flat.of(own[name]))
            if name == self._shown:
                self._note_worst(chunk, ratio)
        for name, agreement in self.agreements.items():
            agreement.observe(chunk.answers[0][name], own[name])
        self._units += len(chunk.units)

    def _note_worst(self, chunk: Chunk, ratio: NDArray[np.float64]) -> None:
        changed = [i for i in np.argsort(ratio, kind="stable")[:_SHOWN] if np.isfinite(ratio[i])]
        found = [
            (float(ratio[i]), self._units + int(i), chunk.units[i].name, chunk.units[i].label)
            for i in changed
        ]
        self._worst = nsmallest(_SHOWN, [*self._worst, *found], key=lambda place: place[:2])

    def other_shapes(self) -> dict[str, int]:
        """Return the outputs that have another shape than float's, and for how many units."""
        found = {name: tally.other_shapes for name, tally in self.tallies.items()}
        found |= {name: agreement.other_shapes for name, agreement in self.agreements.items()}
        return {name: units for name, units in found.items() if units}

    def worst(self, measuring: "Measuring", model: int) -> tuple[WorstSample, ...]:
        """Return the samples furthest from float; those whose values are not finite have no SQNR."""
        return tuple(
            WorstSample(
                name=name,
                sqnr_db=None if ratio < 0 else floored_db(ratio),
                label=measuring.label_text(label),
                float_answer=measuring.answer(0, unit),
                answer=measuring.answer(model, unit),
            )
            for ratio, unit, name, label in self._worst
        )


class Measuring:
    """What is known of all models; begun with the first chunk, which shows what the outputs are.

    Attributes:
        units: How many were seen.
        scorer: What scores samples; None without a metric, and `note` says why.
        decisions: None where no output decides.
        candidates: One tally each.
        strange: How many units have values of float that are not finite; `first_strange` is the first one's name.
        names: Of the classes 0, 1, ..., where the data tells them.
        text: Whether lengths are numbers of tokens.
    """

    def __init__(
        self,
        first: Chunk,
        outputs: Sequence[OutputSpec],
        asked: MetricRequest,
        found: Description,
        *,
        answer: str | None = None,
    ) -> None:
        self._outputs = tuple(outputs)
        models, label = len(first.answers), first.units[0].label
        # Everything that is decided about outputs is decided by the first chunk, before any is counted: which output
        # decides, which metric it is, what drift is shown of. Deciding later would need the answers of all samples in
        # memory. `answer` narrows what is judged, never what is compared: drift is of all outputs. `rivals` are other
        # outputs that could have decided as well; they are named in a note, as a wrong guess here makes every figure
        # about the wrong thing.
        judged = [o for o in outputs if answer in {None, o.name}]
        decider = None
        if decides(asked.metric, label, pairs=asked.pairs):
            # Labels say that it decides; without them a name may say that it does not.
            able = [o for o in judged if label is not None or not is_embedding(o.name)]
            decider = deciding_output(able, first.answers[0], _highest(first))
        self.decisions = None if decider is None else Decisions(decider)
        self.scorer: Scorer | None
        asked = replace(asked, warnings=found.warnings)
        self.scorer, self.note = chosen_scorer(asked, first, judged, self.decisions)
        self.rivals = [
            o.name
            for o in judged
            if decider and o.name != decider.output and deciding_output([o], first.answers[0])
        ]
        floats = [o.name for o in outputs if o.is_float]
        deciding = decider.output if decider is not None and decider.scores else None
        shown = deciding or next(iter(floats), None)
        self.candidates = [CandidateTally(outputs, shown) for _ in range(models - 1)]
        self.units = 0
        self.strange = 0
        self.first_strange = ""
        self.names = found.classes
        self.text = first.units[0].mask is not None
        self._labelled = label is not None
        self._lengths = SampleColumn(np.int64)
        self._digests: list[int] = []

    def observe(self, chunk: Chunk) -> None:
        """Take in a chunk.

        Raises:
            DataError: A label is missing or of the wrong kind.
            UsageError: A user's metric fails.
        """
        check_complete(chunk.units, labelled=self._labelled)
        if self.decisions is not None:
            self.decisions.observe(chunk.answers)
        if self.scorer is not None:
            self.scorer.observe(chunk)
        expected = {o.name: Flat.of(chunk.answers[0][o.name]) for o in self._outputs if o.is_float}
        self._note_strange(chunk, expected)
        for tally, own in zip(self.candidates, chunk.answers[1:], strict=True):
            tally.observe(chunk, expected, own)
        self._lengths.add([unit.length for unit in chunk.units])
        self._digests += [unit.digest for unit in chunk.units]
        self.units += len(chunk.units)

    def _note_strange(self, chunk: Chunk, expected: Mapping[str, Flat]) -> None:
        bad = np.zeros(len(chunk.units), np.bool_)
        for flat in expected.values():
            finite = np.isfinite(flat.values)
            if not finite.all():
                bad |= flat.sums((~finite).astype(np.float64)) > 0
        if bad.any():
            self.first_strange = self.first_strange or chunk.units[int(bad.argmax())].name
            self.strange += int(np.count_nonzero(bad))

    def lengths(self, together: int) -> NDArray[np.float64]:
        """Return the length of each sample of the metric; of a pair, the longer one's."""
        longest = self._lengths.values.reshape(-1, together).max(axis=1)
        return np.asarray(longest, np.float64)

    def distinct(self, together: int) -> NDArray[np.int64]:
        """Return the places of the samples without the copies of earlier ones; of a pair both inputs are compared."""
        groups = zip(*[iter(self._digests)] * together, strict=True)
        first = {group: place for place, group in reversed(list(enumerate(groups)))}
        return np.sort(np.fromiter(first.values(), np.int64))

    def labels(self) -> NDArray[np.int64] | None:
        """Return the classes to judge decisions by."""
        classes = None if self.scorer is None else self.scorer.classes()
        return classes if self.decisions is not None else None

    def answer(self, model: int, unit: int) -> str | None:
        """Return a model's answer to a unit, for people."""
        if self.decisions is not None:
            decided = int(self.decisions.of(model)[unit])
            return "NaN" if decided < 0 and self.decisions.decider.scores else self.name(decided)
        return None if self.scorer is None else self.scorer.answer(model, unit)

    def name(self, index: int) -> str:
        """Return what a class is called."""
        return self.names[index] if 0 <= index < len(self.names) else str(index)

    def label_text(self, label: Label) -> str | None:
        """Return a label for people."""
        if isinstance(label, int) and self.labels() is not None:
            return self.name(label)
        return None if label is None else str(label)

    def decision(
        self, model: int, confidence: float, seed: int, distinct: NDArray[np.int64] | None = None
    ) -> Decision | None:
        """Return how the decisions of a candidate differ; the values of an only output count as such.

        Args:
            model: The candidate's number.
            confidence: Of the interval.
            seed: Of the redraws.
            distinct: The units that are not copies of others, by which intervals are made; None: all.
        """
        if self.decisions is not None:
            return self.decisions.compared(model, self.labels(), confidence, distinct)
        agreements = self.candidates[model - 1].agreements
        if len(self._outputs) == 1 and agreements:
            return next(iter(agreements.values())).decision(confidence, seed)
        return None

    @property
    def kinds(self) -> int | None:
        """How many classes the deciding output has scores for."""
        return self.scorer.fewest if isinstance(self.scorer, ClassScorer) else None


def _highest(first: Chunk) -> int:
    """Return the highest class among the first labels; -1 if they are no classes."""
    return max((int(u.label) for u in first.units if is_class(u.label)), default=-1)
