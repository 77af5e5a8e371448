"""Grids on which weights lie already.

Weights of few values (ternary, binary, turned back from int4) are integer multiples k * g of one step. With a scale of g / n,
n an integer, their integers are n * k and nothing is lost; the usual scale, ``max |w| / 127`` or what pairs allow, misses
such a grid and rounds every value. n is the largest that the integers have room for, since a finer scale serves the bias, and
for which some float32 gives all weights back to the last bit.

Weights are (C, ...) here: one grid for each index of the first axis.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Floats = NDArray[np.float64]

# Multiples beyond what 8 bits hold are not looked for: with so many values any scale fits about as well.
_MOST = 255
# Two roundings to float32 (of a weight, and of it scaled by a folded factor) may stand between a value and its multiple.
_ROUNDING = 2.0**-22
_GLANCE = 4  # values of a row by which nearly all rows of ordinary weights are told
_LOOK = 64  # values by which the others are
_NUMBERS = 1 << 18  # that are worked on at a time
_NEAR = 1e-3  # what is as near as that to an integer is one
_SURE = 63  # steps: two neighbours of as many stay below the limit of pairs
_TINY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, slots=True)
class Steps:
    """The largest step of each row's grid: any between `low` and `high`, which are 0 where there is no grid.

    Multiples of a step between them, rounded to float32, are the row's values. Where these were rounded twice, `low` may be
    above `high` by as little.
    """

    low: Floats
    high: Floats

    @property
    def middle(self) -> Floats:
        """One for each row."""
        return (self.low + self.high) / 2


def grid_scales(
    weights: Array, usual: Array, peaks: Array, extents: Sequence[tuple[Array, Array | int]]
) -> Floats:
    """Return the scale of each row's grid where it loses less than the usual scale; 0 elsewhere.

    Args:
        weights: (C, ...), finite.
        usual: The scale that each row would have, (C,).
        peaks: The largest magnitude in each row.
        extents: What the integers must have room for in each row, and how many scales that may be at most.
    """
    found = exact_scales(exact_steps(weights, peaks), extents)
    some = np.flatnonzero(found)
    if some.size:
        rows = weights[some]
        better = worst_errors(rows, found[some]) < worst_errors(rows, usual[some])
        found[some[~better]] = 0
    return found


def lossless_rows(weights: Array) -> NDArray[np.bool_]:
    """Say which rows 8 bits hold exactly, whatever stands beside them: zeros, and up to 63 steps of a grid.

    Args:
        weights: (C, ...), finite.
    """
    peaks = np.abs(weights.reshape(len(weights), -1)).max(axis=1, initial=0)
    steps = exact_steps(weights, peaks).middle
    multiples = np.rint(peaks / np.where(steps > 0, steps, 1))
    return np.asarray((peaks == 0) | ((steps > 0) & (multiples <= _SURE)))


def exact_steps(weights: Array, peaks: Array) -> Steps:
    """Find, for each row, the largest step of which all its values are integer multiples.

    Values may be off by what float32 rounds. Ordinary weights are told by a few of their values.

    Args:
        weights: (C, ...), finite.
        peaks: The largest magnitude in each row, (C,); rows of zeros have no grid.
    """
    found = Steps(np.zeros(len(weights)), np.zeros(len(weights)))
    for some in _parts(weights):
        rows = weights[some].reshape(len(found.low[some]), -1)
        found.low[some], found.high[some] = _steps(rows, np.asarray(peaks[some], np.float64))
    return found


def _steps(rows: Array, peaks: Floats) -> tuple[Floats, Floats]:
    low, high = np.zeros(len(rows)), np.zeros(len(rows))
    left = np.flatnonzero(peaks > _TINY)
    # A row on a grid has its peak at some multiple of the step: all that are possible are tried, the coarsest grid first.
    possible = _fitting(_some(rows, _GLANCE)[left], peaks[left])
    left, possible = left[possible.any(axis=1)], possible[possible.any(axis=1)]
    for multiple in np.flatnonzero(possible.any(axis=0)) + 1:
        tried = left[possible[:, multiple - 1] & (high[left] == 0)]
        for seen in (_some(rows, _LOOK), rows):
            tried = tried[_are_multiples(seen[tried], peaks[tried] / multiple)]
        low[tried], high[tried] = _ends(rows[tried], peaks[tried] / multiple)
    return low, high


def _some(rows: Array, count: int) -> Array:
    """Return some evenly spaced values of each row."""
    return rows[:, :: max(1, rows.shape[1] // count)]


def _fitting(values: Array, peaks: Floats) -> NDArray[np.bool_]:
    """Say which rows may have their peak at which multiple of a step, (C, multiples)."""
    multiples = np.arange(1, _MOST + 1)
    fits = np.ones((len(values), _MOST), bool)
    for column in np.abs(values / peaks[:, np.newaxis]).T:
        quotient = column[:, np.newaxis] * multiples
        whole = np.rint(quotient)
        fits &= np.abs(quotient - whole) <= 2 * _ROUNDING * np.maximum(whole, 1)
    return fits


def _are_multiples(rows: Array, steps: Floats) -> NDArray[np.bool_]:
    """Say of which rows all values are integer multiples of the step."""
    fits = np.ones(len(rows), bool)
    for part in _pieces(rows):
        quotient = part / steps[:, np.newaxis]
        whole = np.rint(quotient)
        off = np.abs(quotient - whole) > 2 * _ROUNDING * np.maximum(np.abs(whole), 1)
        fits &= ~off.any(axis=1)
    return fits


def _ends(rows: Array, steps: Floats) -> tuple[Floats, Floats]:
    """Return between which numbers a step must be for its multiples, rounded to float32, to be the values."""
    low, high = np.zeros(len(rows)), np.full(len(rows), np.inf)
    for part in _pieces(rows):
        values = np.abs(part).astype(np.float32)
        k = np.rint(values / steps[:, np.newaxis])
        # Halfway between two float32 the one with an even last bit is taken.
        share = np.where(values.view(np.int32) & 1, 0.5 - 2.0**-20, 0.5)
        below, above = (np.nextafter(values, np.float32(end)) for end in (0, np.inf))
        exact = values.astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            lows, highs = ((exact + (near - exact) * share) / k for near in (below, above))
        low = np.maximum(low, np.where(k > 0, lows, 0).max(axis=1))
        high = np.minimum(high, np.where(k > 0, highs, np.inf).min(axis=1))
    return low, high


def exact_scales(steps: Steps, extents: Sequence[tuple[Array, Array | int]]) -> Floats:
    """Return the finest scale on each grid at which the integers have room; 0 where there is none.

    Args:
        steps: As `exact_steps` found them.
        extents: Magnitudes of each row, and how many scales each may be at most.
    """
    known = steps.high > 0
    step = np.where(known, steps.middle, 1.0)
    room = np.full(len(step), float(_MOST))
    for extent, limit in extents:
        room = np.minimum(room, limit / np.maximum(np.ceil(extent / step - _NEAR), 1))
    known &= room >= 1
    # If no float32 gives all of them back to the last bit, a power of two at least adds no rounding to that of the step.
    found = step.astype(np.float32) / np.exp2(np.frexp(np.maximum(room, 1))[1] - 1)
    left = known.copy()
    for parts in range(int(room[known].max(initial=0)), 0, -1):
        scale = (step / parts).astype(np.float32).astype(np.float64)
        fits = left & (parts <= room) & (steps.low <= scale * parts) & (scale * parts <= steps.high)
        found[fits] = scale[fits]
        left &= ~fits
        if not left.any():
            break
    return np.where(known & (found >= _TINY), found, 0.0)


def worst_errors(weights: Array, scales: Array) -> Floats:
    """Return by how much rounding to multiples of a scale moves the values of each row at most."""
    found = np.zeros(len(weights))
    for some in _parts(weights):
        part = weights[some].reshape(len(found[some]), -1).astype(np.float32)
        own = np.asarray(scales[some], np.float32)[:, np.newaxis]
        found[some] = np.abs(part - np.rint(part / own) * own).max(axis=1, initial=0)
    return found


def _parts(weights: Array) -> Iterator[slice]:
    """Cut rows into parts of about `_NUMBERS` values."""
    step = max(1, _NUMBERS * len(weights) // max(1, weights.size))
    return (slice(start, start + step) for start in range(0, len(weights), step))


def _pieces(rows: Array) -> Iterator[Floats]:
    """Cut rows into pieces that take little memory; a part is one piece, unless it is one long row."""
    step = _NUMBERS // max(1, len(rows)) + 1
    return (
        rows[:, start : start + step].astype(np.float64) for start in range(0, rows.shape[1], step)
    )
