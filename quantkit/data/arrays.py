"""Samples of a list of blocks of arrays: what npz and npy files have in common.

`.npy` files: a file larger than memory costs the rows that are read.

A model with one input takes every file as more rows, in the order of their names. A model with
several takes one file for each input, named like it. `label.npy` (or labels, y, ...) holds one
label for each sample.

`.npz` files: each holds rows, or one sample (`quantkit.data.blocks` decides), under the names of the model's inputs.

Headers are read when the data is opened, values when a row is asked for (`quantkit.data.stored`).
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Protocol

from quantkit.data.blocks import Block, Trial, block_of, divide, whole_block
from quantkit.data.detect import Found
from quantkit.data.fingerprint import file_fingerprint
from quantkit.data.labels import ArrayLabels, array_labels_line, plain_label, usual_label
from quantkit.data.model import Array, Description, InputSpec, Sample
from quantkit.data.rows import check_names, check_unknown, conform, first_good, input_lines
from quantkit.data.stored import ArrayFiles, StoredArray, npy_array, npz_arrays
from quantkit.errors import DataError
from quantkit.settings import DataSettings


class ArraySource(Protocol):
    """Where the arrays of each block are; picklable, and safe to use from several threads."""

    def rows(self, block: int, key: str, rows: slice | None) -> Array:
        """Return a copy of some rows of one of the block's arrays; None: of all.

        Args:
            block: Number of the block.
            key: Which of the block's arrays.
            rows: The rows to copy; None: all.
        """

    def fingerprint(self) -> str:
        """Return the digest of the files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSource:
    """Arrays in files.

    Attributes:
        blocks: The arrays of each block by name.
        found: All files, and the folder that they are named from.
        settings: What else tells two sources apart, for the fingerprint.
        reader: Reads rows.
    """

    blocks: Sequence[Mapping[str, StoredArray]]
    found: Found
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
        return file_fingerprint(self.found.files, self.found.root, self.settings)


class ArraySamples:
    """Random access to the rows of blocks of arrays."""

    def __init__(
        self,
        source: ArraySource,
        *,
        blocks: Sequence[Block],
        inputs: Sequence[InputSpec],
        description: Description,
        trial: Trial | None = None,
    ) -> None:
        """Open the samples; labels come later (`label`).

        Args:
            source: Where the arrays are.
            blocks: Each block, cut into rows; where rows are no samples, each is taken as one.
            inputs: What the model wants.
            description: What was found.
            trial: Runs rows, where the model does not tell whether they are samples.
        """
        self._source = source
        self._inputs = tuple(inputs)
        self._labels: tuple[Array | None, ...] = (None,) * len(blocks)
        self.blocks = tuple(blocks)
        found = divide(blocks, inputs, lambda number, row: self._read(number, row).feeds, trial)
        if not found.rows:
            self.blocks = tuple(whole_block(block.name, block.keys) for block in blocks)
        self._starts = tuple(accumulate((b.samples for b in self.blocks), initial=0))
        if not len(self):
            raise DataError(f"'{description.location}' holds no rows: there is nothing to read.")
        self.description = replace(
            description,
            samples=len(self),
            division=found.text(self.blocks),
            inputs=input_lines(first_good(self)),
            warnings=(*description.warnings, *filter(None, [found.warning])),
        )

    def label(
        self, labels: Sequence[Array | None], line: str, wrong: str, warnings: Iterable[str]
    ) -> None:
        """Take the labels of each block, one per sample, or None for a block without.

        Args:
            labels: Those of each block.
            line: What they are, for the description.
            wrong: That there are more or fewer than samples; else "".
            warnings: What may be wrong about them.
        """
        self._labels = tuple(labels)
        self.description = replace(
            self.description,
            labels=line,
            mislabelled=wrong,
            warnings=(*self.description.warnings, *warnings),
        )

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(index)
        number = bisect_right(self._starts, index) - 1
        return self._read(number, index - self._starts[number])

    def _read(self, number: int, row: int) -> Sample:
        block, labels = self.blocks[number], self._labels[number]
        sample = Sample(
            feeds={
                name: self._source.rows(number, key, block.part(name, row))
                for name, key in block.keys.items()
            },
            name=block.name if block.samples == 1 else f"{block.name} row {row}",
            label=None if labels is None else plain_label(labels[row]),
            whole=block.whole,
        )
        return conform(sample, self._inputs)

    def fingerprint(self) -> str:
        """Return the digest of the files."""
        return self._source.fingerprint()


