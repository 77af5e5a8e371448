"""`.npz` files: each holds rows, or one sample, under the names of the model's inputs.

Headers are read when the data is opened, values when a row is asked for (`quantkit.data.stored`).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from quantkit.data.arrays import ArraySamples, FileSource
from quantkit.data.check import LABEL_NAMES
from quantkit.data.detect import Found
from quantkit.data.model import Array, Description, InputSpec
from quantkit.data.rows import Block, array_labels_line, block_of, labels_of, mislabelled
from quantkit.data.stored import ArrayFiles, StoredArray, npz_arrays
from quantkit.errors import DataError
from quantkit.recipe import DataSettings

__all__ = ["open_npz"]


def open_npz(found: Found, inputs: Sequence[InputSpec], settings: DataSettings) -> ArraySamples:
    """Open the npz files of a directory, or one.

    Args:
        found: The files.
        inputs: What the model wants.
        settings: `label` is the key of the labels (None: one of the usual names), `memory` the limit.
    """
    reader = ArrayFiles(settings.memory_limit)
    arrays: list[dict[str, StoredArray]] = []
    blocks: list[Block] = []
    labels: list[Array | None] = []
    notes: dict[str, None] = {}
    label_key, wrong = None, ""
    for file in found.files:
        stored = npz_arrays(file)
        label_key = _label_key(stored, inputs, settings.label, file)
        keys = _keys({k for k in stored if k != label_key}, inputs, file.name, notes)
        block = block_of(file.name, {k: a.header for k, a in stored.items()}, keys, inputs)
        blocks.append(block)
        arrays.append({key: stored[key] for key in keys.values()})
        own = None
        if label_key:
            values = reader.whole(stored[label_key])
            own = labels_of(values)
            if own is None or len(own) != block.samples:
                where = f"'{label_key}' of {file.name}"
                wrong = wrong or mislabelled(values, block.samples, where)
                notes[f"{where} is not one label per sample: not used."] = None
                own = None
        labels.append(own)
    description = Description(
        kind=found.kind,
        location=found.location,
        samples=None,
        labels=array_labels_line(labels, f"'{label_key}'"),
        mislabelled=wrong,
        warnings=(*found.warnings, *notes),
    )
    source = FileSource(
        blocks=arrays,
        files=found.files,
        root=found.root,
        settings=("npz", settings.label),
        reader=reader,
    )
    return ArraySamples(
        source, blocks=blocks, labels=labels, inputs=inputs, description=description
    )


def _label_key(
    arrays: Mapping[str, StoredArray], inputs: Sequence[InputSpec], label: str | None, file: Path
) -> str | None:
    if label is not None:
        if label not in arrays:
            raise DataError(
                f"'{file}' has no labels '{label}': it has {', '.join(sorted(arrays))}."
            )
        return label
    taken = {spec.name for spec in inputs}
    return next((n for n in LABEL_NAMES if n in arrays and n not in taken), None)


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
