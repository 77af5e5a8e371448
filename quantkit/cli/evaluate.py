"""`quantkit evaluate FLOAT CANDIDATE... --data dir/ -o DIR`, `quantkit demo`, and how an evaluation looks in a terminal."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    shortened,
    write_json_text,
)
from quantkit.cli.flags import Flags, expanded
from quantkit.cli.gate import COLOURS, GateFlags, objection_lines
from quantkit.cli.options import DataFlags, JsonOption, data_in
from quantkit.cli.progress import watching
from quantkit.errors import UsageError
from quantkit.settings import EvaluateSettings, Recipe, load_recipe

if TYPE_CHECKING:
    from rich.table import Table

    from quantkit.result import Evaluated, Result


_PANEL = "What is measured"

_WIDTH = 80  # characters that any terminal shows
_DECIBELS = "SQNR in dB against float: 20 dB = 10 % error, 40 dB = 1 %; higher is better"


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


def present(result: "Result", files: Sequence[Path], *, as_json: bool = False) -> None:
    """Print an evaluation, or its JSON."""
    from quantkit.result import result_text

    if as_json:
        write_json_text(result_text(result))
        return
    output().print(evaluation_table(result))
    line(_DECIBELS)
    for text in _candidate_lines(result):
        marked(text)
    print_notes((*result.notes, *_warnings(result)))
    written, page, text_file = files
    line(f"report: {page}")
    drawing = page.with_name("graph.html")
    others = (written, text_file, *((drawing,) if drawing.is_file() else ()))
    line(f"also:   {', '.join(map(str, others))}")
    rule = "" if result.verdicts else _fitting_rule(result)
    gate = f"quantkit gate {shlex.quote(str(files[0]))}{rule}"
    line(f"next:   {gate}")


def _fitting_rule(result: "Result") -> str:
    """Return a rule that can be judged with what was measured."""
    metric, first = result.float_model.metric, result.candidates[0]
    if metric is not None:
        return " --max-drop 1%"
    return " --max-flips 1%" if first.decision is not None else " --min-sqnr-db 20"


def _candidate_lines(result: "Result") -> list[str]:
    """Return what can be said of each candidate: the verdict, and which rules it does not keep."""
    verdicts = {v.candidate: v for v in result.verdicts}
    lines = []
    for model in result.candidates:
        verdict, said = verdicts.get(model.name), model.drift.sentence if model.drift else ""
        word = f"[{COLOURS[verdict.outcome]}]{verdict.outcome}[/] " if verdict else ""
        lines.append(f"{word}[bold]{escape(model.name)}[/]: {escape(said)}")
        lines += _sample_lines(model)
        if verdict is not None:
            lines += objection_lines(verdict)
            broken = (rule for rule in verdict.rules if rule.outcome != "pass")
            lines += [f"    {escape(rule.sentence)}" for rule in broken]
        lines += [f"    [cyan]advice:[/] {escape(advice)}" for advice in model.advice]
    return lines


def _sample_lines(model: "Evaluated") -> list[str]:
    """Return one line: the quantiles of the output that has the lowest 1st percentile; none for files of older versions."""
    if model.drift is None or model.worst_percentile is None:
        return []
    output, found = model.worst_percentile
    head, tail = "    SQNR per sample", f": {found}"
    if len(model.drift.outputs) > 1:
        room = _WIDTH - len(f"{head} of ''{tail}")
        head += f" of '{shortened([output.output], room)[0]}'"
    return [escape(f"{head}{tail}")]


def _warnings(result: "Result") -> list[str]:
    return [f"{model.name}: {text}" for model in result.models for text in model.remarks]


def evaluation_table(result: "Result") -> "Table":
    """Return all models side by side, float first; names are cut before a column is left out."""
    title = f"{result.title}: {result.data.samples:,} samples of {result.data.location}"
    heads, *rows = result.table()
    return fitted_table(title, [Column(title=head.replace(" ", "\n")) for head in heads], rows)
