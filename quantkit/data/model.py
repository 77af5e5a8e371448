"""The values that pass between data and the rest: what a model wants, and what the data gives.

`Samples` is random access, can be pickled (a worker in another process opens the files again) and
read from several threads. `Stream` is a Python iterator: once through, no length.

A fingerprint is the digest by which calibration files and reports say which data they were made from. The whole of a
data set would take minutes to hash; names, sizes and both ends of every file tell data sets apart in practice.
Nothing of the machine goes in: a copy has the same fingerprint.

Boxes on images are read from COCO's instances JSON: images, annotations, categories.

`order` and `batches` say which samples are read, `collate` puts samples together as the feeds of one run.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from quantkit.data.boxes import Boxes
from quantkit.errors import DataError, UsageError

Array = NDArray[Any]


Label = int | float | str | Boxes | None

_MANY = 50_000_000


def shape_text(dtype: np.dtype[Any], shape: Sequence[int | None]) -> str:
    """Return for example 'float32[?, 3, 224, 224]'; a free dimension is a question mark."""
    name = "string" if dtype.kind in "OUS" else dtype.name
    return f"{name}[{', '.join('?' if n is None else str(n) for n in shape)}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """One input of the model. A free dimension is None.

    `axis` is the name that the model gives to its first axis; "" where that is fixed or has no name.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]
    axis: str = ""

    def __str__(self) -> str:
        return f"{self.name} {shape_text(self.dtype, self.shape)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding:
    """How samples of different length are made equal on axis 1 when they are batched.

    Attributes:
        values: What each input is filled with: the pad id, 0 for a mask.
        left: Fill before the text, as some decoders want it.
    """

    values: Mapping[str, int]
    left: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One thing to run the model on. Arrays have the model's rank and dtype, batch axis first.

    Attributes:
        feeds: Input name -> array.
        name: Where it comes from: a file name, or "rows.csv row 17" (rows count from 0).
        label: Its label, where there is one.
        padding: Set for text, whose length differs.
        advice: What to try if the model does not run on it: "; set ...", or nothing.
        whole: Its first axes do not count samples (nodes of a graph, steps of time): it runs alone and is not divided.
    """

    feeds: Mapping[str, Array]
    name: str
    label: Label = None
    padding: Padding | None = None
    advice: str = ""
    whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What was found, for people and for the provenance.

    Attributes:
        kind: "image folder", "onnx test sets", "npz", "npy", "csv", "Python iterable", ...
        location: The path, or the Python type.
        samples: How many; None if only reading them tells.
        division: What one sample is of files that may hold several: "one per file", "rows of axis 0 'batch'"; else "".
        inputs: Each input as the first sample has it: "input float32[1, 3, 224, 224]".
        preprocessing: What is done to a sample, one step per line.
        settings: What tells two preparations of the same files apart, by name; empty where nothing is prepared.
        labels: "1000 classes from labels.csv", or "none".
        classes: The names of the labels 0, 1, ..., where they have any.
        mislabelled: That there are more or fewer labels than samples, so that none is used; else "".
        warnings: What may be wrong.
        guessed: Nothing says how images are prepared: which values their pixels become is a guess.
    """

    kind: str
    location: str
    samples: int | None
    division: str = ""
    inputs: tuple[str, ...] = ()
    preprocessing: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    labels: str = "none"
    classes: tuple[str, ...] = ()
    mislabelled: str = ""
    warnings: tuple[str, ...] = field(default=())
    guessed: bool = False


@runtime_checkable
class Samples(Protocol):
    """Random access to samples. Pickles by what it was opened with; threads may share it."""

    description: Description
    """What was found."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Sample: ...

    def fingerprint(self) -> str:
        """Return a hex digest of what the samples are made of.

        Of names, sizes, the first and last 64 KB of every file, and the settings that change an
        array. Not of times, absolute paths, or which samples are chosen (batch, limit, shuffle).
        """


@runtime_checkable
class Stream(Protocol):
    """Samples that come one after the other."""

    description: Description
    """What was found."""

    def __iter__(self) -> Iterator[Sample]: ...


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
