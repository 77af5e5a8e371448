"""Dots with whiskers around a reference: one row per model, one scale per group.

`forest`: how much worse each candidate is, metric by metric, around no difference at all. `latency`: how long a run takes
beside float's, for each batch size and number of threads. `samples`: the signal to noise that single samples have.
"""

from dataclasses import dataclass, replace
from statistics import median_low

from quantkit.evaluate.report import numbers
from quantkit.evaluate.report.palette import Look, look
from quantkit.evaluate.report.plots.scales import Scale, nice_step, whisker
from quantkit.evaluate.report.plots.svg import line, mark, picture, rect, shape, text
from quantkit.evaluate.report.plots.widths import NARROW, names_width, shorten, text_width
from quantkit.result import (
    SAME_DB,
    Changes,
    Interval,
    Latency,
    Metric,
    OutputDrift,
    Result,
    SampleSqnr,
)

_TENTH_DB = 20.0  # an error of a tenth
_PAD = 0.06
_SHOWN = 16  # operators
_FAR = 3.0  # as many times the usual distance from the reference, and a figure is cut off


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One model's figure, as shown."""

    name: str
    look: Look
    value: float
    low: float
    high: float
    words: str
    tip: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """Rows on one scale.

    Attributes:
        title: What the figures are of.
        axis: What the scale counts, and which end is bad.
        reference: Where nothing differs from float.
        rows: The models.
        limit: The gate's bound.
        floor: The scale starts here; None: where the figures do.
        low_is_bad: What lies left of the limit breaks it.
    """

    title: str
    axis: str
    reference: float
    rows: tuple[Row, ...]
    limit: float | None = None
    floor: float | None = None
    low_is_bad: bool = False


def interval_plot(groups: tuple[RowGroup, ...], *, width: int, label: str) -> str:
    """Draw the groups below each other.

    Args:
        groups: Each with a scale of its own.
        width: Of the picture, in pixels.
        label: For those who do not see it.
    """
    y, parts = 4.0, []
    for group in groups:
        drawn, y = _group(group, float(width), y)
        parts.append(drawn)
    return picture(width, y, label, "".join(parts))


def _range(group: RowGroup) -> tuple[float, float]:
    """Return the ends of the scale: all values and intervals, without rows far beyond most others and the fixed ends."""
    fixed = [v for v in (group.reference, group.limit, group.floor) if v is not None]
    figures = [v for r in group.rows for v in (r.low, r.value, r.high)]
    # By row: the near end of a lone lopsided interval must not push its own dot off the axis.
    middle = median_low(
        [max(abs(v - group.reference) for v in (r.low, r.value, r.high)) for r in group.rows]
    )
    usual = max(middle, *(abs(v - group.reference) for v in fixed))
    near = [v for v in figures if not usual or abs(v - group.reference) <= _FAR * usual]
    ends = [*fixed, *near]
    low, high = min(ends), max(ends)
    pad = (high - low) * _PAD or 1.0
    step = nice_step(high - low or 1.0, 20)
    return low - (0 if low == group.floor else max(pad, step / 2)), high + max(pad, step / 2)


def _group(group: RowGroup, width: float, y: float) -> tuple[str, float]:
    small = width < NARROW
    room = names_width((row.name for row in group.rows), width, 0.22) + 12
    left, right = (8.0, width - 12) if small else (room, width - 200)
    row_height = 46.0 if small else 30.0
    scale = Scale(*_range(group), left, right)
    top = y + 30
    bottom = top + row_height * len(group.rows)
    parts = [text(0, y + 14, group.title, "label strong")]
    for value, words in scale.ticks(4 if small else 6):
        x = scale(value)
        parts += [line(x, top, x, bottom, "grid"), text(x, bottom + 16, words, "tick", "middle")]
    if group.limit is not None:
        x = scale(group.limit)
        start, end = (left, x) if group.low_is_bad else (x, right)
        parts += [rect(start, top, end - start, bottom - top, "beyond")]
        parts += [line(x, top, x, bottom, "limit")]
        parts += [text(x, top - 4, "gate", "tick limit-text", "middle")]
    parts += [line(scale(group.reference), top - 4, scale(group.reference), bottom, "zero")]
    for place, row in enumerate(group.rows):
        at = top + row_height * (place + (0.72 if small else 0.5))
        if small:  # no line goes through the words above the mark
            parts.append(rect(0, at - 27, width, 18, "ground"))
        parts.append(_row(row, scale, at, width, small=small))
    parts.append(text((left + right) / 2, bottom + 33, group.axis, "tick", "middle"))
    return "".join(parts), bottom + 52


def _row(row: Row, scale: Scale, y: float, width: float, *, small: bool) -> str:
    css = row.look.css
    x = scale.clamped(row.value)
    parts = [rect(0, y - (30 if small else 14), width, 42 if small else 28, "hit")]
    parts += [whisker(scale, (row.low, row.high), y, css)]
    parts += [shape(row.look.shape, x, y, 5.5, f"sign {css}")]
    if not scale.holds(row.value):
        shift, sign, anchor = (9, "→", "start") if row.value > scale.high else (-9, "←", "end")
        parts += [text(x + shift, y + 4, sign, "name", anchor)]
    room = width - text_width(row.words, 12) - 12 if small else scale.start - 10
    at = y - 14 if small else y + 4
    parts += [text(0, at, shorten(row.name, room, 13), "name")]
    parts += [text(width, at, row.words, "figures", "end")]
    return mark("".join(parts), row.tip)


