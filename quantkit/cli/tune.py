"""`quantkit tune MODEL --data dir/ --max-drop 0.5% -o DIR`, and `quantkit compress`, which searches further."""

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quantkit.cli.console import Column, fitted_table, line, marked, output, print_notes, write_json
from quantkit.cli.evaluate import refuse_code
from quantkit.cli.flags import Flags, expanded
from quantkit.cli.options import DataFlags, JsonOption, ModelArgument, data_in, model_of
from quantkit.cli.progress import watching
from quantkit.errors import InterruptedRunError, UsageError
from quantkit.settings import (
    CompressSettings,
    EvaluateSettings,
    StaticSettings,
    TuneSettings,
    load_recipe,
)
from quantkit.settings.declare import declared

if TYPE_CHECKING:
    from quantkit.api.results import Candidate, Tuned


class _Samples(DataFlags):
    """Which samples; their seed is that of the search."""

    left_out = frozenset({"seed"})


class _Budget(Flags):
    """What must be kept, and what may be spent."""

    kinds = (TuneSettings,)


class _Goal(Flags):
    """The same, and what counts within it."""

    kinds = (CompressSettings,)


class _Measured(Flags):
    """What is lost."""

    kinds = (EvaluateSettings,)
    left_out = frozenset(declared(EvaluateSettings)) - {"metric", "pairs", "answer"}


class _Static(Flags):
    """What holds for every candidate."""

    kinds = (StaticSettings,)
    left_out = frozenset(declared(StaticSettings)) - {"target", "exclude", "measure"}


_Extra = Annotated[Path | None, typer.Argument(hidden=True)]
_Again = Annotated[
    bool,
    typer.Option(
        "--again", rich_help_panel="Search", help="Start anew where another search stands."
    ),
]


@expanded
def tune(  # noqa: PLR0913 - one parameter a flag
    *,
    context: typer.Context,
    model: ModelArgument = None,
    extra: _Extra = None,
    samples: _Samples,
    budget: _Budget,
    measured: _Measured,
    static: _Static,
    scheduler: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Search",
            metavar="ADDRESS",
            help="A dask scheduler whose workers make candidates; time is measured here.",
        ),
    ] = None,
    again: _Again = False,
    as_json: JsonOption = False,
) -> None:
    """Find the fastest model within an accuracy budget, using separate data for selection and for the final check.

    Writes the best so far at any time, and every candidate. Interrupted? Rerun the same command to resume.
    Exits with 1 if the budget cannot be met: the best there is stands in the folder, with the reason.
    """
    _search("tune", locals())


@expanded
def compress(  # noqa: PLR0913 - one parameter a flag
    *,
    context: typer.Context,
    model: ModelArgument = None,
    extra: _Extra = None,
    samples: _Samples,
    budget: _Goal,
    measured: _Measured,
    static: _Static,
    again: _Again = False,
    as_json: JsonOption = False,
) -> None:
    """Find the smallest or fastest model within an accuracy budget, over all forms and their combinations.

    It begins as tune does, goes on with fewer bits, and with steps that make the model itself smaller. Writes the best so
    far at any time, and every candidate. Interrupted? Rerun the same command to resume.
    Exits with 1 if the budget cannot be met: the best there is stands in the folder, with the reason.
    """
    _search("compress", locals())


def _search(name: str, given: Mapping[str, Any]) -> None:
    """Search as the arguments of a command say, by their names."""
    from quantkit.api.tune import tune_recipe

    if given["extra"] is not None:
        raise UsageError(
            f"{name} writes a folder with every candidate, not '{given['extra']}': add -o DIR; the best one is DIR/model.onnx."
        )
    recipe, samples, flags = load_recipe(), given["samples"], given["budget"]
    budget: TuneSettings = flags.over(getattr(recipe, name))
    source = model_of(given["model"], recipe, f"quantkit {name} MODEL --data DIR")
    refuse_code(recipe, given["measured"].given.get("metric"))
    recipe = replace(
        recipe,
        data=samples.over_recipe(recipe.data),
        evaluate=given["measured"].over(recipe.evaluate),
        static=given["static"].over(recipe.static),
    )
    data_in(recipe.data)
    folder = budget.folder
    try:
        with watching(quiet=given["as_json"], doing="Running") as monitor:
            found = tune_recipe(
                source,
                recipe,
                folder,
                budget,
                typed="output" in flags.given,
                skip_bad=samples.skip_bad,
                scheduler=given.get("scheduler"),
                again=given["again"],
                command=shlex.join(["quantkit", *(given["context"].obj or [])]),
                monitor=monitor,
            )
    except KeyboardInterrupt as e:
        said = f"interrupted; '{folder}' keeps what was found, and rerunning the same command resumes there"
        raise InterruptedRunError(str(e) or (said if folder.exists() else "")) from None
    if given["as_json"]:
        write_json(_plain(found))
    else:
        _print(found)
    if not found.met:
        raise typer.Exit(1)


def _print(found: "Tuned") -> None:
    columns = (
        Column(title="candidate"),
        Column(title="what", left=True),
        Column(title="loses"),
        Column(title="of float's\ntime"),
        Column(title="of float's\nsize", drop=1),
        Column(title="samples", drop=2),
        Column(title="budget", left=True),
    )
    rows = [_row(one, found) for one in found.candidates]
    output().print(fitted_table(f"Losses: {found.measure}", columns, rows))
    print_notes(found.notes)
    met = "meets the budget" if found.met else "does not meet the budget"
    colour = "green" if found.outcome == "pass" else "yellow" if found.met else "red"
    marked(f"[{colour}]{found.outcome}[/]: candidate {found.chosen} {met} on held-out samples")
    line(found.sentence)
    for name in (
        "model.onnx",
        "recipe.json",
        "plan.json",
        "quantkit.toml",
        "result.json",
        "report.html",
    ):
        if (found.folder / name).exists():
            line(f"wrote {found.folder / name}")


def _row(one: "Candidate", found: "Tuned") -> tuple[str, ...]:
    chosen = " *" if one.name == found.chosen else ""
    if one.path is None:
        return (one.name, str(one.choice), "-", "-", "-", "-", "not made")
    return (
        f"{one.name}{chosen}",
        str(one.choice),
        "-" if one.drop is None else f"{100 * one.drop:.2f} %",
        "-" if one.latency is None else f"{one.latency:.2f}",
        f"{one.size:.1%}",
        str(one.samples),
        one.verdict,
    )


def _plain(found: "Tuned") -> dict[str, Any]:
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(replace(found, result=None), enc_hook=str)
    del plain["result"]
    return plain
