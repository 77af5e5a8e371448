"""The calls that quantize, plan or prepare a model. Arguments, flags and quantkit.toml become a `Task`; it becomes a plan, or a file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

from quantkit.api.arguments import (
    check_output,
    checked_kinds,
    checked_names,
    range_method,
    sample_settings,
    settings_from,
)
from quantkit.calibration import Calibration
from quantkit.calibration.collect import CalibrateOptions
from quantkit.calibration.container import is_calibration
from quantkit.calibration.monitor import Monitor, Stages
from quantkit.data.objects import check_data
from quantkit.errors import UsageError
from quantkit.pipeline.form import plan_only, run_form
from quantkit.pipeline.forms import form_of
from quantkit.pipeline.ignored import ignored_requests
from quantkit.pipeline.prepare import prepare_model
from quantkit.pipeline.prepared import Job, Output, Prepared
from quantkit.pipeline.result import QuantizeResult
from quantkit.quantize.plan import Plan, read_plan
from quantkit.settings import (
    DataSettings,
    DynamicSettings,
    Float16Settings,
    NodeRule,
    PruneSettings,
    QdqSettings,
    RecoverSettings,
    StaticSettings,
    TensorRule,
    WeightsSettings,
)
from quantkit.spec import QuantType, QUInt8, weight_int_type

__all__ = ["Stages", "Task", "job_of", "make_plan", "quantize"]
__all__ += ["ignored_requests"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What to quantize, and how.

    Attributes:
        source: The float model: a path or a ModelProto.
        how: What is chosen. Its type says which form of quantization it is.
        data: What `quantkit.calibrate` takes; for static also a calibration, or the path of one; for dynamic the inputs to
            verify with, by name. None: there is none.
        samples: Which samples, and how they are prepared.
        percentile: Of the range method "percentile"; None: its default.
        skip_bad: Leave out samples that cannot be read.
    """

    source: str | Path | onnx.ModelProto
    how: DynamicSettings | StaticSettings | WeightsSettings | Float16Settings | PruneSettings
    data: object = None
    samples: DataSettings = field(default_factory=DataSettings)
    percentile: float | None = None
    skip_bad: bool = False


def quantize(
    task: Task,
    output: str | Path,
    *,
    plan: Plan | str | Path | None = None,
    verify: bool = True,
    external_data: bool = False,
    monitor: Monitor | None = None,
) -> QuantizeResult:
    """Quantize a model and write it.

    Args:
        task: What to quantize, and how.
        output: Where to write.
        plan: A plan of the same form to apply, or its file, instead of making one; dynamic and float16 take none.
        verify: Load and run the result, and compare it with float, before it is written.
        external_data: Write weights to a ``.data`` file beside the model.
        monitor: Told what is done; None: nobody.
    """
    check_output(output)
    applied = read_plan(plan) if isinstance(plan, str | Path) else plan
    to = Output(path=Path(output), verify=verify, external_data=external_data)
    result: QuantizeResult = run_form(form_of(job_of(task, applied), to, monitor, plan=applied))
    return result


def make_plan(task: Task, monitor: Monitor | None = None) -> Plan:
    """Decide how each node and tensor would be quantized; write nothing.

    Args:
        task: What to quantize, and how: static, weights or float16.
        monitor: Told what is done; None: nobody.
    """
    plan: Plan = plan_only(form_of(job_of(task), Output(path=None), monitor))
    return plan


def job_of(task: Task, plan: Plan | None = None) -> Job[Any]:
    """Return what the form of a task takes; where a static task names no target, that of a plan counts.

    Raises:
        UsageError: The data is neither samples nor, for static quantization, a calibration.
    """
    how, data = task.how, task.data
    calibrate = CalibrateOptions(skip_bad=task.skip_bad)
    if isinstance(how, StaticSettings):
        if plan is not None:
            how = replace(how, target=how.target or plan.target)
        if isinstance(data, str | Path) and is_calibration(Path(data)):
            data = Calibration.load(data)
        if how.method is not None or task.percentile is not None:
            calibrate = replace(calibrate, method=range_method(how.method, task.percentile))
            data = data.by(calibrate.method) if isinstance(data, Calibration) else data
        is_ready = isinstance(data, Calibration | str | Path)
    else:
        is_sample = isinstance(how, DynamicSettings)
        is_ready = data is None or is_sample or isinstance(data, str | Path)
    if not is_ready:
        check_data(data)
    return Job(
        source=task.source, data=data, options=how, settings=task.samples, calibrate=calibrate
    )


