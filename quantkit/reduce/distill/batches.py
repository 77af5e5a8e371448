"""Batches of unlabelled samples: the seed and the number of a step decide what the step sees."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantkit.calibration.job import sample_digest
from quantkit.data import Sample, Samples, collate
from quantkit.errors import DataError

Feeds = Mapping[str, NDArray[Any]]

_TOGETHER = 8  # batches whose samples are sorted by length, so that padding stays short
_SHIFT = 8  # images move by up to this fraction of their height and width
_AXES, _COLOURS, _SMALLEST = 4, 3, 16  # of a batch of images; pixels


@dataclass
class Batches:
    """Samples, read once as far as memory allows, in random batches.

    Attributes:
        samples: All samples.
        places: The training samples.
        held_out: The samples that decide whether training helps; copies of them are not trained on.
        size: Samples in a batch.
        seed: Of every random choice.
        augment: Shift and mirror images.
        skip_bad: Leave out samples that cannot be read.
        memory: Bytes of samples to keep in memory.
    """

    samples: Samples
    places: Sequence[int]
    held_out: Sequence[int]
    size: int
    seed: int
    augment: bool = False
    skip_bad: bool = False
    memory: int = 1 << 30
    _cache: dict[int, Sample] = field(default_factory=dict)
    _cached_bytes: int = 0

    def __post_init__(self) -> None:
        self._excluded = set(self.digests(self.held_out))

    def step(self, number: int) -> list[Feeds]:
        """Return the feeds of a step: several if its samples have shapes that do not join."""
        group, place = divmod(number, _TOGETHER)
        draw = np.random.default_rng([self.seed, group])
        count = self.size * _TOGETHER
        drawn = draw.choice(self.places, count, replace=count > len(self.places)).tolist()
        chosen = sorted(self._training_samples(drawn), key=_length)
        at = int(draw.permutation(_TOGETHER)[place])
        first, end = (n * len(chosen) // _TOGETHER for n in (at, at + 1))
        if first == end:
            raise DataError("Too few samples can be read to train with.")
        feeds = collate(chosen[first:end])
        if not self.augment:
            return list(feeds)
        own = np.random.default_rng([self.seed, group, place])
        return [{name: _augmented(array, own) for name, array in one.items()} for one in feeds]

    def test(self) -> list[Feeds]:
        """Return the feeds of the held-out samples, without augmentation."""
        chosen = sorted(self._read_all(self.held_out), key=_length)
        parts = (chosen[i : i + self.size] for i in range(0, len(chosen), self.size))
        return [feeds for part in parts for feeds in collate(part)]

    def digests(self, places: Sequence[int]) -> list[int]:
        """Return numbers that name samples by their content."""
        return [sample_digest(sample.feeds) for sample in self._read_all(places)]

    def has_images(self) -> bool:
        """Return whether an input looks like colour images: their mirror images mean the same."""
        first = self._read_all(self.held_out[:1])
        arrays = (array for sample in first for array in sample.feeds.values())
        return any(_is_image(a) and a.shape[1] == _COLOURS for a in arrays)

    def _training_samples(self, places: Sequence[int]) -> list[Sample]:
        found = self._read_all(places)
        return [s for s in found if sample_digest(s.feeds) not in self._excluded]

    def _read_all(self, places: Sequence[int]) -> list[Sample]:
        found = (self._read(int(place)) for place in places)
        return [sample for sample in found if sample is not None]

    def _read(self, place: int) -> Sample | None:
        if place in self._cache:
            return self._cache[place]
        try:
            sample = self.samples[place]
        except DataError:
            if not self.skip_bad:
                raise
            return None
        self._cached_bytes += sum(array.nbytes for array in sample.feeds.values())
        if self._cached_bytes < self.memory:
            self._cache[place] = sample
        return sample


def _is_image(array: NDArray[Any]) -> bool:
    return array.ndim == _AXES and min(array.shape[2:]) >= _SMALLEST and array.dtype.kind == "f"


def _length(sample: Sample) -> int:
    if sample.padding is None:
        return 0
    return max(int(sample.feeds[name].shape[1]) for name in sample.padding.values)


def _augmented(array: NDArray[Any], draw: np.random.Generator) -> NDArray[Any]:
    """Shift each image a little, reflecting it at the border, and mirror half of them."""
    if not _is_image(array):
        return array
    by = [extent // _SHIFT for extent in array.shape[2:]]
    padded = np.pad(array, ((0, 0), (0, 0), *((n, n) for n in by)), "reflect")
    found = np.empty_like(array)
    for i in range(len(array)):
        top, left = (int(draw.integers(2 * n + 1)) for n in by)
        view = padded[i, :, top : top + array.shape[2], left : left + array.shape[3]]
        found[i] = view[:, :, ::-1] if draw.random() < 0.5 else view
    return found
