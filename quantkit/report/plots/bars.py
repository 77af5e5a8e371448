"""Stacked bars of several models on one scale."""

from dataclasses import dataclass

from quantkit.report.palette import Look
from quantkit.report.plots.svg import (
    NARROW,
    mark,
    names_width,
    picture,
    rect,
    shape,
    shorten,
    text,
    text_width,
)

__all__ = ["Bar", "Segment", "stacked_bars"]

_HEIGHT = 24.0


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a bar: its length, its class, words for its inside and for its tip."""

    length: float
    css: str
    words: str
    tip: str


@dataclass(frozen=True, slots=True)
class Bar:
    """One model's parts."""

    name: str
    look: Look
    words: str
    segments: tuple[Segment, ...]


def stacked_bars(
    bars: tuple[Bar, ...], legend: tuple[tuple[str, str], ...], *, width: int, label: str
) -> str:
    """Draw the bars; `legend` gives words for classes."""
    small = width < NARROW
    left = 0.0 if small else names_width((bar.name for bar in bars), width, 0.19) + 26
    room = float(width) if small else width * 0.84 - left
    longest = max((sum(s.length for s in bar.segments) for bar in bars), default=1.0) or 1.0
    y, parts = 4.0, []
    drawn, y = _legend(legend, float(width), y)
    parts.append(drawn)
    for bar in bars:
        if small:
            parts += [shape(bar.look.shape, 6, y + 9, 4.6, f"fill {bar.look.css}")]
            parts += [
                text(
                    16,
                    y + 13,
                    shorten(bar.name, width - text_width(bar.words, 12) - 28, 13),
                    "name",
                )
            ]
            parts += [text(width, y + 13, bar.words, "figures", "end")]
            y += 20
        else:
            parts += [shape(bar.look.shape, 6, y + 12, 4.6, f"fill {bar.look.css}")]
            parts += [text(16, y + 16, shorten(bar.name, left - 26, 13), "name")]
        end, segments = _segments(bar, left, room / longest, y)
        parts.append(segments)
        if not small:
            parts.append(text(end + 10, y + 16, bar.words, "figures"))
        y += _HEIGHT + 12
    return picture(width, y, label, "".join(parts))


def _segments(bar: Bar, left: float, unit: float, y: float) -> tuple[float, str]:
    x, parts = left, []
    for segment in bar.segments:
        long = segment.length * unit
        inside = rect(x, y, max(long - 1, 0.6), _HEIGHT, segment.css)
        if text_width(segment.words, 12) + 8 < long:
            inside += text(x + 6, y + 16, segment.words, f"inside on-{segment.css}")
        parts.append(mark(inside, segment.tip))
        x += long
    return x, "".join(parts)


def _legend(legend: tuple[tuple[str, str], ...], width: float, y: float) -> tuple[str, float]:
    x, parts = 0.0, []
    for css, words in legend:
        wide = 18 + text_width(words, 12) + 16
        if x and x + wide > width:
            x, y = 0.0, y + 20
        parts += [rect(x, y + 1, 12, 12, css), text(x + 18, y + 11, words, "tick")]
        x += wide
    return "".join(parts), y + 28
