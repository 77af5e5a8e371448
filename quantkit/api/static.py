"""`quantize_static` and `plan_static`, and the same a step at a time: prepare once, plan and realize as often as one likes."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx

from quantkit.api.arguments import (
    as_path,
    check_output,
    checked_kinds,
    checked_names,
    range_method,
    sample_settings,
)
from quantkit.calibration import Calibration
from quantkit.calibration.collect import CalibrateOptions
from quantkit.calibration.container import is_calibration
from quantkit.data.objects import check_data
from quantkit.errors import UsageError
from quantkit.pipeline import saved
from quantkit.pipeline.measure import decide
from quantkit.pipeline.pipeline import plan_model, prepare_model, static
from quantkit.pipeline.plan_prepared import plan_of, with_choices
from quantkit.pipeline.prepare import Prepared
from quantkit.pipeline.realize import realize
from quantkit.pipeline.record import StaticJob
from quantkit.pipeline.result import QuantizeResult
from quantkit.quantize.plan import Format, Plan, read_plan
from quantkit.settings import (
    DataSettings,
    NodeRule,
    QdqSettings,
    RecoverSettings,
    StaticSettings,
    TensorRule,
)

__all__ = ["for_plan", "load_prepared", "plan_prepared", "plan_static", "prepare_static"]
__all__ += ["quantize_static", "realize_plan", "save_prepared", "static_job"]


@checked_kinds
def quantize_static(  # noqa: PLR0913 - one parameter per question
    model_input: str | Path | onnx.ModelProto,
    model_output: str | Path,
    data_or_calibration: object,
    *,
    target: str | None = None,
    quant_format: str | None = None,
    coverage: str | None = None,
    activation_type: Any = None,
    weight_type: Any = None,
    per_channel: bool = True,
    weight_bits: int | None = None,
    target_size: float | str | None = None,
    symmetric_activations: bool | None = None,
    method: str | None = None,
    percentile: float | None = None,
    op_types_to_quantize: Sequence[str] | None = None,
    nodes_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | None = None,
    tensors: Sequence[TensorRule] = (),
    nodes: Sequence[NodeRule] = (),
    recover: RecoverSettings | None = None,
    qdq: QdqSettings | None = None,
    simplify: bool = True,
    keep_inputs: bool = False,
    measure: bool | None = None,
    settings: DataSettings | None = None,
    limit: int | None = None,
    memory: int | str | None = None,
    skip_bad: bool = False,
    plan: Plan | str | Path | None = None,
    use_external_data_format: bool = False,
    verify: bool = True,
) -> QuantizeResult:
    """Quantize weights and activations of a float32 model to calibrated integers.

    The result is checked, loaded, run and compared with the float model on a real sample before it is written;
    the input is never touched. The defaults are the ones to use.

    Args:
        model_input: A path, or a ModelProto.
        model_output: Where to write. Above 2 GB the weights go to a ``.data`` file beside it.
        data_or_calibration: What `quantkit.calibrate` takes as data, or the `Calibration` that it returned, or
            the path of one that was saved. With data, weights are rounded by what they multiply; with a
            calibration they are rounded without it.
        target: What will run the result: see ``quantkit targets``. None is the plan's, or "cpu", whose layers
            give the same integers on every CPU.
        quant_format: "qdq", or "qoperator" for QLinear operators; None is the plan's, or "qdq".
        coverage: "gain" (None), what runs faster in integers; or "all", every operator that the target has and every
            tensor between them, as NPUs want it.
        activation_type: "uint8", "int8", "uint16", "int16"; None is the target's.
        weight_type: "int8" or "uint8"; None is the target's.
        per_channel: One scale per output channel, where the target runs that.
        weight_bits: Bits of a weight in the file, 2 to 7, where kernels read int8: smaller, and as fast. None: 8.
        target_size: Size of the file instead: a share up to 1 or "15%", bytes or "14.6MB". Each weight gets as many bits as it needs.
        symmetric_activations: Zero point in the middle; None is the target's.
        method: How ranges are estimated; None is that of the calibration, or "mse".
        percentile: Per cent of the values that the method "percentile" keeps.
        op_types_to_quantize: Only these operator types.
        nodes_to_quantize: Only these nodes, by name or pattern.
        nodes_to_exclude: Never these nodes, by name or pattern.
        tensors: Rules for single tensors; the last that matches counts.
        nodes: Rules for single nodes.
        recover: What is done to win back accuracy.
        qdq: Forms of the QDQ format that some runtimes want.
        simplify: Simplify the float model first; False: what is not quantized stays as it is.
        keep_inputs: Inputs that have a value in the file stay inputs, in float; else they become constants.
        measure: Run the model to find out what is faster in integers here (None: where the target is this machine, and
            QUANTKIT_MEASURE is not 0), or decide by operators alone.
        settings: How samples are prepared and ordered.
        limit: Use so many samples; overrides the settings. None in both: at most 256 of shuffled data.
        memory: Bytes that may be held at once (or "500MB", "1GB"); overrides the settings.
        skip_bad: Leave out samples that cannot be read, instead of failing.
        plan: A plan to apply, or the path of one that was saved and perhaps edited.
        use_external_data_format: Write a ``.data`` file also below 2 GB.
        verify: Check the result before writing.

    Returns:
        What was decided for each node and tensor and why, sizes, what the verification found, and what onnxruntime
        really runs in integers.

    Raises:
        QuantkitError: With one line that says what is wrong and what to do. Nothing is written then.
    """
    check_output(model_output)
    given = StaticSettings(
        target=target,
        format=_format(quant_format),
        coverage=coverage,  # type: ignore[arg-type]  # checked there
        simplify=simplify,
        keep_inputs=keep_inputs,
        measure=measure,
        activation_type=_type_name(activation_type),
        weight_type=_type_name(weight_type),
        per_channel=per_channel,
        weight_bits=weight_bits,
        target_size=target_size,  # type: ignore[arg-type]  # read there
        symmetric_activations=symmetric_activations,
        method=method,
        op_types=checked_names(op_types_to_quantize, "op_types_to_quantize"),
        include=checked_names(nodes_to_quantize, "nodes_to_quantize"),
        exclude=checked_names(nodes_to_exclude, "nodes_to_exclude"),
        recover=recover or RecoverSettings(),
        qdq=qdq or QdqSettings(),
        tensors=tuple(tensors),
        nodes=tuple(nodes),
    )
    applied = read_plan(plan) if isinstance(plan, str | Path) else plan
    job = static_job(
        model_input,
        data_or_calibration,
        for_plan(given, applied),
        sample_settings(settings, limit=limit, memory=memory),
        percentile=percentile,
        calibrate=CalibrateOptions(skip_bad=skip_bad),
    )
    return static(
        job, model_output, plan=applied, verify=verify, external_data=use_external_data_format
    )


@checked_kinds
def plan_static(
    model: str | Path | onnx.ModelProto,
    data_or_calibration: object,
    static: StaticSettings | None = None,
    settings: DataSettings | None = None,
    *,
    skip_bad: bool = False,
) -> Plan:
    """Decide how each node and tensor of a model would be quantized; write nothing.

    Args:
        model: A path, or a ModelProto.
        data_or_calibration: As for `quantize_static`.
        static: What is chosen about nodes and tensors.
        settings: How samples are prepared and ordered.
        skip_bad: Leave out samples that cannot be read, instead of failing.

    Returns:
        The plan: it can be saved, edited, compared, and given to `quantize_static`.

    Raises:
        QuantkitError: With one line that says what is wrong and what to do.
    """
    how = CalibrateOptions(skip_bad=skip_bad)
    return plan_model(static_job(model, data_or_calibration, static, settings, calibrate=how))


def for_plan(given: StaticSettings, plan: Plan | None) -> StaticSettings:
    """Return the settings with the plan's target where they name none."""
    return replace(given, target=given.target or plan.target) if plan is not None else given


