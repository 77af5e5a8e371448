"""What all commands print with: consoles that show text and never obey it, lines, notes, JSON."""

import json
from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import typer

from quantkit.text import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


def output() -> "Console":
    """Return the console for results."""
    return _careful()(emoji=False)


def errors() -> "Console":
    """Return the console for progress, warnings and errors."""
    return _careful()(stderr=True, emoji=False)


@cache
def _careful() -> "type[Console]":
    """Return a console that shows text and never obeys it: whatever is printed or stands in a table goes through it.

    Lines are made by printing several times, or with rich's own `Text`: a name must not be able to make one.
    """
    from rich.console import Console

    class Careful(Console):
        def render_str(self, text: str, **how: Any) -> "Text":
            return super().render_str(printable(text), **how)

    return Careful


def escape(text: str) -> str:
    """Return text of which a console takes nothing for markup."""
    from rich.markup import escape as escaped  # rich is not needed to read a command line

    return escaped(text)


def line(text: str, style: str = "") -> None:
    """Print a line that is never folded: names are there to be copied."""
    marked(escape(text), style)


def marked(text: str, style: str = "") -> None:
    """Print a line with rich's markup in it, never folded."""
    output().print(text, style=style, highlight=False, soft_wrap=True)


def print_notes(notes: Iterable[str]) -> None:
    """Print what the user should know."""
    for note in notes:
        errors().print(f"[yellow]note:[/] {escape(note)}", soft_wrap=True, highlight=False)


def write_json(plain: Mapping[str, Any]) -> None:
    """Print plain data as JSON, for machines."""
    write_json_text(json.dumps(plain, indent=1))


def write_json_text(text: str) -> None:
    """Print JSON; what a terminal might obey is written as JSON writes it."""
    if not text.isascii():
        text = "".join(c if printable(c, keep="\n") == c else json.dumps(c)[1:-1] for c in text)
    typer.echo(text.replace("\x7f", "\\u007f"), nl=not text.endswith("\n"))