def open_npy(
    found: Found, inputs: Sequence[InputSpec], settings: DataSettings, trial: Trial | None
) -> ArraySamples:
    """Open the npy files of a directory, or one.

    Args:
        found: The files.
        inputs: What the model wants.
        settings: `label` is the stem of the file with the labels (None: one of the usual names),
            `memory` the limit.
        trial: Runs rows, where the model does not tell whether they are samples.
    """
    # Three layouts: one input, and every file holds samples of it; several inputs, and each file is all samples of
    # the one that it is named after; either with a file of labels beside it. Only headers are read here; the labels
    # alone are read whole. They are one array over all files, in their natural order, cut at the files' ends; if it
    # has another length it labels something else and none of it is used, for a shifted label is worse than none.
    reader = ArrayFiles(settings.memory_limit)
    label_file = _label_file(found, inputs, settings.label)
    files = [file for file in found.files if file != label_file]
    arrays, blocks = [], []
    for group in _groups(files, inputs, found):
        stored = {name: npy_array(file) for name, file in group.items()}
        name = next(iter(group.values())).name if len(group) == 1 else found.root.name
        headers = {name: array.header for name, array in stored.items()}
        arrays.append(stored)
        blocks.append(block_of(name, headers, {n: n for n in group}, inputs))
    key = ("npy", label_file.name if label_file else None)
    samples = ArraySamples(
        FileSource(blocks=arrays, found=found, settings=key, reader=reader),
        blocks=blocks,
        inputs=inputs,
        description=found.described(),
        trial=trial,
    )
    if label_file is not None:
        found_labels = ArrayLabels.of(
            reader.whole(npy_array(label_file)), len(samples), label_file.name
        )
        own = found_labels.values
        starts = accumulate((block.samples for block in samples.blocks), initial=0)
        labels = [None if own is None else own[start:stop] for start, stop in pairwise(starts)]
        line = array_labels_line(labels, label_file.name)
        samples.label(labels, line, found_labels.wrong, filter(None, [found_labels.note]))
    return samples


def _label_file(found: Found, inputs: Sequence[InputSpec], label: str | None) -> Path | None:
    stems = {file.stem: file for file in found.files}
    if label is not None:
        if label not in stems:
            raise DataError(f"'{found.root}' has no labels '{label}.npy': add the file.")
        return stems[label]
    usual = usual_label(stems, inputs)
    return None if usual is None or len(stems) == 1 else stems[usual]


def _groups(
    files: Sequence[Path], inputs: Sequence[InputSpec], found: Found
) -> list[Mapping[str, Path]]:
    if len(inputs) == 1:
        return [{inputs[0].name: file} for file in files]
    group = {file.stem: file for file in files}
    check_names(tuple(group), inputs, found.location)
    check_unknown(tuple(group), inputs, found.location)
    return [group]


def open_npz(
    found: Found, inputs: Sequence[InputSpec], settings: DataSettings, trial: Trial | None
) -> ArraySamples:
    """Open the npz files of a directory, or one.

    Args:
        found: The files.
        inputs: What the model wants.
        settings: `label` is the key of the labels (None: one of the usual names), `memory` the limit.
        trial: Runs rows, where the model does not tell whether they are samples.
    """
    reader = ArrayFiles(settings.memory_limit)
    arrays: list[dict[str, StoredArray]] = []
    blocks: list[Block] = []
    labelled: list[tuple[str | None, StoredArray | None]] = []
    notes: dict[str, None] = {}
    for file in found.files:
        stored = npz_arrays(file)
        label_key = _label_key(stored, inputs, settings.label, file)
        keys = _keys({k for k in stored if k != label_key}, inputs, file.name, notes)
        blocks.append(block_of(file.name, {k: a.header for k, a in stored.items()}, keys, inputs))
        arrays.append({key: stored[key] for key in keys.values()})
        labelled.append((label_key, stored[label_key] if label_key else None))
    samples = ArraySamples(
        FileSource(blocks=arrays, found=found, settings=("npz", settings.label), reader=reader),
        blocks=blocks,
        inputs=inputs,
        description=found.described(),
        trial=trial,
    )
    labels: list[Array | None] = []
    wrong = ""
    for block, (label_key, array) in zip(samples.blocks, labelled, strict=True):
        if array is None:
            labels.append(None)
            continue
        where = f"'{label_key}' of {block.name}"
        own = ArrayLabels.of(reader.whole(array), block.samples, where)
        wrong = wrong or own.wrong
        if own.note:
            notes[own.note] = None
        labels.append(own.values)
    line = array_labels_line(labels, f"'{labelled[-1][0]}'")
    samples.label(labels, line, wrong, notes)
    return samples


def _label_key(
    arrays: Mapping[str, StoredArray], inputs: Sequence[InputSpec], label: str | None, file: Path
) -> str | None:
    if label is not None:
        if label not in arrays:
            raise DataError(
                f"'{file}' has no labels '{label}': it has {', '.join(sorted(arrays))}."
            )
        return label
    return usual_label(arrays, inputs)


def _keys(
    names: set[str], inputs: Sequence[InputSpec], file: str, notes: dict[str, None]
) -> dict[str, str]:
    """Return input -> key, and note what had to be guessed or is left out."""
    keys = {spec.name: spec.name for spec in inputs if spec.name in names}
    unknown = sorted(names - set(keys))
    if len(inputs) == 1 and not keys and len(unknown) == 1:
        name = inputs[0].name
        notes[f"'{unknown[0]}' is taken for the model's only input '{name}'."] = None
        return {name: unknown[0]}
    if len(keys) == len(inputs):
        for name in unknown:
            notes[f"'{name}' of {file} is no input of the model: not used."] = None
        return keys
    return keys | {name: name for name in unknown}
