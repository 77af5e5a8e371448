"""Readers of single TOML values: each returns what a field wants, or says what the key takes."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from quantkit.errors import UsageError
from quantkit.settings.memory import parse_memory

__all__ = ["Percent", "Size", "Switch", "Value", "Values", "WrongTypeError"]
__all__ += [
    "amount",
    "columns",
    "flag",
    "height_width",
    "low_high",
    "names",
    "number",
    "number_or_percent",
    "numbers",
    "path",
]
__all__ += ["switch", "text", "whole", "wholes"]

_LARGEST = 10**18 - 1

Size = int | tuple[int, int]
"""One number (the shorter side, or both sides), or height and width."""

Switch = bool | Literal["auto"]
"""On, off, or as quantkit finds best."""

Value = Callable[[object, Path], Any]
"""Turns a TOML value into a field's; paths are relative to the folder that is given."""

Values = Mapping[str, Value]
"""The keys of a table, and how the value of each is read."""


class Percent(float):
    """A number that was written with a per cent sign: 0.01 for "1%"."""

    __slots__ = ()


class WrongTypeError(Exception):
    """The value has a type that the key does not take; the text says which it takes."""


def text(value: object, _: Path) -> str:
    """Read a text."""
    if not isinstance(value, str) or not value:
        raise WrongTypeError("a text in quotes")
    return value


def path(value: object, folder: Path) -> Path:
    """Read a path, relative to `folder`."""
    found: Path | None
    try:
        found = folder / Path(text(value, folder)).expanduser()
        os.fsencode(found)
    except (RuntimeError, UnicodeEncodeError):  # ~ of nobody; half a character
        found = None
    if found is None or "\0" in str(found):
        raise WrongTypeError("the path of a file or folder")
    return found


def whole(value: object, _: Path) -> int:
    """Read a whole number."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise WrongTypeError("a whole number")
    if abs(value) > _LARGEST:
        raise WrongTypeError("a whole number of at most 18 digits")
    return value


def wholes(value: object, folder: Path) -> tuple[int, ...]:
    """Read one whole number, or several."""
    try:
        return tuple(whole(v, folder) for v in (value if isinstance(value, list) else [value]))
    except WrongTypeError as e:
        raise WrongTypeError(f"{e}, or a list of them") from e


def number(value: object, _: Path) -> float:
    """Read a number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise WrongTypeError("a number")
    try:
        return float(value)
    except OverflowError:  # a whole number of 400 digits
        raise WrongTypeError("a number of at most 300 digits") from None


def amount(value: object, _: Path) -> int:
    """Read an amount of memory."""
    try:
        if isinstance(value, int | str):
            return parse_memory(value)
    except UsageError:
        pass
    raise WrongTypeError('an amount of memory: "500MB", "1GB", "1GiB" or a number of bytes')


def flag(value: object, _: Path) -> bool:
    """Read true or false."""
    if not isinstance(value, bool):
        raise WrongTypeError("true or false")
    return value


def switch(value: object, _: Path) -> Switch:
    """Read true, false or "auto"."""
    if value == "auto":
        return "auto"
    if not isinstance(value, bool):
        raise WrongTypeError('true, false or "auto"')
    return value


def number_or_percent(value: object, folder: Path) -> float:
    """Read a number, or a text such as "1%"."""
    digits = value.strip().removesuffix("%") if isinstance(value, str) else ""
    try:
        if isinstance(value, str) and value.strip().endswith("%"):
            return Percent(float(digits) / 100)
        return number(value, folder)
    except (ValueError, WrongTypeError):
        raise WrongTypeError('a number, or a text such as "1%"') from None


def numbers(value: object, folder: Path) -> tuple[float, ...]:
    """Read one number, or several."""
    try:
        values = value if isinstance(value, list) else [value]
        return tuple(number(v, folder) for v in values)
    except WrongTypeError as e:
        raise WrongTypeError(f"{e}, or a list with one for each channel") from e


def low_high(value: object, folder: Path) -> tuple[float, float]:
    """Read the two ends of a range."""
    try:
        low, high = (number(v, folder) for v in (value if isinstance(value, list) else []))
    except (WrongTypeError, ValueError) as e:
        raise WrongTypeError("two numbers: [low, high]") from e
    return low, high


def height_width(value: object, folder: Path) -> Size:
    """Read a size in pixels."""
    try:
        if isinstance(value, list):
            height, width = (whole(v, folder) for v in value)
            return height, width
        return whole(value, folder)
    except (WrongTypeError, ValueError) as e:
        raise WrongTypeError("a whole number, or [height, width]") from e


def columns(value: object, folder: Path) -> tuple[str, ...]:
    """Read the names of one or two columns."""
    try:
        return tuple(text(v, folder) for v in (value if isinstance(value, list) else [value]))
    except WrongTypeError as e:
        raise WrongTypeError("a column's name, or a list of two") from e


def names(value: object, folder: Path) -> tuple[str, ...]:
    """Read a list of names."""
    try:
        if isinstance(value, list):
            return tuple(text(v, folder) for v in value)
    except WrongTypeError:
        pass
    raise WrongTypeError("a list of texts in quotes")
