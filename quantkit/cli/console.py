"""What all commands share: consoles, lines, options, and tables that fit the terminal.

A table leaves out the columns that may go, then shortens names where they are all alike.
"""

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from os.path import commonprefix
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quantkit.errors import UsageError
from quantkit.numbers import human
from quantkit.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from quantkit.quantize.plan import Plan
    from quantkit.reasons import Reason

__all__ = ["Column", "ExternalDataOption", "JsonOption", "ModelArgument", "OutputOption"]
__all__ += ["PlanOption", "SavePlanOption", "SourceArgument", "VerifyOption"]
__all__ += ["block_reasons", "errors", "one_output"]
__all__ += ["escape", "fitted_table", "float_reasons", "grouped", "human", "line", "marked"]
__all__ += ["new_table", "output", "plan_table", "print_notes", "progress", "shortened"]
__all__ += ["static_plan_table"]
__all__ += ["write_json", "write_json_text"]

_SHORT, _SILENCE = (
    3,
    15,
)  # seconds: of a run without lines about its progress, and between two lines of one stage

JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
VerifyOption = Annotated[
    bool, typer.Option("--verify/--no-verify", help="Load, run and compare before writing.")
]
ExternalDataOption = Annotated[
    bool, typer.Option("--external-data", help="Write weights to a .data file beside OUT.")
]


OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="The same as OUT.")
]
_FLOAT_MODEL = "The float32 model; or in quantkit.toml."
SourceArgument = Annotated[Path | None, typer.Argument(help=_FLOAT_MODEL, metavar="IN")]
ModelArgument = Annotated[Path | None, typer.Argument(help=_FLOAT_MODEL, metavar="MODEL")]
PlanOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Quantize as this plan says, written by --save-plan or quantkit plan -o.",
    ),
]
SavePlanOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Also write the plan: every decision with its reason."),
]


def one_output(argument: Path | None, option: Path | None) -> Path | None:
    """Return where to write, given as OUT or with -o; None if neither is.

    Raises:
        UsageError: Both are, and differ.
    """
    if argument is not None and option is not None and argument != option:
        raise UsageError(f"Where to write: OUT says '{argument}' and -o '{option}'. Give one.")
    return argument or option


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


