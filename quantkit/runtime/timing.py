"""The timer: pieces of work take turns, round after round.

Clocks change and other programs come and go; work measured one after the other would be measured under different
conditions. So in every round each piece runs once, in an order drawn anew, and rounds go on until the ratios to the first
piece are known well enough.
"""

import gc
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantkit.numerics.statistics import median_interval
from quantkit.runtime.session import make_session

Turn = Callable[[], object]
Clock = Callable[[], float]

# Seconds of a run with one thread, which is the caller's own: what the CPU spends on it. On a busy machine other programs
# stretch the time on the wall many times, and differently for each model. Windows counts these seconds in 16 ms.
CLOCK: Clock = (
    time.thread_time if time.get_clock_info("thread_time").resolution < 1e-6 else time.perf_counter
)

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

    Args:
        turns: The pieces of work, each of which runs once per round.
        pace: How many rounds, and how long at most.
        clock: Seconds; another one in tests.
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
            row[i] = _seconds_per_run(turns[i], repeats[i], clock)
        rows.append(row)
    return rows


def _warm_up(turns: Sequence[Turn], pace: Pace, clock: Clock) -> tuple[list[int], list[bool]]:
    """Run everything a few times; return how often each is repeated, and which are primed."""
    fastest = [float("inf")] * len(turns)
    for _ in range(pace.warm_up):
        for i, turn in enumerate(turns):
            fastest[i] = min(fastest[i], _seconds_per_run(turn, 1, clock))
    repeats = [min(max(1, ceil(_SHORT / max(t, 1e-9))), _MOST_REPEATS) for t in fastest]
    return repeats, [t < _PRIMED for t in fastest]


def _seconds_per_run(turn: Turn, repeats: int, clock: Clock) -> float:
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


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Keep the garbage collector out of what is timed."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def time_models(
    models: Sequence[Path], feeds: Sequence[Mapping[str, NDArray[Any]]], *, seconds: float = 0.5
) -> list[float]:
    """Run models in turn, with one thread; return the seconds of a run of each.

    Args:
        models: Files.
        feeds: Samples that each of them is run on.
        seconds: To spend on each model, about.
    """
    sessions = [make_session(str(path), threads=1) for path in models]
    turns = [_all_feeds(session, feeds) for session in sessions]
    pace = Pace(seconds=seconds, least=6, most=200, fewest=2, warm_up=1, width=0.0)
    with no_garbage_collection():
        rounds = timed_rounds(turns, pace, CLOCK)
    return [fastest_quarter([row[n] for row in rounds]) / len(feeds) for n in range(len(models))]


def _all_feeds(session: Any, feeds: Sequence[Mapping[str, NDArray[Any]]]) -> Turn:
    return lambda: [session.run(None, dict(feed)) for feed in feeds]


def fastest_quarter(values: Sequence[float]) -> float:
    """Return the mean of the lowest quarter: in the rest others had the machine, or the caches."""
    found = np.sort(values)
    return float(found[: (len(found) + 3) // 4].mean())
