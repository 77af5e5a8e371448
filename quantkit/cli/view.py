"""`quantkit view MODEL [OTHER]`."""

import os
import shlex
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quantkit.cli.console import line, output, print_notes
from quantkit.cli.flags import expanded
from quantkit.cli.progress import progress
from quantkit.errors import UsageError
from quantkit.installation import install_command

if TYPE_CHECKING:
    from quantkit import ViewFiles


_HOST = "127.0.0.1"


@expanded
def view(  # noqa: PLR0913 - one parameter per question
    *,
    model: Annotated[Path, typer.Argument(help="The model to look at.", metavar="MODEL")],
    other: Annotated[
        Path | None,
        typer.Argument(help="Another, made from the first: drawn beside it.", metavar="OTHER"),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="HTML",
            help="Where to write the page. Default: a temporary file, opened in a browser.",
        ),
    ] = None,
    float_model: Annotated[
        Path | None,
        typer.Option(
            "--float",
            metavar="MODEL",
            help="What MODEL was made from: the same as OTHER, the other way round.",
        ),
    ] = None,
    result: Annotated[
        Path | None,
        typer.Option(
            metavar="RESULT",
            help="result.json of an evaluation, or its folder: share of the drift.",
        ),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Of quantkit calibrate: ranges and histograms of tensors."
        ),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(metavar="PLAN", help="A plan: what becomes of each node, and why."),
    ] = None,
    timed: Annotated[
        bool, typer.Option("--time", help="Measure what each layer takes here, on random inputs.")
    ] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Draw every node as a box of its own.")
    ] = False,
    explorer: Annotated[
        Path | None,
        typer.Option(
            "--model-explorer", metavar="DIR", help="Write the same for Google's Model Explorer."
        ),
    ] = None,
    show: Annotated[
        bool, typer.Option("--open", help="Open the page of -o in a browser, too.")
    ] = False,
    netron: Annotated[
        bool, typer.Option("--netron", help="Open the model in Netron instead (extra 'view').")
    ] = False,
) -> None:
    """Render a model (or two, side by side) as an HTML graph that makes no network requests."""
    from quantkit import view_model

    if other is not None and float_model is not None:
        raise UsageError("OTHER and --float both name a second model: give one of them.")
    first, last = (model, other) if other is not None else (float_model, model)
    if netron:
        if any((first, page, result, calibration, plan, explorer, timed, raw, show)):
            raise UsageError("Netron shows one model as it is: leave out --netron for all else.")
        _netron(model)
        return
    temporary = page is None and explorer is None
    with _temporary_page(last) if temporary else nullcontext(page) as html, progress() as tell:
        files = view_model(
            last,
            html,
            float_model=first,
            result=result,
            calibration=calibration,
            plan=plan,
            time=timed,
            raw=raw,
            model_explorer=explorer,
            progress=tell,
        )
    _print_files(files)
    if files.html is not None and (show or (temporary and _has_screen())):
        typer.launch(str(files.html))


@contextmanager
def _temporary_page(model: Path) -> Iterator[Path]:
    """Yield where to write a page that nobody named; its folder stays, unless something fails."""
    folder = Path(tempfile.mkdtemp(prefix="quantkit-view-"))
    try:
        yield folder / f"{model.stem}.html"
    except BaseException:
        shutil.rmtree(folder)
        raise


def _print_files(files: "ViewFiles") -> None:
    print_notes(files.notes)
    for path in (files.html, *files.explorer):
        if path is not None:
            line(f"wrote {path}")
    if files.explorer:
        graphs = [path for path in files.explorer if path.name.startswith("graph")]
        data = [path for path in files.explorer if path not in graphs]
        named = ",".join(str(path) for path in data)
        line(
            f"open it: model-explorer {shlex.join(map(str, graphs))} --node_data_paths={shlex.quote(named)}"
        )


def _has_screen() -> bool:
    """Return whether somebody sits in front of it: a terminal, and on Linux a display."""
    displayed = "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ
    return output().is_terminal and (displayed or not sys.platform.startswith("linux"))


def _netron(model: Path) -> None:
    """Serve a model to Netron, which others make, on the loopback interface alone, until somebody presses Ctrl-C."""
    try:
        netron = import_module("netron")
    except ImportError as e:
        raise UsageError(
            f"Netron is not installed: {install_command('view')}, or leave out --netron: quantkit's own page needs nothing."
        ) from e
    from quantkit.api.files import model_files

    model_files(model)  # refuses what is no model
    with socket.socket() as free:
        free.bind((_HOST, 0))
        address: tuple[str, int] = free.getsockname()
    netron.start(str(model), address=address, browse=True)
    try:
        line(f"{model} in Netron at http://{address[0]}:{address[1]} (Ctrl-C ends it)")
        line(
            "Netron's page contacts third parties; quantkit's own page, without --netron, contacts nobody",
            "yellow",
        )
        with suppress(KeyboardInterrupt):
            netron.wait()
    finally:
        netron.stop(address)
