"""Single runs of a model: on given inputs, on made-up ones, and on rows, to see whether they depend on each other."""

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantkit.data import Trial
from quantkit.runtime.session import RUNTIME_ERRORS, first_line, run_options
from quantkit.runtime.synthetic_inputs import Feeds, made_up_feeds
from quantkit.settings.memory import memory_of, memory_text, resident

_MADE_UP_SECONDS = 20
_LOOKED_EVERY = 0.05  # seconds
# Of a row's size: a model that gives all rows one range, as dynamic quantization does, changes a row by less, a state that a row hands
# on to the next by more.
_ROUNDING = 0.05


def run_session(session: Any, feeds: Mapping[str, Any], options: Any = None) -> dict[str, Any]:
    """Run a model; return its outputs by name, as arrays where they are maps or sequences (`as_array`)."""
    names = [output.name for output in session.get_outputs()]
    found = session.run(names, dict(feeds), options)
    return {n: as_array(v) for n, v in zip(names, found, strict=True)}


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeUpRun:
    """Made-up inputs that a model ran on, and its outputs; none of both if there are none, with the reason."""

    feeds: Feeds
    outputs: Mapping[str, Any]
    reason: str = ""


def run_made_up(
    session: Any, ranges: Mapping[str, tuple[float, float]] = MappingProxyType({})
) -> MadeUpRun:
    """Run a model on the first made-up inputs that it takes.

    A model that makes its own length of what it reads (speech of text) may run for minutes, and take all memory, on
    values that nobody would give it: a run beyond some CPU time or memory is stopped, and only less is tried after it.

    Args:
        session: The model.
        ranges: Between which values inputs lie, where that is known.
    """
    reason, most = "no input can be made up", inf
    for feeds in made_up_feeds(session.get_inputs(), ranges):
        size = sum(array.size for array in feeds.values())
        if size >= most:
            continue
        try:
            return MadeUpRun(feeds=feeds, outputs=_run_bounded(session, feeds))
        except _TooMuchError as e:
            reason, most = str(e), size
        except RUNTIME_ERRORS as e:
            reason = reason if most < inf else first_line(e)
    return MadeUpRun(feeds={}, outputs={}, reason=reason)


class _TooMuchError(Exception):
    """A run was stopped."""


def _run_bounded(session: Any, feeds: Feeds) -> dict[str, Any]:
    """Run a model, and stop it between two of its nodes when it takes too much.

    Raises:
        _TooMuchError: It took too much.
    """
    options, done = run_options(), threading.Event()
    seconds, memory = time.process_time() + _MADE_UP_SECONDS, memory_of(None)
    most = resident(mapped=False) + memory
    taken: list[str] = []

    def watch() -> None:
        while not done.wait(_LOOKED_EVERY):
            if time.process_time() > seconds:
                taken.append(f"more than {_MADE_UP_SECONDS} CPU seconds")
            elif resident(mapped=False) > most:
                taken.append(f"more than {memory_text(memory)} of memory")
            if taken:
                options.terminate = True
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        return run_session(session, feeds, options)
    except RUNTIME_ERRORS as e:
        if taken:
            raise _TooMuchError(f"a run takes {taken[0]}") from e
        raise
    finally:
        done.set()
        watcher.join()


def as_array(output: Any) -> Any:
    """Return an output as one array; as it is if it is one, or cannot be one.

    A list of maps, a classifier's probabilities by class, has one row per map and one column per key, in the order of keys. A list of
    arrays is one more axis, or, where their shapes differ, all their values in a row.
    """
    if isinstance(output, dict):
        return _row(output)
    if not isinstance(output, list) or not output:
        return output
    if all(isinstance(item, dict) for item in output):
        rows = [_row(item) for item in output]
    elif all(isinstance(item, np.ndarray) for item in output):
        rows = output
    else:
        return np.asarray(output)
    if len({row.shape for row in rows}) == 1:
        return np.stack(rows)
    return np.concatenate([row.ravel() for row in rows])


def _row(mapping: Mapping[Any, Any]) -> NDArray[Any]:
    return np.asarray([mapping[key] for key in sorted(mapping)])


def row_trial(session: Callable[[], Any]) -> Trial:
    """Return what tells whether rows are independent; the session is made when it is first asked."""

    def trial(rows: Sequence[Feeds], shared: Collection[str]) -> bool | None:
        opened = session()
        # What comes first depends on nothing before it: the rows in the middle and at the end show a state.
        places = sorted({0, len(rows) // 2, len(rows) - 1})
        try:
            alone = {place: run_session(opened, rows[place]) for place in places}
        except RUNTIME_ERRORS:
            return False  # an index that points to another row, for example
        try:
            together = run_session(opened, _joined(rows, shared))
        except RUNTIME_ERRORS:
            return True  # built for a batch of 1, whatever its inputs say
        return _independent(alone, together, len(rows))

    return trial


def _joined(rows: Sequence[Feeds], shared: Collection[str]) -> dict[str, NDArray[Any]]:
    return {
        name: first if name in shared or not first.ndim else np.concatenate([r[name] for r in rows])
        for name, first in rows[0].items()
    }


def _independent(
    alone: Mapping[int, Mapping[str, Any]], together: Mapping[str, Any], count: int
) -> bool | None:
    """Compare the outputs of rows with theirs among others; None if no output can be compared.

    Integers count only where no floats can be compared: those of a detector name the row that a box is of.
    """
    for kinds in ("f", "iub"):
        some = {
            n: y for n, y in together.items() if isinstance(y, np.ndarray) and y.dtype.kind in kinds
        }
        found = _agree(alone, some, count)
        if found is not None:
            return found
    return None


def _agree(
    alone: Mapping[int, Mapping[str, Any]], together: Mapping[str, NDArray[Any]], count: int
) -> bool | None:
    found: bool | None = None
    for name, whole in together.items():
        for place, outputs in alone.items():
            part = outputs[name]
            own = _part(whole, part.shape, place, count)
            if own is not None:
                found = True
            elif whole.shape == part.shape:  # a constant, or made of all rows
                own = whole
            if own is not None and not _close(own, part):
                return False
    return found


def _part(
    whole: NDArray[Any], shape: tuple[int, ...], place: int, count: int
) -> NDArray[Any] | None:
    """Return a row's part of an output, along the one axis that grew with the number of rows; None if there is none."""
    if whole.ndim != len(shape):
        return None
    axes = [axis for axis, extent in enumerate(shape) if whole.shape[axis] != extent]
    if len(axes) != 1 or whole.shape[axes[0]] != count * shape[axes[0]]:
        return None
    extent = shape[axes[0]]
    return whole.take(range(place * extent, (place + 1) * extent), axis=axes[0])


def _close(have: NDArray[Any], want: NDArray[Any]) -> bool:
    if have.dtype.kind != "f":
        return bool(np.mean(have != want) <= _ROUNDING) if have.size else True
    have, want = have.astype(np.float64), want.astype(np.float64)
    known = np.isfinite(have) & np.isfinite(want)
    apart, size = have[known] - want[known], want[known]
    return bool(np.sum(np.square(apart)) <= _ROUNDING**2 * np.sum(np.square(size)) + 1e-12)
