"""Bars of several models on one scale.

Where the bytes are, what part of the products runs in integers, which operators came and went, and which layers of a
candidate bring most of the noise.
"""

from collections import Counter
from dataclasses import dataclass

from quantkit.evaluate.report import numbers
from quantkit.evaluate.report.numbers import MINUS
from quantkit.evaluate.report.palette import Look, look
from quantkit.evaluate.report.plots.svg import (
    NARROW,
    Scale,
    line,
    mark,
    names_width,
    picture,
    rect,
    shape,
    shorten,
    tag,
    text,
    text_width,
)
from quantkit.result import Changes, Evaluated, Layer, Layers, Result, Runtime

__all__ = ["Bar", "Segment", "causes", "layers", "operators", "runs", "size_bars", "stacked_bars"]


def layers(found: Layers, look: Look, *, width: int) -> str:
    """Draw the share of the noise that each of the worst layers brings alone; "" if nothing drifts.

    Args:
        found: The layers, the noisiest first.
        look: The model's colour and sign.
        width: Of the picture, in pixels.
    """
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
    parts += [line(scale.start, y, x, y, f"stem {look.css}")]
    parts += [shape(look.shape, x, y, 5, f"sign {look.css}")]
    at = (0, y - 12, "start") if small else (scale.start - 10, y + 4, "end")
    parts += [text(at[0], at[1], name, "node", at[2])]
    alone = numbers.decibel(layer.alone_db, "no error")
    parts += [text(x + 11, y + 4, alone, "figures")]
    tip = [layer.node, f"{layer.op_type}, {numbers.percent(layer.share)} of the noise"]
    tip += [f"alone: {alone} at the output"]
    tip += [layer.fix] if layer.fix else []
    return mark("".join(parts), "\n".join(tip))


_SHOWN = 16


def operators(changes: Changes, look: Look, *, width: int) -> str:
    """Draw before and after for the operators whose number changed most; "" if none did.

    Args:
        changes: How many of each operator there are before and after.
        look: The model's colour and sign.
        width: Of the picture, in pixels.
    """
    most = sorted(changes.operators, key=lambda o: (-abs(o.after - o.before), o.op_type))[:_SHOWN]
    if not most:
        return ""
    small = width < NARROW
    left, right = (width * 0.46 if small else width * 0.27), width - 54.0
    height = 26.0
    scale = Scale(0, max(max(o.before, o.after) for o in most), left, right)
    top, bottom = 26.0, 26.0 + height * len(most)
    parts = [_operators_legend(look, left)]
    for value, words in scale.ticks(4):
        if value == int(value):
            parts += [line(scale(value), top, scale(value), bottom, "grid")]
            parts += [text(scale(value), bottom + 15, words.split(".")[0], "tick", "middle")]
    for place, change in enumerate(most):
        y = top + height * (place + 0.5)
        before, after = scale(change.before), scale(change.after)
        name = shorten(change.op_type, left - 14, 13)
        sign = "+" if change.after > change.before else MINUS
        difference = f"{sign}{abs(change.after - change.before)}"
        inside = rect(0, y - 13, width, 26, "hit")
        inside += line(before, y, after, y, f"stem {look.css}")
        inside += tag("circle", cx=before, cy=y, r=4.5, class_="hollow")
        inside += shape(look.shape, after, y, 5, f"sign {look.css}")
        inside += text(left - 12, y + 4, name, "name", "end")
        inside += text(max(before, after) + 11, y + 4, difference, "figures")
        tip = f"{change.op_type}: {change.before} before, {change.after} after"
        parts.append(mark(inside, tip))
    return picture(width, bottom + 22, "operators before and after", "".join(parts))


