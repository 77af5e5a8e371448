"""`quantkit inspect MODEL`."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quantkit.cli.console import (
    Column,
    escape,
    fitted_table,
    line,
    marked,
    output,
    print_table,
    write_json,
)
from quantkit.cli.flags import expanded
from quantkit.cli.options import JsonOption
from quantkit.cli.progress import progress
from quantkit.cli.result_view import plan_table
from quantkit.text import human

if TYPE_CHECKING:
    from rich.table import Table

    from quantkit.api.results import Inspection, Port


@expanded
def inspect(
    model: Annotated[Path, typer.Argument(help="The model to look at.", metavar="MODEL")],
    weights: Annotated[
        int, typer.Option(metavar="N", help="Analyze the N largest weights.", min=0)
    ] = 0,
    nodes: Annotated[
        bool, typer.Option("--nodes", help="List every node of both plans, with the reason.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what is in a model, a size breakdown, what would be quantized and what is risky."""
    from quantkit import inspect_model

    with progress() as show:
        show(f"Reading {model}")
        found = inspect_model(model, weights=weights)
    if as_json:
        write_json(found.to_json())
        return
    console = output()
    _print_head(found)
    _print_sizes(found)
    for mode, how in _MODES.items():
        if mode in found.plans:
            console.print(plan_table(found.plans[mode], how, " (--nodes lists them)"))
    if found.foreseen:
        _print_foreseen(found)
    for said, count in found.stored.items():
        line(f"{count} {said}")
    if nodes:
        _print_nodes(found)
    if found.weights:
        console.print(_weight_table(found))
    for warning in found.hazards:
        marked(f"[yellow]warning:[/] {escape(warning)}")
    if not found.hazards:
        console.print("[green]no warnings[/]")
    if found.next_mode:
        _print_next(model, found)


def _print_head(found: "Inspection") -> None:
    console = output()
    opsets = ", ".join(f"{d or 'ai.onnx'} {v}" for d, v in found.opsets.items())
    console.print(f"[bold]{escape(found.name)}[/]  {human(found.nbytes)}", highlight=False)
    producer = f", written by {found.producer}" if found.producer else ""
    line(f"IR version {found.ir_version}, opset {opsets}{producer}")
    if found.source:
        line(f"exported from {found.source}")
    for kind, ports in (("input", found.inputs), ("output", found.outputs)):
        for port in ports:
            console.print(f"  {kind:6} {_described(port)}", highlight=False)
    operators = ", ".join(f"{n} {op}" for op, n in found.operators.items())
    console.print(escape(f"operators: {operators}"), highlight=False)


def _print_next(model: Path, found: "Inspection") -> None:
    """Print the command to try first, and how many layers it can bring to int8."""
    mode, count = found.next_mode, found.int8["layers"]
    layers = f"{found.int8[mode]} of {count} layer{'s' * (count != 1)} can run in int8"
    output_file = f"{model.stem}.int8.onnx"
    data = " --data DIR" if mode == "static" else ""
    files = shlex.join([str(model), output_file])
    line(f"next: quantkit quantize {mode} {files}{data} ({layers})", "bold")


def _described(port: "Port") -> str:
    shape = ", ".join(str(n) for n in port.shape)
    dynamic = " (dynamic)" if port.is_dynamic else ""
    return escape(f"{port.name}  {port.dtype}[{shape}]{dynamic}")


def _print_sizes(found: "Inspection") -> None:
    rows = [
        (p.cause, str(p.tensors or "-"), human(p.nbytes), f"{p.nbytes / found.nbytes:.1%}")
        for p in found.size
    ]
    total = ("total", "", human(found.nbytes), "100.0%")
    print_table("Size breakdown", ("cause",), ("tensors", "size", "share"), rows, total)


_MODES = {"static": "static, needs data", "dynamic": "dynamic, without data"}
_FORMS = {
    "static": "int8, ranges calibrated on data",
    "dynamic": "int8, computed in integers where that is faster",
    "weights": "4 bits in blocks, computed in float",
    "float16": "float16 in the file, computed in float",
}


def _print_foreseen(found: "Inspection") -> None:
    """Print how large the file would be in each form, smallest last."""
    rows = []
    forms = ((name, found.foreseen[name]) for name in _FORMS if name in found.foreseen)
    for name, size in sorted(forms, key=lambda form: -form[1]):
        plan = found.plans[name]
        count = str(len(plan.halves or plan.weights))
        share = f"{size / found.nbytes:.1%}"
        rows.append((_FORMS[name], f"quantize {name}", count, f"about {human(size)}", share))
    print_table("Estimated size", ("form", "command"), ("weights", "size", "share"), rows)


def _print_nodes(found: "Inspection") -> None:
    """Print a line per node, never folded: names are there to be copied."""
    for mode in (mode for mode in _MODES if mode in found.plans):
        line(f"Nodes, {mode} quantization: name, operator, mode, why")
        for node in found.plans[mode].nodes:
            line(f"{node.node}  {node.op_type}  {node.mode.words}  {node.why}")


def _weight_table(found: "Inspection") -> "Table":
    columns = (
        Column(title="weight"),
        Column(title="shape", drop=2),
        Column(title="per\ntensor"),
        Column(title="per\nchannel"),
        Column(title="in\nblocks", drop=1),
        Column(title="outliers", drop=3),
        Column(title="dead\nchannels", drop=4),
        Column(title="needs", left=True),
    )
    rows = []
    for row in found.weights:
        a = row.analysis
        cells = (
            row.tensor,
            "x".join(str(n) for n in row.shape),
            f"{a.sqnr_tensor:.1f}",
            f"{a.sqnr_channel:.1f}",
            f"{a.sqnr_block:.1f}",
            f"{a.outlier_share:.1e}" if a.outlier_share else "-",
            str(a.dead_channels or "-"),
            a.asks_for,
        )
        rows.append(cells)
    return fitted_table("Largest weights: SQNR in dB if quantized to int8", columns, rows)
