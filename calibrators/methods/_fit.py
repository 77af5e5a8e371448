"""From a choice for one channel to a range for all."""

from collections.abc import Callable

import numpy as np

from calibrators.ranges import Range
from calibrators.sketch import Sketch

__all__ = ["Choice", "check_levels", "fit"]

Choice = Callable[[Sketch, int], tuple[float, float]]
"""A sketch and a channel with counted values -> the ends of its range."""


def fit(sketch: Sketch, choose: Choice) -> Range:
    """Choose for each channel that has values, and hold the result in [min(low, 0), max(high, 0)]."""
    low, high = np.minimum(sketch.low, np.float32(0)), np.maximum(sketch.high, np.float32(0))
    found = np.stack([low, high])
    for channel in np.flatnonzero(sketch.count):
        found[:, channel] = choose(sketch, int(channel))
    return Range(low=np.clip(found[0], low, 0), high=np.clip(found[1], 0, high))


def check_levels(levels: int) -> None:
    """Refuse a range without a step."""
    if levels < 1:
        raise ValueError(f"A range has at least one level above the lowest, not {levels}.")
