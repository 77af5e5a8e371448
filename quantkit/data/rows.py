"""Arrays whose leading axis counts samples: npz and npy files, and arrays in memory.

A `Block` is what one file holds (or several .npy files that belong together). Its rule, for an
array and an input of the model:

1. The same rank: the leading axis counts rows. A free leading extent, or 1, takes one row at a
   time; a fixed extent B takes B rows.
2. One axis less: one sample without the batch axis.
3. A whole input of a fixed extent above 1 (anchors, a state) or without axes (a sampling rate),
   where other inputs have many rows: given to every sample.

Everything else is an error that names both shapes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from quantkit.data.boxes import Boxes
from quantkit.data.check import check_names, check_unknown
from quantkit.data.model import Array, InputSpec, Label, shape_text
from quantkit.errors import DataError

__all__ = ["Block", "Header", "array_labels_line", "block_of", "labels_line", "labels_of"]
__all__ += ["mislabelled", "plain_label", "plural"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """An array's type, known without reading its values."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """How many bytes the array's values take."""
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Samples that are stored together.

    Attributes:
        name: The file.
        samples: How many.
        keys: Input -> the array's name in the file.
        rows: Input -> rows in one sample; 0: the whole array goes to every sample.
    """

    name: str
    samples: int
    keys: Mapping[str, str]
    rows: Mapping[str, int]

    def part(self, name: str, sample: int) -> slice | None:
        """Return the rows that a sample has of an input; None: the whole array."""
        rows = self.rows[name]
        return slice(sample * rows, (sample + 1) * rows) if rows else None


def block_of(
    name: str, headers: Mapping[str, Header], keys: Mapping[str, str], inputs: Sequence[InputSpec]
) -> Block:
    """Return how the arrays of one file are cut into samples.

    Args:
        name: The file, for messages.
        headers: The arrays in it.
        keys: Input -> the array's name.
        inputs: What the model wants.
    """
    check_names(tuple(keys), inputs, name)
    check_unknown(tuple(keys), inputs, name)
    rows, counts = {}, {}
    for spec in inputs:
        header = headers[keys[spec.name]]
        rows[spec.name] = _rows(name, header, spec)
        counts[spec.name] = header.shape[0] // rows[spec.name] if rows[spec.name] else 1
    samples = max(counts.values(), default=0)
    for spec in inputs:
        if counts[spec.name] == samples:
            continue
        if counts[spec.name] == 1 and (not spec.shape or (spec.shape[0] or 1) > 1):
            rows[spec.name] = 0
            continue
        most = max(counts, key=lambda k: counts[k])
        raise DataError(
            f"'{name}' has {counts[spec.name]} samples for the input '{spec.name}' and {samples} "
            f"for '{most}': give all arrays the same number of rows."
        )
    return Block(name=name, samples=samples, keys=dict(keys), rows=rows)


def _rows(name: str, header: Header, spec: InputSpec) -> int:
    """Return how many rows one sample takes; 0 for an array that is one sample."""
    rank, shape = len(spec.shape), header.shape
    if len(shape) == rank - 1 or (rank == 0 and not shape):
        return 0
    if len(shape) != rank:
        raise DataError(
            f"'{name}' does not fit the input '{spec.name}': the model wants "
            f"{shape_text(spec.dtype, spec.shape)} and the data has "
            f"{shape_text(header.dtype, header.shape)}; give it {rank} axes, rows first, "
            f"or {rank - 1} for one sample."
        )
    extent = spec.shape[0] or 1
    if shape[0] % extent:
        raise DataError(
            f"'{name}' has {shape[0]} rows for the input '{spec.name}', which takes "
            f"{extent} at a time: give a multiple of {extent} rows."
        )
    return extent


def labels_of(labels: Array) -> Array | None:
    """Return an array of labels, one for each sample, of one axis.

    Shapes (n,) and (n, 1) are labels; a mask or a vector for each sample is none that a metric for
    classes could use, and gives None.
    """
    if labels.ndim and labels.size != labels.shape[0]:
        return None
    return labels.reshape(-1)


def plain_label(value: Any) -> Label:
    """Return one label as a plain value."""
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, bytes):
        return plain.decode(errors="replace")
    return plain if isinstance(plain, int | float | str) else None


def mislabelled(labels: Array, samples: int, where: str) -> str:
    """Return that labels are of another length than samples; "" if they are not, or are masks or vectors.

    `where`: The file or key, for the message.

    Args:
        labels: As they are stored.
        samples: How many there should be.
        where: The file or key, for the message.
    """
    found = labels_of(labels)
    if found is None or len(found) in {0, samples}:
        return ""
    count = plural(len(found), "label", "labels")
    return f"{where} has {count} for {plural(samples, 'sample', 'samples')}"


def array_labels_line(labels: Sequence[Array | None], source: str) -> str:
    """Return what a `Description` says of labels in arrays, of which there may be very many."""
    distinct = [np.unique(known) for known in labels if known is not None and known.size]
    plain = {plain_label(value) for known in distinct for value in known}
    return labels_line(tuple(plain), source)


def labels_line(labels: Sequence[Label], source: str) -> str:
    """Return what a `Description` says of labels: "10 classes from labels.csv"."""
    known = [label for label in labels if label is not None]
    if not known:
        return "none"
    if boxes := [label for label in known if isinstance(label, Boxes)]:
        count = sum(len(label.boxes) for label in boxes)
        return f"{plural(count, 'box', 'boxes')} on {plural(len(boxes), 'image', 'images')} from {source}"
    if any(isinstance(label, float) and not label.is_integer() for label in known):
        return f"numbers from {source}"
    return f"{plural(len(set(known)), 'class', 'classes')} from {source}"


def plural(count: int, one: str, many: str) -> str:
    """Return "1 class", "2 classes".

    Args:
        count: How many.
        one: The word for one of them.
        many: The word for any other number.
    """
    return f"{count} {one if count == 1 else many}"
