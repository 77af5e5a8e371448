"""`quantkit gate RESULT`: the flags of its rules for all commands that judge, and how verdicts look in a terminal."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quantkit.cli.console import Column, escape, fitted_table, marked, output, write_json
from quantkit.cli.flags import Flags, expanded
from quantkit.cli.options import JsonOption
from quantkit.errors import UsageError
from quantkit.settings import RECIPE_NAME, GateSettings
from quantkit.settings.declare import declared

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.table import Table

    from quantkit import GateVerdict
    from quantkit.result import Evaluated, Judged, Verdict


COLOURS = {"pass": "green", "fail": "red", "undecided": "yellow", "invalid": "magenta"}
"""Of outcomes."""


class GateFlags(Flags):
    """The rules of a release."""

    kinds = (GateSettings,)
    left_out = frozenset({"confidence", "allow_undecided"})

    def over_recipe(self, recipe: GateSettings) -> GateSettings:
        """Return the settings with what flags say over them; objections are allowed besides those of the recipe."""
        if self.given.get("estimate"):
            recipe = replace(recipe, confidence=None)
        allow = (*recipe.allow, *self.given.get("allow", ()))
        return replace(self.over(recipe), allow=allow)


class _JudgeFlags(Flags):
    """How the rules are judged."""

    kinds = (GateSettings,)
    left_out = frozenset(declared(GateSettings)) - GateFlags.left_out


@expanded
def gate(  # noqa: PLR0913 - one parameter a flag
    *,
    path: Annotated[
        Path | None,
        typer.Argument(
            help="The result of 'quantkit evaluate', or of 'quantkit tune'.", metavar="RESULT"
        ),
    ] = None,
    live: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="Instead: a server's address, or a file with what its /drift said. May be repeated.",
        ),
    ] = None,
    candidate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Only this candidate. May be repeated. Default: all, of a search the one it chose.",
        ),
    ] = None,
    limits: GateFlags,
    how: _JudgeFlags,
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
    from quantkit import gate_result

    if "estimate" in limits.given and "confidence" in how.given:
        raise UsageError("--estimate judges without a --confidence: leave out one of the two.")
    if recipe is None and Path(RECIPE_NAME).exists():
        recipe = Path(RECIPE_NAME)
    rules = limits.over_recipe(how.over(GateSettings()))
    if live:
        if any((path, candidate, drop_rule, junit, badge)):
            raise UsageError("--live judges servers alone: leave out what is for a result.")
        _judge_live(live, rules, recipe, as_json=as_json)
        return
    if path is None:
        raise UsageError("Which result? quantkit gate RESULT, or quantkit gate --live URL.")
    found = gate_result(
        path,
        rules,
        candidates=candidate or (),
        drop_rules=drop_rule or (),
        recipe=recipe,
        junit=junit,
        badge=badge,
    )
    if as_json:
        write_json({"result": str(path), **found.to_json()})
    else:
        print_gate(found)
    if not found.passed:
        raise typer.Exit(1)


def _judge_live(
    live: list[str], rules: GateSettings, recipe: Path | None, *, as_json: bool
) -> None:
    from quantkit.api.gate import gate_live

    found = gate_live(live, rules, recipe=recipe)
    if as_json:
        import msgspec

        write_json({"live": live, **msgspec.json.decode(msgspec.json.encode(found))})
    else:
        print_live_verdict(found)
    if found.outcome != "pass" and not (found.outcome == "undecided" and rules.allow_undecided):
        raise typer.Exit(1)


def print_gate(found: "GateVerdict") -> None:
    """Print the verdict on each candidate, and on all."""
    for verdict, model in zip(found.verdicts, found.result.candidates, strict=True):
        output().print(_table(verdict, model))
        for text in objection_lines(verdict):
            marked(text)
        _print_rules(judged for judged in verdict.rules if judged.outcome != "pass")
    marked(f"[bold {COLOURS[found.outcome]}]{escape(str(found))}[/]")


def print_live_verdict(found: "Verdict") -> None:
    """Print the verdict on live requests."""
    _print_rules(found.rules)
    marked(f"[bold {COLOURS[found.outcome]}]{found.outcome}[/] on live requests")


def _print_rules(rules: "Iterable[Judged]") -> None:
    for judged in rules:
        said = escape(f"{judged.rule.key}: {judged.sentence}.")
        style = COLOURS[judged.outcome]
        output().print(f"[{style}]{judged.outcome}[/] {said}", highlight=False)


def objection_lines(verdict: "Verdict") -> list[str]:
    """Return what stands against a candidate's figures, and what to do."""
    return [
        f"[{COLOURS['invalid']}]{'allowed' if o.allowed else 'invalid'}[/] "
        f"{escape(f'{o.kind}: {o.sentence}.')}"
        for o in verdict.objections
    ]


def _table(verdict: "Verdict", model: "Evaluated") -> "Table":
    from quantkit.api.gate import bound_text, figure_text, room_text, unit_of

    sure = next((j.rule.confidence for j in verdict.rules if j.rule.confidence is not None), None)
    columns = (
        Column(title="rule"),
        Column(title="limit"),
        Column(title="estimate", drop=1 if sure else 0),
        *([Column(title=f"{100 * sure:g} %\nbound")] if sure else []),
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
