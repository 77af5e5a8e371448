"""What a reader should know about the samples, the labels, and what could not be compared."""

from collections.abc import Iterator, Sequence

from quantkit.evaluate.accuracy.chunks import SampleRunner
from quantkit.evaluate.accuracy.measuring import Measuring
from quantkit.evaluate.accuracy.models import OpenModel
from quantkit.evaluate.accuracy.samples import SampleSource
from quantkit.result import Metric
from quantkit.text import counted

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
