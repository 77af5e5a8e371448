"""`quantkit targets [NAME]`."""

from typing import TYPE_CHECKING, Annotated

import typer

from quantkit.cli.console import Column, escape, fitted_table, line, marked, output, write_json
from quantkit.cli.flags import expanded
from quantkit.cli.options import JsonOption

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.table import Table

    from quantkit.targets import Machine, Target


@expanded
def targets(
    name: Annotated[
        str | None, typer.Argument(help="Show one target in full.", metavar="NAME")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what CPUs and execution providers run in integers, and which of them this machine is."""
    from quantkit.targets import names, target, this_machine

    if name is not None:
        _show_one(target(name), as_json=as_json)
        return
    known, machine = [target(n) for n in names()], this_machine()
    if as_json:
        write_json({"targets": [t.to_json() for t in known], "machine": machine.to_json()})
        return
    output().print(_table(known))
    _print_machine(machine)


def _table(known: "Iterable[Target]") -> "Table":
    columns = (
        Column(title="target", style="bold"),
        Column(title="runtime", drop=2, left=True),
        Column(title="activations", left=True),
        Column(title="weights", left=True),
        Column(title="may\nsaturate", drop=1, left=True),
        Column(title="int8\noperators", drop=3),
    )
    rows = [
        (
            t.name,
            t.runtime,
            _activations(t),
            t.weight.name,
            "yes, avoided" if t.saturates else "no",
            str(len(t.operators)),
        )
        for t in known
    ]
    return fitted_table("Targets of static quantization", columns, rows)


def _activations(t: "Target") -> str:
    types = t.activation.name + (" or 16 bits" if t.int16 else "")
    return f"{types}, symmetric" if t.symmetric_activations else types


def _weights(t: "Target") -> str:
    return f"{t.weight.name}, {'per channel' if t.per_channel else 'per tensor'}"


def _print_machine(machine: "Machine") -> None:
    says = {
        True: "sums of two uint8 x int8 products saturate at 16 bits on this CPU; quantkit chooses weights that cannot",
        False: "uint8 x int8 products are summed exactly on this CPU: nothing saturates",
        None: "whether sums of uint8 x int8 products saturate on this CPU is unknown",
    }
    line(f"this machine: {machine}")
    line(f"{says[machine.saturates]}.")
    marked(
        f"For this machine alone: [bold]{machine.target}[/]; for a file that runs anywhere: "
        "[bold]cpu[/], the default."
    )


def _show_one(t: "Target", *, as_json: bool) -> None:
    if as_json:
        write_json(t.to_json())
        return
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for row in _rows(t):
        table.add_row(*(escape(cell) for cell in row))
    console = output()
    console.print(f"[bold]{t.name}[/]: {escape(t.title)}", highlight=False)
    console.print(table, highlight=False)
    for note in t.notes:
        console.print(f"- {escape(note)}", highlight=False)


def _rows(t: "Target") -> tuple[tuple[str, str], ...]:
    bias = f"{t.bias.name}, scale x_scale * w_scale" if t.bias else "float"
    return (
        ("runtime", t.runtime),
        ("activations", _activations(t)),
        ("weights", f"{_weights(t)}{', symmetric' if t.symmetric_weights else ''}"),
        (
            "16-bit sums",
            "may saturate; weights are chosen so that they do not"
            if t.saturates
            else "do not saturate",
        ),
        ("bias", bias),
        ("format", ", ".join(sorted(t.formats))),
        ("opset", f"{t.min_opset} or newer"),
        ("layers", _listed(t.products)),
        ("scales per channel", _listed(t.channelwise)),
        ("output must be int8", _listed(t.needs_output)),
        ("other int8 operators", _listed(t.computes)),
        ("scale kept", _listed(t.moves)),
    )


def _listed(operators: frozenset[str]) -> str:
    return ", ".join(sorted(operators)) or "none"
