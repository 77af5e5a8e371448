"""`quantkit quantize weights IN OUT [--bits 4] [--data dir/]`, and the job that its flags and quantkit.toml describe."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quantkit.cli.calibration_view import watching
from quantkit.cli.console import (
    ExternalDataOption,
    JsonOption,
    OutputOption,
    VerifyOption,
    one_output,
    write_json,
)
from quantkit.cli.data_options import DataFlags, data_settings, model_of, read_by
from quantkit.cli.flags import Flags, expanded
from quantkit.cli.result_view import print_result
from quantkit.errors import UsageError
from quantkit.settings import Recipe, WeightsSettings

if TYPE_CHECKING:
    from quantkit.workflows.weights import WeightsJob

__all__ = ["WeightsFlags", "weights", "weights_job"]


class WeightsFlags(Flags):
    """What is decided about weights and nodes."""

    kinds = (WeightsSettings,)


def weights_job(
    model: Path | None, recipe: Recipe, samples: DataFlags, flags: WeightsFlags
) -> "WeightsJob":
    """Return what is to be quantized and how.

    Args:
        model: The float model; None: that of the recipe.
        recipe: What quantkit.toml says.
        samples: The flags of data.
        flags: The flags of weights.

    Raises:
        UsageError: The model is missing.
    """
    from quantkit.workflows.weights import WeightsJob

    source = model_of(model, recipe)
    settings = data_settings(recipe.calibrated, samples)
    return WeightsJob(
        source=source,
        data=settings.path,
        options=flags.over(recipe.weights),
        settings=settings,
        skip_bad=samples.skip_bad,
    )


@expanded
def weights(  # noqa: PLR0913 - one parameter per flag
    *,
    model: Annotated[
        Path | None, typer.Argument(help="The float32 model; or in quantkit.toml.", metavar="IN")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Argument(help="Where to write. Default: <model>.int4.onnx here.", metavar="OUT"),
    ] = None,
    named: OutputOption = None,
    flags: WeightsFlags,
    samples: DataFlags,
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
    external_data: ExternalDataOption = False,
    verify: VerifyOption = True,
    as_json: JsonOption = False,
) -> None:
    """Quantize weights to 2 to 8 bits in blocks; activations stay float. Far better with --data below 8 bits."""
    from quantkit.files import check_outputs
    from quantkit.plan import read_plan, write_plan
    from quantkit.settings import load_recipe
    from quantkit.workflows.weights import quantize_weights

    recipe = load_recipe()
    given = None if plan is None else read_plan(plan)
    if given is not None and flags.used():
        raise UsageError(
            f"{flags.used()} is for a plan to be made, and --plan gives one: edit that, or leave one out."
        )
    job = weights_job(model, recipe, samples, flags)
    source = Path(str(job.source))
    target = one_output(output, named) or Path(f"{source.stem}.int{job.options.bits}.onnx")
    check_outputs([target, save_plan], [*read_by(job.settings, source), plan, recipe.file])
    with watching(quiet=as_json, doing="Solving") as monitor:
        result = quantize_weights(
            job, target, plan=given, verify=verify, external_data=external_data, monitor=monitor
        )
    if save_plan is not None:
        write_plan(result.plan, save_plan)
    if as_json:
        write_json({"input": str(job.source), "output": str(target), **result.to_json()})
        return
    print_result(result, target)
