"""Models by what they cost and how good they are: one panel for each cost, one scale of quality, one legend.

Better is always up. Marks carry a short label, and the legend tells what it stands for, so that no name can cover another.
One broken model must not flatten all others: what is far worse than the rest has an arrow at the edge of the scale.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from math import inf

from quantkit.evaluate.report.palette import Look, resolved
from quantkit.evaluate.report.svg import (
    LEGEND_ROW,
    Scale,
    arrow,
    legend,
    line,
    mark,
    picture,
    rect,
    shape,
    shorten,
    tag,
    text,
    whisker,
)

_SIGN, _FAINT = 5.5, 3.5  # radius of a sign
_NEXT = 12.0  # pixels between marks that would cover each other
_FAR = 3.0  # as many times the range of all better ones puts a figure off the scale
_PAD = 0.1
_NARROW = 560  # pixels; below it panels stand below each other
_EDGE, _TITLE = 20, 52  # of a file of its own
_ENTRY, _COLUMN = 40.0, 330.0  # of a model in the legend: its height, the least width of its column
_SHORT_NAME = 3  # characters of a name that is its own label


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One model.

    Attributes:
        name: Of the model.
        look: How it is drawn.
        x: Its cost in each panel; None: not known.
        y: Its quality; None: identical to float.
        interval: Its lower and upper end; None: there is none.
        middle: The estimate that the interval belongs to, where that is not `y`.
        words: Its figures in one line, for the legend; "" leaves it out there.
        tip: All that is known.
        label: Beside the mark; "" for none.
        faint: Another model is as good in everything.
        chosen: Has a ring around it.
        failed: The gate refuses it.
    """

    name: str
    look: Look
    x: tuple[float | None, ...]
    y: float | None
    interval: tuple[float, float] | None = None
    middle: float | None = None
    words: str = ""
    tip: str = ""
    label: str = ""
    faint: bool = False
    chosen: bool = False
    failed: bool = False

    @property
    def ends(self) -> list[float]:
        """All figures of it on the scale of quality."""
        return [v for v in (self.y, *(self.interval or ())) if v is not None]


