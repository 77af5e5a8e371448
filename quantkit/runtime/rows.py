"""Find out by running a model whether the rows of its inputs are samples that do not depend on each other."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantkit.data import Trial
from quantkit.runtime.session import RUNTIME_ERRORS, run_session

__all__ = ["row_trial"]

Feeds = Mapping[str, NDArray[Any]]

# Of a row's size: a model that gives all rows one range, as dynamic quantization does, changes a row by less, a state that a row hands
# on to the next by more.
_ROUNDING = 0.05


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
