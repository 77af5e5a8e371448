"""The frontier of a search: what is lost against time and against size, the budget's lines, the file that was chosen."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from quantkit.evaluate.report import numbers
from quantkit.evaluate.report.palette import Look, Theme, look
from quantkit.evaluate.report.plots.accuracy_size import style_of
from quantkit.evaluate.report.plots.labels import SOLID, Box, key_rows, place
from quantkit.evaluate.report.plots.svg import (
    NARROW,
    Scale,
    arrow,
    line,
    mark,
    picture,
    rect,
    shape,
    shorten,
    tag,
    text,
    text_width,
)
from quantkit.result import Result, Trial, Tuning

__all__ = ["frontier", "frontier_svg", "judged_drop", "lost_text", "lost_unit"]

_EDGE, _TITLE = 20, 52  # of a file of its own
_SIGN = 5.5
_FAINT = 3.5
_FAR = 3.0  # as many times the height of all better ones makes a trial go off the scale
_PAD = 0.1
_HIGH, _HIGH_SMALL = 330.0, 260.0
_LANE = 34.0  # for what is off the scale
_GAP = 46.0  # between panels beside each other
_STACK = 74.0  # and below each other
_NAMED, _NAMED_SMALL = 9, 5  # as many names have room


@dataclass(frozen=True, slots=True)
class _Spot:
    """A trial in one panel; `look` is None for one that another beats in everything."""

    trial: Trial
    x: float
    y: float
    look: Look | None
    tip: str


@dataclass(frozen=True, slots=True)
class _Panel:
    """One picture of the two: its scales in pixels, what is drawn in it, and its limit across with its unit."""

    plot: Box
    across: Scale
    down: Scale
    spots: tuple[_Spot, ...]
    label: str
    limit: float | None
    unit: str


def judged_drop(result: Result, name: str) -> tuple[float, float, float] | None:
    """Return what a candidate loses on the samples that judge, with the ends of its interval; None: not known.

    Of the metric that a search goes by; without labels of decisions that differ from float's; where no output decides,
    noise as a share of the outputs' power.
    """
    model = next((m for m in result.candidates if m.name == name), None)
    if model is None or result.tuning is None:
        return None
    metric, decision = model.metric, model.drift.decision if model.drift else None
    if metric is not None:
        scale = _part_of(result)
        if metric.drop is None or not scale or not result.tuning.measure.startswith(metric.name):
            return None
        ends = metric.drop_interval
        low, high = (ends.low, ends.high) if ends else (metric.drop, metric.drop)
        return metric.drop / scale, low / scale, high / scale
    if decision is not None:
        return decision.flip_rate, decision.interval.low, decision.interval.high
    output = model.worst_output
    if output is None or output.db == -inf:
        return None
    found = output.sqnr_interval
    return _noise(output.db), *(
        (_noise(found.high), _noise(found.low)) if found else (_noise(output.db),) * 2
    )


def _noise(db: float) -> float:
    return float(10 ** (-db / 10))


def lost_unit(result: Result) -> str:
    """Return the unit of what a search loses: points of a share, per cent of anything else; "": told as it is."""
    if result.tuning is None or not result.tuning.is_fraction:
        return ""
    metric = result.float_model.metric
    return "points" if metric is not None and metric.is_fraction else "%"


def _part_of(result: Result) -> float:
    """Return what a drop of the metric is divided by: float's own figure where a search goes by parts of that."""
    metric = result.float_model.metric
    relative = result.tuning is not None and result.tuning.is_fraction
    return abs(metric.value) if metric is not None and relative and not metric.is_fraction else 1.0


def lost_text(value: float | None, tuning: Tuning) -> str:
    """Return what is lost in words: points of what is a share, else the figure."""
    if value is None:
        return numbers.ABSENT
    return numbers.decimals(100 * value, 2) if tuning.is_fraction else numbers.significant(value)


def frontier(result: Result, *, width: int) -> str:
    """Draw it for the page; "" where there was no search, or no trial has a figure.

    Args:
        result: Of a search.
        width: In pixels; below 560 the two panels stand below each other.
    """
    content, height = _content(result, width)
    return picture(width, height, _label(result), content) if content else ""


def frontier_svg(
    result: Result, *, width: int = 860, theme: Theme | Literal["auto"] = "auto"
) -> str:
    """Draw it as a file of its own, with its style, ground and title; "" as `frontier`.

    Args:
        result: Of a search.
        width: In pixels.
        theme: "auto" follows the reader's.
    """
    content, height = _content(result, width - 2 * _EDGE)
    if not content:
        return ""
    below = tag("style", style_of(theme)) + rect(0, 0, width, height + _EDGE + _TITLE, "ground")
    title = text(_EDGE, 34, shorten(result.title, width - 2 * _EDGE, 19), "title")
    moved = tag("g", content, transform=f"translate({_EDGE},{_TITLE})")
    return picture(width, height + _EDGE + _TITLE, _label(result), below + title + moved)


