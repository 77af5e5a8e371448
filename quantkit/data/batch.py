"""The order of samples, and batches of them as feeds of one run."""

from collections.abc import Iterator
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from quantkit.data.model import Sample, Samples, Stream
from quantkit.errors import DataError, UsageError

_MANY = 50_000_000


def order(
    n: int, *, limit: int | None = None, shuffle: bool = False, seed: int = 0
) -> NDArray[np.int64]:
    """Return the indices to read: at most `limit` of 0..n-1, mixed by `seed` if asked.

    The first `limit` of a mixed order are a fair draw, also from data sorted by class; the same
    arguments give the same indices on every machine.

    Args:
        n: How many samples there are.
        limit: At most so many; None: all.
        shuffle: Mix them before the first `limit` are taken.
        seed: Of the mixing.

    Raises:
        UsageError: There are so many that the list of them would take gigabytes.
    """
    count = n if limit is None else min(n, limit)
    if count > _MANY:
        raise UsageError(f"There are {n:,} samples, more than can be run: set --limit.")
    if not shuffle:
        return np.arange(count, dtype=np.int64)
    draw = np.random.default_rng(seed)
    if n > _MANY:  # the same kind of draw, without the list of all
        return draw.choice(n, count, replace=False).astype(np.int64)
    return draw.permutation(n)[:count].astype(np.int64)


def batches(
    samples: Samples | Stream,
    *,
    size: int = 1,
    limit: int | None = None,
    shuffle: bool = False,
    seed: int = 0,
    skip_bad: bool = False,
) -> Iterator[list[Sample]]:
    """Yield lists of `size` samples (the last may be shorter), read as they are needed.

    A stream has no order to mix: `shuffle` is for random access only.

    Args:
        samples: What to read.
        size: Samples per batch.
        limit: At most so many samples; None: all.
        shuffle: Read them in a mixed order.
        seed: Of the mixing.
        skip_bad: Leave out samples that cannot be read, instead of failing; not those of a stream.
    """
    if isinstance(samples, Samples):
        indices = order(len(samples), limit=limit, shuffle=shuffle, seed=seed)
        stream = _read(samples, indices, skip_bad=skip_bad)
    else:
        stream = islice(iter(samples), limit)
    while batch := list(islice(stream, size)):
        yield batch


def _read(samples: Samples, indices: NDArray[np.int64], *, skip_bad: bool) -> Iterator[Sample]:
    for index in indices:
        try:
            yield samples[int(index)]
        except DataError:
            if not skip_bad:
                raise
