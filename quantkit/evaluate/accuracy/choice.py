"""Which metric: the one that is asked for, or the one that labels and outputs suggest."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from quantkit.data import Boxes, Label
from quantkit.errors import DataError
from quantkit.evaluate.accuracy.chunks import Chunk
from quantkit.evaluate.accuracy.classes import ClassScorer, Decisions, is_embedding
from quantkit.evaluate.accuracy.detection import BoxScorer, detector_outputs
from quantkit.evaluate.accuracy.models import OutputSpec
from quantkit.evaluate.accuracy.perplexity import LogitScorer
from quantkit.evaluate.accuracy.regression import NumberScorer, PairScorer
from quantkit.evaluate.accuracy.scorer import Scorer, is_class, is_number
from quantkit.evaluate.accuracy.text_errors import WordScorer
from quantkit.evaluate.accuracy.user_metric import UserScorer, import_metric
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