@checked_kinds
def quantize_dynamic(  # noqa: PLR0913 - the names that onnxruntime's users type
    model_input: str | Path | onnx.ModelProto,
    model_output: str | Path,
    weight_type: QuantType | str = QUInt8,
    *,
    per_channel: bool = True,
    weight_bits: int | None = None,
    target_size: float | str | None = None,
    reduce_range: bool = False,
    op_types_to_quantize: Sequence[str] | None = None,
    nodes_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | None = None,
    coverage: str = "gain",
    keep_inputs: bool = False,
    use_external_data_format: bool = False,
    extra_options: Mapping[str, Any] | None = None,
    verify: bool = True,
    sample: Mapping[str, NDArray[Any]] | None = None,
) -> QuantizeResult:
    """Quantize a float32 model's weights to 8 bits; activations are quantized as they come.

    The result is checked, loaded, run and compared with the float model before it is written; the input is
    never touched. The defaults are the ones to use.

    Args:
        model_input: A path, or a ModelProto.
        model_output: Where to write. Above 2 GB the weights go to a ``.data`` file beside it.
        weight_type: `QUInt8`, or `QInt8` (faster on x86, and just as safe from saturation).
        per_channel: One scale per output channel, where the kernels allow.
        weight_bits: Bits of a weight in the file, 2 to 7, where kernels read int8: smaller, and as fast. None: 8.
        target_size: Size of the file instead: a share up to 1 or "15%", bytes or "14.6MB". Each weight gets as many bits as it needs.
        reduce_range: Use 7 bits of the 8; never needed here.
        op_types_to_quantize: Only these operator types.
        nodes_to_quantize: Only these nodes, by name or pattern; they run in integer arithmetic whatever
            their size.
        nodes_to_exclude: Never these nodes, by name or pattern.
        coverage: "gain": what is faster in integers, or smaller; "all": every operator that has an integer kernel,
            whatever its size; Conv, which takes longer than in float, only where it is named or nothing else can.
        keep_inputs: Inputs that have a value in the file stay inputs, in float; else they become constants.
        use_external_data_format: Write a ``.data`` file also below 2 GB.
        extra_options: onnxruntime's option dictionary; each key must have the value that quantkit always behaves by.
        verify: Check the result before writing.
        sample: Inputs to verify with; made up from the model's signature if not given.

    Returns:
        What was decided for each node and why, sizes, and what the verification found.

    Raises:
        QuantkitError: With one line that says what is wrong and what to do. Nothing is written then.
    """
    given = locals()
    _check_extra_options(extra_options)
    if sample is not None and not verify:
        raise UsageError("A sample is what the result is verified with; it needs verify=True.")
    if sample is not None and not isinstance(sample, Mapping):
        raise UsageError("A sample maps input names to arrays: {'input_ids': array, ...}.")
    stored = weight_int_type(weight_type).name
    how = settings_from(DynamicSettings, given, weight_type=stored, **_selection(given))
    task = _task(model_input, how, sample)
    return quantize(task, model_output, verify=verify, external_data=use_external_data_format)


# Keys of onnxruntime's dictionary: the value that quantkit always behaves by, and what to do instead
# of any other.
_ALWAYS: dict[str, tuple[Any, str]] = {
    "EnableSubgraph": (True, "subgraphs are always quantized; exclude nodes by name instead"),
    "MatMulConstBOnly": (True, "only operators with a constant weight are quantized dynamically"),
    "WeightSymmetric": (None, "int8 weights are symmetric and uint8 weights asymmetric"),
    "ActivationSymmetric": (False, "DynamicQuantizeLinear is asymmetric by definition"),
    "ForceQuantizeNoInputCheck": (False, "it has no meaning for dynamic quantization"),
}


