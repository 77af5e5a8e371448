"""The ground of the picture: axes, lanes for what is off them, float's line and band, the gate's lines."""

from dataclasses import dataclass

from quantkit.report.plots.across import Across, across
from quantkit.report.plots.labels import Box
from quantkit.report.plots.points import Point, Points
from quantkit.report.plots.scale import Scale
from quantkit.report.plots.svg import line, rect, text
from quantkit.report.plots.window import Window, window

__all__ = ["SIGN", "Frame", "frame_of", "gate_words", "ground"]

SIGN = 5.5  # radius of a model's sign
_LANE = 46.0  # height of the lanes for what is not on the scale
_NAMED_SMALL, _NAMED = 3, 9  # as many candidates have their names in a narrow and in a wide picture


@dataclass(frozen=True, slots=True)
class Frame:
    """Where things are."""

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
    """Lay out the picture within its width, `edge` away from it."""
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
    """Draw all that lies below the marks; `edge` is where the words at the left begin."""
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
        parts += [
            line(x, bottom, x, bottom + 5, "axis"),
            text(x, bottom + 19, words, "tick", "middle"),
        ]
    if gap is not None:
        x = frame.across.reference
        parts += [line(gap, plot.y, gap, bottom, "break"), line(x, bottom, x, bottom + 5, "axis")]
        parts += [text(x, bottom + 19, "100", "tick", "middle")]
    if frame.window.identical:
        y = plot.y + _LANE
        parts += [
            line(plot.x, y, right, y, "break"),
            text(plot.x + 6, plot.y + 13, "the same numbers", "tick"),
        ]
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
    """Where another draw of samples would put float."""
    low, high = found.reference.low, found.reference.high
    if low is None or high is None or low == high:
        return ""
    ends = sorted((frame.y.clamped(low), frame.y.clamped(high)))
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
        parts += [text(right - 4, y + 15, "gate: drop", "tick limit-text", "end")]
    if found.size_limit is not None and scale.low < 100 * found.size_limit < scale.high:
        x = scale(100 * found.size_limit)
        parts += [line(x, plot.y, x, bottom, "limit")]
        parts += [text(x + 5, plot.y + 11, "gate: size", "tick limit-text")]
    return "".join(parts)


def gate_words(found: Points, frame: Frame) -> list[Box]:
    """Return what the words at the gate's lines, and the line of the size, take."""
    boxes, plot = [], frame.plot
    if found.limit is not None:
        y = frame.y.clamped(found.limit)
        boxes.append(Box(plot.x + plot.width - 64, y, 64, 18))
    if found.size_limit is not None:
        x = frame.across.scale.clamped(100 * found.size_limit)
        boxes += [Box(x, plot.y, 62, 16), Box(x - 2, plot.y, 4, plot.height)]
    return boxes
