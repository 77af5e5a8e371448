"""Batches of real samples for timing."""

from collections.abc import Sequence
from itertools import cycle, islice
from typing import Any

import numpy as np

from quantkit.runtime.synthetic_inputs import Feeds, Signature

__all__ = ["batch_of", "batches_of"]


def batches_of(
    feeds: Sequence[Feeds], asked: Sequence[int], inputs: Sequence[Signature]
) -> tuple[tuple[int, ...], str]:
    """Return which batches can be timed, and a note if they are not the ones asked for.

    That is the one that the model is built for if its batch is fixed; and one sample if its inputs have no
    leading extent in common, so that samples cannot be put together.
    """
    able = tuple(dict.fromkeys(asked))
    if _extent(feeds[0]) is None:
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
    """Return one feed with so many rows.

    It is made of different samples of one shape, the shape that most samples have, and of the same ones over again
    if there are too few.
    """
    alike = _commonest(feeds)
    own = _extent(alike[0])
    if own is None or own == batch:
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