def _label(result: Result) -> str:
    count = len(result.tuning.trials) if result.tuning else 0
    return f"what {count} trials lose against their time and size"


def _content(result: Result, width: int) -> tuple[str, float]:
    """Return what is drawn, and its height."""
    tuning = result.tuning
    shown = [t for t in tuning.trials if t.drop is not None] if tuning else []
    if tuning is None or not shown:
        return "", 0.0
    small = width < NARROW
    panels = _panels(result, tuning, shown, width, _range(result, tuning, shown))
    unit = f", {lost_unit(result)}" if tuning.is_fraction else ""
    content = text(0, 16, f"lost against float: {tuning.measure}{unit}", "label")
    content += "".join(_drawn(p, result, tuning, small=small) for p in panels)
    bottom = panels[-1].plot.y + panels[-1].plot.height + 64
    legend, last = _legend(result, tuning, bottom, width)
    return content + legend, last + 14


def _scaled(value: float, tuning: Tuning) -> float:
    return 100 * value if tuning.is_fraction else value


def _range(result: Result, tuning: Tuning, shown: Sequence[Trial]) -> tuple[float, float]:
    """Return the ends of what is shown: float, the budget, the chosen one, and what is not far worse than all better ones."""
    ends = [0.0]
    ends += [_scaled(tuning.max_drop, tuning)] if tuning.max_drop is not None else []
    judged = judged_drop(result, tuning.chosen)
    ends += [_scaled(end, tuning) for end in judged] if judged else []
    drops = sorted(_scaled(t.drop, tuning) for t in shown if t.drop is not None)
    ends += [_scaled(t.drop, tuning) for t in shown if t.name == tuning.chosen and t.drop]
    ends += drops[:1]
    for drop in drops:
        span = max(ends) - min(ends)
        if span and drop > max(ends) + _FAR * span:
            break
        ends.append(drop)
    pad = _PAD * (max(ends) - min(ends)) or 1.0
    return min(ends) - pad, max(ends) + pad


def _panels(
    result: Result,
    tuning: Tuning,
    shown: Sequence[Trial],
    width: float,
    range_: tuple[float, float],
) -> list[_Panel]:
    """Lay out what has a figure: time, if anything was timed, and size."""
    small = width < NARROW
    high = _HIGH_SMALL if small else _HIGH
    wanted: list[tuple[str, float, float | None]] = []
    if any(t.latency is not None for t in shown):
        wanted.append(("time, multiple of float's", 1.0, tuning.max_latency))
    wanted.append(("size, % of float's", 100.0, tuning.max_size))
    left, count = (36.0 if small else 44.0), (1 if small else len(wanted))
    wide = (width - count * left - (count - 1) * _GAP / 2 - 4) / count
    panels = []
    for i, (label, times, limit) in enumerate(wanted):
        column, row = (0, i) if small else (i, 0)
        x = left + column * (wide + left + _GAP / 2)
        plot = Box(x, 30 + row * (high + _STACK), wide, high)
        scaled = None if limit is None else limit * times
        timed = times == 1.0
        values = [(t, t.latency if timed else t.size) for t in shown]
        pairs = [(t, v * times) for t, v in values if v is not None]
        across = _across([v for _, v in pairs], times, scaled, plot)
        beyond = any(_scaled(t.drop or 0.0, tuning) > range_[1] for t, _ in pairs)
        down = Scale(*range_, plot.y, plot.y + high - _LANE * beyond)
        spots = tuple(_spot(result, tuning, t, across(v), down) for t, v in pairs)
        unit = "" if timed else "\N{NO-BREAK SPACE}%"
        panels.append(_Panel(plot, across, down, spots, label, scaled, unit))
    return panels


def _across(values: Sequence[float], reference: float, limit: float | None, plot: Box) -> Scale:
    ends = [*values, reference, *([] if limit is None else [limit])]
    pad = _PAD * (max(ends) - min(ends)) or _PAD * reference
    return Scale(max(min(ends) - pad, 0.0), max(ends) + pad, plot.x, plot.x + plot.width)


def _spot(result: Result, tuning: Tuning, trial: Trial, x: float, down: Scale) -> _Spot:
    drop = _scaled(trial.drop or 0.0, tuning)
    places = {m.name: i for i, m in enumerate(result.models)}
    y = down(drop) if drop <= down.high else down.end + _LANE / 2
    own = look(places[trial.name]) if trial.name in places else None
    return _Spot(trial, x, y, own, _tip(result, tuning, trial))


