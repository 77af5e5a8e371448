"""Evaluation, in order: load, run on the same samples, weigh, time, look inside, judge."""

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from quantkit.calibration.monitor import Monitor, Silent
from quantkit.deploy.view.page import render_page
from quantkit.errors import ModelError, OutputError, QuantkitError, UsageError
from quantkit.evaluate.changes import candidate_warnings, changes_of, otherwise_prepared, swapped
from quantkit.evaluate.fidelity import fidelity_of
from quantkit.evaluate.gate import with_verdicts
from quantkit.evaluate.latency import Timed, measure_latency
from quantkit.evaluate.layers.ranking import layers_of
from quantkit.evaluate.memory import measure_memory
from quantkit.evaluate.outputs import AccuracyOptions, MeasuredOutputs, NamedModel, measure_outputs
from quantkit.evaluate.report import graph_name, write_pages
from quantkit.evaluate.size import size_of
from quantkit.files import replace_text, scratch
from quantkit.model.graph.half import RUN_WIDE, computes_bfloat16, half_type, widen
from quantkit.model.graph.load import LoadedModel
from quantkit.model.graph.opset import opset_of
from quantkit.model.graph.save import Stage
from quantkit.model.provenance import (
    Provenance,
    calibrated_of,
    cpu_name,
    model_digest,
    read_provenance,
    software,
)
from quantkit.pipeline.view import ViewOptions, view
from quantkit.result import Evaluated, ModelFile, Origin, Result, Rule, save_result
from quantkit.runtime.kernels import runtime_of
from quantkit.runtime.session import RUNTIME_ERRORS, first_line, load_model
from quantkit.settings import DataSettings, EvaluateSettings, closest
from quantkit.targets import cores

__all__ = ["PARTS", "WRITTEN", "EvaluateOptions", "evaluate", "named", "write_evaluation"]
__all__ += ["written"]

PARTS = ("latency", "memory", "layers", "runtime", "fidelity")
"""What may be left out; answers and sizes are always measured."""

WRITTEN = ("result.json", "report.html", "report.md")
"""What `write_evaluation` writes into a folder, beside graphs."""

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
    opened = [load_model(model.path) for model in models]
    for loaded in opened:
        loaded.require_weights()
    answered = measure_outputs(models, data, settings, options.accuracy, monitor)
    timed = Timed()
    if "latency" not in options.skip:
        timed = measure_latency(
            [(model.name, model.path) for model in models],
            answered.feeds,
            batches=options.batches,
            threads=options.threads,
            whole=answered.whole,
            progress=monitor.stage,
        )
    found = [
        _evaluated(m, models[0], answered, timed, _Look(options=options, monitor=monitor))
        for m in models
    ]
    for loaded in opened:  # what was measured and the digests belong to one version of each file
        loaded.require_unchanged()
    result = Result(
        title=options.title or models[0].path.name,
        data=answered.data,
        models=tuple(found),
        origin=_origin(options, time.perf_counter() - started),
        notes=(*answered.notes, *timed.notes),
    )
    result = replace(result, notes=(*otherwise_prepared(result), *swapped(result), *result.notes))
    return with_verdicts(result, options.rules, options.allow)


def write_evaluation(
    result: Result, folder: Path, models: Sequence[NamedModel] = ()
) -> tuple[Path, Path, Path]:
    """Write result.json, report.html and report.md; and of each candidate its graph beside float's, which the report links to.

    Args:
        result: What was measured.
        folder: Where to.
        models: The files that were evaluated, float's first; none: no graphs.

    Raises:
        OutputError: They cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise OutputError(f"Cannot make the folder '{folder}': {e.strerror}.") from e
    # First what took minutes to measure: the pages can be made from it again.
    save_result(result, folder / "result.json")
    for place in range(1, len(models)):
        _write_graph(result, folder / graph_name(place), [models[0].path, models[place].path])
    page, text = write_pages(result, folder)
    return folder / "result.json", page, text


def written(models: Sequence[NamedModel]) -> tuple[str, ...]:
    """Return the names of all that `write_evaluation` writes for these models, float's first."""
    return (*WRITTEN, *(graph_name(place) for place in range(1, len(models))))


def _write_graph(result: Result, page: Path, models: Sequence[Path]) -> None:
    """Draw a candidate beside float. What cannot be drawn has no page, and nothing links to one of another evaluation."""
    try:
        replace_text(page, render_page(view(models, ViewOptions(result=result))))
    except _FAILURES:
        page.unlink(missing_ok=True)


