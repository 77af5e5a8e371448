"""The order of samples, and batches of them as feeds of one run."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from quantkit.data.model import Array, InputSpec, Sample, Samples, Stream
from quantkit.errors import DataError, UsageError

__all__ = ["batches", "collate", "fixed_batch", "order"]


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


def fixed_batch(inputs: Sequence[InputSpec]) -> int | None:
    """Return the batch that the model is built for; None if it takes any.

    That is the leading extent that all inputs with a leading axis share. Where they differ (a
    state of [2, batch, 128] beside a signal), one run takes one sample: 1.
    """
    extents = {spec.shape[0] for spec in inputs if spec.shape}
    if extents <= {None}:
        return None
    if len(extents) == 1:
        return extents.pop()
    return 1


def collate(samples: Sequence[Sample]) -> list[dict[str, Array]]:
    """Return the feeds of one run after the other that hold all samples, in order.

    Neighbours whose extents agree in all but the leading axis are concatenated; a sample of
    another shape starts a new feed, so row i of all feeds together is row i of the samples. A whole
    sample is a feed of its own. Text is first padded to the longest sample.
    """
    groups: list[list[Mapping[str, Array]]] = []
    shape: object = None
    for sample, feed in zip(samples, _padded(samples), strict=True):
        own = {name: (array.dtype, array.shape[1:]) for name, array in feed.items()}
        joinable = not sample.whole and all(a.ndim for a in feed.values())  # a scalar has no batch
        if joinable and own == shape:
            groups[-1].append(feed)
        else:
            groups.append([feed])
        shape = own if joinable else None
    return [_concatenated(group) for group in groups]


def _concatenated(group: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    if len(group) == 1:
        return dict(group[0])
    return {name: np.concatenate([feed[name] for feed in group]) for name in group[0]}


def _padded(samples: Sequence[Sample]) -> list[Mapping[str, Array]]:
    longest = max(
        (s.feeds[name].shape[1] for s in samples if s.padding for name in s.padding.values),
        default=0,
    )
    return [_padded_sample(sample, longest) for sample in samples]


def _padded_sample(sample: Sample, length: int) -> Mapping[str, Array]:
    padding = sample.padding
    if padding is None:
        return sample.feeds
    feeds = dict(sample.feeds)
    for name, value in padding.values.items():
        missing = length - feeds[name].shape[1]
        if missing:
            widths = (missing, 0) if padding.left else (0, missing)
            rest = [(0, 0)] * (feeds[name].ndim - 2)
            feeds[name] = np.pad(feeds[name], [(0, 0), widths, *rest], constant_values=value)
    return feeds
