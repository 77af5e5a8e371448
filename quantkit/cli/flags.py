"""Flags that several commands share: a dataclass lists them once, and commands take it as one parameter."""

from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from inspect import Parameter, signature
from typing import Any, get_type_hints

__all__ = ["expanded"]


def expanded(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command whose parameters of a dataclass type are replaced by that dataclass's fields.

    Typer reads a command's flags from its signature. A field ``name: Annotated[T, typer.Option(...)] = default``
    becomes the parameter of the same words, and the command gets the dataclass made of their values.
    Fields stand where the dataclass stood, so that ``--help`` keeps the order.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters: list[Parameter] = []
    for name, own in signature(command).parameters.items():
        if name in groups:
            parameters += _parameters(groups[name])
        else:
            parameters.append(own.replace(annotation=hints[name], kind=Parameter.KEYWORD_ONLY))

    def called(**given: Any) -> None:
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
