"""Samples of a list of blocks of arrays: what npz and npy files have in common."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Protocol

from quantkit.data.check import conform, first_good, input_lines
from quantkit.data.fingerprint import file_fingerprint
from quantkit.data.model import Array, Description, InputSpec, Sample
from quantkit.data.rows import Block, plain_label
from quantkit.data.stored import ArrayFiles, StoredArray
from quantkit.errors import DataError

__all__ = ["ArraySamples", "ArraySource", "FileSource"]


class ArraySource(Protocol):
    """Where the arrays of each block are; picklable, and safe to use from several threads."""

    def rows(self, block: int, key: str, rows: slice | None) -> Array:
        """Return a copy of some rows of one of the block's arrays; None: of all."""

    def fingerprint(self) -> str:
        """Return the digest of the files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSource:
    """Arrays in files.

    Attributes:
        blocks: The arrays of each block by name.
        files: All files, and the folder that they are named from.
        root: That folder.
        settings: What else tells two sources apart, for the fingerprint.
        reader: Reads rows.
    """

    blocks: Sequence[Mapping[str, StoredArray]]
    files: tuple[Path, ...]
    root: Path
    settings: tuple[str | None, ...]
    reader: ArrayFiles

    def rows(self, block: int, key: str, rows: slice | None) -> Array:
        """Return a copy of some rows, or of all."""
        array = self.blocks[block][key]
        if rows is None:
            return self.reader.whole(array)
        return self.reader.rows(array, rows.start, rows.stop)

    def fingerprint(self) -> str:
        """Return the digest of the files."""
        return file_fingerprint(self.files, self.root, self.settings)


class ArraySamples:
    """Random access to the rows of blocks of arrays."""

    def __init__(
        self,
        source: ArraySource,
        *,
        blocks: Sequence[Block],
        labels: Sequence[Array | None],
        inputs: Sequence[InputSpec],
        description: Description,
    ) -> None:
        """Open the samples.

        Args:
            source: Where the arrays are.
            blocks: How each block is cut into samples.
            labels: One a sample for each block, or None for a block without.
            inputs: What the model wants.
            description: What was found.
        """
        self._source = source
        self._blocks = tuple(blocks)
        self._starts = tuple(accumulate((b.samples for b in blocks), initial=0))
        self._labels = tuple(labels)
        self._inputs = tuple(inputs)
        if not len(self):
            raise DataError(f"'{description.location}' holds no rows: there is nothing to read.")
        self.description = description
        self.description = replace(
            description, samples=len(self), inputs=input_lines(first_good(self))
        )

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(index)
        number = bisect_right(self._starts, index) - 1
        block, row = self._blocks[number], index - self._starts[number]
        labels = self._labels[number]
        sample = Sample(
            feeds={
                name: self._source.rows(number, key, block.part(name, row))
                for name, key in block.keys.items()
            },
            name=block.name if block.samples == 1 else f"{block.name} row {row}",
            label=None if labels is None else plain_label(labels[row]),
        )
        return conform(sample, self._inputs)

    def fingerprint(self) -> str:
        """Return the digest of the files."""
        return self._source.fingerprint()
