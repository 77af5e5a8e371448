"""How long a run takes, float and all candidates taking turns in one process, on batches of real samples.

A candidate is compared with float of the same round:

    ratio = median over rounds of (time of candidate / time of float)

Its interval is that of a median by order statistics, which asks nothing of the distribution.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from quantkit.numerics.statistics import median_interval
from quantkit.result import Interval, Latency
from quantkit.runtime.profile import Clock, Pace, Turn, no_garbage_collection, timed_rounds
from quantkit.runtime.session import RUNTIME_ERRORS, first_line, make_session
from quantkit.runtime.synthetic_inputs import Feeds, Signature


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

    clock: Clock = time.perf_counter
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
    with no_garbage_collection():
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
