"""How long a run takes, float and all candidates taking turns in one process.

Clocks change and other programs come and go; models measured one after the other would be measured
under different conditions. So in every round each model runs once, in an order drawn anew, and a
candidate is compared with float of the same round:

    ratio = median over rounds of (time of candidate / time of float)

Its interval is that of a median by order statistics, which asks nothing of the distribution.

Rounds go on until the ratios are known well enough. What is timed is batches of real samples.
"""

import gc
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle, islice
from math import ceil
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from quantkit.numerics.statistics import median_interval
from quantkit.result import Interval, Latency
from quantkit.runtime.session import RUNTIME_ERRORS, first_line, make_session
from quantkit.runtime.synthetic_inputs import Feeds, Signature

__all__ = [
    "Lab",
    "Pace",
    "Session",
    "Timed",
    "Turn",
    "batch_of",
    "batches_of",
    "measure_latency",
    "timed_rounds",
]


def batches_of(
    feeds: Sequence[Feeds],
    asked: Sequence[int],
    inputs: Sequence[Signature],
    *,
    whole: bool = False,
) -> tuple[tuple[int, ...], str]:
    """Return which batches can be timed, and a note if they are not the ones asked for.

    That is the one that the model is built for if its batch is fixed; and one sample if its inputs have no
    leading extent in common, or one that does not count samples, so that samples cannot be put together.

    Args:
        feeds: Some samples.
        asked: The batches that the user wants.
        inputs: What the model takes: name, type, shape.
        whole: The first axes of samples do not count samples.
    """
    able = tuple(dict.fromkeys(asked))
    if whole or _extent(feeds[0]) is None:
        only = 1
    else:
        leading = [i.shape[0] for i in inputs if i.shape]
        fixed = next((n for n in leading if isinstance(n, int)), None)
        if fixed is None:
            return able, ""
        only = fixed
    note = f"The model takes a batch of {only} only: no other is timed." if able != (only,) else ""
    return (only,), note


