"""How the columns of a table feed a model, decided once from the columns' types.

In this order:

1. Columns named like the model's inputs hold their values: numbers or lists.
2. A text encoder takes the text column, or a pair of them, through the tokenizer.
3. An image column goes through the image preprocessing.
4. A model with one input [N, K] takes K columns of numbers in their order.

Each way is a frozen reader with `feeds(row)`; `padding` and `lines` tell what it does.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from quantkit.data.images import one_at_a_time
from quantkit.data.labels import usual_label
from quantkit.data.model import Array, InputSpec, Padding
from quantkit.data.pixels import read_image
from quantkit.data.preprocessing import Preprocessing, image_input, preprocessing
from quantkit.data.rows import quoted
from quantkit.data.text import TextEncoder, looks_like_text, text_encoder
from quantkit.errors import DataError, UsageError
from quantkit.settings import DataSettings, closest

_TABLE_RANK = 2


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

    @abstractmethod
    def feeds(self, row: Mapping[str, Any]) -> dict[str, Array]:
        """Return the arrays; a DataError's text is completed with the row's name."""

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

    def feeds(self, row: Mapping[str, Any]) -> dict[str, Array]:
        texts = [row[column] for column in self.columns]
        for column, text in zip(self.columns, texts, strict=True):
            if not isinstance(text, str):
                raise DataError(f"column '{column}' holds {text!r} and no text")
        return self.encoder.feeds(texts)

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
