"""`quantkit plan [static | weights | float16] MODEL`, and `quantkit plan A.json --diff B.json`."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quantkit.cli.console import line, output, write_json
from quantkit.cli.data_options import DataFlags, MethodFlags, read_by
from quantkit.cli.flags import Command, Group, expanded
from quantkit.cli.options import JsonOption, ModelArgument
from quantkit.cli.plan_view import block_reasons, float_reasons, static_plan_table
from quantkit.cli.progress import watching
from quantkit.cli.quantize_float16 import Float16Flags, float16_job
from quantkit.cli.quantize_static import StaticFlags, job_of
from quantkit.cli.quantize_weights import WeightsFlags, weights_job
from quantkit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quantkit.pipeline.forms.float16 import Float16Job
    from quantkit.pipeline.weights import WeightsJob
    from quantkit.quantize.plan import Plan, WeightPlan
    from quantkit.settings import Recipe

__all__ = ["plan"]


_OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the plan: JSON.")
]
_NodesOption = Annotated[
    bool, typer.Option("--nodes", help="List every node and every tensor, with the reason.")
]


class _StaticUnlessSaid(Group):
    """`plan MODEL` is that of static quantization."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in self.commands:
            args = ["static", *args]
        return super().parse_args(ctx, args)


_HELP = "Show what would be done with each node and tensor, and why: static (if nothing is said), weights or float16. Writes no model."
plan = typer.Typer(cls=_StaticUnlessSaid, help=_HELP)


@plan.callback(help=_HELP)
def _group() -> None: ...


@plan.command(cls=Command)
@expanded
def static(  # noqa: PLR0913 - one parameter a flag
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
    saved: _OutputOption = None,
    other: Annotated[
        Path | None,
        typer.Option("--diff", metavar="FILE", help="Show what differs in this other plan."),
    ] = None,
    nodes: _NodesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show what static quantization would do with each node and tensor, and why; or look at any plan. Writes no model.

    `quantkit plan weights` and `quantkit plan float16` do the same for weights in blocks and for 16 bits.
    """
    from quantkit.quantize.plan import read_plan

    compared = None if other is None else read_plan(other)  # before anything is run
    found, name, unheeded = _found(model, samples, how, flags, [saved], other, quiet=as_json)
    if other is not None and compared is not None:
        _save(found, saved)
        _print_difference(found, compared, f"{name} -> {other}", as_json=as_json)
        return
    _show(found, saved, nodes=nodes, as_json=as_json, notes=unheeded)


@plan.command(cls=Command)
@expanded
def weights(
    *,
    model: ModelArgument = None,
    flags: WeightsFlags,
    samples: DataFlags,
    saved: _OutputOption = None,
    nodes: _NodesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show which weights would be in blocks of how many bits, which kernel path each node would take, and why."""
    from quantkit.pipeline.weights import plan_weights
    from quantkit.settings import load_recipe

    recipe = load_recipe()
    job = weights_job(model, recipe, samples, flags)
    _check_outputs(job, recipe, saved)
    with watching(quiet=as_json) as monitor:
        found = plan_weights(job, monitor)
    _show(found, saved, nodes=nodes, as_json=as_json)


@plan.command(cls=Command)
@expanded
def float16(
    *,
    model: ModelArgument = None,
    flags: Float16Flags,
    samples: DataFlags,
    saved: _OutputOption = None,
    nodes: _NodesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show which tensors would have 16 bits, which nodes would compute in float16, and why not the others."""
    from quantkit.pipeline.forms.float16 import plan_float16
    from quantkit.settings import load_recipe

    recipe = load_recipe()
    job = float16_job(model, recipe, samples, flags)
    _check_outputs(job, recipe, saved)
    with watching(quiet=as_json) as monitor:
        found = plan_float16(job, monitor)
    _show(found, saved, nodes=nodes, as_json=as_json)


def _check_outputs(job: "WeightsJob | Float16Job", recipe: "Recipe", saved: Path | None) -> None:
    """Refuse to write a plan over what is read."""
    from quantkit.files import check_outputs

    check_outputs([saved], [*read_by(job.settings, Path(str(job.source))), recipe.file])


def _save(found: "Plan", saved: Path | None) -> None:
    from quantkit.quantize.plan import write_plan

    if saved is not None:
        write_plan(found, saved)


def _show(
    found: "Plan",
    saved: Path | None,
    *,
    nodes: bool,
    as_json: bool,
    notes: "Sequence[str]" = (),
) -> None:
    """Write a plan where it is asked for, and print it."""
    from quantkit.quantize.plan.plan_file import FORMAT

    _save(found, saved)
    if as_json:
        write_json({"format": FORMAT, **found.to_json()})
        return
    _print(found, nodes=nodes)
    for text in notes:
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
    from quantkit.pipeline.ignored import ignored_requests
    from quantkit.pipeline.pipeline import plan_model
    from quantkit.quantize.plan import read_plan
    from quantkit.settings import load_recipe

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
    return made, str(job.source), ignored_requests(made, job.options)


def _print_difference(found: "Plan", compared: "Plan", title: str, *, as_json: bool) -> None:
    from quantkit.quantize.plan import diff_plans

    lines = diff_plans(found, compared)
    if as_json:
        write_json({"compared": title, "differences": lines})
        return
    line(title)
    for text in lines or ["no difference"]:
        line(text)


def _print(found: "Plan", *, nodes: bool) -> None:
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
