"""`quantkit gate RESULT`, and the flags of its rules for all commands that judge."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from quantkit.cli.console import write_json
from quantkit.cli.flags import Flags, expanded
from quantkit.cli.options import JsonOption
from quantkit.cli.verdict_view import print_gate, print_live_verdict
from quantkit.errors import UsageError
from quantkit.settings import RECIPE_NAME, GateSettings
from quantkit.settings.declare import declared


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
        if path is not None or candidate or drop_rule or junit or badge:
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
