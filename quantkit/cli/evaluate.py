"""`quantkit evaluate FLOAT CANDIDATE... --data dir/ -o DIR`."""

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from quantkit.cli.data_options import DataFlags, data_settings, read_by
from quantkit.cli.flags import Flags, expanded
from quantkit.cli.gate import GateFlags
from quantkit.cli.options import JsonOption
from quantkit.cli.progress import watching
from quantkit.errors import UsageError
from quantkit.settings import EvaluateSettings, Recipe, load_recipe

__all__ = ["Asked", "evaluate", "measured", "refuse_code"]

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
    recipe = load_recipe()
    command = shlex.join(["quantkit", *(context.obj or [])])
    asked = Asked(
        models=models, samples=samples, flags=flags, rules=rules, title=title, command=command
    )
    measured(asked, recipe, as_json=as_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be measured.

    Attributes:
        models: The float model and those to judge, as the command line has them.
        samples: Which data.
        flags: How candidates are measured.
        rules: What they are judged by.
        title: Of the report.
        command: How this was asked for, to do it again.
        folder: Where the report goes; None: as flags or quantkit.toml say.
    """

    models: list[str]
    samples: DataFlags
    flags: _EvaluateFlags = field(default_factory=_EvaluateFlags)
    rules: GateFlags = field(default_factory=GateFlags)
    title: str = ""
    command: str = ""
    folder: Path | None = None


def measured(asked: Asked, recipe: Recipe, *, as_json: bool, quiet: bool = False) -> None:
    """Measure candidates, write the report, and show it.

    Args:
        asked: What is to be measured.
        recipe: What quantkit.toml says.
        as_json: Print the result as JSON.
        quiet: Print nothing at all.
    """
    from quantkit.cli.evaluation_view import present
    from quantkit.evaluate.gate import rules_of
    from quantkit.evaluate.match.pair import named
    from quantkit.evaluate.outputs import AccuracyOptions
    from quantkit.files import check_folder, check_unasked
    from quantkit.pipeline.evaluate import EvaluateOptions, evaluate
    from quantkit.pipeline.evaluation_folder import write_evaluation, written

    models, samples, flags = asked.models, asked.samples, asked.flags
    settings = data_settings(recipe.evaluated, samples)
    if settings.path is None:
        raise UsageError("Which data? Add --data DIR, or path under [data] in quantkit.toml.")
    if len(models) == 1 and recipe.model is not None:
        models = [str(recipe.model), *models]
    refuse_code(recipe, flags.given.get("metric"))
    wanted = flags.over(recipe.evaluate)
    judged = asked.rules.over_recipe(recipe.gate)
    folder = asked.folder or wanted.output or Path("evaluation")
    contenders = named(models)
    read = read_by(settings, *(model.path for model in contenders))
    if asked.folder is None and "output" not in flags.given:
        check_unasked([folder / name for name in written(contenders)], recipe.folder)
    check_folder(folder, written(contenders), [*read, recipe.file])
    # A limit would draw the very samples that calibration with a limit drew.
    split = flags.hold_out is None and settings.limit is not None
    options = EvaluateOptions(
        accuracy=AccuracyOptions(
            metric=wanted.metric,
            pairs=wanted.pairs,
            answer=wanted.answer,
            confidence=wanted.confidence,
            skip_bad=samples.skip_bad,
            hold_out="if possible" if split else bool(flags.hold_out),
        ),
        batches=wanted.batches,
        threads=wanted.threads,
        skip=frozenset(flags.skip or ()),
        rules=rules_of(judged),
        allow=judged.allow,
        title=asked.title,
        command=asked.command,
        recipe=recipe.text,
    )
    with watching(quiet=as_json, doing="Running", calibrates=False) as monitor:
        result = evaluate(contenders, settings.path, settings, options, monitor)
    files = write_evaluation(result, folder, contenders)
    if not quiet:
        present(result, files, as_json=as_json)


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
