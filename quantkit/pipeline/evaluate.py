"""Evaluation, in order: load, run on the same samples, weigh, time, look inside, judge."""

import filecmp
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from quantkit.calibration.monitor import Monitor, Silent
from quantkit.errors import ModelError, QuantkitError, UsageError
from quantkit.evaluate.accuracy import AccuracyOptions, MeasuredOutputs, measure_outputs
from quantkit.evaluate.changes import changes_of
from quantkit.evaluate.fidelity import fidelity_of
from quantkit.evaluate.gate import with_verdicts
from quantkit.evaluate.latency import Lab, Timed, measure_latency
from quantkit.evaluate.layers import layers_of
from quantkit.evaluate.match import LARGE, ModelPair, NamedModel, SharedModel
from quantkit.evaluate.memory import measure_memory
from quantkit.evaluate.size import size_of
from quantkit.model.graph.half import RUN_WIDE, computes_bfloat16
from quantkit.model.graph.opset import opset_of
from quantkit.model.provenance import Provenance, calibrated_of, cpu_name, read_provenance, software
from quantkit.result import Changes, Evaluated, ModelFile, Origin, Result, Rule
from quantkit.runtime.session import RUNTIME_ERRORS, first_line, make_session
from quantkit.settings import DataSettings, EvaluateSettings, closest
from quantkit.targets import cores

PARTS = ("latency", "memory", "layers", "runtime", "fidelity")
"""What may be left out; answers and sizes are always measured."""

_Found = TypeVar("_Found")
_FAILURES: tuple[type[Exception], ...] = (QuantkitError, *RUNTIME_ERRORS)
_INSIDE = 8  # samples that layers and fidelity are looked at with


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateOptions:
    """How to evaluate.

    Attributes:
        accuracy: Which metric, at which confidence.
        batches: Sizes of batches that are timed.
        threads: Numbers of threads that are timed; 0 is onnxruntime's choice.
        skip: Parts that are left out, of `PARTS`.
        rules: What candidates are judged by.
        allow: Objections to an evaluation that do not count; of `quantkit.settings.objections`.
        title: For people; "": the float model's name.
        command: How this was asked for, to do it again.
        recipe: The text of quantkit.toml.
    """

    accuracy: AccuracyOptions = field(default_factory=AccuracyOptions)
    batches: tuple[int, ...] = (1,)
    threads: tuple[int, ...] = (0,)
    skip: frozenset[str] = frozenset()
    rules: tuple[Rule, ...] = ()
    allow: tuple[str, ...] = ()
    title: str = ""
    command: str = ""
    recipe: str = ""

    def __post_init__(self) -> None:
        # What these may be is said once, for a line of quantkit.toml and for a call.
        EvaluateSettings(batches=self.batches, threads=self.threads)
        for part in self.skip - set(PARTS):
            raise UsageError(
                f"There is no part '{part}' to skip{closest(part, PARTS)}: use {', '.join(PARTS)}."
            )


def evaluate(
    models: Sequence[NamedModel],
    data: object,
    settings: DataSettings,
    options: EvaluateOptions,
    monitor: Monitor | None = None,
) -> Result:
    """Measure candidates against the float model, which is the first of `models`.

    Args:
        models: The float model, then the candidates.
        data: A path, or a Python object that `open_data` takes.
        settings: Which samples, and how they are prepared.
        options: What is measured, and the rules.
        monitor: Told what is done; None: nobody.

    Raises:
        QuantkitError: A model, the data or the metric is wrong; says what to do.
    """
    started = time.perf_counter()
    monitor = monitor or Silent()
    if len(models) < 2:  # float and a candidate
        raise UsageError("There is no candidate: quantkit evaluate FLOAT CANDIDATE... --data DIR.")
    monitor.stage("Reading the models")
    for model in models:
        model.loaded.require_weights()
    answered = measure_outputs(models, data, settings, options.accuracy, monitor)
    timed = Timed() if "latency" in options.skip else _timed(models, answered, options, monitor)
    found = _evaluated(
        [
            _Look(
                model=model,
                base=models[0],
                answered=answered,
                timed=timed,
                options=options,
                monitor=monitor,
            )
            for model in models
        ]
    )
    for model in models:  # what was measured and the digests belong to one version of each file
        model.loaded.require_unchanged()
    result = Result(
        title=options.title or models[0].path.name,
        data=answered.data,
        models=found,
        origin=_origin(options, time.perf_counter() - started),
        notes=(*answered.notes, *timed.notes),
    )
    caveats = (*_preprocessing_mismatch(result), *_models_look_swapped(result))
    result = replace(result, notes=(*caveats, *result.notes))
    return with_verdicts(result, options.rules, options.allow)


def _preprocessing_mismatch(result: Result) -> tuple[str, ...]:
    """Return in what the samples were prepared otherwise than for the candidates' calibration."""
    found: dict[tuple[str, ...], list[str]] = {}
    for model in result.candidates:
        if model.calibration is not None and model.calibration.differs:
            found.setdefault(model.calibration.differs, []).append(f"'{model.name}'")
    return tuple(
        f"Other preprocessing than in the calibration of {', '.join(names)}: {'; '.join(differs)}. No figure of it says "
        "anything about how it will do."
        for differs, names in found.items()
    )


def _models_look_swapped(result: Result) -> tuple[str, ...]:
    """Return a warning about the order of the arguments."""
    first = result.float_model
    quantized = first.runtime is not None and first.runtime.integer > 0
    if quantized or first.file.provenance.get("kind") in {
        "dynamic",
        "static",
        "weights",
        "float16",
    }:
        return (
            f"The first model, '{first.name}', is quantized: is it the float model, or are the arguments in the wrong order?",
        )
    return ()


