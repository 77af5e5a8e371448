"""What stands against the evidence itself: figures that would mean nothing, however good they are."""

from collections.abc import Iterator
from math import isfinite

from quantkit.result import SCHEMA, Evaluated, Metric, Objection, Result

__all__ = ["objections_of"]

_MOST = 0.5  # of the decisions, or of the samples
_NOISE_DB = 5.0  # below it an output is more noise than signal, whatever the model is for


def objections_of(model: Evaluated, result: Result, *, fails: bool) -> tuple[Objection, ...]:
    """Return the objections to a candidate's figures, the gravest first; `fails`: a rule already says no.

    Args:
        model: The candidate.
        result: The evaluation.
        fails: A rule is broken: then nothing contradicts that all are kept.
    """
    found = [
        *_outdated(result),
        *_wrong_files(model, result),
        *_preprocessing(model),
        *_guessing(result),
        *_calibrated(model, result),
        *_copies(result),
        *_incomparable(model),
    ]
    # An output of noise does not contradict a verdict that says so.
    return tuple(found if fails else [*found, *_contradictions(model)])


def _outdated(result: Result) -> Iterator[Objection]:
    if result.schema != SCHEMA:
        yield Objection(
            kind="outdated",
            title="Made by an older quantkit",
            sentence=f"this result ({result.schema}) does not hold what tells whether float is guessing and how samples "
            "were prepared: evaluate again",
        )


def _wrong_files(model: Evaluated, result: Result) -> Iterator[Objection]:
    reference = result.float_model
    if model.file.sha256 == reference.file.sha256:
        yield Objection(
            kind="identical",
            title="The float model itself",
            sentence=f"'{model.name}' is the file of the float model: evaluate the model that is to go out",
        )
        return
    quantized = reference.runtime is not None and reference.runtime.integer > 0
    if quantized or reference.file.provenance.get("kind") in {"dynamic", "static"}:
        yield Objection(
            kind="swapped",
            title="The reference is quantized",
            sentence=f"'{reference.name}', the first model, is quantized, and drops are measured from it: give the float "
            "model first",
        )


def _preprocessing(model: Evaluated) -> Iterator[Objection]:
    differs = model.calibration.differs if model.calibration else ()
    if differs:
        yield Objection(
            kind="preprocessing",
            title="Other preprocessing than in calibration",
            sentence=f"{'; '.join(differs)}: evaluate with the settings of the calibration, or calibrate again with these",
        )


def _guessing(result: Result) -> Iterator[Objection]:
    metric = result.float_model.metric
    if metric is None or not metric.is_guess:
        return
    better = metric.value > (metric.chance or 0.0)
    if not metric.higher_is_better:
        better = metric.value < (metric.chance or 0.0)
    told = "cannot be told from" if better else "is no better than"
    advice = (
        "check that labels number the model's classes, and that the preprocessing is the model's"
    )
    if metric.chance == 1.0 and metric.is_fraction:
        told, advice = "is that of", "all labels are one class; evaluate on samples of several"
    elif better:
        advice = "evaluate more samples, of all classes; if that does not help, " + advice
    yield Objection(
        kind="guessing",
        title="Float itself is guessing",
        sentence=f"float's own {metric.name}, {_shown(metric.value, metric)}{_interval(metric)}, {told} answers that do not "
        f"look at the sample ({_shown(metric.chance or 0.0, metric)}): {advice}",
    )


def _shown(value: float, metric: Metric) -> str:
    return f"{100 * value:.3g} %" if metric.is_fraction else f"{value:.3g}"


def _interval(metric: Metric) -> str:
    bounds = metric.interval
    if bounds is None:
        return ""
    return f" ({_shown(bounds.low, metric)} to {_shown(bounds.high, metric)})"


def _calibrated(model: Evaluated, result: Result) -> Iterator[Objection]:
    seen = model.calibration.seen if model.calibration else 0
    held = ", or with --hold-out" if model.calibration and model.calibration.shared else ""
    if seen and seen >= _MOST * result.data.samples:
        yield Objection(
            kind="calibrated",
            title="Evaluated on calibration samples",
            sentence=f"{seen} of the {result.data.samples} samples are those that '{model.name}' was calibrated with, and "
            f"figures on them are too good: evaluate on other data{held}",
        )


def _copies(result: Result) -> Iterator[Objection]:
    data = result.data
    if data.distinct is not None and data.distinct <= _MOST * data.samples and data.samples > 1:
        yield Objection(
            kind="copies",
            title="Samples are copies of each other",
            sentence=f"only {data.distinct} of the {data.samples} samples are different, so that intervals are narrower than what is "
            "known: evaluate each sample once",
        )


def _incomparable(model: Evaluated) -> Iterator[Objection]:
    if model.metric is not None and model.metric.of_lists:
        return
    outputs = model.drift.outputs if model.drift is not None else ()
    lost = [o.output for o in outputs if o.compared == 0 and not o.not_finite]
    if lost:
        named = ", ".join(f"'{name}'" for name in lost)
        yield Objection(
            kind="incomparable",
            title="Nothing could be compared",
            sentence=f"no value of {named} could be compared with float's, for its shape is another or float's own values "
            "are not finite: look at the notes, and evaluate on samples that the float model answers",
        )


def _contradictions(model: Evaluated) -> Iterator[Objection]:
    """Say what does not go together with rules that are kept."""
    decision = model.drift.decision if model.drift is not None else None
    found = []
    if decision is not None and decision.flip_rate > _MOST:
        found.append(
            f"{100 * decision.flip_rate:.3g} % of the decisions are not float's ({decision.flips} of {decision.samples})"
        )
    worst = model.worst_output
    lists = model.metric is not None and model.metric.of_lists
    if worst is not None and worst.not_finite:
        found.append(
            f"{worst.not_finite} values of '{worst.output}' are NaN or infinite where float's are not"
        )
    elif not lists and worst is not None and isfinite(worst.db) and worst.db < _NOISE_DB:
        found.append(f"'{worst.output}' is more noise than signal ({worst.db:.1f} dB SQNR)")
    if found:
        yield Objection(
            kind="contradiction",
            title="The figures contradict each other",
            sentence=f"no rule is broken, yet {' and '.join(found)}: do not release it before you know why; if labels, "
            "preprocessing and the judged output are right, the candidate is broken",
        )
