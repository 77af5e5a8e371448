"""Two models beside each other in a terminal."""

from collections import Counter
from typing import TYPE_CHECKING

from quantkit.cli.console import escape, line, output
from quantkit.cli.tables import new_table
from quantkit.numbers import human
from quantkit.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from quantkit.api.results import Change, ModelDiff, NodeChange, NodeRef, WeightChange


_OPERATORS = 6  # named in one line
_WORST = 3  # of each kind, in the summary


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
    if not changes:
        return
    table = new_table(title, ("", "A", "B"))
    for change in changes:
        table.add_row(escape(change.what), escape(change.a or "-"), escape(change.b or "-"))
    output().print(table)


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
    from rich.text import Text

    numbers = ("SQNR dB", "largest", "mean")
    table = new_table("Weights that differ, the furthest apart first", ("weight",), numbers)
    for change in changed:
        apart = ("-", "-", "-")
        if change.largest is not None:
            db = "equal" if change.sqnr_db is None else f"{change.sqnr_db:.1f}"
            apart = (db, f"{change.largest:.2g}", f"{change.mean:.2g}")
        stored = (printable(_stored(change)), "dim")
        table.add_row(Text.assemble(printable(change.a.name), "\n  ", stored), *apart)
    output().print(table)


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
    title = "Scales and zero points that differ, the most first"
    table = new_table(title, ("tensor",), ("A", "B", "B / A"))
    for change in scales.changed:
        other = change.a.dtype != change.b.dtype
        both = [
            f"{f'{f.dtype} ' if other else ''}{f.scale:.4g}, {f.zero_point}"
            for f in (change.a, change.b)
        ]
        table.add_row(escape(change.tensor), *both, f"{change.ratio:.3f}")
    output().print(table)


def _print_sizes(found: "ModelDiff") -> None:
    table = new_table("Size breakdown", ("cause",), ("A", "B", "B - A"))
    for part in found.sizes:
        table.add_row(
            part.cause, *(human(n) if n else "-" for n in (part.a, part.b)), _more(part.b - part.a)
        )
    table.add_section()
    a, b = found.nbytes
    table.add_row("total", human(a), human(b), _more(b - a))
    output().print(table)


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
    differing = [t for t in found.errors.tensors if t.sqnr_db is not None]
    if not differing:
        return
    table = new_table("Error of each tensor, the worst first", ("tensor in A",), ("SQNR dB",))
    for tensor in differing:
        table.add_row(escape(tensor.a), f"{tensor.sqnr_db:.1f}")
    output().print(table)
