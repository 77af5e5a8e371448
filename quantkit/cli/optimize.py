"""`quantkit optimize IN OUT`."""

from pathlib import Path
from typing import Annotated

import typer

from quantkit.cli.console import write_json
from quantkit.cli.flags import expanded
from quantkit.cli.options import OutputOption, WriteFlags, one_output
from quantkit.cli.progress import progress
from quantkit.cli.result_view import present_optimized
from quantkit.errors import UsageError


def _show_passes(value: bool) -> None:  # noqa: FBT001 - typer's signature of a callback
    if not value:
        return
    from quantkit.api.optimize import describe_passes

    for name, said in describe_passes().items():
        typer.echo(f"{name:15} {said}")
    raise typer.Exit


@expanded
def optimize(  # noqa: PLR0913 - one parameter a flag
    *,
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
    write: WriteFlags,
    _list: Annotated[
        bool,
        typer.Option("--list", callback=_show_passes, is_eager=True, help="List the passes."),
    ] = False,
) -> None:
    """Simplify a model: fold constants and BatchNormalization, remove what does nothing. Stays float."""
    from quantkit.api.optimize import optimize_model

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
            verify=write.verify,
            external_data=write.external_data,
            progress=show,
        )
    if write.as_json:
        write_json({"input": str(model), "output": str(target), **result.to_json()})
    else:
        present_optimized(result, target)
