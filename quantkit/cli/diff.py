"""`quantkit diff A B`, and two results beside each other in a terminal."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quantkit.cli.console import escape, line, output, write_json
from quantkit.cli.data_options import DataFlags, data_settings
from quantkit.cli.diff_view import print_models, print_rest
from quantkit.cli.flags import expanded
from quantkit.cli.options import JsonOption
from quantkit.cli.progress import progress
from quantkit.cli.tables import new_table
from quantkit.errors import UsageError
from quantkit.numbers import human

if TYPE_CHECKING:
    from quantkit.evaluate.diff import ResultDiff
    from quantkit.evaluate.diff.figures import Unit
    from quantkit.evaluate.diff.results import CandidateDiff, FigureChange
    from quantkit.result import Interval, Judged
    from quantkit.settings import DataSettings

__all__ = ["diff"]

_ROWS = 10  # unless all are asked for
_STYLES = {"better": "green", "worse": "bold red", "new": "cyan", "gone": "yellow"}


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
    from quantkit.evaluate.diff import kind_of, located

    paths = located(a), located(b)
    kinds = [kind_of(path) for path in paths]
    if kinds[0] != kinds[1]:
        raise UsageError(
            f"'{a}' is a {kinds[0]} and '{b}' a {kinds[1]}: give two models, two results or two plans."
        )
    if kinds[0] != "model" and samples.used():
        raise UsageError(
            f"{samples.used()} is for two models, which are run; these are {kinds[0]}s."
        )
    if kinds[0] != "result" and fail_if_worse:
        raise UsageError(
            f"--fail-if-worse is for two results, which have figures; these are {kinds[0]}s."
        )
    most = None if everything else _ROWS
    worse = False
    match kinds[0]:
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
    from quantkit.cli.progress import watching

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
    from quantkit.settings import load_recipe

    if "path" in flags.given:
        return data_settings(load_recipe().data, flags)
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
        _print_results(found, most)
    return found.same, found.is_worse


def _plans(a: Path, b: Path, most: int | None, *, as_json: bool) -> bool:
    from quantkit.quantize.plan import diff_plans, read_plan

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


def _print_results(found: "ResultDiff", most: int | None) -> None:
    """Print what differs: whether figures compare at all, then one table per candidate."""
    if found.same:
        output().print("[green]the same[/]: every figure, rule and warning")
        return
    for caveat in found.caveats:
        line(f"not alike: {caveat.what} {caveat.a or '-'} -> {caveat.b or '-'}", "yellow")
        line(f"  does not compare: {caveat.spoils}", "yellow")
    _print_summary(found)
    for candidate in found.candidates:
        _print_candidate(candidate, most)
    for name, names in (("A", found.only_a), ("B", found.only_b)):
        if names:
            line(f"candidates only in {name}: {', '.join(names)}")


def _print_summary(found: "ResultDiff") -> None:
    counts = Counter(f.verdict for c in found.candidates for f in c.figures)
    shown = ", ".join(f"{n} {verdict}" for verdict, n in counts.most_common())
    count = len(found.candidates) - 1
    line(f"float and {count} candidate{'s' * (count != 1)} in both; figures: {shown}")
    for name, figure in found.worse:
        line(f"worse: {name}, {figure.figure} {_both(figure)}", "bold red")


def _both(figure: "FigureChange") -> str:
    return f"{_number(figure.a, figure.unit)} -> {_number(figure.b, figure.unit)}"


def _print_candidate(candidate: "CandidateDiff", most: int | None) -> None:
    if candidate.same:
        line(f"{candidate.name}: the same")
        return
    new = "" if candidate.file_changed else ", the same file"
    figures = [f for f in candidate.figures if most is None or f.verdict != "same"]
    if figures:
        table = new_table(escape(f"{candidate.name}{new}"), ("figure",), ("A", "B", "change", ""))
        for f in figures:
            cells = (
                _with_interval(f.a, f.a_interval, f.unit),
                _with_interval(f.b, f.b_interval, f.unit),
            )
            style = _STYLES.get(f.verdict, "dim")
            table.add_row(escape(f.figure), *cells, _moved(f), f"[{style}]{f.verdict}[/]")
        output().print(table)
    if candidate.outcome is not None:
        line(
            f"  verdict: {candidate.outcome.a or 'none'} -> {candidate.outcome.b or 'none'}", "bold"
        )
    for rule in candidate.rules:
        line(f"  rule {rule.rule}: {_judged(rule.a)} -> {_judged(rule.b)}")
    _print_layers(candidate, most)
    for text in candidate.warnings_new:
        line(f"  new warning: {text}", "yellow")
    for text in candidate.warnings_gone:
        line(f"  warning gone: {text}", "green")


def _judged(judged: "Judged | None") -> str:
    if judged is None:
        return "no such rule"
    sure = f" at {judged.rule.confidence:g}" if judged.rule.confidence is not None else ""
    return f"{judged.outcome} (limit {judged.rule.limit:g}{sure})"


def _print_layers(candidate: "CandidateDiff", most: int | None) -> None:
    worse = candidate.layers_worse
    if candidate.layers_better:
        line(f"  {candidate.layers_better} layers bring less noise than before")
    if not worse:
        return
    table = new_table(
        "Layers that alone bring more noise than before, dB at the output",
        ("node", "operator"),
        ("A", "B", "lost"),
    )
    for layer in worse[:most]:
        lost = "-" if layer.a is None or layer.b is None else f"{layer.a - layer.b:.1f}"
        ends = (_number(layer.a, "dB"), _number(layer.b, "dB"))
        table.add_row(escape(layer.node), escape(layer.op_type), *ends, lost)
    output().print(table)
    print_rest(len(worse), most)


def _number(value: float | None, unit: "Unit") -> str:
    if value is None:
        return "exact" if unit == "dB" else "-"
    match unit:
        case "bytes":
            return human(value)
        case "share":
            return f"{value:.2%}"
        case "dB":
            return f"{value:.1f} dB"
        case "ratio":
            return f"{value:.3f}"
        case _:
            return f"{value:.4g}"


def _with_interval(value: float | None, interval: "Interval | None", unit: "Unit") -> str:
    text = _number(value, unit)
    if value is None or interval is None or unit == "bytes":
        return text
    ends = [_number(end, unit).removesuffix(" dB") for end in (interval.low, interval.high)]
    return f"{text}\n[dim]{ends[0]} to {ends[1]}[/]"


def _moved(figure: "FigureChange") -> str:
    if figure.a is None or figure.b is None or figure.a == figure.b:
        return "-"
    if figure.unit == "bytes":
        return f"{figure.b / figure.a - 1:+.1%}" if figure.a else "-"
    change = figure.b - figure.a
    sign = "+" if change > 0 else "-"
    if figure.unit == "share":
        return f"{sign}{100 * abs(change):.2f} points"
    return f"{sign}{_number(abs(change), figure.unit)}"
