"""The whole range of the values."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from calibrators.ranges import Range
from calibrators.sketch import Sketch

__all__ = ["MinMax"]


@dataclass(frozen=True, slots=True)
class MinMax:
    """[min(low, 0), max(high, 0)], exactly: no value is clipped."""

    name: ClassVar[str] = "minmax"

    def __call__(self, sketch: Sketch) -> Range:
        """Return the extremes, widened to hold zero."""
        zero = np.float32(0)
        return Range(low=np.minimum(sketch.low, zero), high=np.maximum(sketch.high, zero))
