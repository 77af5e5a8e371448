"""Accuracy: float and all candidates on the same samples, in one pass, with what can be said of the difference."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

from quantkit.calibration.calibration import known_share, typical_values
from quantkit.calibration.monitor import Monitor
from quantkit.data import InputSpec, Trial
from quantkit.errors import DataError, ModelError, UsageError
from quantkit.evaluate.accuracy.choice import MetricRequest
from quantkit.evaluate.accuracy.chunks import SampleRunner
from quantkit.evaluate.accuracy.drift import output_drifts
from quantkit.evaluate.accuracy.figures import Figure, Indices, metrics_of
from quantkit.evaluate.accuracy.measuring import Measuring
from quantkit.evaluate.accuracy.models import open_models, single_rows
from quantkit.evaluate.accuracy.notes import notes_of
from quantkit.evaluate.accuracy.samples import (
    SampleSource,
    calibrated_places,
    open_source,
    recorded_digests,
)
from quantkit.evaluate.accuracy.slices import slices_of
from quantkit.evaluate.accuracy.user_metric import import_metric
from quantkit.evaluate.accuracy.wording import sentence_of, unlabelled_sentence
from quantkit.evaluate.match.pair import NamedModel
from quantkit.result import DataSource, Drift, Metric
from quantkit.runtime.runs import row_trial
from quantkit.settings import METRICS, DataSettings, EvaluateSettings, ImageSettings, closest
from quantkit.settings.record import carried_by

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
