"""`quantkit evaluate FLOAT CANDIDATE... --data dir/ -o DIR`."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quantkit.cli.calibration_view import watching
from quantkit.cli.console import JsonOption
from quantkit.cli.data_options import DataFlags, data_settings, read_by
from quantkit.cli.flags import expanded
from quantkit.cli.gate_options import GateFlags, gate_settings, part
from quantkit.errors import UsageError

if TYPE_CHECKING:
    from quantkit.settings import Recipe
    from quantkit.workflows.evaluate import EvaluateOptions

__all__ = ["evaluate"]

_PANEL = "What is measured"


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
    target: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Where to write. Default: evaluation."),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            rich_help_panel=_PANEL,
            help="top-1, top-5, f1, mse, spearman, map, map-50, iou, wer, cer, perplexity, a plug-in, or module:function. Default: by the labels.",
        ),
    ] = None,
    pairs: Annotated[
        bool | None,
        typer.Option(
            "--pairs/--no-pairs",
            rich_help_panel=_PANEL,
            help="Two --column are two texts to embed; the label is their similarity.",
        ),
    ] = None,
    answer: Annotated[
        str | None,
        typer.Option(
            metavar="OUTPUT",
            rich_help_panel=_PANEL,
            help="The output that is judged, of several. Default: the first that fits.",
        ),
    ] = None,
    hold_out: Annotated[
        bool | None,
        typer.Option(
            "--hold-out/--no-hold-out",
            rich_help_panel=_PANEL,
            help=r"Leave out samples that a candidate was calibrated with (default with a limit).",
        ),
    ] = None,
    confidence: Annotated[
        float | None,
        typer.Option(
            parser=part,
            metavar="C",
            rich_help_panel=_PANEL,
            help="Confidence of all intervals. Default: 95%.",
        ),
    ] = None,
    time_batch: Annotated[
        list[int] | None,
        typer.Option(
            metavar="N",
            min=1,
            rich_help_panel=_PANEL,
            help="Batch size to time. May be repeated. Default: 1.",
        ),
    ] = None,
    threads: Annotated[
        list[int] | None,
        typer.Option(
            metavar="N",
            min=0,
            rich_help_panel=_PANEL,
            help="Threads to time with. May be repeated.",
        ),
    ] = None,
    skip: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PART",
            rich_help_panel=_PANEL,
            help="Leave out latency, memory, layers, runtime or fidelity. May be repeated.",
        ),
    ] = None,
    title: Annotated[str, typer.Option(metavar="TEXT", help="Title of the report.")] = "",
    rules: GateFlags,
    as_json: JsonOption = False,
) -> None:
    """Measure candidates against the float model on real data, and write the report that a release review reads.

    Writes result.json, report.html and report.md. Exits with 0 whatever the verdict is: `quantkit gate` turns it into
    an exit code.
    """
    from dataclasses import replace

    from quantkit.cli.evaluation_view import present
    from quantkit.files import check_folder
    from quantkit.settings import load_recipe
    from quantkit.workflows.evaluate import WRITTEN, evaluate, named, write_evaluation

    recipe = load_recipe()
    settings = data_settings(recipe.evaluated, samples)
    if settings.path is None:
        raise UsageError("Which data? Add --data DIR, or path under [data] in quantkit.toml.")
    if len(models) == 1 and recipe.model is not None:
        models = [str(recipe.model), *models]
    given: dict[str, Any] = {
        "metric": metric,
        "pairs": pairs,
        "answer": answer,
        "confidence": confidence,
        "batches": tuple(time_batch) if time_batch else None,
        "threads": tuple(threads) if threads else None,
        "output": target,
    }
    _refuse_code(recipe, metric)
    wanted = replace(recipe.evaluate, **{k: v for k, v in given.items() if v is not None})
    recipe = replace(recipe, evaluate=wanted, gate=gate_settings(recipe.gate, rules))
    folder = wanted.output or Path("evaluation")
    contenders = named(models)
    read = read_by(settings, *(model.path for model in contenders))
    check_folder(folder, WRITTEN, [*read, recipe.file])
    options = _options(recipe, skip or [], title, shlex.join(["quantkit", *(context.obj or [])]))
    # A limit would draw the very samples that calibration with a limit drew.
    split = hold_out is None and settings.limit is not None
    how = replace(
        options.accuracy,
        skip_bad=samples.skip_bad,
        hold_out="if possible" if split else bool(hold_out),
    )
    options = replace(options, accuracy=how)
    with watching(quiet=as_json, doing="Running") as monitor:
        result = evaluate(contenders, settings.path, settings, options, monitor)
    files = write_evaluation(result, folder)
    present(result, files, as_json=as_json)


def _refuse_code(recipe: "Recipe", metric: str | None) -> None:
    """Refuse to import what only quantkit.toml names: a folder from elsewhere must not run code by being looked at.

    What a plug-in is called may stand there: it runs only where somebody has installed it.
    """
    named = recipe.evaluate.metric
    if metric is None and named is not None and ":" in named:
        raise UsageError(
            f"quantkit.toml names code to import, metric = '{named}', which is only done when you say so: "
            f"add --metric {shlex.quote(named)}, or remove the line."
        )


def _options(recipe: "Recipe", skip: list[str], title: str, command: str) -> "EvaluateOptions":
    from quantkit.evaluate.outputs import AccuracyOptions
    from quantkit.gate import rules_of
    from quantkit.workflows.evaluate import EvaluateOptions

    wanted = recipe.evaluate
    return EvaluateOptions(
        accuracy=AccuracyOptions(
            metric=wanted.metric,
            pairs=wanted.pairs,
            answer=wanted.answer,
            confidence=wanted.confidence,
        ),
        batches=wanted.batches,
        threads=wanted.threads,
        skip=frozenset(skip),
        rules=rules_of(recipe.gate),
        allow=recipe.gate.allow,
        title=title,
        command=command,
        recipe=recipe.text,
    )
