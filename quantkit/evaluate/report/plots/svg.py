"""Elements of a picture: escaped always, short numbers, shapes."""

from collections.abc import Iterable
from html import escape
from math import cos, pi, sin

from quantkit.evaluate.report.palette import Look, Shape
from quantkit.evaluate.report.plots.widths import text_width
from quantkit.text import printable

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


def line(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    """Return a line.

    Args:
        x1: Where it begins, in pixels.
        y1: Where it begins.
        x2: Where it ends.
        y2: Where it ends.
        css: Its class.
    """
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=css)


def rect(x: float, y: float, width: float, height: float, css: str) -> str:
    """Return a rectangle; one of negative width has none.

    Args:
        x: Its left, in pixels.
        y: Its top.
        width: Below zero: 0.
        height: In pixels.
        css: Its class.
    """
    return tag("rect", x=x, y=y, width=max(0.0, width), height=max(0.0, height), class_=css)


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
