"""Samples of a list of blocks of arrays: what npz and npy files have in common."""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from threading import Lock
from typing import Protocol

import numpy as np

from quantkit.data.check import conform, input_lines
from quantkit.data.model import Array, Description, InputSpec, Label, Sample
from quantkit.data.rows import Block, rows_of
from quantkit.errors import DataError

__all__ = ["ArraySamples", "ArraySource", "FileCache"]

_KEPT_BYTES = 256 * 2**20
_KEPT_FILES = 64


class ArraySource(Protocol):
    """Where the arrays of each block are; picklable, and safe to use from several threads."""

    def arrays(self, block: int) -> Mapping[str, Array]:
        """Return the block's arrays by name, memory-mapped where the file allows it."""

    def fingerprint(self) -> str:
        """Return the digest of the files."""


class FileCache:
    """The files used last, opened: reading row after row of one file must not open it each time.

    Kept are at most 64 files and 256 MB of arrays in memory (mapped ones count nothing), and always
    the last. A pickled cache is empty.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._open: OrderedDict[int, Mapping[str, Array]] = OrderedDict()

    def __reduce__(self) -> tuple[type["FileCache"], tuple[()]]:
        return FileCache, ()

    def get(self, key: int, read: Callable[[], Mapping[str, Array]]) -> Mapping[str, Array]:
        """Return what `read` gave for the key, reading it if it is not kept."""
        with self._lock:
            if key not in self._open:
                self._open[key] = read()
            self._open.move_to_end(key)
            while len(self._open) > 1 and self._too_much():
                self._open.popitem(last=False)
            return self._open[key]

    def _too_much(self) -> bool:
        held = (a for arrays in self._open.values() for a in arrays.values())
        nbytes = sum(a.nbytes for a in held if not isinstance(a, np.memmap))
        return len(self._open) > _KEPT_FILES or nbytes > _KEPT_BYTES


class ArraySamples:
    """Random access to the rows of blocks of arrays."""

    def __init__(
        self,
        source: ArraySource,
        *,
        blocks: Sequence[Block],
        labels: Sequence[Label],
        inputs: Sequence[InputSpec],
        description: Description,
    ) -> None:
        self._source = source
        self._blocks = tuple(blocks)
        self._starts = tuple(accumulate((b.samples for b in blocks), initial=0))
        self._labels = tuple(labels)
        self._inputs = tuple(inputs)
        if not len(self):
            raise DataError(f"'{description.location}' holds no rows: there is nothing to read.")
        self.description = replace(description, samples=len(self), inputs=input_lines(self[0]))

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(index)
        number = bisect_right(self._starts, index) - 1
        block, row = self._blocks[number], index - self._starts[number]
        sample = Sample(
            feeds=rows_of(block, row, self._source.arrays(number)),
            name=block.name if block.samples == 1 else f"{block.name} row {row}",
            label=self._labels[index] if self._labels else None,
        )
        return conform(sample, self._inputs)

    def fingerprint(self) -> str:
        """Return the digest of the files."""
        return self._source.fingerprint()
