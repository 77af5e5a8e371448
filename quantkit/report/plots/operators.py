"""Which operators came and went."""

from quantkit.report.numbers import MINUS
from quantkit.report.palette import Look
from quantkit.report.plots.scale import Scale
from quantkit.report.plots.svg import NARROW, line, mark, picture, rect, shape, shorten, tag, text
from quantkit.result import Changes

__all__ = ["operators"]

_SHOWN = 16


def operators(changes: Changes, look: Look, *, width: int) -> str:
    """Draw before and after for the operators whose number changed most; "" if none did."""
    most = sorted(changes.operators, key=lambda o: (-abs(o.after - o.before), o.op_type))[:_SHOWN]
    if not most:
        return ""
    small = width < NARROW
    left, right = (width * 0.46 if small else width * 0.27), width - 54.0
    height = 26.0
    scale = Scale(0, max(max(o.before, o.after) for o in most), left, right)
    top, bottom = 26.0, 26.0 + height * len(most)
    parts = [_legend(look, left)]
    for value, words in scale.ticks(4):
        if value == int(value):
            parts += [line(scale(value), top, scale(value), bottom, "grid")]
            parts += [text(scale(value), bottom + 15, words.split(".")[0], "tick", "middle")]
    for place, change in enumerate(most):
        y = top + height * (place + 0.5)
        before, after = scale(change.before), scale(change.after)
        name = shorten(change.op_type, left - 14, 13)
        sign = "+" if change.after > change.before else MINUS
        inside = rect(0, y - 13, width, 26, "hit")
        inside += line(before, y, after, y, f"stem {look.css}")
        inside += tag("circle", cx=before, cy=y, r=4.5, class_="hollow")
        inside += shape(look.shape, after, y, 5, f"sign {look.css}")
        inside += text(left - 12, y + 4, name, "name", "end")
        inside += text(
            max(before, after) + 11, y + 4, f"{sign}{abs(change.after - change.before)}", "figures"
        )
        parts.append(
            mark(inside, f"{change.op_type}: {change.before} before, {change.after} after")
        )
    return picture(width, bottom + 22, "operators before and after", "".join(parts))


def _legend(look: Look, x: float) -> str:
    parts = [tag("circle", cx=x, cy=8, r=4.5, class_="hollow"), text(x + 10, 12, "before", "tick")]
    parts += [
        shape(look.shape, x + 72, 8, 5, f"sign {look.css}"),
        text(x + 83, 12, "after", "tick"),
    ]
    return "".join(parts)
