"""What disc, ring, whisker and band of the picture mean."""

from quantkit.report.plots.points import Points
from quantkit.report.plots.svg import line, rect, shape, shorten, tag, text, text_width

__all__ = ["legend"]

_ROW = 22.0
_CANDIDATE = 40.0
_COLUMN = 330.0  # at least, of names and figures


def legend(
    found: Points, left: float, top: float, width: float, *, listed: bool
) -> tuple[str, float]:
    """Draw the keys that the picture needs, in as many rows as the width asks for; return where they end.

    `listed`: the candidates too, because the picture has no room for their names.
    """
    names, y = _names(found, left, top, width) if listed else ("", top)
    x, parts = left, [names]
    for sign, words in _keys(found):
        wide = 30 + text_width(words, 12) + 18
        if x > left and x + wide > left + width + 18:
            x, y = left, y + _ROW
        parts += [
            tag("g", sign, transform=f"translate({x:.1f},{y:.1f})"),
            text(x + 28, y + 4, words, "tick"),
        ]
        x += wide
    if found.missing:
        y += _ROW
        words = f"not in the picture, for want of a figure: {', '.join(found.missing)}"
        parts.append(text(left, y + 4, shorten(words, width, 12), "tick"))
    return "".join(parts), y + 14


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


def _keys(found: Points) -> list[tuple[str, str]]:
    keys = []
    if found.runs:
        disc = tag("circle", cx=10, cy=0, r=6.5, class_="disc s0")
        ring = tag("circle", cx=10, cy=0, r=9.5, class_="ring")
        keys += [(disc, "disc: time per run"), (ring, f"ring: float's time ({found.runs})")]
    if any(p.low is not None for p in found.candidates):
        ends = "".join(line(6, y, 14, y, "whisker float") for y in (-8, 8))
        keys += [(line(10, -8, 10, 8, "whisker float") + ends, f"whisker: {found.whiskers}")]
    if found.reference.low is not None and found.reference.low != found.reference.high:
        keys += [
            (
                rect(2, -7, 16, 14, "band") + line(2, 0, 18, 0, "reference"),
                "float and its own interval",
            )
        ]
    return keys
