"""`quantkit report RESULT.json`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from quantkit.cli.console import line, write_json
from quantkit.cli.flags import expanded
from quantkit.errors import UsageError


class Format(StrEnum):
    """What to write."""

    HTML = "html"
    MD = "md"
    BOTH = "both"


def _show_schema(value: bool) -> None:  # noqa: FBT001 - typer's signature of a callback
    if not value:
        return
    from quantkit.result import json_schema

    write_json(json_schema())
    raise typer.Exit


@expanded
def report(
    result: Annotated[Path, typer.Argument(help="result.json of an evaluation.", metavar="RESULT")],
    folder: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Where to; beside the result if not given."
        ),
    ] = None,
    form: Annotated[Format, typer.Option("--format", help="What to write.")] = Format.BOTH,
    picture: Annotated[
        Path | None,
        typer.Option(
            metavar="SVG",
            help="Also write the picture of accuracy and size, of a search that of its frontier.",
        ),
    ] = None,
    view: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    _schema: Annotated[
        bool,
        typer.Option(
            "--schema",
            callback=_show_schema,
            is_eager=True,
            help="Print the JSON Schema of result.json.",
        ),
    ] = False,
) -> None:
    """Render result.json as an HTML page and Markdown."""
    from quantkit import write_report

    if view and form is Format.MD:
        raise UsageError("--open shows the page: it needs --format html or both.")
    files = write_report(result, folder, form=form.value, picture=picture)
    for path in files.written:
        line(f"wrote {path}")
    if view:
        typer.launch(str(files.html))
