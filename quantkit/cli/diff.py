"""`quantkit diff A B`, and two results beside each other in a terminal."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quantkit.cli.console import line, output, write_json
from quantkit.cli.data_flags import DataFlags
from quantkit.cli.diff_view import print_models, print_rest
from quantkit.cli.flags import expanded
from quantkit.cli.options import JsonOption
from quantkit.cli.progress import progress, watching
from quantkit.cli.result_diff_view import print_results
from quantkit.errors import UsageError
from quantkit.settings import load_recipe

if TYPE_CHECKING:
    from quantkit.settings import DataSettings


_ROWS = 10  # unless all are asked for


@expanded
def diff(  # noqa: PLR0913 - one parameter a flag
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
    fail_if_worse: Annotated[
        bool,
        typer.Option(
            "--fail-if-worse",
            help="Of two results: exit with 1 if a candidate got worse beyond noise, or fails the gate now.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what differs between two models (nodes, types, scales, sizes, errors), two results or two plans.

    Models are run on --data (8 samples by default), or on one made-up input.
    """
    from quantkit.api.diff import kind_of, located

    paths = located(a), located(b)
    kind, other = map(kind_of, paths)
    if kind != other:
        raise UsageError(
            f"'{a}' is a {kind} and '{b}' a {other}: give two models, two results or two plans."
        )
    if kind != "model" and samples.used():
        raise UsageError(f"{samples.used()} is for two models, which are run; these are {kind}s.")
    if kind != "result" and fail_if_worse:
        raise UsageError(
            f"--fail-if-worse is for two results, which have figures; these are {kind}s."
        )
    most = None if everything else _ROWS
    worse = False
    match kind:
        case "model":
            same = _models(*paths, samples, everything=everything, as_json=as_json)
        case "result":
            same, worse = _results(*paths, most, as_json=as_json)
        case _:
            same = _plans(*paths, most, as_json=as_json)
    if (exit_code and not same) or (fail_if_worse and worse):
        raise typer.Exit(1)


def _models(a: Path, b: Path, flags: DataFlags, *, everything: bool, as_json: bool) -> bool:
    from quantkit import diff_models

    settings = _settings(flags)
    data = None if settings is None else settings.path
    with watching(quiet=as_json, calibrates=False) as monitor, progress() as show:
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
    if "path" in flags.given:
        return flags.over_recipe(load_recipe().data)
    if flags.used():
        raise UsageError(f"{flags.used()} needs --data.")
    return None


def _results(a: Path, b: Path, most: int | None, *, as_json: bool) -> tuple[bool, bool]:
    """Print what differs; return whether nothing does, and whether a candidate got worse."""
    from quantkit import diff_results

    found = diff_results(a, b)
    if len(found.candidates) == 1:  # float alone
        sides = (
            f"'{path}' has {', '.join(n)}" for path, n in ((a, found.only_a), (b, found.only_b))
        )
        raise UsageError(
            f"Nothing was compared: {' and '.join(sides)}. Evaluate them under the same names (NAME=PATH)."
        )
    if as_json:
        write_json(found.to_json())
    else:
        print_results(found, most)
    return found.same, found.is_worse


def _plans(a: Path, b: Path, most: int | None, *, as_json: bool) -> bool:
    from quantkit.api.files import diff_plans, read_plan

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
