"""Samples put together as the feeds of one run."""

from collections.abc import Mapping, Sequence

import numpy as np

from quantkit.data.model import Array, Sample


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