def named(arguments: Sequence[str | Path]) -> tuple[NamedModel, ...]:
    """Return models by the names that a report shows: "name=path", else the file's name without its ending.

    Raises:
        UsageError: Two models would have one name.
    """
    found: dict[str, NamedModel] = {}
    for argument in arguments:
        name, path = _name_and_path(argument)
        if name in found:
            raise UsageError(
                f"Two models are called '{name}': give them names, as in 'first={path}'."
            )
        found[name] = NamedModel(name=name, path=path)
    return tuple(found.values())


def _name_and_path(argument: str | Path) -> tuple[str, Path]:
    name, equals, path = str(argument).partition("=")
    if equals and name and path and not Path(argument).exists():
        return name, Path(path)
    return Path(argument).name.removesuffix(".onnx"), Path(argument)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """What is looked at in one model, and what went wrong with it."""

    options: EvaluateOptions
    monitor: Monitor
    warnings: list[str] = field(default_factory=list)

    def at(self, part: str, text: str, measure: Callable[[], _Found]) -> _Found | None:
        """Measure a part; one that fails is a warning in the report, not the end of it."""
        if part in self.options.skip:
            return None
        self.monitor.stage(text)
        try:
            return measure()
        except _FAILURES as e:
            self.warnings.append(f"The part '{part}' could not be measured: {first_line(e)}")
            return None

    def record(self, loaded: LoadedModel) -> Provenance | None:
        """Read where a model says it comes from."""
        try:
            return read_provenance(loaded.model)
        except ModelError as e:
            self.warnings.append(str(e))
            return None


def _evaluated(
    model: NamedModel, base: NamedModel, answered: MeasuredOutputs, timed: Timed, look: _Look
) -> Evaluated:
    """Look at one model; `base` is float."""
    name, path, is_float = model.name, model.path, model is base
    few = answered.feeds[:_INSIDE]
    stage = look.monitor.stage
    loaded = load_model(path)
    if computes_bfloat16(loaded.model):
        look.warnings.append(f"{RUN_WIDE}; its time says nothing.")
    origin = look.record(loaded)
    size = size_of(path, base.path)
    runtime = look.at("runtime", f"What runs in integers: {name}", lambda: runtime_of(path))
    memory = look.at("memory", f"Memory: {name}", lambda: measure_memory(path, few[0]))
    fidelity = look.at(
        "fidelity", f"Other CPUs: {name}", lambda: fidelity_of(path, few, progress=stage)
    )
    layers, changes = None, None
    if not is_float:
        with _in_float32(base.path) as (wide, half):
            if half and "layers" not in look.options.skip:
                said = f"'{base.name}' is a {half} model: its layers are compared as float32 computes them."
                look.warnings.append(said)
            layers = look.at(
                "layers", f"Layers: {name}", lambda: layers_of(wide, path, few, progress=stage)
            )
        changes = changes_of(base.path, path)
    return Evaluated(
        name=name,
        role="float" if is_float else "candidate",
        file=_file(loaded, path, origin, size.disk),
        size=size,
        metrics=answered.metrics.get(name, ()),
        drift=answered.drift.get(name),
        latency=timed.latency.get(name, ()),
        memory=memory,
        layers=layers,
        runtime=runtime,
        fidelity=fidelity,
        changes=changes,
        calibration=calibrated_of(origin, answered.data, answered.calibrated.get(name, 0)),
        warnings=(*look.warnings, *candidate_warnings(model, base, answered, changes)),
    )


@contextmanager
def _in_float32(path: Path) -> Iterator[tuple[Path, str]]:
    """Yield a model that computes in float32, itself or written anew, and the type of its halves; "" if it has none."""
    model = load_model(path).model
    half = half_type(model)
    if not half:
        yield path, half
        return
    widen(model)
    with scratch() as folder:
        stage = Stage(folder / path.name, folder)
        stage.write(model)
        yield stage.model_path, half


def _file(loaded: LoadedModel, path: Path, origin: Provenance | None, nbytes: int) -> ModelFile:
    model = loaded.model
    return ModelFile(
        path=str(path),
        sha256=model_digest(loaded)["sha256"],
        nbytes=nbytes,
        opset=opset_of(model),
        ir_version=model.ir_version or 0,
        producer=f"{model.producer_name or ''} {model.producer_version or ''}".strip(),
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