def _tip(result: Result, tuning: Tuning, trial: Trial) -> str:
    lines = [f"{trial.name}: {trial.made}"]
    lines.append(f"lost: {lost_text(trial.drop, tuning)} {lost_unit(result)}".rstrip())
    lines += [f"time: {numbers.ratio(trial.latency)}"] if trial.latency is not None else []
    lines += [f"size: {numbers.percent(trial.size)} of float"] if trial.size is not None else []
    cut = f" of {tuning.choosing:,}, clear by then" if trial.samples < tuning.choosing else ""
    lines.append(f"run on {trial.samples:,}{cut} selection samples")
    return "\n".join(lines)


def _drawn(panel: _Panel, result: Result, tuning: Tuning, *, small: bool) -> str:
    parts = _budget(panel, tuning) + _axes(panel, small=small) + _stairs(panel)
    faint = [s for s in panel.spots if s.look is None]
    strong = [s for s in panel.spots if s.look is not None]
    strong.sort(key=lambda s: s.trial.name == tuning.chosen)  # it lies on top
    parts += "".join(_faint(spot) for spot in faint)
    home = panel.across(1.0 if panel.label.startswith("time") else 100.0), panel.down(0.0)
    sign = shape("circle", *home, _SIGN, "sign float")
    parts += mark(sign, f"{result.float_model.name}: the float model")
    parts += _judged(panel, result, tuning)
    parts += "".join(_strong(spot, tuning) for spot in strong)
    return parts + _names(panel, result, tuning, home, small=small)


def _budget(panel: _Panel, tuning: Tuning) -> str:
    """Draw what breaks the budget, below everything, and its lines."""
    plot, parts, lines = panel.plot, "", ""
    right, bottom = plot.x + plot.width, plot.y + plot.height
    if tuning.max_drop is not None:
        y = panel.down(_scaled(tuning.max_drop, tuning))
        parts += rect(plot.x, y, plot.width, bottom - y, "beyond")
        lines += line(plot.x, y, right, y, "limit")
        words = f"budget: {lost_text(tuning.max_drop, tuning)}"
        lines += text(right - 4, y + 15, words, "tick limit-text", "end")
    if panel.limit is not None:
        x = panel.across(panel.limit)
        top = (
            panel.down(_scaled(tuning.max_drop, tuning)) if tuning.max_drop is not None else bottom
        )
        parts += rect(x, plot.y, right - x, top - plot.y, "beyond")
        lines += line(x, plot.y, x, bottom, "limit")
        lines += text(
            x - 4, plot.y + 12, f"budget: {panel.limit:g}{panel.unit}", "tick limit-text", "end"
        )
    return parts + lines


def _axes(panel: _Panel, *, small: bool) -> str:
    plot, parts = panel.plot, []
    right, bottom = plot.x + plot.width, plot.y + plot.height
    for value, words in panel.down.ticks(6):
        y = panel.down(value)
        parts += [line(plot.x, y, right, y, "grid"), text(plot.x - 7, y + 4, words, "tick", "end")]
    for value, words in panel.across.ticks(4 if small else 5):
        x = panel.across(value)
        parts += [line(x, bottom, x, bottom + 5, "axis")]
        parts += [text(x, bottom + 19, words, "tick", "middle")]
    zero = panel.down(0.0)
    parts += [line(plot.x, zero, right, zero, "reference")]
    if panel.down.end < bottom:
        parts += [line(plot.x, panel.down.end, right, panel.down.end, "break")]
        parts += [text(plot.x + 5, panel.down.end + 13, "off the scale", "tick")]
    parts += [line(plot.x, bottom, right, bottom, "axis")]
    parts += [text(right, bottom + 38, panel.label, "label", "end")]
    return "".join(parts)


