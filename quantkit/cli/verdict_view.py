"""Verdicts of a gate in a terminal: which rules are kept, by how much, and what stands against the evidence."""

from typing import TYPE_CHECKING

from quantkit.cli.console import escape, marked, output
from quantkit.cli.tables import Column, fitted_table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.table import Table

    from quantkit import GateVerdict
    from quantkit.result import Evaluated, Judged, Verdict


COLOURS = {"pass": "green", "fail": "red", "undecided": "yellow", "invalid": "magenta"}
"""Of outcomes."""


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
