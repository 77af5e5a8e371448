"""Accuracy: float and all candidates on the same samples, in one pass, with what can be said of the difference."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

from quantkit.calibration.monitor import Monitor
from quantkit.calibration.origin import known_share, typical_values
from quantkit.data import InputSpec, Trial
from quantkit.errors import DataError, ModelError, UsageError
from quantkit.evaluate.accuracy.chunks import OpenModel, SampleRunner, open_models, single_rows
from quantkit.evaluate.accuracy.drift import output_drifts
from quantkit.evaluate.accuracy.measuring import Measuring, MetricRequest
from quantkit.evaluate.accuracy.samples import (
    SampleSource,
    calibrated_places,
    open_source,
    recorded_digests,
)
from quantkit.evaluate.accuracy.scorer import Figure, Indices, metrics_of
from quantkit.evaluate.accuracy.slices import slices_of
from quantkit.evaluate.accuracy.user_metric import import_metric
from quantkit.evaluate.match import NamedModel
from quantkit.result import DataSource, Decision, Drift, Metric, OutputDrift
from quantkit.runtime.runs import row_trial
from quantkit.settings import METRICS, DataSettings, EvaluateSettings, ImageSettings, closest
from quantkit.settings.record import carried_by
from quantkit.text import counted

__all__ = ["AccuracyOptions", "MeasuredOutputs", "NamedModel", "measure_outputs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyOptions:
    """What to measure.

    Attributes:
        metric: One of `quantkit.settings.METRICS`, a plug-in's name, or "module:function"; None: as labels suggest.
        pairs: The data has two text columns; a label says how alike their texts are.
        answer: The output that is judged; None: the first that fits.
        confidence: Of all intervals.
        seed: Of all redraws.
        skip_bad: Leave out samples that cannot be read.
        hold_out: Leave out samples that a candidate was calibrated with; "if possible": where others are left.
        only: Places of the samples to run, in this order; None: as the settings of the data say.
    """

    metric: str | None = None
    pairs: bool = False
    answer: str | None = None
    confidence: float = 0.95
    seed: int = 0
    skip_bad: bool = False
    hold_out: bool | Literal["if possible"] = False
    only: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        # What these may be is said once, for a line of quantkit.toml and for a call.
        EvaluateSettings(metric=self.metric, pairs=self.pairs, confidence=self.confidence)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredOutputs:
    """What running all models on the same samples showed.

    Attributes:
        metrics: Of each model by name, float included; empty without labels.
        drift: Of each candidate.
        data: What the models were run on.
        feeds: What the first runs were fed, for other measurements: one sample each, unless the model's batch is fixed.
        whole: Each sample runs alone: its first axes do not count samples.
        notes: What a reader should know.
        calibrated: How many of the samples each candidate was calibrated with, where its own record tells.
    """

    metrics: Mapping[str, tuple[Metric, ...]]
    drift: Mapping[str, Drift]
    data: DataSource
    feeds: tuple[Mapping[str, NDArray[Any]], ...]
    whole: bool
    notes: tuple[str, ...]
    calibrated: Mapping[str, int]


def measure_outputs(
    models: Sequence[NamedModel],
    data: object,
    settings: DataSettings,
    options: AccuracyOptions,
    monitor: Monitor,
    enough: Callable[[Measuring], bool] = lambda _: False,
) -> MeasuredOutputs:
    """Run all models on the same samples and compare.

    Args:
        models: Float first.
        data: A path, or a Python object that `quantkit.data.open_data` takes.
        settings: Which samples, and how they are prepared. Without `batch` each is run alone, as a batch would
            share one activation range of kernels that quantize at run time.
        options: What to measure.
        monitor: Is told how far it is.
        enough: Asked after every chunk whether what was seen suffices; the figures are then of that.

    Raises:
        ModelError: A model cannot be loaded.
        DataError: The data does not fit, cannot be read, or lacks labels.
        UsageError: A candidate has other inputs or outputs than float, or a metric makes no sense.
    """
    if options.metric is not None and options.metric not in METRICS:
        import_metric(options.metric)  # before minutes of work
    monitor.stage("Loading the models")
    opened, inputs = open_models(models)
    _check_answer(options.answer, [o.name for o in opened[0].outputs])
    monitor.stage("Looking at the data")
    search = (*settings.text.search, models[0].path.parent)
    settings = replace(settings, text=replace(settings.text, search=search))
    rows = single_rows(inputs, opened[0].outputs)
    trial = row_trial(lambda: opened[0].session)
    source, told = _opened(data, rows, settings, options, models, trial)
    source = replace(source, only=options.only)
    known = {m.name: calibrated_places(m.path, source) for m in models[1:]}
    if options.hold_out:
        source = _held_out(source, frozenset().union(*known.values()), options)
    monitor.data_found(source.description)
    monitor.stage("Running the models")
    monitor.start(source.count)
    runner = SampleRunner(opened, inputs, source)
    measuring = _measured(runner, source, options, monitor, enough)
    monitor.stage("Comparing")
    figures = () if measuring.scorer is None else measuring.scorer.figures()
    together = 1 if measuring.scorer is None else measuring.scorer.together
    # Equal inputs of a handful of columns are not copies, but as frequent as they are.
    samples = measuring.distinct(together) if runner.large else None
    units = measuring.distinct(1) if runner.large else None
    metrics = {
        model.name: _metrics(measuring, figures, number, options, samples)
        for number, model in enumerate(opened)
    }
    return MeasuredOutputs(
        metrics=metrics,
        drift={
            model.name: _drift(measuring, figures, number, metrics[model.name], options, units)
            for number, model in enumerate(opened)
            if number
        },
        data=_data_source(source, runner),
        feeds=tuple(runner.feeds),
        whole=runner.whole,
        notes=tuple(
            dict.fromkeys((*told, *notes_of(source, runner, measuring, metrics[opened[0].name])))
        ),
        calibrated={
            model.name: _seen(model, known[model.name], source, runner) for model in models[1:]
        },
    )


def _seen(
    model: NamedModel, used: frozenset[int], source: SampleSource, runner: SampleRunner
) -> int:
    """Return how many samples a candidate was calibrated with: by their places, or by what is in them.

    The same samples in another folder have other places.
    """
    share = known_share(runner.digests, recorded_digests(model.path))
    return max(len(used.intersection(source.places())), round(share * runner.samples))


def _held_out(source: SampleSource, used: frozenset[int], options: AccuracyOptions) -> SampleSource:
    """Return the source without the samples that were calibrated with."""
    held = replace(source, without=used)
    if held.count != 0:
        return held
    if options.hold_out == "if possible":
        return source
    raise DataError(
        f"All {source.available} samples of '{source.location}' were calibrated with, and --hold-out leaves none: evaluate "
        "on other data, or calibrate on some of these (--limit)."
    )


def _check_answer(answer: str | None, outputs: Sequence[str]) -> None:
    if answer is not None and answer not in outputs:
        raise UsageError(
            f"The model has no output '{answer}'{closest(answer, outputs)}: it has {', '.join(outputs)}."
        )


def _opened(
    data: object,
    inputs: Sequence[InputSpec],
    settings: DataSettings,
    options: AccuracyOptions,
    models: Sequence[NamedModel],
    trial: Trial,
) -> tuple[SampleSource, tuple[str, ...]]:
    """Open the data; images, where the user does not say how, prepared as the models say, which is noted."""
    opening = partial(
        open_source, data, inputs, trial=trial, pairs=options.pairs, skip_bad=options.skip_bad
    )
    # Of files alone: what a Python object gives cannot be asked for twice.
    unsaid = settings.image == ImageSettings() and isinstance(data, str | Path)
    told = _told_images(models) if unsaid else {}
    if len(set(told.values())) == 1:
        name, image = next(iter(told.items()))
        source = opening(replace(settings, image=image))
        if "pixels" in source.description.settings:
            said = f"Preprocessing taken from '{name}'. Override with --preset, --mean, ..."
            return source, (said,)
    return opening(settings), ()


def _told_images(models: Sequence[NamedModel]) -> dict[str, ImageSettings]:
    """Return how images are prepared, by the name of the model that says so."""
    found = {}
    for model in models:
        with suppress(ModelError):  # an entry that is damaged says nothing
            entries = {e.key: e.value for e in model.proto.metadata_props}
            carried = carried_by(entries)
            if carried is not None and carried.data.image != ImageSettings():
                found[model.name] = carried.data.image
    return found


def _measured(
    runner: SampleRunner,
    source: SampleSource,
    options: AccuracyOptions,
    monitor: Monitor,
    enough: Callable[[Measuring], bool],
) -> Measuring:
    measuring: Measuring | None = None
    done, parts = 0, len(source.parts)
    for chunk in runner.chunks():
        if measuring is None:
            measuring = Measuring(
                chunk,
                runner.outputs,
                MetricRequest(
                    metric=options.metric, pairs=options.pairs, text=source.settings.text
                ),
                source.description,
                answer=options.answer,
            )
        measuring.observe(chunk)
        monitor.tick(runner.samples // parts - done)
        done = runner.samples // parts
        if enough(measuring):
            break
    if measuring is None:
        raise DataError("None of the samples can be read: there is nothing to evaluate.")
    return measuring


def _metrics(
    measuring: Measuring,
    figures: Sequence[Figure],
    model: int,
    options: AccuracyOptions,
    distinct: Indices | None,
) -> tuple[Metric, ...]:
    if measuring.scorer is None:
        return ()
    return metrics_of(
        figures,
        model,
        main=measuring.scorer.main,
        confidence=options.confidence,
        seed=options.seed,
        distinct=distinct,
    )


def _drift(
    measuring: Measuring,
    figures: Sequence[Figure],
    model: int,
    metrics: Sequence[Metric],
    options: AccuracyOptions,
    distinct: Indices | None,
) -> Drift:
    tally = measuring.candidates[model - 1]
    outputs = output_drifts(
        tuple(tally.tallies.values()),
        confidence=options.confidence,
        seed=options.seed,
        distinct=distinct,
    )
    decision = measuring.decision(model, options.confidence, options.seed, distinct)
    main = next((m for m in metrics if m.main), None)
    if main is None:
        sentence = unlabelled_sentence(
            decision, outputs, measuring.units, apart=max(tally.other_shapes().values(), default=0)
        )
    else:
        sentence = sentence_of(main, figures[0].samples)
    return Drift(
        outputs=outputs,
        decision=decision,
        slices=slices_of(
            measuring, figures, model, confidence=options.confidence, seed=options.seed
        ),
        worst=tally.worst(measuring, model),
        sentence=sentence,
    )


def _data_source(source: SampleSource, runner: SampleRunner) -> DataSource:
    found = source.description
    in_python = found.kind.startswith("Python")  # the name of a type alone would look like a file's
    return DataSource(
        kind=found.kind,
        location=f"Python {found.location}" if in_python else found.location,
        samples=runner.samples // len(source.parts),
        available=source.available,
        labels=found.labels,
        fingerprint=source.fingerprint(),
        preprocessing=found.preprocessing,
        settings=dict(found.settings),
        values=typical_values(runner.values),
        distinct=runner.distinct(len(source.parts)),
        batch=runner.batch,
        order=source.order,
    )


_ENOUGH = 50  # samples to suspect labels with


def notes_of(
    source: SampleSource, runner: SampleRunner, measuring: Measuring, metrics: Sequence[Metric]
) -> Iterator[str]:
    """Yield the notes; `metrics` are float's.

    Args:
        source: The data.
        runner: What ran, and on how many samples.
        measuring: What was counted.
        metrics: Float's.
    """
    yield from source.description.warnings
    if source.bad:
        yield f"{len(source.bad)} samples could not be read and were left out: {source.bad[0]}"
    if runner.left_over:
        yield (
            f"The last {runner.left_over} samples do not fill the model's batch of {runner.batch}: "
            "left out."
        )
    samples = runner.samples // len(source.parts)
    distinct = runner.distinct(len(source.parts))
    if distinct is not None and distinct < samples:
        yield (
            f"{samples - distinct} of {counted(samples, 'sample')} are copies of others: intervals count each "
            "sample once."
        )
    if measuring.note:
        yield measuring.note
    if measuring.scorer is not None:
        yield from measuring.scorer.notes()
    if measuring.rivals:
        yield (
            f"Decisions are those of output '{measuring.decisions and measuring.decisions.decider.output}', not of "
            f"{', '.join(measuring.rivals)}: --answer NAME takes another."
        )
    yield from _strange(measuring, runner.models)
    yield from _chance(measuring, metrics)


def _strange(measuring: Measuring, models: Sequence[OpenModel]) -> Iterator[str]:
    """Yield what could not be compared, and why."""
    if measuring.strange:
        yield (
            f"The float model itself gives NaN or infinite values on {measuring.strange} of "
            f"{measuring.units} samples (the first is '{measuring.first_strange}'): these values are not compared."
        )
    for output in models[0].outputs:
        if not output.is_tensor:
            yield f"Output '{output.name}' is no tensor ({output.type}): not compared."
    for model, tally in zip(models[1:], measuring.candidates, strict=True):
        for name, units in tally.other_shapes().items():
            yield (
                f"Output '{name}' of '{model.name}' has another shape than float's on {units} of "
                f"{measuring.units} samples: not compared there."
            )
        for agreement in tally.agreements.values():
            if agreement.values:
                equal = 1 - agreement.different / agreement.values
                yield f"Output '{agreement.output}' of '{model.name}': {equal:.2%} of its values are float's."


def _chance(measuring: Measuring, metrics: Sequence[Metric]) -> Iterator[str]:
    """Warn if float's own hits are no more than guesses: labels then hardly number the model's classes."""
    classes, kinds = measuring.labels(), measuring.kinds
    top = next((m for m in metrics if m.name == "top-1"), None)
    if classes is None or kinds is None or top is None or top.interval is None:
        return
    if measuring.names and len(measuring.names) != kinds:
        yield (
            f"The data has {len(measuring.names)} class folders and the model {kinds} classes: the folders, in the "
            "order of their names, are taken for the first classes. If they are others, name each by its number."
        )
    if classes.size >= _ENOUGH and top.interval.low < 1 / kinds:
        yield (
            f"The float model's own top-1 is {top.value:.1%}, no better than guessing among {kinds} classes: "
            "check that labels match the model's class indices and that preprocessing is right."
        )


def sentence_of(metric: Metric, samples: int) -> str:
    """Return what was found of the main metric, and what the sample is too small to exclude."""
    name, drop, bounds = metric.name, metric.drop or 0.0, metric.drop_interval
    worse, better, loss = "fell", "rose", "drop"
    if not metric.higher_is_better:
        worse, better, loss = "rose", "fell", "rise"
    change = f"{name} {worse if drop > 0 else better} {_amount(abs(drop), metric)}"
    if bounds is None:
        return f"{change}; {counted(samples, 'sample')}: too few for an interval."
    sure = f"{100 * bounds.confidence:g} % confidence"
    if bounds.low > 0 or bounds.high < 0:
        ends = sorted(map(abs, (bounds.low, bounds.high)))
        span = f"{_number(ends[0], metric)} to {_number(ends[1], metric)}"
        return f"{change} ({span} with {sure}, {counted(samples, 'sample')})."
    found = change if drop else f"{name} did not change"
    return (
        f"{found}; with {counted(samples, 'sample')}, a {loss} of up to {_amount(bounds.high, metric)} is still "
        f"possible ({sure})."
    )


def unlabelled_sentence(
    decision: Decision | None, outputs: tuple[OutputDrift, ...], samples: int, *, apart: int = 0
) -> str:
    """Return what is known without labels; on `apart` samples an output's shape is not float's.

    Args:
        decision: How decisions differ; None where no output decides.
        outputs: How far outputs are from float's.
        samples: How many were compared.
        apart: On how many an output's shape is not float's.
    """
    changed = [o for o in outputs if o.sqnr_db is not None or o.not_finite]
    if apart:
        return (
            f"Without labels: on {apart} of {counted(samples, 'sample')} an output has another shape than float's; "
            "whether the answers are as good is not known."
        )
    if not changed and (decision is None or not decision.flips):
        return f"Without labels: on {counted(samples, 'sample')} every answer is exactly float's."
    if decision is not None:
        low, high = _hundredths(decision.interval.low), _hundredths(decision.interval.high)
        return (
            f"Without a metric: {_hundredths(decision.flip_rate)} % of the answers differ from float's "
            f"({low} to {high} % with {decision.interval.confidence:.0%} confidence, "
            f"{counted(samples, 'sample')}); whether they are wrong is not known."
        )
    worst = min(changed, key=lambda o: o.sqnr_db if o.sqnr_db is not None else 0.0)
    noise = "" if worst.sqnr_db is None else f"'{worst.output}' has {worst.sqnr_db:.1f} dB SQNR"
    return (
        f"Without a metric: {noise or 'values are not finite'} on {counted(samples, 'sample')}; what that means for "
        "the task is not known."
    )


def _amount(value: float, metric: Metric) -> str:
    return f"{_number(value, metric)} points" if metric.is_fraction else _number(value, metric)


def _number(value: float, metric: Metric) -> str:
    return _hundredths(value) if metric.is_fraction else f"{value:.3g}"


def _hundredths(share: float) -> str:
    """Return a share in hundredths, to one decimal; to two digits where that would say 0.0."""
    found = 100 * share
    return f"{found:.1f}" if abs(found) >= 0.1 or found == 0 else f"{found:.2g}"
