"""What all commands print with: consoles that show text and never obey it, lines, notes, JSON, and tables that fit."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from os.path import commonprefix
from typing import TYPE_CHECKING, Any

import typer

from quantkit.text import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text


_NAME = 32  # columns that a long name gets before others are left out
_LEAST = 8
_EDGE = 3
_GAP = 2
_HEADS = (0.4, 0.3, 0.5, 0.2, 0.6, 0.1, 0.7, 0.8, 0.9, 0.0)  # how much of a name's start is kept


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


def new_table(title: str, names: Sequence[str], numbers: Sequence[str] = ()) -> "Table":
    """Return a table: columns of text, then columns of numbers."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for name in names:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def print_table(
    title: str,
    names: Sequence[str],
    numbers: Sequence[str],
    rows: "Iterable[Sequence[str | Text]]",
    total: Sequence[str] = (),
) -> None:
    """Print a table, and below a line its total where there is one; see `new_table`."""
    table = new_table(title, names, numbers)
    for row in rows:
        table.add_row(*row)
    if total:
        table.add_section()
        table.add_row(*total)
    output().print(table)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column.

    Attributes:
        title: Its head; may have two lines.
        drop: The columns with the largest number go first, together, where the terminal is narrow; 0 stays.
        style: Of its cells.
        left: Texts are on the left, numbers on the right.
        colours: Of cells, by their text.
    """

    title: str
    drop: int = 0
    style: str = ""
    left: bool = False
    colours: Mapping[str, str] = field(default_factory=dict)


def fitted_table(
    title: str,
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    *,
    width: int | None = None,
) -> "Table":
    """Return a table whose first column are names, no wider than the terminal (or `width`)."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    room = (width or output().width) - _EDGE
    widths = [_width([c.title, *(row[i] for row in rows)]) for i, c in enumerate(columns)]
    shown = _kept(columns, widths, room)
    names = max(_LEAST, room - sum(widths[i] + _GAP for i in shown[1:]))
    table = Table(
        title=escape(title), title_justify="left", box=SIMPLE_HEAD, padding=(0, _GAP - 1, 0, 0)
    )
    for i in shown:
        how = "left" if columns[i].left or not i else "right"
        head, style = Text(columns[i].title), columns[i].style
        table.add_column(head, justify=how, no_wrap=True, style=style)  # type: ignore[arg-type]
    firsts = shortened([row[0] for row in rows], names)
    for first, row in zip(firsts, rows, strict=True):
        cells = (Text(row[i], style=columns[i].colours.get(row[i], "")) for i in shown[1:])
        table.add_row(escape(first), *cells)
    return table


def _width(cells: Sequence[str]) -> int:
    return max(len(line) for cell in cells for line in cell.split("\n"))


def _kept(columns: Sequence[Column], widths: Sequence[int], room: int) -> list[int]:
    """Return which columns are shown."""
    shown = list(range(len(columns)))
    first = min(widths[0], _NAME)
    while first + sum(widths[i] + _GAP for i in shown[1:]) > room:
        last = max((columns[i].drop for i in shown), default=0)
        if not last:
            break
        shown = [i for i in shown if columns[i].drop != last]
    return shown


def shortened(names: Sequence[str], width: int) -> list[str]:
    """Return names of at most `width` characters, of which those that differ still do wherever that is possible.

    First goes the path that all long names share (``/encoder/`` of ``/encoder/layer.3/...``), then what is alike around
    the part that differs, then the middle.
    """
    long = [name for name in names if len(name) > width]
    start = _shared(long) if len(long) > 1 else 0
    known = Counter(name for name in dict.fromkeys(names) if len(name) <= width)
    found: dict[str, str] = {}
    for name in dict.fromkeys(long):
        rest = f"…{name[start:]}" if start > 1 else name
        differing = [] if start > 1 else _differing(name, long, width)
        cuts = (_cut(rest, width, share) for share in _HEADS)
        tries = [rest] if len(rest) <= width else [*differing, *cuts]
        best = next((text for text in tries if not known[text]), tries[0])
        known[best] += 1
        found[name] = best
    return [found.get(name, name) for name in names]


def _differing(name: str, names: Sequence[str], width: int) -> list[str]:
    """Return a name cut on both sides of what only it has, after its first letters; nothing if that is too long."""
    head = len(commonprefix(names))  # noqa: RUF071 - by letters is right
    tail = len(commonprefix([other[head:][::-1] for other in names]))  # noqa: RUF071
    own = name[head : len(name) - tail]
    first = min(head, width - len(own) - 2)
    if not own or first < 0:
        return []
    return [f"{name[:first]}{'…' * (first < head)}{own}{'…' * (tail > 0)}"]


def _shared(names: Sequence[str]) -> int:
    """Return the length of the path that all names start with."""
    first, last = min(names), max(names)
    alike = next((i for i, c in enumerate(first) if c != last[i]), len(first))
    shared = first[:alike]
    return shared.rfind("/" if "/" in shared else ".") + 1


def _cut(name: str, width: int, share: float) -> str:
    head = int((width - 1) * share)
    part = name.rfind("/", 0, head + 1) + 1
    head = part if part > 1 else head  # rather a whole part of a path than a letter more
    return f"{name[:head]}…{name[len(name) - (width - 1 - head) :]}"
