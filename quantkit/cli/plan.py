"""`quantkit plan MODEL --data dir/`, and `quantkit plan A.json --diff B.json`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quantkit.cli.calibration_view import watching
from quantkit.cli.console import (
    JsonOption,
    float_reasons,
    line,
    output,
    static_plan_table,
    write_json,
)
from quantkit.cli.data_options import DataFlags, MethodFlags, read_by
from quantkit.cli.flags import expanded
from quantkit.cli.quantize_static import StaticFlags, job_of
from quantkit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quantkit.plan import Plan

__all__ = ["plan"]


@expanded
def plan(  # noqa: PLR0913 - one parameter a flag
    *,
    model: Annotated[
        Path | None,
        typer.Argument(
            help="The float32 model, or a plan (.json) to look at; or in quantkit.toml.",
            metavar="MODEL",
        ),
    ] = None,
    samples: DataFlags,
    how: MethodFlags,
    flags: StaticFlags,
    saved: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the plan: JSON.")
    ] = None,
    other: Annotated[
        Path | None,
        typer.Option("--diff", metavar="FILE", help="Show what differs in this other plan."),
    ] = None,
    nodes: Annotated[
        bool, typer.Option("--nodes", help="List every node and every tensor, with the reason.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what static quantization would do with each node and tensor, and why. Writes no model."""
    from quantkit.plan import read_plan, write_plan

    compared = None if other is None else read_plan(other)  # before anything is run
    found, name, unheeded = _found(model, samples, how, flags, [saved], other, quiet=as_json)
    if saved is not None:
        write_plan(found, saved)
    if other is not None and compared is not None:
        _print_difference(found, compared, f"{name} -> {other}", as_json=as_json)
        return
    if as_json:
        from quantkit.plan.plan_file import FORMAT

        write_json({"format": FORMAT, **found.to_json()})
        return
    _print(found, nodes=nodes)
    for text in unheeded:
        line(f"note: {text}")
    if saved is not None:
        line(f"wrote {saved}")


def _found(
    model: Path | None,
    samples: DataFlags,
    how: MethodFlags,
    flags: StaticFlags,
    written: "Sequence[Path | None]",
    *others: Path | None,
    quiet: bool,
) -> tuple["Plan", str, list[str]]:
    """Return the plan, what it is called, and what was asked for in vain: read from a file, or made if nothing that is read will be overwritten."""
    from quantkit.files import check_outputs
    from quantkit.plan import read_plan
    from quantkit.settings import load_recipe
    from quantkit.workflows.outcome import unheeded
    from quantkit.workflows.pipeline import plan_model

    if model is not None and model.suffix == ".json":
        if samples.used() or flags.used() or how.used():
            raise UsageError(
                f"'{model}' is a plan already: give only --diff, --nodes, --output or --json with it."
            )
        check_outputs(written, [model, *others])
        return read_plan(model), str(model), []
    recipe = load_recipe()
    job = job_of(model, recipe, samples, how, flags)
    read = read_by(job.settings, Path(str(job.source)))
    check_outputs(written, [*read, flags.calibration, recipe.file, *others])
    with watching(quiet=quiet) as monitor:
        made = plan_model(job, monitor)
    return made, str(job.source), unheeded(made, job.options)


def _print_difference(found: "Plan", compared: "Plan", title: str, *, as_json: bool) -> None:
    from quantkit.plan import diff_plans

    lines = diff_plans(found, compared)
    if as_json:
        write_json({"compared": title, "differences": lines})
        return
    line(title)
    for text in lines or ["no difference"]:
        line(text)


def _print(found: "Plan", *, nodes: bool) -> None:
    output().print(static_plan_table(found))
    for reason in float_reasons(found):
        line(reason)
    stored = f"{len(found.activations)} activations with fixed ranges, {len(found.weights)} weights in 8 bits"
    if found.halves:
        stored = f"{len(found.halves)} tensors in 16 bits"
    line(
        f"{stored}, opset {found.min_opset} or newer"
        + (f", for {found.target}" if found.target else "")
    )
    if not nodes:
        return
    line("Nodes: name, operator, mode, why")
    for node in found.nodes:
        line(f"{node.node}  {node.op_type}  {node.mode.words}  {node.why}")
    if found.halves:
        line("Tensors in 16 bits: tensor, type, why")
        for half in found.halves:
            line(f"{half.tensor}  {half.dtype}  {half.why}")
        return
    line("Activations: tensor, type, scale, zero point, why")
    for a in found.activations:
        line(f"{a.tensor}  {a.dtype.name}  {a.scale:.6g}  {a.zero_point}  {a.why}")
    line("Weights: tensor, type, scales")
    for w in found.weights:
        axis = getattr(w.spec.granularity, "axis", None)
        scales = "one" if axis is None else f"one per channel, axis {axis}"
        line(f"{w.tensor}  {w.spec.dtype.name}  {scales}")
