"""`quantkit distill TEACHER STUDENT OUT --data DIR`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quantkit.cli.console import line, marked, print_notes, write_json
from quantkit.cli.flags import Flags, expanded
from quantkit.cli.options import DataFlags, WriteFlags, data_in
from quantkit.cli.progress import watching
from quantkit.cli.result_view import print_verified, print_written
from quantkit.errors import InterruptedRunError
from quantkit.files import check_outputs
from quantkit.settings import DistillSettings, load_recipe
from quantkit.text import human

if TYPE_CHECKING:
    from quantkit.api.results import DistillResult


class _TrainingFlags(Flags):
    """How the student is trained. Not given: as quantkit.toml says."""

    kinds = (DistillSettings,)


@expanded
def distill(  # noqa: PLR0913 - one parameter a flag
    *,
    teacher: Annotated[Path, typer.Argument(help="The model to learn from.", metavar="TEACHER")],
    student: Annotated[
        Path,
        typer.Argument(
            help="The model to train: pruned, trimmed or quantized (QDQ).", metavar="STUDENT"
        ),
    ],
    output: Annotated[Path, typer.Argument(help="Where to write the result.", metavar="OUT")],
    samples: DataFlags,
    flags: _TrainingFlags,
    curve: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also draw the losses as an SVG picture."),
    ] = None,
    write: WriteFlags,
) -> None:
    """Train a pruned or quantized model on the outputs of its original, without labels. Needs torch.

    Some samples are held out: if training does not lower their loss, OUT is the student unchanged.
    Interrupted? Rerun the same command to resume.
    """
    from quantkit.api.distill import distill_with, write_curve
    from quantkit.api.files import files_read

    recipe = load_recipe()
    settings = samples.over_recipe(recipe.data)
    data = data_in(settings)
    check_outputs([output, curve], [*files_read(settings, teacher, student), recipe.file])
    try:
        with watching(quiet=write.as_json, doing="Training") as monitor:
            result = distill_with(
                teacher,
                student,
                output,
                flags.over(recipe.distill),
                data=data,
                settings=settings,
                skip_bad=samples.skip_bad,
                verify=write.verify,
                external_data=write.external_data,
                monitor=monitor,
            )
    except KeyboardInterrupt:
        raise InterruptedRunError(
            "interrupted; nothing was written, and rerunning the same command resumes the training"
        ) from None
    if curve is not None:
        write_curve(result, curve)
    if write.as_json:
        write_json({"input": str(student), "output": str(output), **result.to_json()})
    else:
        _print(result, output, curve)


def _print(result: "DistillResult", output: Path, curve: Path | None) -> None:
    line(str(result.plan))
    for note in result.notes:
        line(note)
    if result.trained.restarts:
        line(f"restarted {result.trained.restarts} times at a quarter of the rate")
    share = result.output_bytes / result.input_bytes
    sizes = f"{human(result.input_bytes)} -> {human(result.output_bytes)}"
    marked(f"[bold]{sizes}[/] ({share:.1%} of the teacher) in {result.seconds:.0f} s")
    checked = result.verification
    if checked is not None:
        how = f"SQNR vs the teacher on {checked.judged_on}"
        print_verified(checked, how, checked.figures())
    print_written(output)
    if curve is not None:
        line(f"wrote {curve}")
    print_notes(result.warnings)
