"""`quantkit evaluate FLOAT CANDIDATE... --data dir/ -o DIR`; and `quantkit demo`, an evaluation of an embedded model."""

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from quantkit.cli.console import line
from quantkit.cli.data_flags import DataFlags, data_in
from quantkit.cli.evaluation_view import present
from quantkit.cli.flags import Flags, expanded
from quantkit.cli.gate import GateFlags
from quantkit.cli.options import JsonOption
from quantkit.cli.progress import watching
from quantkit.errors import UsageError
from quantkit.settings import EvaluateSettings, Recipe, load_recipe

_PANEL = "What is measured"


@dataclass(frozen=True, kw_only=True)
class _EvaluateFlags(Flags):
    """How candidates are measured."""

    kinds = (EvaluateSettings,)

    hold_out: Annotated[
        bool | None,
        typer.Option(
            "--hold-out/--no-hold-out",
            rich_help_panel=_PANEL,
            help="Leave out samples that a candidate was calibrated with (default with a limit).",
        ),
    ] = None
    skip: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PART",
            rich_help_panel=_PANEL,
            help="Leave out latency, memory, layers, runtime or fidelity. May be repeated.",
        ),
    ] = None


@expanded
def evaluate(  # noqa: PLR0913 - one parameter a flag
    *,
    context: typer.Context,
    models: Annotated[
        list[str],
        typer.Argument(
            help="The float32 model, the reference (or model in quantkit.toml); then models to judge: PATH, or NAME=PATH.",
            metavar="[FLOAT] CANDIDATE...",
        ),
    ],
    samples: DataFlags,
    flags: _EvaluateFlags,
    title: Annotated[str, typer.Option(metavar="TEXT", help="Title of the report.")] = "",
    rules: GateFlags,
    as_json: JsonOption = False,
) -> None:
    """Measure candidates against the float model on real data, and write the report that a release review reads.

    Writes result.json, report.html, report.md and graph.html. Exits with 0 whatever the verdict is: `quantkit gate` turns it into
    an exit code.
    """
    from quantkit.api.evaluate import evaluate_recipe, named

    recipe = load_recipe()
    refuse_code(recipe, flags.given.get("metric"))
    recipe = replace(
        recipe,
        evaluated=samples.over_recipe(recipe.evaluated),
        evaluate=flags.over(recipe.evaluate),
        gate=rules.over_recipe(recipe.gate),
    )
    data_in(recipe.evaluated)
    if len(models) == 1 and recipe.model is not None:
        models = [str(recipe.model), *models]
    with watching(quiet=as_json, doing="Running", calibrates=False) as monitor:
        result, files = evaluate_recipe(
            named(models),
            recipe,
            recipe.evaluate.output or Path("evaluation"),
            typed="output" in flags.given,
            hold_out=flags.hold_out,
            skip=flags.skip or (),
            skip_bad=samples.skip_bad,
            title=title,
            command=shlex.join(["quantkit", *(context.obj or [])]),
            monitor=monitor,
        )
    present(result, files, as_json=as_json)


@expanded
def demo(
    folder: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Where to write the models and the report."
        ),
    ] = Path("quantkit-demo"),
    as_json: JsonOption = False,
) -> None:
    """Quantize an embedded model, measure it on real labelled images, write a report with a verdict."""
    from quantkit.api.evaluate import run_demo

    with watching(quiet=True, doing="Running", calibrates=False) as monitor:
        done = run_demo(folder, monitor)
    present(done.result, done.files, as_json=as_json)
    if as_json:
        return
    line(f"models: {folder}/fashion.*.onnx")
    line(f"again:  cd {folder} && {done.result.origin.command}")
    line(
        "yours:  quantkit quantize static IN OUT --data DIR, then quantkit evaluate IN OUT --data DIR"
    )


def refuse_code(recipe: Recipe, metric: str | None) -> None:
    """Refuse to import what only quantkit.toml names: a folder from elsewhere must not run code by being looked at.

    What a plug-in is called may stand there: it runs only where somebody has installed it.
    """
    named = recipe.evaluate.metric
    if metric is None and named is not None and ":" in named:
        raise UsageError(
            f"quantkit.toml names code to import, metric = '{named}', which is only done when you say so: "
            f"add --metric {shlex.quote(named)}, or remove the line."
        )
