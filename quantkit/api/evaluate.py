"""Evaluation of candidates against the float model, on real data: by arguments, or by what a recipe says; and a demo of it."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from quantkit.api.arguments import checked_kinds, checked_names, sample_settings, settings_from
from quantkit.api.files import files_read
from quantkit.api.quantize import Task, quantize
from quantkit.calibration.monitor import Monitor, Silent
from quantkit.errors import OutputError, UsageError
from quantkit.evaluate.accuracy import AccuracyOptions
from quantkit.evaluate.gate import rules_of
from quantkit.evaluate.match import NamedModel, named
from quantkit.files import check_folder, check_unasked, replacing
from quantkit.pipeline.evaluate import EvaluateOptions, evaluate
from quantkit.pipeline.view import WRITTEN, write_evaluation, written
from quantkit.result import Result
from quantkit.samples import fashion_mnist
from quantkit.settings import (
    DataSettings,
    DynamicSettings,
    EvaluateSettings,
    GateSettings,
    Recipe,
    StaticSettings,
    load_recipe,
)
from quantkit.spec import QInt8, QUInt8, weight_int_type

__all__ = ["WRITTEN", "evaluate_models", "evaluate_recipe", "named", "run_demo"]
Candidates = str | Path | Sequence[str | Path] | Mapping[str, str | Path]
_CALIBRATED = 128  # images
_RECIPE = """\
# What `quantkit evaluate` judges candidates by; `quantkit gate` does it again.
[gate]
max_drop = 0.01              # of top-1: one point,
confidence = 0.95            # judged at the 95 % bound
min_size_reduction = 0.6
max_flips = 0.03
"""


@checked_kinds
def evaluate_models(  # noqa: PLR0913 - one parameter per question
    float_model: str | Path,
    candidates: Candidates,
    data: object,
    output: str | Path | None = None,
    *,
    metric: str | None = None,
    pairs: bool = False,
    answer: str | None = None,
    hold_out: bool = False,
    confidence: float = 0.95,
    batches: Sequence[int] = (1,),
    threads: Sequence[int] = (0,),
    skip: Sequence[str] = (),
    gate: GateSettings | None = None,
    settings: DataSettings | None = None,
    limit: int | None = None,
    memory: int | str | None = None,
    skip_bad: bool = False,
    title: str = "",
) -> Result:
    """Measure how far candidates are from the float model, what they cost, and what really runs.

    Args:
        float_model: The reference.
        candidates: A path, several, or paths by the names that the report shows.
        data: What `quantkit.calibrate` takes; with labels where there are any.
        output: A folder for result.json, report.html, report.md and graph.html; None: nothing is written.
        metric: One of `quantkit.settings.METRICS`, a plug-in's name, or "module:function"; None: chosen by the labels.
        pairs: Two columns of text are embedded one by one, and the label is their likeness.
        answer: Which output to score; None: the first that fits.
        hold_out: Leave out samples that a candidate was calibrated with.
        confidence: Of all intervals.
        batches: Batch sizes that are timed.
        threads: Numbers of threads that are timed; 0 is onnxruntime's choice.
        skip: Parts to leave out: "latency", "memory", "layers", "runtime", "fidelity".
        gate: What the candidates are judged by.
        settings: How samples are prepared and ordered.
        limit: Use so many samples; overrides the settings.
        memory: Bytes that may be held at once (or "500MB", "1GB"); overrides the settings.
        skip_bad: Leave out samples that cannot be read, instead of failing.
        title: Of the report.

    Raises:
        QuantkitError: With one line that says what is wrong and what to do.
    """
    if metric is not None and not isinstance(metric, str):
        raise UsageError("metric is a name, or 'module:function': a report must be able to say it.")
    timed = {"batches": tuple(batches), "threads": tuple(threads), "output": None}
    recipe = Recipe(
        evaluated=sample_settings(settings, limit=limit, memory=memory),
        evaluate=settings_from(EvaluateSettings, locals(), **timed),
        gate=gate or GateSettings(),
    )
    return evaluate_recipe(
        _named_models(float_model, candidates),
        recipe,
        None if output is None else Path(output),
        data=data,
        hold_out=hold_out,
        skip=checked_names(skip, "skip"),
        skip_bad=skip_bad,
        title=title,
        command=_call(float_model, candidates, data),
    )[0]


def evaluate_recipe(  # noqa: PLR0913 - one parameter per question
    models: Sequence[NamedModel],
    recipe: Recipe,
    output: Path | None,
    *,
    data: object = None,
    typed: bool = True,
    hold_out: bool | None = None,
    skip: Sequence[str] = (),
    skip_bad: bool = False,
    title: str = "",
    command: str = "",
    monitor: Monitor | None = None,
) -> tuple[Result, Sequence[Path]]:
    """Measure candidates as a recipe says, and write the report; return the result and the report's files.

    Args:
        models: The float model, then the candidates.
        recipe: `evaluated` says which data, `evaluate` what is measured, `gate` what candidates are judged by.
        output: The folder of the report; None: nothing is written.
        data: Samples instead of those of the recipe.
        typed: The user typed that folder. Others are only written into where quantkit wrote what is there.
        hold_out: Leave out samples that a candidate was calibrated with; None: where a limit would draw the same ones.
        skip: Parts to leave out.
        skip_bad: Leave out samples that cannot be read, instead of failing.
        title: Of the report.
        command: How to do it again.
        monitor: Told what is done; None: nobody.
    """
    samples, wanted = recipe.evaluated, recipe.evaluate
    data = samples.path if data is None else data
    # A limit would draw the very samples that calibration with a limit drew.
    split = hold_out is None and samples.limit is not None
    options = EvaluateOptions(
        accuracy=AccuracyOptions(
            metric=wanted.metric,
            pairs=wanted.pairs,
            answer=wanted.answer,
            confidence=wanted.confidence,
            hold_out="if possible" if split else bool(hold_out),
            skip_bad=skip_bad,
        ),
        batches=wanted.batches,
        threads=wanted.threads,
        skip=frozenset(skip),
        rules=rules_of(recipe.gate),
        allow=recipe.gate.allow,
        title=title,
        command=command,
        recipe=recipe.text,
    )
    if output is not None:
        _check_folder(models, data, recipe, output, typed=typed)
    result = evaluate(models, data, samples, options, monitor)
    return result, () if output is None else write_evaluation(result, output, models)


def _check_folder(
    models: Sequence[NamedModel], data: object, recipe: Recipe, output: Path, *, typed: bool
) -> None:
    names = written(models)
    if not typed:
        check_unasked([output / name for name in names], recipe.folder)
    read = [*files_read(recipe.evaluated, *(model.path for model in models)), recipe.file]
    read += [Path(data)] if isinstance(data, str | Path) else []
    check_folder(output, names, read)


def _call(float_model: str | Path, candidates: Candidates, data: object) -> str:
    """Return the call as a report shows it; options other than models and data are not repeated."""
    base = str(float_model)
    if isinstance(candidates, Mapping):
        others: object = {name: str(path) for name, path in candidates.items()}
    else:
        others = str(candidates) if isinstance(candidates, str | Path) else [*map(str, candidates)]
    samples = repr(str(data)) if isinstance(data, str | Path) else f"<{type(data).__name__}>"
    return f"quantkit.evaluate_models({base!r}, {others!r}, {samples}, ...)"


def _named_models(float_model: str | Path, candidates: Candidates) -> tuple[NamedModel, ...]:
    given = list(candidates.values()) if isinstance(candidates, Mapping) else candidates
    several = given if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    for path in (float_model, *several):
        if not isinstance(path, str | Path):
            raise UsageError(f"Models are given by their paths, not as {type(path).__name__}.")
    if not isinstance(candidates, Mapping):
        return named([float_model, *several])
    base = named([float_model])[0]
    if base.name in candidates:
        raise UsageError(f"Two models are called '{base.name}': call the candidate differently.")
    found = (NamedModel(name=name, path=Path(path)) for name, path in candidates.items())
    return (base, *found)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """What was measured, and where it was written: result.json, report.html, report.md."""

    result: Result
    files: tuple[Path, Path, Path]


def run_demo(folder: Path, monitor: Monitor | None = None) -> DemoResult:
    """Run the demo; write models, data and report into `folder`."""
    monitor = monitor or Silent()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        source = _write_inputs(folder)
    except OSError as e:
        raise OutputError(f"Cannot write into the folder '{folder}': {e.strerror}.") from e
    models = (NamedModel(name="float32", path=source), *_quantized(folder, source, monitor))
    names = [f"{model.name}={model.path.name}" for model in models]
    images = DataSettings(path=folder / "images.npz", shuffle=False)
    result, _ = evaluate_recipe(
        models,
        replace(load_recipe(folder / "quantkit.toml"), evaluated=images),
        None,
        skip=("memory",),  # a process for each model, and next to nothing to see of so small ones
        title="Fashion-MNIST classifier",
        command=shlex.join(["quantkit", "evaluate", *names])
        + " --data images.npz --no-shuffle --skip memory",
        monitor=monitor,
    )
    return DemoResult(result=result, files=write_evaluation(result, folder))


def _write_inputs(folder: Path) -> Path:
    """Write what a user would have: a model, labelled images, others to calibrate with, the rules."""
    sample = fashion_mnist()
    parts = {"calibration": slice(None, _CALIBRATED), "images": slice(_CALIBRATED, None)}
    contents = {"quantkit.toml": _RECIPE.encode(), "fashion.onnx": sample.model.read_bytes()}
    for name, part in parts.items():
        packed = BytesIO()
        np.savez(packed, image=sample.images[part], label=sample.labels[part])
        contents[f"{name}.npz"] = packed.getvalue()
    for name, content in contents.items():
        path = folder / name
        if path.exists() and path.read_bytes() != content:
            raise UsageError(
                f"The demo would overwrite '{path}', which is not its own; choose another folder with -o."
            )
    for name, content in contents.items():
        with replacing(folder / name) as file:
            file.write(content)
    return folder / "fashion.onnx"


def _quantized(folder: Path, source: Path, monitor: Monitor) -> list[NamedModel]:
    """Quantize in four ways."""
    found = []
    for weight_type in (QUInt8, QInt8):
        stored: Any = weight_int_type(weight_type).name
        monitor.stage(f"Quantizing to {weight_type.value}")
        target = folder / f"fashion.{weight_type.value}.onnx"
        quantize(Task(source=source, how=DynamicSettings(weight_type=stored)), target)
        found.append(NamedModel(name=f"dynamic {weight_type.value}", path=target))
    ways = {"static": ("static int8", None), "static4": ("static, 4 bits", 4)}
    for file, (name, bits) in ways.items():
        monitor.stage(f"Calibrating, and quantizing to {name}")
        target, how = folder / f"fashion.{file}.onnx", StaticSettings(weight_bits=bits)
        quantize(Task(source=source, how=how, data=folder / "calibration.npz"), target)
        found.append(NamedModel(name=name, path=target))
    return found
