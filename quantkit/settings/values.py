"""The types of settings that people write in more ways than one: "1%", "2GB", 224x192, one name for a list of one."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from quantkit.settings.memory import parse_memory

__all__ = ["Axes", "Columns", "Drop", "FileSize", "Floats", "Memory", "Names", "OperatorTypes"]
__all__ += ["Percent", "Range", "Share", "Size", "Spelling", "Switch", "Wholes"]
__all__ += ["parse_file_size", "read_path"]


class Percent(float):
    """A number that was written with a per cent sign: 0.01 for "1%"."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Spelling:
    """How values of a type are written.

    Attributes:
        takes: What messages say that it takes.
        parse: Returns what msgspec then converts, and anything it does not know as it is; raises ValueError.
    """

    takes: str
    parse: Callable[[Any], Any] = lambda value: value


def read_path(value: str, folder: Path) -> Path:
    """Return the path that a text means, relative to `folder`.

    Raises:
        ValueError: No file can be called so.
    """
    try:
        found = folder / Path(value).expanduser()
        os.fsencode(found)
    except RuntimeError as e:  # ~ of nobody
        raise ValueError(str(e)) from e
    if not value or "\0" in value:
        raise ValueError(value)
    return found


def parse_file_size(value: Any) -> float:
    """Return what "15%", 0.15, "14.6MB" or a number of bytes means: a share up to 1, else bytes.

    Raises:
        ValueError: It is none of these.
    """
    try:
        return float(_share(value))
    except (ValueError, TypeError):
        return float(parse_memory(value))


def _drop(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = value.strip()
    return Percent(float(text[:-1]) / 100) if text.endswith("%") else float(text)


def _share(value: Any) -> Any:
    number = _drop(value)
    return float(number) if isinstance(number, Percent) else number


def _size(value: Any) -> Any:
    sides = value.lower().split("x") if isinstance(value, str) else [value]
    return value if len(sides) == 1 else [int(side) for side in sides]


def _memory(value: Any) -> Any:
    return parse_memory(value) if isinstance(value, str) else value


def _floats(value: Any) -> Any:
    if isinstance(value, str):
        return [float(part) for part in value.split(",")]
    return _several(value)


def _several(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


def _operators(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        return value
    return [part for group in value for part in str(group).split(",")]


Switch = Annotated[bool | Literal["auto"], Spelling('true, false or "auto"')]
"""On, off, or as quantkit finds best."""

Size = Annotated[int | tuple[int, int], Spelling("a whole number, or [height, width]", _size)]
"""One number (the shorter side, or both sides), or height and width."""

Memory = Annotated[int, Spelling('an amount of memory: "500MB", "1GB", "1GiB" or bytes', _memory)]
"""Bytes, which people write as "500MB" or "1GB"."""

Share = Annotated[float, Spelling('a number, or a text such as "1%"', _share)]
"""A number, or a text such as "30%"; how it was written does not matter afterwards."""

Drop = Annotated[float, Spelling('a number, or a text such as "1%"', _drop)]
"""A number, or a `Percent`."""

FileSize = Annotated[
    float,
    Spelling('a share such as "15%" or 0.15, or a size such as "14.6MB"', parse_file_size),
]
"""A share of float's size up to 1, or a text such as "15%"; above, bytes, or a text such as "14.6MB"."""

Floats = Annotated[
    tuple[float, ...], Spelling("a number, or a list with one for each channel", _floats)
]
"""One number, or one for each channel."""

Wholes = Annotated[tuple[int, ...], Spelling("a whole number, or a list of them", _several)]
"""One whole number, or several."""

Range = Annotated[tuple[float, float], Spelling("two numbers: [low, high]")]
"""The two ends of a range."""

Names = Annotated[tuple[str, ...], Spelling("a list of texts in quotes")]
"""Names or patterns of nodes, tensors, operators."""

OperatorTypes = Annotated[tuple[str, ...], Spelling("a list of texts in quotes", _operators)]
"""Names of operators, also with commas between."""

Columns = Annotated[tuple[str, ...], Spelling("a column's name, or a list of two", _several)]
"""One column, or two."""

Axes = Annotated[
    tuple[tuple[str, int], ...],
    Spelling(
        "operators with an axis each: { MatMul = 0 }",
        lambda value: tuple(value.items()) if isinstance(value, Mapping) else value,
    ),
]
"""An axis for each of some operators."""
