"""Where the bytes are, all models on one scale."""

from collections import Counter

from quantkit.report import numbers
from quantkit.report.palette import look
from quantkit.report.plots.bars import Bar, Segment, stacked_bars
from quantkit.result import Evaluated, Result

__all__ = ["causes", "size_bars"]

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
            _segments(model, listed, classes),
        )
        for place, model in enumerate(result.models)
    )
    return stacked_bars(bars, tuple(legend), width=width, label="size by cause")


def _segments(model: Evaluated, listed: list[str], classes: dict[str, str]) -> tuple[Segment, ...]:
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
