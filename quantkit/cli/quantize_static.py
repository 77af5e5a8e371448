"""`quantkit quantize static IN OUT --data dir/`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quantkit.cli.calibration_view import watching
from quantkit.cli.console import JsonOption, write_json
from quantkit.cli.data_options import DataFlags, MethodFlags, read_by
from quantkit.cli.flags import expanded
from quantkit.cli.result_view import print_result
from quantkit.cli.static_jobs import StaticFlags, job_of

if TYPE_CHECKING:
    from quantkit.workflows.record import StaticJob

__all__ = ["static"]

_BYTE = 8


@expanded
def static(  # noqa: PLR0913 - one parameter a flag
    *,
    model: Annotated[
        Path | None, typer.Argument(help="The float32 model; or in quantkit.toml.", metavar="IN")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Argument(help="Where to write. Default: <model>.int8.onnx here.", metavar="OUT"),
    ] = None,
    samples: DataFlags,
    how: MethodFlags,
    flags: StaticFlags,
    plan: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Quantize as this plan says, written by --save-plan or quantkit plan -o.",
        ),
    ] = None,
    save_plan: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write the plan: every decision with its reason."),
    ] = None,
    external_data: Annotated[
        bool, typer.Option("--external-data", help="Write weights to a .data file beside OUT.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Load, run and compare before writing.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Quantize weights and activations to int8, with ranges calibrated on real data (--data or --calibration)."""
    from quantkit.files import check_outputs
    from quantkit.plan import read_plan, write_plan
    from quantkit.settings import load_recipe
    from quantkit.workflows.pipeline import static as pipeline

    recipe = load_recipe()
    given = None if plan is None else read_plan(plan)
    job = job_of(model, recipe, samples, how, flags, plan=given)
    target = output or Path(f"{Path(str(job.source)).stem}.int8.onnx")
    read = read_by(job.settings, Path(str(job.source)))
    check_outputs([target, save_plan], [*read, plan, flags.calibration, recipe.file])
    with watching(quiet=as_json) as monitor:
        result = pipeline(
            job,
            target,
            plan=given,
            verify=verify,
            external_data=external_data,
            monitor=monitor,
        )
    if save_plan is not None:
        write_plan(result.plan, save_plan)
    if as_json:
        write_json({"input": str(job.source), "output": str(target), **result.to_json()})
        return
    print_result(result, target, "" if given else _promise(job))


def _promise(job: "StaticJob") -> str:
    """Say what holds for the result: on the default target, whose weights are pair-safe, for every CPU."""
    options = job.options
    if options.runs_on.name != "cpu":
        return f"target {options.runs_on.name}: {options.runs_on.title}"
    wide = options.activation.bits > _BYTE  # runs in float
    return "" if wide else "gives the same integers on AVX2, VNNI and ARM CPUs"
