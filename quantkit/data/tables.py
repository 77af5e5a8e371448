"""Tables through the `datasets` library: csv, json, parquet, arrow, saved datasets, and Dataset objects.

Files are converted to Arrow in a temporary directory and memory-mapped from there; it is removed at once where
the system allows it, else when the samples go; nothing touches the network or the user's cache. A worker in another process
opens the files again.

`row_reader` decides once, by the types of the columns, how they feed the model, in this order:

1. Columns named like the model's inputs hold their values: numbers or lists.
2. A text encoder takes the text column, or a pair of them, through the tokenizer.
3. An image column goes through the image preprocessing.
4. A model with one input [N, K] takes K columns of numbers in their order.

Each way is a frozen reader with `feeds(row)`; `padding` and `lines` tell what it does.
"""

import os
import re
import shutil
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import numpy as np

from quantkit.data import detect
from quantkit.data.detect import SAVED, Found, check_tables
from quantkit.data.fingerprint import digest, file_fingerprint
from quantkit.data.images import one_at_a_time
from quantkit.data.labels import labels_line, usual_label
from quantkit.data.model import Array, Description, InputSpec, Label, Padding, Sample
from quantkit.data.pixels import read_image
from quantkit.data.preprocessing import Preprocessing, image_input, preprocessing
from quantkit.data.rows import conform, first_good, input_lines, quoted
from quantkit.data.text import TextEncoder, looks_like_text, text_encoder
from quantkit.errors import DataError, UsageError
from quantkit.files import make_scratch
from quantkit.settings import DataSettings, closest

_TABLE_RANK = 2

_BATCH = 1024
# What pyarrow and datasets say of files whose columns differ; they have no class for it.
_OTHER_COLUMNS = re.compile("Schema at index|can't be aligned|column names don't match")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowReader(ABC):
    """Makes feeds of a row.

    Attributes:
        columns: Those that are read.
        inputs: What its arrays must fit.
        padding: How its arrays are padded in a batch.
        lines: The steps of preparing a row, in words.
        warnings: What may be wrong with how rows are read.
        guessed: Nothing says which values the pixels of images become.
        advice: What to try if the model does not run on a row.
    """

    columns: tuple[str, ...]
    inputs: tuple[InputSpec, ...]
    padding: Padding | None = None
    lines: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    guessed: bool = False
    advice: str = ""

    @property
    def text(self) -> TextEncoder | None:
        """What encodes the columns as texts; None: they hold something else."""
        return None

    @abstractmethod
    def feeds(self, row: Mapping[str, Any]) -> dict[str, Array]:
        """Return the arrays; a DataError's text is completed with the row's name."""

    def texts(self, row: Mapping[str, Any]) -> list[str]:
        """Return the text, or the pair of texts, of a row; a DataError's text is completed with the row's name."""
        raise DataError(f"its columns ({quoted(tuple(row))}) hold no text for a tokenizer")

    def settings(self) -> dict[str, str]:
        """Return what tells two preparations of the same rows apart, by name."""
        return {}

    def identity(self) -> str:
        """Return what tells two readers apart, for a fingerprint."""
        return repr(self.columns)


class _ArrayColumns(RowReader):
    """Columns named like inputs. A number or list gets the input's rank."""

    def feeds(self, row: Mapping[str, Any]) -> dict[str, Array]:
        return {spec.name: _values(row[spec.name], spec) for spec in self.inputs}