def batch_of(feeds: Sequence[Feeds], batch: int) -> dict[str, Any]:
    """Return one feed with so many rows; a sample that has as many or more by itself is not cut.

    It is made of different samples of one shape, the shape that most samples have, and of the same ones over again
    if there are too few.
    """
    alike = _commonest(feeds)
    own = _extent(alike[0])
    if own is None or own >= batch:
        return dict(alike[0])
    used = list(islice(cycle(alike), -(-batch // own)))
    return {name: np.concatenate([feed[name] for feed in used])[:batch] for name in used[0]}


def _commonest(feeds: Sequence[Feeds]) -> list[Feeds]:
    groups: dict[object, list[Feeds]] = {}
    for feed in feeds:
        shape = tuple((name, array.shape, str(array.dtype)) for name, array in sorted(feed.items()))
        groups.setdefault(shape, []).append(feed)
    return max(groups.values(), key=len)


def _extent(feed: Feeds) -> int | None:
    """Return the leading extent that all inputs of a sample share; None if they have none in common."""
    extents = {array.shape[0] if array.ndim else 0 for array in feed.values()}
    return (extents.pop() or None) if len(extents) == 1 else None


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


_SECONDS = 3.0  # for a model, a batch and a number of threads


class Session(Protocol):
    """What onnxruntime's sessions do that is needed here."""

    def run(self, outputs: None, feeds: dict[str, Any], /) -> object:
        """Run the model."""

    def get_inputs(self) -> Sequence[Any]:
        """Return what the model reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Latencies by the model's name, one for each number of threads and batch; and what could not be timed."""

    latency: Mapping[str, tuple[Latency, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def _open(path: Path, threads: int) -> Session:
    session: Session = make_session(str(path), threads=threads)
    return session


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """What time is measured with; tests put their own clock and sessions here."""

    clock: Callable[[], float] = time.perf_counter
    open: Callable[[Path, int], Session] = _open
    pace: Pace = field(default_factory=lambda: Pace(seconds=_SECONDS))


def measure_latency(  # noqa: PLR0913 - one parameter per question
    models: Sequence[tuple[str, Path]],
    feeds: Sequence[Feeds],
    *,
    batches: Sequence[int] = (1,),
    threads: Sequence[int] = (0,),
    whole: bool = False,
    progress: Callable[[str], None] = lambda _: None,
    lab: Lab | None = None,
) -> Timed:
    """Time models side by side.

    Args:
        models: Names and files; float is the first, and ratios are to it.
        feeds: Real samples, one each; batches are made of them.
        batches: Samples in a run.
        threads: For one operator; 0 is onnxruntime's choice.
        whole: Samples cannot be put together: their first axes count something else.
        progress: Is told what is timed.
        lab: Clock, sessions and patience.
    """
    lab = lab or Lab()
    reference = models[0][0]
    found: dict[str, list[Latency]] = {name: [] for name, _ in models}
    notes: list[str] = []
    for count in threads:
        sessions = _sessions(models, count, lab, notes)
        if reference not in sessions:
            continue
        able, note = batches_of(feeds, batches, sessions[reference].get_inputs(), whole=whole)
        notes += [note] if note else []
        for batch in able:
            progress(f"Timing {len(sessions)} models, {_setup_text(batch, count)}")
            _time_all(sessions, reference, _Run(feeds, batch, count, lab), found, notes)
    latency = {name: tuple(rows) for name, rows in found.items()}
    return Timed(latency=latency, notes=tuple(dict.fromkeys(notes)))


@dataclass(frozen=True, slots=True)
class _Run:
    feeds: Sequence[Feeds]
    batch: int
    threads: int
    lab: Lab


def _setup_text(batch: int, threads: int) -> str:
    return f"batch {batch}" + (f", {threads} threads" if threads else "")


def _sessions(
    models: Sequence[tuple[str, Path]], threads: int, lab: Lab, notes: list[str]
) -> dict[str, Session]:
    found: dict[str, Session] = {}
    for name, path in models:
        try:
            found[name] = lab.open(path, threads)
        except RUNTIME_ERRORS as e:
            notes.append(f"{name} is not timed: {first_line(e)}")
    return found


def _time_all(
    sessions: Mapping[str, Session],
    reference: str,
    run: _Run,
    found: dict[str, list[Latency]],
    notes: list[str],
) -> None:
    """Time all models at one batch and number of threads, and add what is found."""
    made = batch_of(run.feeds, run.batch)
    turns: dict[str, Turn] = {}
    for name, session in sessions.items():
        turn = _turn(session, made)
        try:
            turn()
        except RUNTIME_ERRORS as e:
            notes.append(f"{name} does not run at batch {run.batch}: {first_line(e)}")
        else:
            turns[name] = turn
    if reference not in turns:
        return
    names = [reference, *(name for name in turns if name != reference)]
    with _no_garbage_collection():
        rounds = timed_rounds([turns[name] for name in names], run.lab.pace, run.lab.clock)
    for i, name in enumerate(names):
        found[name].append(_latency([row[i] for row in rounds], [row[0] for row in rounds], run, i))


def _turn(session: Session, feeds: dict[str, Any]) -> Turn:
    return lambda: session.run(None, feeds)


def _latency(own: Sequence[float], base: Sequence[float], run: _Run, index: int) -> Latency:
    ratios = np.divide(own, base)
    bounds = median_interval(ratios) if index else None
    median, p90 = (float(q) for q in np.quantile(own, (0.5, 0.9)))
    return Latency(
        batch=run.batch,
        threads=run.threads,
        median_ms=1e3 * median,
        p90_ms=1e3 * p90,
        ratio=float(np.median(ratios)) if index else 1.0,
        ratio_interval=Interval(low=bounds[0], high=bounds[1]) if bounds else None,
        throughput=run.batch / median,
        runs=len(own),
    )


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
