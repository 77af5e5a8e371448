"""How a setting is declared: once, as an annotated field of a frozen dataclass.

    limit: Annotated[int | None, Setting("Use at most N samples.", "N", least=1)] = None

Name, type and default are the field's own; `Setting` adds the text, the bounds and what the command line calls it. All
others read this: quantkit.toml by the type (`quantkit.settings.toml`), the command line for its flags and their help
(`quantkit.cli.flags`), the record in a model (`quantkit.settings.record`). What a value may be is checked by `check` when
the dataclass is made, so that a flag, a line of the file and an argument in Python fail alike.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from quantkit.errors import UsageError
from quantkit.settings.values import READERS, WrongTypeError, is_number, is_whole

__all__ = ["Declared", "Range", "Setting", "check", "check_choice", "closest", "declared"]

_PERCENT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Which real numbers a setting takes.

    Attributes:
        least: The lowest, if it is one of them.
        above: What they are all above.
        most: The highest, if it is one of them.
        below: What they are all below.
        words: Instead of "a number of at least 0" and the like.
    """

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    words: str = ""

    def holds(self, value: float) -> bool:
        """Say whether a number is one of them; nan and infinity never are."""
        return (
            isfinite(value)
            and (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )

    def complaint(self, value: float) -> str:
        """Say what is wrong with a number that is none of them; who writes 95 for 95 % is told of 0.95."""
        if self.words:
            return f"'{value}' is out of range: use {self.words}."
        fraction = 1 in (self.most, self.below)
        ends = [
            text
            for end, text in (
                (self.least, f"of at least {self.least}"),
                (self.above, f"above {self.above}"),
                (self.most, f"and at most {self.most}"),
                (self.below, f"and below {self.below}"),
            )
            if end is not None
        ]
        meant = (
            f" ({value / _PERCENT:g} is {value:g} %)" if fraction and 1 < value < _PERCENT else ""
        )
        kind = "fraction" if fraction else "number"
        return f"'{value:g}' is out of range: use a {kind} {' '.join(ends)}{meant}."


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
        least: The least whole number, of each side or member where there are several.
        most: The greatest that can be meant; more is a slip.
        range: Which real numbers it takes.
        choices: Which texts it takes, where the type does not say it.
    """

    text: str
    metavar: str = ""
    flag: str | None = ""
    panel: str = ""
    key: str = ""
    least: int | None = None
    most: int | None = None
    range: Range | None = None
    choices: Callable[[], Sequence[str]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """A setting as its dataclass declares it.

    Attributes:
        name: Of the field.
        type: Of its value, without None.
        optional: Whether None is a value.
        setting: What else is said of it.
    """

    name: str
    type: Any
    optional: bool
    setting: Setting

    @property
    def key(self) -> str:
        """Its name in quantkit.toml."""
        return self.setting.key or self.name

    @property
    def choices(self) -> Sequence[str]:
        """The texts that it takes; empty: any."""
        if get_origin(self.type) is Literal:
            return get_args(self.type)
        return self.setting.choices() if self.setting.choices else ()

    def read(self, value: object, folder: Path) -> Any:
        """Return what a value of TOML means; raise `WrongTypeError` with what it takes."""
        return READERS[str if get_origin(self.type) is Literal else self.type](value, folder)


def declared(kind: type) -> Mapping[str, Declared]:
    """Return the settings of a dataclass by their names; fields that declare none are left out."""
    return _all_declared(kind)


@cache
def _all_declared(kind: Any) -> Mapping[str, Declared]:
    hints = get_type_hints(kind, include_extras=True)
    return {
        field.name: _declared(field.name, hints[field.name])
        for field in fields(kind)
        if any(isinstance(said, Setting) for said in getattr(hints[field.name], "__metadata__", ()))
    }


def _declared(name: str, hint: Any) -> Declared:
    bare, *said = get_args(hint)
    setting = next(s for s in said if isinstance(s, Setting))
    # Annotated[Share, ...] is flattened by Python to one Annotated, whose first words are those of Share.
    marks = tuple(s for s in said if not isinstance(s, Setting))
    several = tuple(k for k in get_args(bare) if k is not type(None))
    optional = type(None) in get_args(bare)
    kind: Any = Union[several] if optional else bare  # noqa: UP007 - of a tuple
    return Declared(
        name=name,
        type=Annotated[(kind, *marks)] if marks else kind,
        optional=optional,
        setting=setting,
    )


def closest(name: str, known: Iterable[str]) -> str:
    """Return " (did you mean 'x'?)" for the known name nearest to `name`, or ""."""
    from difflib import get_close_matches  # for messages alone

    by_lower = {k.lower(): k for k in known}
    near = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f" (did you mean '{by_lower[near[0]]}'?)" if near else ""


def check_choice(key: str, value: str, known: Sequence[str]) -> None:
    """Raise UsageError if `value` is none of `known`.

    Args:
        key: The setting's name, for the message.
        value: What was given.
        known: What it may be.

    Raises:
        UsageError: It is none of them.
    """
    if value not in known:
        raise UsageError(
            f"{key} '{value}' is unknown{closest(value, known)}: use one of {', '.join(known)}."
        )


def check(settings: object) -> None:
    """Check each value of a dataclass by what is declared of it.

    Raises:
        UsageError: One is of another type, none of the choices, or out of bounds.
    """
    for one in declared(type(settings)).values():
        value = getattr(settings, one.name)
        if value is None and one.optional:
            continue
        _check_type(one, value)
        several = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        for member in several:
            if one.choices:
                check_choice(one.name, member, one.choices)
            _check_bounds(one.name, member, one.setting)


def _check_type(one: Declared, value: object) -> None:
    # Of a text that is none of the choices `check_choice` says more than its type would.
    if _fits(str if get_origin(one.type) is Literal else one.type, value):
        return
    if isinstance(value, str) and _is_tuple(one.type):
        raise UsageError(f"{one.name} is a list of names; write [{value!r}] for one.")
    raise UsageError(f"{one.name} = {value!r}: {one.name} takes {_takes(one)}.")


def _check_bounds(key: str, value: Any, setting: Setting) -> None:
    if setting.least is not None and value < setting.least:
        raise UsageError(
            f"{key} '{value}' is too small: use a whole number of at least {setting.least}."
        )
    if setting.most is not None and value > setting.most:
        raise UsageError(
            f"{key} '{value}' is too large: use a whole number of at most {setting.most}."
        )
    if setting.range is not None and not setting.range.holds(value):
        raise UsageError(f"{key} {setting.range.complaint(value)}")


def _takes(one: Declared) -> str:
    """Say what a setting takes, in the words of the file's reader."""
    try:
        one.read(object(), Path())
    except WrongTypeError as e:
        return str(e)
    raise AssertionError(one.name)  # no reader takes an object


def _fits(kind: Any, value: object) -> bool:
    """Say whether a Python value is of a setting's type.

    Lists count as tuples, numpy's numbers as numbers, texts as paths: they have always worked.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _fits(inner[0], value)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if origin is tuple:
        if isinstance(value, str) or not isinstance(value, Sequence):
            return False
        kinds = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        return len(value) == len(kinds) and all(map(_fits, kinds, value))
    if inner:
        return any(_fits(one, value) for one in inner)
    return _SCALARS[kind](value)


def _is_tuple(kind: Any) -> bool:
    bare = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return get_origin(bare) is tuple and get_args(bare)[0] is str


_SCALARS: Mapping[type, Callable[[object], bool]] = {
    bool: lambda value: isinstance(value, bool),
    int: is_whole,
    float: is_number,
    str: lambda value: isinstance(value, str),
    Path: lambda value: isinstance(value, str | Path),
}
