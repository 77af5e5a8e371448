"""How a plan looks in a terminal: how many nodes of each operator run how, and why the others do not."""

from collections import Counter
from typing import TYPE_CHECKING

from quantkit.cli.console import escape, line, output
from quantkit.cli.tables import new_table

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from rich.table import Table

    from quantkit.api.results import Plan, WeightPlan
    from quantkit.reasons import Reason


# How a column of the table is called, and its colour.
_COLUMNS = {
    "static": ("static int8", "green"),
    "absorbed": ("fused into layer before", "green"),
    "integer": ("dynamic int8", "green"),
    "blocks": ("weights in blocks", "green"),
    "half": ("float16", "green"),
    "stored": ("weights only", "cyan"),
    "float": ("float", ""),
}
_INT8 = ("integer", "static", "absorbed")
_REASONS = 5  # below a table of a static plan
_OPERATORS = 3  # to a reason


def plan_table(plan: "Plan", how: str, more: str = "") -> "Table":
    """Show how many nodes of each operator run in int8 and how many do not, and why.

    Args:
        plan: A dynamic or a static plan.
        how: What the title calls it.
        more: Where the reasons are that the table leaves out.
    """
    table = new_table(f"Execution plan ({how})", ("operator",))
    table.add_column("int8", justify="right", style="green")
    table.add_column("weights only", justify="right", style="cyan")
    table.add_column("float", justify="right")
    table.add_column("why not int8")
    for op_type, counts in sorted(plan.counts().items()):
        reasons = Counter(
            grouped(
                [n.reason for n in plan.nodes if n.op_type == op_type and n.mode.value not in _INT8]
            )
        ).most_common()
        why = reasons[0][0] if reasons else ""
        if len(reasons) > 1:
            others = sum(n for _, n in reasons[1:])
            why = f"{reasons[0][1]}: {why}; {others} other{'s' * (others != 1)}{more}"
        count = Counter({mode.value: n for mode, n in counts.items()})
        numbers = (sum(count[m] for m in _INT8), count["stored"], count["float"])
        table.add_row(escape(op_type), *(str(n or "-") for n in numbers), escape(why))
    return table


def static_plan_table(plan: "Plan") -> "Table":
    """Show how many nodes of each operator run how, in a static plan: the modes that occur."""
    counts = plan.counts()
    seen = {mode.value for found in counts.values() for mode in found}
    table = new_table("Execution plan", ("operator",))
    for mode, (name, style) in _COLUMNS.items():
        if mode in seen:
            table.add_column(name, justify="right", style=style)
    for op_type, found in sorted(counts.items()):
        numbers = {mode.value: str(count) for mode, count in found.items()}
        row = (numbers.get(mode, "-") for mode in _COLUMNS if mode in seen)
        table.add_row(escape(op_type), *row)
    return table


def grouped(reasons: "Sequence[Reason]") -> list[str]:
    """Return the sentences of reasons, without their values where several differ in these alone."""
    several: dict[str, set[str]] = {}
    for reason in reasons:
        several.setdefault(reason.head, set()).add(str(reason))
    return [str(r) if len(several[r.head]) == 1 else r.head for r in reasons]


def float_reasons(plan: "Plan") -> list[str]:
    """Return the most frequent reasons why nodes are computed in float, with the operators they hold for."""
    return _reasons(plan, {"stored", "float"}, "in float")


def block_reasons(plan: "Plan") -> list[str]:
    """Return how nodes whose weights are in blocks run, with the operators it holds for."""
    return _reasons(plan, {"blocks"}, "in blocks")


def _reasons(plan: "Plan", modes: "Collection[str]", how: str) -> list[str]:
    reasons: dict[str, Counter[str]] = {}
    nodes = [n for n in plan.nodes if n.mode.value in modes]
    for n, why in zip(nodes, grouped([n.reason for n in nodes]), strict=True):
        reasons.setdefault(why, Counter())[n.op_type] += 1
    listed = sorted(reasons.items(), key=lambda reason: (-reason[1].total(), reason[0]))
    lines = []
    for why, operators in listed[:_REASONS]:
        shown = ", ".join(f"{op} {count}" for op, count in operators.most_common(_OPERATORS))
        more = ", ..." if len(operators) > _OPERATORS else ""
        lines.append(f"{operators.total()} {how}: {why} ({shown}{more})")
    rest = sum(operators.total() for _, operators in listed[_REASONS:])
    return [*lines, f"{rest} {how}: for other reasons"] if rest else lines


def print_plan(found: "Plan", *, nodes: bool) -> None:
    """Print what a plan does; `nodes`: line by line, too."""
    output().print(static_plan_table(found))
    for reason in (*block_reasons(found), *float_reasons(found)):
        line(reason)
    stored = f"{len(found.activations)} activations with fixed ranges, {len(found.weights)} weights in 8 bits"
    if found.halves:
        stored = f"{len(found.halves)} tensors in 16 bits"
    elif found.block_format is not None:
        stored = f"{len(found.weights)} weights: {_bits_of(found)}"
    line(
        f"{stored}, opset {found.min_opset} or newer"
        + (f", for {found.target}" if found.target else "")
    )
    if nodes:
        _print_nodes(found)


def _bits_of(found: "Plan") -> str:
    """Say how many weights have how many bits."""
    counts = Counter(weight.bits for weight in found.weights)
    return ", ".join(f"{counts[bits]} of {bits} bits" for bits in sorted(counts))


def _print_nodes(found: "Plan") -> None:
    """Print a line a node and a tensor."""
    line("Nodes: name, operator, mode, why")
    for node in found.nodes:
        line(f"{node.node}  {node.op_type}  {node.mode.words}  {node.why}")
    if found.halves:
        line("Tensors in 16 bits: tensor, type, why")
        for half in found.halves:
            line(f"{half.tensor}  {half.dtype}  {half.why}")
        return
    if found.activations:
        line("Activations: tensor, type, scale, zero point, why")
        for a in found.activations:
            line(f"{a.tensor}  {a.dtype.name}  {a.scale:.6g}  {a.zero_point}  {a.why}")
    line("Weights: tensor, type, scales")
    for w in found.weights:
        line(f"{w.tensor}  {_stored_as(w)}")


def _stored_as(weight: "WeightPlan") -> str:
    """Say how a weight stands in the file."""
    if weight.blocks is not None:
        return str(weight.blocks)
    axis = getattr(weight.spec.granularity, "axis", None)
    scales = "one" if axis is None else f"one per channel, axis {axis}"
    return f"{weight.spec.dtype.name}  {scales}"
