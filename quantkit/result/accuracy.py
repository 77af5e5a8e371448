"""What became of the model's answers: metrics, drift of the outputs, flips, slices."""

from dataclasses import dataclass
from math import inf

__all__ = [
    "SAME_DB",
    "Decision",
    "Drift",
    "Interval",
    "Metric",
    "OutputDrift",
    "SampleSqnr",
    "Slice",
    "WorstSample",
]

_FRACTIONS = {"f1", "accuracy", "precision", "recall", "auc", "map", "map-50", "iou", "wer", "cer"}
_LISTS = {"map", "map-50", "iou"}
_HUNDRED = 100  # samples of which the worst is the 1st percentile
SAME_DB = 200.0
"""SQNR that stands for a sample whose output did not change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Where a figure lies with the given confidence (0.95: in 19 of 20 samples of this size)."""

    low: float
    high: float
    confidence: float = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A figure of merit on labelled data.

    Attributes:
        name: "top-1", "top-5", "f1", "mse", "spearman", or the user's function.
        value: The model's figure, in units of the metric (0.01 of top-1 is one point).
        interval: Of the value, as another draw of as many samples would give it.
        higher_is_better: False for errors.
        drop: How much worse than float, positive is worse whatever the direction; None for float itself.
        drop_interval: Of the drop, samples redrawn in pairs.
        detectable: The drop that this sample could not tell from none, in units of the metric.
        main: The one that is judged.
        chance: What answers score that do not look at the sample: always the most frequent class, the mean of the
            labels; None: not known for this metric.
    """

    name: str
    value: float
    interval: Interval | None = None
    higher_is_better: bool = True
    drop: float | None = None
    drop_interval: Interval | None = None
    detectable: float | None = None
    main: bool = False
    chance: float | None = None

    @property
    def is_guess(self) -> bool:
        """Whether it cannot be told from answers that do not look at the sample."""
        if self.chance is None:
            return False
        if self.interval is None:
            return True
        bounds = self.interval
        return not (
            bounds.low > self.chance if self.higher_is_better else bounds.high < self.chance
        )

    @property
    def value_text(self) -> str:
        """The value, per cent of a share: ``93.70%``."""
        return f"{self.value:.2%}" if self.is_fraction else f"{self.value:.4g}"

    @property
    def drop_text(self) -> str:
        """The drop, points of a share: ``0.11 points``; "" for float itself."""
        if self.drop is None:
            return ""
        return f"{100 * self.drop:.2f} points" if self.is_fraction else f"{self.drop:.3g}"

    @property
    def of_lists(self) -> bool:
        """Whether answers are lists of boxes: in another order, or one longer, they are no worse."""
        return self.name in _LISTS

    @property
    def is_fraction(self) -> bool:
        """Whether it is a share of the samples: shown in per cent, its drop in points."""
        return self.name.startswith("top-") or self.name.lower() in _FRACTIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSqnr:
    """Quantiles of the SQNR that each sample has on its own, in dB from -200 (not finite) to 200 (nothing changed).

    Attributes:
        samples: How many were compared.
        median: The median.
        p1: The 1st percentile, an order statistic: of up to 100 samples the worst one.
        p1_low: A lower confidence bound (one-sided) of the 1st percentile of all inputs, whatever the distribution; None:
            too few samples (fewer than 299 at 95 %).
        worst: The worst sample.
        confidence: Of `p1_low`.
        other_shape: Samples that could not be compared because the output has another shape than float's.
    """

    samples: int
    median: float
    p1: float
    p1_low: float | None
    worst: float
    confidence: float = 0.95
    other_shape: int = 0

    def __str__(self) -> str:
        """Return ``median 31.6, 1 % below 24.1, worst 19.4 dB``; of up to 100 samples median and worst alone."""
        if self.worst >= SAME_DB:
            return "all identical"
        named = {"median": self.median, "1 % below": self.p1, "worst": self.worst}
        if not self.has_percentile:
            del named["1 % below"]
        shown = (f"{k} {'identical' if v >= SAME_DB else f'{v:.1f}'}" for k, v in named.items())
        return f"{', '.join(shown)} dB"

    @property
    def p1_name(self) -> str:
        """What `p1` is with this many samples: "1st percentile" or "worst"."""
        return "1st percentile" if self.has_percentile else "worst"

    @property
    def has_percentile(self) -> bool:
        """Whether there are so many samples that the 1st percentile is not the worst one."""
        return self.samples > _HUNDRED


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputDrift:
    """How far one output is from float's.

    Attributes:
        output: Its name.
        sqnr_db: Signal to noise over all finite values; None: nothing changed, or nothing is finite. See `db`.
        sqnr_interval: Of it, samples redrawn.
        cosine: Mean cosine of a sample's output with float's; None where it has no direction.
        max_error: The largest absolute error.
        p99_error: 99 of 100 absolute errors are below it.
        mean_error: The mean absolute error.
        signal: The root mean square of float's values, to judge errors by.
        not_finite: Values that are NaN or infinite where float's are not.
        compared: How many values entered the figures; None: not counted (by an older version).
        per_sample: Quantiles of the SQNR of each sample; None: no sample was compared, or an older version evaluated.
    """

    output: str
    sqnr_db: float | None
    sqnr_interval: Interval | None = None
    cosine: float | None = None
    max_error: float = 0.0
    p99_error: float = 0.0
    mean_error: float = 0.0
    signal: float = 0.0
    not_finite: int = 0
    compared: int | None = None
    per_sample: SampleSqnr | None = None

    @property
    def db(self) -> float:
        """Signal to noise as a number to judge by: inf where nothing changed, -inf where values are not finite."""
        if self.not_finite:
            return -inf
        return inf if self.sqnr_db is None else self.sqnr_db


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Whether the model still decides as float does (argmax, or an integer output's value).

    Attributes:
        output: The output that decides.
        samples: How many decisions.
        flips: How many differ from float's.
        flip_rate: flips / samples.
        interval: Of the rate.
        gained: Flips from a wrong answer to the right one; None without labels.
        lost: Flips from the right answer to a wrong one; None without labels.
        p_value: McNemar's exact test on gained against lost; None without labels.
    """

    output: str
    samples: int
    flips: int
    flip_rate: float
    interval: Interval
    gained: int | None = None
    lost: int | None = None
    p_value: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Some of the samples: a class, a range of lengths or of labels.

    Attributes:
        by: "class", "label", "length".
        name: Which: "7", "33 to 64 tokens".
        samples: How many.
        float_value: The float model's metric on them.
        value: The candidate's.
        drop: Positive is worse.
        interval: Of the drop.
        p_value: That the drop is chance, corrected for the number of slices looked at (Holm).
    """

    by: str
    name: str
    samples: int
    float_value: float
    value: float
    drop: float
    interval: Interval | None = None
    p_value: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstSample:
    """A sample on which the candidate is furthest from float."""

    name: str
    sqnr_db: float | None
    label: str | None = None
    float_answer: str | None = None
    answer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """All that is known of a candidate's answers beside the metrics.

    Attributes:
        outputs: One by one.
        decision: None where no output decides.
        slices: The worst first.
        worst: Samples, the worst first.
        sentence: What can and cannot be said with so many samples.
    """

    outputs: tuple[OutputDrift, ...]
    decision: Decision | None = None
    slices: tuple[Slice, ...] = ()
    worst: tuple[WorstSample, ...] = ()
    sentence: str = ""
