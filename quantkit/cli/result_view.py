"""What came of quantizing a model, in a terminal."""

from pathlib import Path
from typing import TYPE_CHECKING

from quantkit.cli.console import escape, line, marked, output, print_notes, write_json
from quantkit.cli.plan_view import block_reasons, float_reasons, plan_table, static_plan_table
from quantkit.numbers import human

if TYPE_CHECKING:
    from collections.abc import Mapping

    from quantkit.pipeline.result import QuantizeResult
    from quantkit.runtime.check_result import Verification
    from quantkit.runtime.kernels import Fusion

__all__ = ["print_result", "print_verified", "print_written"]


def print_result(
    result: "QuantizeResult",
    source: object,
    target: Path,
    *,
    promise: str = "",
    save_plan: Path | None = None,
    as_json: bool = False,
) -> None:
    """Print what was done, what it gave, and what the user should know.

    Args:
        result: What was done.
        source: The float model.
        target: Where it was written.
        promise: What holds for a result of this kind; "" for nothing.
        save_plan: Where to write the plan.
        as_json: Print JSON instead.
    """
    if save_plan is not None:
        from quantkit.quantize.plan import write_plan

        write_plan(result.plan, save_plan)
    if as_json:
        write_json({"input": str(source), "output": str(target), **result.to_json()})
        return
    modes = {n.mode.value for n in result.plan.nodes}
    wide = not modes.isdisjoint({"static", "blocks", "half"}) or bool(result.plan.halves)
    output().print(static_plan_table(result.plan) if wide else plan_table(result.plan, "dynamic"))
    lines = block_reasons(result.plan) + float_reasons(result.plan) if wide else []
    lines += [] if result.fusion is None else _fused(result.fusion)
    lines += [] if result.half is None else [str(result.half)]
    for text in (*lines, promise):
        if text:
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


def print_written(target: Path) -> None:
    """Name the files of a model that was written."""
    from quantkit.model.graph.load import model_files

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
