"""`evaluate_models`: candidates against the float model, on real data."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from quantkit.api.arguments import checked_kinds, checked_names, sample_settings
from quantkit.errors import UsageError
from quantkit.evaluate.gate import rules_of
from quantkit.evaluate.match.pair import NamedModel, named
from quantkit.evaluate.outputs import AccuracyOptions
from quantkit.files import check_folder
from quantkit.model.graph.load import model_files
from quantkit.pipeline.evaluate import EvaluateOptions, evaluate
from quantkit.pipeline.evaluation_folder import write_evaluation, written
from quantkit.result import Result
from quantkit.settings import DataSettings, GateSettings

__all__ = ["evaluate_models"]

Candidates = str | Path | Sequence[str | Path] | Mapping[str, str | Path]


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
    models = _named_models(float_model, candidates)
    chosen = sample_settings(settings, limit=limit, memory=memory)
    options = EvaluateOptions(
        accuracy=AccuracyOptions(
            metric=metric,
            pairs=pairs,
            answer=answer,
            confidence=confidence,
            hold_out=hold_out,
            skip_bad=skip_bad,
        ),
        batches=tuple(batches),
        threads=tuple(threads),
        skip=frozenset(checked_names(skip, "skip")),
        rules=rules_of(gate or GateSettings()),
        allow=() if gate is None else gate.allow,
        title=title,
        command=_call(float_model, candidates, data),
    )
    if output is not None:
        read = [file for model in models for file in model_files(model.path)]
        read += [Path(data)] if isinstance(data, str | Path) else []
        check_folder(Path(output), written(models), read)
    result = evaluate(models, data, chosen, options)
    if output is not None:
        write_evaluation(result, Path(output), models)
    return result


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
