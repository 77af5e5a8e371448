"""How a setting is declared, once, as a field of a frozen dataclass, and how a value of it is read.

    limit: int | None = setting("Use at most N samples.", "N", ge=1)

Name, type and default are the field's own; `setting` adds the text, the bounds and what the command line calls it.
`Declared.read` reads a value of quantkit.toml, of a flag, of a Python argument and of a model's record: msgspec converts and
checks it, and what it refuses is one message, the same from everywhere.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from math import isfinite
from pathlib import Path
from reprlib import Repr
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from quantkit.errors import UsageError
from quantkit.settings.memory import parse_memory


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


_KEY = "quantkit"  # of what is declared in a field's metadata
_LARGEST = 10**18 - 1  # files and other languages hold no larger whole numbers
_SHORT = Repr()
_SHORT.maxstring, _SHORT.maxother, _SHORT.maxlong = 80, 60, 40
_TAKES: Mapping[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text in quotes",
    Path: "the path of a file or folder",
}
_Settings = TypeVar("_Settings")


@dataclass(frozen=True, slots=True)
class Setting:
    """What is said of a setting besides its name, type and default.

    Attributes:
        text: What it does, as ``--help`` says it.
        metavar: What its value is called there; "" for a switch, which has none.
        flag: Its flags, where they are not made from its name: "--data", "--output -o", "--per-channel/--per-tensor" for
            a switch; None: it has none.
        panel: The heading that ``--help`` lists it under; "" for the first.
        key: What quantkit.toml calls it, where that is not its name.
        choices: Which values it takes, where the type does not say it.
        bounds: Of its number, or of each of its numbers: `ge`, `gt`, `le` and `lt` of `msgspec.Meta`.
    """

    text: str
    metavar: str = ""
    flag: str | None = ""
    panel: str = ""
    key: str = ""
    choices: Callable[[], Sequence[Any]] | None = None
    bounds: Mapping[str, Any] = field(default_factory=dict)


def metadata_of(text: str, metavar: str = "", **about: Any) -> dict[str, Setting]:
    """Return the metadata of a field that declares a setting; `about`: the attributes of `Setting`, and its bounds."""
    bounds: dict[str, Any] = {
        name: about.pop(name) for name in ("ge", "gt", "le", "lt") if name in about
    }
    return {_KEY: Setting(text, metavar, **about, bounds=bounds)}


def setting(text: str, metavar: str = "", *, default: Any = None, **about: Any) -> Any:
    """Return a field with a default that declares a setting; see `metadata_of`."""
    return field(default=default, metadata=metadata_of(text, metavar, **about))


@dataclass(frozen=True, slots=True)
class Table:
    """Settings within settings: a table of quantkit.toml, or a list of tables.

    Attributes:
        name: Of the field.
        key: What quantkit.toml calls it.
        kind: The dataclass of its settings.
        several: Whether there may be any number of them.
    """

    name: str
    key: str
    kind: Any
    several: bool


def table(kind: type[_Settings], key: str = "", *, several: bool = False) -> Any:
    """Return a field that holds settings; `key` is what quantkit.toml calls it, where that is not its name."""
    said = {_KEY: Table("", key, kind, several)}
    return (
        field(default=(), metadata=said) if several else field(default_factory=kind, metadata=said)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """A setting as its dataclass declares it.

    Attributes:
        name: Of the field.
        type: Of its value, without None and how it is written.
        optional: Whether None is a value.
        spelling: How it is written.
        setting: What else is said of it.
        converted: The type and its bounds, for msgspec, which crashes on a union of a bounded number and a tuple (0.22): of
            such, each.
    """

    name: str
    type: Any
    optional: bool
    spelling: Spelling
    setting: Setting
    converted: Sequence[Any]

    @property
    def key(self) -> str:
        """Its name in quantkit.toml."""
        return self.setting.key or self.name

    @property
    def choices(self) -> Sequence[Any]:
        """The values that it takes; empty: any."""
        if get_origin(self.type) is Literal:
            return get_args(self.type)
        return self.setting.choices() if self.setting.choices else ()

    @property
    def is_switch(self) -> bool:
        """Whether it is on or off, or as quantkit finds best."""
        return self.type in (bool, bool | Literal["auto"])

    @property
    def bounds(self) -> str:
        """The bounds of its numbers, in words."""
        words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
        ends = self.setting.bounds
        return " and ".join(f"{word} {ends[end]:,}" for end, word in words.items() if end in ends)

    def read(self, value: Any, name: str = "", *, folder: Path = Path(), text: bool = False) -> Any:
        """Return what a value means.

        Args:
            value: As Python, TOML or JSON has it.
            name: What the message calls the setting; "": its own name.
            folder: What paths are relative to.
            text: Numbers may be given as text, and choices in other letters: the value is a flag's.

        Raises:
            UsageError: It takes no such value; the message says what it takes.
        """
        name = name or self.name
        if value is None and self.optional:
            return None
        if text and isinstance(value, str):
            # Types are also called as onnxruntime calls them: QUInt8.
            folded = {p + str(c).lower(): c for c in self.choices for p in ("q", "")}
            value = folded.get(value.lower(), value)
        plain = value
        try:
            plain = self.spelling.parse(_plain(value))
            found = self._convert(plain, folder, strict=not text)
        except (msgspec.ValidationError, ValueError) as e:
            if isinstance(value, str) and get_origin(self.type) is Literal:
                check_choice(name, value, self.choices)
            raise UsageError(self._complaint(name, value, plain)) from e
        members = found if isinstance(found, tuple) else (found,)
        for member in members if self.choices else ():
            check_choice(name, member, self.choices)
        if not all(isfinite(member) for member in members if isinstance(member, float)):
            raise UsageError(f"{name} = {short_repr(value)}: {name} must be finite.")
        return plain if isinstance(plain, Percent) else found

    def _convert(self, plain: Any, folder: Path, *, strict: bool) -> Any:
        """Return a value of its type; raises msgspec.ValidationError or ValueError."""
        number = float(plain) if isinstance(plain, Percent) else plain
        kind = self.converted[isinstance(plain, list) and len(self.converted) > 1]
        return msgspec.convert(number, kind, strict=strict, dec_hook=partial(_custom, folder))

    def _complaint(self, name: str, value: Any, plain: Any) -> str:
        takes = ", ".join(filter(None, (self.spelling.takes, self.bounds)))
        number = plain if isinstance(plain, int | float) else 0
        ends = self.setting.bounds
        if 1 in (ends.get("le"), ends.get("lt")) and 1 < number < 100:
            takes += f" ({number / 100:g} is {number:g} %)"
        if abs(number) > _LARGEST and int in (self.type, *get_args(self.type)):
            takes += ", at most 18 digits"
        if isinstance(value, str) and self.type == tuple[str, ...]:
            takes += f"; write [{value!r}] for one"
        return f"{name} = {short_repr(value)}: {name} takes {takes}."


def declared(kind: type) -> Mapping[str, Declared]:
    """Return the settings of a dataclass by their names; fields that declare none are left out."""
    return _all_declared(kind)


@cache
def _all_declared(kind: Any) -> Mapping[str, Declared]:
    hints = get_type_hints(kind, include_extras=True)
    found = {f.name: f.metadata[_KEY] for f in fields(kind) if _KEY in f.metadata}
    return {
        name: _declared(name, hints[name], one)
        for name, one in found.items()
        if isinstance(one, Setting)
    }


def tables(kind: type) -> Sequence[Table]:
    """Return the tables within settings."""
    return [
        replace(f.metadata[_KEY], name=f.name, key=f.metadata[_KEY].key or f.name)
        for f in fields(kind)
        if isinstance(f.metadata.get(_KEY), Table)
    ]


def _declared(name: str, hint: Any, said: Setting) -> Declared:
    optional = get_origin(hint) is not Annotated and type(None) in get_args(hint)
    kinds = tuple(k for k in get_args(hint) if k is not type(None)) if optional else (hint,)
    bare: Any = Union[kinds]  # noqa: UP007 - of a tuple
    spelling = None
    if get_origin(bare) is Annotated:
        bare, spelling = get_args(bare)
    several = any(get_origin(k) is tuple for k in get_args(bare) if get_origin(bare) is not tuple)
    return Declared(
        name=name,
        type=bare,
        optional=optional,
        spelling=spelling or Spelling(_takes(bare)),
        setting=said,
        converted=[_with_bounds(k, said.bounds) for k in (get_args(bare) if several else (bare,))],
    )


def _takes(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    return _TAKES[kind]


def _with_bounds(kind: Any, bounds: Mapping[str, Any]) -> Any:
    """Return a type whose numbers are bounded and whose texts are not empty."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is tuple:
        members = tuple(k if k is Ellipsis else _with_bounds(k, bounds) for k in inner)
        return tuple.__class_getitem__(members)
    if origin is not Literal and inner:
        return Union[tuple(_with_bounds(k, bounds) for k in inner)]  # noqa: UP007 - of a tuple
    if kind is int:
        return Annotated[int, msgspec.Meta(**{"le": _LARGEST, **bounds})]
    if kind is float and bounds:
        return Annotated[float, msgspec.Meta(**bounds)]
    return Annotated[str, msgspec.Meta(min_length=1)] if kind is str else kind


