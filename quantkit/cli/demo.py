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

    table = Table(title="Fashion-MNIST classifier, 2000 labelled test images", title_justify="left")
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
    console.print(
        f"models: {folder / 'fashion.uint8.onnx'} and {folder / 'fashion.int8.onnx'}",
        soft_wrap=True,
        highlight=False,
    )
    console.print(
        "next:   quantkit inspect MODEL   or   quantkit quantize dynamic IN OUT", highlight=False
    )
