"""The result of an evaluation: all that a report shows and a gate judges."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any, Literal

from quantkit.result.accuracy import Drift, Metric, OutputDrift, SampleSqnr
from quantkit.result.cost import Latency, Memory, Size
from quantkit.result.inside import Changes, Fidelity, Layers, Runtime
from quantkit.result.tuning import Tuning
from quantkit.result.verdict import Rule, Verdict

_MOST = 0.5  # share of the products in integers from which on those in float are the exception
_SLOWER = 1.05  # times float's time; less is not worth a word

__all__ = ["OLDER", "SCHEMA", "Calibrated", "DataSource", "Evaluated", "ModelFile", "Origin"]
__all__ += ["Result"]

SCHEMA = "quantkit.result/2"
OLDER = ("quantkit.result/1",)
"""Readable for reports; the gate rejects them because validity checks are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """Which file.

    Attributes:
        path: As the user named it.
        sha256: Of all its files.
        nbytes: On disk, external data included.
        opset: Of the default domain.
        ir_version: Of the file.
        producer: Who wrote it.
        provenance: What quantkit wrote into it about where it comes from; empty if it did not.
    """

    path: str
    sha256: str
    nbytes: int
    opset: int
    ir_version: int
    producer: str = ""
    provenance: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """How activation ranges came about, from the candidate's provenance.

    Attributes:
        method: The calibrator.
        samples: How many.
        data: Where from.
        fingerprint: Of the data.
        warnings: Of the audit.
        shared: Whether evaluated samples were also calibrated on; None: not known.
        seen: How many of the evaluated samples it was calibrated with, as far as known.
        preprocessing: How samples were prepared for calibration, one step per line.
        differs: In what they were prepared otherwise for the evaluation, one difference per line.
    """

    method: str
    samples: int
    data: str
    fingerprint: str
    warnings: tuple[str, ...] = ()
    shared: bool | None = None
    seen: int = 0
    preprocessing: tuple[str, ...] = ()
    differs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """One model, and everything that was measured of it. None: not measured.

    Attributes:
        name: Short and unique in the result.
        role: Float is the reference.
        file: Which file.
        metrics: On labelled data; empty without labels.
        drift: From float; None for float.
        size: On disk.
        latency: One for each batch size and number of threads.
        memory: Of a process of its own.
        layers: Where the drift comes from.
        runtime: What onnxruntime runs in integers.
        fidelity: Whether it means the same wherever it runs.
        changes: What differs from float's file.
        calibration: How ranges came about.
        warnings: What a reviewer should know.
    """

    name: str
    role: Literal["float", "candidate"]
    file: ModelFile
    size: Size
    metrics: tuple[Metric, ...] = ()
    drift: Drift | None = None
    latency: tuple[Latency, ...] = ()
    memory: Memory | None = None
    layers: Layers | None = None
    runtime: Runtime | None = None
    fidelity: Fidelity | None = None
    changes: Changes | None = None
    calibration: Calibrated | None = None
    warnings: tuple[str, ...] = ()

    @property
    def metric(self) -> Metric | None:
        """The metric that is judged; None without labels."""
        return next((m for m in self.metrics if m.main), None)

    @property
    def typical_latency(self) -> Latency | None:
        """The latency that stands for the model: the smallest batch, the first number of threads; None: not timed."""
        return min(self.latency, key=lambda found: found.batch, default=None)

    @property
    def advice(self) -> tuple[str, ...]:
        """What would help most, one or two sentences: what was tried; else, where most products stay float, why."""
        if self.layers is not None and self.layers.advice:
            return tuple(advice.sentence for advice in self.layers.advice)
        runtime = self.runtime
        return runtime.advice[:1] if runtime is not None and runtime.share < _MOST else ()

    @property
    def slowness(self) -> str:
        """That it runs slower than float, and what to do; "" if it does not, or if that is not sure."""
        timed = self.typical_latency
        if timed is None or timed.ratio < _SLOWER:
            return ""
        if timed.ratio_interval is not None and timed.ratio_interval.low <= 1:
            return ""
        said = f"It runs slower than float: {timed.ratio:.2f} times float's time."
        match self.file.provenance.get("kind"):
            case "static":
                return (
                    f"{said} Integers do not pay for layers this small: `quantkit quantize dynamic` shrinks the file "
                    "as much and leaves them in float."
                )
            case "dynamic":
                return (
                    f"{said} Ranges are computed anew in every run: `quantkit quantize static` avoids that, "
                    "`--exclude` keeps small layers in float."
                )
            case "float16":
                return (
                    f"{said} This CPU has no kernels for float16, and values are converted in every run: `quantkit quantize "
                    "float16` without --compute stores the weights alone, and runs like float."
                )
            case _:
                return f"{said} What runs in integers, and what is converted in every run, is listed under int8."

    @property
    def worst_output(self) -> OutputDrift | None:
        """The output furthest from float's; None without a comparison."""
        outputs = self.drift.outputs if self.drift is not None else ()
        return min(outputs, key=lambda output: output.db, default=None)

    @property
    def worst_percentile(self) -> tuple[OutputDrift, SampleSqnr] | None:
        """The output with the lowest 1st percentile of the samples' SQNR, and its quantiles; None without any."""
        outputs = self.drift.outputs if self.drift is not None else ()
        found = [(output, output.per_sample) for output in outputs if output.per_sample is not None]
        return min(found, key=lambda pair: pair[1].p1, default=None)


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

    @property
    def float_model(self) -> Evaluated:
        """The float model that candidates are compared with."""
        return self.models[0]

    @property
    def candidates(self) -> tuple[Evaluated, ...]:
        """All models but the float model."""
        return self.models[1:]
