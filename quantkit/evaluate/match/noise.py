"""How much of a tensor is noise, as sums of squares over samples.

noise = sum |actual - expected|^2 / sum |expected|^2        SQNR = -10 log10 noise
"""

from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantkit.numerics.decibels import decibels

Array = NDArray[Any]
_SILENT = 1e-30  # signal power below which there is none
_LARGEST = float(np.finfo(np.float32).max)


def sqnr_of(noise: float) -> float | None:
    """Return the SQNR in dB of noise relative to the signal; None if there is no noise."""
    return -decibels(noise) if noise > 0 else None


@dataclass(slots=True)
class Noise:
    """The noise of one tensor, sample by sample.

    What is no number in the expected tensor (masks of -inf) is not looked at; where only the actual one is none,
    that is an error of the largest number. Samples whose shapes differ cannot be compared: then `comparable` is False.
    """

    error: float = 0.0
    signal: float = 0.0
    shared: float = 0.0
    comparable: bool = True

    def add(self, expected: Array, actual: Array) -> None:
        """Count one sample."""
        if expected.shape != actual.shape:
            self.comparable = False
            return
        with np.errstate(all="ignore"):
            signal, difference = expected.reshape(-1), (actual - expected).reshape(-1)
            powers = _powers(signal, difference)
            if not all(isfinite(p) for p in powers):
                powers = _finite_powers(signal, difference)
        self.signal += powers[0]
        self.error += powers[1]
        self.shared += powers[2]

    @property
    def ratio(self) -> float:
        """Noise power over signal power."""
        return self.error / max(self.signal, _SILENT)

    @property
    def gain(self) -> float:
        """By which factor the expected tensor is in the actual one: ``<actual, expected> / <expected, expected>``."""
        return 1 + self.shared / max(self.signal, _SILENT)

    @property
    def db(self) -> float | None:
        """SQNR; None if there is no noise, or nothing to compare."""
        return sqnr_of(self.ratio) if self.comparable else None


def _powers(signal: Array, difference: Array) -> tuple[float, float, float]:
    return float(signal @ signal), float(difference @ difference), float(signal @ difference)


def _finite_powers(signal: Array, difference: Array) -> tuple[float, float, float]:
    """Return the powers without what is no number, in float64, where squares of float32 do not overflow."""
    seen = np.isfinite(signal)
    errors = np.nan_to_num(difference[seen].astype(np.float64), nan=_LARGEST, posinf=_LARGEST)
    return _powers(signal[seen].astype(np.float64), errors)
