"""`quantkit plan [static | weights | float16] MODEL`, and `quantkit plan A.json --diff B.json`."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quantkit.cli.console import line, write_json
from quantkit.cli.flags import Command, Flags, Group, expanded
from quantkit.cli.options import DataFlags, JsonOption, ModelArgument
from quantkit.cli.progress import watching
from quantkit.cli.prune import print_frontier
from quantkit.cli.result_view import print_plan
from quantkit.cli.tasks import (
    Float16Flags,
    MethodFlags,
    PruneFlags,
    StaticFlags,
    WeightsFlags,
    static_task,
    task_of,
)
from quantkit.errors import UsageError
from quantkit.files import check_outputs
from quantkit.settings import load_recipe

if TYPE_CHECKING:
    from quantkit.api.quantize import Task
    from quantkit.api.results import Plan


@dataclass(frozen=True, kw_only=True)
class _ShowFlags(Flags):
    """Where the plan goes."""

    saved: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the plan: JSON.")
    ] = None
    nodes: Annotated[
        bool, typer.Option("--nodes", help="List every node and every tensor, with the reason.")
    ] = False
    as_json: JsonOption = False


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
def static(
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
    other: Annotated[
        Path | None,
        typer.Option("--diff", metavar="FILE", help="Show what differs in this other plan."),
    ] = None,
    show: _ShowFlags,
) -> None:
    """Show what static quantization would do with each node and tensor, and why; or look at any plan. Writes no model.

    `quantkit plan weights` and `quantkit plan float16` do the same for weights in blocks and for 16 bits.
    """
    from quantkit.api.files import read_plan
    from quantkit.api.quantize import ignored_requests

    compared = None if other is None else read_plan(other)  # before anything is run
    notes: list[str] = []
    if model is not None and model.suffix == ".json":
        if samples.used() or flags.used() or how.used():
            raise UsageError(
                f"'{model}' is a plan already: give only --diff, --nodes, --output or --json with it."
            )
        check_outputs([show.saved], [model, other])
        found, name = read_plan(model), str(model)
    else:
        recipe = load_recipe()
        task = static_task(model, recipe, samples, how, flags)
        found = _planned(task, show, [flags.calibration, recipe.file, other])
        name, notes = str(task.source), ignored_requests(found, flags.over_recipe(recipe.static))
    if other is None or compared is None:
        _show(found, show, notes)
    else:
        _show_difference(found, compared, f"{name} -> {other}", show)


@plan.command(cls=Command)
@expanded
def weights(
    *, model: ModelArgument = None, flags: WeightsFlags, samples: DataFlags, show: _ShowFlags
) -> None:
    """Show which weights would be in blocks of how many bits, which kernel path each node would take, and why."""
    recipe = load_recipe()
    task = task_of(model, recipe, samples, flags.over(recipe.weights))
    _show(_planned(task, show, [recipe.file]), show)


@plan.command(cls=Command)
@expanded
def float16(
    *, model: ModelArgument = None, flags: Float16Flags, samples: DataFlags, show: _ShowFlags
) -> None:
    """Show which tensors would have 16 bits, which nodes would compute in float16, and why not the others."""
    recipe = load_recipe()
    task = task_of(model, recipe, samples, flags.over(recipe.float16))
    _show(_planned(task, show, [recipe.file]), show)


@plan.command(cls=Command)
@expanded
def prune(
    *, model: ModelArgument = None, flags: PruneFlags, samples: DataFlags, show: _ShowFlags
) -> None:
    """Show what pruning would save and lose, and whether int8 gains from it: exits with 1 if it does not."""
    from quantkit.api.results import PrunePlan

    recipe = load_recipe()
    how = flags.over(recipe.prune)
    task = task_of(model, recipe, samples, how)
    found: Any = _planned(task, show, [recipe.file])
    if show.as_json:
        write_json(found.to_json())
    elif isinstance(found, PrunePlan):
        print_frontier(found, nodes=show.nodes)
    else:
        line(str(found))
    if getattr(found, "refusal", "") and not how.force:
        raise typer.Exit(1)


def _planned(task: "Task", show: _ShowFlags, read: Iterable[Path | None]) -> "Plan":
    """Make a plan, if nothing that is read will be overwritten."""
    from quantkit.api.files import files_read
    from quantkit.api.quantize import make_plan

    check_outputs([show.saved], [*files_read(task.samples, Path(str(task.source))), *read])
    with watching(quiet=show.as_json) as monitor:
        return make_plan(task, monitor)


def _show(found: "Plan", show: _ShowFlags, notes: Iterable[str] = ()) -> None:
    """Write a plan where it is asked for, and print it."""
    from quantkit.api.files import PLAN_FORMAT, write_plan

    if show.saved is not None:
        write_plan(found, show.saved)
    if show.as_json:
        write_json({"format": PLAN_FORMAT, **found.to_json()})
        return
    print_plan(found, nodes=show.nodes)
    for text in notes:
        line(f"note: {text}")
    if show.saved is not None:
        line(f"wrote {show.saved}")


def _show_difference(found: "Plan", compared: "Plan", title: str, show: _ShowFlags) -> None:
    """Write a plan where it is asked for, and print how another one differs."""
    from quantkit.api.files import diff_plans, write_plan

    if show.saved is not None:
        write_plan(found, show.saved)
    lines = diff_plans(found, compared)
    if show.as_json:
        write_json({"compared": title, "differences": lines})
        return
    line(title)
    for text in lines or ["no difference"]:
        line(text)
