"""Elements of a picture (escaped always, short numbers, shapes), scales with round ticks, and how wide words are."""

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from math import ceil, cos, floor, log10, pi, sin

from quantkit.evaluate.report.numbers import decimals
from quantkit.evaluate.report.palette import Look, Shape
from quantkit.text import printable

_ELLIPSIS = "…"
_SHORTEST = 3  # characters of what was cut
# Widths in sizes of the font, as in Helvetica and its like: no font is at hand.
_WIDTHS = dict.fromkeys("ijl'|", 0.25) | dict.fromkeys(" .,:;!·/ftI\xa0", 0.31)
_WIDTHS |= dict.fromkeys("r()[]-", 0.36) | dict.fromkeys("mwMW%@", 0.86)
_LETTER, _CAPITAL, _IDEOGRAPH = 0.56, 0.7, 1.1
_WIDE = {"W", "F"}

LEGEND_ROW = 22.0
"""Height of a row of a legend, in pixels."""


def _number(value: float | str) -> str:
    if isinstance(value, str):
        return "&#10;".join(escape(printable(row), quote=True) for row in value.split("\n"))
    return f"{value:.1f}".removesuffix(".0")


def tag(name: str, content: str = "", **attributes: float | str | None) -> str:
    """Return an element. `content` is SVG already; attributes are escaped; None leaves one out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_number(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{written}>{content}</{name}>" if content else f"<{name}{written}/>"


def text(x: float, y: float, content: str, css: str = "", anchor: str = "start") -> str:
    """Return words.

    Args:
        x: Of the anchor, in pixels.
        y: Of the line that letters stand on.
        content: The words; they are escaped.
        css: Its class.
        anchor: Which part of the words is at x: "start", "middle" or "end".
    """
    where = None if anchor == "start" else anchor
    words = escape(printable(content), quote=False)
    return tag("text", words, x=x, y=y, class_=css or None, text_anchor=where)


def line(x1: float | str, y1: float, x2: float | str, y2: float, css: str) -> str:
    """Return a line.

    Args:
        x1: Where it begins, in pixels; or in per cent, as "5%".
        y1: Where it begins.
        x2: Where it ends.
        y2: Where it ends.
        css: Its class.
    """
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=css)


def rect(x: float | str, y: float, width: float | str, height: float, css: str) -> str:
    """Return a rectangle; one of negative width has none.

    Args:
        x: Its left, in pixels; or in per cent, as "5%".
        y: Its top.
        width: Below zero: 0.
        height: In pixels.
        css: Its class.
    """
    wide = width if isinstance(width, str) else max(0.0, width)
    return tag("rect", x=x, y=y, width=wide, height=max(0.0, height), class_=css)


def _polygon(points: list[tuple[float, float]], css: str) -> str:
    return tag("polygon", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points), class_=css)


def shape(kind: Shape, x: float, y: float, r: float, css: str) -> str:
    """Return a sign; all kinds look equally large at the same `r`.

    Args:
        kind: Which sign.
        x: Of its middle, in pixels.
        y: Of its middle.
        r: Its radius.
        css: Its class.
    """
    if kind == "circle":
        return tag("circle", cx=x, cy=y, r=r, class_=css)
    if kind == "square":
        s = r * 0.9
        return rect(x - s, y - s, 2 * s, 2 * s, css)
    if kind == "cross":
        a, b = r * 1.15, r * 0.42
        outline = [(-b, -a), (b, -a), (b, -b), (a, -b), (a, b), (b, b)]
        outline += [(b, a), (-b, a), (-b, b), (-a, b), (-a, -b), (-b, -b)]
        return _polygon([(x + u, y + v) for u, v in outline], css)
    corners, turn, grow = {
        "diamond": (4, -pi / 2, 1.25),
        "up": (3, -pi / 2, 1.35),
        "down": (3, pi / 2, 1.35),
        "hexagon": (6, 0.0, 1.1),
    }[kind]
    angles = [turn + 2 * pi * i / corners for i in range(corners)]
    return _polygon([(x + grow * r * cos(a), y + grow * r * sin(a)) for a in angles], css)


def key(look: Look) -> str:
    """Return a model's sign on its own, to stand before its name."""
    sign = shape(look.shape, 7, 7, 4.6, f"fill {look.css}")
    return tag(
        "svg", sign, class_="key", viewBox="0 0 14 14", width=14, height=14, aria_hidden="true"
    )


def legend(keys: Iterable[tuple[str, str]], top: float, width: float) -> tuple[str, float]:
    """Return signs with their words in as many rows as the width asks for, and where the last row is.

    Args:
        keys: Each sign is SVG around (10, 0).
        top: The middle of the first row, in pixels.
        width: In pixels.
    """
    x, y, parts = 0.0, top, []
    for sign, words in keys:
        wide = 30 + text_width(words, 12) + 18
        if x and x + wide > width + 18:
            x, y = 0.0, y + LEGEND_ROW
        parts += [tag("g", sign, transform=f"translate({x:.1f},{y:.1f})")]
        parts += [text(x + 28, y + 4, words, "tick")]
        x += wide
    return "".join(parts), y