def _operators_legend(look: Look, x: float) -> str:
    parts = [tag("circle", cx=x, cy=8, r=4.5, class_="hollow"), text(x + 10, 12, "before", "tick")]
    parts += [shape(look.shape, x + 72, 8, 5, f"sign {look.css}")]
    return "".join([*parts, text(x + 83, 12, "after", "tick")])


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
    """Draw the bars; `legend` gives words for classes.

    Args:
        bars: From top to bottom.
        legend: CSS class and word of each part.
        width: Of the picture, in pixels.
        label: For those who do not see it.
    """
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
            name = shorten(bar.name, width - text_width(bar.words, 12) - 28, 13)
            parts += [text(16, y + 13, name, "name")]
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


_COLOURS = 7  # the largest causes; the rest is one part


def causes(result: Result) -> list[str]:
    """Return all causes, the one that costs most in any model first."""
    most: Counter[str] = Counter()
    for model in result.models:
        for part in model.size.parts:
            most[part.cause] = max(most[part.cause], part.nbytes)
    return sorted(most, key=lambda cause: (-most[cause], cause))


def size_bars(result: Result, *, width: int) -> str:
    """Draw the parts of each model's size."""
    listed = causes(result)
    many = len(listed) > _COLOURS + 1
    classes = {cause: f"p{min(i, _COLOURS)}" for i, cause in enumerate(listed)}
    named = listed[:_COLOURS] if many else listed
    legend = [(classes[cause], cause) for cause in named]
    legend += [(f"p{_COLOURS}", f"{len(listed) - _COLOURS} more")] if many else []
    bars = tuple(
        Bar(
            model.name,
            look(place),
            f"{numbers.size(model.size.disk)} · {numbers.percent(model.size.ratio)}",
            _size_bars_segments(model, listed, classes),
        )
        for place, model in enumerate(result.models)
    )
    return stacked_bars(bars, tuple(legend), width=width, label="size breakdown")


def _size_bars_segments(
    model: Evaluated, listed: list[str], classes: dict[str, str]
) -> tuple[Segment, ...]:
    parts = {part.cause: part for part in model.size.parts}
    return tuple(
        Segment(
            parts[cause].nbytes,
            classes[cause],
            numbers.size(parts[cause].nbytes),
            f"{model.name}\n{cause}: {numbers.size(parts[cause].nbytes)}, "
            f"{numbers.percent(parts[cause].nbytes / max(1, model.size.disk))} of the file",
        )
        for cause in listed
        if cause in parts and parts[cause].nbytes
    )


_KINDS = {
    "integer": ("r0", "in integers"),
    "dynamic": ("r1", "in integers, ranges taken at run time"),
    "gone": ("r2", "fused or folded away"),
    "float": ("r3", "in float"),
}


def runs(result: Result, *, width: int) -> str:
    """Draw the shares; "" if no model's runtime was looked at."""
    bars = tuple(
        Bar(
            model.name,
            look(place),
            f"{model.runtime.integer} of {model.runtime.products} in int8",
            _runs_segments(model.name, model.runtime),
        )
        for place, model in enumerate(result.models)
        if place and model.runtime is not None and model.runtime.products
    )
    used = {segment.css for bar in bars for segment in bar.segments}
    legend = tuple(kind for kind in _KINDS.values() if kind[0] in used)
    return stacked_bars(bars, legend, width=width, label="layers by how they run") if bars else ""


def _counts(runtime: Runtime) -> dict[str, int]:
    """Count from the nodes if all are listed, else from the sums."""
    if len(runtime.nodes) == runtime.products:
        return dict(Counter(node.runs for node in runtime.nodes))
    return {"integer": runtime.integer, "float": runtime.products - runtime.integer}


def _runs_segments(name: str, runtime: Runtime) -> tuple[Segment, ...]:
    counts = _counts(runtime)
    return tuple(
        Segment(
            counts[kind] / runtime.products,
            css,
            str(counts[kind]),
            f"{name}\n{counts[kind]} of {runtime.products} layers {words} "
            f"({numbers.percent(counts[kind] / runtime.products)})",
        )
        for kind, (css, words) in _KINDS.items()
        if counts.get(kind)
    )
