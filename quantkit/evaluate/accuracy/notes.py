"""What a reader should know about the samples, the labels, and what could not be compared.

What can be said with so many samples; which of them a candidate was calibrated with (figures on these are too good);
and where the drop is: the same metric on some of the samples, by class, by label, by length. Looking at many slices
finds a bad one by chance; p-values are corrected for their number (Holm).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from quantkit.data import order
from quantkit.errors import ModelError
from quantkit.evaluate.accuracy.chunks import Runner
from quantkit.evaluate.accuracy.figures import Figure, Indices, Mean, as_interval
from quantkit.evaluate.accuracy.measuring import Measuring
from quantkit.evaluate.accuracy.models import OpenModel, Source
from quantkit.model.provenance import DataOrigin, read_provenance
from quantkit.numbers import counted
from quantkit.numerics.statistics import holm, mcnemar_exact
from quantkit.result import Decision, Metric, OutputDrift, Slice

__all__ = [
    "calibrated_samples",
    "groups_by_class",
    "groups_by_range",
    "notes_of",
    "recorded_digests",
    "sentence_of",
    "slices_of",
    "unlabelled_sentence",
    "worst_slices",
]

_SHOWN = 10
_FEWEST = 5  # samples in a slice
_BINS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Some of the samples.

    Attributes:
        by: "class", "label" or "length".
        name: Which.
        chosen: Their numbers.
    """

    by: str
    name: str
    chosen: Indices


def slices_of(
    measuring: Measuring, figures: Sequence[Figure], model: int, *, confidence: float, seed: int
) -> tuple[Slice, ...]:
    """Return where the main metric drops most; of classes, where hits do; without labels, where answers change.

    Args:
        measuring: What was counted.
        figures: The metrics, the main one first.
        model: The candidate's number.
        confidence: Of the intervals.
        seed: Of the redraws.
    """
    scorer, decisions = measuring.scorer, measuring.decisions
    groups = list(_groups(measuring))
    common: dict[str, Any] = {"confidence": confidence, "seed": seed}
    if scorer is not None:
        # F1 of one class alone says little: hits are looked at instead.
        wanted = "top-1" if scorer.main == "f1" else scorer.main
        figure = next(f for f in figures if f.name == wanted)
        return worst_slices(figure, model, groups, **common)
    if decisions is None:
        return ()
    rows = [decisions.of(0) == decisions.of(m) for m in range(len(measuring.candidates) + 1)]
    agreement = Mean(name="agreement", scores=np.stack(rows).astype(np.float64))
    found = worst_slices(agreement, model, groups, **common)
    # That float agrees with itself is no hypothesis to test.
    return tuple(replace(one, p_value=None) for one in found)


def _groups(measuring: Measuring) -> Iterator[_Group]:
    scorer, decisions = measuring.scorer, measuring.decisions
    classes = None if scorer is None else scorer.classes()
    if classes is not None:
        for group in groups_by_class(classes):
            yield replace(group, name=measuring.name(int(group.name)))
    elif scorer is None and decisions is not None:
        for group in groups_by_class(decisions.of(0)):
            yield replace(group, name=f"float says {measuring.name(int(group.name))}")
    numbers = None if scorer is None else scorer.numbers()
    if numbers is not None:
        yield from groups_by_range("label", numbers)
    lengths = measuring.lengths(1 if scorer is None else scorer.together)
    yield from groups_by_range("length", lengths, "tokens" if measuring.text else "long")


def groups_by_class(classes: Indices) -> Iterator[_Group]:
    """Yield the samples of each class."""
    order = np.argsort(classes, kind="stable")
    found, starts = np.unique(classes[order], return_index=True)
    for value, chosen in zip(found.tolist(), np.split(order, starts[1:]), strict=True):
        yield _Group(by="class", name=str(value), chosen=chosen)


