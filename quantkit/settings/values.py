"""The types of settings, and the reader of each: it returns what a TOML value means, or says what the key takes."""

import os
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, Literal

from quantkit.errors import UsageError
from quantkit.settings.memory import parse_memory

__all__ = ["READERS", "Axes", "Columns", "Drop", "FileSize", "Memory", "Names", "OperatorTypes"]
__all__ += ["Percent", "Share", "Size", "Switch"]
__all__ += ["WrongTypeError", "is_number", "is_whole", "parse_file_size"]

_LARGEST = 10**18 - 1
_Reader = Callable[[object, Path], Any]

Size = int | tuple[int, int]
"""One number (the shorter side, or both sides), or height and width."""

Switch = bool | Literal["auto"]
"""On, off, or as quantkit finds best."""

Memory = Annotated[int, "bytes"]
"""Bytes, which people write as "500MB" or "1GB"."""

Share = Annotated[float, "share"]
"""A number, or a text such as "30%"."""

FileSize = Annotated[float, "size of a file"]
"""A share of float's size up to 1, or a text such as "15%"; above, bytes, or a text such as "14.6MB"."""

Drop = Annotated[float, "drop"]
"""A number, or a `Percent`."""

Names = tuple[str, ...]
"""Names or patterns of nodes, tensors, operators."""

OperatorTypes = Annotated[tuple[str, ...], "operator types"]
"""Names of operators, which the command line also takes with commas between."""

Axes = tuple[tuple[str, int], ...]
"""An axis for each of some operators."""

Columns = Annotated[tuple[str, ...], "columns"]
"""One column, or two."""


class Percent(float):
    """A number that was written with a per cent sign: 0.01 for "1%"."""

    __slots__ = ()


class WrongTypeError(Exception):
    """The value has a type that the key does not take; the text says which it takes."""


def _text(value: object, _: Path) -> str:
    """Read a text."""
    if not isinstance(value, str) or not value:
        raise WrongTypeError("a text in quotes")
    return value


def _path(value: object, folder: Path) -> Path:
    """Read a path, relative to `folder`."""
    found: Path | None
    try:
        found = folder / Path(_text(value, folder)).expanduser()
        os.fsencode(found)
    except (RuntimeError, UnicodeEncodeError):  # ~ of nobody; half a character
        found = None
    if found is None or "\0" in str(found):
        raise WrongTypeError("the path of a file or folder")
    return found


def _whole(value: object, _: Path) -> int:
    """Read a whole number."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise WrongTypeError("a whole number")
    if abs(value) > _LARGEST:
        raise WrongTypeError("a whole number of at most 18 digits")
    return value


def _number(value: object, _: Path) -> float:
    """Read a number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise WrongTypeError("a number")
    try:
        return float(value)
    except OverflowError:  # a whole number of 400 digits
        raise WrongTypeError("a number of at most 300 digits") from None


def _amount(value: object, _: Path) -> int:
    """Read an amount of memory."""
    try:
        if isinstance(value, int | str):
            return parse_memory(value)
    except UsageError:
        pass
    raise WrongTypeError('an amount of memory: "500MB", "1GB", "1GiB" or a number of bytes')


def _flag(value: object, _: Path) -> bool:
    """Read true or false."""
    if not isinstance(value, bool):
        raise WrongTypeError("true or false")
    return value


def _switch(value: object, _: Path) -> Switch:
    """Read true, false or "auto"."""
    if value == "auto":
        return "auto"
    if not isinstance(value, bool):
        raise WrongTypeError('true, false or "auto"')
    return value


def _number_or_percent(value: object, folder: Path) -> float:
    """Read a number, or a text such as "1%"."""
    digits = value.strip().removesuffix("%") if isinstance(value, str) else ""
    try:
        if isinstance(value, str) and value.strip().endswith("%"):
            return Percent(float(digits) / 100)
        return _number(value, folder)
    except (ValueError, WrongTypeError):
        raise WrongTypeError('a number, or a text such as "1%"') from None


def _share(value: object, folder: Path) -> float:
    """Read a number, or a text such as "30%"; how it was written does not matter afterwards."""
    return float(_number_or_percent(value, folder))


def parse_file_size(value: object) -> float:
    """Return what "15%", 0.15, "14.6MB" or a number of bytes means: a share up to 1, else bytes.

    Raises:
        WrongTypeError: It is none of these.
    """
    text = str(value).strip()
    try:
        if text.endswith("%"):
            return float(text.removesuffix("%")) / 100
        return float(value if is_number(value) else text)  # type: ignore[arg-type]
    except ValueError:
        pass
    try:
        return float(parse_memory(text))
    except UsageError:
        raise WrongTypeError('a share such as "15%" or 0.15, or a size such as "14.6MB"') from None


def _several(read: _Reader, words: str) -> _Reader:
    """Return the reader of one value, or of a list of such; `words`: what it takes, with what is wrong with one in it."""

    def read_all(value: object, folder: Path) -> tuple[Any, ...]:
        try:
            return tuple(read(v, folder) for v in (value if isinstance(value, list) else [value]))
        except WrongTypeError as e:
            raise WrongTypeError(words.format(e)) from e

    return read_all


def _low_high(value: object, folder: Path) -> tuple[float, float]:
    """Read the two ends of a range."""
    try:
        low, high = (_number(v, folder) for v in (value if isinstance(value, list) else []))
    except (WrongTypeError, ValueError) as e:
        raise WrongTypeError("two numbers: [low, high]") from e
    return low, high


def _height_width(value: object, folder: Path) -> Size:
    """Read a size in pixels."""
    try:
        if isinstance(value, list):
            height, width = (_whole(v, folder) for v in value)
            return height, width
        return _whole(value, folder)
    except (WrongTypeError, ValueError) as e:
        raise WrongTypeError("a whole number, or [height, width]") from e


def _names(value: object, folder: Path) -> tuple[str, ...]:
    """Read a list of names."""
    try:
        if isinstance(value, list):
            return tuple(_text(v, folder) for v in value)
    except WrongTypeError:
        pass
    raise WrongTypeError("a list of texts in quotes")


def _axes(value: object, folder: Path) -> Axes:
    """Read a table of operators and axes."""
    try:
        if isinstance(value, dict):
            return tuple((_text(name, folder), _whole(n, folder)) for name, n in value.items())
    except WrongTypeError:
        pass
    raise WrongTypeError("operators with an axis each: { MatMul = 0 }")


def is_whole(value: object) -> bool:
    """Say whether a Python value is a whole number, numpy's included."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Say whether a Python value is a number, numpy's included."""
    return isinstance(value, Real) and not isinstance(value, bool)


READERS: Mapping[Any, _Reader] = {
    bool: _flag,
    float: _number,
    int: _whole,
    str: _text,
    Path: _path,
    Axes: _axes,
    Columns: _several(_text, "a column's name, or a list of two"),
    Drop: _number_or_percent,
    FileSize: lambda value, _: parse_file_size(value),
    Memory: _amount,
    Names: _names,
    OperatorTypes: _names,
    Share: _share,
    Size: _height_width,
    Switch: _switch,
    tuple[float, ...]: _several(_number, "{}, or a list with one for each channel"),
    tuple[float, float]: _low_high,
    tuple[int, ...]: _several(_whole, "{}, or a list of them"),
}
"""How a value of TOML is read, by the type of the setting; paths are relative to the folder that is given."""
