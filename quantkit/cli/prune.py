"""`quantkit prune MODEL OUT --data DIR`, and the table of `quantkit plan prune`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quantkit.cli.console import (
    Column,
    fitted_table,
    line,
    marked,
    output,
    print_notes,
    write_json,
)
from quantkit.cli.flags import expanded
from quantkit.cli.options import (
    DataFlags,
    OutputOption,
    SourceArgument,
    WriteFlags,
    data_in,
    one_output,
)
from quantkit.cli.tasks import PruneFlags, run_task, task_of
from quantkit.files import check_outputs
from quantkit.settings import load_recipe
from quantkit.text import human

if TYPE_CHECKING:
    from quantkit.api.results import PrunedFile, PrunePlan


@expanded
def prune(
    *,
    model: SourceArgument = None,
    out: Annotated[
        Path | None,
        typer.Argument(help="Where to write. Default: <model>.pruned.onnx here.", metavar="OUT"),
    ] = None,
    named: OutputOption = None,
    flags: PruneFlags,
    samples: DataFlags,
    write: WriteFlags,
) -> None:
    """Remove channels, neurons, attention heads and blocks to a latency, a size or a drop. Needs data, no labels, no training.

    `quantkit plan prune` shows the prices first. Exits with 1 if the target is out of reach, or if int8 gains less than 10 % of its
    latency from pruning (--force goes on); nothing is written then.
    """
    from quantkit.api.files import files_read
    from quantkit.api.results import PruneResult

    recipe = load_recipe()
    task = task_of(model, recipe, samples, flags.over(recipe.prune))
    data_in(task.samples)
    source = Path(str(task.source))
    target = one_output(out, named) or Path(f"{source.stem}.pruned.onnx")
    check_outputs([target], [*files_read(task.samples, source), recipe.file])
    result: Any = run_task(
        task,
        target,
        quiet=write.as_json,
        verify=write.verify,
        external_data=write.external_data,
    )
    if write.as_json:
        write_json({"input": str(source), "output": str(target), **result.to_json()})
        return
    if isinstance(result, PruneResult):
        _print_removed(result.plan)
    share = result.output_bytes / result.input_bytes
    sizes = f"{human(result.input_bytes)} -> {human(result.output_bytes)}"
    marked(f"[bold]{sizes}[/] ({share:.1%} of float) in {result.seconds:.1f} s")
    for text in (*result.measured, *result.notes):
        line(text)
    line(f"wrote {target}")
    print_notes(result.warnings)


def _print_removed(plan: "PrunePlan") -> None:
    columns = (Column(title="group", left=True), Column(title="units"), Column(title="kept"))
    kept = plan.widths.kept
    rows = [(name, str(plan.units[name]), str(kept[name])) for name in plan.units if name in kept]
    rows += [(name, "block", "affine map") for name in sorted(plan.widths.mapped)]
    output().print(fitted_table("Removed", columns, rows))


def print_frontier(plan: "PrunePlan", *, nodes: bool) -> None:
    """Print what pruning would save and lose, and what int8 gains from it.

    Args:
        plan: What was planned.
        nodes: List what would be removed, too.
    """
    columns = (
        Column(title="of float's\ntime"),
        Column(title="of float's\nsize"),
        Column(title="drop before\nrefitting"),
        Column(title="predicted\nnoise", drop=1),
    )
    rows = [_row(one) for one in plan.frontier]
    output().print(fitted_table("What pruning costs", columns, rows))
    if nodes:
        _print_removed(plan)
    if plan.split is not None:
        line(
            f"{plan.split}; weights are fitted in order when the file is written, which lowers the drop"
        )
    if plan.int8 is not None:
        alone, on_top = plan.int8
        line(
            f"int8 alone takes {alone:.2f} of float's latency, int8 of the pruned model {on_top:.2f} of that"
        )
    if plan.refusal:
        marked(f"[yellow]{plan.refusal}[/]")


def _row(one: "PrunedFile") -> tuple[str, ...]:
    drop = "-" if one.judged is None else one.judged.text()
    return f"{one.speed:.2f}", f"{one.size:.1%}", drop, f"{100 * one.noise:.1f} %"
