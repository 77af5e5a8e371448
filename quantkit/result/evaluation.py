"""The result of an evaluation: all that a report shows and a gate judges.

Data and models, where they come from, the search that made them if there was one, the rules of a release with what came of
each, and what stands against the evidence itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from math import inf
from typing import Literal

from quantkit.result.accuracy import Interval, Metric
from quantkit.result.evaluated import Evaluated

__all__ = [
    "OLDER",
    "SCHEMA",
    "DataSource",
    "Judged",
    "Objection",
    "ObjectionKind",
    "Origin",
    "Outcome",
]
__all__ += ["Result", "Rule", "Trial", "Tuning", "Verdict"]

SCHEMA = "quantkit.result/2"
OLDER = ("quantkit.result/1",)
"""Readable for reports; the gate rejects them because validity checks are missing."""

Outcome = Literal["pass", "fail", "undecided", "invalid"]
"""undecided: too few samples to tell, or the figure was not measured. invalid: the figures prove nothing, whatever
they are; only verdicts are, rules are not."""

ObjectionKind = Literal[
    "guessing",
    "contradiction",
    "calibrated",
    "copies",
    "preprocessing",
    "incomparable",
    "identical",
    "swapped",
    "outdated",
]
"""guessing: float itself is no better than an answer without looking.
contradiction: no rule is broken, yet the outputs are noise, not finite, or most decisions differ.
calibrated: most samples are those that the candidate was calibrated with.
copies: most samples are copies of others, so that intervals are too narrow.
preprocessing: samples were prepared otherwise than for calibration.
incomparable: no value of an output could be compared with float's.
identical: the candidate is the float model's file.
swapped: the reference is quantized.
outdated: an older quantkit made the result, and did not look for the above."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One line of [gate].

    Attributes:
        key: "max_drop", "min_size_reduction", "max_latency_ratio", "min_int8_share", "max_flips", "min_sqnr_db",
            "min_sqnr_p1_db".
        limit: The bound.
        confidence: Judge the bad end of the interval; None: the estimate.
        relative: The limit was written in per cent: of a metric that is no share of the samples it is a share of float's
            own value.
    """

    key: str
    limit: float
    confidence: float | None = None
    relative: bool = False

    @property
    def is_ceiling(self) -> bool:
        """Whether the limit is the largest figure that is allowed, not the smallest."""
        return self.key.startswith("max_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What came of a rule for one candidate.

    Attributes:
        rule: The rule.
        outcome: Whether it is kept.
        figure: What was judged: the estimate, or the bad end of its interval; None: not measured.
        estimate: The estimate.
        margin: How much room is left (negative: how much too much); None: not measured.
        sentence: For people.
    """

    rule: Rule
    outcome: Outcome
    figure: float | None
    estimate: float | None
    margin: float | None
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Objection:
    """Why the figures of a candidate prove nothing, whatever they are.

    Attributes:
        kind: Which one.
        title: In a few words: "Float itself is guessing".
        sentence: What was found, and what to do.
        allowed: Whether it was said beforehand that this may be: then it is told and does not count.
    """

    kind: ObjectionKind
    title: str
    sentence: str
    allowed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What came of all rules for one candidate.

    Attributes:
        candidate: Its name.
        outcome: "invalid" if an objection counts, else "fail" if any rule fails, else "undecided" if any is, else "pass".
        rules: One by one.
        objections: What stands against the evidence, the gravest first.
    """

    candidate: str
    outcome: Outcome
    rules: tuple[Judged, ...]
    objections: tuple[Objection, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A file that was made and run. Its figures are those of the samples that choose, not of those that judge.

    Attributes:
        name: Short and unique; candidates of the result have the same.
        made: How, in words: "static, 3 of 53 layers float".
        verdict: Whether it loses no more than the budget allows: "in", "out"; "open": not tested to the end; "failed":
            no file could be made.
        drop: How much it loses against float, positive is worse, in units of the measure; None: not known.
        drop_interval: Of it; wide where it was stopped early, because it was clear by then.
        size: As a share of float's file; None: not known.
        latency: As a multiple of float's time, of a candidate of the result as measured there; None: not timed.
        latency_interval: Of it.
        samples: That it was run on.
        modes: How many nodes run in each mode.
        seconds: To make and run it.
        note: Why it failed; else "".
    """

    name: str
    made: str
    verdict: Literal["in", "out", "open", "failed"]
    drop: float | None = None
    drop_interval: Interval | None = None
    size: float | None = None
    latency: float | None = None
    latency_interval: Interval | None = None
    samples: int = 0
    modes: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """The search. The candidates of the result are its frontier, run on samples that had no part in choosing.

    Attributes:
        measure: What is lost: "top-1", "decisions that differ from float's".
        is_fraction: Whether that is a share, shown times 100: in points of the metric, else in per cent.
        max_drop: What may be lost, in units of the measure; None: no limit.
        max_latency: How slow, as a multiple of float's time; None: no limit.
        max_size: How large, as a share of float's file; None: no limit.
        trials: In the order in which they were made.
        chosen: The name of the one to use; "": there is none.
        met: Whether the chosen one keeps the budget, as far as can be told.
        sentence: What limits it, or why the budget cannot be met.
        calibration: Samples that ranges and roundings were found with.
        choosing: Samples that candidates were compared on.
        judging: Samples that only the chosen ones were run on, at the end.
        seed: Of the order of samples.
        confidence: Of each early stop.
        seconds: That the search took.
        stopped: Whether time ran out before the border of the budget was found.
    """

    measure: str
    is_fraction: bool
    trials: tuple[Trial, ...]
    chosen: str
    met: bool
    sentence: str
    calibration: int
    choosing: int
    judging: int
    max_drop: float | None = None
    max_latency: float | None = None
    max_size: float | None = None
    seed: int = 0
    confidence: float = 0.95
    seconds: float = 0.0
    stopped: bool = False

    @property
    def evaluations(self) -> float:
        """What was run, in runs over all the samples that choose: a candidate that was stopped at half of them is half a run."""
        return sum(trial.samples for trial in self.trials) / max(self.choosing, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """What the models were run on.

    Attributes:
        kind: "image folder", "npz", ...
        location: As the user named it.
        samples: How many were run.
        available: How many there are; None: not known.
        labels: "10 classes from labels.csv", or "none".
        fingerprint: Of what the samples are made of; "" for a Python iterable.
        preprocessing: One step per line.
        settings: What tells two preparations of the same files apart, by name.
        values: Of each input of real numbers, what 1, 50 and 99 of 100 values are below.
        distinct: How many samples feed something of their own to the model; None: so small that alike ones are no copies.
        batch: Samples per run of the model (batch size).
        order: "all, in order", "200 drawn with seed 0", ...
    """

    kind: str
    location: str
    samples: int
    available: int | None
    labels: str
    fingerprint: str
    preprocessing: tuple[str, ...]
    batch: int
    order: str
    settings: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    distinct: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """How to make the result again.

    Attributes:
        command: The command line, or the call.
        created: UTC, ISO 8601.
        software: Versions of quantkit, onnxruntime, onnx, numpy.
        python: Its version.
        system: Operating system.
        cpu: Name and instructions that matter.
        cores: That this process may use.
        recipe: quantkit.toml, whole; "" if there was none.
        seconds: How long it took.
    """

    command: str
    created: str
    software: Mapping[str, str]
    python: str
    system: str
    cpu: str
    cores: int
    recipe: str = ""
    seconds: float = 0.0


_HEADS = ("model", "size", "metric", "drop", "SQNR", "SQNR per sample", "time", "gate")


def _html_row(model: Evaluated, outcome: str) -> str:
    metric, output, timed = model.metric, model.worst_output, model.typical_latency
    noisy = output is not None and output.sqnr_db is not None
    cells = (
        model.name,
        f"{model.size.ratio:.1%}",
        "" if metric is None else f"{metric.name} {metric.value_text}",
        "" if metric is None else metric.drop_text,
        f"{output.sqnr_db:.1f} dB" if output is not None and noisy else "",
        "" if model.worst_percentile is None else str(model.worst_percentile[1]),
        "" if timed is None else f"{timed.ratio:.2f} of float",
        outcome,
    )
    return f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"


def _noise(db: float) -> float:
    return float(10 ** (-db / 10))


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One evaluation. `models[0]` is float.

    Attributes:
        title: For people.
        data: What the models were run on.
        models: Float, then the candidates in the order given.
        rules: The gate's; empty if there is none.
        verdicts: One for each candidate, of a search for the chosen one alone; empty without rules.
        allowed: Kinds of objections that do not count.
        origin: How to make it again.
        notes: What a reader should know about the whole.
        tuning: The search that made the candidates; None: they were given.
        schema: Which version of this format.
    """

    title: str
    data: DataSource
    models: tuple[Evaluated, ...]
    origin: Origin
    rules: tuple[Rule, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    allowed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    tuning: Tuning | None = None
    schema: str = SCHEMA

    def __str__(self) -> str:
        """Say what counts: a line for each candidate."""
        return "\n".join([self._head(), *(self._line(model) for model in self.candidates)])

    def __repr__(self) -> str:
        return f"<Result: {self._head()}, {len(self.candidates)} candidates>"

    def _repr_html_(self) -> str:
        """Return a table of the models, for notebooks."""
        outcomes = {verdict.candidate: verdict.outcome for verdict in self.verdicts}
        rows = [_html_row(model, outcomes.get(model.name, "")) for model in self.models]
        heads = "".join(f"<th>{head}</th>" for head in _HEADS)
        return f"<p>{escape(self._head())}</p><table><tr>{heads}</tr>{''.join(rows)}</table>"

    def _head(self) -> str:
        metric = self.float_model.metric
        value = f", float {metric.name} {metric.value_text}" if metric is not None else ""
        return f"{self.title}: {self.data.samples:,} samples of {self.data.location}{value}"

    def _line(self, model: Evaluated) -> str:
        """Return outcome, size, metric, distance and time of one candidate."""
        said = [f"{model.size.ratio:.1%} of float's size"]
        if model.metric is not None:
            drop = "" if model.metric.drop is None else f" (drop {model.metric.drop_text})"
            said.append(f"{model.metric.name} {model.metric.value_text}{drop}")
        if model.worst_output is not None and model.worst_output.sqnr_db is not None:
            said.append(f"SQNR {model.worst_output.sqnr_db:.1f} dB")
        if model.typical_latency is not None and model.typical_latency.ratio is not None:
            said.append(f"{model.typical_latency.ratio:.2f} of float's time")
        outcomes = [v.outcome for v in self.verdicts if v.candidate == model.name]
        return f"{model.name}: {', '.join([*outcomes, *said])}"

    def judged_drop(self, name: str) -> tuple[float, float, float] | None:
        """Return what a file of a search loses on the samples that judge, with the ends of its interval; None: not known.

        Of the metric that the search goes by; without labels of decisions that differ from float's; where no output decides,
        noise as a share of the outputs' power.
        """
        model = next((m for m in self.candidates if m.name == name), None)
        if model is None or self.tuning is None:
            return None
        decision, output = model.drift.decision if model.drift else None, model.worst_output
        if model.metric is not None:
            return self._judged_metric(model.metric, self.tuning)
        if decision is not None:
            return decision.flip_rate, decision.interval.low, decision.interval.high
        if output is None or output.db == -inf:
            return None
        ends = output.sqnr_interval
        low, high = (ends.high, ends.low) if ends else (output.db, output.db)
        return _noise(output.db), _noise(low), _noise(high)

    def _judged_metric(self, metric: Metric, tuning: Tuning) -> tuple[float, float, float] | None:
        reference = self.float_model.metric
        # A search for a share of a metric that is no share itself goes by parts of float's own figure.
        relative = reference is not None and tuning.is_fraction and not reference.is_fraction
        scale = abs(reference.value) if reference is not None and relative else 1.0
        if metric.drop is None or not scale or not tuning.measure.startswith(metric.name):
            return None
        ends = metric.drop_interval
        low, high = (ends.low, ends.high) if ends else (metric.drop, metric.drop)
        return metric.drop / scale, low / scale, high / scale

    def limit(self, key: str) -> float | None:
        """Return the limit of a rule; None: there is no such rule."""
        return next((rule.limit for rule in self.rules if rule.key == key), None)

    @property
    def float_model(self) -> Evaluated:
        """The float model that candidates are compared with."""
        return self.models[0]

    @property
    def candidates(self) -> tuple[Evaluated, ...]:
        """All models but the float model."""
        return self.models[1:]
