"""Bars of several models on one scale.

Where the bytes are, what part of the products runs in integers, and which layers of a candidate bring most of the noise.
"""

from collections import Counter
from dataclasses import dataclass

from quantkit.evaluate.report import numbers
from quantkit.evaluate.report.palette import Look, look
from quantkit.evaluate.report.plots.svg import legend, mark, picture, rect, shape, text
from quantkit.evaluate.report.plots.widths import NARROW, names_width, shorten, text_width
from quantkit.result import Evaluated, Layer, Layers, Result, Runtime

_SHOWN = 16  # of the worst layers
_COLOURS = 7  # the largest causes; the rest is one part
_HEIGHT = 24.0
_KINDS = {
    "integer": ("r0", "in integers"),
    "dynamic": ("r1", "in integers, ranges taken at run time"),
    "gone": ("r2", "fused or folded away"),
    "float": ("r3", "in float"),
}


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a bar: its length, its class, words for its inside and for its tip."""

    length: float
    css: str
    words: str
    tip: str


@dataclass(frozen=True, slots=True)
class Bar:
    """The parts of one model, or of what has no sign of its own."""

    name: str
    look: Look | None
    words: str
    segments: tuple[Segment, ...]


def stacked_bars(
    bars: tuple[Bar, ...], classes: tuple[tuple[str, str], ...], *, width: int, label: str
) -> str:
    """Draw the bars.

    Args:
        bars: From top to bottom.
        classes: CSS class and word of each kind of part, for the legend.
        width: Of the picture, in pixels.
        label: For those who do not see it.
    """
    small = width < NARROW
    left = 0.0 if small else names_width((bar.name for bar in bars), width, 0.19) + 26
    room = float(width) if small else width * 0.84 - left
    longest = max((sum(s.length for s in bar.segments) for bar in bars), default=1.0) or 1.0
    y, parts = 4.0, []
    if classes:
        keys = [(rect(4, -6, 12, 12, css), words) for css, words in classes]
        drawn, last = legend(keys, 11.0, float(width))
        parts, y = [drawn], last + 21
    for bar in bars:
        start, at = (0.0, y + 13) if small else (0.0, y + 16)
        if bar.look is not None:
            parts += [shape(bar.look.shape, 6, at - 4, 4.6, f"fill {bar.look.css}")]
            start = 16.0
        end = width - text_width(bar.words, 12) - 12 if small else left - 10
        parts += [text(start, at, shorten(bar.name, end - start, 13), "name")]
        y += 20 if small else 0
        end, segments = _segments(bar, left, room / longest, y)
        parts.append(segments)
        words = (float(width), at, bar.words, "figures", "end")
        parts.append(text(*words) if small else text(end + 10, at, bar.words, "figures"))
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
    words = [(classes[cause], cause) for cause in named]
    words += [(f"p{_COLOURS}", f"{len(listed) - _COLOURS} more")] if many else []
    bars = tuple(
        Bar(
            model.name,
            look(place),
            f"{numbers.size(model.size.disk)} · {numbers.percent(model.size.ratio)}",
            _size_bars_segments(model, listed, classes),
        )
        for place, model in enumerate(result.models)
    )
    return stacked_bars(bars, tuple(words), width=width, label="size breakdown")


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
    words = tuple(kind for kind in _KINDS.values() if kind[0] in used)
    return stacked_bars(bars, words, width=width, label="layers by how they run") if bars else ""


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


def layers(found: Layers, look: Look, *, width: int) -> str:
    """Draw the share of the noise that each of the worst layers brings alone; "" if nothing drifts."""
    bars = tuple(
        Bar(
            layer.node,
            None,
            f"{numbers.percent(layer.share)} · {numbers.decibel(layer.alone_db, 'no error')}",
            (Segment(layer.share, f"fill {look.css}", "", _layer_tip(layer)),),
        )
        for layer in [layer for layer in found.layers if layer.share > 0][:_SHOWN]
    )
    label = "layers by their share of the noise"
    return stacked_bars(bars, (), width=width, label=label) if bars else ""


def _layer_tip(layer: Layer) -> str:
    tip = [layer.node, f"{layer.op_type}, {numbers.percent(layer.share)} of the noise"]
    tip += [f"alone: {numbers.decibel(layer.alone_db, 'no error')} at the output"]
    return "\n".join([*tip, *([layer.fix] if layer.fix else [])])
