"""`quantkit report RESULT.json`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from quantkit.cli.console import output, write_json
from quantkit.cli.flags import expanded
from quantkit.errors import UsageError

__all__ = ["report"]


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
        typer.Option(metavar="SVG", help="Also write the accuracy-vs-size picture, for a README."),
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
    """Show a result: a page that opens from disk, and Markdown for a pull request. Reads nothing else."""
    from quantkit.files import check_folder, check_outputs
    from quantkit.report import accuracy_size_svg, write_html, write_markdown
    from quantkit.result import load_result

    if view and form is Format.MD:
        raise UsageError("--open shows the page: it needs --format html or both.")
    if picture is not None and picture.suffix != ".svg":
        raise UsageError(f"--picture writes an SVG: call it '{picture.with_suffix('.svg')}'.")
    shown = result / "result.json" if result.is_dir() else result
    target = folder or shown.parent
    names = ["report.html"] if form is not Format.MD else []
    names += ["report.md"] if form is not Format.HTML else []
    check_folder(target, names, [shown])
    check_outputs([picture, *(target / name for name in names if target.is_dir())], [shown])
    found = load_result(result)
    written = [write_html(found, target)] if form is not Format.MD else []
    written += [write_markdown(found, target)] if form is not Format.HTML else []
    if picture is not None:
        from quantkit.files import replace_text

        replace_text(picture, accuracy_size_svg(found))
        written.append(picture)
    for path in written:
        output().print(f"wrote {path}", markup=False, highlight=False, soft_wrap=True)
    if view:
        typer.launch(str(written[0]))
