"""How far one output of a candidate is from float's: sums over all values, in one pass.

With f and c the values of float and candidate and e = c - f:

    SQNR = 10 log10(sum f^2 / sum e^2)      cosine of a sample = f.c / (|f| |c|)

Values where either is not finite enter nothing but `not_finite`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from calibrators import Sketch
from quantkit.evaluate.accuracy.chunks import Array
from quantkit.evaluate.accuracy.scorer import SampleColumn
from quantkit.numerics.decibels import decibels
from quantkit.numerics.statistics import percentiles, quantile_bound, redrawn_means
from quantkit.result import Interval, OutputDrift, SampleSqnr

Floats = NDArray[np.float64]

_FLOOR_DB = -200.0  # where float is all zero and the candidate is not
_P1, _P99 = 0.01, 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class Flat:
    """One output of a chunk, unit after unit.

    Attributes:
        values: All values.
        sizes: How many each unit has.
        shapes: Each unit's.
    """

    values: Floats
    sizes: NDArray[np.int64]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, arrays: Sequence[Array]) -> "Flat":
        """Flatten the arrays of a chunk."""
        flat = [array.reshape(-1) for array in arrays]
        return cls(
            values=np.concatenate(flat, dtype=np.float64, casting="unsafe"),
            sizes=np.array([array.size for array in flat], np.int64),
            shapes=tuple(array.shape for array in arrays),
        )

    def only(self, chosen: NDArray[np.bool_]) -> "Flat":
        """Return the same with nothing of the units that are not chosen."""
        values = self.values[np.repeat(chosen, self.sizes)]
        return replace(self, values=values, sizes=np.where(chosen, self.sizes, 0))

    def sums(self, values: Floats) -> Floats:
        """Return the sum of each unit's part of `values`; 0 for a unit without any."""
        found = np.zeros(self.sizes.size)
        some = self.sizes > 0
        if some.any():
            starts = (np.cumsum(self.sizes) - self.sizes)[some]
            found[some] = np.add.reduceat(values, starts)
        return found


class OutputTally:
    """What is known of one output of one candidate.

    `signal` and `noise` hold the sum of squares of float's values and of the errors of each unit, `decibels` its SQNR (NaN
    where nothing could be compared).
    """

    def __init__(self, output: str) -> None:
        self.output = output
        self.signal, self.noise, self.decibels = SampleColumn(), SampleColumn(), SampleColumn()
        self.not_finite = 0
        self.other_shapes = 0  # units that could not be compared
        self._values = 0
        self._error = self._largest = self._cosines = 0.0
        self._directed = 0
        self._sketch = Sketch()

    def observe(self, expected: Flat, actual: Flat) -> Floats:
        """Take in a chunk; return each unit's signal over noise.

        That is inf where nothing changed, and -1 where the candidate's values are not finite.
        """
        alike = np.array(
            [a == b for a, b in zip(expected.shapes, actual.shapes, strict=True)], np.bool_
        )
        if not alike.all():
            self.other_shapes += int(np.count_nonzero(~alike))
            expected, actual = expected.only(alike), actual.only(alike)
        f, c, both = _finite(expected.values, actual.values)
        broken = self._note_broken(expected, actual, both)
        error = c - f
        with np.errstate(over="ignore"):  # squares of float64 beyond 1e154
            signal, noise = expected.sums(f * f), expected.sums(error * error)
            product, own = expected.sums(f * c), expected.sums(c * c)
        self.signal.add(signal)
        self.noise.add(noise)
        self._note_cosines(expected, signal, product, own)
        error = np.abs(error, out=error)
        self._note_errors(error if both is None else error[both])
        ratio = np.full(signal.size, np.inf)
        np.divide(signal, noise, out=ratio, where=noise > 0)
        ratio[broken] = -1.0
        some = expected.sizes if both is None else expected.sums(both.astype(np.float64))
        within = 10 * np.log10(np.clip(ratio, 10 ** (_FLOOR_DB / 10), 10 ** (-_FLOOR_DB / 10)))
        self.decibels.add(np.where((some > 0) | broken, within, np.nan))
        return ratio

    def _note_broken(
        self, expected: Flat, actual: Flat, both: NDArray[np.bool_] | None
    ) -> NDArray[np.bool_]:
        """Count the values that only the candidate has not finite; return the units that have some."""
        if both is None:
            return np.zeros(expected.sizes.size, np.bool_)
        wrong = np.isfinite(expected.values) & ~np.isfinite(actual.values)
        self.not_finite += int(np.count_nonzero(wrong))
        return expected.sums(wrong.astype(np.float64)) > 0

    def _note_cosines(self, flat: Flat, signal: Floats, product: Floats, own: Floats) -> None:
        directed = (flat.sizes > 1) & (signal > 0) & (own > 0)
        cosines = product[directed] / np.sqrt(signal[directed] * own[directed])
        self._cosines += float(cosines.sum())
        self._directed += cosines.size

    def _note_errors(self, errors: Floats) -> None:
        if errors.size:
            self._values += errors.size
            self._error += float(errors.sum())
            self._largest = max(self._largest, float(errors.max()))
            self._sketch.observe(errors)

    def drift(self, interval: Interval | None, confidence: float) -> OutputDrift:
        """Return all of it; `interval` is of the SQNR, `confidence` of the bound of its 1st percentile."""
        signal, noise = float(self.signal.values.sum()), float(self.noise.values.sum())
        values = max(1, self._values)
        return OutputDrift(
            output=self.output,
            sqnr_db=None if noise == 0 else floored_db(signal / noise),
            sqnr_interval=interval,
            cosine=min(1.0, self._cosines / self._directed) if self._directed else None,
            max_error=self._largest,
            p99_error=min(self._p99(), self._largest),
            mean_error=self._error / values,
            signal=sqrt(signal / values),
            not_finite=self.not_finite,
            compared=self._values,
            per_sample=self._per_sample(confidence),
        )

    def _per_sample(self, confidence: float) -> SampleSqnr | None:
        found = np.sort(self.decibels.values[~np.isnan(self.decibels.values)])
        if not found.size:
            return None
        return SampleSqnr(
            samples=found.size,
            median=float(np.median(found)),
            p1=float(np.quantile(found, _P1, method="inverted_cdf")),
            p1_low=quantile_bound(found, _P1, confidence),
            worst=float(found[0]),
            confidence=confidence,
            other_shape=self.other_shapes,
        )

    def _p99(self) -> float:
        """Return the upper edge of the bin that holds the 99th percentile; bins are 0.8 % wide."""
        if self._sketch.empty:
            return 0.0
        bins = self._sketch.histogram()
        below = np.cumsum(bins.count)
        place = int(np.searchsorted(below, _P99 * below[-1]))
        return float(bins.upper[place])