def static_job(
    source: str | Path | onnx.ModelProto,
    data: object,
    given: StaticSettings | None = None,
    samples: DataSettings | None = None,
    *,
    percentile: float | None = None,
    calibrate: CalibrateOptions | None = None,
) -> StaticJob:
    """Turn settings into a job; `data` may be a calibration, or the path of one.

    Args:
        source: A path or a model.
        data: Samples, a calibration, or the path of one.
        given: What the user chose; None: the defaults.
        samples: Which samples, and how they are prepared; None: the defaults.
        percentile: Of that method; None: its default.
        calibrate: How data is observed; None: the defaults.
    """
    given = given or StaticSettings()
    calibration = _calibration(data)
    if calibration is None and not isinstance(data, str | Path):
        check_data(data)
    asked = given.method is not None or percentile is not None
    method = range_method(given.method, percentile) if asked else None
    if calibration is not None:
        data = calibration.by(method) if method is not None else calibration
    options = calibrate or CalibrateOptions()
    return StaticJob(
        source=source,
        data=data,
        options=given,
        calibrate=replace(options, method=method) if method is not None else options,
        settings=samples or DataSettings(),
    )


def _calibration(data: object) -> Calibration | None:
    """Return a calibration, read from its file if need be; None if `data` is data."""
    if isinstance(data, Calibration):
        return data
    if isinstance(data, str | Path) and is_calibration(Path(data)):
        return Calibration.load(data)
    return None


def _format(name: Any) -> Any:
    """Return the format that a user means: "qdq", "QDQ", or onnxruntime's own enum member; None if he says none."""
    if name is None:
        return None
    text = getattr(name, "name", name)
    if not isinstance(text, str) or text.lower() not in {"qdq", "qoperator"}:
        raise UsageError(f"Unknown format {text!r}; use 'qdq' or 'qoperator'.")
    return text.lower()


def _type_name(wanted: Any) -> Any:
    """Return the name of a type: "uint8" of `QUInt8`, or of onnxruntime's own enum member. Settings say which there are."""
    return (
        None if wanted is None else str(getattr(wanted, "name", wanted)).lower().removeprefix("q")
    )


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
    output_format = chosen.job.output_format or Format.QDQ
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
    # The data is not looked at: of a preparation that was saved it may be gone, and what was in memory is.
    calibrate = was.calibrate
    if given.method is not None:
        calibrate = replace(calibrate, method=range_method(given.method))
    return with_choices(prepared, replace(was, options=given, calibrate=calibrate))
