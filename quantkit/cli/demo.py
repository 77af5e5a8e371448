"""`quantkit demo`: the whole product on an embedded model, in seconds."""

from pathlib import Path
from typing import Annotated

import typer

from quantkit.cli.console import line
from quantkit.cli.flags import expanded
from quantkit.cli.options import JsonOption
from quantkit.cli.progress import watching

__all__ = ["demo"]


@expanded
def demo(
    folder: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Where to write the models and the report."
        ),
    ] = Path("quantkit-demo"),
    as_json: JsonOption = False,
) -> None:
    """Quantize an embedded model, measure it on real labelled images, write a report with a verdict."""
    from quantkit.cli.evaluation_view import present
    from quantkit.pipeline.demo import run_demo

    with watching(quiet=True, doing="Running", calibrates=False) as monitor:
        done = run_demo(folder, monitor)
    present(done.result, done.files, as_json=as_json)
    if as_json:
        return
    line(f"models: {folder}/fashion.*.onnx")
    line(f"again:  cd {folder} && {done.result.origin.command}")
    line(
        "yours:  quantkit quantize static IN OUT --data DIR, then quantkit evaluate IN OUT --data DIR"
    )
