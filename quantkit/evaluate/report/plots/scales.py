"""Scales: from figures to places in a picture, with round ticks, and intervals drawn along them."""

from dataclasses import dataclass
from math import ceil, floor, log10

from quantkit.evaluate.report.numbers import decimals
from quantkit.evaluate.report.plots.svg import arrow, line


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


def whisker(
    scale: Scale, ends: tuple[float, float], at: float, css: str, *, upright: bool = False
) -> str:
    """Return an interval along a scale; an end beyond the scale is an arrow.

    Args:
        scale: Across, or `upright`.
        ends: Of the interval.
        at: Its place on the other axis, in pixels.
        css: The class of the model's look.
        upright: The scale runs up or down.
    """

    def point(along: float, across: float) -> tuple[float, float]:
        return (across, along) if upright else (along, across)

    css = f"whisker {css}"
    places = [scale.clamped(end) for end in ends]
    parts = [line(*point(places[0], at), *point(places[1], at), css)]
    for end, place in zip(ends, places, strict=True):
        if scale.holds(end):
            parts.append(line(*point(place, at - 5), *point(place, at + 5), css))
            continue
        out = 1 if (end > scale.high) == (scale.end > scale.start) else -1
        parts.append(arrow(*point(place, at), *point(out, 0), css))
    return "".join(parts)