def new_table(title: str, names: Sequence[str], numbers: Sequence[str] = ()) -> "Table":
    """Return a table: columns of text, then columns of numbers."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for name in names:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def write_json(plain: Mapping[str, Any]) -> None:
    """Print plain data as JSON, for machines."""
    write_json_text(json.dumps(plain, indent=1))


def write_json_text(text: str) -> None:
    """Print JSON; what a terminal might obey is written as JSON writes it."""
    if not text.isascii():
        text = "".join(c if printable(c, keep="\n") == c else json.dumps(c)[1:-1] for c in text)
    typer.echo(text.replace("\x7f", "\\u007f"), nl=not text.endswith("\n"))


@contextmanager
def progress() -> Iterator["Callable[[str], None]"]:
    """Show the stage that is running, with the time it takes; what takes long is also printed where there is no terminal.

    A text may have a part behind a colon that counts: of it a line comes now and then.
    """
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    console = errors()
    live = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = live.add_task("Starting", total=None)
    started = last = time.monotonic()
    shown = ""

    def show(text: str) -> None:
        nonlocal last, shown
        live.start()  # not before: what is printed until then stays above it
        live.update(task, description=printable(text))
        now, stage = time.monotonic(), text.partition(":")[0]
        due = now - last >= _SILENCE or (stage != shown and now - started >= _SHORT)
        if due and not console.is_terminal:
            console.print(f"[{now - started:.0f} s] {text}", markup=False, highlight=False)
            last, shown = now, stage

    try:
        yield show
    finally:
        live.stop()


# How a column of the table is called, and its colour.
_COLUMNS = {
    "static": ("static int8", "green"),
    "absorbed": ("fused into layer before", "green"),
    "integer": ("dynamic int8", "green"),
    "blocks": ("weights in blocks", "green"),
    "half": ("float16", "green"),
    "stored": ("weights only", "cyan"),
    "float": ("float", ""),
}
_REASONS = 5  # below a table of a static plan
_OPERATORS = 3  # to a reason


def plan_table(plan: "Plan", how: str, more: str = "") -> "Table":
    """Show how many nodes of each operator run in int8 and how many do not, and why.

    Args:
        plan: A dynamic or a static plan.
        how: What the title calls it.
        more: Where the reasons are that the table leaves out.
    """
    from quantkit.quantize.plan import Mode

    int8 = {Mode.INTEGER, Mode.STATIC, Mode.ABSORBED}
    table = new_table(f"Execution plan ({how})", ("operator",))
    table.add_column("int8", justify="right", style="green")
    table.add_column("weights only", justify="right", style="cyan")
    table.add_column("float", justify="right")
    table.add_column("why not int8")
    for op_type, counts in sorted(plan.counts().items()):
        reasons = Counter(
            grouped([n.reason for n in plan.nodes if n.op_type == op_type and n.mode not in int8])
        ).most_common()
        why = reasons[0][0] if reasons else ""
        if len(reasons) > 1:
            others = sum(n for _, n in reasons[1:])
            why = f"{reasons[0][1]}: {why}; {others} other{'s' * (others != 1)}{more}"
        numbers = (sum(counts[m] for m in int8), counts[Mode.STORED], counts[Mode.FLOAT])
        table.add_row(escape(op_type), *(str(n or "-") for n in numbers), escape(why))
    return table


def static_plan_table(plan: "Plan") -> "Table":
    """Show how many nodes of each operator run how, in a static plan: the modes that occur."""
    counts = plan.counts()
    seen = {mode.value for found in counts.values() for mode in found}
    table = new_table("Execution plan", ("operator",))
    for mode, (name, style) in _COLUMNS.items():
        if mode in seen:
            table.add_column(name, justify="right", style=style)
    for op_type, found in sorted(counts.items()):
        numbers = {mode.value: str(count) for mode, count in found.items()}
        row = (numbers.get(mode, "-") for mode in _COLUMNS if mode in seen)
        table.add_row(escape(op_type), *row)
    return table


def grouped(reasons: "Sequence[Reason]") -> list[str]:
    """Return the sentences of reasons, without their values where several differ in these alone."""
    several: dict[str, set[str]] = {}
    for reason in reasons:
        several.setdefault(reason.head, set()).add(str(reason))
    return [str(r) if len(several[r.head]) == 1 else r.head for r in reasons]


def float_reasons(plan: "Plan") -> list[str]:
    """Return the most frequent reasons why nodes are computed in float, with the operators they hold for."""
    return _reasons(plan, {"stored", "float"}, "in float")


def block_reasons(plan: "Plan") -> list[str]:
    """Return how nodes whose weights are in blocks run, with the operators it holds for."""
    return _reasons(plan, {"blocks"}, "in blocks")


def _reasons(plan: "Plan", modes: "Collection[str]", how: str) -> list[str]:
    reasons: dict[str, Counter[str]] = {}
    nodes = [n for n in plan.nodes if n.mode.value in modes]
    for n, why in zip(nodes, grouped([n.reason for n in nodes]), strict=True):
        reasons.setdefault(why, Counter())[n.op_type] += 1
    listed = sorted(reasons.items(), key=lambda reason: (-reason[1].total(), reason[0]))
    lines = []
    for why, operators in listed[:_REASONS]:
        shown = ", ".join(f"{op} {count}" for op, count in operators.most_common(_OPERATORS))
        more = ", ..." if len(operators) > _OPERATORS else ""
        lines.append(f"{operators.total()} {how}: {why} ({shown}{more})")
    rest = sum(operators.total() for _, operators in listed[_REASONS:])
    return [*lines, f"{rest} {how}: for other reasons"] if rest else lines


_NAME = 32  # columns that a long name gets before others are left out
_LEAST = 8
_EDGE = 3
_GAP = 2
_HEADS = (0.4, 0.3, 0.5, 0.2, 0.6, 0.1, 0.7, 0.8, 0.9, 0.0)  # how much of a name's start is kept


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