def _plain(value: Any) -> Any:
    """Return numbers and arrays of numpy as Python's: records and files know no others."""
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value


def _custom(folder: Path, kind: type, value: Any) -> Any:
    if isinstance(value, kind):
        return value
    if kind is Path and isinstance(value, str):
        return read_path(value, folder)
    raise ValueError(value)


def short_repr(value: object) -> str:
    """Return a value on one line, cut where nobody would read on: it may be all the data."""
    try:
        return " ".join(_SHORT.repr(value).split())
    except ValueError:  # Python does not write more than 4300 digits
        return "a huge number"


def closest(name: str, known: Iterable[str]) -> str:
    """Return " (did you mean 'x'?)" for the known name nearest to `name`, or ""."""
    from difflib import get_close_matches  # for messages alone

    by_lower = {k.lower(): k for k in known}
    near = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f" (did you mean '{by_lower[near[0]]}'?)" if near else ""


def check_choice(key: str, value: Any, known: Sequence[Any]) -> None:
    """Raise UsageError if `value` is none of `known`.

    Args:
        key: The setting's name, for the message.
        value: What was given.
        known: What it may be.

    Raises:
        UsageError: It is none of them.
    """
    if value not in known:
        names = [str(k) for k in known]
        raise UsageError(
            f"{key} '{value}' is unknown{closest(str(value), names)}: use one of {', '.join(names)}."
        )


class Settings:
    """The base of dataclasses that declare settings: their values are read and checked when one is made."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for one in declared(type(self)).values():
            object.__setattr__(self, one.name, one.read(getattr(self, one.name)))
        self._check()

    def _check(self) -> None:
        """Raise UsageError if values do not fit together."""


def override(settings: _Settings, given: Mapping[str, Any]) -> _Settings:
    """Return settings, those of their tables included, with what was given in their place."""
    changed = {k: v for k, v in given.items() if k in declared(type(settings))}
    for inner in tables(type(settings)):
        if not inner.several:
            changed[inner.name] = override(getattr(settings, inner.name), given)
    return replace(settings, **changed)  # type: ignore[type-var]
