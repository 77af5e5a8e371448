"""The figure that each rule judges, in a result or in the counts of live requests; what to do if there is none."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import exp, inf, isfinite, isnan, log, sqrt
from statistics import NormalDist
from typing import Literal

from quantkit.errors import UsageError
from quantkit.numerics.rates import fewest_for_quantile, wilson
from quantkit.result import Evaluated, Interval, Latency, Result, Rule, SampleSqnr
from quantkit.result.live import Live
from quantkit.settings import closest
from quantkit.text import counted

Unit = Literal["points", "percent", "times", "dB", "plain"]
"""points: a difference of fractions; percent: a fraction; times: a ratio; plain: in the metric's own units."""


_UNITS: Mapping[str, Unit] = {
    "max_latency_ratio": "times",
    "min_sqnr_db": "dB",
    "min_sqnr_p1_db": "dB",
}
_P1 = 0.01
_DECIBEL = 10 / log(10)


@dataclass(frozen=True, slots=True)
class RuleFigure:
    """What a rule is about.

    Attributes:
        what: Its name for people: "drop of top-1".
        estimate: As measured.
        unit: How it is written.
        interval: Of it; None: not known.
        exact: It is counted, not sampled: it has no interval and needs none.
        count: How many samples or runs it comes from.
        counted: What these are.
        fewest: How many it takes for an interval; 0: not known.
    """

    what: str
    estimate: float
    unit: Unit
    interval: Interval | None = None
    exact: bool = False
    count: int = 0
    counted: Literal["samples", "runs"] = "samples"
    fewest: int = 0


@dataclass(frozen=True, slots=True)
class Missing:
    """There is no such figure, or no use in judging it: what to do."""

    advice: str


def figure_of(rule: Rule, model: Evaluated, result: Result) -> RuleFigure | Missing:
    """Return the figure of a candidate that a rule judges.

    Args:
        rule: What is judged.
        model: The candidate.
        result: Holds the float model that it is compared with.

    Raises:
        UsageError: There is no such rule, or it makes no sense for the metric.
    """
    if rule.key not in _READERS:
        raise UsageError(
            f"Rule '{rule.key}' is unknown{closest(rule.key, _READERS)}: "
            f"known are {', '.join(_READERS)}."
        )
    return _READERS[rule.key](rule, model, result)


def unit_of(rule: Rule, model: Evaluated) -> Unit:
    """Return how the rule's limit and its figure are written."""
    if rule.key in _UNITS:
        return _UNITS[rule.key]
    if rule.key == "max_drop" and (model.metric is None or model.metric.is_fraction):
        return "points"
    if rule.key == "max_drop" and not rule.relative:
        return "plain"
    return "percent"


def bad_end(figure: RuleFigure, rule: Rule) -> float | None:
    """Return what is judged: the estimate, or at the rule's confidence the worse end of its interval.

    An interval that was made at another confidence is stretched about the estimate by the ratio of the normal
    quantiles, for a result does not hold the samples to make it anew: exact where the estimate is normally
    distributed, close where it nearly is. None: the interval is needed and not known.
    """
    if rule.confidence is None or figure.exact:
        return figure.estimate
    if figure.interval is None:
        return None
    end = figure.interval.high if rule.is_ceiling else figure.interval.low
    stretch = _z(rule.confidence) / _z(figure.interval.confidence)
    return figure.estimate + (end - figure.estimate) * stretch


def _z(confidence: float) -> float:
    return NormalDist().inv_cdf((1 + confidence) / 2)


