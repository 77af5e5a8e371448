"""`quantkit quantize [static | dynamic | weights | float16] IN OUT`."""

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quantkit.cli.flags import Command, Flags, Group, expanded
from quantkit.cli.options import (
    DataFlags,
    OutputOption,
    PlanOption,
    SavePlanOption,
    SourceArgument,
    WriteFlags,
    one_output,
)
from quantkit.cli.result_view import present
from quantkit.cli.tasks import (
    Float16Flags,
    MethodFlags,
    StaticFlags,
    WeightsFlags,
    refuse_choices,
    run_task,
    static_task,
    task_of,
)
from quantkit.errors import UsageError
from quantkit.files import check_outputs
from quantkit.settings import DynamicSettings, load_recipe

if TYPE_CHECKING:
    from quantkit.api.quantize import Task


_DATA_FLAGS = ("--data", "--calibration", "--plan")


class _StaticOrDynamic(Group):
    """`quantize IN OUT` is static where data is given; else the user is told of both."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not any(name in args for name in self.commands) and _model_in(args):
            args = ["static", *args]
            if not _has_data(args):
                model, *rest = (a for a in args[1:] if not a.startswith("-"))
                files = shlex.join([model, *rest[:1]] if rest else [model, "OUT"])
                raise UsageError(
                    f"static or dynamic? 'quantkit quantize static {files} --data DIR' calibrates on real "
                    f"samples: fastest, also for Conv; 'quantkit quantize dynamic {files}' needs no data."
                )
        return super().parse_args(ctx, args)


def _model_in(args: list[str]) -> bool:
    """Tell whether a model stands where the mode should, perhaps behind flags."""
    start = args if args[:1] and args[0].startswith("-") else args[:1]
    return any(a.endswith(".onnx") or Path(a).is_file() for a in start if not a.startswith("-"))


def _has_data(args: list[str]) -> bool:
    """Tell whether a flag or quantkit.toml names data."""
    if any(a.split("=")[0] in _DATA_FLAGS for a in args):
        return True
    return load_recipe().data.path is not None


_HELP = "Quantize a model: static (calibrated on real data), dynamic (no data needed), weights (few bits, in blocks) or float16 (half the file)."
quantize = typer.Typer(cls=_StaticOrDynamic, no_args_is_help=True, help=_HELP)


@quantize.callback(help=_HELP)
def _group() -> None: ...


def _out(suffix: str) -> Any:
    text = f"Where to write. Default: <model>.{suffix}.onnx here."
    return typer.Argument(help=text, metavar="OUT")


class _DynamicFlags(Flags):
    """What is decided about weights and nodes."""

    kinds = (DynamicSettings,)


@quantize.command(cls=Command)
@expanded
def dynamic(
    *,
    model: Annotated[Path, typer.Argument(help="The float32 model.", metavar="IN")],
    output: Annotated[Path | None, _out("int8")] = None,
    named: OutputOption = None,
    flags: _DynamicFlags,
    sample: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Verify with these inputs: an .npz keyed by input name."),
    ] = None,
    write: WriteFlags,
) -> None:
    """Quantize weights to int8, and activations while the model runs. Needs no data."""
    from quantkit.api.files import read_inputs
    from quantkit.api.quantize import Task

    if sample is not None and not write.verify:
        raise UsageError("--sample is what the result is verified with; leave out --no-verify.")
    inputs = None if sample is None else read_inputs(sample)
    task = Task(source=model, how=flags.over(DynamicSettings()), data=inputs)
    _run(task, one_output(output, named), write, "int8", read=[sample])


@quantize.command(cls=Command)
@expanded
def static(  # noqa: PLR0913 - one parameter a flag
    *,
    model: SourceArgument = None,
    output: Annotated[Path | None, _out("int8")] = None,
    named: OutputOption = None,
    samples: DataFlags,
    how: MethodFlags,
    flags: StaticFlags,
    plan: PlanOption = None,
    save_plan: SavePlanOption = None,
    write: WriteFlags,
) -> None:
    """Quantize weights and activations to int8, with ranges calibrated on real data (--data or --calibration)."""
    refuse_choices(flags, plan)
    recipe = load_recipe()
    task = static_task(model, recipe, samples, how, flags)
    read = [flags.calibration, recipe.file]
    _run(task, one_output(output, named), write, "int8", plan=plan, save_plan=save_plan, read=read)


@quantize.command(cls=Command)
@expanded
def weights(  # noqa: PLR0913 - one parameter per flag
    *,
    model: SourceArgument = None,
    output: Annotated[Path | None, _out("int4")] = None,
    named: OutputOption = None,
    flags: WeightsFlags,
    samples: DataFlags,
    plan: PlanOption = None,
    save_plan: SavePlanOption = None,
    write: WriteFlags,
) -> None:
    """Quantize weights to 2 to 8 bits in blocks; activations stay float. Far better with --data below 8 bits."""
    refuse_choices(flags, plan)
    recipe = load_recipe()
    how = flags.over(recipe.weights)
    task = task_of(model, recipe, samples, how)
    read = [recipe.file]
    _run(
        task,
        one_output(output, named),
        write,
        f"int{how.bits}",
        plan=plan,
        save_plan=save_plan,
        read=read,
    )


@quantize.command(cls=Command)
@expanded
def float16(  # noqa: PLR0913 - one parameter a flag
    *,
    model: SourceArgument = None,
    output: Annotated[Path | None, _out("float16")] = None,
    named: OutputOption = None,
    flags: Float16Flags,
    samples: DataFlags,
    save_plan: SavePlanOption = None,
    write: WriteFlags,
) -> None:
    """Store weights in 16 bits, which halves the file; with --compute, compute in float16 too. Needs no data."""
    recipe = load_recipe()
    how = flags.over(recipe.float16)
    task = task_of(model, recipe, samples, how)
    _run(task, one_output(output, named), write, how.dtype, save_plan=save_plan, read=[recipe.file])


def _run(  # noqa: PLR0913 - one parameter per question
    task: "Task",
    output: Path | None,
    write: WriteFlags,
    suffix: str,
    *,
    plan: Path | None = None,
    save_plan: Path | None = None,
    read: Iterable[Path | None] = (),
) -> None:
    """Quantize, and show what was done.

    Args:
        task: What to quantize, and how.
        output: Where to write; None: into the working directory.
        write: How the result is written and shown.
        suffix: What then tells the result's name from the model's.
        plan: The plan to apply.
        save_plan: Where to write the plan.
        read: What else must not be overwritten.
    """
    from quantkit.api.files import files_read, read_plan, write_plan

    source = Path(str(task.source))
    target = output or Path(f"{source.stem}.{suffix}.onnx")
    applied = None if plan is None else read_plan(plan)
    check_outputs([target, save_plan], [*files_read(task.samples, source), plan, *read])
    result = run_task(
        task,
        target,
        quiet=write.as_json,
        plan=applied,
        verify=write.verify,
        external_data=write.external_data,
    )
    if save_plan is not None:
        write_plan(result.plan, save_plan)
    present(result, task, target, planned=applied is not None, as_json=write.as_json)
