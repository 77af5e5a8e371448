"""`quantkit export SOURCE -o model.onnx`, and on to int8 and the report."""

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quantkit.cli.console import line, marked, output, print_notes, write_json
from quantkit.cli.data_options import DataFlags, MethodFlags, data_settings
from quantkit.cli.evaluate import Asked, measured
from quantkit.cli.flags import Flags, expanded
from quantkit.cli.options import JsonOption, one_output
from quantkit.cli.progress import progress, watching
from quantkit.cli.quantize_static import StaticFlags, job_of
from quantkit.cli.result_view import print_result, print_written
from quantkit.cli.tables import Column, fitted_table
from quantkit.errors import QuantkitError, UsageError
from quantkit.numbers import human
from quantkit.settings import DynamicSettings, ExportSettings, Recipe, load_recipe
from quantkit.settings.declare import check_choice

if TYPE_CHECKING:
    from rich.table import Table

    from quantkit.deploy.export.prove import Proof
    from quantkit.pipeline.export import ExportResult
    from quantkit.pipeline.result import QuantizeResult

__all__ = ["export"]

_PANEL = "Next steps"


class _ExportFlags(Flags):
    """What is said of the model."""

    kinds = (ExportSettings,)


@dataclass(frozen=True, kw_only=True)
class _OnFlags(Flags):
    """What is done with the file."""

    quantize: Annotated[
        str | None,
        typer.Option(
            metavar="MODE",
            rich_help_panel=_PANEL,
            help="Then quantize it to <model>.int8.onnx: static (needs --data) or dynamic.",
        ),
    ] = None
    evaluate: Annotated[
        bool,
        typer.Option(
            "--evaluate",
            rich_help_panel=_PANEL,
            help="Then compare both on --data and write the report.",
        ),
    ] = False
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            rich_help_panel=_PANEL,
            help="Where the report goes. Default: evaluation.",
        ),
    ] = None


@expanded
def export(  # noqa: PLR0913 - one parameter a flag
    *,
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            help="package.module:factory or file.py:factory (its code is run), a .pt2, TorchScript, .keras, .tflite or SavedModel file.",
            metavar="SOURCE",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Argument(help="Where to write. Default: <name>.onnx here.", metavar="OUT"),
    ] = None,
    target: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE", help="The same as OUT.")
    ] = None,
    flags: _ExportFlags,
    on: _OnFlags,
    samples: DataFlags,
    as_json: JsonOption = False,
) -> None:
    """Export a framework's model to ONNX, proved equal to it at several sizes before anything is written."""
    from quantkit.api.export import carried_of, class_names
    from quantkit.pipeline.export import ExportJob
    from quantkit.pipeline.export import export as work

    recipe = load_recipe()
    settings = flags.over(ExportSettings())
    data = data_settings(recipe.data, samples)
    path = one_output(out, target) or Path(f"{_stem(source)}.onnx")
    following = _following(on, path, has_data=data.path is not None)
    names = () if settings.classes is None else class_names(settings.classes)
    job = ExportJob(source=source, settings=settings, carried=carried_of(data, names))
    if ":" in source:
        print_notes([f"importing {source.rpartition(':')[0]} runs its code"])
    with progress() as show:
        result = work(job, path, show)
    if not as_json:
        _print(result, path)
    found: dict[str, Any] = {"output": str(path), **result.to_json()}
    if following is not None:
        with _kept(path, following.target):
            made = _quantized(path, following, recipe, samples, quiet=as_json)
        found["quantized"] = {"output": str(following.target), **made.to_json()}
        if not as_json:
            print_result(made, path, following.target)
        if on.evaluate:
            command = shlex.join(["quantkit", *(context.obj or [])])
            models = [str(path), str(following.target)]
            asked = Asked(models=models, samples=samples, command=command, folder=following.report)
            measured(asked, recipe, as_json=as_json, quiet=as_json)
            found["report"] = str(following.report)
    if as_json:
        write_json(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Following:
    """What comes after the export: how it is quantized, and where things go."""

    mode: str
    target: Path
    report: Path


def _stem(source: str) -> str:
    """Return what a file is called after its source: the factory, or the file."""
    place, _, name = source.rpartition(":")
    return name if place else Path(source).stem


def _following(on: _OnFlags, path: Path, *, has_data: bool) -> _Following | None:
    """Return what comes after the export, checked before anything runs; None if nothing does."""
    from quantkit.files import check_folder, check_outputs
    from quantkit.pipeline.evaluation_folder import WRITTEN

    if on.quantize is None:
        if on.evaluate or on.report is not None:
            raise UsageError(
                "--evaluate compares int8 with float: add --quantize static or dynamic."
            )
        return None
    check_choice("--quantize", on.quantize, ("static", "dynamic"))
    if not has_data and (on.quantize == "static" or on.evaluate):
        raise UsageError("Which data? Add --data DIR, or path under [data] in quantkit.toml.")
    found = _Following(
        mode=on.quantize,
        target=path.with_name(f"{path.stem}.int8.onnx"),
        report=on.report or Path("evaluation"),
    )
    check_outputs([path, found.target], [])
    if on.evaluate:
        check_folder(found.report, WRITTEN, [])
    return found


def _quantized(
    path: Path, following: _Following, recipe: Recipe, samples: DataFlags, *, quiet: bool
) -> "QuantizeResult":
    from quantkit.pipeline.forms.dynamic import dynamic
    from quantkit.pipeline.pipeline import static

    if following.mode == "dynamic":
        with progress() as show:
            return dynamic(path, following.target, DynamicSettings(), progress=show)
    job = job_of(path, recipe, samples, MethodFlags(), StaticFlags())
    with watching(quiet=quiet) as monitor:
        return static(job, following.target, monitor=monitor)


@contextmanager
def _kept(path: Path, target: Path) -> Iterator[None]:
    """Say of what fails after the export that the float file is there, and what is not."""
    try:
        yield
    except QuantkitError as e:
        said = re.sub(
            "nothing was written", f"'{target}' was not written", str(e), flags=re.IGNORECASE
        )
        raise type(e)(
            f"'{path}' is exported, proved and kept, and was not quantized: {said}"
        ) from e


def _print(result: "ExportResult", target: Path) -> None:
    line(f"exported {result.source} by {result.exporter}")
    for kind, ports in (("input", result.inputs), ("output", result.outputs)):
        for port in ports:
            line(f"  {kind:6} {port}")
    output().print(_table(result.proof))
    nodes = f"{result.report.nodes_before} -> {result.report.nodes_after} nodes"
    marked(
        f"[bold]{human(result.nbytes)}[/], opset {result.opset}, {nodes} in {result.seconds:.2f} s"
    )
    runs = len(result.proof.trials)
    marked(
        f"[green]proved[/]: valid, loads in onnxruntime, equal to {result.source.framework} in {runs} runs"
    )
    print_written(target)
    print_notes(result.notes)


def _table(proof: "Proof") -> "Table":
    """Show the largest difference of each output at each size, with what is allowed."""
    columns = (
        Column(title="sizes"),
        Column(title="output", left=True),
        Column(title="difference"),
        Column(title="allowed"),
        Column(title="own float32 error", drop=1),
    )
    rows = [
        (
            named,
            one.output,
            f"{one.largest:.2g}",
            f"{one.allowed:.2g}",
            "" if one.own is None else f"{one.own:.2g}",
        )
        for named, one in proof.by_size()
    ]
    shown = columns if any(row[4] for row in rows) else columns[:4]
    return fitted_table(
        "Largest difference from the framework", shown, [r[: len(shown)] for r in rows]
    )
