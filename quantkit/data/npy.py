"""`.npy` files: a file larger than memory costs the rows that are read.

A model with one input takes every file as more rows, in the order of their names. A model with
several takes one file for each input, named like it. `label.npy` (or labels, y, ...) holds one
label for each sample.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path

from quantkit.data.arrays import ArraySamples, FileSource
from quantkit.data.check import LABEL_NAMES, check_names, check_unknown
from quantkit.data.detect import Found
from quantkit.data.model import Array, Description, InputSpec
from quantkit.data.rows import array_labels_line, block_of, labels_of, mislabelled
from quantkit.data.stored import ArrayFiles, npy_array
from quantkit.errors import DataError
from quantkit.recipe import DataSettings

__all__ = ["open_npy"]


def open_npy(found: Found, inputs: Sequence[InputSpec], settings: DataSettings) -> ArraySamples:
    """Open the npy files of a directory, or one.

    Args:
        found: The files.
        inputs: What the model wants.
        settings: `label` is the stem of the file with the labels (None: one of the usual names),
            `memory` the limit.
    """
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
    starts = list(accumulate((block.samples for block in blocks), initial=0))
    labels: list[Array | None] = [None] * len(blocks)
    warnings: tuple[str, ...] = ()
    wrong = ""
    if label_file is not None:
        values = reader.whole(npy_array(label_file))
        own = labels_of(values)
        wrong = mislabelled(values, starts[-1], label_file.name)
        if own is None or len(own) != starts[-1]:
            warnings = (
                f"{label_file.name} is not one label for each of {starts[-1]} samples: not used.",
            )
        else:
            labels = [own[start:stop] for start, stop in pairwise(starts)]
    description = Description(
        kind=found.kind,
        location=found.location,
        samples=starts[-1],
        labels=array_labels_line(labels, label_file.name) if label_file else "none",
        mislabelled=wrong,
        warnings=(*found.warnings, *warnings),
    )
    source = FileSource(
        blocks=arrays,
        files=found.files,
        root=found.root,
        settings=("npy", label_file.name if label_file else None),
        reader=reader,
    )
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
