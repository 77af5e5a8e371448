"""Dots with whiskers around a reference: one row a model, one scale a group."""

from dataclasses import dataclass
from statistics import median_low

from quantkit.report.palette import Look
from quantkit.report.plots.scale import Scale, nice_step
from quantkit.report.plots.svg import (
    NARROW,
    arrow,
    line,
    mark,
    names_width,
    picture,
    rect,
    shape,
    shorten,
    text,
    text_width,
)

__all__ = ["Group", "Row", "interval_plot"]

_PAD = 0.06
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
class Group:
    """Rows on one scale.

    Attributes:
        title: What the figures are of.
        axis: What the scale counts, and which end is bad.
        reference: Where nothing differs from float.
        rows: The models.
        limit: The gate's bound.
        floor: The scale starts here; None: where the figures do.
    """

    title: str
    axis: str
    reference: float
    rows: tuple[Row, ...]
    limit: float | None = None
    floor: float | None = None


def interval_plot(groups: tuple[Group, ...], *, width: int, label: str) -> str:
    """Draw the groups below each other."""
    y, parts = 4.0, []
    for group in groups:
        drawn, y = _group(group, float(width), y)
        parts.append(drawn)
    return picture(width, y, label, "".join(parts))


def _range(group: Group) -> tuple[float, float]:
    """Return what the scale spans: everything, unless some figure is far beyond most others and the fixed ends."""
    fixed = [v for v in (group.reference, group.limit, group.floor) if v is not None]
    figures = [v for r in group.rows for v in (r.low, r.high)]
    usual = max(
        median_low([abs(v - group.reference) for v in figures]),
        *(abs(v - group.reference) for v in fixed),
    )
    near = [v for v in figures if not usual or abs(v - group.reference) <= _FAR * usual]
    ends = [*fixed, *near]
    low, high = min(ends), max(ends)
    pad = (high - low) * _PAD or 1.0
    step = nice_step(high - low or 1.0, 20)
    return low - (0 if low == group.floor else max(pad, step / 2)), high + max(pad, step / 2)


def _group(group: Group, width: float, y: float) -> tuple[str, float]:
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
        parts += [rect(x, top, right - x, bottom - top, "beyond"), line(x, top, x, bottom, "limit")]
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
    low, high, x = scale.clamped(row.low), scale.clamped(row.high), scale.clamped(row.value)
    parts = [rect(0, y - (30 if small else 14), width, 42 if small else 28, "hit")]
    parts += [line(low, y, high, y, f"whisker {css}")]
    parts += [
        line(end, y - 5, end, y + 5, f"whisker {css}")
        if scale.low <= value <= scale.high
        else arrow(end, y, 1 if value > scale.high else -1, 0, f"whisker {css}")
        for end, value in ((low, row.low), (high, row.high))
    ]
    parts += [shape(row.look.shape, x, y, 5.5, f"sign {css}")]
    if not scale.low <= row.value <= scale.high:
        beyond = row.value > scale.high
        parts += [
            text(
                x + (9 if beyond else -9),
                y + 4,
                "→" if beyond else "←",
                "name",
                "start" if beyond else "end",
            )
        ]
    if small:
        parts += [
            text(0, y - 14, shorten(row.name, width - text_width(row.words, 12) - 12, 13), "name")
        ]
        parts += [text(width, y - 14, row.words, "figures", "end")]
    else:
        parts += [text(0, y + 4, shorten(row.name, scale.start - 10, 13), "name")]
        parts += [text(width, y + 4, row.words, "figures", "end")]
    return mark("".join(parts), row.tip)