def _check_extra_options(extra_options: Mapping[str, Any] | None) -> None:
    """Accept the settings that quantkit always has; explain why any other cannot be had.

    Raises:
        UsageError: A key is unknown or asks for something else.
    """
    for key, value in (extra_options or {}).items():
        if key not in _ALWAYS:
            raise UsageError(
                f"extra_options key '{key}' has no meaning for quantkit's dynamic quantization; "
                f"remove it (understood: {', '.join(_ALWAYS)})."
            )
        fixed, why = _ALWAYS[key]
        if fixed is None or bool(value) != fixed:
            raise UsageError(f"extra_options {key}={value!r} is not available: {why}.")


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
    given = locals()
    how = settings_from(
        StaticSettings,
        given,
        format=_format(quant_format),
        activation_type=_type_name(activation_type),
        weight_type=_type_name(weight_type),
        **_selection(given),
        recover=recover or RecoverSettings(),
        qdq=qdq or QdqSettings(),
        tensors=tuple(tensors),
        nodes=tuple(nodes),
    )
    samples = sample_settings(settings, limit=limit, memory=memory)
    task = _task(
        model_input, how, data_or_calibration, samples, skip_bad=skip_bad, percentile=percentile
    )
    return quantize(
        task, model_output, plan=plan, verify=verify, external_data=use_external_data_format
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
    how = static or StaticSettings()
    return make_plan(_task(model, how, data_or_calibration, settings, skip_bad=skip_bad))


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

    The data is run here. What comes out can be planned and realized many times, without reading it again; only weights of fewer than 8 bits are
    fitted to it once more.

    For example:

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
    how = static or StaticSettings()
    task = _task(model, how, data_or_calibration, settings, skip_bad=skip_bad)
    return prepare_model(job_of(task))


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
def quantize_weights(  # noqa: PLR0913 - one parameter per question
    model_input: str | Path | onnx.ModelProto,
    model_output: str | Path,
    data: object = None,
    *,
    bits: int = 4,
    block: int | None = None,
    symmetric: bool | None = None,
    embedding_bits: int | None = None,
    target_bits: float | None = None,
    target_size: float | str | None = None,
    quant_format: str = "contrib",
    accuracy_level: int | None = None,
    op_types_to_quantize: Sequence[str] | None = None,
    nodes_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | None = None,
    weights: WeightsSettings | None = None,
    settings: DataSettings | None = None,
    limit: int | None = None,
    memory: int | str | None = None,
    skip_bad: bool = False,
    plan: Plan | str | Path | None = None,
    use_external_data_format: bool = False,
    verify: bool = True,
) -> QuantizeResult:
    """Quantize a float32 model's weights to 2 to 8 bits in blocks; activations stay float.

    MatMul and Gemm become MatMulNBits, look-ups GatherBlockQuantized, and what has no such kernel gets its weight back as float when the file is loaded. A head that is its
    embedding's transpose is stored once. The result is checked, loaded, run and compared with the float model before it is written; the input is never touched.

    Args:
        model_input: A path, or a ModelProto.
        model_output: Where to write. Above 2 GB the weights go to a ``.data`` file beside it.
        data: Samples that weights are fitted to, as `quantkit.calibrate` takes them: far better below 8 bits. None: weights are rounded without.
        bits: Of a weight in the file, 2 to 8.
        block: Neighbours that share a scale: 16 to 256; None: 32 as a rule.
        symmetric: Zero points in the middle; None: from 5 bits on.
        embedding_bits: Of tables that rows are looked up in, and of a head that is such a table; None: 8.
        target_bits: Bits per weight on average, scales counted: each weight gets as many as it needs, by what is measured on the data.
        target_size: Size of the file instead: a share up to 1 or "15%", bytes or "14.6MB".
        quant_format: "contrib", onnxruntime's own operators; "onnx", DequantizeLinear of blocks (opset 21).
        accuracy_level: Of MatMulNBits: 4 (None) rounds activations to 8 bits inside the kernel, 0 leaves them float.
        op_types_to_quantize: Only these operator types.
        nodes_to_quantize: Only these nodes, by name or pattern.
        nodes_to_exclude: Never these nodes, by name or pattern.
        weights: All settings at once, instead of those above.
        settings: How samples are prepared and ordered.
        limit: Use so many samples; overrides the settings.
        memory: Bytes that may be held at once (or "500MB", "1GB"); overrides the settings.
        skip_bad: Leave out samples that cannot be read, instead of failing.
        plan: A plan to apply, or the path of one that was saved and perhaps edited.
        use_external_data_format: Write a ``.data`` file also below 2 GB.
        verify: Check the result before writing.

    Returns:
        What was decided for each node and weight and why, sizes, and what the verification found.

    Raises:
        QuantkitError: With one line that says what is wrong and what to do. Nothing is written then.
    """
    how = weights or settings_from(
        WeightsSettings, locals(), format=quant_format, **_selection(locals())
    )
    samples = sample_settings(settings, limit=limit, memory=memory)
    task = _task(model_input, how, data, samples, skip_bad=skip_bad)
    return quantize(
        task, model_output, plan=plan, verify=verify, external_data=use_external_data_format
    )


@checked_kinds
def plan_weights(
    model: str | Path | onnx.ModelProto,
    data: object = None,
    weights: WeightsSettings | None = None,
    settings: DataSettings | None = None,
) -> Plan:
    """Decide how each node and weight of a model would be quantized in blocks; write nothing.

    Args:
        model: A path, or a ModelProto.
        data: As for `quantize_weights`; needed where each weight gets bits of its own by what is measured.
        weights: What is chosen.
        settings: How samples are prepared and ordered.

    Returns:
        The plan: it can be saved, edited, compared, and given to `quantize_weights`.

    Raises:
        QuantkitError: With one line that says what is wrong and what to do.
    """
    return make_plan(_task(model, weights or WeightsSettings(), data, settings))


@checked_kinds
def quantize_float16(  # noqa: PLR0913 - one parameter per question
    model_input: str | Path | onnx.ModelProto,
    model_output: str | Path,
    data: object = None,
    *,
    dtype: str = "float16",
    compute: bool = False,
    half_inputs: bool = False,
    half_outputs: bool = False,
    nodes_to_exclude: Sequence[str] | None = None,
    keep_inputs: bool = False,
    settings: DataSettings | None = None,
    limit: int | None = None,
    memory: int | str | None = None,
    skip_bad: bool = False,
    use_external_data_format: bool = False,
    verify: bool = True,
) -> QuantizeResult:
    """Store a float32 model's weights in 16 bits, which halves the file; on request compute in float16 too.

    Weights become float32 again when the file is loaded, so that it runs as fast as before and differs by their rounding alone.
    The result is checked, loaded, run and compared with the float model before it is written; the input is never touched.

    Args:
        model_input: A path, or a ModelProto.
        model_output: Where to write. Above 2 GB the weights go to a ``.data`` file beside it.
        data: What `quantkit.calibrate` takes as data: the result is judged on it, and with `compute` nodes whose values do not
            fit into float16 stay float32. None: inputs are made up, and ranges are unknown.
        dtype: "float16", or "bfloat16", which has the range of float32 and three digits less; for the file alone.
        compute: Compute in float16 where ONNX has it and values fit. Few CPUs gain by that: the result says what onnxruntime
            makes of it here.
        half_inputs: Inputs are float16 too; else they keep their type.
        half_outputs: Outputs are float16 too; else they keep their type.
        nodes_to_exclude: Leave these nodes and their weights in float32, by name or pattern.
        keep_inputs: Inputs that have a value in the file stay inputs, in float32; else they become constants.
        settings: How samples are prepared and ordered.
        limit: Use so many samples; overrides the settings.
        memory: Bytes that may be held at once (or "500MB", "1GB"); overrides the settings.
        skip_bad: Leave out samples that cannot be read, instead of failing.
        use_external_data_format: Write a ``.data`` file also below 2 GB.
        verify: Check the result before writing.

    Returns:
        What has 16 bits and what has not and why, sizes, what the verification found, and, with `compute`, what onnxruntime
        really computes in float16.

    Raises:
        QuantkitError: With one line that says what is wrong and what to do. Nothing is written then.
    """
    left_out = checked_names(nodes_to_exclude, "nodes_to_exclude")
    how = settings_from(Float16Settings, locals(), exclude=left_out)
    samples = sample_settings(settings, limit=limit, memory=memory)
    task = _task(model_input, how, data, samples, skip_bad=skip_bad)
    return quantize(task, model_output, verify=verify, external_data=use_external_data_format)


def _selection(given: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return which nodes are chosen, as the settings of all forms name it; `given`: the arguments of a call."""
    names = {
        "op_types": "op_types_to_quantize",
        "include": "nodes_to_quantize",
        "exclude": "nodes_to_exclude",
    }
    return {setting: checked_names(given[name], name) for setting, name in names.items()}


def _task(
    source: str | Path | onnx.ModelProto,
    how: Any,
    data: object,
    samples: DataSettings | None = None,
    *,
    skip_bad: bool = False,
    percentile: float | None = None,
) -> Task:
    return Task(
        source=source,
        how=how,
        data=data,
        samples=samples or DataSettings(),
        skip_bad=skip_bad,
        percentile=percentile,
    )
