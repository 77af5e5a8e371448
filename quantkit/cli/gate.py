"""`quantkit gate RESULT`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quantkit.cli.console import JsonOption, output, write_json
from quantkit.cli.evaluation_view import COLOURS, objection_lines
from quantkit.cli.flags import expanded
from quantkit.cli.gate_options import GateFlags, gate_settings, part
from quantkit.cli.tables import Column, fitted_table
from quantkit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from quantkit.result import Evaluated, Outcome, Result, Verdict

__all__ = ["gate"]

_EXAMPLE = "[gate] with a line such as max_drop = 0.01 in quantkit.toml"


@expanded
def gate(  # noqa: PLR0913 - one parameter a flag
    *,
    path: Annotated[
        Path, typer.Argument(help="The result of 'quantkit evaluate'.", metavar="RESULT")
    ],
    candidate: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this candidate. May be repeated. Default: all."),
    ] = None,
    limits: GateFlags,
    confidence: Annotated[
        float | None,
        typer.Option(
            parser=part,
            metavar="C",
            help="Judge the worst end of each interval at this confidence. Default: 95%.",
        ),
    ] = None,
    allow_undecided: Annotated[
        bool, typer.Option("--allow-undecided", help="Too few samples to decide passes.")
    ] = False,
    drop_rule: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RULE", help="Leave out a rule, such as max_latency_ratio. May be repeated."
        ),
    ] = None,
    recipe: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=r"Where \[gate] stands. Default: quantkit.toml here."),
    ] = None,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write JUnit XML for CI.")
    ] = None,
    badge: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the verdict as one line of text.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    r"""Judge the candidates of an evaluation by the rules of a release.

    Rules are flags, over \[gate] in quantkit.toml, over those in the result.
    Exits with 0 if all candidates pass, with 1 if one fails, is undecided, or was evaluated in a way that proves nothing.
    """
    from quantkit.files import check_outputs
    from quantkit.gate import judge, overall, rules_for, rules_of
    from quantkit.recipe import RECIPE_NAME, GateSettings, load_recipe
    from quantkit.result import load_result

    shown = path / "result.json" if path.is_dir() else path
    check_outputs([junit, badge], [shown, recipe or Path(RECIPE_NAME)])
    result = _chosen(load_result(path), candidate or [], path)
    settings = load_recipe(recipe).gate
    if limits.estimate and confidence is not None:
        raise UsageError("--estimate judges without a --confidence: leave out one of the two.")
    flags = gate_settings(GateSettings(confidence=confidence), limits)
    rules = rules_for(result.rules, settings, flags, drop_rule or [])
    if not rules:
        raise UsageError(f"There is no rule to judge by: add --max-drop 0.01, or {_EXAMPLE}.")
    allowed = allow_undecided or settings.allow_undecided
    # What the evaluation was told to allow goes with the rules that it was told.
    stored = () if rules_of(settings) else result.allowed
    verdicts = judge(result, rules, {*stored, *settings.allow, *flags.allow})
    outcome = overall(verdicts, allow_undecided=allowed)
    _write(result, verdicts, junit, badge, allowed=allowed)
    if as_json:
        write_json(_plain(path, outcome, verdicts, allowed=allowed))
    else:
        _print(result, verdicts, allowed=allowed)
    if outcome != "pass":
        raise typer.Exit(1)


def _chosen(result: "Result", names: "Sequence[str]", path: Path) -> "Result":
    """Return the result with only the candidates named, if any are."""
    from dataclasses import replace

    from quantkit.recipe import closest

    known = [m.name for m in result.candidates]
    if not known:
        raise UsageError(f"'{path}' holds no candidate: evaluate one against the float model.")
    for name in names:
        if name not in known:
            raise UsageError(
                f"'{path}' holds no candidate '{name}'{closest(name, known)}: "
                f"it holds {', '.join(known)}."
            )
    wanted = tuple(m for m in result.candidates if not names or m.name in names)
    return replace(result, models=(result.float_model, *wanted))


def _write(
    result: "Result",
    verdicts: "Sequence[Verdict]",
    junit: Path | None,
    badge: Path | None,
    *,
    allowed: bool,
) -> None:
    from quantkit.files import replace_text
    from quantkit.gate import badge as badge_text
    from quantkit.gate import junit_xml

    if junit is not None:
        replace_text(junit, junit_xml(result, verdicts, allow_undecided=allowed))
    if badge is not None:
        replace_text(badge, badge_text(result, verdicts, allow_undecided=allowed) + "\n")


def _plain(
    path: Path, outcome: "Outcome", verdicts: "Sequence[Verdict]", *, allowed: bool
) -> dict[str, Any]:
    import msgspec

    return {
        "result": str(path),
        "outcome": outcome,
        "allow_undecided": allowed,
        "verdicts": msgspec.json.decode(msgspec.json.encode(verdicts)),  # no NaN, no Infinity
    }


def _print(result: "Result", verdicts: "Sequence[Verdict]", *, allowed: bool) -> None:
    from rich.markup import escape

    from quantkit.gate import badge, overall

    console = output()
    for verdict, model in zip(verdicts, result.candidates, strict=True):
        console.print(_table(verdict, model))
        for line in objection_lines(verdict):
            console.print(line, highlight=False, soft_wrap=True)
        for judged in verdict.rules:
            if judged.outcome != "pass":
                told = escape(f"{judged.rule.key}: {judged.sentence}.")
                colour = COLOURS[judged.outcome]
                console.print(f"[{colour}]{judged.outcome}[/] {told}", highlight=False)
    colour = COLOURS[overall(verdicts, allow_undecided=allowed)]
    line = escape(badge(result, verdicts, allow_undecided=allowed))
    console.print(f"[bold {colour}]{line}[/]", highlight=False, soft_wrap=True)


def _table(verdict: "Verdict", model: "Evaluated") -> "Table":
    from quantkit.gate import bound_text, figure_text, room_text, unit_of

    sure = any(j.rule.confidence is not None for j in verdict.rules)
    columns = (
        Column(title="rule"),
        Column(title="limit"),
        Column(title="estimate", drop=1 if sure else 0),
        *([Column(title="worst end of\nthe interval")] if sure else []),
        Column(title="margin", drop=2),
        Column(title="outcome", left=True, colours=COLOURS),
    )
    rows = []
    for judged in verdict.rules:
        unit = unit_of(judged.rule, model)
        ends = [judged.estimate, judged.figure] if sure else [judged.estimate]
        cells = (
            judged.rule.key,
            bound_text(judged.rule, unit, short=True),
            *("-" if end is None else figure_text(end, unit, short=True) for end in ends),
            "-" if judged.margin is None else room_text(judged.margin, unit, short=True),
            judged.outcome,
        )
        rows.append(cells)
    return fitted_table(verdict.candidate, columns, rows)
