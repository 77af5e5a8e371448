"""The ground of the picture: axes, lanes for what is off them, float's line and band, the gate's lines.

The y axis shows what is worth showing: one broken candidate must not flatten all others. The x axis is size. Candidates mostly lie close together, far from float, which then gets a lane of its own.
"""

from dataclasses import dataclass

from quantkit.evaluate.report.plots.labels import Box
from quantkit.evaluate.report.plots.points import Point, Points
from quantkit.evaluate.report.plots.svg import Scale, line, rect, text, text_width

__all__ = [
    "SIGN",
    "Across",
    "Frame",
    "Window",
    "across",
    "apart",
    "frame_of",
    "gate_words",
    "ground",
    "window",
]

_ACROSS_FAR = 0.6  # float stands apart if all candidates are smaller than this part of it
_SPAN = 0.06  # at least so much of float's size is shown, or trifles would look large
_NEXT = 13.0  # pixels between marks that would cover each other
_TRIES = (0, 1, -1, 2, -2, 3, -3, 4, -4)


@dataclass(frozen=True, slots=True)
class Across:
    """Where sizes lie.

    Attributes:
        scale: Of per cents of float's size.
        reference: Where float stands.
        gap: Where the axis is broken; None: it is not.
    """

    scale: Scale
    reference: float
    gap: float | None


def across(found: Points, plot: Box, *, small: bool) -> Across:
    """Choose the range.

    Args:
        found: What is drawn.
        plot: Where, in pixels.
        small: For a narrow page.
    """
    sizes = [100 * p.x for p in found.candidates]
    right = plot.x + plot.width
    if not sizes or max(sizes) > 100 * _ACROSS_FAR:
        scale = Scale(0, 1.1 * max([100.0, *sizes]), plot.x, right)
        return Across(scale, scale(100 * found.reference.x), None)
    middle, span = (min(sizes) + max(sizes)) / 2, max(max(sizes) - min(sizes), 100 * _SPAN) * 1.5
    low = max(0.0, middle - span / 2)
    lane = 72.0 if small else 130.0
    scale = Scale(low, low + span, plot.x, right - lane)
    return Across(scale, right - lane / 2, right - lane)


def apart(
    spots: list[tuple[float, float]], extents: list[tuple[float, float]]
) -> list[tuple[float, float]]:
    """Move marks aside where they would cover each other: same place across, overlapping extents (top, bottom)."""
    placed: list[tuple[float, float]] = []
    for (x, y), (top, bottom) in zip(spots, extents, strict=True):
        near = [
            other
            for (other, _), (above, below) in zip(placed, extents, strict=False)
            if top < below and above < bottom
        ]
        tried = [x + _NEXT * step for step in _TRIES]
        free = next((t for t in tried if all(abs(t - other) >= _NEXT - 0.1 for other in near)), x)
        placed.append((free, y))
    return placed


_FAR = 3.0  # as many times the height of all better ones makes a candidate go off the scale
_PAD = 0.12


@dataclass(frozen=True, slots=True)
class Window:
    """The range shown.

    Attributes:
        low: Its lower end.
        high: Its upper end.
        identical: Whether some model has no figure because nothing changed.
        beyond: Whether some candidate lies off the scale.
    """

    low: float
    high: float
    identical: bool
    beyond: bool

    def outside(self, value: float) -> bool:
        """Whether a figure lies off the scale."""
        return not self.low <= value <= self.high

    def shows(self, point: Point) -> bool:
        """Whether a model lies on the scale."""
        return point.y is not None and not self.outside(point.y)

    def holds(self, point: Point) -> bool:
        """Whether the whole interval of a model lies on the scale."""
        return not any(self.outside(end) for end in (point.low, point.high) if end is not None)