def groups_by_range(by: str, values: NDArray[np.float64], unit: str = "") -> Iterator[_Group]:
    """Yield up to four groups of about as many samples, by ascending value; none where all are the same.

    Equal values are never divided.

    Args:
        by: What is grouped by, in a word.
        values: One number per sample.
        unit: Of the values, for the groups' names.
    """
    edges = np.unique(np.quantile(values, np.arange(1, _BINS) / _BINS, method="higher"))
    least = values.min()
    if values.max() == least:
        return
    # Where most values are the least one, the next value is where the second group begins.
    edges = edges[edges > least] if edges[-1] > least else values[values > least].min(keepdims=True)
    place = np.searchsorted(edges, values, side="right")
    for number in np.unique(place).tolist():
        chosen = np.flatnonzero(place == number)
        low, high = float(values[chosen].min()), float(values[chosen].max())
        span = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        yield _Group(by=by, name=f"{span} {unit}".rstrip(), chosen=chosen)


def worst_slices(
    figure: Figure, model: int, groups: Sequence[_Group], *, confidence: float, seed: int
) -> tuple[Slice, ...]:
    """Return the ten slices with the largest drop, worst first; those under five samples are left out.

    Args:
        figure: What drops.
        model: The candidate's number.
        groups: Which samples make a slice; they may overlap.
        confidence: Of the intervals.
        seed: Of the redraws.
    """
    large = [group for group in groups if group.chosen.size >= _FEWEST]
    parts = [figure.only(group.chosen) for group in large]
    corrected = holm([_p_value(part, model) for part in parts]) if parts else ()
    drops = [_drop(part, model) for part in parts]
    order = sorted(range(len(large)), key=lambda i: (-drops[i], corrected[i]))[:_SHOWN]
    return tuple(
        Slice(
            by=large[i].by,
            name=large[i].name,
            samples=parts[i].samples,
            float_value=parts[i].value(0),
            value=parts[i].value(model),
            drop=drops[i],
            interval=as_interval(parts[i].drop_interval(model, confidence, seed), confidence),
            p_value=corrected[i],
        )
        for i in order
    )


def _drop(figure: Figure, model: int) -> float:
    difference = figure.value(0) - figure.value(model)
    return difference if figure.higher_is_better else -difference


def _p_value(figure: Figure, model: int) -> float:
    """Return the probability of such a mean of the samples' own drops by chance: McNemar's for hits, else Student's t."""
    drops = figure.contributions(model)
    if np.isin(drops, (-1.0, 0.0, 1.0)).all():
        return mcnemar_exact(int((drops < 0).sum()), int((drops > 0).sum()))
    spread = float(drops.std(ddof=1))
    if spread == 0:
        return 1.0 if drops[0] == 0 else 0.0
    t = abs(float(drops.mean())) / (spread / np.sqrt(drops.size))
    return float(2 * stdtr(drops.size - 1, -t))


def calibrated_samples(path: Path, fingerprint: str, available: int | None) -> frozenset[int]:
    """Return the places, in the evaluated data, of the samples that a model's own record says it was calibrated with.

    None are known where the data is another (told by its fingerprint), or the model has no record.

    Args:
        path: The candidate, whose provenance is read.
        fingerprint: Of the data that it is evaluated on.
        available: How many samples that data has; None: not known.
    """
    data = _calibration_record(path)
    if data is None or not fingerprint or available is None:
        return frozenset()
    if data.fingerprint != fingerprint or not {"limit", "shuffle", "seed"} <= set(data.order):
        return frozenset()
    how = data.order
    chosen = order(available, limit=how["limit"], shuffle=how["shuffle"], seed=how["seed"])
    return frozenset(chosen.tolist())


def recorded_digests(path: Path) -> str:
    """Return the names of the samples that a model was calibrated with, as its record holds them; "" if it has none."""
    data = _calibration_record(path)
    return "" if data is None else data.digests


def _calibration_record(path: Path) -> DataOrigin | None:
    try:
        made = read_provenance(path)
    except ModelError:  # a damaged record tells nothing
        return None
    return None if made is None else made.data


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


_ENOUGH = 50  # samples to suspect labels with


def notes_of(
    source: Source, runner: Runner, measuring: Measuring, metrics: Sequence[Metric]
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
