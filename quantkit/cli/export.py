"""`quantkit export SOURCE -o model.onnx`, and on to int8 and the report."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quantkit.cli.console import print_notes, write_json
from quantkit.cli.evaluate import present as present_evaluation
from quantkit.cli.evaluate import refuse_code
from quantkit.cli.flags import Flags, expanded
from quantkit.cli.options import DataFlags, JsonOption, data_in, one_output
from quantkit.cli.progress import progress, watching
from quantkit.cli.result_view import present, present_exported
from quantkit.cli.tasks import MethodFlags, StaticFlags, run_task, static_task
from quantkit.errors import NothingToQuantizeError, QuantkitError, UsageError
from quantkit.files import check_folder, check_outputs
from quantkit.settings import DataSettings, DynamicSettings, ExportSettings, Recipe, load_recipe
from quantkit.settings.declare import check_choice

if TYPE_CHECKING:
    from quantkit.api.quantize import Task


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

    @property
    def folder(self) -> Path:
        """Where the report goes."""
        return self.report or Path("evaluation")

    def check(self, path: Path, target: Path, data: DataSettings) -> None:
        """Refuse, before anything runs, what could not be done with the file at `path`."""
        from quantkit.api.evaluate import WRITTEN

        if self.quantize is None:
            if self.evaluate or self.report is not None:
                raise UsageError(
                    "--evaluate compares int8 with float: add --quantize static or dynamic."
                )
            return
        check_choice("--quantize", self.quantize, ("static", "dynamic"))
        if self.quantize == "static" or self.evaluate:
            data_in(data)
        check_outputs([path, target], [])
        if self.evaluate:
            check_folder(self.folder, WRITTEN, [])


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
    from quantkit.api.export import export_as

    recipe = load_recipe()
    data = samples.over_recipe(recipe.data)
    path = one_output(out, target) or Path(f"{_stem(source)}.onnx")
    int8 = path.with_name(f"{path.stem}.int8.onnx")
    on.check(path, int8, data)
    if ":" in source:
        print_notes([f"importing {source.rpartition(':')[0]} runs its code"])
    with progress() as show:
        result = export_as(source, path, flags.over(ExportSettings()), data, show)
    if not as_json:
        present_exported(result, path)
    found: dict[str, Any] = {"output": str(path), **result.to_json()}
    if on.quantize is not None:
        with _kept(path, int8):
            task = _task(on.quantize, path, recipe, samples)
            made = run_task(task, int8, quiet=as_json)
        found["quantized"] = {"output": str(int8), **made.to_json()}
        if not as_json:
            present(made, task, int8, as_json=False)
        if on.evaluate:
            command = shlex.join(["quantkit", *(context.obj or [])])
            _evaluate([path, int8], on.folder, recipe, samples, command, quiet=as_json)
            found["report"] = str(on.folder)
    if as_json:
        write_json(found)


def _stem(source: str) -> str:
    """Return what a file is called after its source: the factory, or the file."""
    place, _, name = source.rpartition(":")
    return name if place else Path(source).stem


def _task(mode: str, path: Path, recipe: Recipe, samples: DataFlags) -> "Task":
    from quantkit.api.quantize import Task

    if mode == "dynamic":
        return Task(source=path, how=DynamicSettings())
    return static_task(path, recipe, samples, MethodFlags(), StaticFlags())


def _evaluate(
    models: Sequence[Path],
    folder: Path,
    recipe: Recipe,
    samples: DataFlags,
    command: str,
    *,
    quiet: bool,
) -> None:
    """Compare two models, and write the report."""
    from quantkit.api.evaluate import evaluate_recipe, named

    refuse_code(recipe, None)
    recipe = replace(recipe, evaluated=samples.over_recipe(recipe.evaluated))
    with watching(quiet=quiet, doing="Running", calibrates=False) as monitor:
        skip = samples.skip_bad
        result, files = evaluate_recipe(
            named(models),
            recipe,
            folder,
            typed=True,
            skip_bad=skip,
            command=command,
            monitor=monitor,
        )
    if not quiet:
        present_evaluation(result, files)


@contextmanager
def _kept(path: Path, target: Path) -> Iterator[None]:
    """Say of what fails after the export that the float file is there, and what is not."""
    said = f"'{path}' is exported, proved and kept, and was not quantized: "
    try:
        yield
    except NothingToQuantizeError as e:
        outcome = f"'{target}' was not written"
        raise NothingToQuantizeError(said + e.why, e.advice, outcome) from e
    except QuantkitError as e:
        raise type(e)(f"{said}{e}") from e