def _drop(rule: Rule, model: Evaluated, result: Result) -> RuleFigure | Missing:
    metric = model.metric
    if metric is None or metric.drop is None:
        return Missing(
            "no metric was measured: evaluate on labelled data (class folders, labels.csv, a "
            "column, 'label' in an .npz), or use max_flips, which needs no labels"
        )
    if metric.is_fraction and rule.limit >= 1:
        raise UsageError(
            f"max_drop = {rule.limit:g} allows everything: a drop of {metric.name} cannot be larger than 1. "
            "0.01 is one point."
        )
    scale, of = 1.0, ""
    if rule.relative and not metric.is_fraction:
        reference = result.float_model.metric
        scale, of = abs(reference.value) if reference is not None else 0.0, " in parts of float's"
        if not scale:
            return Missing(
                f"float's {metric.name} is 0, and nothing is a percentage of it: give max_drop in units of {metric.name}"
            )
    interval = metric.drop_interval
    if interval is not None:
        interval = replace(interval, low=interval.low / scale, high=interval.high / scale)
    what, drop, unit = f"drop of {metric.name}{of}", metric.drop / scale, unit_of(rule, model)
    return RuleFigure(what, drop, unit, interval, count=result.data.samples)


def _size_reduction(_: Rule, model: Evaluated, __: Result) -> RuleFigure:
    reduction = 1 - model.size.ratio
    return RuleFigure("size reduction", reduction, "percent", exact=True)


def _latency_ratio(rule: Rule, model: Evaluated, _: Result) -> RuleFigure | Missing:
    """Return the ratio that is worst for the rule, of all batch sizes and numbers of threads."""
    figures = [_latency_figure(latency) for latency in model.latency]
    if not figures:
        return Missing("latency was not measured: evaluate without --skip latency")
    ends = [bad_end(figure, rule) for figure in figures]
    # One that cannot be judged, for want of an interval or of a number, is the worst.
    worst = max(
        range(len(ends)), key=lambda i: inf if (end := ends[i]) is None or isnan(end) else end
    )
    return figures[worst]


def _latency_figure(latency: Latency) -> RuleFigure:
    threads = f", {latency.threads} threads" if latency.threads else ""
    what, interval = f"latency ratio at batch {latency.batch}{threads}", latency.ratio_interval
    return RuleFigure(what, latency.ratio, "times", interval, count=latency.runs, counted="runs")


def _int8_share(_: Rule, model: Evaluated, __: Result) -> RuleFigure | Missing:
    runtime = model.runtime
    if runtime is None:
        return Missing(
            "what onnxruntime runs in integers was not looked at: evaluate without --skip runtime"
        )
    what = f"share of layers in integers ({runtime.integer} of {runtime.products})"
    return RuleFigure(what, runtime.share, "percent", exact=True)


def _flips(_: Rule, model: Evaluated, __: Result) -> RuleFigure | Missing:
    decision = model.decision
    if decision is None:
        return Missing(
            "no output of the model decides (a score for each class, or an integer): "
            "remove max_flips, and use max_drop with a metric that fits the model"
        )
    what, interval = "share of decisions that flip", decision.interval
    return RuleFigure(what, decision.flip_rate, "percent", interval, count=decision.samples)


def _sqnr(rule: Rule, model: Evaluated, result: Result) -> RuleFigure | Missing:
    """Return the signal to noise of the output that is furthest from float."""
    worst = model.worst_output
    if worst is None:
        return Missing(f"no output could be compared with float's: remove {rule.key}")
    if not isfinite(worst.db):
        lost = f"{worst.not_finite} values of '{worst.output}' are not finite"
        what = f"SQNR ({lost if worst.not_finite else 'the outputs are those of float'})"
        return RuleFigure(what, worst.db, "dB", exact=True)
    what, interval = f"SQNR of '{worst.output}'", worst.sqnr_interval
    return RuleFigure(what, worst.db, "dB", interval, count=result.data.samples)


