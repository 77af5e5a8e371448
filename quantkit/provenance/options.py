"""Options as plain data, and back: what a user decided, for the record."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from quantkit.errors import ModelError
from quantkit.numerics.dtypes import IntType
from quantkit.settings import DataSettings
from quantkit.targets import Target

__all__ = ["data_settings_of", "to_record"]


def to_record(value: object) -> Any:
    """Return JSON data for a tree of frozen dataclasses.

    Types and targets become their names, by which they are found again; files become names without folders,
    for the record must not depend on where things lie.

    Raises:
        TypeError: It holds something else.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, IntType | Target | Path):
        return value.name
    if isinstance(value, Enum):
        return to_record(value.value)
    if isinstance(value, Mapping):
        return {str(key): to_record(inner) for key, inner in value.items()}
    if is_dataclass(value):
        return {f.name: to_record(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Sequence):
        return [to_record(inner) for inner in value]
    raise TypeError(f"{type(value).__name__} has no place in a record.")


def data_settings_of(options: Mapping[str, Any]) -> DataSettings:
    """Return how samples were prepared, from a record of static quantization.

    The record names a tokenizer without its folder; it is looked for beside data and model again.

    Raises:
        ModelError: The record is not one that this version wrote.
    """
    try:
        data = options["data"]
        text = {k: v for k, v in data["text"].items() if k not in {"tokenizer", "search"}}
        return msgspec.convert({**data, "path": None, "text": text}, DataSettings)
    except (KeyError, TypeError, AttributeError, msgspec.ValidationError) as e:
        raise ModelError(f"The recorded data settings are not of this version: {e!r}.") from e
