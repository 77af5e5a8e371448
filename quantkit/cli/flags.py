"""Flags: of settings, made from their declaration; and of a command's own, listed in its signature or in a dataclass."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from quantkit.settings.declare import Declared, declared, override

DebugOption = Annotated[
    bool, typer.Option("--debug", help="Show a traceback if something goes wrong.")
]
_DEBUG = Parameter("debug", Parameter.KEYWORD_ONLY, default=False, annotation=DebugOption)


class Command(TyperCommand):
    """A command whose help names values in words of the field, not by Python's types."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters as the help shows them."""
        return _without_types(super().get_params(ctx))


class Group(TyperGroup):
    """A group of commands; see `Command`."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters as the help shows them."""
        return _without_types(super().get_params(ctx))


def _without_types(parameters: list[Any]) -> list[Any]:
    """Take ``<bool>`` from switches, which have no value, and ``<path>`` from arguments, whose name says it."""
    for parameter in parameters:
        if parameter.param_type_name == "argument":
            parameter.display_type_rich = _nothing
        elif parameter.is_flag:
            parameter.metavar = ""
    return parameters


def _nothing(ctx: Any) -> str:  # noqa: ARG001 - typer's signature
    return ""


_Settings = TypeVar("_Settings")


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Flags that stand for settings. Fields of a subclass are flags that stand for none.

    Attributes:
        kinds: The dataclasses that declare the settings.
        left_out: Those of their settings that have no flag here.
        given: What the user gave, by the setting's name.
    """

    kinds: ClassVar[tuple[type, ...]] = ()
    left_out: ClassVar[frozenset[str]] = frozenset()
    given: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def settings(cls) -> Iterator[Declared]:
        """Yield the settings that have a flag."""
        for kind in cls.kinds:
            for one in declared(kind).values():
                if one.setting.flag is not None and one.name not in cls.left_out:
                    yield one

    def over(self, settings: _Settings) -> _Settings:
        """Return settings, those within them included, with what was given in their place."""
        return override(settings, self.given)

    def used(self, among: Sequence[str] = ()) -> str:
        """Return the first of these flags that was given, as the user writes it; "" if none was.

        Args:
            among: Look only at these settings and fields.
        """
        for one in self.settings():
            if one.name in self.given and (not among or one.name in among):
                return _spelled(one, self.given[one.name])
        for own in fields(self):
            changed = getattr(self, own.name) not in (own.default, None, [])
            if own.name != "given" and changed and (not among or own.name in among):
                return f"--{own.name.replace('_', '-')}"
        return ""


def _names(one: Declared) -> list[str]:
    """Return a setting's flags as typer wants them."""
    dashed = one.name.replace("_", "-")
    made = f"--{dashed}/--no-{dashed}" if one.is_switch else f"--{dashed}"
    return (one.setting.flag or made).split()


def _spelled(one: Declared, value: object) -> str:
    """Return the flag that gave a value."""
    on, _, off = _names(one)[0].partition("/")
    return off if value is False and off else on


def _parameter(one: Declared) -> Parameter:
    """Return the parameter of a setting's flag: None unless it is given. `_build` reads what was given."""
    said = one.setting
    option = typer.Option(
        *_names(one),
        metavar=said.metavar or None,
        rich_help_panel=said.panel or None,
        help=said.text,
    )
    kind: Any = str
    if one.is_switch or one.type is Path:
        kind = bool if one.is_switch else Path
    elif one.type in (tuple[str, ...], tuple[int, ...]):
        kind = list[str]
    return Parameter(
        one.name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[(kind | None, option)]
    )


def expanded(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command whose parameters of a dataclass type are replaced by flags.

    Typer reads a command's flags from its signature. `Flags` are replaced by those of their settings, which the command
    gets as far as they were given; a field ``name: Annotated[T, typer.Option(...)] = default`` becomes the parameter of
    the same words. Flags stand where the dataclass stood, so that ``--help`` keeps the order. Every command also shows
    ``--debug``, which `quantkit.cli.app.run` has taken from the command line before.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters: list[Parameter] = []
    for name, own in signature(command).parameters.items():
        if name in groups:
            parameters += _parameters(groups[name])
        else:
            parameters.append(own.replace(annotation=hints[name], kind=Parameter.KEYWORD_ONLY))

    parameters.append(_DEBUG)

    def called(**given: Any) -> None:
        del given["debug"]
        for name, kind in groups.items():
            given[name] = _build(kind, given)
        command(**given)

    called.__name__ = command.__name__
    called.__doc__ = command.__doc__
    called.__module__ = command.__module__
    called.__annotations__ = {p.name: p.annotation for p in parameters}
    called.__signature__ = signature(command).replace(  # type: ignore[attr-defined]
        parameters=parameters, return_annotation=Parameter.empty
    )
    return called


def _parameters(kind: type[Flags]) -> list[Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [_parameter(one) for one in kind.settings()] + [
        Parameter(
            f.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if f.default is MISSING else f.default,
            annotation=hints[f.name],
        )
        for f in fields(kind)
        if f.name != "given"
    ]


def _build(kind: type[Flags], given: dict[str, Any]) -> Flags:
    """Take the values of a group's flags out of `given`, and make it of them."""
    values = {one.name: (one, given.pop(one.name)) for one in kind.settings()}
    own = {f.name: given.pop(f.name) for f in fields(kind) if f.name != "given"}
    found = {
        name: one.read(value, _spelled(one, value), text=True)
        for name, (one, value) in values.items()
        if value not in (None, [])
    }
    return kind(given=found, **own)