def _sqnr_p1(rule: Rule, model: Evaluated, result: Result) -> RuleFigure | Missing:
    """Return the 1st percentile of the samples' signal to noise, of the output where it is lowest."""
    worst = model.worst_output
    if worst is None or not isfinite(worst.db):
        return _sqnr(rule, model, result)
    if model.worst_percentile is None:
        return Missing("this result has no SQNR of each sample: evaluate again")
    output, found = model.worst_percentile
    if found.other_shape:
        return Missing(
            f"on {found.other_shape} samples '{output.output}' has another shape than float's, and they could not be compared: "
            f"remove {rule.key}, and use a metric that fits the model"
        )
    of = counted(found.samples, "sample")
    what = f"SQNR of '{output.output}' at the {found.p1_name} of {of}"
    if rule.confidence is None:
        return RuleFigure(what, found.p1, "dB", count=found.samples)
    data, count, fewest = result.data, found.samples, fewest_for_quantile(_P1, rule.confidence)
    copies = data.distinct is not None and data.distinct < data.samples
    if copies:  # they are not evidence
        count = count * (data.distinct or 0) // data.samples
    interval = None
    if count >= fewest:
        # All outputs must keep the limit.
        quantiles = [o.per_sample for o in model.outputs if o.per_sample is not None]
        low = min(_lower_bound(q, rule.confidence, copies=copies) for q in quantiles)
        interval = Interval(low=low, high=found.p1, confidence=rule.confidence)
    return RuleFigure(what, found.p1, "dB", interval, count=count, fewest=fewest)


def _lower_bound(found: SampleSqnr, confidence: float, *, copies: bool) -> float:
    """Return the stored bound of the 1st percentile; where it does not hold, the worst sample, which is one that does.

    Args:
        found: Of one output.
        confidence: That is asked for; the stored bound may have less.
        copies: The stored bound counts samples that are copies of others.
    """
    if copies or found.p1_low is None or confidence > found.confidence:
        return found.worst
    return found.p1_low


_READERS: Mapping[str, Callable[[Rule, Evaluated, Result], RuleFigure | Missing]] = {
    "max_drop": _drop,
    "min_size_reduction": _size_reduction,
    "max_latency_ratio": _latency_ratio,
    "min_int8_share": _int8_share,
    "max_flips": _flips,
    "min_sqnr_db": _sqnr,
    "min_sqnr_p1_db": _sqnr_p1,
}

KEYS = tuple(_READERS)
"""All rules there are, in the order in which they are shown."""


def live_figure_of(rule: Rule, live: Live) -> RuleFigure | Missing:
    """Return the figure of live requests that a rule judges."""
    confidence = rule.confidence or 0.95
    if rule.key == "max_flips":
        return _live_flips(live, confidence)
    return (
        _live_sqnr(live, confidence)
        if rule.key == "min_sqnr_db"
        else _live_latency(live, confidence)
    )


def _live_flips(live: Live, confidence: float) -> RuleFigure | Missing:
    if not live.decisions:
        return Missing("no decision was compared yet: no output decides, or no request came")
    low, high = wilson(live.flips, live.decisions, confidence)
    interval = Interval(low=low, high=high, confidence=confidence)
    rate = live.flips / live.decisions
    return RuleFigure(
        "share of decisions that flip", rate, "percent", interval, count=live.decisions
    )


def _live_sqnr(live: Live, confidence: float) -> RuleFigure | Missing:
    worst = live.worst
    if worst is None or not worst.energies.n:
        return Missing("no output was compared yet")
    if not isfinite(worst.db):
        lost = f"{worst.not_finite} values of '{worst.output}' are not finite"
        what = f"SQNR ({lost if worst.not_finite else 'the outputs are those of the reference'})"
        return RuleFigure(what, worst.db, "dB", exact=True)
    pairs = worst.energies
    # The variance of log(S / E) by its derivative: that of s_i / S - e_i / E.
    half = _z(confidence) * sqrt(pairs.variance(1 / pairs.a, -1 / pairs.b) * pairs.n) * _DECIBEL
    interval = Interval(low=worst.db - half, high=worst.db + half, confidence=confidence)
    known = interval if pairs.n > 1 else None
    return RuleFigure(f"SQNR of '{worst.output}'", worst.db, "dB", known, count=pairs.n)


def _live_latency(live: Live, confidence: float) -> RuleFigure | Missing:
    pairs = live.ratios
    if not pairs.n:
        return Missing("no run was timed yet")
    middle = pairs.mean(1, 0)
    half = _z(confidence) * sqrt(pairs.variance(1, 0) / pairs.n)
    interval = Interval(low=exp(middle - half), high=exp(middle + half), confidence=confidence)
    known = interval if pairs.n > 1 else None
    what = "latency ratio per row"
    return RuleFigure(what, exp(middle), "times", known, count=pairs.n, counted="runs")
