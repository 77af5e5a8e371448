"""Signal and noise of one output, added up over samples."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from quantkit.numerics.decibels import decibels, sqnr_db

# By this much the mean of an output may raise its SQNR. Without a limit a constant in front of the signal would hide any
# noise; without the mean a score that hardly moves would have to be exact to its last digit.
_MEAN_DB = 10.0
_NEGLIGIBLE = 1e-12  # share of the power about zero below which an output does not vary at all


@dataclass(slots=True)
class Tally:
    """Sums over all samples of one output.

    Attributes:
        count: Floats that are finite in the float model.
        near: A value near their mean: sums about it keep their digits.
        total: Sum of their distances from `near`; `spread` is that of the squares.
        power: Sum of their squares.
        noise: Sum of the squares of differences.
        values: Values that are no floats; so many are `equal`.
        resized: Samples on which the output has another shape than float's.
    """

    count: int = 0
    near: float = 0.0
    total: float = 0.0
    spread: float = 0.0
    power: float = 0.0
    noise: float = 0.0
    values: int = 0
    equal: int = 0
    resized: int = 0

    @classmethod
    def sum(cls, tallies: Sequence[Self]) -> Self:
        """Return the sums of several tallies."""
        found = cls()
        for one in tallies:
            moved = one.near - found.near if found.count else 0.0
            found.near = found.near if found.count else one.near
            found.spread += one.spread + 2 * moved * one.total + one.count * moved**2
            found.total += one.total + one.count * moved
            for name in ("count", "power", "noise", "values", "equal", "resized"):
                setattr(found, name, getattr(found, name) + getattr(one, name))
        return found

    def add(self, expected: Any, actual: Any, signal: "Signal | None" = None) -> None:
        """Take in one sample.

        Args:
            expected: What the float model computes.
            actual: What is held against it.
            signal: Of what is expected, for a caller who needs it again; None: found here.
        """
        if not isinstance(expected, np.ndarray):
            return
        if expected.shape != actual.shape:
            self.resized += 1
        elif expected.dtype.kind == "f":
            signal = signal or Signal.of(expected, self.near if self.count else None)
            self.add_signal(signal)
            if signal.finite is not None:
                expected, actual = expected[signal.finite], actual[signal.finite]
            self.noise += _squares(np.subtract(expected, actual, dtype=np.float64))
        else:
            self.values += expected.size
            self.equal += int(np.count_nonzero(expected == actual))

    def add_signal(self, signal: "Signal") -> None:
        """Take in what float computes of one sample."""
        self.near = self.near if self.count else signal.near
        self.count += signal.count
        self.total += signal.total
        self.spread += signal.spread
        self.power += signal.power

    @property
    def lost(self) -> float:
        """Noise over signal; of an output without floats the share of values that differ."""
        if not self.power > 0:
            return 1 - self.equal / self.values if self.values else 0.0
        if not isfinite(self.noise):
            return inf
        return 10 ** (-self.sqnr / 10)

    @property
    def sqnr(self) -> float:
        """Signal over noise in dB. The mean adds `_MEAN_DB` at most, unless the output never varies."""
        return self.about_zero - self.withheld

    @property
    def about_zero(self) -> float:
        """Signal over noise in dB, the mean in full."""
        return sqnr_db(self.power, self.noise)

    @property
    def withheld(self) -> float:
        """What the mean would add in dB beyond `_MEAN_DB`."""
        about_mean = self.spread - self.total**2 / max(1, self.count)
        varies = about_mean > _NEGLIGIBLE * self.power
        return max(0.0, decibels(self.power / about_mean) - _MEAN_DB) if varies else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """Sums over the floats of one output on one sample that are finite, as in `Tally`.

    Attributes:
        finite: Which these are; None: all.
    """

    finite: NDArray[np.bool_] | None
    near: float
    count: int
    total: float
    spread: float
    power: float

    @classmethod
    def of(cls, expected: NDArray[Any], near: float | None = None) -> "Signal":
        """Return the sums of an output; about a value near its mean, or about that of the first sample."""
        finite = np.isfinite(expected)
        whole = bool(finite.all())
        values = np.asarray(expected if whole else expected[finite], np.float64)
        if near is None:
            near = float(values.mean()) if values.size else 0.0
        distance = values - near
        return cls(
            finite=None if whole else finite,
            near=near,
            count=values.size,
            total=float(distance.sum()),
            spread=_squares(distance),
            power=_squares(values),
        )


def _squares(values: NDArray[np.float64]) -> float:
    """Return the sum of squares. Not by BLAS, whose threads wait for each other busily and split the sum as they like."""
    return float(np.square(values).sum())
