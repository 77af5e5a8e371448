"""Rounds in which several pieces of work take turns, until their ratios are known well enough."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil

from quantkit.numerics.statistics import median_interval

__all__ = ["Pace", "Turn", "timed_rounds"]

Turn = Callable[[], object]
Clock = Callable[[], float]

_SHORT = 0.2e-3  # seconds; shorter work is repeated until it takes this long
_PRIMED = 20e-3  # seconds; before shorter work, one run that is not timed
_MOST_REPEATS = 1000
_CHECKED_EVERY = 10  # rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long to measure.

    Attributes:
        seconds: For each piece of work.
        least: Rounds at least, unless they take ten times as long as that; then `fewest`.
        most: Rounds at most.
        fewest: Rounds that an interval of 95 % needs.
        warm_up: Rounds that are not timed.
        width: Half the width of a ratio's interval, relative to the ratio, that is enough.
    """

    seconds: float
    least: int = 20
    most: int = 500
    fewest: int = 6
    warm_up: int = 3
    width: float = 0.02


def timed_rounds(turns: Sequence[Turn], pace: Pace, clock: Clock) -> list[list[float]]:
    """Return the seconds of one run, by round and piece of work.

    In each round the order is drawn anew, by a seed, so that nobody always follows the same neighbour. Work that is
    over within milliseconds runs once untimed before: what it finds in the caches is its own, as it is when it runs
    alone, not its neighbour's.
    """
    repeats, primed = _warm_up(turns, pace, clock)
    order = list(range(len(turns)))
    draw = random.Random(0)  # noqa: S311 - an order, not a secret
    rows: list[list[float]] = []
    start = clock()
    while not _is_enough(rows, clock() - start, pace):
        draw.shuffle(order)
        row = [0.0] * len(turns)
        for i in order:
            if primed[i]:
                turns[i]()
            row[i] = _timed(turns[i], repeats[i], clock)
        rows.append(row)
    return rows


def _warm_up(turns: Sequence[Turn], pace: Pace, clock: Clock) -> tuple[list[int], list[bool]]:
    """Run everything a few times; return how often each is repeated, and which are primed."""
    fastest = [float("inf")] * len(turns)
    for _ in range(pace.warm_up):
        for i, turn in enumerate(turns):
            fastest[i] = min(fastest[i], _timed(turn, 1, clock))
    repeats = [min(max(1, ceil(_SHORT / max(t, 1e-9))), _MOST_REPEATS) for t in fastest]
    return repeats, [t < _PRIMED for t in fastest]


def _timed(turn: Turn, repeats: int, clock: Clock) -> float:
    start = clock()
    for _ in range(repeats):
        turn()
    return (clock() - start) / repeats


def _is_enough(rows: Sequence[Sequence[float]], elapsed: float, pace: Pace) -> bool:
    if len(rows) >= pace.most:
        return True
    budget = pace.seconds * len(rows[0]) if rows else pace.seconds
    if len(rows) < pace.least:
        return len(rows) >= pace.fewest and elapsed > 10 * budget
    return elapsed > budget or (len(rows) % _CHECKED_EVERY == 0 and _is_tight(rows, pace.width))


def _is_tight(rows: Sequence[Sequence[float]], width: float) -> bool:
    """Say whether every ratio to the first is known to within `width` of itself."""
    for i in range(1, len(rows[0])):
        bounds = median_interval([row[i] / row[0] for row in rows])
        if bounds is None or bounds[1] - bounds[0] > 2 * width * bounds[0]:
            return False
    # One piece of work alone has no ratio: it is measured until its time is over.
    return len(rows[0]) > 1
