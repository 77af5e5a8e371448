"""Which samples, in which order, and how they become the feeds of one run.

Also ONNX test sets: `test_data_set_*/input_*.pb`, one TensorProto per input, one folder per sample. Their files are
in the order of the model's inputs; a tensor whose name is one of the inputs goes there.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quantkit.data.blocks import Trial, joins
from quantkit.data.detect import Found, natural
from quantkit.data.model import (
    Array,
    Description,
    InputSpec,
    Sample,
    Samples,
    Stream,
    file_fingerprint,
)
from quantkit.data.rows import conform, input_lines
from quantkit.errors import DataError, UsageError

__all__ = ["batches", "collate", "fixed_batch", "open_test_sets", "order"]


class _TestSetSamples:
    """Random access to test sets."""

    __test__ = False  # no class of tests, whatever pytest thinks of the name

    def __init__(
        self, found: Found, inputs: Sequence[InputSpec], trial: Trial | None = None
    ) -> None:
        self._found = found
        self._whole = False
        self._inputs = tuple(inputs)
        groups: dict[Path, list[Path]] = {}
        for file in found.files:
            groups.setdefault(file.parent, []).append(file)
        self._groups = tuple(
            (folder.name, tuple(sorted(files, key=natural))) for folder, files in groups.items()
        )
        self.description = Description(
            kind=found.kind,
            location=found.location,
            samples=len(self._groups),
            warnings=found.warnings,
        )
        first = [self[i] for i in range(min(3, len(self)))]
        self._whole = not joins(inputs, [sample.feeds for sample in first], trial)
        self.description = replace(self.description, inputs=input_lines(first[0]))

    def __len__(self) -> int:
        return len(self._groups)

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(index)
        name, files = self._groups[index]
        tensors = [_read_tensor(file) for file in files]
        known = {spec.name for spec in self._inputs}
        feeds = {tensor: array for tensor, array in tensors if tensor in known}
        free = iter([spec.name for spec in self._inputs if spec.name not in feeds])
        for file, (tensor, array) in zip(files, tensors, strict=True):
            if tensor not in known:
                feeds[next(free, tensor or file.name)] = array
        return conform(Sample(feeds=feeds, name=name, whole=self._whole), self._inputs)

    def fingerprint(self) -> str:
        """Return the digest of the files."""
        return file_fingerprint(self._found.files, self._found.root, self._found.kind)


def open_test_sets(
    found: Found, inputs: Sequence[InputSpec], trial: Trial | None = None
) -> _TestSetSamples:
    """Open test sets and read the first."""
    return _TestSetSamples(found, inputs, trial)


def _read_tensor(file: Path) -> tuple[str, Array]:
    """Return the tensor's name and values."""
    import onnx
    from google.protobuf.message import DecodeError
    from onnx import numpy_helper

    try:
        tensor = onnx.TensorProto.FromString(file.read_bytes())
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise DataError(
                f"The tensor '{file}' has its values in another file; refused: store them in the tensor itself."
            )
        array: Array = numpy_helper.to_array(tensor)
    except (OSError, DecodeError, ValueError, TypeError, KeyError) as e:
        raise DataError(f"Cannot read the tensor '{file}': {e or 'no TensorProto'}.") from e
    return tensor.name, array


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
