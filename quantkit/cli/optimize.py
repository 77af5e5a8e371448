"""`quantkit optimize IN OUT`."""

from math import isinf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quantkit.cli.console import escape, marked, output, print_notes, write_json
from quantkit.cli.flags import expanded
from quantkit.cli.options import (
    ExternalDataOption,
    JsonOption,
    OutputOption,
    VerifyOption,
    one_output,
)
from quantkit.cli.progress import progress
from quantkit.cli.result_view import print_verified, print_written
from quantkit.cli.tables import new_table
from quantkit.errors import UsageError
from quantkit.numbers import human

if TYPE_CHECKING:
    from rich.table import Table

    from quantkit.pipeline.optimize import OptimizeResult
    from quantkit.quantize.rewrite.simplify import SimplifyReport

__all__ = ["optimize"]


def _show_passes(value: bool) -> None:  # noqa: FBT001 - typer's signature of a callback
    if not value:
        return
    from quantkit.quantize.rewrite.simplify import PASSES
    from quantkit.quantize.rewrite.simplify.plugins import PLUGINS

    for name, run in PASSES.items():
        what = (run.__doc__ or "").partition(";")[0].strip()
        typer.echo(f"{name:15} {what}.")
    for name in PLUGINS.names()[len(PASSES) :]:
        typer.echo(f"{name:15} Plug-in {PLUGINS.where(name)}; runs with --pass {name}.")
    raise typer.Exit


@expanded
def optimize(  # noqa: PLR0913 - one parameter a flag
    model: Annotated[Path, typer.Argument(help="The float32 model.", metavar="IN")],
    out: Annotated[
        Path | None, typer.Argument(help="Where to write the result.", metavar="OUT")
    ] = None,
    named: OutputOption = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="PASS", help="Only this pass. May be repeated.")
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option(metavar="PASS", help="Not this pass. May be repeated.")
    ] = None,
    extra: Annotated[
        list[str] | None,
        typer.Option(
            "--pass",
            metavar="NAME",
            help="Then run this pass of another package: a plug-in, or module:attribute. May be repeated.",
        ),
    ] = None,
    verify: VerifyOption = True,
    external_data: ExternalDataOption = False,
    as_json: JsonOption = False,
    _list: Annotated[
        bool,
        typer.Option("--list", callback=_show_passes, is_eager=True, help="List the passes."),
    ] = False,
) -> None:
    """Simplify a model: fold constants and BatchNormalization, remove what does nothing. Stays float."""
    from quantkit.pipeline.optimize import optimize_model

    target = one_output(out, named)
    if target is None:
        raise UsageError("Where to write? quantkit optimize IN OUT.")
    with progress() as show:
        result = optimize_model(
            model,
            target,
            passes=only,
            exclude=skip or (),
            extra_passes=extra or (),
            verify=verify,
            external_data=external_data,
            progress=show,
        )
    if as_json:
        write_json({"input": str(model), "output": str(target), **result.to_json()})
        return
    _print(result, target)


def _print(result: "OptimizeResult", target: Path) -> None:
    console, report = output(), result.report
    if report.before != report.after:
        console.print(_node_table(report))
    done = ", ".join(f"{name} {count}" for name, count in report.changes.items() if count)
    if report.changed:
        console.print(f"changes by pass: {done}", highlight=False)
    else:
        console.print(
            f"nothing to simplify: {report.nodes_before} nodes"
            + (f" (changes by pass: {done})" if done else ""),
            highlight=False,
        )
    sizes = f"{human(result.input_bytes)} -> {human(result.output_bytes)}"
    marked(f"[bold]{sizes}[/] in {result.seconds:.2f} s")
    checked = result.verification
    if checked is not None:
        found = ", ".join(f"{name} {_moved(db)}" for name, db in checked.compared.items())
        print_verified(checked, "against the input on made-up data", found)
    print_written(target)
    print_notes(result.warnings)


def _moved(db: float) -> str:
    return "exact" if isinf(db) else f"{db:.1f} dB"


def _node_table(report: "SimplifyReport") -> "Table":
    """Show the operators whose number changed, and the total."""
    table = new_table("Nodes", ("operator",), ("before",))
    table.add_column("after", justify="right", style="green")
    for op_type in sorted({*report.before, *report.after}):
        before, after = report.before.get(op_type, 0), report.after.get(op_type, 0)
        if before != after:
            table.add_row(escape(op_type), str(before or "-"), str(after or "-"))
    table.add_section()
    table.add_row("total", str(report.nodes_before), str(report.nodes_after))
    return table
