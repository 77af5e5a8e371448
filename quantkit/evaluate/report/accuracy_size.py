"""The picture: what accuracy costs in bytes and in time, with float as reference."""

from math import inf

from quantkit.evaluate.report import numbers
from quantkit.evaluate.report.palette import look
from quantkit.evaluate.report.scatter import Axis, Chart, Mark, labels_for
from quantkit.evaluate.report.svg import line
from quantkit.result import Evaluated, Metric, Result

WHISKER = "".join(
    line(*ends, "whisker float") for ends in ((10, -8, 10, 8), (6, -8, 14, -8), (6, 8, 14, 8))
)
"""Sign of an interval in a legend."""


def accuracy_chart(result: Result) -> Chart:
    """Lay out the picture: the main metric if there is one, else the worst output's SQNR."""
    metric = result.float_model.metric
    failed = {v.candidate for v in result.verdicts if v.outcome == "fail"}
    across = _axes(result)
    places = {p: m for p, m in enumerate(result.models) if p and _is_measured(m, metric)}
    labels = labels_for([m.name for m in places.values()])
    marks = tuple(
        _mark(model, place, metric, label, panels=len(across), failed=model.name in failed)
        for (place, model), label in zip(places.items(), labels, strict=True)
    )
    missing = [m.name for p, m in enumerate(result.models) if p and p not in places]
    costs = " and ".join(axis.label.partition(",")[0] for axis in across)
    label = _label(metric)
    return Chart(
        title=result.title,
        label=label,
        described=f"{label} against {costs}, {len(marks)} candidates",
        reference=_mark(result.float_model, 0, metric, "", panels=len(across)),
        marks=marks,
        across=across,
        upwards=metric is None or metric.higher_is_better,
        limit=_limit(metric, result.limit("max_drop")),
        limits=_limit_words(result),
        bounds=(0.0, 100.0) if metric is not None and metric.is_fraction else (-inf, inf),
        keys=((WHISKER, f"whisker: {_whiskers(result, metric)}"),)
        if any(m.interval for m in marks)
        else (),
        note=f"not in the picture, for want of a figure: {', '.join(missing)}" if missing else "",
    )


def _axes(result: Result) -> tuple[Axis, ...]:
    """Return size, and time if it was measured."""
    saved = result.limit("min_size_reduction")
    size = Axis("size, % of float", None if saved is None else 100 * (1 - saved), 6.0)
    if not any(m.typical_latency for m in result.candidates):
        return (size,)
    return size, Axis("time, multiple of float's", result.limit("max_latency_ratio"), 0.06)


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


def _limit_words(result: Result) -> str:
    """Name the rules that the picture has lines for."""
    metric, words = result.float_model.metric, []
    if metric is not None and (drop := result.limit("max_drop")) is not None:
        words.append(f"drop {numbers.difference(drop, metric)}")
    if (saved := result.limit("min_size_reduction")) is not None:
        words.append(f"size {numbers.percent(1 - saved)}")
    if (ratio := result.limit("max_latency_ratio")) is not None:
        words.append(f"time {numbers.ratio(ratio)}")
    return f"gate: {', '.join(words)}" if words else ""


def _mark(
    model: Evaluated,
    place: int,
    metric: Metric | None,
    label: str,
    *,
    panels: int,
    failed: bool = False,
) -> Mark:
    y, interval = _height(model, metric)
    time = model.typical_latency.ratio if model.typical_latency else None
    if metric is not None:
        merit = numbers.metric_value(model.metric)
    else:
        merit = numbers.sqnr(model.worst_output) if place else "float"
    words = [merit, f"{numbers.percent(model.size.ratio)} size"]
    words += [f"{numbers.ratio(time)} time"] if time is not None else []
    words += ["fails the gate"] if failed else []
    return Mark(
        name=model.name,
        look=look(place),
        x=(100 * model.size.ratio, time)[:panels],
        y=y,
        interval=interval,
        words=" · ".join(words),
        tip=_tip(model, metric, merit),
        label=label,
        failed=failed,
    )


_Height = tuple[float | None, tuple[float, float] | None]


def _height(model: Evaluated, metric: Metric | None) -> _Height:
    """Return the quality of a model, and its interval; of a candidate that of the difference from float."""
    own, output = model.metric, model.worst_output
    if metric is not None and own is not None:
        return own.value * numbers.metric_scale(own), _metric_interval(own, metric)
    if metric is not None or output is None or output.sqnr_db is None:
        return None, None
    ends = output.sqnr_interval
    return output.sqnr_db, (ends.low, ends.high) if ends else None


def _metric_interval(own: Metric, metric: Metric) -> tuple[float, float]:
    scale = numbers.metric_scale(own)
    if own.drop is not None and own.drop_interval is not None:
        sign = -1 if own.higher_is_better else 1
        ends = [metric.value + sign * d for d in (own.drop_interval.low, own.drop_interval.high)]
        return min(ends) * scale, max(ends) * scale
    if own.interval is None:
        return own.value * scale, own.value * scale
    return own.interval.low * scale, own.interval.high * scale


def _tip(model: Evaluated, metric: Metric | None, merit: str) -> str:
    own, timed = model.metric, model.typical_latency
    sampled = own is not None and own.drop is None and own.interval is not None
    spread = f" ({numbers.value_interval(own)})" if own is not None and sampled else ""
    lines = [model.name, f"{metric.name if metric else 'SQNR'}: {merit}{spread}"]
    if own is not None and own.drop is not None:
        lines.append(f"drop: {numbers.drop(own)} {numbers.drop_unit(own)}")
    size = f"{numbers.size(model.size.disk)}, {numbers.percent(model.size.ratio)} of float"
    lines.append(f"size: {size}")
    if timed is not None:
        lines.append(f"time: {numbers.significant(timed.median_ms)} ms, {numbers.time(timed)}")
    return "\n".join(lines)
