"""What all commands share: consoles, sizes, the JSON switch."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quantkit.files import human
from quantkit.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from quantkit.plan import Plan

__all__ = ["JsonOption", "errors", "float_reasons", "human", "output", "plan_table", "progress"]
__all__ += ["static_plan_table", "write_json", "write_json_text"]

JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def output() -> "Console":
    """Return the console for results."""
    return _console(stderr=False)


def errors() -> "Console":
    """Return the console for progress, warnings and errors."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> "Console":
    return _careful()(stderr=stderr, emoji=False)


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
    """Show the stage that is running, with the time it takes, on a terminal; nothing elsewhere."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    console = errors()
    live = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = live.add_task("Starting", total=None)

    def show(text: str) -> None:
        live.start()  # not before: what is printed until then stays above it
        live.update(task, description=printable(text))

    try:
        yield show
    finally:
        live.stop()


# How a column of the table is called, and its colour.
_COLUMNS = {
    "static": ("static int8", "green"),
    "absorbed": ("fused into layer before", "green"),
    "integer": ("dynamic int8", "green"),
    "stored": ("weights only", "cyan"),
    "float": ("float", ""),
}
_REASONS = 5  # below a table of a static plan
_OPERATORS = 3  # to a reason


def plan_table(plan: "Plan") -> "Table":
    """Show how many nodes of each operator run how, in a dynamic plan, and why not in integers."""
    from rich.markup import escape
    from rich.table import Table

    from quantkit.plan import Mode

    table = Table(title="What runs how", title_justify="left")
    table.add_column("operator")
    table.add_column("int8", justify="right", style="green")
    table.add_column("weights only", justify="right", style="cyan")
    table.add_column("float", justify="right")
    table.add_column("why not int8")
    for op_type, counts in sorted(plan.counts().items()):
        reasons = Counter(
            n.why for n in plan.nodes if n.op_type == op_type and n.mode != Mode.INTEGER
        ).most_common()
        why = reasons[0][0] if reasons else ""
        if len(reasons) > 1:
            why = f"{reasons[0][1]} x {why}; {sum(n for _, n in reasons[1:])} x for other reasons"
        modes = (Mode.INTEGER, Mode.STORED, Mode.FLOAT)
        table.add_row(escape(op_type), *(str(counts[m] or "-") for m in modes), escape(why))
    return table


def static_plan_table(plan: "Plan") -> "Table":
    """Show how many nodes of each operator run how, in a static plan: the modes that occur."""
    from rich.markup import escape
    from rich.table import Table

    counts = plan.counts()
    seen = {mode.value for found in counts.values() for mode in found}
    table = Table(title="What runs how", title_justify="left")
    table.add_column("operator")
    for mode, (name, style) in _COLUMNS.items():
        if mode in seen:
            table.add_column(name, justify="right", style=style)
    for op_type, found in sorted(counts.items()):
        numbers = {mode.value: str(count) for mode, count in found.items()}
        row = (numbers.get(mode, "-") for mode in _COLUMNS if mode in seen)
        table.add_row(escape(op_type), *row)
    return table


def float_reasons(plan: "Plan") -> list[str]:
    """Return the most frequent reasons why nodes are computed in float, with the operators they hold for."""
    reasons: dict[str, Counter[str]] = {}
    for n in plan.nodes:
        if n.mode.value in {"stored", "float"}:
            reasons.setdefault(n.why, Counter())[n.op_type] += 1
    listed = sorted(reasons.items(), key=lambda reason: (-reason[1].total(), reason[0]))
    lines = []
    for why, operators in listed[:_REASONS]:
        shown = ", ".join(f"{op} {count}" for op, count in operators.most_common(_OPERATORS))
        more = ", ..." if len(operators) > _OPERATORS else ""
        lines.append(f"{operators.total()} in float: {why} ({shown}{more})")
    rest = sum(operators.total() for _, operators in listed[_REASONS:])
    return [*lines, f"{rest} in float: for other reasons"] if rest else lines
