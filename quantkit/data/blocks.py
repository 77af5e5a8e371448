"""Whether the first axes of a model's inputs count samples, and how stored arrays are cut into samples.

They do where the model says so: one name with "batch" in it on every free first axis. Where it says something else, or nothing (nodes and
edges of a graph, tokens of a packed sequence, steps of time), a few rows are run alone and together (`Trial`): rows are samples if their
outputs do not depend on other rows. Otherwise a file is one sample.

A `Block` is what one file holds (or several .npy files that belong together). Cut into rows, an array and an input of the model mean:

1. The same rank: the leading axis counts rows. A free leading extent, or 1, takes one row at a
   time; a fixed extent B takes B rows.
2. One axis less: one sample without the batch axis.
3. A whole input of a fixed extent above 1 (anchors, a state) or without axes (a sampling rate),
   where other inputs have many rows: given to every sample. An input without axes may also have one value per row.
4. One row of an input whose extent is fixed at 1 (a state), where inputs with a free extent have many: the model takes
   no batches, the free axis is something else (steps of time), and the file is one sample.

Everything else is an error that names both shapes.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from quantkit.data.model import Array, InputSpec, shape_text
from quantkit.data.rows import check_names, check_unknown, quoted
from quantkit.errors import DataError

Feeds = Mapping[str, Array]
Trial = Callable[[Sequence[Feeds], Collection[str]], bool | None]
"""Runs rows alone and together; the inputs that are named are the same for all rows and are not joined.

Returns whether rows are independent of each other; None if the outputs do not show it.
"""

_MOST = 64  # rows that are tried together,
_FEW = 8  # and how many where these would be more, or large
_SMALL = 16 << 20  # bytes of rows that are tried together
_FIRST = 3  # files of one row that are tried together


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
        whole: It is one sample, and its first axes do not count samples.
        uneven: Why it cannot be cut into rows; "" if it can.
    """

    name: str
    samples: int
    keys: Mapping[str, str]
    rows: Mapping[str, int]
    whole: bool = False
    uneven: str = ""

    def part(self, name: str, sample: int) -> slice | None:
        """Return the rows that a sample has of an input; None: the whole array."""
        rows = self.rows[name]
        return slice(sample * rows, (sample + 1) * rows) if rows else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """How files are divided into samples.

    Attributes:
        rows: Rows are samples; else each file is one.
        axis: The first axis in words: "axis 0 'batch'".
        why: What speaks for it where the model's names do not; "" where they do.
        warning: What may be wrong about it.
    """

    rows: bool
    axis: str
    why: str = ""
    warning: str = ""

    def text(self, blocks: Sequence[Block]) -> str:
        """Return what one sample is, for a `Description`."""
        if any(block.samples > 1 for block in blocks):
            return f"rows of {self.axis}"
        one = "one per file" if len(blocks) > 1 else "all rows together"
        return f"{one}: {self.why}" if self.why and not self.rows else one


