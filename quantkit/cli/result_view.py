"""What came of writing a model, in a terminal: quantized, simplified or exported."""

from math import isinf
from pathlib import Path
from typing import TYPE_CHECKING

from quantkit.cli.console import escape, line, marked, output, print_notes, write_json
from quantkit.cli.plan_view import block_reasons, float_reasons, plan_table, static_plan_table
from quantkit.cli.tables import Column, fitted_table, new_table
from quantkit.numbers import human
from quantkit.settings import StaticSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.table import Table

    from quantkit.api.results import (
        ExportResult,
        Fusion,
        OptimizeResult,
        Plan,
        Proof,
        QuantizeResult,
        SimplifyReport,
        Verification,
    )
    from quantkit.api.task import Task


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
        _print_verified(checked, f"SQNR vs float on {checked.judged_on}", checked.figures())
    _print_written(target)
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


def _print_written(target: Path) -> None:
    """Name the files of a model that was written."""
    from quantkit.api.files import model_files

    listed = " and ".join(str(path) for path in model_files(target))
    line(f"wrote {listed}")


def _print_verified(checked: "Verification", how: str, figures: str) -> None:
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
        _print_verified(checked, "against the input on made-up data", found)
    _print_written(target)
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
    _print_written(target)
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
