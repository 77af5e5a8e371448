"""The x axis of the picture: size. Candidates mostly lie close together, far from float, which then gets a lane of its own."""

from dataclasses import dataclass

from quantkit.report.plots.labels import Box
from quantkit.report.plots.points import Points
from quantkit.report.plots.scale import Scale

__all__ = ["Across", "across", "apart"]

_FAR = 0.6  # float stands apart if all candidates are smaller than this part of it
_SPAN = 0.06  # at least so much of float's size is shown, or trifles would look large
_NEXT = 13.0  # pixels between marks that would cover each other
_TRIES = (0, 1, -1, 2, -2, 3, -3, 4, -4)


@dataclass(frozen=True, slots=True)
class Across:
    """Where sizes lie.

    Attributes:
        scale: Of per cents of float's size.
        reference: Where float stands.
        gap: Where the axis is broken; None: it is not.
    """

    scale: Scale
    reference: float
    gap: float | None


def across(found: Points, plot: Box, *, small: bool) -> Across:
    """Choose the range."""
    sizes = [100 * p.x for p in found.candidates]
    right = plot.x + plot.width
    if not sizes or max(sizes) > 100 * _FAR:
        scale = Scale(0, 1.1 * max([100.0, *sizes]), plot.x, right)
        return Across(scale, scale(100 * found.reference.x), None)
    middle, span = (min(sizes) + max(sizes)) / 2, max(max(sizes) - min(sizes), 100 * _SPAN) * 1.5
    low = max(0.0, middle - span / 2)
    lane = 72.0 if small else 130.0
    scale = Scale(low, low + span, plot.x, right - lane)
    return Across(scale, right - lane / 2, right - lane)


def apart(
    spots: list[tuple[float, float]], extents: list[tuple[float, float]]
) -> list[tuple[float, float]]:
    """Move marks aside where they would cover each other: same place across, overlapping extents (top, bottom)."""
    placed: list[tuple[float, float]] = []
    for (x, y), (top, bottom) in zip(spots, extents, strict=True):
        near = [
            other
            for (other, _), (above, below) in zip(placed, extents, strict=False)
            if top < below and above < bottom
        ]
        tried = [x + _NEXT * step for step in _TRIES]
        free = next((t for t in tried if all(abs(t - other) >= _NEXT - 0.1 for other in near)), x)
        placed.append((free, y))
    return placed
