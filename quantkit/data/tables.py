"""Tables through the `datasets` library: csv, json, parquet, arrow, saved datasets, and Dataset objects.

Files are converted to Arrow in a temporary directory and memory-mapped from there; it is removed at once where
the system allows it, else when the samples go; nothing touches the network or the user's cache. A worker in another process
opens the files again.
"""

import os
import re
import shutil
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

from quantkit.data import detect
from quantkit.data.columns import RowReader, label_column, row_reader
from quantkit.data.detect import SAVED, Found, check_tables
from quantkit.data.fingerprint import digest, file_fingerprint
from quantkit.data.labels import labels_line
from quantkit.data.model import Description, InputSpec, Label, Sample
from quantkit.data.rows import conform, first_good, input_lines
from quantkit.errors import DataError
from quantkit.files import make_scratch
from quantkit.settings import DataSettings

_BATCH = 1024
# What pyarrow and datasets say of files whose columns differ; they have no class for it.
_OTHER_COLUMNS = re.compile("Schema at index|can't be aligned|column names don't match")


class _Source(Protocol):
    """A `datasets.Dataset`, wherever it comes from."""

    @property
    def dataset(self) -> Any:
        """The dataset, opened when it is first needed."""

    def select(self, columns: Sequence[str]) -> "_Source":
        """Return the source of these columns alone: others need not be decoded."""

    def row(self, index: int) -> dict[str, Any]:
        """Return a row."""

    def fingerprint(self, settings: object) -> str:
        """Return the digest of the rows and of the settings."""


class _Files:
    """A dataset that is read from files. Pickles as the files' names and the columns."""

    def __init__(self, found: Found, columns: tuple[str, ...] | None = None) -> None:
        self._found = found
        self._columns = columns
        self._lock = Lock()
        self._opened: list[Any] = []  # the dataset; a list, so that `_remove` can let go of it

    def __reduce__(self) -> tuple[type["_Files"], tuple[Found, tuple[str, ...] | None]]:
        return _Files, (self._found, self._columns)

    @property
    def dataset(self) -> Any:
        with self._lock:
            if not self._opened:
                cache = str(make_scratch())
                weakref.finalize(self, _remove, cache, os.getpid(), self._opened)
                loaded = _load(self._found, cache)
                self._opened[:] = [_narrowed(loaded, self._columns) if self._columns else loaded]
                if os.name != "nt":  # what is mapped stays, and nothing is left however this ends
                    _remove(cache, os.getpid(), [])
            return self._opened[0]

    def select(self, columns: Sequence[str]) -> "_Source":
        narrowed = _narrowed(self.dataset, columns)
        with self._lock:
            self._columns, self._opened[:] = tuple(columns), [narrowed]
        return self

    def row(self, index: int) -> dict[str, Any]:
        dataset = self.dataset
        # Arrow files are mapped as they are: offsets that lead out of them would end the process.
        dataset.data.table.slice(index, 1).validate(full=True)
        row: dict[str, Any] = dataset[index]
        return row

    def fingerprint(self, settings: object) -> str:
        return file_fingerprint(self._found.files, self._found.root, settings)