def _timed(
    models: Sequence[NamedModel],
    answered: MeasuredOutputs,
    options: EvaluateOptions,
    monitor: Monitor,
) -> Timed:
    """Time all models, with onnxruntime's choice of threads in the sessions that there are."""
    by_path = {model.path: model for model in models}

    def opened(path: Path, threads: int) -> Any:
        return make_session(str(path), threads=threads) if threads else by_path[path].session

    return measure_latency(
        [(model.name, model.path) for model in models],
        answered.feeds,
        batches=options.batches,
        threads=options.threads,
        whole=answered.whole,
        progress=monitor.stage,
        lab=Lab(open=opened),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """One model, what is known of all, and what went wrong with it."""

    model: NamedModel
    base: NamedModel  # float
    answered: MeasuredOutputs
    timed: Timed
    options: EvaluateOptions
    monitor: Monitor
    warnings: list[str] = field(default_factory=list)

    def at(self, part: str, text: str, measure: Callable[[], _Found]) -> _Found | None:
        """Measure a part; one that fails is a warning in the report, not the end of it."""
        if part in self.options.skip:
            return None
        self.monitor.stage(f"{text}: {self.model.name}")
        try:
            return measure()
        except _FAILURES as e:
            self.warnings.append(f"The part '{part}' could not be measured: {first_line(e)}")
            return None

    def record(self) -> Provenance | None:
        """Read where the model says it comes from."""
        try:
            return read_provenance(self.model.model)
        except ModelError as e:
            self.warnings.append(str(e))
            return None


def _evaluated(looks: Sequence[_Look]) -> tuple[Evaluated, ...]:
    """Return what each model is and costs; the float model is the first."""
    base = looks[0].model
    for look in looks:
        if look.model.loaded.nbytes >= LARGE:
            look.model.release()
    found = []
    # The float model is the last: layers need tensors inside of it, in a session that computes its outputs as well.
    with base.in_float32() as (wide, half):
        for look in looks[1:]:
            if half and "layers" not in look.options.skip:
                look.warnings.append(
                    f"'{base.name}' is a {half} model: its layers are compared as float32 computes them."
                )
            found.append(_candidate(look, wide))
            look.model.release()
    first = _one(looks[0])
    base.release()
    return (first, *found)


def _candidate(look: _Look, wide: SharedModel) -> Evaluated:
    """Look at a candidate, beside the float model; `wide` is that in float32."""
    few, stage = look.answered.feeds[:_INSIDE], look.monitor.stage
    pair = ModelPair(wide, look.model)
    layers = look.at("layers", "Layers", lambda: layers_of(pair, few, progress=stage))
    changes = changes_of(ModelPair(look.base, look.model))
    found = _one(look)
    warnings = (*found.warnings, *_caveats(look, changes))
    return replace(found, role="candidate", layers=layers, changes=changes, warnings=warnings)


def _caveats(look: _Look, changes: Changes) -> Iterator[str]:
    """Yield what makes a candidate's figures mean less than they seem to."""
    data, name = look.answered.data, look.model.name
    if count := look.answered.calibrated.get(name, 0):
        yield (
            f"{count:,} of {data.samples:,} samples were also used to calibrate it, so its results are optimistic. "
            "Evaluate on other data, or with --hold-out."
        )
    if set(changes.weights) <= {"float32", "float64"}:
        same = filecmp.cmp(look.model.path, look.base.path, shallow=False)
        yield (
            "It is the float model itself." if same else "It holds no weight in fewer than 32 bits."
        )
    drift = look.answered.drift.get(name)
    for o in drift.outputs if drift is not None else ():
        if o.not_finite:
            yield f"{o.not_finite} values of output '{o.output}' are NaN or infinite where float's are not."


def _one(look: _Look) -> Evaluated:
    """Look at a model by itself."""
    model, few = look.model, look.answered.feeds[:_INSIDE]
    if computes_bfloat16(model.model):
        look.warnings.append(f"{RUN_WIDE}; its time says nothing.")
    origin = look.record()
    size = size_of(model.path, look.base.path)
    runtime = look.at("runtime", "What runs in integers", lambda: model.runtime)
    memory = look.at("memory", "Memory", lambda: measure_memory(model.path, few[0]))
    fidelity = look.at(
        "fidelity", "Other CPUs", lambda: fidelity_of(model, few, progress=look.monitor.stage)
    )
    used = look.answered.calibrated.get(model.name, 0)
    return Evaluated(
        name=model.name,
        role="float",
        file=_file(model, origin, size.disk),
        size=size,
        metrics=look.answered.metrics.get(model.name, ()),
        drift=look.answered.drift.get(model.name),
        latency=look.timed.latency.get(model.name, ()),
        memory=memory,
        runtime=runtime,
        fidelity=fidelity,
        calibration=calibrated_of(origin, look.answered.data, used),
        warnings=tuple(look.warnings),
    )


def _file(model: NamedModel, origin: Provenance | None, nbytes: int) -> ModelFile:
    graph = model.model
    return ModelFile(
        path=str(model.path),
        sha256=model.sha256,
        nbytes=nbytes,
        opset=opset_of(graph),
        ir_version=graph.ir_version or 0,
        producer=f"{graph.producer_name or ''} {graph.producer_version or ''}".strip(),
        provenance=origin.to_json() if origin else {},
    )


def _origin(options: EvaluateOptions, seconds: float) -> Origin:
    return Origin(
        command=options.command,
        created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        software=software(),
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        cpu=cpu_name(),
        cores=cores(),
        recipe=options.recipe,
        seconds=round(seconds, 1),
    )