def arrow(x: float, y: float, dx: float, dy: float, css: str) -> str:
    """Return the head of an arrow that points out of the picture, for what ends beyond it; one of dx, dy is 0.

    Args:
        x: Of its tip, in pixels.
        y: Of its tip.
        dx: -1, 0 or 1: where it points.
        dy: -1, 0 or 1.
        css: Its class.
    """
    return "".join(
        line(x, y, x - 6 * dx + side * dy * 4, y - 6 * dy + side * dx * 4, css) for side in (-1, 1)
    )


def mark(content: str, tip: str, css: str = "") -> str:
    """Return something that tells more when pointed at or reached by keyboard.

    Args:
        content: SVG.
        tip: What it tells, in words.
        css: Its class.
    """
    return tag(
        "g",
        content,
        class_=f"mark {css}".strip(),
        tabindex="0",
        role="img",
        aria_label=tip,
        data_tip=tip,
    )


def picture(width: float, height: float, label: str, content: str) -> str:
    """Return the whole, with a label for those who do not see it.

    It is no single image to assistive technology: its marks have labels of their own.

    Args:
        width: In pixels.
        height: In pixels.
        label: What it shows, in words.
        content: SVG.
    """
    return tag(
        "svg",
        content,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        width=width,
        height=height,
        class_="plot",
        role="group",
        aria_label=label,
    )


def nice_step(span: float, count: int) -> float:
    """Return 1, 2 or 5 times a power of ten so that about `count` steps make the span."""
    rough = max(span, 1e-12) / max(count, 1)
    power: float = 10.0 ** floor(log10(rough))
    return next(power * m for m in (1, 2, 5, 10) if power * m >= rough * 0.999)


@dataclass(frozen=True, slots=True)
class Scale:
    """A straight scale: `low` lies at `start`, `high` at `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the place of a figure."""
        span = self.high - self.low or 1.0
        return self.start + (value - self.low) / span * (self.end - self.start)

    def holds(self, value: float) -> bool:
        """Whether a figure lies on the scale."""
        return self.low <= value <= self.high

    def clamped(self, value: float) -> float:
        """Return the place of a figure, at the edge for what lies beyond."""
        return self(min(max(value, self.low), self.high))

    def ticks(self, count: int) -> list[tuple[float, str]]:
        """Return round figures on the scale with their words, all with the same decimals."""
        step = nice_step(self.high - self.low, count)
        digits = max(0, -floor(log10(step) + 1e-9))
        first, last = ceil(self.low / step - 1e-9), floor(self.high / step + 1e-9)
        return [(i * step, decimals(i * step, digits)) for i in range(first, last + 1)]


def whisker(scale: Scale, ends: tuple[float, float], x: float, css: str) -> str:
    """Return an interval along an upright scale; an end beyond the scale is an arrow.

    Args:
        scale: From the bottom to the top, or the other way round.
        ends: Of the interval.
        x: Its place across, in pixels.
        css: The class of the model's look.
    """
    css = f"whisker {css}"
    places = [scale.clamped(end) for end in ends]
    parts = [line(x, places[0], x, places[1], css)]
    for end, y in zip(ends, places, strict=True):
        out = 1 if (end > scale.high) == (scale.end > scale.start) else -1
        bar = scale.holds(end)
        parts.append(line(x - 5, y, x + 5, y, css) if bar else arrow(x, y, 0, out, css))
    return "".join(parts)


def text_width(content: str, size: float = 13) -> float:
    """Estimate how wide words are."""
    return size * sum(map(_letter_width, content))


def _letter_width(letter: str) -> float:
    if unicodedata.east_asian_width(letter) in _WIDE:
        return _IDEOGRAPH
    return _WIDTHS.get(letter, _CAPITAL if letter.isupper() else _LETTER)


def shorten(content: str, width: float, size: float = 13) -> str:
    """Cut the middle out of a long text: names of nodes differ at both ends.

    Args:
        content: The text.
        width: What it may take, in pixels.
        size: Of the letters, in pixels.
    """
    whole = text_width(content, size)
    if whole <= width or len(content) <= _SHORTEST + 1:
        return content
    room = min(int(len(content) * width / whole), len(content) - 2)  # and the dots
    while (short := _cut(content, room)) and text_width(short, size) > width and room > _SHORTEST:
        room -= 1
    return short


def _cut(content: str, room: int) -> str:
    """Keep so many characters, two thirds of them from the end."""
    kept = max(room, _SHORTEST)
    head = kept // 3
    return content[:head] + _ELLIPSIS + content[len(content) - (kept - head) :]
