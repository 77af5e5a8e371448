"""`distill`: train a student on the outputs of its teacher."""

from collections.abc import Sequence
from pathlib import Path

from quantkit.api.arguments import (
    as_path,
    check_output,
    checked_kinds,
    checked_names,
    sample_settings,
)
from quantkit.calibration.collect import CalibrateOptions
from quantkit.calibration.monitor import Monitor
from quantkit.data.objects import check_data
from quantkit.evaluate.report.curve import curve_svg
from quantkit.files import replace_text
from quantkit.pipeline.distilled import DistillResult
from quantkit.pipeline.form import run_form
from quantkit.pipeline.forms import form_of
from quantkit.pipeline.prepared import Job, Output
from quantkit.settings import DataSettings, DistillSettings


@checked_kinds
def distill(  # noqa: PLR0913 - one parameter per question
    teacher: str | Path,
    student: str | Path,
    model_output: str | Path,
    data: object,
    *,
    minutes: float = 10.0,
    steps: int | None = None,
    rate: float = 1.0,
    freeze: str | None = None,
    embeddings: Sequence[str] = (),
    augment: bool | None = None,
    threads: int | None = None,
    precision: str | None = None,
    settings: DataSettings | None = None,
    limit: int | None = None,
    batch: int | None = None,
    memory: int | str | None = None,
    skip_bad: bool = False,
    use_external_data_format: bool = False,
    verify: bool = True,
) -> DistillResult:
    """Train a student on the outputs of its teacher, with unlabelled samples. Needs torch.

    The student is a pruned, trimmed or quantized model: any ONNX file with the inputs and outputs of the teacher. Its graph stays
    as it is; trained weights go back under their names, integers in the scales of the file. Some samples are held out: the
    weights with the least held-out loss are written, and the student as it was if training did not lower that.
    Interrupted, the same call resumes.

        result = quantkit.distill("model.onnx", "pruned.onnx", "student.onnx", "images/", minutes=3)
        print(result.improved, result.trained.start, result.trained.best)

    Args:
        teacher: The large model.
        student: The model to train; it is only read.
        model_output: Where to write.
        data: What `quantkit.calibrate` takes, other than what can be read only once. Labels are not used.
        minutes: About how long to train.
        steps: Train for this many steps instead; then the same call writes the same bytes on the same CPU with the same torch.
        rate: A factor of the learning rate.
        freeze: Name of a node: only layers behind it are trained, and those before it run once per sample.
        embeddings: Outputs that are embeddings: their directions are compared.
        augment: Shift and mirror images while training; None: if inputs are colour images.
        threads: Of the training; None: as torch chooses.
        precision: "float32" or "bfloat16"; None: bfloat16 for float students on CPUs that have it.
        settings: How samples are prepared and ordered; its seed is also that of the training.
        limit: Use at most this many samples; overrides the settings.
        batch: Samples in a step; overrides the settings.
        memory: Bytes of samples to keep in memory (or "500MB", "1GB"); overrides the settings.
        skip_bad: Leave out samples that cannot be read, instead of failing.
        use_external_data_format: Write a ``.data`` file also below 2 GB.
        verify: Load and run the result, and compare it with the teacher, before it is written.

    Returns:
        Whether the held-out loss fell, its curve, sizes, and what the verification found.

    Raises:
        QuantkitError: With one line that says what is wrong and what to do. Nothing is written then.
    """
    how = DistillSettings(
        minutes=minutes,
        steps=steps,
        rate=rate,
        freeze=freeze,
        embeddings=checked_names(embeddings, "embeddings"),
        augment=augment,
        threads=threads,
        precision=precision,  # type: ignore[arg-type]  # checked there
    )
    return distill_with(
        as_path(teacher, "teacher"),
        as_path(student, "student"),
        model_output,
        how,
        data=data,
        settings=sample_settings(settings, limit=limit, batch=batch, memory=memory),
        skip_bad=skip_bad,
        verify=verify,
        external_data=use_external_data_format,
    )


def distill_with(  # noqa: PLR0913 - one parameter per question
    teacher: Path,
    student: Path,
    output: str | Path,
    how: DistillSettings,
    *,
    data: object,
    settings: DataSettings,
    skip_bad: bool = False,
    verify: bool = True,
    external_data: bool = False,
    monitor: Monitor | None = None,
) -> DistillResult:
    """Train a student as settings say.

    Args:
        teacher: The large model.
        student: The model to train.
        output: Where to write.
        how: How it is trained.
        data: The samples.
        settings: How samples are prepared and ordered.
        skip_bad: Leave out samples that cannot be read.
        verify: Load and run the result before it is written.
        external_data: Write weights to a ``.data`` file.
        monitor: Receives the progress; None: nobody does.
    """
    check_output(output)
    if not isinstance(data, str | Path):
        check_data(data)
    job = Job(
        source=teacher,
        student=student,
        options=how,
        data=data,
        settings=settings,
        calibrate=CalibrateOptions(skip_bad=skip_bad),
    )
    to = Output(path=Path(output), verify=verify, external_data=external_data)
    result: DistillResult = run_form(form_of(job, to, monitor))
    return result


def write_curve(result: DistillResult, path: str | Path) -> None:
    """Write the losses of a training as an SVG picture."""
    trained = result.trained
    replace_text(
        Path(path), curve_svg(trained.measure, trained.curve, trained.losses, trained.best_step)
    )
