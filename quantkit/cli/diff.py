"""`quantkit diff A B`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quantkit.cli.console import JsonOption, line, output, progress, write_json
from quantkit.cli.data_options import DataFlags, data_settings
from quantkit.cli.flags import expanded
from quantkit.errors import UsageError

if TYPE_CHECKING:
    from quantkit.settings import DataSettings

__all__ = ["diff"]

_ROWS = 10  # unless all are asked for


@expanded
def diff(
    *,
    a: Annotated[
        Path,
        typer.Argument(help="A model, a result.json (or its folder), or a plan.", metavar="A"),
    ],
    b: Annotated[Path, typer.Argument(help="Another of the same kind.", metavar="B")],
    samples: DataFlags,
    everything: Annotated[
        bool, typer.Option("--all", help="Everything; without, a summary.")
    ] = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 if they differ.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what differs between two models (nodes, types, scales, sizes, errors), two results or two plans.

    Models are run on --data (8 samples by default), or on one made-up input.
    """
    from quantkit.diff import kind_of, located

    paths = located(a), located(b)
    kinds = [kind_of(path) for path in paths]
    if kinds[0] != kinds[1]:
        raise UsageError(
            f"'{a}' is a {kinds[0]} and '{b}' a {kinds[1]}: give two models, two results or two plans."
        )
    if kinds[0] != "model" and samples.used():
        raise UsageError(
            f"{samples.used()} is for two models, which are run; these are {kinds[0]}s."
        )
    most = None if everything else _ROWS
    match kinds[0]:
        case "model":
            same = _models(*paths, samples, everything=everything, as_json=as_json)
        case "result":
            same = _results(*paths, most, as_json=as_json)
        case _:
            same = _plans(*paths, most, as_json=as_json)
    if exit_code and not same:
        raise typer.Exit(1)


def _models(a: Path, b: Path, flags: DataFlags, *, everything: bool, as_json: bool) -> bool:
    from quantkit import diff_models
    from quantkit.cli.calibration_view import watching
    from quantkit.cli.diff_view import print_models

    settings = _settings(flags)
    data = None if settings is None else settings.path
    with watching(quiet=as_json) as monitor, progress() as show:
        found = diff_models(
            a,
            b,
            data,
            settings=settings,
            skip_bad=flags.skip_bad,
            progress=show,
            described=monitor.data_found,
        )
    if as_json:
        write_json(found.to_json())
    else:
        print_models(found, everything=everything)
    return found.same


def _settings(flags: DataFlags) -> "DataSettings | None":
    """Return what --data says, over quantkit.toml; None without it: then nothing of the data is read."""
    from quantkit.settings import load_recipe

    if "path" in flags.given:
        return data_settings(load_recipe().data, flags)
    if flags.used():
        raise UsageError(f"{flags.used()} needs --data.")
    return None


def _results(a: Path, b: Path, most: int | None, *, as_json: bool) -> bool:
    from quantkit import diff_results
    from quantkit.cli.diff_results_view import print_results

    found = diff_results(a, b)
    if as_json:
        write_json(found.to_json())
    else:
        print_results(found, most)
    return found.same


def _plans(a: Path, b: Path, most: int | None, *, as_json: bool) -> bool:
    from quantkit.cli.diff_view import print_rest
    from quantkit.plan import diff_plans, read_plan

    lines = diff_plans(read_plan(a), read_plan(b))
    if as_json:
        plain: dict[str, Any] = {"kind": "plans", "same": not lines, "differences": lines}
        write_json(plain)
        return not lines
    if not lines:
        output().print("[green]the same[/]")
    for text in lines[:most]:
        line(text)
    print_rest(len(lines), most)
    return not lines
