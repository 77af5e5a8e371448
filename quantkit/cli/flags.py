"""Flags that several commands share: a dataclass lists them once, and commands take it as one parameter."""

from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from inspect import Parameter, signature
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

__all__ = ["Command", "DebugOption", "Group", "expanded"]

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
            given[name] = kind(**{f.name: given.pop(f.name) for f in fields(kind)})
        command(**given)

    called.__name__ = command.__name__
    called.__doc__ = command.__doc__
    called.__module__ = command.__module__
    called.__annotations__ = {p.name: p.annotation for p in parameters}
    called.__signature__ = signature(command).replace(  # type: ignore[attr-defined]
        parameters=parameters, return_annotation=Parameter.empty
    )
    return called


def _parameters(kind: Any) -> list[Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        Parameter(
            f.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if f.default is MISSING else f.default,
            annotation=hints[f.name],
        )
        for f in fields(kind)
    ]