def window(found: Points) -> Window:
    """Choose the range: float, the candidates that are not far worse than the rest, the gate's limit if it is near.

    Float's band may reach beyond it: differences on the same samples are far smaller than what other samples would do.
    """
    everyone = [p for p in (found.reference, *found.candidates) if p.y is not None]
    identical = len(everyone) <= len(found.candidates)
    if not everyone:
        return Window(0, 1, identical=True, beyond=False)
    sign = 1 if found.upwards else -1
    ends: list[float] = []
    kept = 0
    for point in sorted(everyone, key=lambda p: -sign * (p.y or 0)):
        extent = _extent(point, whiskers=point is not found.reference)
        if kept > 1 and _is_far(ends, extent):
            break
        ends += extent
        kept += 1
    if found.limit is not None and not _is_far(ends, [found.limit]):
        ends.append(found.limit)
    low, high = min(ends), max(ends)
    pad = (high - low) * _PAD or abs(high) * 0.05 or 1.0
    # Where an accuracy is nearly perfect, the scale must not promise more than all.
    least, most = found.bounds
    low, high = max(low - pad, least), min(high + pad, most)
    return Window(low, high, identical=identical, beyond=kept < len(everyone))


def _is_far(ends: list[float], extent: list[float]) -> bool:
    """Whether the gap between what is shown and what comes next is many times what is shown."""
    gap = max(0.0, min(ends) - max(extent), min(extent) - max(ends))
    height = max(ends) - min(ends)
    return bool(height) and gap > _FAR * height


def _extent(point: Point, *, whiskers: bool) -> list[float]:
    ends = (point.low, point.high, point.y) if whiskers else (point.y,)
    return [v for v in ends if v is not None]


SIGN = 5.5  # radius of a model's sign
_LANE = 46.0  # height of the lanes for what is not on the scale
_NAMED_SMALL, _NAMED = 3, 9  # as many candidates have their names in a narrow and in a wide picture


@dataclass(frozen=True, slots=True)
class Frame:
    """Where the parts of the picture are, and its scales."""

    plot: Box
    across: Across
    y: Scale
    window: Window
    small: bool
    listed: bool  # names go below the picture

    def height(self, point: Point) -> float:
        """Return where a model lies, in a lane if it is not on the scale."""
        if point.y is None:
            return self.plot.y + _LANE / 2
        if not self.window.shows(point):
            down = self.y.end < self.y.start
            return self.plot.y + (self.plot.height - _LANE / 2 if down else _LANE / 2)
        return self.y(point.y)

    def extent(self, point: Point) -> tuple[float, float]:
        """From the top to the bottom of a mark and its whisker."""
        at = self.height(point)
        ends = [at - SIGN - 3, at + SIGN + 3]
        if self.window.shows(point):
            ends += [self.y.clamped(v) for v in (point.low, point.high) if v is not None]
        return min(ends), max(ends)


def frame_of(found: Points, width: float, edge: float, *, small: bool) -> Frame:
    """Lay out the picture within its width, `edge` away from it.

    Args:
        found: What is drawn.
        width: Of the picture, in pixels.
        edge: Left free at both sides, in pixels.
        small: For a narrow page.
    """
    shown = window(found)
    left, top = (40.0 if small else 48.0) + edge, 30.0 + 2 * edge
    plot = Box(left, top, width - left - edge - 2, 330.0 if small else 400.0)
    bottom, ceiling = plot.y + plot.height, plot.y
    if found.upwards:
        ends = bottom - _LANE * shown.beyond, ceiling + _LANE * shown.identical
    else:  # less is better: what is off the scale lies above it
        ends = bottom, ceiling + _LANE * shown.beyond
    scale = Scale(shown.low, shown.high, *ends)
    listed = len(found.candidates) > (_NAMED_SMALL if small else _NAMED)
    return Frame(plot, across(found, plot, small=small), scale, shown, small, listed)


def ground(found: Points, frame: Frame, edge: float) -> str:
    """Draw all that lies below the marks; `edge` is where the words at the left begin.

    Args:
        found: What is drawn.
        frame: Where, and with which scales.
        edge: Where the words at the left begin, in pixels.
    """
    return _band(found, frame) + _grid(found, frame, edge) + _limits(found, frame)