@dataclass(frozen=True, slots=True)
class Axis:
    """A cost: what it counts, the most that the gate or the budget allows, and the least range that is shown."""

    label: str
    limit: float | None = None
    least: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A whole picture.

    Attributes:
        title: Of a file of its own.
        label: What y is.
        described: For those who do not see it.
        reference: Float; its y is None where y is a distance from it.
        marks: The other models.
        across: One axis for each panel.
        upwards: Whether more of y is better; else the scale runs downwards.
        limit: The worst y that the gate or the budget allows.
        limits: The limits in words, for the legend.
        bounds: What y cannot be below or above.
        stairs: Draw the border of what was found.
        keys: Further signs with their words.
        note: Below the legend.
    """

    title: str
    label: str
    described: str
    reference: Mark
    marks: tuple[Mark, ...]
    across: tuple[Axis, ...]
    upwards: bool = True
    limit: float | None = None
    limits: str = ""
    bounds: tuple[float, float] = (-inf, inf)
    stairs: bool = False
    keys: tuple[tuple[str, str], ...] = ()
    note: str = ""

    def is_beyond(self, model: Mark, low: float, high: float) -> bool:
        """Whether a model is worse than all that a range shows."""
        return model.y is not None and (model.y < low if self.upwards else model.y > high)


def labels_for(names: Sequence[str]) -> list[str]:
    """Return the labels of models: their names if all are short, else their numbers."""
    short = all(len(name) <= _SHORT_NAME for name in names)
    return list(names) if short else [str(number) for number in range(1, len(names) + 1)]


def chart_svg(chart: Chart, *, width: int = 860, alone: bool = False) -> str:
    """Draw it.

    Args:
        chart: What is drawn.
        width: In pixels; below 560 panels stand below each other.
        alone: A file of its own: with its style, which follows the reader's theme, ground and title. Else for the page.
    """
    if not alone:
        content, height = _drawn(chart, width)
        return picture(width, height, chart.described, content)
    content, height = _drawn(chart, width - 2 * _EDGE)
    height += _EDGE + _TITLE
    css = (files("quantkit.evaluate.report") / "templates" / "plot.css").read_text(encoding="utf-8")
    dark = f"@media (prefers-color-scheme:dark){{{resolved(css, 'dark')}}}"
    below = tag("style", resolved(css, "light") + dark) + rect(0, 0, width, height, "ground")
    title = text(_EDGE, 34, shorten(chart.title, width - 2 * _EDGE, 19), "title")
    moved = tag("g", content, transform=f"translate({_EDGE},{_TITLE})")
    return picture(width, height, chart.described, below + title + moved)


def shown_range(chart: Chart) -> tuple[float, float]:
    """Return the ends of the scale of quality: float, the models that are not far worse than the rest, a limit that is near.

    Float's interval may reach beyond it: differences on the same samples are far smaller than what other samples would do.
    """
    sign = -1 if chart.upwards else 1
    ends = [] if chart.reference.y is None else [chart.reference.y]
    measured = [m for m in chart.marks if m.y is not None]
    ranked = sorted(measured, key=lambda m: (not m.chosen, sign * (m.y or 0.0)))
    for place, model in enumerate(ranked):
        if place and _is_far(ends, model.ends):
            break
        ends += model.ends
    if chart.limit is not None and not _is_far(ends, [chart.limit]):
        ends.append(chart.limit)
    if not ends:
        return 0.0, 1.0
    low, high = min(ends), max(ends)
    pad = (high - low) * _PAD or abs(high) * 0.05 or 1.0
    # Where an accuracy is nearly perfect, the scale must not promise more than all.
    return max(low - pad, chart.bounds[0]), min(high + pad, chart.bounds[1])


def _is_far(ends: Sequence[float], extent: Sequence[float], least: float = 0.0) -> bool:
    """Whether the gap between what is shown and what comes next is many times what is shown."""
    if not ends:
        return False
    gap = max(0.0, min(ends) - max(extent), min(extent) - max(ends))
    height = max(max(ends) - min(ends), least)
    return bool(height) and gap > _FAR * height


def _across(chart: Chart, panel: int, left: float, right: float) -> Scale:
    """Return the scale of a cost: all models; float and the limit if they are near, or there is one model only."""
    axis, home = chart.across[panel], chart.reference.x[panel]
    ends = [x for m in chart.marks if (x := m.x[panel]) is not None]
    lone = len(ends) == 1
    for value in (home, axis.limit):
        if value is not None and (lone or not _is_far(ends, [value], axis.least)):
            ends.append(value)
    missing = max(0.0, axis.least - (max(ends) - min(ends))) / 2
    pad = _PAD * (max(ends) - min(ends)) + missing or _PAD * max(ends) or 1.0
    return Scale(max(min(ends) - pad, 0.0), max(ends) + pad, left, right)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Panel:
    """Where one panel is, its scales, and where its marks lie."""

    x: Scale
    y: Scale
    top: float
    bottom: float
    spots: tuple[tuple[Mark, float, float], ...]
    limits: tuple[float | None, float | None]  # across and up, in pixels


def _drawn(chart: Chart, width: float) -> tuple[str, float]:
    """Return the panels and the legend, and their height."""
    small = width < _NARROW
    columns = 1 if small else len(chart.across)
    left, high, gap = (40.0, 260.0, 0.0) if small else (46.0, 330.0, 22.0)
    wide = (width - columns * left - (columns - 1) * gap - 4) / columns
    content, bottom = text(0, 12, chart.label, "label"), 0.0
    for i, axis in enumerate(chart.across):
        column, row = (0, i) if small else (i, 0)
        start, top = left + column * (wide + left + gap), 30 + row * (high + 74)
        panel = _panel(chart, i, (start, start + wide), (top, top + high))
        content += _ground(chart, panel, axis.label, ticks=4 if small else 5)
        content += _stairs(panel, chart.reference) if chart.stairs else ""
        content += "".join(_mark(*spot, chart, panel) for spot in panel.spots)
        bottom = panel.bottom
    legend, last = _legend(chart, bottom + 64, width)
    return content + legend, last + 14


def _panel(
    chart: Chart, number: int, across: tuple[float, float], down: tuple[float, float]
) -> _Panel:
    """Lay out one panel between the given pixels."""
    low, high = shown_range(chart)
    everyone = (chart.reference, *chart.marks)
    y = Scale(low, high, *(reversed(down) if chart.upwards else down))
    x = _across(chart, number, *across)
    limit = chart.across[number].limit
    limits = (
        x(limit) if limit is not None and x.holds(limit) else None,
        y(chart.limit) if chart.limit is not None and y.holds(chart.limit) else None,
    )
    # The faint ones lie below, float above them, the chosen one on top.
    shown = [m for m in everyone if m.x[number] is not None]
    shown.sort(key=lambda m: (not m.faint, m.chosen))
    places = []
    for model in shown:
        height = down[0] if model.y is None else y.clamped(model.y)
        places.append((min(x(model.x[number] or 0.0), across[1] - 3 * _SIGN), height))
    extents = [_extent(m, at[1], y) for m, at in zip(shown, places, strict=True)]
    faint = sum(m.faint for m in shown)  # these lie below and stay where they are
    walls = [*across, *(at for at in limits[:1] if at is not None)]
    moved = places[:faint] + apart(places[faint:], extents[faint:], walls)
    spots = tuple((m, *at) for m, at in zip(shown, moved, strict=True))
    return _Panel(
        x=x,
        y=y,
        top=down[0],
        bottom=down[1],
        spots=spots,
        limits=limits,
    )


def _extent(model: Mark, y: float, scale: Scale) -> tuple[float, float]:
    """From the top to the bottom of a mark with its label and its whisker."""
    ends = [scale.clamped(v) for v in model.ends] if model.interval else []
    return min([y - _SIGN, *ends]) - (14 if model.label else 3), max([y + _SIGN + 3, *ends])


def apart(
    spots: Sequence[tuple[float, float]],
    extents: Sequence[tuple[float, float]],
    walls: Sequence[float] = (),
) -> list[tuple[float, float]]:
    """Move marks aside where they would cover each other.

    Args:
        spots: Where the marks are, in pixels.
        extents: Top and bottom of each; marks whose extents do not overlap may have the same place across.
        walls: Places across that no mark may be moved past: what keeps a limit must not seem to break it.
    """
    placed: list[tuple[float, float]] = []
    for (x, y), (top, bottom) in zip(spots, extents, strict=True):
        near = [
            other
            for (other, _), (above, below) in zip(placed, extents, strict=False)
            if top < below and above < bottom
        ]
        tried = sorted(
            (x, *(o + d for o in near for d in (_NEXT, -_NEXT))), key=lambda t: abs(t - x)
        )
        tried = [t for t in tried if all((t > wall) == (x > wall) for wall in walls)]
        free = next((t for t in tried if all(abs(t - other) >= _NEXT - 0.1 for other in near)), x)
        placed.append((free, y))
    return placed


def _ground(chart: Chart, panel: _Panel, label: str, *, ticks: int) -> str:
    """Draw all that lies below the marks: what breaks a limit, float's interval and line, the axes."""
    left, right, top, bottom = panel.x.start, panel.x.end, panel.top, panel.bottom
    x, y = panel.limits
    parts = [rect(left, y, right - left, bottom - y, "beyond")] if y is not None else []
    if x is not None:
        parts += [rect(x, top, right - x, (bottom if y is None else y) - top, "beyond")]
    home = chart.reference
    if home.interval and _holds(home, panel.y):
        ends = sorted(map(panel.y, home.interval))
        parts += [rect(left, ends[0], right - left, ends[1] - ends[0], "band")]
    for value, words in panel.y.ticks(5):
        at = panel.y(value)
        parts += [line(left, at, right, at, "grid"), text(left - 7, at + 4, words, "tick", "end")]
    for value, words in panel.x.ticks(ticks):
        at = panel.x(value)
        parts += [line(at, bottom, at, bottom + 5, "axis")]
        parts += [text(at, bottom + 19, words, "tick", "middle")]
    zero = next((at for model, _, at in panel.spots if model is home), top)
    parts += [line(left, zero, right, zero, "reference")]
    parts += [line(left, y, right, y, "limit")] if y is not None else []
    parts += [line(x, top, x, bottom, "limit")] if x is not None else []
    parts += [line(left, bottom, right, bottom, "axis")]
    return "".join([*parts, text(right, bottom + 38, label, "label", "end")])


