"""The picture: what accuracy costs in bytes, float as reference, a disc as large as the time of a run."""

from importlib.resources import files
from math import sqrt
from typing import Literal

from quantkit.evaluate.report.palette import Theme, resolved
from quantkit.evaluate.report.plots.frame import SIGN, Frame, apart, frame_of, gate_words, ground
from quantkit.evaluate.report.plots.labels import SOLID, Box, Placed, legend, place
from quantkit.evaluate.report.plots.points import Point, Points, points
from quantkit.evaluate.report.plots.svg import (
    NARROW,
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
from quantkit.result import Result

__all__ = ["accuracy_size_svg", "style_of"]

_RING = 21.0  # radius of float's disc
_LARGEST = 46.0  # radius of any disc


def accuracy_size_svg(
    result: Result,
    *,
    width: int = 860,
    standalone: bool = True,
    theme: Theme | Literal["auto"] = "auto",
) -> str:
    """Draw it.

    Args:
        result: Of an evaluation.
        width: In pixels; below 560 the names go without their figures.
        standalone: A file of its own, with its style, ground and title; else it belongs into the page.
        theme: Of a file of its own; "auto" follows the reader's.
    """
    found = points(result)
    edge = 20.0 if standalone else 0.0
    frame = frame_of(found, width, edge, small=width < NARROW)
    content = ground(found, frame, edge)
    content += _marks(found, frame)
    below = frame.plot.y + frame.plot.height + 62
    drawn, height = legend(
        found,
        edge,
        below,
        width - 2 * edge,
        listed=frame.listed,
        band=frame.window.holds(found.reference),
    )
    content += drawn
    height += edge
    label = f"{found.label} against size, {len(found.candidates)} candidates"
    if standalone:
        title = text(edge, 34, shorten(result.title, width - 2 * edge, 19), "title")
        below_all = tag("style", style_of(theme)) + rect(0, 0, width, height, "ground")
        content = below_all + title + content
    return picture(width, height, label, content)


def style_of(theme: Theme | Literal["auto"]) -> str:
    """Return the style sheet of a picture that is a file of its own."""
    css = (files("quantkit.evaluate.report") / "templates" / "plot.css").read_text(encoding="utf-8")
    if theme != "auto":
        return resolved(css, theme)
    return resolved(css, "light") + f"@media (prefers-color-scheme:dark){{{resolved(css, 'dark')}}}"


def _radius(time: float | None) -> float:
    """Area in proportion to time."""
    return SIGN + 2 if time is None else max(SIGN + 1, min(_LARGEST, _RING * sqrt(max(time, 0.0))))


def _marks(found: Points, frame: Frame) -> str:
    rows = found.candidates
    spots = [(frame.across.scale(100 * p.x), frame.height(p)) for p in rows]
    spots = apart(spots, [frame.extent(p) for p in rows])
    home = frame.across.reference, frame.height(found.reference)
    # large discs lie below small ones, so that each can be pointed at
    order = sorted(range(len(rows)), key=lambda i: -_radius(rows[i].time))
    marks = "".join(_disc(rows[i], *spots[i]) for i in order) + _mark(found.reference, *home, frame)
    marks += "".join(_mark(rows[i], *spots[i], frame) for i in range(len(rows)))
    names = ""
    if not frame.listed:
        placed = _places(found, spots, home, frame)
        names = "".join(_name(p, at, frame) for p, at in zip(rows, placed, strict=True))
    return marks + names + _float_name(found.reference, *home, frame)


def _float_name(point: Point, x: float, y: float, frame: Frame) -> str:
    """Write float's name above its disc, or above its whisker where that is drawn."""
    top = y - _radius(point.time)
    if not frame.window.holds(point):
        top = min(top, frame.extent(point)[0])
    room = min(120.0, 2 * (frame.plot.x + frame.plot.width - x))
    return text(x, top - 8, shorten(point.name, room), "name", "middle")


def _disc(point: Point, x: float, y: float) -> str:
    if point.time is None:
        return ""
    ring = tag("circle", cx=x, cy=y, r=_RING, class_="ring")
    return tag("circle", cx=x, cy=y, r=_radius(point.time), class_=f"disc {point.look.css}") + ring


def _mark(point: Point, x: float, y: float, frame: Frame) -> str:
    css = point.look.css
    parts = [tag("circle", cx=x, cy=y, r=_radius(point.time), class_="hit")]
    parts += [_disc(point, x, y)] if css == "float" else []
    on_scale = frame.window.shows(point)
    has_band = css == "float" and frame.window.holds(point)
    if on_scale and not has_band and point.low is not None and point.high is not None:
        ends = [(frame.y.clamped(v), v) for v in (point.low, point.high)]
        parts += [line(x, ends[0][0], x, ends[1][0], f"whisker {css}")]
        parts += [_end(x, end, value, frame, css) for end, value in ends]
    if point.y is not None and not on_scale:
        down = frame.height(point) > frame.plot.y + frame.plot.height / 2
        parts += [text(x, y + (20 if down else -11), "↓" if down else "↑", "tick", "middle")]
    parts += [shape(point.look.shape, x, y, SIGN, f"sign {css}")]
    return mark("".join(parts), point.tip)


def _end(x: float, y: float, value: float, frame: Frame, css: str) -> str:
    """Draw the end of a whisker: a bar, or an arrow where it goes on beyond the picture."""
    if frame.window.outside(value):
        up = value > frame.window.high
        return arrow(x, y, 0, -1 if up else 1, f"whisker {css}")
    return line(x - 5, y, x + 5, y, f"whisker {css}")


def _words(point: Point, frame: Frame) -> tuple[str, str]:
    note = "fails the gate" if point.failed else ""
    if frame.small:
        return shorten(point.name, 150, 13), note
    return shorten(point.name, 330, 13), " · ".join(w for w in (point.words, note) if w)


def _places(
    found: Points, spots: list[tuple[float, float]], home: tuple[float, float], frame: Frame
) -> list[Placed]:
    """Place the names: signs, whiskers and names must not be covered, lines should not, discs may."""
    wanted, taken, plot = [], [], frame.plot
    for point, (x, y) in zip(found.candidates, spots, strict=True):
        first, second = _words(point, frame)
        wide = max(text_width(first, 14), text_width(second, 12)) + 4
        r, (top, bottom) = _radius(point.time), frame.extent(point)
        wanted.append((x, y, min(r, _RING), wide, 32.0 if second else 17.0))
        taken += [(Box(x - 8, top, 16, bottom - top), SOLID)]
        taken += [(Box(x - r, y - r, 2 * r, 2 * r), 0.7)]
    lines = [frame.height(found.reference)]
    lines += [frame.y.clamped(found.limit)] if found.limit is not None else []
    taken += [(Box(plot.x, y - 2, plot.width, 4), 1.5) for y in lines]
    taken += [(Box(home[0] - 48, home[1] - 46, 96, 70), SOLID)]
    taken += [(box, SOLID) for box in gate_words(found, frame)]
    return place(wanted, taken, Box(plot.x + 2, plot.y - 2, plot.width, plot.height))


def _name(point: Point, at: Placed, frame: Frame) -> str:
    first, second = _words(point, frame)
    box, parts = at.box, []
    if at.leader is not None:
        parts.append(line(*at.leader, "leader"))
    parts.append(text(at.x, box.y + 13, first, "name", at.anchor))
    if second:
        css = "figures fails" if point.failed else "figures"
        parts.append(text(at.x, box.y + 28, second, css, at.anchor))
    return "".join(parts)