def _grid(found: Points, frame: Frame, edge: float) -> str:
    plot, parts = frame.plot, []
    right, bottom = plot.x + plot.width, plot.y + plot.height
    for value, words in frame.y.ticks(5):
        y = frame.y(value)
        parts += [line(plot.x, y, right, y, "grid"), text(plot.x - 8, y + 4, words, "tick", "end")]
    gap = frame.across.gap
    for value, words in frame.across.scale.ticks(4 if frame.small else 8):
        x = frame.across.scale(value)
        parts += [line(x, bottom, x, bottom + 5, "axis")]
        parts += [text(x, bottom + 19, words, "tick", "middle")]
    if gap is not None:
        x = frame.across.reference
        parts += [line(gap, plot.y, gap, bottom, "break"), line(x, bottom, x, bottom + 5, "axis")]
        parts += [text(x, bottom + 19, "100", "tick", "middle")]
    if frame.window.identical:
        y = plot.y + _LANE
        parts += [line(plot.x, y, right, y, "break")]
        parts += [text(plot.x + 6, plot.y + 13, "the same numbers", "tick")]
    if frame.window.beyond:
        y = bottom - _LANE if found.upwards else plot.y + _LANE
        parts += [line(plot.x, y, right, y, "break")]
        parts += [text(plot.x + 6, y + (15 if found.upwards else -6), "off the scale", "tick")]
    parts += [line(plot.x, bottom, (gap or right) - (6 if gap else 0), bottom, "axis")]
    parts += [line(gap + 6, bottom, right, bottom, "axis")] if gap else []
    parts += [text(edge, plot.y - 14, found.label, "label")]
    parts += [text(right, bottom + 38, "size, % of float", "label", "end")]
    return "".join(parts)


def _band(found: Points, frame: Frame) -> str:
    """Draw float's interval behind everything; one that exceeds the axis is a whisker of float's mark instead."""
    low, high = found.reference.low, found.reference.high
    if low is None or high is None or low == high or not frame.window.holds(found.reference):
        return ""
    ends = sorted((frame.y(low), frame.y(high)))
    return rect(frame.plot.x, ends[0], frame.plot.width, ends[1] - ends[0], "band")


def _limits(found: Points, frame: Frame) -> str:
    """Draw float's line, and the gate's."""
    plot, scale = frame.plot, frame.across.scale
    right, bottom = plot.x + plot.width, plot.y + plot.height
    y = frame.height(found.reference)
    parts = [line(plot.x, y, right, y, "reference")]
    if found.limit is not None and not frame.window.outside(found.limit):
        y = frame.y(found.limit)
        parts += [line(plot.x, y, right, y, "limit")]
        parts += [text(_drop_words_end(frame), y + 15, "gate: drop", "tick limit-text", "end")]
    if found.size_limit is not None and scale.low < 100 * found.size_limit < scale.high:
        x = scale(100 * found.size_limit)
        parts += [line(x, plot.y, x, bottom, "limit")]
        parts += [text(x + 5, plot.y + 11, "gate: size", "tick limit-text")]
    return "".join(parts)


def _drop_words_end(frame: Frame) -> float:
    """Return where the words at the gate's drop end: at the right, or left of float where there is no room beside it."""
    right, x = frame.plot.x + frame.plot.width - 4, frame.across.reference
    return right if right - text_width("gate: drop", 12) > x + 2 else x - SIGN - 4


def gate_words(found: Points, frame: Frame) -> list[Box]:
    """Return what the words at the gate's lines, and the line of the size, take."""
    boxes, plot = [], frame.plot
    if found.limit is not None:
        y = frame.y.clamped(found.limit)
        boxes.append(Box(_drop_words_end(frame) - 60, y, 64, 18))
    if found.size_limit is not None:
        x = frame.across.scale.clamped(100 * found.size_limit)
        boxes += [Box(x, plot.y, 62, 16), Box(x - 2, plot.y, 4, plot.height)]
    return boxes
