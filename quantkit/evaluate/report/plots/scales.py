"""Scales: from figures to places in a picture, with round ticks."""

from dataclasses import dataclass
from math import ceil, floor, log10

from quantkit.evaluate.report.numbers import decimals

__all__ = ["Scale", "nice_step"]


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
