"""`quantkit quantize float16 IN OUT [--data dir/]`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quantkit.cli.data_options import DataFlags, data_settings, model_of, read_by
from quantkit.cli.flags import Flags, expanded
from quantkit.cli.options import (
    ExternalDataOption,
    JsonOption,
    OutputOption,
    SavePlanOption,
    SourceArgument,
    VerifyOption,
    one_output,
)
from quantkit.cli.progress import watching
from quantkit.cli.result_view import print_result
from quantkit.settings import Float16Settings, Recipe

if TYPE_CHECKING:
    from quantkit.pipeline.forms.float16 import Float16Job

__all__ = ["Float16Flags", "float16", "float16_job"]


class Float16Flags(Flags):
    """What has 16 bits. Not given: as quantkit.toml says."""

    kinds = (Float16Settings,)


def float16_job(
    model: Path | None, recipe: Recipe, samples: DataFlags, flags: Float16Flags
) -> "Float16Job":
    """Return what is to be written in 16 bits and how; without a model, that of the recipe.

    Raises:
        UsageError: The recipe names no model either.
    """
    from quantkit.calibration.collect import CalibrateOptions
    from quantkit.pipeline.forms.float16 import Float16Job

    source = model_of(model, recipe)
    settings = data_settings(recipe.calibrated, samples)
    return Float16Job(
        source=source,
        options=flags.over(recipe.float16),
        data=settings.path,
        settings=settings,
        calibrate=CalibrateOptions(skip_bad=samples.skip_bad),
    )


@expanded
def float16(  # noqa: PLR0913 - one parameter per flag
    *,
    model: SourceArgument = None,
    output: Annotated[
        Path | None,
        typer.Argument(help="Where to write. Default: <model>.float16.onnx here.", metavar="OUT"),
    ] = None,
    named: OutputOption = None,
    flags: Float16Flags,
    samples: DataFlags,
    save_plan: SavePlanOption = None,
    external_data: ExternalDataOption = False,
    verify: VerifyOption = True,
    as_json: JsonOption = False,
) -> None:
    """Store weights in 16 bits, which halves the file; with --compute, compute in float16 too. Needs no data."""
    from quantkit.files import check_outputs
    from quantkit.pipeline.forms.float16 import float16 as line_of_float16
    from quantkit.settings import load_recipe

    recipe = load_recipe()
    job = float16_job(model, recipe, samples, flags)
    source = Path(str(job.source))
    target = one_output(output, named) or Path(f"{source.stem}.{job.options.dtype}.onnx")
    check_outputs([target, save_plan], [*read_by(job.settings, source), recipe.file])
    with watching(quiet=as_json) as monitor:
        result = line_of_float16(
            job, target, verify=verify, external_data=external_data, monitor=monitor
        )
    print_result(result, source, target, save_plan=save_plan, as_json=as_json)