def _stairs(panel: _Panel) -> str:
    """Draw what can be had: to the right of a step and below it something loses no more and costs no more."""
    best, path = panel.plot.y + panel.plot.height, []
    for spot in sorted(panel.spots, key=lambda s: (s.x, s.y)):
        if spot.y < best:
            path += [(spot.x, best), (spot.x, spot.y)]
            best = spot.y
    path.append((panel.plot.x + panel.plot.width, best))
    return tag("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in path), class_="stairs")


def _faint(spot: _Spot) -> str:
    hit = tag("circle", cx=spot.x, cy=spot.y, r=_SIGN + 3, class_="hit")
    return mark(hit + shape("circle", spot.x, spot.y, _FAINT, "faint"), spot.tip)


def _strong(spot: _Spot, tuning: Tuning) -> str:
    sign = spot.look or look(0)
    parts = tag("circle", cx=spot.x, cy=spot.y, r=_SIGN + 5, class_="hit")
    if spot.trial.name == tuning.chosen:
        parts += tag("circle", cx=spot.x, cy=spot.y, r=_SIGN + 5, class_="chosen")
    return mark(parts + shape(sign.shape, spot.x, spot.y, _SIGN, f"sign {sign.css}"), spot.tip)


def _judged(panel: _Panel, result: Result, tuning: Tuning) -> str:
    """Draw the interval of what the chosen one loses on the samples that judge."""
    found = judged_drop(result, tuning.chosen)
    spot = next((s for s in panel.spots if s.trial.name == tuning.chosen), None)
    if found is None or spot is None or spot.look is None:
        return ""
    css = f"whisker {spot.look.css}"
    middle, low, high = (panel.down.clamped(_scaled(v, tuning)) for v in found)
    parts = [line(spot.x, low, spot.x, high, css)]
    for end, value, way in ((low, found[1], -1), (high, found[2], 1)):
        off = panel.down.clamped(_scaled(value, tuning)) != panel.down(_scaled(value, tuning))
        parts.append(
            arrow(spot.x, end, 0, way, css) if off else line(spot.x - 5, end, spot.x + 5, end, css)
        )
    parts.append(shape("diamond", spot.x, middle, 3.2, "hollow"))
    words = f"{spot.trial.name} on the {tuning.judging:,} samples of the final check"
    lost = [lost_text(v, tuning) for v in found]
    return mark("".join(parts), f"{words}\nlost: {lost[0]} ({lost[1]} to {lost[2]})")


def _names(
    panel: _Panel, result: Result, tuning: Tuning, home: tuple[float, float], *, small: bool
) -> str:
    named = [s for s in panel.spots if s.look is not None]
    if len(named) > (_NAMED_SMALL if small else _NAMED):
        named = [s for s in named if s.trial.name == tuning.chosen]
    named.sort(key=lambda s: s.trial.name != tuning.chosen)  # it has the first choice of places
    words = [
        ("chosen: " if s.trial.name == tuning.chosen else "") + shorten(s.trial.name, 110)
        for s in named
    ]
    words.append(shorten(result.float_model.name, 90))
    marks = [*((s.x, s.y) for s in named), home]
    wanted = [
        (x, y, _SIGN + 4, text_width(w, 14) + 4, 17.0)
        for (x, y), w in zip(marks, words, strict=True)
    ]
    taken = [(Box(s.x - 8, s.y - 8, 16, 16), SOLID) for s in panel.spots]
    taken += [(Box(home[0] - 8, home[1] - 8, 16, 16), SOLID)]
    taken += _lines(panel, tuning)
    places = place(wanted, taken, panel.plot)
    parts = []
    for at, word in zip(places, words, strict=True):
        parts += [line(*at.leader, "leader")] if at.leader is not None else []
        parts.append(text(at.x, at.box.y + 13, word, "name", at.anchor))
    return "".join(parts)


def _lines(panel: _Panel, tuning: Tuning) -> list[tuple[Box, float]]:
    """Return what the budget's words and float's line take."""
    plot = panel.plot
    taken = [(Box(plot.x, panel.down(0.0) - 2, plot.width, 4), 1.5)]
    if tuning.max_drop is not None:
        y = panel.down(_scaled(tuning.max_drop, tuning))
        taken += [(Box(plot.x, y - 2, plot.width, 4), 1.5)]
        taken += [(Box(plot.x + plot.width - 90, y, 90, 18), SOLID)]
    if panel.limit is not None:
        x = panel.across(panel.limit)
        taken += [(Box(x - 2, plot.y, 4, plot.height), 1.5), (Box(x - 80, plot.y, 80, 16), SOLID)]
    return taken


def _legend(result: Result, tuning: Tuning, top: float, width: float) -> tuple[str, float]:
    """Draw the keys that the picture needs; return where the last row is."""
    names = {m.name for m in result.candidates}
    keys = []
    if tuning.chosen:
        keys.append((tag("circle", cx=10, cy=0, r=8, class_="chosen"), "chosen"))
    if any(t.name not in names and t.drop is not None for t in tuning.trials):
        keys.append((shape("circle", 10, 0, _FAINT, "faint"), "another is as good in everything"))
    keys.append((line(2, 0, 18, 0, "stairs"), "the best that was found"))
    if judged_drop(result, tuning.chosen) is not None:
        ends = "".join(line(6, y, 14, y, "whisker float") for y in (-8, 8))
        sign = line(10, -8, 10, 8, "whisker float") + ends
        keys.append((sign, f"whisker: on the {tuning.judging:,} samples of the final check"))
    return key_rows(keys, 0.0, top, width)
