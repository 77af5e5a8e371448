"""Batches of unlabelled samples: which samples a step sees follows from the seed and its number alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantkit.data import Sample, Samples, collate

Feeds = Mapping[str, NDArray[Any]]

_TOGETHER = 8  # batches whose samples are sorted by length, so that little is filled up
_HELD_BYTES = 1 << 30
_SHIFTED = 8  # images are shifted by up to this part of their extents
_IMAGE, _SMALLEST = 4, 16  # axes; pixels


@dataclass
class Batches:
    """Samples that are read once, as far as memory allows.

    Attributes:
        samples: All samples.
        places: Those that are trained on.
        size: Samples of a batch.
        seed: Of everything that is drawn.
        images: Shift and mirror them.
    """

    samples: Samples
    places: Sequence[int]
    size: int
    seed: int
    images: bool = False
    _known: dict[int, Sample] = field(default_factory=dict)
    _bytes: int = 0

    def step(self, number: int) -> list[Feeds]:
        """Return the feeds of a step; several, where samples of different shapes do not fit into one."""
        group, place = divmod(number, _TOGETHER)
        draw = np.random.default_rng([self.seed, group])
        count = self.size * _TOGETHER
        chosen = [
            self.read(i) for i in draw.choice(self.places, count, replace=count > len(self.places))
        ]
        chosen.sort(key=_length)
        first = int(draw.permutation(_TOGETHER)[place]) * self.size
        feeds = collate(chosen[first : first + self.size])
        if not self.images:
            return list(feeds)
        own = np.random.default_rng([self.seed, group, place])
        return [{name: _moved(array, own) for name, array in one.items()} for one in feeds]

    def fixed(self, places: Sequence[int]) -> list[Feeds]:
        """Return feeds of just these samples, as they are."""
        chosen = sorted((self.read(i) for i in places), key=_length)
        parts = (chosen[i : i + self.size] for i in range(0, len(chosen), self.size))
        return [feeds for part in parts for feeds in collate(part)]

    def read(self, place: int) -> Sample:
        """Return a sample."""
        place = int(place)
        if place in self._known:
            return self._known[place]
        sample = self.samples[place]
        self._bytes += sum(array.nbytes for array in sample.feeds.values())
        if self._bytes < _HELD_BYTES:
            self._known[place] = sample
        return sample


def _length(sample: Sample) -> int:
    if sample.padding is None:
        return 0
    return max(int(sample.feeds[name].shape[1]) for name in sample.padding.values)


def _moved(array: NDArray[Any], draw: np.random.Generator) -> NDArray[Any]:
    """Shift each image a little, with what is mirrored at the border, and mirror half of them."""
    if array.ndim != _IMAGE or min(array.shape[2:]) < _SMALLEST or array.dtype.kind != "f":
        return array
    by = [extent // _SHIFTED for extent in array.shape[2:]]
    padded = np.pad(array, ((0, 0), (0, 0), *((n, n) for n in by)), "reflect")
    found = np.empty_like(array)
    for i in range(len(array)):
        top, left = (int(draw.integers(2 * n + 1)) for n in by)
        view = padded[i, :, top : top + array.shape[2], left : left + array.shape[3]]
        found[i] = view[:, :, ::-1] if draw.random() < 0.5 else view
    return found
