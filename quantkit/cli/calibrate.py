"""`quantkit calibrate [MODEL] --data dir/`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quantkit.cli.calibration_view import present
from quantkit.cli.data_options import (
    DataFlags,
    MethodFlags,
    calibrator,
    chosen_calibrator,
    data_settings,
    read_by,
)
from quantkit.cli.flags import Flags, expanded
from quantkit.cli.options import JsonOption, ModelArgument, one_output
from quantkit.cli.progress import watching
from quantkit.errors import InterruptedRunError, UsageError
from quantkit.settings import CalibrateSettings, load_recipe

if TYPE_CHECKING:
    from quantkit.calibration import Calibration

__all__ = ["calibrate"]


class _RunFlags(Flags):
    """Where the result goes, and who works on it."""

    kinds = (CalibrateSettings,)
    left_out = frozenset({"method", "percentile"})


@expanded
def calibrate(  # noqa: PLR0913 - one parameter a flag
    *,
    model: ModelArgument = None,
    out: Annotated[
        Path | None,
        typer.Argument(help="Where to write. Default: <model>.calibration here.", metavar="OUT"),
    ] = None,
    samples: DataFlags,
    how: MethodFlags,
    run: _RunFlags,
    minmax_only: Annotated[
        bool,
        typer.Option(
            "--minmax-only", help="Only minima and maxima, inside the graph: fastest, least memory."
        ),
    ] = False,
    every_value: Annotated[
        bool,
        typer.Option(
            "--every-value",
            help="Count every value of each tensor, not about a million evenly spaced ones.",
        ),
    ] = False,
    scheduler: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Workers",
            metavar="ADDRESS",
            help="A dask scheduler: tcp://host:8786.",
        ),
    ] = None,
    threads: Annotated[
        int,
        typer.Option(
            rich_help_panel="Workers",
            metavar="N",
            help="Threads per operator; for very large models.",
            min=1,
        ),
    ] = 1,
    show: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Print a calibration and exit.")
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write onnxruntime's JSON calibration table."),
    ] = None,
    all_tensors: Annotated[bool, typer.Option("--all", help="List every tensor.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Learn activation ranges from a directory of real data.

    Interrupted? Rerun the same command to resume. Formats: docs/calibrate.md.
    """
    from quantkit.calibration.container import is_container
    from quantkit.files import check_outputs, check_unasked

    if show is not None:
        check_outputs([export], [show])
        found = _shown(show, how)
        present(found, show, export=export, all_tensors=all_tensors, as_json=as_json)
        return
    from quantkit.pipeline.calibrate import CalibrateOptions, calibrate_model

    recipe = load_recipe()
    source = model or recipe.model
    if source is None:
        raise UsageError(
            "Which model? quantkit calibrate MODEL --data DIR, or model in quantkit.toml."
        )
    settings = data_settings(recipe.calibrated, samples)
    if settings.path is None:
        raise UsageError("Which data? Add --data DIR, or path under [data] in quantkit.toml.")
    wanted = run.over(recipe.calibrate)
    workers = wanted.workers
    named = one_output(out, run.given.get("output"))
    target = named or wanted.output or Path(f"{source.stem}.calibration")
    chosen = chosen_calibrator(how, recipe.calibrate, "minmax" if minmax_only else None)
    if workers is not None and workers > 1 and chosen.ordered:
        raise UsageError(
            f"--method {chosen.name} depends on the order of the samples: it runs on one worker, without --workers."
        )
    if minmax_only and chosen.name != "minmax":
        raise UsageError(f"--minmax-only takes what --method minmax needs, not {chosen.name}.")
    options = CalibrateOptions(
        method=chosen,
        minmax_only=minmax_only,
        every_value=every_value,
        skip_bad=samples.skip_bad,
        workers=workers,
        scheduler=scheduler,
        threads=threads,
    )
    if "output" not in run.given:
        check_unasked([target], recipe.folder, is_container)
    check_outputs([target, export], [*read_by(settings, source), recipe.file])
    try:
        with watching(quiet=as_json) as monitor:
            found = calibrate_model(source, settings.path, target, options, settings, monitor)
    except KeyboardInterrupt as e:
        raise InterruptedRunError(str(e) or _kept(target)) from None
    said = found.header["data"]["warnings"]
    present(found, target, export=export, all_tensors=all_tensors, as_json=as_json, said=said)


def _kept(target: Path) -> str:
    """Say what a run leaves that was broken off wherever it was; nothing if it leaves nothing."""
    partial = target.with_name(f"{target.name}.partial")
    if not partial.exists():
        return ""
    return f"interrupted; '{partial}' keeps what was seen, and rerunning the same command resumes there"


def _shown(path: Path, how: MethodFlags) -> "Calibration":
    from quantkit.calibration import Calibration

    found = Calibration.load(path)
    return found.by(calibrator(*how.chosen)) if how.given else found
