"""`quantkit verify MODEL [--float F] [--data D] [--again]`."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quantkit.cli.console import escape, marked, output, print_table, write_json
from quantkit.cli.flags import expanded
from quantkit.cli.options import DataFlags, JsonOption
from quantkit.cli.progress import progress
from quantkit.errors import UsageError

if TYPE_CHECKING:
    from quantkit.api.results import Attestation
    from quantkit.settings import DataSettings


_STYLES = {"ok": "green", "wrong": "bold red", "unknown": "yellow"}


@expanded
def verify(
    *,
    model: Annotated[Path, typer.Argument(help="A model that quantkit wrote.", metavar="MODEL")],
    float_model: Annotated[
        Path | None,
        typer.Option("--float", metavar="FILE", help="The model that it should be made from."),
    ] = None,
    samples: DataFlags,
    again: Annotated[
        bool,
        typer.Option("--again", help="Also quantize again as recorded, and compare the bytes."),
    ] = False,
    student: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --again: the student of a distilled model."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check a model that quantkit wrote: unchanged, made from this float model and this data, runs.

    Exits with 1 if something is wrong, with 2 if MODEL carries no provenance.

    Data is prepared as recorded, unless flags or quantkit.toml say otherwise.
    --data may be a calibration file.
    """
    from quantkit import verify_file

    if again and float_model is None:
        raise UsageError("--again needs the float model: add --float FILE.")
    data, settings, memory = _data(samples)
    with progress() as show:
        found = verify_file(
            model,
            float_model,
            data,
            again=again,
            student=student,
            settings=settings,
            memory=memory,
            progress=show,
        )
    if as_json:
        write_json({"model": str(model), **found.to_json()})
    else:
        _print(found, model)
    if not found.ok:
        raise typer.Exit(1)


def _data(samples: DataFlags) -> "tuple[Path | None, DataSettings | None, int | None]":
    """Return the data, how it is prepared (None: as recorded), and the memory that may be held."""
    from quantkit.settings import DataSettings, load_recipe

    settings = samples.over_recipe(load_recipe().calibrated)
    prepared = replace(settings, path=None, memory=None)
    if prepared == DataSettings():
        return settings.path, None, settings.memory
    return settings.path, replace(settings, path=None), settings.memory


def _print(found: "Attestation", model: Path) -> None:
    console, says = output(), found.provenance
    wrote = f"written by quantkit {escape(says.quantkit)}"
    marked(f"[bold]{escape(model.name)}[/]  {says.kind}, {wrote}")
    rows = [
        (check.name, f"[{_STYLES[check.outcome]}]{check.outcome}[/]", escape(check.sentence))
        for check in found.checks
    ]
    print_table("", ("check", "outcome", "what was found"), (), rows)
    style = "green" if found.ok else "bold red"
    console.print(f"[{style}]{found.verdict}[/]", highlight=False)
