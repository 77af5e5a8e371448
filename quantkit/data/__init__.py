"""A directory, a file or a Python object becomes a stream of named arrays, with labels.

`open_data` finds out what it is, reads the first sample and checks it against the model's inputs;
every later sample is checked as it is read. One module a format; `detect` tells them apart.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

from quantkit.data import detect
from quantkit.data.blocks import Trial
from quantkit.data.boxes import Boxes
from quantkit.data.model import (
    Description,
    InputSpec,
    Label,
    Padding,
    Sample,
    Samples,
    Stream,
    batches,
    collate,
    order,
)
from quantkit.errors import UsageError
from quantkit.settings import DataSettings, ImageSettings, TextSettings

__all__ = [
    "Boxes",
    "Description",
    "InputSpec",
    "Label",
    "Padding",
    "Sample",
    "Samples",
    "Stream",
    "Trial",
    "batches",
    "collate",
    "open_data",
    "order",
]


def open_data(
    source: object,
    inputs: Sequence[InputSpec],
    settings: DataSettings | None = None,
    trial: Trial | None = None,
) -> Samples | Stream:
    """Open data for a model.

    Args:
        source: A path (str or Path) to a directory or file; or a Python object: a sequence or
            iterable of dicts of arrays, something with `get_next()` (onnxruntime's
            CalibrationDataReader), or a `datasets.Dataset`.
        inputs: The model's inputs.
        settings: How samples are prepared. `path`, `batch`, `limit`, `shuffle` and `seed` are the
            caller's business.
        trial: Runs the model on rows, where its inputs do not tell whether rows are samples (`quantkit.data.blocks`);
            None: what they tell must do.

    Returns:
        `Samples` where there is random access, else a `Stream`.

    Raises:
        DataError: The data cannot be read or does not fit the model.
        UsageError: A setting makes no sense for this data or model.
    """
    settings = settings or DataSettings()
    if not inputs:
        raise UsageError("The model has no inputs: there is nothing to feed data to.")
    samples = _open(source, tuple(inputs), settings, trial)
    if unused := _unused(samples.description, settings):
        found = samples.description
        samples.description = replace(found, warnings=(*found.warnings, *unused))
    return samples


def _open(
    source: object, inputs: tuple[InputSpec, ...], settings: DataSettings, trial: Trial | None
) -> Samples | Stream:
    if isinstance(source, str | Path):
        return _open_path(Path(source), inputs, settings, trial)
    if _is_dataset(source):
        from quantkit.data.tables import open_dataset

        return open_dataset(source, inputs, settings)
    from quantkit.data.objects import open_object

    return open_object(source, inputs, settings, trial)


def _unused(found: Description, settings: DataSettings) -> list[str]:
    """Say which settings do nothing for this kind of data: somebody thinks that they do."""
    kinds: dict[str, tuple[str, ImageSettings | TextSettings]] = {
        "images": ("pixels", settings.image),
        "text": ("tokenizer", settings.text),
    }
    words = []
    for kind, (key, chosen) in kinds.items():
        set_ = [
            f.name
            for f in fields(chosen)
            if f.name != "search" and getattr(chosen, f.name) not in (None, ())
        ]
        if set_ and key not in found.settings:
            words.append(f"No effect on {found.kind} data: {', '.join(set_)} (for {kind}).")
    return words


def _open_path(
    path: Path, inputs: tuple[InputSpec, ...], settings: DataSettings, trial: Trial | None
) -> Samples:
    """Open files by their kind. Each reader is imported when it is needed: some are heavy."""
    found = detect.detect(path)
    match found.kind:
        case detect.TEST_SETS:
            from quantkit.data.test_sets import open_test_sets

            return open_test_sets(found, inputs, trial)
        case detect.NPZ:
            from quantkit.data.arrays import open_npz

            return open_npz(found, inputs, settings, trial)
        case detect.NPY:
            from quantkit.data.arrays import open_npy

            return open_npy(found, inputs, settings, trial)
        case detect.IMAGES:
            from quantkit.data.images import open_images

            return open_images(found, inputs, settings)
        case _:
            from quantkit.data.tables import open_table

            return open_table(found, inputs, settings)


def _is_dataset(source: object) -> bool:
    """Return True for a datasets.Dataset, told by its class's name: `datasets` is slow to import."""
    return any(
        c.__name__ == "Dataset" and c.__module__.partition(".")[0] == "datasets"
        for c in type(source).__mro__
    )
