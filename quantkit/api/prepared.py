"""What `quantize_static` does, a step at a time: prepare once, then plan and realize as often as one likes."""

from dataclasses import replace
from pathlib import Path

import onnx

from quantkit.api.arguments import as_path, check_output, checked_kinds
from quantkit.api.static import static_job
from quantkit.observe.collect import CalibrateOptions
from quantkit.plan import Format, Plan
from quantkit.settings import DataSettings, RecoverSettings, StaticSettings
from quantkit.workflows import saved
from quantkit.workflows.outcome import QuantizeResult
from quantkit.workflows.pipeline import prepare_model
from quantkit.workflows.prepare import Prepared, plan_of, with_choices
from quantkit.workflows.realize import realize

__all__ = ["load_prepared", "plan_prepared", "prepare_static", "realize_plan", "save_prepared"]


@checked_kinds
def prepare_static(
    model: str | Path | onnx.ModelProto,
    data_or_calibration: object,
    static: StaticSettings | None = None,
    settings: DataSettings | None = None,
    *,
    skip_bad: bool = False,
) -> Prepared:
    """Do all of `quantize_static` that every plan of a model shares: simplify, equalize, observe.

    The data is run here. What comes out can be planned and realized many times, without reading it again:

        prepared = quantkit.prepare_static("model.onnx", "images/")
        for name, skipped in {"all": (), "head": ("head*",)}.items():
            static = quantkit.StaticSettings(exclude=skipped)
            plan = quantkit.plan_prepared(prepared, static)
            quantkit.realize_plan(prepared, plan, f"{name}.onnx", static=static)

    Where a memory limit leaves no room for all moments that rounding needs, `realize_plan` runs the data again for them;
    the notes of its result say so.

    Args:
        model: A path, or a ModelProto; it must not change as long as the result is used.
        data_or_calibration: As for `quantize_static`.
        static: Target, types, recovery, and what is chosen about nodes and tensors unless a plan says otherwise.
        settings: How samples are prepared and ordered.
        skip_bad: Leave out samples that cannot be read, instead of failing.

    Returns:
        The prepared model; nothing changes it.
    """
    how = CalibrateOptions(skip_bad=skip_bad)
    return prepare_model(static_job(model, data_or_calibration, static, settings, calibrate=how))


@checked_kinds
def plan_prepared(prepared: Prepared, static: StaticSettings | None = None) -> Plan:
    """Decide how each node and tensor of a prepared model is quantized; no data is read.

    Args:
        prepared: What `prepare_static` returned.
        static: What is chosen about format, nodes, tensors and ranges; None: as it was prepared. Target and recovery stay
            those of the preparation.

    Returns:
        The plan: it can be saved, edited, compared, and realized.
    """
    chosen = _choosing(prepared, static)
    return plan_of(chosen, chosen.job.output_format or Format.QDQ)


@checked_kinds
def realize_plan(
    prepared: Prepared,
    plan: Plan | None,
    model_output: str | Path | None,
    *,
    static: StaticSettings | None = None,
    use_external_data_format: bool = False,
    verify: bool = True,
) -> QuantizeResult:
    """Quantize a prepared model as a plan says: the file is that of `quantize_static` with the same settings.

    Args:
        prepared: What `prepare_static` returned; it stays as it is.
        plan: What to do, done as it is; None: what the settings lead to, with fewer integers where noise comes out.
        model_output: Where to write; None: nowhere. The result then tells what the plan is worth.
        static: The settings that the plan was made with, for the record in the file; None: those of the preparation.
        use_external_data_format: Write a ``.data`` file also below 2 GB.
        verify: Check the result before writing.

    Raises:
        QuantkitError: With one line that says what is wrong and what to do. Nothing is written then.
    """
    if model_output is not None:
        check_output(model_output)
    chosen = _choosing(prepared, static)
    return realize(
        chosen,
        plan,
        None if model_output is None else Path(model_output),
        output_format=None if static is None else chosen.job.output_format,
        external_data=use_external_data_format,
        verify=verify,
    )


@checked_kinds
def save_prepared(prepared: Prepared, folder: str | Path) -> None:
    """Write a preparation into a new folder: the float model, what was observed, and what results are judged on.

    Args:
        prepared: What `prepare_static` returned.
        folder: Where; it must not exist.

    Raises:
        QuantkitError: It cannot be written, or could not be taken up again; says why.
    """
    saved.save_prepared(prepared, as_path(folder, "folder"))


@checked_kinds
def load_prepared(folder: str | Path, model: str | Path | None = None) -> Prepared:
    """Take up a preparation that was saved: plans of it give the same files, without the data.

    Args:
        folder: Where it was saved.
        model: The float model, if it is no longer where it was.

    Raises:
        QuantkitError: It was altered, or the float model has changed since.
    """
    return saved.load_prepared(as_path(folder, "folder"), model)


def _choosing(prepared: Prepared, static: StaticSettings | None) -> Prepared:
    """Return a preparation with other choices; what these leave open is as it was."""
    if static is None:
        return prepared
    was = prepared.job
    given = replace(
        static,
        target=static.target or was.options.runs_on.name,
        recover=was.recover if static.recover == RecoverSettings() else static.recover,
    )
    job = static_job(was.source, was.data, given, was.settings, calibrate=was.calibrate)
    return with_choices(prepared, job)
