"""Which layers bring the noise: the worst ones of a candidate."""

from quantkit.report import numbers
from quantkit.report.palette import Look
from quantkit.report.plots.scale import Scale
from quantkit.report.plots.svg import (
    NARROW,
    line,
    mark,
    names_width,
    picture,
    rect,
    shape,
    shorten,
    text,
)
from quantkit.result import Layer, Layers

__all__ = ["layers"]

_SHOWN = 16


def layers(found: Layers, look: Look, *, width: int) -> str:
    """Draw the share of the noise that each of the worst layers brings alone; "" if nothing drifts."""
    worst = [layer for layer in found.layers if layer.share > 0][:_SHOWN]
    if not worst:
        return ""
    small = width < NARROW
    room = names_width((layer.node for layer in worst), width, 0.1, 12) + 12
    left, right = (8.0, width - 64.0) if small else (room, width - 90.0)
    height = 40.0 if small else 25.0
    scale = Scale(0, max(layer.share for layer in worst) * 100, left, right)
    top, bottom = 22.0, 22.0 + height * len(worst)
    parts = [text(left, 11, "share of the noise, %", "tick")]
    for value, words in scale.ticks(4):
        parts += [line(scale(value), top, scale(value), bottom, "grid")]
        parts += [text(scale(value), bottom + 15, words, "tick", "middle")]
    for place, layer in enumerate(worst):
        y = top + height * (place + (0.74 if small else 0.5))
        parts.append(_layer(layer, look, scale, y, width, small=small))
    return picture(width, bottom + 22, "layers by their share of the noise", "".join(parts))


def _layer(layer: Layer, look: Look, scale: Scale, y: float, width: float, *, small: bool) -> str:
    x = scale(layer.share * 100)
    room = width - 4 if small else scale.start - 12
    name = shorten(layer.node, room, 12)
    parts = [rect(0, y - (24 if small else 12), width, 36 if small else 24, "hit")]
    parts += [
        line(scale.start, y, x, y, f"stem {look.css}"),
        shape(look.shape, x, y, 5, f"sign {look.css}"),
    ]
    at = (0, y - 12, "start") if small else (scale.start - 10, y + 4, "end")
    parts += [text(at[0], at[1], name, "node", at[2])]
    alone = numbers.decibel(layer.alone_db, "no error")
    parts += [text(x + 11, y + 4, alone, "figures")]
    tip = [layer.node, f"{layer.op_type}, {numbers.percent(layer.share)} of the noise"]
    tip += [f"alone: {alone} at the output"]
    tip += [layer.fix] if layer.fix else []
    return mark("".join(parts), "\n".join(tip))
