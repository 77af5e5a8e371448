"""Tables of a terminal: they leave out the columns that may go, then shorten names where they are all alike."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os.path import commonprefix
from typing import TYPE_CHECKING

from quantkit.cli.console import escape, output

if TYPE_CHECKING:
    from rich.table import Table


_NAME = 32  # columns that a long name gets before others are left out
_LEAST = 8
_EDGE = 3
_GAP = 2
_HEADS = (0.4, 0.3, 0.5, 0.2, 0.6, 0.1, 0.7, 0.8, 0.9, 0.0)  # how much of a name's start is kept


def new_table(title: str, names: Sequence[str], numbers: Sequence[str] = ()) -> "Table":
    """Return a table: columns of text, then columns of numbers."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for name in names:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right")
    return table


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
