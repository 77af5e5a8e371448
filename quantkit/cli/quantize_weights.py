"""`quantkit quantize weights IN OUT [--bits 4] [--data dir/]`, and the job that its flags and quantkit.toml describe."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quantkit.cli.data_options import DataFlags, data_settings, model_of, read_by
from quantkit.cli.flags import Flags, expanded
from quantkit.cli.options import (
    ExternalDataOption,
    JsonOption,
    OutputOption,
    PlanOption,
    SavePlanOption,
    SourceArgument,
    VerifyOption,
    one_output,
)
from quantkit.cli.progress import watching
from quantkit.cli.result_view import print_result
from quantkit.errors import UsageError
from quantkit.settings import Recipe, WeightsSettings

if TYPE_CHECKING:
    from quantkit.pipeline.weights import WeightsJob

__all__ = ["WeightsFlags", "weights", "weights_job"]


class WeightsFlags(Flags):
    """What is decided about weights and nodes."""

    kinds = (WeightsSettings,)


def weights_job(
    model: Path | None, recipe: Recipe, samples: DataFlags, flags: WeightsFlags
) -> "WeightsJob":
    """Return what is to be quantized and how; without a model, that of the recipe.

    Raises:
        UsageError: The recipe names no model either.
    """
    from quantkit.pipeline.weights import WeightsJob

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
    model: SourceArgument = None,
    output: Annotated[
        Path | None,
        typer.Argument(help="Where to write. Default: <model>.int4.onnx here.", metavar="OUT"),
    ] = None,
    named: OutputOption = None,
    flags: WeightsFlags,
    samples: DataFlags,
    plan: PlanOption = None,
    save_plan: SavePlanOption = None,
    external_data: ExternalDataOption = False,
    verify: VerifyOption = True,
    as_json: JsonOption = False,
) -> None:
    """Quantize weights to 2 to 8 bits in blocks; activations stay float. Far better with --data below 8 bits."""
    from quantkit.files import check_outputs
    from quantkit.pipeline.weights import quantize_weights
    from quantkit.quantize.plan import read_plan
    from quantkit.settings import load_recipe

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
    print_result(result, job.source, target, save_plan=save_plan, as_json=as_json)