def _holds(model: Mark, scale: Scale) -> bool:
    """Whether the whole interval of a model lies on the scale."""
    return all(map(scale.holds, model.ends))


def _stairs(panel: _Panel, home: Mark) -> str:
    """Draw the border: to the right of a step and below it some model is no worse and costs no more."""
    best, path = panel.bottom, []
    for x, y in sorted((x, y) for model, x, y in panel.spots if model is not home):
        if y < best:
            path += [(x, best), (x, y)]
            best = y
    path.append((panel.x.end, best))
    return tag("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in path), class_="stairs")


def _mark(model: Mark, x: float, y: float, chart: Chart, panel: _Panel) -> str:
    parts, css = [tag("circle", cx=x, cy=y, r=_SIGN + 5, class_="hit")], model.look.css
    top = y - _SIGN - (5 if model.chosen else 0)
    on_scale = model.y is not None and panel.y.holds(model.y)
    has_band = model is chart.reference and _holds(model, panel.y)
    if on_scale and not has_band and model.interval:
        parts += [whisker(panel.y, model.interval, x, css)]
        top = min(top, *map(panel.y.clamped, model.interval))
    if model.middle is not None:
        parts += [shape("diamond", x, panel.y.clamped(model.middle), 3.2, "hollow")]
    if model.chosen:
        parts += [tag("circle", cx=x, cy=y, r=_SIGN + 5, class_="chosen")]
    if model.faint:
        parts += [shape("circle", x, y, _FAINT, "faint")]
    else:
        parts += [shape(model.look.shape, x, y, _SIGN, f"sign {css}")]
    if model.y is not None and not on_scale:
        down = 1 if y > panel.top else -1
        parts += [arrow(x, y + down * 3 * _SIGN, 0, down, f"whisker {css}")]
    if model is chart.reference and panel.x.end - x <= 3 * _SIGN:  # its cost is far to the right
        parts += [arrow(panel.x.end, y, 1, 0, f"whisker {css}")]
    parts += [text(x, top - 4, model.label, "name", "middle")] if model.label else []
    return mark("".join(parts), model.tip)


def _legend(chart: Chart, top: float, width: float) -> tuple[str, float]:
    """Draw the models with their figures and the signs that the picture has; return where the last row is."""
    columns = max(1, int(width // _COLUMN))
    room, parts = width / columns, []
    listed = [m for m in (chart.reference, *chart.marks) if m.words]
    for i, model in enumerate(listed):
        x, y = room * (i % columns), top + _ENTRY * (i // columns)
        css = "figures fails" if model.failed else "figures"
        named = f"{model.label}  " * (model.label not in {"", model.name}) + model.name
        parts += [shape(model.look.shape, x + 10, y - 1, _SIGN, f"sign {model.look.css}")]
        parts += [text(x + 28, y + 4, shorten(named, room - 36), "name")]
        parts += [text(x + 28, y + 19, shorten(model.words, room - 36, 12), css)]
    y = top + _ENTRY * -(-len(listed) // columns)
    drawn, y = legend(_keys(chart), y, width)
    parts.append(drawn)
    if chart.note:
        y += LEGEND_ROW
        parts.append(text(0, y + 4, shorten(chart.note, width, 12), "tick"))
    return "".join(parts), y


def _keys(chart: Chart) -> Iterable[tuple[str, str]]:
    low, high = shown_range(chart)
    home = chart.reference
    if home.interval and home.interval[0] < home.interval[1]:
        band = all(low <= end <= high for end in home.ends)
        sign = rect(2, -7, 16, 14, "band") if band else ""
        words = "float and its own interval" if band else "float; its own interval exceeds the axis"
        yield sign + line(2, 0, 18, 0, "reference"), words
    yield from chart.keys
    if chart.limits:
        yield line(2, 0, 18, 0, "limit"), chart.limits
    if any(m.y is None for m in (home, *chart.marks)):
        yield line(2, 0, 18, 0, "reference"), "top edge: the same numbers"
    if any(chart.is_beyond(m, low, high) for m in chart.marks):
        yield arrow(10, 5, 0, 1, "whisker float"), "off the scale"
