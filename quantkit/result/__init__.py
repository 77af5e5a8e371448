"""The one result model: an evaluation makes it, result.json holds it, reports and gates read nothing else.

Data and models (`quantkit.result.evaluated`), where they come from, the search that made them if there was one, the rules of
a release with what came of each, and what stands against the evidence itself.

result.json is written and read strictly, with the place of whatever is wrong in it. It ends with a seal, the SHA-256 of all
the rest. Nobody signs it: it shows accidental or careless changes, not those of somebody who computes it anew.
"""

import codecs
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from html import escape
from math import inf
from pathlib import Path
from typing import Any, Literal

import msgspec

from quantkit.errors import UsageError, as_os_error
from quantkit.files import replace_text
from quantkit.result.evaluated import *  # noqa: F403 - its classes
from quantkit.result.evaluated import Evaluated, Interval, Metric, OutputDrift
from quantkit.text import human, printable

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


_UNKNOWN = "-"


def _metric_cells(metric: Metric | None) -> tuple[str, str, str]:
    """Return the value of a metric, its drop, and the bad end of the drop's interval; points of a share."""
    if metric is None or metric.drop is None:
        return _UNKNOWN if metric is None else metric.value_text, _UNKNOWN, _UNKNOWN
    bad = metric.drop_interval.high if metric.drop_interval else None
    drop, most = (
        _UNKNOWN if end is None else f"{100 * end:.2f}" if metric.is_fraction else f"{end:.3g}"
        for end in (metric.drop, bad)
    )
    return metric.value_text, drop, most


def _sqnr_cell(worst: OutputDrift | None) -> str:
    if worst is None:
        return _UNKNOWN
    if worst.not_finite:
        return "not finite"
    return "same" if worst.sqnr_db is None else f"{worst.sqnr_db:.1f}"


def _cells(model: Evaluated) -> tuple[str, ...]:
    """Return what was measured of a model beside its metric: size, flips, SQNR, time, int8."""
    is_float = model.role == "float"
    timed, runtime = model.typical_latency, model.runtime
    decision = model.decision
    time = (
        "" if timed is None else f"{timed.median_ms:.2f} ms" if is_float else f"{timed.ratio:.2f}"
    )
    return (
        human(model.size.disk) if is_float else f"{model.size.ratio:.1%}",
        f"{decision.flip_rate:.1%}" if decision else _UNKNOWN,
        _sqnr_cell(model.worst_output),
        time or _UNKNOWN,
        f"{runtime.integer}/{runtime.products}" if runtime else _UNKNOWN,
    )


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

    def table(self) -> list[tuple[str, ...]]:
        """Return a row of heads, and one for each model, float first: what the terminal and notebooks show."""
        metric = self.float_model.metric
        heads = (metric.name, "drop", "at most") if metric else ()
        rows = [("model", "size", *heads, "flips", "SQNR dB", "time", "int8")]
        for model in self.models:
            size, *rest = _cells(model)
            rows.append((model.name, size, *_metric_cells(model.metric)[: len(heads)], *rest))
        return rows

    def _repr_html_(self) -> str:
        """Return a table of the models and their verdicts, for notebooks."""
        outcomes = {verdict.candidate: verdict.outcome for verdict in self.verdicts}
        heads, *rows = (map(escape, row) for row in self.table())
        lines = ["".join(f"<th>{head}</th>" for head in (*heads, "gate"))]
        for model, row in zip(self.models, rows, strict=True):
            cells = (*row, outcomes.get(model.name, ""))
            lines.append("".join(f"<td>{cell}</td>" for cell in cells))
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        return f"<p>{escape(self._head())}</p><table>{body}</table>"

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
        decision, output = model.decision, model.worst_output
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


def result_text(result: Result) -> str:
    """Return the result as JSON. A figure that is not finite becomes null."""
    plain = msgspec.json.decode(msgspec.json.encode(result))
    if result.tuning is None:  # evaluations are written as before there were searches
        del plain["tuning"]
    done = msgspec.json.encode(plain | {"seal": _seal(plain)})
    return msgspec.json.format(done, indent=1).decode() + "\n"


def _seal(plain: dict[str, Any]) -> str:
    """Return the digest of a result as plain data, however it is written."""
    return sha256(msgspec.json.encode(plain, order="sorted")).hexdigest()


def save_result(result: Result, path: Path) -> None:
    """Write result.json, whole or not at all.

    Raises:
        OutputError: It cannot be written.
    """
    replace_text(path, result_text(result))


def result_file(path: str | Path) -> Path:
    """Return the file of a result: a folder stands for the result.json in it."""
    path = Path(path)
    return path / "result.json" if path.is_dir() else path


def load_result(path: str | Path) -> Result:
    """Read a result; a folder stands for the result.json in it.

    Raises:
        UsageError: It cannot be read, is no result, one of a newer quantkit, or not as quantkit wrote it.
    """
    if not isinstance(path, str | Path):
        raise UsageError(f"A result is read from the path of its file or folder, not {path!r}.")
    path = result_file(path)
    try:
        content = path.read_bytes()
    except OSError as e:
        raise as_os_error(UsageError(f"Cannot read the result '{path}': {e.strerror}."), e) from e
    return result_from_json(content, str(path))


def result_from_json(content: bytes, name: str) -> Result:
    """Read a result from JSON; `name` is for messages."""
    content = content.removeprefix(codecs.BOM_UTF8)  # some editors mark UTF-8
    try:
        plain = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise UsageError(f"'{name}' is no result: it is not JSON ({e}).") from e
    except RecursionError as e:
        raise UsageError(f"'{name}' is no result: it is nested too deeply.") from e
    schema = plain.get("schema") if isinstance(plain, dict) else None
    if schema not in {SCHEMA, *OLDER}:
        found = f"its schema is '{schema}'" if schema else "it names no schema"
        raise UsageError(f"'{name}' is no result of this version: {found}, not '{SCHEMA}'.")
    try:
        result = msgspec.json.decode(content, type=Result)
    except msgspec.ValidationError as e:
        raise UsageError(f"'{name}' is no complete result: {e}.") from e
    if not result.models or result.models[0].role != "float":
        raise UsageError(f"'{name}' is no complete result: its first model is not the float one.")
    if result.tuning is not None and not _names_its_own(result):
        raise UsageError(f"'{name}' is no complete result: its search chose what it does not hold.")
    if schema == SCHEMA and plain.pop("seal", None) != _seal(plain):
        raise UsageError(
            f"'{name}' is not as quantkit wrote it: something in it was changed; evaluate again."
        )
    return result


def _names_its_own(result: Result) -> bool:
    """Say whether what a search chose is one of the candidates, and each candidate one of its trials."""
    tried = {trial.name for trial in result.tuning.trials} if result.tuning else set()
    held = {model.name for model in result.candidates}
    chosen = result.tuning.chosen if result.tuning else ""
    return held <= tried and (not chosen or chosen in held)


def legible(result: Result) -> Result:
    """Return the result as views show it: no text in it can do more than be read."""
    return msgspec.convert(_legible(msgspec.to_builtins(result)), Result)


def _legible(plain: Any) -> Any:
    if isinstance(plain, str):
        return printable(plain, keep="\n\t")
    if isinstance(plain, dict):
        return {_legible(key): _legible(value) for key, value in plain.items()}
    return [_legible(item) for item in plain] if isinstance(plain, list | tuple) else plain


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of result.json."""
    found: dict[str, Any] = json.loads(json.dumps(msgspec.json.schema(Result)))
    found["$defs"]["Result"]["properties"]["seal"] = {"type": "string"}
    return found
