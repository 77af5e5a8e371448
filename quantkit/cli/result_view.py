"""How plans look in a terminal, and what came of writing a model: quantized, simplified or exported."""

from collections import Counter
from math import isinf
from pathlib import Path
from typing import TYPE_CHECKING

from quantkit.cli.console import (
    Column,
    escape,
    fitted_table,
    line,
    marked,
    new_table,
    output,
    print_notes,
    write_json,
)
from quantkit.settings import StaticSettings
from quantkit.text import human

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from rich.table import Table

    from quantkit.api.quantize import Task
    from quantkit.api.results import (
        ExportResult,
        Fusion,
        OptimizeResult,
        Plan,
        Proof,
        QuantizeResult,
        SimplifyReport,
        Verification,
        WeightPlan,
    )
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


def present(
    result: "QuantizeResult", task: "Task", target: Path, *, planned: bool = False, as_json: bool
) -> None:
    """Print what was done, what it gave, and what the user should know.

    Args:
        result: What was done.
        task: What was asked for.
        target: Where it was written.
        planned: A plan was applied, of which is not known for which CPUs it was made.
        as_json: Print JSON instead.
    """
    if as_json:
        write_json({"input": str(task.source), "output": str(target), **result.to_json()})
        return
    modes = {n.mode.value for n in result.plan.nodes}
    wide = not modes.isdisjoint({"static", "blocks", "half"}) or bool(result.plan.halves)
    output().print(static_plan_table(result.plan) if wide else plan_table(result.plan, "dynamic"))
    lines = block_reasons(result.plan) + float_reasons(result.plan) if wide else []
    lines += [] if result.fusion is None else _fused(result.fusion)
    lines += [] if result.half is None else [str(result.half)]
    if isinstance(task.how, StaticSettings) and not planned:
        lines += _promises(task.how, result.plan)
    for text in lines:
        line(text)
    share = result.output_bytes / result.input_bytes
    larger = "[bold yellow]not smaller[/]: " if share >= 1 else ""
    sizes = f"{human(result.input_bytes)} -> {human(result.output_bytes)}"
    marked(f"{larger}[bold]{sizes}[/] ({share:.1%} of float) in {result.seconds:.2f} s")
    for note in result.notes:
        line(note)
    checked = result.verification
    if checked is not None:
        print_verified(checked, f"SQNR vs float on {checked.judged_on}", checked.figures())
    print_written(target)
    print_notes(result.warnings)


def _promises(how: StaticSettings, plan: "Plan") -> list[str]:
    """Say what holds for the result: on the default target, whose weights are pair-safe, for every CPU."""
    from quantkit.targets import STEPPED_ON_ARM

    if how.runs_on.name != "cpu":
        return [f"target {how.runs_on.name}: {how.runs_on.title}"]
    if how.activation.bits > 8:  # runs in float
        return []
    static = {node.op_type for node in plan.nodes if node.mode.value == "static"}
    more = "; Add and Mul may differ by one step on ARM" if static & STEPPED_ON_ARM else ""
    return [f"layers give the same integers on AVX2, VNNI and ARM CPUs{more}"]


def print_written(target: Path) -> None:
    """Name the files of a model that was written."""
    from quantkit.api.files import model_files

    listed = " and ".join(str(path) for path in model_files(target))
    line(f"wrote {listed}")


def print_verified(checked: "Verification", how: str, figures: str) -> None:
    """Print what was checked before a model was written.

    Args:
        checked: What was checked.
        how: What it was compared with, and on which data.
        figures: What came of that; "" if nothing was compared.
    """
    ran = " and runs" if checked.ran else ""
    compared = escape(f"; {how}: {figures}") if figures else ""
    colour = "green" if checked.heading == "verified" else "bold red"
    marked(f"[{colour}]{checked.heading}[/]: valid, loads{ran} in onnxruntime{compared}")


