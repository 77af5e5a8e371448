"""What the accuracy-vs-size picture shows, before it is drawn."""

from dataclasses import dataclass
from math import inf

from quantkit.evaluate.report import numbers
from quantkit.evaluate.report.palette import Look, look
from quantkit.result import Evaluated, Metric, Result

__all__ = ["Point", "Points", "points"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One model.

    Attributes:
        name: Of the model.
        look: How it is drawn.
        x: Size, as a part of float's.
        y: The figure of merit as shown; None: identical to float.
        low: The lower end of its interval, or y.
        high: The upper end.
        time: Of a run, as a part of float's; None: not measured.
        failed: Whether the gate refuses it.
        words: The figures in one line.
        tip: All of them.
    """

    name: str
    look: Look
    x: float
    y: float | None
    low: float | None
    high: float | None
    time: float | None
    failed: bool
    words: str
    tip: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """All of them, float apart.

    Attributes:
        label: What y is.
        upwards: Whether more is better.
        reference: Float; its y is None where y is a distance from it.
        candidates: In the order of the result; those that have a figure.
        missing: Names of those that have none: nothing of them was measured, or it is not finite.
        bounds: What y cannot be below or above.
        limit: The worst y that the gate lets through.
        size_limit: The largest x that it lets through.
        runs: Which runs were timed; "" if none.
        whiskers: What the intervals are of.
    """

    label: str
    upwards: bool
    reference: Point
    candidates: tuple[Point, ...]
    missing: tuple[str, ...]
    bounds: tuple[float, float]
    limit: float | None
    size_limit: float | None
    runs: str
    whiskers: str


def points(result: Result) -> Points:
    """Lay out the picture: the main metric if there is one, else the worst output's SQNR."""
    metric = result.float_model.metric
    failed = {v.candidate for v in result.verdicts if v.outcome == "fail"}
    limits = {rule.key: rule.limit for rule in result.rules}
    timed = result.float_model.typical_latency
    size_limit = 1 - limits["min_size_reduction"] if "min_size_reduction" in limits else None
    found = {
        model.name: _point(model, place, metric, failed=model.name in failed)
        for place, model in enumerate(result.models)
        if place == 0 or _is_measured(model, metric)
    }
    return Points(
        label=_label(metric),
        upwards=metric is None or metric.higher_is_better,
        reference=found[result.float_model.name],
        candidates=tuple(found[m.name] for m in result.candidates if m.name in found),
        missing=tuple(m.name for m in result.candidates if m.name not in found),
        bounds=(0.0, 100.0) if metric is not None and metric.is_fraction else (-inf, inf),
        limit=_limit(metric, limits.get("max_drop")),
        size_limit=size_limit,
        runs=f"batch {timed.batch}, {numbers.threads(timed.threads)}" if timed else "",
        whiskers=_whiskers(result, metric),
    )


def _is_measured(model: Evaluated, metric: Metric | None) -> bool:
    if metric is not None:
        return model.metric is not None
    return model.worst_output is not None and model.worst_output.db > -inf


def _label(metric: Metric | None) -> str:
    if metric is None:
        return "signal to noise of the worst output, dB"
    unit = ", %" if metric.is_fraction else ""
    return f"{metric.name}{unit}" + ("" if metric.higher_is_better else " (less is better)")


def _limit(metric: Metric | None, allowed: float | None) -> float | None:
    if metric is None or allowed is None:
        return None
    worst = metric.value - allowed if metric.higher_is_better else metric.value + allowed
    return worst * numbers.metric_scale(metric)


def _whiskers(result: Result, metric: Metric | None) -> str:
    paired = [
        m.metric.drop_interval for m in result.candidates if m.metric and m.metric.drop_interval
    ]
    if metric is not None and paired:
        return f"{numbers.percent(paired[0].confidence)} interval of the difference"
    return "interval of the figure"


def _point(model: Evaluated, place: int, metric: Metric | None, *, failed: bool) -> Point:
    y, low, high = _height(model, metric)
    time = model.typical_latency.ratio if model.typical_latency else None
    if metric is not None:
        merit = numbers.metric_value(model.metric)
    else:
        merit = numbers.sqnr(model.worst_output) if place else "float"
    words = [merit, f"{numbers.percent(model.size.ratio)} size"]
    words += [f"{numbers.ratio(time)} time"] if time is not None else []
    return Point(
        name=model.name,
        look=look(place),
        x=model.size.ratio,
        y=y,
        low=low,
        high=high,
        time=time,
        failed=failed,
        words=" · ".join(words),
        tip=_tip(model, metric, merit),
    )


def _height(model: Evaluated, metric: Metric | None) -> tuple[float | None, ...]:
    if metric is None:
        output = model.worst_output
        if output is None or output.sqnr_db is None:
            return None, None, None
        found = output.sqnr_interval
        return output.sqnr_db, found.low if found else None, found.high if found else None
    own = model.metric
    if own is None:
        return None, None, None
    scale = numbers.metric_scale(own)
    low, high = (own.interval.low, own.interval.high) if own.interval else (own.value, own.value)
    if own.drop is not None and own.drop_interval is not None:
        sign = -1 if own.higher_is_better else 1
        ends = [metric.value + sign * d for d in (own.drop_interval.low, own.drop_interval.high)]
        low, high = min(ends), max(ends)
    return own.value * scale, low * scale, high * scale


def _tip(model: Evaluated, metric: Metric | None, merit: str) -> str:
    own = model.metric
    sampled = own is not None and own.drop is None and own.interval is not None
    spread = f" ({numbers.value_interval(own)})" if own is not None and sampled else ""
    lines = [model.name, f"{metric.name if metric else 'SQNR'}: {merit}{spread}"]
    if model.metric is not None and model.metric.drop is not None:
        unit = numbers.drop_unit(model.metric)
        lines.append(f"drop: {numbers.drop(model.metric)} {unit}")
    lines.append(
        f"size: {numbers.size(model.size.disk)}, {numbers.percent(model.size.ratio)} of float"
    )
    timed = model.typical_latency
    if timed is not None:
        spread = f" ({numbers.interval(timed.ratio_interval)})" if timed.ratio_interval else ""
        lines.append(
            f"time: {numbers.significant(timed.median_ms)} ms, {numbers.ratio(timed.ratio)}{spread}"
        )
    return "\n".join(lines)
