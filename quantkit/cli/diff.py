"""`quantkit diff A B`: two models, two results or two plans beside each other in a terminal."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quantkit.cli.console import escape, line, output, print_table, write_json
from quantkit.cli.flags import expanded
from quantkit.cli.options import DataFlags, JsonOption
from quantkit.cli.progress import progress, watching
from quantkit.errors import UsageError
from quantkit.settings import load_recipe
from quantkit.text import human, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.text import Text

    from quantkit.api.results import (
        CandidateDiff,
        Change,
        FigureChange,
        ModelDiff,
        NodeChange,
        NodeRef,
        ResultDiff,
        Unit,
        WeightChange,
    )
    from quantkit.result import Interval, Judged
    from quantkit.settings import DataSettings


_ROWS = 10  # unless all are asked for

_OPERATORS = 6  # named in one line
_WORST = 3  # of each kind, in the summary

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
    from quantkit.api.diff import kind_of, located

    paths = located(a), located(b)
    kind, other = map(kind_of, paths)
    if kind != other:
        raise UsageError(
            f"'{a}' is a {kind} and '{b}' a {other}: give two models, two results or two plans."
        )
    if kind != "model" and samples.used():
        raise UsageError(f"{samples.used()} is for two models, which are run; these are {kind}s.")
    if kind != "result" and fail_if_worse:
        raise UsageError(
            f"--fail-if-worse is for two results, which have figures; these are {kind}s."
        )
    most = None if everything else _ROWS
    worse = False
    match kind:
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
    if "path" in flags.given:
        return flags.over_recipe(load_recipe().data)
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
        print_results(found, most)
    return found.same, found.is_worse


def _plans(a: Path, b: Path, most: int | None, *, as_json: bool) -> bool:
    from quantkit.api.files import diff_plans, read_plan

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


def print_rest(count: int, most: int | None) -> None:
    """Say how many rows are not shown."""
    if most is not None and count > most:
        line(f"and {count - most} more: --all", "dim")


def print_models(found: "ModelDiff", *, everything: bool) -> None:
    """Print what differs, the whole first: everything, or what counts of it."""
    if found.identical:
        output().print("[green]the same[/]: equal byte for byte")
        return
    if found.same:
        output().print("[green]the same[/]: no difference found")
        return
    if not everything:
        _print_summary(found)
        return
    _print_heads(found)
    _print_run(found)
    _print_changes("Inputs and outputs", found.ports)
    _print_nodes(found)
    _print_errors(found)
    _print_scales(found)
    _print_weights(found)
    _print_sizes(found)
    _print_changes("Versions and metadata", found.header)


def _print_heads(found: "ModelDiff") -> None:
    line(f"A  {found.a}  {human(found.nbytes[0])}")
    line(f"B  {found.b}  {human(found.nbytes[1])}  ({found.nbytes[1] / found.nbytes[0]:.1%} of A)")
    if found.computes_the_same:
        line("graph, weights and scales are the same", "green")


def _print_summary(found: "ModelDiff") -> None:
    """Print about ten lines: what counts of each kind of difference."""
    _print_heads(found)
    _print_run(found)
    differing = [t for t in found.errors.tensors if t.sqnr_db is not None]
    if differing:
        _listed("  the worst", (f"{t.a} {_decibels(t.sqnr_db)}" for t in differing[:_WORST]))
    _listed("inputs and outputs", (change.what for change in found.ports[:_OPERATORS]))
    nodes = found.nodes
    _print_node_counts(found)
    sides = (("A", nodes.only_a), ("B", nodes.only_b))
    only = (f"only in {name}: {_counted(refs)}" for name, refs in sides if refs)
    if text := "; ".join(only):
        line(f"  {text}")
    for text in _grouped(nodes.changed)[:_WORST]:
        line(f"  {text}")
    _print_scale_counts(found)
    _print_weight_counts(found)
    far = [c for c in found.weights.changed if c.sqnr_db is not None or c.largest is None]
    _listed("  furthest apart", map(_apart, far[:_WORST]))
    grown = sorted((s for s in found.sizes if s.a != s.b), key=lambda s: -abs(s.b - s.a))
    _listed("size", (f"{s.cause} {_more(s.b - s.a)}" for s in grown[:_WORST]))
    line("everything: --all", "dim")


def _listed(title: str, items: "Iterable[str]") -> None:
    """Print some things in one line; nothing if there are none."""
    if text := ", ".join(items):
        line(f"{title}: {text}")


def _apart(change: "WeightChange") -> str:
    return f"{change.a.name} {_decibels(change.sqnr_db) if change.largest is not None else change.note}"


def _print_changes(title: str, changes: "Sequence[Change]") -> None:
    rows = [[escape(text or "-") for text in (c.what, c.a, c.b)] for c in changes]
    if rows:
        print_table(title, ("", "A", "B"), (), rows)


def _print_node_counts(found: "ModelDiff") -> None:
    nodes = found.nodes
    renamed = f" ({nodes.renamed} under another name)" if nodes.renamed else ""
    line(
        f"nodes: {nodes.same} the same{renamed}, {len(nodes.changed)} changed, "
        f"{len(nodes.only_a)} only in A, {len(nodes.only_b)} only in B"
    )


def _print_nodes(found: "ModelDiff") -> None:
    nodes = found.nodes
    _print_node_counts(found)
    for name, refs in (("A", nodes.only_a), ("B", nodes.only_b)):
        if refs:
            line(f"  only in {name}: {_counted(refs)}")
    for text in _grouped(nodes.changed):
        line(f"  {text}")
    _print_each_node(found)


def _grouped(changed: "Sequence[NodeChange]") -> list[str]:
    """Return one line for each change that several nodes of an operator share, the most frequent first."""
    first: dict[tuple[str, ...], str] = {}
    counts: Counter[tuple[str, ...]] = Counter()
    for change in changed:
        op = change.a.op_type
        keys = [(op, f"{c.what}: {c.a or '-'} -> {c.b or '-'}") for c in change.attributes]
        if op != change.b.op_type:
            keys.append((op, f"-> {change.b.op_type}"))
        if change.reads is not None:
            keys.append((op, "reads something else"))
            first.setdefault(keys[-1], _read(change))
        for key in keys:
            counts[key] += 1
            first.setdefault(key, "")
    return [f"{count} {op} {what}{first[op, what]}" for (op, what), count in counts.most_common()]


def _read(change: "NodeChange") -> str:
    assert change.reads is not None  # noqa: S101 - the caller looked
    return f", the first {change.a.name}: {change.reads.a or '-'} -> {change.reads.b or '-'}"


def _counted(refs: "Iterable[NodeRef]") -> str:
    counts = Counter(ref.op_type for ref in refs).most_common()
    named = ", ".join(f"{count} {op}" for op, count in counts[:_OPERATORS])
    rest = sum(count for _, count in counts[_OPERATORS:])
    return f"{named}, {rest} others" if rest else named


def _print_each_node(found: "ModelDiff") -> None:
    for change in found.nodes.changed:
        details = (*change.attributes, *((change.reads,) if change.reads else ()))
        said = "".join(f"; {d.what}: {d.a or '-'} -> {d.b or '-'}" for d in details)
        other = change.a.op_type != change.b.op_type
        became = f" -> {change.b.op_type} {change.b.name}" if other else ""
        line(f"  changed: {change.a.op_type} {change.a.name}{became}{said}")
    for name, refs in (("A", found.nodes.only_a), ("B", found.nodes.only_b)):
        for ref in refs:
            line(f"  only in {name}: {ref.op_type} {ref.name}")


def _print_weight_counts(found: "ModelDiff") -> None:
    weights = found.weights
    line(
        f"weights: {weights.equal} equal, {len(weights.changed)} changed, "
        f"{len(weights.only_a)} only in A, {len(weights.only_b)} only in B"
    )
    types = Counter((c.a.dtype, c.b.dtype) for c in weights.changed if c.a.dtype != c.b.dtype)
    for (before, after), count in types.most_common():
        line(f"  {count} {before} -> {after}")


def _print_weights(found: "ModelDiff") -> None:
    weights = found.weights
    _print_weight_counts(found)
    if weights.changed:
        _print_weight_table(weights.changed)
    for name, refs in (("A", weights.only_a), ("B", weights.only_b)):
        for ref in refs:
            line(f"  only in {name}: {ref.name} {ref.dtype} {human(ref.nbytes)}")


def _print_weight_table(changed: "Sequence[WeightChange]") -> None:
    numbers = ("SQNR dB", "largest", "mean")
    title = "Weights that differ, the furthest apart first"
    print_table(title, ("weight",), numbers, map(_weight_row, changed))


def _weight_row(change: "WeightChange") -> "list[str | Text]":
    from rich.text import Text

    stored = (printable(_stored(change)), "dim")
    name = Text.assemble(printable(change.a.name), "\n  ", stored)
    if change.largest is None:
        return [name, "-", "-", "-"]
    db = "equal" if change.sqnr_db is None else f"{change.sqnr_db:.1f}"
    return [name, db, f"{change.largest:.2g}", f"{change.mean:.2g}"]


def _stored(change: "WeightChange") -> str:
    """Say how a weight is stored in both: "float32 2.4 MB -> int8 0.6 MB"."""
    a, b = (f"{ref.dtype} {human(ref.nbytes)}" for ref in (change.a, change.b))
    return (a if a == b else f"{a} -> {b}") + (f", {change.note}" if change.note else "")


def _print_scale_counts(found: "ModelDiff") -> None:
    scales = found.scales
    if not (scales.equal or scales.changed or scales.only_a or scales.only_b):
        return
    line(
        f"quantized activations: {scales.equal} the same, {len(scales.changed)} with another scale or type, "
        f"{len(scales.only_a)} only in A, {len(scales.only_b)} only in B"
    )


def _print_scales(found: "ModelDiff") -> None:
    scales = found.scales
    _print_scale_counts(found)
    if not scales.changed:
        return
    rows = []
    for change in scales.changed:
        other = change.a.dtype != change.b.dtype
        both = [
            f"{f'{f.dtype} ' if other else ''}{f.scale:.4g}, {f.zero_point}"
            for f in (change.a, change.b)
        ]
        rows.append([escape(change.tensor), *both, f"{change.ratio:.3f}"])
    title = "Scales and zero points that differ, the most first"
    print_table(title, ("tensor",), ("A", "B", "B / A"), rows)


def _print_sizes(found: "ModelDiff") -> None:
    rows = [
        [p.cause, *(human(n) if n else "-" for n in (p.a, p.b)), _more(p.b - p.a)]
        for p in found.sizes
    ]
    a, b = found.nbytes
    total = ("total", human(a), human(b), _more(b - a))
    print_table("Size breakdown", ("cause",), ("A", "B", "B - A"), rows, total)


def _more(nbytes: int) -> str:
    return "-" if not nbytes else f"{'+' if nbytes > 0 else '-'}{human(abs(nbytes))}"


def _print_run(found: "ModelDiff") -> None:
    """Say what running both shows, first of all the outputs."""
    errors = found.errors
    if errors.note:
        line(f"tensors: {errors.note}", "yellow")
    if not errors.tensors:
        return
    samples = f"{errors.samples} sample{'s' if errors.samples > 1 else ''}"
    on = "one made-up input (--data for real ones)" if errors.made_up else samples
    line(f"run on {on}:")
    for tensor in errors.tensors:
        if tensor.a in errors.outputs:
            line(f"  output {tensor.a}: {_decibels(tensor.sqnr_db)}", "bold")
    exact = sum(t.sqnr_db is None for t in errors.tensors)
    line(f"  {len(errors.tensors)} tensors correspond, {exact} of them equal")


def _decibels(db: float | None) -> str:
    return "equal" if db is None else f"{db:.1f} dB"


def _print_errors(found: "ModelDiff") -> None:
    tensors = [t for t in found.errors.tensors if t.sqnr_db is not None]
    rows = [(escape(t.a), f"{t.sqnr_db:.1f}") for t in tensors]
    if rows:
        print_table("Error of each tensor, the worst first", ("tensor in A",), ("SQNR dB",), rows)


def print_results(found: "ResultDiff", most: int | None) -> None:
    """Print what differs: whether figures compare at all, then one table per candidate."""
    if found.same:
        output().print("[green]the same[/]: every figure, rule and warning")
        return
    for caveat in found.caveats:
        line(f"not alike: {caveat.what} {caveat.a or '-'} -> {caveat.b or '-'}", "yellow")
        line(f"  does not compare: {caveat.spoils}", "yellow")
    _print_figure_counts(found)
    for candidate in found.candidates:
        _print_candidate(candidate, most)
    for name, names in (("A", found.only_a), ("B", found.only_b)):
        if names:
            line(f"candidates only in {name}: {', '.join(names)}")


def _print_figure_counts(found: "ResultDiff") -> None:
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
        title, numbers = escape(f"{candidate.name}{new}"), ("A", "B", "change", "")
        print_table(title, ("figure",), numbers, map(_figure_row, figures))
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


def _figure_row(f: "FigureChange") -> list[str]:
    ends = ((f.a, f.a_interval), (f.b, f.b_interval))
    both = [_with_interval(value, interval, f.unit) for value, interval in ends]
    style = _STYLES.get(f.verdict, "dim")
    return [escape(f.figure), *both, _moved(f), f"[{style}]{f.verdict}[/]"]


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
    rows = []
    for layer in worse[:most]:
        lost = "-" if layer.a is None or layer.b is None else f"{layer.a - layer.b:.1f}"
        ends = (_number(layer.a, "dB"), _number(layer.b, "dB"))
        rows.append([escape(layer.node), escape(layer.op_type), *ends, lost])
    title = "Layers that alone bring more noise than before, dB at the output"
    print_table(title, ("node", "operator"), ("A", "B", "lost"), rows)
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
