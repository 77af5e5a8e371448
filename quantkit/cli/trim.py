"""`quantkit trim MODEL|FOLDER OUT --data TEXTS`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quantkit.cli.console import line, marked, new_table, output, print_notes, write_json
from quantkit.cli.flags import Flags, expanded
from quantkit.cli.options import DataFlags, OutputOption, WriteFlags, data_in, model_of, one_output
from quantkit.cli.progress import watching
from quantkit.cli.result_view import print_verified
from quantkit.errors import UsageError
from quantkit.settings import TrimSettings, load_recipe
from quantkit.text import human

if TYPE_CHECKING:
    from rich.table import Table

    from quantkit.api.trim import TrimResult


class _TrimFlags(Flags):
    """Which form the smaller vocabulary has."""

    kinds = (TrimSettings,)


@expanded
def trim(
    *,
    model: Annotated[
        Path | None,
        typer.Argument(
            help="A text model, float or quantized; or a folder with model.onnx and tokenizer.json. Or in quantkit.toml.",
            metavar="IN",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Argument(help="Where to write: a model, or for a folder a folder.", metavar="OUT"),
    ] = None,
    named: OutputOption = None,
    samples: DataFlags,
    flags: _TrimFlags,
    write: WriteFlags,
) -> None:
    """Remove the tokens that texts do not use from a model and its tokenizer. Covered texts give the same outputs, bit for bit."""
    from quantkit.api.trim import run_trim

    recipe, target = load_recipe(), one_output(out, named)
    source = model_of(model, recipe)
    if target is None:
        raise UsageError("Where to write? quantkit trim IN OUT --data TEXTS.")
    settings = samples.over_recipe(recipe.data)
    data, how = data_in(settings), flags.over(recipe.trim)
    with watching(quiet=write.as_json, calibrates=False) as monitor:
        result = run_trim(
            source,
            target,
            how,
            data,
            settings,
            skip_bad=samples.skip_bad,
            verify=write.verify,
            external_data=write.external_data,
            monitor=monitor,
        )
    if write.as_json:
        write_json({"input": str(source), "output": str(target), **result.to_json()})
    else:
        _present(result, target)


def _present(result: "TrimResult", target: Path) -> None:
    """Print what was trimmed, and what it costs."""
    plan, checked = result.plan, result.verification
    output().print(_part_table(result))
    share = result.output_bytes / result.input_bytes
    sizes = f"{human(result.input_bytes)} -> {human(result.output_bytes)}"
    marked(f"[bold]{sizes}[/] ({share:.1%} of the full file) in {result.seconds:.2f} s")
    line(f"{len(plan.kept.ids):,} of {plan.kept.rows:,} tokens kept")
    line(str(plan.coverage))
    if result.cosine is not None:
        line(
            f"uncovered texts: cosine of outputs {result.cosine:.3f} on average, on {result.uncovered} of them"
        )
    for logits in plan.kept.logits:
        line(_logits(logits, same_ids=plan.kept.same_ids))
    if result.compared:
        line(
            f"{result.compared - result.differ:,} of {result.compared:,} texts cut into the same pieces"
        )
    if checked is not None:
        print_verified(checked, f"against the full model on {checked.judged_on}", checked.figures())
    line(f"wrote {target}" + "".join(f", {name}" for name in result.files))
    if result.left_out:
        line(f"left out, as they are for the full vocabulary: {', '.join(result.left_out)}")
    print_notes(result.warnings)


def _logits(name: str, *, same_ids: bool) -> str:
    if same_ids:
        return f"output '{name}': values of removed tokens are the lowest number"
    return f"output '{name}': a value for each kept token, in the order of new ids"


def _part_table(result: "TrimResult") -> "Table":
    """Show the size of each part before and after."""
    table = new_table("Size", ("part",), ("before", "after"))
    for name, (before, after) in result.parts.items():
        table.add_row(name, human(before), human(after))
    table.add_section()
    table.add_row("total", human(result.input_bytes), human(result.output_bytes))
    return table
