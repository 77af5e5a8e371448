"""`quantkit calibrate [MODEL] --data dir/`, and how a calibration looks in a terminal: ranges and audit."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quantkit.cli.console import (
    Column,
    escape,
    fitted_table,
    line,
    marked,
    output,
    print_notes,
    write_json,
)
from quantkit.cli.flags import Flags, expanded
from quantkit.cli.options import DataFlags, JsonOption, ModelArgument, data_in, model_of, one_output
from quantkit.cli.progress import watching
from quantkit.cli.tasks import MethodFlags
from quantkit.errors import InterruptedRunError, UsageError
from quantkit.files import check_outputs, check_unasked, replace_text
from quantkit.settings import CalibrateSettings, Recipe, load_recipe
from quantkit.text import human

if TYPE_CHECKING:
    from rich.table import Table

    from quantkit.api.results import Calibration, CalibratorOf


_ROWS = 12  # tensors in the table, unless all are asked for
_METHODS = {"percentile": "perc.", "entropy": "entr.", "mse": "mse"}  # min-max clips nothing


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
    from quantkit.api.calibrate import CalibrateOptions, calibrate_model
    from quantkit.api.files import files_read, is_container

    if show is not None:
        check_outputs([export], [show])
        _show(_shown(show, how), show, export, all_tensors=all_tensors, as_json=as_json)
        return
    recipe = load_recipe()
    source = model_of(model, recipe, "quantkit calibrate MODEL --data DIR")
    settings = samples.over_recipe(recipe.calibrated)
    data, wanted = data_in(settings), run.over(recipe.calibrate)
    named = one_output(out, run.given.get("output"))
    target = named or wanted.output or Path(f"{source.stem}.calibration")
    options = CalibrateOptions(
        method=_method(how, recipe, wanted.workers, minmax_only=minmax_only),
        minmax_only=minmax_only,
        every_value=every_value,
        skip_bad=samples.skip_bad,
        workers=wanted.workers,
        scheduler=scheduler,
        threads=threads,
    )
    if "output" not in run.given:
        check_unasked([target], recipe.folder, is_container)
    check_outputs([target, export], [*files_read(settings, source), recipe.file])
    try:
        with watching(quiet=as_json) as monitor:
            found = calibrate_model(source, data, target, options, settings, monitor)
    except KeyboardInterrupt as e:
        raise InterruptedRunError(str(e) or _kept(target)) from None
    said = found.header["data"]["warnings"]
    _show(found, target, export, all_tensors=all_tensors, as_json=as_json, said=said)


def _method(
    how: MethodFlags, recipe: Recipe, workers: int | None, *, minmax_only: bool
) -> "CalibratorOf":
    """Return how ranges are estimated; refuse what does not go with the other flags."""
    from quantkit.api.arguments import range_method

    found = range_method(*how.chosen(recipe.calibrate, "minmax" if minmax_only else None))
    if workers is not None and workers > 1 and found.ordered:
        raise UsageError(
            f"--method {found.name} depends on the order of the samples: it runs on one worker, without --workers."
        )
    if minmax_only and found.name != "minmax":
        raise UsageError(f"--minmax-only takes what --method minmax needs, not {found.name}.")
    return found


def _kept(target: Path) -> str:
    """Say what a run leaves that was broken off wherever it was; nothing if it leaves nothing."""
    partial = target.with_name(f"{target.name}.partial")
    if not partial.exists():
        return ""
    return f"interrupted; '{partial}' keeps what was seen, and rerunning the same command resumes there"


def _shown(path: Path, how: MethodFlags) -> "Calibration":
    """Return a calibration that was made before, by the method of the flags if they name one."""
    from quantkit import Calibration
    from quantkit.api.arguments import range_method

    found = Calibration.load(path)
    return found.by(range_method(*how.chosen(CalibrateSettings()))) if how.given else found


def _show(
    found: "Calibration",
    path: Path,
    export: Path | None,
    *,
    all_tensors: bool,
    as_json: bool,
    said: Collection[str] = (),
) -> None:
    """Export a calibration if that is asked for, and print it; `said` are warnings that the user has read."""
    from quantkit.api.files import onnxruntime_table

    if export is not None:
        replace_text(export, onnxruntime_table(found))
    present(found, path, export=export, all_tensors=all_tensors, as_json=as_json, said=said)


def present(
    found: "Calibration",
    path: Path,
    *,
    export: Path | None,
    all_tensors: bool,
    as_json: bool,
    said: Collection[str] = (),
) -> None:
    """Print a calibration, and where it was exported to; `said` are warnings that the user has read."""
    if as_json:
        ranges = {t: list(ends) for t, ends in found.ranges().items()}
        method = {"name": found.method.name, **dict(found.method.settings)}
        write_json({"file": str(path), "method": method, "ranges": ranges, **found.header})
        return
    audit = found.header["audit"]
    output().print(_table(found, all_tensors=all_tensors))
    for fact in _facts(found):
        line(fact)
    style = "green" if audit["enough"] is not None else "yellow"
    marked(f"[{style}]audit[/]    {escape(audit['verdict'])}")
    for name, file in (("file", path), ("exported", export)):
        if file is not None:
            line(f"{name:8} {file} ({human(file.stat().st_size)})")
    print_notes(w for w in found.header["warnings"] if w not in said)


def _facts(found: "Calibration") -> Iterator[str]:
    audit = found.header["audit"]
    names = found.header["names"]
    seen = sum(t["seen"] for t in audit["tensors"])
    counted = sum(t["counted"] for t in audit["tensors"])
    if seen:
        share = "" if counted == seen else f", {counted / seen:.0%} of them counted in histograms"
        yield f"observed {audit['samples']} samples, {seen:.3g} values{share}; min and max of all"
    if audit["outliers"]:
        outliers = ((names.get(str(s), s), n) for s, n in audit["outliers"])
        listed = ", ".join(f"{name} ({n} tensor{'s' * (n != 1)})" for name, n in outliers)
        yield f"samples that set the most extremes: {listed}"
    if audit["duplicates"]:
        first = [names.get(str(s), s) for s in audit["duplicates"][0]]
        yield f"copies   {len(audit['duplicates'])} groups of equal samples, the first: {first}"


def _table(found: "Calibration", *, all_tensors: bool) -> "Table":
    audit = found.header["audit"]
    tensors = audit["tensors"]
    rows = tensors if all_tensors else sorted(tensors, key=lambda t: -t["split_half"])[:_ROWS]
    title = f"Ranges of {len(found.tensors)} tensors by {found.method.name}"
    if found.method.name != audit["method"]:
        title += f" (halves by {audit['method']})"
    if len(rows) < len(tensors):
        title += f"; the {len(rows)} least stable (--all for all)"
    ranges = found.ranges()
    ends = [Column(title="tensor"), Column(title="min .. max", drop=1), Column(title="range")]
    if not tensors:  # only spans were taken
        spans = list(ranges.items())[: None if all_tensors else _ROWS]
        return fitted_table(title, ends, [(t, _ends(*e), _ends(*e)) for t, e in spans])
    methods = [name for name in _METHODS if name in tensors[0]["clipped"]]
    clips = [Column(title=f"{_METHODS[name]}\nclips", drop=2) for name in methods]
    cells = [
        (
            row["tensor"],
            _ends(row["low"], row["high"]),
            _ends(*ranges[row["tensor"]]),
            *(_percent(row["clipped"][name]) for name in methods),
            f"{row['split_half']:.1%}",
        )
        for row in rows
    ]
    return fitted_table(title, [*ends, *clips, Column(title="halves\ndiffer")], cells)


def _ends(low: float, high: float) -> str:
    return f"{low:.3g} .. {high:.3g}"


def _percent(share: float) -> str:
    return "-" if not share else f"{share:.2%}"