def block_of(
    name: str, headers: Mapping[str, Header], keys: Mapping[str, str], inputs: Sequence[InputSpec]
) -> Block:
    """Return how the arrays of one file are cut into rows.

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
    if _is_one_sample(counts, samples, inputs):
        return whole_block(name, keys)
    uneven = ""
    for spec in inputs:
        if counts[spec.name] == samples:
            continue
        if counts[spec.name] == 1 and (not spec.shape or (spec.shape[0] or 1) > 1):
            rows[spec.name] = 0
            continue
        most = max(counts, key=lambda k: counts[k])
        uneven = uneven or (
            f"'{name}' has {counts[spec.name]} samples for the input '{spec.name}' and {samples} "
            f"for '{most}': give all arrays the same number of rows."
        )
    return Block(name=name, samples=samples, keys=dict(keys), rows=rows, uneven=uneven)


def whole_block(name: str, keys: Mapping[str, str]) -> Block:
    """Return a file that is one sample."""
    return Block(name=name, samples=1, keys=dict(keys), rows=dict.fromkeys(keys, 0), whole=True)


def divide(
    blocks: Sequence[Block],
    inputs: Sequence[InputSpec],
    row: Callable[[int, int], Feeds],
    trial: Trial | None,
) -> Division:
    """Decide whether the rows of files are samples, or each file is one.

    Args:
        blocks: The files, cut into rows.
        inputs: What the model wants.
        row: Reads a row of a block: its number, the row's.
        trial: Runs rows, where names do not tell; None: nothing can be run.

    Raises:
        DataError: The model gives first axes one name, and a file has arrays of different lengths.
    """
    names, axis, declared = _named(inputs)
    if uneven := next((block.uneven for block in blocks if block.uneven), ""):
        if declared or (len(names) == 1 and "" not in names):
            raise DataError(uneven)
        return Division(rows=False, axis=axis, why="arrays of a file have different lengths")
    # Arrays without the first axis say by that what it is.
    bare = not any(block.rows[spec.name] for block in blocks for spec in _free(inputs))
    if declared or (bare and not any(block.whole for block in blocks)):
        return Division(rows=True, axis=axis)
    pieces, shared = _pieces(blocks, row)
    independent = trial(pieces, shared) if trial and len(pieces) > 1 else None
    if independent is not None:
        return Division(rows=independent, axis=axis, why="" if independent else _DEPENDS)
    rows = len(names) == 1
    if not trial or all(block.samples == 1 for block in blocks):
        return Division(rows=rows, axis=axis)
    return _guessed(axis, inputs, rows=rows)


def _guessed(axis: str, inputs: Sequence[InputSpec], *, rows: bool) -> Division:
    """Return a division that neither the model nor a trial confirms, and say so."""
    if rows:
        said = f"Rows of {axis} are taken as samples, though the outputs do not show that one row is independent of the others: "
        advice = "store one sample per file, with its batch axis, if they are not."
    else:
        said = f"Each file is taken as one sample, because the first axes of {quoted([s.name for s in _free(inputs)])} have different names: "
        advice = "store one row per file if rows are samples."
    return Division(
        rows=rows, axis=axis, why="first axes have different names", warning=said + advice
    )


_DEPENDS = "outputs of a row depend on the others"


def joins(inputs: Sequence[InputSpec], first: Sequence[Feeds], trial: Trial | None) -> bool:
    """Say whether samples that come one by one may run together, by the first of them."""
    names, _, declared = _named(inputs)
    if declared or not first:
        return True
    counts = {first[0][spec.name].shape[0] for spec in _free(inputs)}
    if len(counts) > 1:
        return False
    (rows,) = counts
    shared = [s.name for s in inputs if not s.shape or s.shape[0] is not None]
    pieces = list(first)
    if rows > 1:
        pieces = [
            {n: a if n in shared else a[i : i + 1] for n, a in first[0].items()}
            for i in range(_tried(rows, sum(a.nbytes for a in first[0].values())))
        ]
    found = trial(pieces, shared) if trial and _alike(pieces) and len(pieces) > 1 else None
    return len(names) == 1 if found is None else found


def _free(inputs: Sequence[InputSpec]) -> list[InputSpec]:
    return [spec for spec in inputs if spec.shape and spec.shape[0] is None]


def _named(inputs: Sequence[InputSpec]) -> tuple[set[str], str, bool]:
    """Return the names of free first axes, the axis in words, and whether the model declares a batch."""
    names = {spec.axis for spec in _free(inputs)}
    name = next(iter(names)) if len(names) == 1 else ""
    declared = not names or "batch" in name.lower()
    return names, f"axis 0 '{name}'" if name else "axis 0", declared


def _tried(rows: int, nbytes: int) -> int:
    return rows if rows <= _MOST and nbytes <= _SMALL else min(rows, _FEW)


def _pieces(
    blocks: Sequence[Block], row: Callable[[int, int], Feeds]
) -> tuple[list[Feeds], list[str]]:
    """Return rows of the first file that has several, else the first row of some files; and the inputs that all share."""
    try:
        for number, block in enumerate(blocks):
            if block.samples > 1:
                first = row(number, 0)
                nbytes = block.samples * sum(array.nbytes for array in first.values())
                rest = (row(number, i) for i in range(1, _tried(block.samples, nbytes)))
                return [first, *rest], [name for name, rows in block.rows.items() if not rows]
        found = [row(number, 0) for number in range(min(len(blocks), _FIRST))]
    except DataError:  # whoever reads that sample will say so
        return [], []
    fixed = any(block.whole or max(block.rows.values(), default=0) > 1 for block in blocks)
    return (found if _alike(found) and not fixed else []), []


def _alike(pieces: Sequence[Feeds]) -> bool:
    """Say whether pieces can be put behind each other along their first axes."""
    return len({tuple(a.shape[1:] for a in piece.values()) for piece in pieces}) == 1


def _is_one_sample(counts: Mapping[str, int], samples: int, inputs: Sequence[InputSpec]) -> bool:
    """Say whether a file with different numbers of rows is a whole sample (4 above)."""
    single = [spec for spec in inputs if spec.shape and spec.shape[0] == 1]
    free = _free(inputs)
    return (
        samples > 1
        and any(counts[spec.name] == 1 for spec in single)
        and any(counts[spec.name] > 1 for spec in free)
        and all(counts[spec.name] == 1 for spec in inputs if spec not in free)
    )


def _rows(name: str, header: Header, spec: InputSpec) -> int:
    """Return how many rows one sample takes; 0 for an array that is one sample."""
    rank, shape = len(spec.shape), header.shape
    if len(shape) == rank - 1 or (rank == 0 and not shape):
        return 0
    if len(shape) != max(rank, 1):
        raise DataError(
            f"'{name}' does not fit the input '{spec.name}': the model wants "
            f"{shape_text(spec.dtype, spec.shape)} and the data has "
            f"{shape_text(header.dtype, header.shape)}; give it {max(rank, 1)} axes, rows first, "
            f"or {max(rank - 1, 0)} for one sample."
        )
    extent = (spec.shape[0] or 1) if spec.shape else 1
    if shape[0] % extent:
        raise DataError(
            f"'{name}' has {shape[0]} rows for the input '{spec.name}', which takes "
            f"{extent} at a time: give a multiple of {extent} rows."
        )
    return extent
