"""What can be done with a prepared model, as often as one likes: plan, realize, save, load."""

from dataclasses import replace
from pathlib import Path

from quantkit.api.arguments import as_path, check_output, checked_kinds, range_method
from quantkit.pipeline import saved
from quantkit.pipeline.forms.static import realize_prepared
from quantkit.pipeline.measure import decide
from quantkit.pipeline.plan_prepared import format_of, plan_of
from quantkit.pipeline.prepare import with_choices
from quantkit.pipeline.prepared import Prepared
from quantkit.pipeline.result import QuantizeResult
from quantkit.quantize.plan import Plan
from quantkit.settings import RecoverSettings, StaticSettings


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
    output_format = format_of(chosen.job.options)
    return plan_of(chosen, output_format, decide(chosen, output_format).kept)


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
    return realize_prepared(
        chosen,
        plan,
        None if model_output is None else Path(model_output),
        output_format=None if static is None or not static.format else format_of(static),
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
        recover=was.options.recover if static.recover == RecoverSettings() else static.recover,
    )
    # The data is not looked at: of a preparation that was saved it may be gone, and what was in memory is.
    calibrate = was.calibrate
    if given.method is not None:
        calibrate = replace(calibrate, method=range_method(given.method))
    return with_choices(prepared, replace(was, options=given, calibrate=calibrate))