class _NumberColumns(RowReader):
    """Columns of numbers that together are the model's only input."""

    def feeds(self, row: Mapping[str, Any]) -> dict[str, Array]:
        return {self.inputs[0].name: _values([row[c] for c in self.columns], self.inputs[0])}

    def settings(self) -> dict[str, str]:
        return {"columns": ", ".join(self.columns)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _TextColumns(RowReader):
    encoder: TextEncoder

    @property
    def text(self) -> TextEncoder:
        return self.encoder

    def feeds(self, row: Mapping[str, Any]) -> dict[str, Array]:
        return self.encoder.feeds(self.texts(row))

    def texts(self, row: Mapping[str, Any]) -> list[str]:
        texts = [row[column] for column in self.columns]
        for column, text in zip(self.columns, texts, strict=True):
            if not isinstance(text, str):
                raise DataError(f"column '{column}' holds {text!r} and no text")
        return texts

    def settings(self) -> dict[str, str]:
        return self.encoder.settings()

    def identity(self) -> str:
        return repr((self.columns, self.encoder.identity()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _ImageColumn(RowReader):
    steps: Preprocessing
    memory: int

    def feeds(self, row: Mapping[str, Any]) -> dict[str, Array]:
        image = row[self.columns[0]] or {}
        content: bytes | None = image.get("bytes")
        path: str = image.get("path") or ""
        if not content and not path:
            raise DataError(f"column '{self.columns[0]}' holds no image")
        # A path may be an address, which is nobody's business, or a pipe, which never ends.
        if not content and not Path(path).is_file():
            raise DataError(f"the image '{path}' is not there")
        source = BytesIO(content) if content else Path(path)
        try:
            return {self.inputs[0].name: read_image(source, self.steps, self.memory)}
        except ValueError as e:
            raise DataError(f"the image cannot be read: {e}") from e

    def settings(self) -> dict[str, str]:
        return self.steps.settings()

    def identity(self) -> str:
        return repr((self.columns, self.steps.identity()))


def row_reader(
    features: Mapping[str, Any],
    inputs: Sequence[InputSpec],
    settings: DataSettings,
    beside: Path | None,
) -> RowReader:
    """Return how the columns feed the model.

    Args:
        features: Column -> its type, as `datasets` describes it.
        inputs: What the model wants.
        settings: The columns chosen, and the preparation.
        beside: The folder of the data, for tokenizer.json.
    """
    # The surest reading first: 1. columns named as the inputs, unless --column asks for text; 2. texts, if the inputs
    # look like those of a tokenizer and none is a column; 3. the only column of images; 4. as many columns of numbers
    # as the only input has features, in the order of the table. A reading that could be wrong without anyone noticing
    # is refused: two columns of images, or one number too few, end in an error that names the columns. The label's
    # column feeds nothing, whatever its type.
    names = {spec.name for spec in inputs}
    label = label_column(features, inputs, settings.label)
    columns = [column for column in features if column != label]
    if names <= set(features) and not settings.text.column:
        return _ArrayColumns(columns=tuple(s.name for s in inputs), inputs=tuple(inputs))
    if looks_like_text(inputs) and not names & set(features):
        chosen = _text_columns(features, columns, settings.text.column)
        encoder = text_encoder(settings.text, inputs, beside)
        return _TextColumns(
            columns=chosen,
            inputs=tuple(one_at_a_time(spec) for spec in inputs),
            padding=encoder.padding,
            lines=(f"text from {quoted(chosen)}", *encoder.lines),
            encoder=encoder,
        )
    images = [column for column in columns if type(features[column]).__name__ == "Image"]
    if len(images) == 1:
        spec = image_input(inputs)
        steps = preprocessing(settings.image, spec)
        return _ImageColumn(
            columns=(images[0],),
            inputs=(one_at_a_time(spec),),
            lines=steps.lines,
            warnings=steps.warnings,
            guessed=steps.guessed,
            advice=steps.advice,
            steps=steps,
            memory=settings.memory_limit,
        )
    numbers = tuple(column for column in columns if _is_number(features[column]))
    if len(inputs) == 1 and inputs[0].shape[1:] == (len(numbers),):
        line = f"'{inputs[0].name}' from the columns {quoted(numbers)}"
        return _NumberColumns(columns=numbers, inputs=tuple(inputs), lines=(line,))
    missing = next(spec for spec in inputs if spec.name not in features)
    raise DataError(
        f"No column is named like the model's input '{missing}'{closest(missing.name, columns)}: "
        f"the columns are {quoted(columns)}; name them like the inputs."
    )


def label_column(
    features: Mapping[str, Any], inputs: Sequence[InputSpec], label: str | None
) -> str | None:
    """Return the column of labels: the one that is set, else the first of the usual names.

    Args:
        features: Column -> its type.
        inputs: What the model takes: a column of an input's name is no label.
        label: The column that the user named; None: look for a usual name.
    """
    if label is not None:
        if label not in features:
            raise UsageError(
                f"There is no column '{label}' for the labels{closest(label, features)}: "
                f"the columns are {quoted(tuple(features))}."
            )
        return label
    return usual_label(features, inputs)


def _text_columns(
    features: Mapping[str, Any], columns: Sequence[str], chosen: tuple[str, ...]
) -> tuple[str, ...]:
    for column in chosen:
        if column not in features:
            raise UsageError(
                f"There is no column '{column}'{closest(column, features)}: "
                f"the columns are {quoted(tuple(features))}."
            )
    if chosen:
        return chosen
    texts = [c for c in columns if getattr(features[c], "dtype", "") in {"string", "large_string"}]
    if len(texts) == 1:
        return (texts[0],)
    has = f"the text columns are {quoted(texts)}" if texts else f"there are {quoted(columns)}"
    raise DataError(
        f"Cannot tell which column holds the text: {has}; set --column NAME (twice for a pair)."
    )


def _is_number(feature: Any) -> bool:
    return str(getattr(feature, "dtype", "")).startswith(("int", "uint", "float", "double"))


def _values(value: Any, spec: InputSpec) -> Array:
    """Return a number or list as an array for the input; whole numbers may be floats in a table."""
    try:
        array = np.asarray(value, object if spec.dtype.kind == "O" else None)
    except ValueError as e:
        raise DataError(f"column '{spec.name}' holds lists of different lengths") from e
    if array.dtype.kind == "O" and spec.dtype.kind != "O":
        raise DataError(f"the input '{spec.name}' gets an empty value")
    if array.dtype.kind in "iu" and spec.dtype.kind == "f":
        array = array.astype(spec.dtype)
    if array.ndim == 0 and len(spec.shape) == _TABLE_RANK:
        array = array.reshape(1, 1)  # a column for an input [N, 1]
    return array


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
        with self._named(index):
            row = self._source.row(index)
            feeds = self._reader.feeds(row)
        sample = Sample(
            feeds=feeds,
            name=self._row_name(index),
            label=_label(row[self._label]) if self._label else None,
            padding=self._reader.padding,
            advice=self._reader.advice,
        )
        return conform(sample, self._reader.inputs)

    @property
    def text(self) -> TextEncoder | None:
        """What encodes the rows as texts; None: they hold something else."""
        return self._reader.text

    def texts(self, index: int) -> list[str]:
        """Return the text, or the pair of texts, of a row.

        Raises:
            DataError: It holds none.
        """
        with self._named(index):
            return self._reader.texts(self._source.row(index))

    def _row_name(self, index: int) -> str:
        return f"{self._name} row {index}"

    @contextmanager
    def _named(self, index: int) -> Iterator[None]:
        """Name the row in what is raised about it."""
        try:
            yield
        except (DataError, OSError, ValueError, OverflowError) as e:  # pyarrow's for damaged bytes
            said = f"Cannot use '{self._row_name(index)}': {e}; correct or remove it."
            raise DataError(said) from e

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
    name = found.files[0].name if single else found.root.name
    reading = _Reading(inputs=tuple(inputs), settings=settings, beside=found.root)
    return _open(_Files(found), name=name, reading=reading, description=found.described())


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
