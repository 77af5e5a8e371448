"""`.npy` files, memory-mapped: a file larger than memory costs the rows that are read.

A model with one input takes every file as more rows, in the order of their names. A model with
several takes one file for each input, named like it. `label.npy` (or labels, y, ...) holds one
label for each sample.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from quantkit.data.arrays import ArraySamples, FileCache
from quantkit.data.check import LABEL_NAMES, check_names, check_unknown
from quantkit.data.detect import Found
from quantkit.data.fingerprint import file_fingerprint
from quantkit.data.model import Array, Description, InputSpec, Label
from quantkit.data.npz import read_header
from quantkit.data.rows import Header, block_of, labels_line, labels_of, mislabelled
from quantkit.errors import DataError

__all__ = ["open_npy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _NpySource:
    groups: tuple[Mapping[str, Path], ...]
    files: tuple[Path, ...]
    root: Path
    label: Path | None
    cache: FileCache = field(default_factory=FileCache)

    def arrays(self, block: int) -> Mapping[str, Array]:
        group = self.groups[block]
        return self.cache.get(block, lambda: {name: _map(file) for name, file in group.items()})

    def fingerprint(self) -> str:
        return file_fingerprint(self.files, self.root, ("npy", self.label and self.label.name))


def open_npy(found: Found, inputs: Sequence[InputSpec], label: str | None) -> ArraySamples:
    """Open the npy files of a directory, or one.

    Args:
        found: The files.
        inputs: What the model wants.
        label: The stem of the file with the labels; None: one of the usual names.
    """
    label_file = _label_file(found, inputs, label)
    files = [file for file in found.files if file != label_file]
    groups = _groups(files, inputs, found)
    blocks = []
    for group in groups:
        headers = {name: _header(file) for name, file in group.items()}
        name = next(iter(group.values())).name if len(group) == 1 else found.root.name
        blocks.append(block_of(name, headers, {n: n for n in group}, inputs))
    samples = sum(block.samples for block in blocks)
    labels: list[Label] = []
    warnings: tuple[str, ...] = ()
    wrong = ""
    if label_file is not None:
        labels = labels_of(_map(label_file))
        wrong = mislabelled(_map(label_file), samples, label_file.name)
        if len(labels) != samples:
            warnings = (
                f"{label_file.name} is not one label for each of {samples} samples: not used.",
            )
            labels = []
    description = Description(
        kind=found.kind,
        location=found.location,
        samples=samples,
        labels=labels_line(labels, label_file.name) if label_file else "none",
        mislabelled=wrong,
        warnings=warnings,
    )
    source = _NpySource(groups=tuple(groups), files=found.files, root=found.root, label=label_file)
    return ArraySamples(
        source, blocks=blocks, labels=labels, inputs=inputs, description=description
    )


def _label_file(found: Found, inputs: Sequence[InputSpec], label: str | None) -> Path | None:
    stems = {file.stem: file for file in found.files}
    if label is not None:
        if label not in stems:
            raise DataError(f"'{found.root}' has no labels '{label}.npy': add the file.")
        return stems[label]
    taken = {spec.name for spec in inputs}
    if len(stems) == 1:
        return None
    return next((stems[n] for n in LABEL_NAMES if n in stems and n not in taken), None)


def _groups(
    files: Sequence[Path], inputs: Sequence[InputSpec], found: Found
) -> list[Mapping[str, Path]]:
    if len(inputs) == 1:
        return [{inputs[0].name: file} for file in files]
    group = {file.stem: file for file in files}
    check_names(tuple(group), inputs, found.location)
    check_unknown(tuple(group), inputs, found.location)
    return [group]


def _header(file: Path) -> Header:
    try:
        with file.open("rb") as stream:
            return read_header(stream)[0]
    except (OSError, ValueError, EOFError) as e:
        raise DataError(f"Cannot read '{file}': {e}.") from e


def _map(file: Path) -> Array:
    try:
        array: Array = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as e:
        raise DataError(f"Cannot read '{file}': {e}.") from e
    return array