class _Object:
    """A dataset that the caller has opened. Pickles as `datasets` does it."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def select(self, columns: Sequence[str]) -> "_Source":
        return _Object(_narrowed(self.dataset, columns))

    def row(self, index: int) -> dict[str, Any]:
        row: dict[str, Any] = self.dataset[index]
        return row

    def fingerprint(self, settings: object) -> str:
        return digest([str(self.dataset._fingerprint), repr(settings)])  # noqa: SLF001 no public name


def _narrowed(dataset: Any, columns: Sequence[str]) -> Any:
    """Return the dataset with these columns alone, images as the files that they are.

    `datasets` itself would decode whatever PIL knows, and fetch what has an address.
    """
    from datasets import Image

    narrowed = dataset.select_columns(list(columns))
    for name, feature in narrowed.features.items():
        if isinstance(feature, Image):
            narrowed = narrowed.cast_column(name, Image(decode=False))
    return narrowed


def _remove(folder: str, process: int, opened: list[Any]) -> None:
    """Remove a folder, after letting go of the dataset that maps its files: Windows removes no mapped file."""
    opened.clear()
    if os.getpid() == process:  # a forked worker must not remove what its parent reads
        shutil.rmtree(folder, ignore_errors=True)


class TableSamples:
    """Random access to the rows of a table."""

    def __init__(
        self,
        source: _Source,
        *,
        name: str,
        reader: RowReader,
        label: str | None,
        description: Description,
    ) -> None:
        self._source = source
        self._name = name
        self._reader = reader
        self._label = label
        if not len(self):
            raise DataError(f"'{description.location}' holds no rows: there is nothing to read.")
        self.description = description
        self.description = replace(
            description, samples=len(self), inputs=input_lines(first_good(self))
        )

    def __len__(self) -> int:
        return len(self._source.dataset)

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(index)
        name = f"{self._name} row {index}"
        try:
            row = self._source.row(index)
            feeds = self._reader.feeds(row)
        except (DataError, OSError, ValueError, OverflowError) as e:  # pyarrow's for damaged bytes
            raise DataError(f"Cannot use '{name}': {e}; correct or remove it.") from e
        sample = Sample(
            feeds=feeds,
            name=name,
            label=_label(row[self._label]) if self._label else None,
            padding=self._reader.padding,
            advice=self._reader.advice,
        )
        return conform(sample, self._reader.inputs)

    def fingerprint(self) -> str:
        """Return the digest of the rows and of how they are prepared."""
        return self._source.fingerprint((self._reader.identity(), self._label))


def open_table(found: Found, inputs: Sequence[InputSpec], settings: DataSettings) -> TableSamples:
    """Open the tables of a folder, or one, and read the first row.

    Args:
        found: The files.
        inputs: What the model takes.
        settings: Which columns are text and label, and how they are prepared.
    """
    check_tables(found, settings.memory_limit)
    single = len(found.files) == 1 and found.kind != SAVED
    description = Description(
        kind=found.kind, location=found.location, samples=None, warnings=found.warnings
    )
    name = found.files[0].name if single else found.root.name
    reading = _Reading(inputs=tuple(inputs), settings=settings, beside=found.root)
    return _open(_Files(found), name=name, reading=reading, description=description)


def open_dataset(dataset: Any, inputs: Sequence[InputSpec], settings: DataSettings) -> TableSamples:
    """Open a `datasets.Dataset` and read the first row.

    Args:
        dataset: A `datasets.Dataset`, not a dictionary of splits.
        inputs: What the model takes.
        settings: Which columns are text and label, and how they are prepared.
    """
    description = Description(kind="Dataset object", location="datasets.Dataset", samples=None)
    reading = _Reading(inputs=tuple(inputs), settings=settings, beside=None)
    return _open(_Object(dataset), name="dataset", reading=reading, description=description)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    inputs: tuple[InputSpec, ...]
    settings: DataSettings
    beside: Path | None


def _open(
    source: _Source, *, name: str, reading: _Reading, description: Description
) -> TableSamples:
    features = source.dataset.features
    label = label_column(features, reading.inputs, reading.settings.label)
    reader = row_reader(features, reading.inputs, reading.settings, reading.beside)
    needed = dict.fromkeys((*reader.columns, *([label] if label else [])))
    return TableSamples(
        source.select(tuple(needed)),
        name=name,
        reader=reader,
        label=label,
        description=replace(
            description,
            preprocessing=reader.lines,
            settings=reader.settings(),
            labels=_labels_line(source.dataset, label),
            warnings=(*description.warnings, *reader.warnings),
            guessed=reader.guessed,
        ),
    )


def _labels_line(dataset: Any, label: str | None) -> str:
    if label is None:
        return "none"
    kind = str(getattr(dataset.features[label], "dtype", ""))
    if kind.startswith(("int", "uint", "bool", "string", "large_string")):
        try:
            dataset.data.table.column(label).validate(full=True)
            return labels_line(dataset.unique(label), f"column '{label}'")
        except (ValueError, OverflowError) as e:
            reason = str(e).strip().partition("\n")[0].rstrip(".")
            raise DataError(f"Cannot read the labels in column '{label}': {reason}.") from e
    return f"numbers from column '{label}'" if kind.startswith(("float", "double")) else "none"


def _label(value: object) -> Label:
    return value if isinstance(value, int | float | str) else None


def _load(found: Found, cache: str) -> Any:
    """Return the files as one dataset, converted into `cache` where they are not Arrow."""
    import datasets

    try:
        with _quiet():
            return _dataset(found, cache)
    except Exception as e:  # the libraries raise anything for a broken file
        reason = (str(e.__cause__ or e).strip() or type(e).__name__).splitlines()[0].rstrip(".")
        cast = isinstance(e, datasets.exceptions.DatasetGenerationCastError)
        if len(found.files) > 1 and (cast or _OTHER_COLUMNS.search(str(e.__cause__ or e))):
            raise DataError(
                f"The {len(found.files)} files in '{found.root}' have different columns: "
                "point --data at one of them."
            ) from e
        reason = reason[:1].lower() + reason[1:]  # a library's sentence within ours
        raise DataError(f"Cannot read '{found.location}' as {found.kind}: {reason}.") from e


def _dataset(found: Found, cache: str) -> Any:
    from datasets import Dataset, concatenate_datasets, load_from_disk

    files = [str(file) for file in found.files]
    match found.kind:
        case detect.CSV:
            return Dataset.from_csv(files, cache_dir=cache)
        case detect.JSON | detect.JSONL:
            return Dataset.from_json(files, cache_dir=cache)
        case detect.PARQUET:
            # Without a size a batch is a row group, which may be the whole file.
            return Dataset.from_parquet(files, cache_dir=cache, batch_size=_BATCH)
        case detect.SAVED:
            return load_from_disk(str(found.root))
        case _:
            return concatenate_datasets([_arrow(file, cache) for file in files])


def _arrow(file: str, cache: str) -> Any:
    """Return an Arrow stream memory-mapped; an Arrow file (the other format) is converted."""
    from datasets import Dataset
    from datasets.packaged_modules.arrow.arrow import Arrow

    try:
        return Dataset.from_file(file)
    except ValueError:  # pyarrow's ArrowInvalid: no stream
        builder = Arrow(cache_dir=cache, data_files={"train": [file]})
        builder.download_and_prepare()
        return builder.as_dataset(split="train")


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep `datasets` from drawing bars and logging errors that are raised as well."""
    import datasets

    bars = not datasets.are_progress_bars_disabled()
    verbosity = datasets.logging.get_verbosity()
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        yield
    finally:
        datasets.logging.set_verbosity(verbosity)
        if bars:
            datasets.enable_progress_bars()