def _finite(f: Floats, c: Floats) -> tuple[Floats, Floats, NDArray[np.bool_] | None]:
    """Return the values with zeros where either is not finite, and where both are; None: everywhere."""
    both = np.isfinite(f) & np.isfinite(c)
    if both.all():
        return f, c, None
    return np.where(both, f, 0.0), np.where(both, c, 0.0), both


def floored_db(ratio: float) -> float:
    """Return a ratio of powers in dB, at least -200."""
    return max(_FLOOR_DB, decibels(ratio))


def output_drifts(
    tallies: Sequence[OutputTally],
    *,
    confidence: float,
    seed: int,
    distinct: NDArray[np.int64] | None = None,
) -> tuple[OutputDrift, ...]:
    """Return the drift of each output; for the intervals all are redrawn together, samples as a whole.

    Args:
        tallies: One per output, of the same samples.
        confidence: Of the intervals.
        seed: Of the redraws.
        distinct: The units that are not copies of others, which are redrawn; None: all.
    """
    changed = [t for t in tallies if t.noise.values.any()]
    bounds: dict[str, Interval] = {}
    if changed and changed[0].noise.values.size > 1:
        table = np.column_stack([c.values for t in changed for c in (t.signal, t.noise)])
        if distinct is not None and distinct.size > 1 and not any(t.other_shapes for t in changed):
            table = table[distinct]
        drawn = redrawn_means(table, seed=seed)
        for place, tally in enumerate(changed):
            signal, noise = drawn[:, 2 * place], drawn[:, 2 * place + 1]
            ratios = np.full(noise.size, np.inf)  # a redraw without any error
            np.divide(signal, noise, out=ratios, where=noise > 0)
            decibel = 10 * np.log10(np.maximum(ratios, 10 ** (_FLOOR_DB / 10)))
            finite = decibel[np.isfinite(decibel)]
            low, high = percentiles(
                np.where(np.isfinite(decibel), decibel, finite.max()), confidence
            )
            bounds[tally.output] = Interval(low=low, high=high, confidence=confidence)
    return tuple(tally.drift(bounds.get(tally.output), confidence) for tally in tallies)
