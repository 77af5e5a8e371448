"""Names beside marks so that nothing covers anything, and the legend: what disc, ring, whisker and band mean."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import cos, hypot, inf, pi, sin
from typing import Literal

from quantkit.evaluate.report.plots.points import Points
from quantkit.evaluate.report.plots.svg import line, rect, shape, shorten, tag, text, text_width

__all__ = ["SOLID", "Box", "Placed", "key_rows", "legend", "place"]

_ROW = 22.0
_CANDIDATE = 40.0
_COLUMN = 330.0  # at least, of names and figures


def legend(
    found: Points, left: float, top: float, width: float, *, listed: bool, band: bool
) -> tuple[str, float]:
    """Draw the keys that the picture needs, in as many rows as the width asks for; return where they end.

    `listed`: the candidates too, because the picture has no room for their names.

    Args:
        found: What is drawn.
        left: Where it begins, in pixels.
        top: Where its first row is, in pixels.
        width: Where a row ends, in pixels.
        listed: The candidates too, because the picture has no room for their names.
        band: Float's interval is drawn as a band; else as a whisker.
    """
    names, y = _names(found, left, top, width) if listed else ("", top)
    keys, y = key_rows(_keys(found, band=band), left, y, width)
    parts = [names, keys]
    if found.missing:
        y += _ROW
        words = f"not in the picture, for want of a figure: {', '.join(found.missing)}"
        parts.append(text(left, y + 4, shorten(words, width, 12), "tick"))
    return "".join(parts), y + 14


def key_rows(
    keys: Sequence[tuple[str, str]], left: float, top: float, width: float
) -> tuple[str, float]:
    """Draw signs with their words in as many rows as the width asks for; return where the last row is.

    Args:
        keys: The sign, drawn around (10, 0), and its words.
        left: Where rows begin, in pixels.
        top: Where the first is.
        width: Where they end.
    """
    x, y, parts = left, top, []
    for sign, words in keys:
        wide = 30 + text_width(words, 12) + 18
        if x > left and x + wide > left + width + 18:
            x, y = left, y + _ROW
        parts += [tag("g", sign, transform=f"translate({x:.1f},{y:.1f})")]
        parts += [text(x + 28, y + 4, words, "tick")]
        x += wide
    return "".join(parts), y


def _names(found: Points, left: float, top: float, width: float) -> tuple[str, float]:
    """Draw the candidates' names and figures, in columns; return where they end."""
    columns = max(1, int(width // _COLUMN))
    room, parts = width / columns, []
    for i, point in enumerate(found.candidates):
        x, y = left + room * (i % columns), top + _CANDIDATE * (i // columns)
        css = "figures fails" if point.failed else "figures"
        note = " · fails the gate" if point.failed else ""
        parts += [shape(point.look.shape, x + 10, y - 1, 5.5, f"sign {point.look.css}")]
        parts += [text(x + 28, y + 4, shorten(point.name, room - 36), "name")]
        parts += [text(x + 28, y + 19, point.words + note, css)]
    return "".join(parts), top + _CANDIDATE * -(-len(found.candidates) // columns)


def _keys(found: Points, *, band: bool) -> list[tuple[str, str]]:
    keys = []
    if found.runs:
        disc = tag("circle", cx=10, cy=0, r=6.5, class_="disc s0")
        ring = tag("circle", cx=10, cy=0, r=9.5, class_="ring")
        keys += [(disc, "disc: time per run"), (ring, f"ring: float's time ({found.runs})")]
    if any(p.low is not None for p in found.candidates):
        ends = "".join(line(6, y, 14, y, "whisker float") for y in (-8, 8))
        keys += [(line(10, -8, 10, 8, "whisker float") + ends, f"whisker: {found.whiskers}")]
    if found.reference.low is not None and found.reference.low != found.reference.high:
        sign = rect(2, -7, 16, 14, "band") if band else ""
        words = "float and its own interval" if band else "float; its own interval exceeds the axis"
        keys += [(sign + line(2, 0, 18, 0, "reference"), words)]
    return keys


# Sixteenths of a turn; right first, then near it.
_TURNS = (0, -1, 1, -2, 2, -3, 3, -5, 5, -6, 6, 8, -7, 7, -4, 4)
_DISTANCES = (5, 9, 14, 22, 32, 44, 58, 76, 100, 130, 165)
_LEADER = 14  # a name further off than this is tied to its mark by a line
SOLID = 8.0  # how bad it is to cover what must be seen
_NAME = 10.0  # and to cover a name
_WAY = 4.0  # and each pixel of a line that leads to one
_TIED = 12.0  # pixels that a line costs however short
_CLEAR = 1.3  # other marks are as many times further from a name that needs no line


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle that is taken."""

    x: float
    y: float
    width: float
    height: float

    def overlap(self, other: "Box") -> float:
        """Return the area that both take."""
        wide = min(self.x + self.width, other.x + other.width) - max(self.x, other.x)
        if wide <= 0:
            return 0.0
        high = min(self.y + self.height, other.y + other.height) - max(self.y, other.y)
        return wide * high if high > 0 else 0.0

    def moved_into(self, other: "Box") -> "Box":
        """Return this one, moved as little as brings it into the other; as far as it fits."""
        x = min(max(self.x, other.x), max(other.x, other.x + other.width - self.width))
        y = min(max(self.y, other.y), max(other.y, other.y + other.height - self.height))
        return Box(x, y, self.width, self.height)

    def outside(self, other: "Box") -> float:
        """Return the area of this one that lies outside the other."""
        return self.width * self.height - self.overlap(other)


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a name goes.

    Attributes:
        box: What it takes.
        leader: From where to where a line ties it to its mark; None: it is near.
        anchor: The end of the words that faces the mark: their width is only estimated.
    """

    box: Box
    leader: tuple[float, float, float, float] | None
    anchor: Literal["start", "middle", "end"]

    @property
    def x(self) -> float:
        """Where the words are anchored."""
        part = {"start": 0.0, "middle": 0.5, "end": 1.0}[self.anchor]
        return self.box.x + part * self.box.width


@dataclass(frozen=True, slots=True)
class Wanted:
    """A name of a given size, for a mark at a place with a radius."""

    x: float
    y: float
    r: float
    width: float
    height: float


def place(
    wanted: Sequence[tuple[float, float, float, float, float]],
    taken: Sequence[tuple[Box, float]],
    inside: Box,
) -> list[Placed]:
    """Find a place for each (x, y, radius, width, height), in that order.

    The cheapest place wins. It costs the area of what is covered, times how bad that is (`taken` says so), the way from
    the mark, and dearly to cover a name or a line that leads to one, or to lead a line across a name.

    Args:
        wanted: x, y and radius of each mark, width and height of its name, in pixels.
        taken: What is there already, and how bad it is to cover it.
        inside: Where names may stand.
    """
    blocked, placed = list(taken), []
    marks = [Wanted(*each) for each in wanted]
    for mark in marks:
        others = [other for other in marks if other is not mark]
        best = _cheapest(mark, blocked, others, inside)
        leader = _leader(mark, best, others)
        blocked += [(best, _NAME), *((dot, _NAME) for dot in _dots(leader))]
        placed.append(Placed(best, leader, _anchor(mark, best)))
    return placed


def _cheapest(
    mark: Wanted, blocked: Sequence[tuple[Box, float]], others: Sequence[Wanted], inside: Box
) -> Box:
    """Return the place that costs least; what a line would cross is only counted where the rest is cheap."""
    solid = [
        (box, weight)
        for box, weight in blocked
        if weight >= SOLID and not box.overlap(Box(mark.x, mark.y, 1, 1))
    ]
    best, least = Box(mark.x, mark.y, mark.width, mark.height), inf
    for tried in _places(mark):
        box = tried.moved_into(inside)
        leader = _leader(mark, box, others)
        way = hypot(leader[2] - leader[0], leader[3] - leader[1]) + _TIED if leader else 0.0
        cost = _WAY * way + _NAME * box.outside(inside)
        if cost < least:
            cost += sum(weight * box.overlap(other) for other, weight in blocked)
        if cost < least:
            dots = _dots(leader)
            cost += sum(weight * dot.overlap(other) for other, weight in solid for dot in dots)
        if cost < least:
            best, least = box, cost
    return best


def _dots(leader: tuple[float, float, float, float] | None) -> list[Box]:
    """Return small boxes along a line, to find what it crosses."""
    if leader is None:
        return []
    x1, y1, x2, y2 = leader
    count = max(1, int(hypot(x2 - x1, y2 - y1) / 6))
    return [
        Box(x1 + (x2 - x1) * i / count - 2, y1 + (y2 - y1) * i / count - 2, 4, 4)
        for i in range(count)
    ]


def _places(mark: Wanted) -> Iterator[Box]:
    """Return all places tried, the nearest first; `min` keeps the first of the equally good."""
    for distance in _DISTANCES:
        for turn in _TURNS:
            angle = turn * pi / 8
            dx, dy = cos(angle), sin(angle)
            x, y = mark.x + (mark.r + distance) * dx, mark.y + (mark.r + distance) * dy
            # the box touches the point with the side that faces the mark
            left = x - mark.width * (1 - dx) / 2
            top = y - mark.height * (1 - dy) / 2
            yield Box(left, top, mark.width, mark.height)


def _anchor(mark: Wanted, box: Box) -> Literal["start", "middle", "end"]:
    if box.x >= mark.x:
        return "start"
    return "end" if box.x + box.width <= mark.x else "middle"


def _nearest(mark: Wanted, box: Box) -> tuple[float, float, float]:
    """Return the point of the box nearest to a mark, and how far off it is."""
    x = min(max(mark.x, box.x), box.x + box.width)
    y = min(max(mark.y, box.y), box.y + box.height)
    return x, y, hypot(x - mark.x, y - mark.y)


def _leader(
    mark: Wanted, box: Box, others: Sequence[Wanted]
) -> tuple[float, float, float, float] | None:
    """Tie a name to its mark if it is far off, or if another mark is about as near."""
    x, y, away = _nearest(mark, box)
    rival = min((_nearest(other, box)[2] for other in others), default=2 * away + 1)
    if away == 0 or (away < mark.r + _LEADER and rival > _CLEAR * away):
        return None
    start = min(mark.r / away, 0.5)
    return mark.x + (x - mark.x) * start, mark.y + (y - mark.y) * start, x, y
