"""The central part of the values."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from calibrators.histogram import Histogram
from calibrators.methods._fit import fit
from calibrators.ranges import Range
from calibrators.sketch import Sketch

__all__ = ["Percentile"]


@dataclass(frozen=True, slots=True)
class Percentile:
    """The central `keep` per cent of the values.

    Each tail loses (100 - keep) / 2 per cent; values that are all of one sign have one open side, which
    loses the whole 100 - keep. Ends are numpy's linear percentiles, taken between the values' bins: each is
    within one bin of the percentile of the values themselves.

    Invariant: 0 < keep <= 100; 100 keeps everything.
    """

    keep: float = 99.99

    name: ClassVar[str] = "percentile"

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 100:  # noqa: PLR2004 - per cent
            raise ValueError(
                f"A percentile keeps more than 0 and up to 100 per cent, not {self.keep}."
            )

    def __call__(self, sketch: Sketch) -> Range:
        """Return the range that keeps the central values of each channel."""
        return fit(sketch, self._choose)

    def _choose(self, sketch: Sketch, channel: int) -> tuple[float, float]:
        bins = sketch.histogram(channel)
        known = np.array([sketch.low[channel], sketch.high[channel]], np.float64)
        cut = 1 - self.keep / 100
        tail = cut / 2 if known[0] < 0 < known[1] else cut
        return _quantile(bins, known, tail), _quantile(bins, known, 1 - tail)


def _quantile(bins: Histogram, known: NDArray[np.float64], q: float) -> float:
    """Return the value of rank q (n - 1), counted from zero, between the two values next to it."""
    until = np.cumsum(bins.count)
    n = int(until[-1])
    rank = q * (n - 1)
    first = int(rank)
    below, above = (_value(bins, until, known, min(i, n - 1)) for i in (first, first + 1))
    return below + (above - below) * (rank - first)


def _value(
    bins: Histogram, until: NDArray[np.int64], known: NDArray[np.float64], rank: int
) -> float:
    """Return the value of an integer rank: the extremes are known, others lie evenly in their bin."""
    if rank == 0:
        return float(known[0])
    if rank == until[-1] - 1:
        return float(known[1])
    i = int(np.searchsorted(until, rank, side="right"))
    place = (rank - (until[i] - bins.count[i]) + 0.5) / bins.count[i]
    return float(bins.lower[i] + (bins.upper[i] - bins.lower[i]) * place)
