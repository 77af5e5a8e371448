"""Two results beside each other in a terminal."""

from collections import Counter
from typing import TYPE_CHECKING

from quantkit.cli.console import escape, line, output
from quantkit.cli.diff_view import print_rest
from quantkit.cli.tables import new_table
from quantkit.numbers import human

if TYPE_CHECKING:
    from quantkit.api.results import CandidateDiff, FigureChange, ResultDiff, Unit
    from quantkit.result import Interval, Judged


_STYLES = {"better": "green", "worse": "bold red", "new": "cyan", "gone": "yellow"}


def print_results(found: "ResultDiff", most: int | None) -> None:
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