def _fused(fusion: "Fusion") -> list[str]:
    """Say what onnxruntime makes of the model on this machine."""
    total = fusion.product_count
    lines = [
        f"{fusion.integer_count} of {total} layers (Conv, Gemm, MatMul, ...) run in integers on this CPU"
    ]
    if fusion.integer_products:
        lines[0] += f": {_counted(fusion.integer_products)}"
    if fusion.float:
        lines.append(f"computed in float: {_counted(fusion.float)}")
    if fusion.conversions:
        lines.append(f"remaining float/int8 conversions: {_conversions(fusion.conversions)}")
    return lines


def _conversions(kernels: "Mapping[str, int]") -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(kernels.items()))


def _counted(kernels: "Mapping[str, int]") -> str:
    listed = sorted(kernels.items(), key=lambda kernel: (-kernel[1], kernel[0]))
    return ", ".join(f"{name} {count}" for name, count in listed)


def present_optimized(result: "OptimizeResult", target: Path) -> None:
    """Print what simplifying did."""
    console, report = output(), result.report
    if report.before != report.after:
        console.print(_node_table(report))
    done = ", ".join(f"{name} {count}" for name, count in report.changes.items() if count)
    if report.changed:
        console.print(f"changes by pass: {done}", highlight=False)
    else:
        console.print(
            f"nothing to simplify: {report.nodes_before} nodes"
            + (f" (changes by pass: {done})" if done else ""),
            highlight=False,
        )
    sizes = f"{human(result.input_bytes)} -> {human(result.output_bytes)}"
    marked(f"[bold]{sizes}[/] in {result.seconds:.2f} s")
    checked = result.verification
    if checked is not None:
        found = ", ".join(f"{name} {_moved(db)}" for name, db in checked.compared.items())
        print_verified(checked, "against the input on made-up data", found)
    print_written(target)
    print_notes(result.warnings)


def _moved(db: float) -> str:
    return "exact" if isinf(db) else f"{db:.1f} dB"


def _node_table(report: "SimplifyReport") -> "Table":
    """Show the operators whose number changed, and the total."""
    table = new_table("Nodes", ("operator",), ("before",))
    table.add_column("after", justify="right", style="green")
    for op_type in sorted({*report.before, *report.after}):
        before, after = report.before.get(op_type, 0), report.after.get(op_type, 0)
        if before != after:
            table.add_row(escape(op_type), str(before or "-"), str(after or "-"))
    table.add_section()
    table.add_row("total", str(report.nodes_before), str(report.nodes_after))
    return table


def present_exported(result: "ExportResult", target: Path) -> None:
    """Print what was exported, and how near it is to the framework."""
    line(f"exported {result.source} by {result.exporter}")
    for kind, ports in (("input", result.inputs), ("output", result.outputs)):
        for port in ports:
            line(f"  {kind:6} {port}")
    output().print(_proof_table(result.proof))
    nodes = f"{result.report.nodes_before} -> {result.report.nodes_after} nodes"
    marked(
        f"[bold]{human(result.nbytes)}[/], opset {result.opset}, {nodes} in {result.seconds:.2f} s"
    )
    runs = len(result.proof.trials)
    marked(
        f"[green]proved[/]: valid, loads in onnxruntime, equal to {result.source.framework} in {runs} runs"
    )
    print_written(target)
    print_notes(result.notes)


def _proof_table(proof: "Proof") -> "Table":
    """Show the largest difference of each output at each size, with what is allowed."""
    columns = (
        Column(title="sizes"),
        Column(title="output", left=True),
        Column(title="difference"),
        Column(title="allowed"),
        Column(title="own float32 error", drop=1),
    )
    rows = [
        (
            named,
            one.output,
            f"{one.largest:.2g}",
            f"{one.allowed:.2g}",
            "" if one.own is None else f"{one.own:.2g}",
        )
        for named, one in proof.by_size()
    ]
    shown = columns if any(row[4] for row in rows) else columns[:4]
    return fitted_table(
        "Largest difference from the framework", shown, [r[: len(shown)] for r in rows]
    )


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
