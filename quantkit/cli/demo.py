"""`quantkit demo`: the whole product on an embedded model, in seconds."""

from pathlib import Path
from typing import Annotated

import typer

from quantkit.cli.console import JsonOption, human, output, progress, write_json

__all__ = ["demo"]


def demo(
    folder: Annotated[
        Path, typer.Option("--output", "-o", help="Where to write the models and the report.")
    ] = Path("quantkit-demo"),
    as_json: JsonOption = False,
) -> None:
    """Quantize an embedded model, measure it on real labelled images, write a report."""
    from quantkit.demo import run_demo

    with progress() as show:
        result = run_demo(folder, show)
    if as_json:
        write_json(result.to_json())
        return
    from rich.table import Table

    title = f"Fashion-MNIST classifier, {result.images} labelled test images"
    table = Table(title=title, title_justify="left")
    table.add_column("model")
    for name in ("size", "accuracy", "same answer as float", "latency", "ratio"):
        table.add_column(name, justify="right")
    base = result.rows[0]
    for row in result.rows:
        table.add_row(
            row.name,
            f"{human(row.nbytes)} ({row.nbytes / base.nbytes:.0%})",
            f"{row.accuracy:.2%}",
            f"{row.agreement:.2%}",
            f"{row.milliseconds:.2f} ms",
            f"{row.milliseconds / base.milliseconds:.2f}",
        )
    console = output()
    console.print(table)
    console.print(f"report: {result.report}", soft_wrap=True, highlight=False)
    console.print(f"models: {folder}/fashion.*.onnx", soft_wrap=True, highlight=False)
    console.print(
        "next:   quantkit quantize dynamic IN OUT   or   quantkit quantize static IN OUT --data DIR",
        soft_wrap=True,
        highlight=False,
    )
