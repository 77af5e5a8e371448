"""Flags that several commands share: a dataclass lists them once, and commands take it as one parameter."""

from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from inspect import Parameter, signature
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

__all__ = ["Command", "DebugOption", "Group", "Switches", "expanded"]

DebugOption = Annotated[
    bool, typer.Option("--debug", help="Show a traceback if something goes wrong.")
]
_DEBUG = Parameter("debug", Parameter.KEYWORD_ONLY, default=False, annotation=DebugOption)


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """Annotates a field that holds the switches of a settings class that were given on the command line, by name.

    Each field of that class becomes a pair of flags, so that none can be forgotten; its metadata has "help", and "flag" where
    the flag is not the field's name.
    """

    of: type
    panel: str

    def parameters(self, group: str) -> dict[str, Parameter]:
        """Return the parameters of a command, by the names of the switches."""
        return {f.name: self._parameter(group, f) for f in fields(self.of)}

    def _parameter(self, group: str, of: "Field[Any]") -> Parameter:
        flag = of.metadata.get("flag", of.name)
        option = typer.Option(
            f"--{flag}/--no-{flag}", rich_help_panel=self.panel, help=of.metadata["help"]
        )
        return Parameter(
            f"{group}_{of.name}",
            Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[bool | None, option],
        )


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


def expanded(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command whose parameters of a dataclass type are replaced by that dataclass's fields.

    Typer reads a command's flags from its signature. A field ``name: Annotated[T, typer.Option(...)] = default``
    becomes the parameter of the same words, and the command gets the dataclass made of their values.
    Fields stand where the dataclass stood, so that ``--help`` keeps the order. Every command also shows ``--debug``,
    which `quantkit.cli.app.run` has taken from the command line before.
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
            given[name] = kind(**{f.name: _taken(given, kind, f.name) for f in fields(kind)})
        command(**given)

    called.__name__ = command.__name__
    called.__doc__ = command.__doc__
    called.__module__ = command.__module__
    called.__annotations__ = {p.name: p.annotation for p in parameters}
    called.__signature__ = signature(command).replace(  # type: ignore[attr-defined]
        parameters=parameters, return_annotation=Parameter.empty
    )
    return called


def _taken(given: dict[str, Any], kind: Any, name: str) -> Any:
    """Take the value of a dataclass's field from a command's arguments; of switches those that were given."""
    switches = _switches(get_type_hints(kind, include_extras=True)[name])
    if switches is None:
        return given.pop(name)
    values = {key: given.pop(p.name) for key, p in switches.parameters(name).items()}
    return {key: value for key, value in values.items() if value is not None}


def _switches(hint: Any) -> Switches | None:
    return next((m for m in getattr(hint, "__metadata__", ()) if isinstance(m, Switches)), None)


def _parameters(kind: Any) -> list[Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    found: list[Parameter] = []
    for f in fields(kind):
        if switches := _switches(hints[f.name]):
            found += switches.parameters(f.name).values()
            continue
        default = Parameter.empty if f.default is MISSING else f.default
        found.append(
            Parameter(f.name, Parameter.KEYWORD_ONLY, default=default, annotation=hints[f.name])
        )
    return found
