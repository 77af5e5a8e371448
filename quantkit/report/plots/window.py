"""Which part of the y axis is worth showing: one broken candidate must not flatten all others."""

from dataclasses import dataclass

from quantkit.report.plots.points import Point, Points

__all__ = ["Window", "window"]

_FAR = 3.0  # as many times the height of all better ones makes a candidate go off the scale
_PAD = 0.12


@dataclass(frozen=True, slots=True)
class Window:
    """The range shown.

    Attributes:
        low: Its lower end.
        high: Its upper end.
        identical: Whether some model has no figure because nothing changed.
        beyond: Whether some candidate lies off the scale.
    """

    low: float
    high: float
    identical: bool
    beyond: bool

    def outside(self, value: float) -> bool:
        """Whether a figure lies off the scale."""
        return not self.low <= value <= self.high

    def shows(self, point: Point) -> bool:
        """Whether a model lies on the scale."""
        return point.y is not None and not self.outside(point.y)


def window(found: Points) -> Window:
    """Choose the range: float, the candidates that are not far worse than the rest, the gate's limit if it is near.

    Float's band may reach beyond it: differences on the same samples are far smaller than what other samples would do.
    """
    everyone = [p for p in (found.reference, *found.candidates) if p.y is not None]
    identical = len(everyone) <= len(found.candidates)
    if not everyone:
        return Window(0, 1, identical=True, beyond=False)
    sign = 1 if found.upwards else -1
    ends: list[float] = []
    kept = 0
    for point in sorted(everyone, key=lambda p: -sign * (p.y or 0)):
        extent = _extent(point, whiskers=point is not found.reference)
        if kept > 1 and _is_far(ends, extent):
            break
        ends += extent
        kept += 1
    if found.limit is not None and not _is_far(ends, [found.limit]):
        ends.append(found.limit)
    low, high = min(ends), max(ends)
    pad = (high - low) * _PAD or abs(high) * 0.05 or 1.0
    # Where an accuracy is nearly perfect, the scale must not promise more than all.
    least, most = found.bounds
    return Window(
        max(low - pad, least),
        min(high + pad, most),
        identical=identical,
        beyond=kept < len(everyone),
    )


def _is_far(ends: list[float], extent: list[float]) -> bool:
    """Whether the gap between what is shown and what comes next is many times what is shown."""
    gap = max(0.0, min(ends) - max(extent), min(extent) - max(ends))
    height = max(ends) - min(ends)
    return bool(height) and gap > _FAR * height


def _extent(point: Point, *, whiskers: bool) -> list[float]:
    ends = (point.low, point.high, point.y) if whiskers else (point.y,)
    return [v for v in ends if v is not None]