def _row_of(
    result: Result, place: int, value: float, ends: Interval | None, words: str, tip: str
) -> Row:
    """Return the row of a model; without an interval it has no whisker."""
    name = result.models[place].name
    low, high = (ends.low, ends.high) if ends else (value, value)
    return Row(
        name=name,
        look=look(place),
        value=value,
        low=low,
        high=high,
        words=words,
        tip=f"{name}\n{tip}",
    )


def forest(result: Result, *, width: int) -> str:
    """Draw the drops of all metrics; "" if none was measured."""
    groups = []
    for metric in result.float_model.metrics:
        rows = tuple(
            _forest_row(result, place, found)
            for place, model in enumerate(result.models)
            for found in model.metrics
            if found.name == metric.name and found.drop is not None
        )
        limit = result.limit("max_drop") if metric.main else None
        if rows:
            groups.append(
                RowGroup(
                    title=f"{metric.name}, float {numbers.metric_value(metric)}",
                    axis=f"drop in {numbers.drop_unit(metric)}; right of the line is worse than float",
                    reference=0.0,
                    rows=rows,
                    limit=None if limit is None else limit * numbers.metric_scale(metric),
                )
            )
    return interval_plot(tuple(groups), width=width, label="drops with intervals") if groups else ""


def _forest_row(result: Result, place: int, metric: Metric) -> Row:
    scale, ends = numbers.metric_scale(metric), metric.drop_interval
    if ends is not None:
        ends = replace(ends, low=ends.low * scale, high=ends.high * scale)
    tip = [f"{metric.name}: {numbers.metric_value(metric)}"]
    tip += [f"drop: {numbers.drop(metric)} {numbers.drop_unit(metric)}"]
    if metric.detectable is not None:
        hidden = numbers.difference(metric.detectable, metric)
        tip += [f"a drop of up to {hidden} is still possible"]
    value = (metric.drop or 0.0) * scale
    return _row_of(result, place, value, ends, numbers.drop(metric), "\n".join(tip))


def latency(result: Result, *, width: int) -> str:
    """Draw the ratios; "" if nothing was timed."""
    groups = []
    for setting in result.float_model.latency:
        rows = tuple(
            _latency_row(result, place, found)
            for place, model in enumerate(result.models)
            for found in model.latency
            if place and (found.batch, found.threads) == (setting.batch, setting.threads)
        )
        if rows:
            groups.append(
                RowGroup(
                    title=f"batch {setting.batch}, {numbers.threads(setting.threads)}, "
                    f"float {numbers.significant(setting.median_ms)} ms",
                    axis="time per run, float = 1; left of the line is faster",
                    reference=1.0,
                    rows=rows,
                    limit=result.limit("max_latency_ratio"),
                    floor=0.0,
                )
            )
    return interval_plot(tuple(groups), width=width, label="latency ratios") if groups else ""


def _latency_row(result: Result, place: int, found: Latency) -> Row:
    ends, ratio = found.ratio_interval, numbers.ratio(found.ratio)
    spread = f" ({numbers.interval(ends)})" if ends else ""
    tip = (
        f"{numbers.significant(found.median_ms)} ms per run, p90 {numbers.significant(found.p90_ms)} ms\n"
        f"{ratio} of float{spread}\n{found.runs:,} runs"
    )
    return _row_of(result, place, found.ratio, ends, f"{ratio}{spread}", tip)


def samples(result: Result, *, width: int) -> str:
    """Draw quantiles of the signal to noise of single samples; "" if none are known, or nothing changed."""
    rows = tuple(
        _sample_row(result, place, *model.worst_percentile)
        for place, model in enumerate(result.models)
        if model.worst_percentile is not None and model.worst_percentile[1].worst < SAME_DB
    )
    if not rows:
        return ""
    group = RowGroup(
        title="SQNR per sample",
        axis=f"dB; left is worse, the line is {_TENTH_DB:.0f} dB (10 % error)",
        reference=_TENTH_DB,
        rows=rows,
        limit=result.limit("min_sqnr_p1_db"),
        low_is_bad=True,
    )
    return interval_plot((group,), width=width, label="signal to noise of single samples")


def _sample_row(result: Result, place: int, output: OutputDrift, found: SampleSqnr) -> Row:
    ends = Interval(low=found.worst, high=found.median)
    words = f"{numbers.decibel(found.p1)} ({numbers.interval(ends, digits=1)})"
    tip = f"{output.output}: {numbers.per_sample(found)}\n{found.samples:,} samples"
    return _row_of(result, place, found.p1, ends, words, tip)


def operators(changes: Changes, look: Look, *, width: int) -> str:
    """Draw before and after for the operators whose number changed most; "" if none did."""
    most = sorted(changes.operators, key=lambda o: (-abs(o.after - o.before), o.op_type))[:_SHOWN]
    rows = tuple(
        Row(
            name=change.op_type,
            look=look,
            value=change.after,
            low=min(change.before, change.after),
            high=max(change.before, change.after),
            words=f"{change.before} \N{RIGHTWARDS ARROW} {change.after}",
            tip=f"{change.op_type}: {change.before} before, {change.after} after",
        )
        for change in most
    )
    if not rows:
        return ""
    axis = "from the number before to the number after, which has the sign"
    group = RowGroup(title="nodes of each operator", axis=axis, reference=0.0, rows=rows, floor=0.0)
    return interval_plot((group,), width=width, label="operators before and after")
