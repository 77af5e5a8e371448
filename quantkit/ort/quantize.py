"""onnxruntime's `quantize_dynamic`, `quantize_static` and `quantize`, whose configurations keep the arguments of a call."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from onnxruntime.quantization.quant_utils import QuantFormat, QuantType
from onnxruntime.quantization.quantize import CalibrationMethod

from quantkit.api.arguments import check_output, checked_names
from quantkit.api.quantize import Task, job_of
from quantkit.calibration.collect import CalibrateOptions
from quantkit.errors import NothingToQuantizeError, UsageError
from quantkit.model.graph.load import load
from quantkit.model.ops.float_ops import CLIPS, NORMALIZES, PRODUCTS
from quantkit.ort._passthrough import forward
from quantkit.ort.calibration_cache import cached
from quantkit.ort.dynamic import float_instead, quantize_dynamic, told
from quantkit.ort.extra_options import Defaults, ExtraOptions, Tensors, read_extra_options
from quantkit.ort.quant_utils import plain_name, type_name
from quantkit.pipeline.apart import write_float
from quantkit.pipeline.form import run_form
from quantkit.pipeline.forms.static import StaticForm
from quantkit.pipeline.prepared import Output
from quantkit.pipeline.result import QuantizeResult
from quantkit.quantize.plan import Format, check_settings
from quantkit.settings import RecoverSettings, StaticSettings, TensorRule
from quantkit.spec import named_int_type
from quantkit.targets import DEFAULT

__all__ = [
    "DynamicQuantConfig",
    "StaticQuantConfig",
    "check_static_quant_arguments",
    "get_qdq_config",
    "quantize",
    "quantize_dynamic",
    "quantize_static",
]

__getattr__ = forward(__name__)

# The module: onnxruntime's package has a function of the same name in its place.
_THEIRS = import_module("onnxruntime.quantization.quantize")
_CPU = "CPUExecutionProvider"


def quantize_static(  # noqa: PLR0913 - onnxruntime's signature
    model_input: str | Path | onnx.ModelProto,
    model_output: str | Path,
    calibration_data_reader: Any = None,
    quant_format: QuantFormat | None = None,
    op_types_to_quantize: Sequence[str] | None = None,
    per_channel: bool | None = None,  # noqa: FBT001 - onnxruntime's signature
    reduce_range: bool = False,  # noqa: FBT001 - onnxruntime's signature
    activation_type: QuantType | None = None,
    weight_type: QuantType | None = None,
    nodes_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | None = None,
    use_external_data_format: bool = False,  # noqa: FBT001 - onnxruntime's signature
    calibrate_method: CalibrationMethod | None = None,
    calibration_providers: Sequence[str] | None = None,
    extra_options: Mapping[str, Any] | None = None,
    calibration_cache_path: str | Path | None = None,
    *,
    coverage: str | None = None,
    target: str | None = None,
) -> QuantizeResult:
    """Quantize as `quantkit.quantize_static` does, called as onnxruntime's users do.

    What is given is done. What is left out is quantkit's choice, not onnxruntime's: uint8 activations, int8
    weights by channel, ranges by mean squared error. `reduce_range` is accepted and not needed: weights are
    kept from saturating without losing a bit. Where the call says what graph is wanted (operators, nodes, a target, a
    format, types), all of it is quantized and the rest of the graph stays as it is: coverage "all". A call that says
    nothing of this gets what runs faster in integers: coverage "gain". Where there is nothing to quantize the float
    model is written, with a warning.

    Args:
        model_input: A path, or a ModelProto.
        model_output: Where to write.
        calibration_data_reader: An object with `get_next()`, or anything that `quantkit.calibrate` takes.
        quant_format: QDQ or QOperator.
        op_types_to_quantize: Only these operator types.
        per_channel: One scale per output channel.
        reduce_range: Accepted.
        activation_type: Type of activations.
        weight_type: Type of weights.
        nodes_to_quantize: Only these nodes.
        nodes_to_exclude: Never these nodes.
        use_external_data_format: Write a ``.data`` file also below 2 GB.
        calibrate_method: How ranges are estimated. Left out: by mean squared error; where coverage is "all", MinMax.
        calibration_providers: Accepted: the CPU calibrates.
        extra_options: onnxruntime's option dictionary: translated, or refused with the reason.
        calibration_cache_path: A calibration of quantkit's, or onnxruntime's JSON table. If there is none yet,
            one of quantkit's is written.
        coverage: "gain" or "all", whatever else is said.
        target: What will run the result: see ``quantkit targets``.
    """
    check_output(model_output)
    extra = read_extra_options(extra_options)
    ask = extra.calibrator(calibrate_method)
    check_static_quant_arguments(quant_format or QuantFormat.QDQ, activation_type, weight_type)
    activation = None if activation_type is None else type_name(activation_type)
    weight = None if weight_type is None else type_name(weight_type)
    stated: list[Any] = [quant_format, op_types_to_quantize, activation_type, weight_type, target]
    stated += [nodes_to_quantize, nodes_to_exclude, extra.states_form]
    covered = coverage or ("all" if any(stated) else "gain")
    excluded, notes = _excluded_names(model_input, nodes_to_exclude)
    if covered == "all":
        _refuse_subgraphs(model_input, extra)
        # As onnxruntime does where nothing is said: no value is cut off. A cache holds the same.
        ask = ask or ExtraOptions().calibrator(CalibrationMethod.MinMax)
    given = StaticSettings(
        target=target,
        format=_format(quant_format or QuantFormat.QDQ),
        coverage=covered,  # type: ignore[arg-type]  # checked there
        simplify=covered != "all",
        activation_type=activation,
        weight_type=weight,
        per_channel=_per_channel(per_channel, extra),
        symmetric_activations=extra.symmetric,
        op_types=_op_types(op_types_to_quantize, covered),
        include=checked_names(nodes_to_quantize, "nodes_to_quantize"),
        exclude=(*excluded, *_left_out(model_input, extra)),
        recover=_recover(extra, covered),
        qdq=extra.qdq,
        tensors=_rules(model_input, extra, activation, weight),
    )
    check_settings(
        given, Format(_format(quant_format or QuantFormat.QDQ))
    )  # a cache is filled from data
    data = calibration_data_reader
    if extra.stride and data is not None:
        data = _windows(data, extra.stride)
    if calibration_cache_path is not None:
        data = cached(
            Path(calibration_cache_path),
            model_input,
            data,
            ask,
            output=Path(model_output),
            smooth=bool(extra.smooth),
        )
    if data is None:
        raise UsageError("Give calibration_data_reader, or a calibration_cache_path that exists.")
    options = CalibrateOptions(most=None)  # a reader is read to its end
    options = options if ask is None else replace(options, method=ask)
    job = replace(job_of(Task(source=model_input, how=given, data=data)), calibrate=options)
    to = Output(path=Path(model_output), external_data=use_external_data_format)
    try:
        result: QuantizeResult = run_form(StaticForm(job, to))
    except NothingToQuantizeError as e:
        result = write_float(
            model_input, model_output, float_instead(e), external_data=use_external_data_format
        )
    if reduce_range:
        notes.append("reduce_range is not needed: weights are safe from saturation in 8 bits.")
    if any(provider != _CPU for provider in calibration_providers or ()):
        notes.append(
            f"calibration_providers has no effect: {_CPU} calibrates, with the same ranges."
        )
    if quant_format is not None and _is_type(quant_format):
        notes.append(
            f"quant_format={quant_format} is a type, and sets none: QDQ was written. Give it as activation_type or weight_type."
        )
    return told(replace(result, warnings=(*result.warnings, *extra.notes, *notes)))


def _windows(reader: Any, stride: int) -> Iterator[Any]:
    """Return a reader's samples, read in windows of `stride`; the last window may be shorter.

    Raises:
        UsageError: The reader has no length, or no `set_range`.
    """
    if not isinstance(stride, int) or stride < 1:
        raise UsageError(f"CalibStridedMinMax is a number of samples, not {stride!r}.")
    try:
        total = len(reader)
        show = reader.set_range
    except (TypeError, AttributeError, NotImplementedError) as e:
        raise UsageError(
            f"CalibStridedMinMax: '{type(reader).__name__}' needs __len__ and set_range(start_index, end_index)."
        ) from e

    def samples() -> Iterator[Any]:
        for start in range(0, total, stride):
            show(start_index=start, end_index=min(start + stride, total))
            yield from iter(lambda: reader.get_next() or None, None)

    return samples()


def check_static_quant_arguments(
    quant_format: QuantFormat, activation_type: Any, weight_type: Any
) -> None:
    """Check types of activations and weights against each other, as onnxruntime does.

    Args:
        quant_format: How the result is written.
        activation_type: Of activations; None where nothing is said.
        weight_type: Of weights; None where nothing is said.

    Raises:
        UsageError: No runtime, or not every CPU, multiplies the one by the other.
    """
    if activation_type is None or weight_type is None:
        return
    names = plain_name(activation_type), plain_name(weight_type)
    if names == ("int8", "uint8"):
        raise UsageError(
            "QInt8 activations with QUInt8 weights run in integers on x86 only: use QInt8 weights, or QUInt8 activations."
        )
    if any("float8" in name for name in names) and names[0] != names[1]:
        raise UsageError(
            f"{names[0]} activations are not multiplied by {names[1]} weights: give both the type QFLOAT8E4M3FN."
        )
    if any("16" in name for name in names) and _format(quant_format) != "qdq":
        raise UsageError("Types of 16 bits are written in the format QDQ only.")


def _per_channel(given: bool | None, extra: ExtraOptions) -> bool:  # noqa: FBT001 - onnxruntime's
    """Left out it is per channel; channels have their zero points in the middle, so not where that is not wanted."""
    return extra.qdq.symmetric_weights is not False if given is None else given


def _excluded_names(
    model: str | Path | onnx.ModelProto, names: Sequence[str] | None
) -> tuple[tuple[str, ...], list[str]]:
    """Return the nodes to leave out that there are, and what is said of the others: lists serve many models."""
    named = checked_names(names, "nodes_to_exclude")
    if not named:
        return (), []
    known = {node.name for node in load(model).model.graph.all_nodes()}
    there = tuple(name for name in named if any(fnmatchcase(one or "", name) for one in known))
    there += tuple(name for name in named if name in known and name not in there)
    absent = [name for name in named if name not in there]
    return there, [f"nodes_to_exclude: the model has no node '{name}'." for name in absent]


def _recover(extra: ExtraOptions, coverage: str) -> RecoverSettings:
    """Return what wins back accuracy: of a graph that is to stay as it is no channel is scaled, unless that is asked for."""
    left = "auto" if coverage == "gain" else False
    return RecoverSettings(equalize=left, smooth=left if extra.smooth is None else extra.smooth)  # type: ignore[arg-type]


def _is_type(quant_format: Any) -> bool:
    """Say whether an integer type was given as format: scripts do, and onnxruntime writes QDQ for all but QOperator."""
    return isinstance(quant_format, QuantType)


def _format(quant_format: Any) -> Any:
    """Return quantkit's name of a format, of its own enumeration or of onnxruntime's."""
    if quant_format is not None and _is_type(quant_format):
        return "qdq"
    name = str(getattr(quant_format, "name", quant_format)).lower()
    if name not in {"qdq", "qoperator"}:
        raise UsageError(f"Unknown format {quant_format!r}: use QuantFormat.QDQ or QOperator.")
    return name


def _op_types(op_types: Sequence[str] | None, coverage: str) -> tuple[str, ...]:
    """Leave out what no rule about gain can choose: Relu goes into the product before it."""
    chosen = checked_names(op_types, "op_types_to_quantize")
    if coverage == "all":
        return chosen
    kept = tuple(
        op_type for op_type in chosen if op_type not in CLIPS
    )  # those go into the product before them
    return kept or chosen


def _rules(
    model: str | Path | onnx.ModelProto,
    extra: ExtraOptions,
    activation: str | None,
    weight: str | None,
) -> tuple[TensorRule, ...]:
    if not extra.overrides and not extra.nnapi_sigmoid:
        return ()
    defaults = Defaults(
        activation=named_int_type(activation) if activation else DEFAULT.activation,
        weight=named_int_type(weight) if weight else DEFAULT.weight,
        symmetric=DEFAULT.symmetric_activations if extra.symmetric is None else extra.symmetric,
        symmetric_weights=extra.qdq.symmetric_weights,
    )
    return extra.rules(_tensors(model), defaults)


def _tensors(model: str | Path | onnx.ModelProto) -> Tensors:
    """Look at the tensors of a model's main graph."""
    graph = load(model).model.graph
    held = {name: value.const_value for name, value in graph.initializers.items()}
    nodes = list(graph)
    operands = (
        value.name
        for node in nodes
        if node.op_type in PRODUCTS | NORMALIZES
        for value in node.inputs
        if value is not None
    )
    computed = {value.name or "" for node in nodes for value in node.outputs}
    readers: dict[str, list[str]] = {}
    for node in nodes:
        for value in filter(None, node.inputs):
            readers.setdefault(value.name or "", []).append(node.name or "")
    return Tensors(
        constants={n: tuple(map(int, t.shape.numpy())) for n, t in held.items() if t is not None},
        computed=computed | {value.name or "" for value in graph.inputs},
        weights={name for name in operands if name in held},
        sigmoids=[n.outputs[0].name or "" for n in nodes if n.op_type == "Sigmoid"],
        readers=readers,
    )


def _refuse_subgraphs(model: str | Path | onnx.ModelProto, extra: ExtraOptions) -> None:
    """Refuse to quantize what is never observed.

    Raises:
        UsageError: Operators inside If, Loop or Scan are asked for, and there are some.
    """
    if not extra.subgraphs:
        return
    graph = load(model).model.graph
    inside = next((node for node in graph.all_nodes() if node.graph is not graph), None)
    if inside is not None:
        raise UsageError(
            f"EnableSubgraph=True: '{inside.name}' stands inside If, Loop or Scan, where no values are observed; leave the "
            "option out, and what stands outside is quantized."
        )


def _left_out(model: str | Path | onnx.ModelProto, extra: ExtraOptions) -> tuple[str, ...]:
    """Return the nodes that options leave out by kind."""
    if extra.subgraphs is not False and not extra.constant_b:
        return ()
    graph, found = load(model).model.graph, []
    for node in graph.all_nodes():
        inner = extra.subgraphs is False and node.graph is not graph
        second = node.inputs[1] if len(node.inputs) > 1 else None
        computed = second is None or ir.convenience.get_const_tensor(second) is None
        if inner or (extra.constant_b and node.op_type == "MatMul" and computed):
            found.append(node.name or "")
    return tuple(found)


@dataclass
class DynamicQuantConfig(_THEIRS.DynamicQuantConfig):  # type: ignore[misc,name-defined]
    """The arguments of `quantize_dynamic`, kept for `quantize`."""

    weight_type: QuantType = QuantType.QInt8
    op_types_to_quantize: Sequence[str] | None = None
    nodes_to_quantize: Sequence[str] | None = None
    nodes_to_exclude: Sequence[str] | None = None
    per_channel: bool | None = None
    reduce_range: bool = False
    use_external_data_format: bool = False
    extra_options: Mapping[str, Any] | None = None


@dataclass
class StaticQuantConfig(_THEIRS.StaticQuantConfig):  # type: ignore[misc,name-defined]
    """The arguments of `quantize_static`, kept for `quantize`. What is left out is quantkit's choice."""

    calibration_data_reader: Any
    calibrate_method: CalibrationMethod | None = None
    quant_format: QuantFormat | None = None
    activation_type: QuantType | None = None
    weight_type: QuantType | None = None
    op_types_to_quantize: Sequence[str] | None = None
    nodes_to_quantize: Sequence[str] | None = None
    nodes_to_exclude: Sequence[str] | None = None
    per_channel: bool | None = None
    reduce_range: bool = False
    use_external_data_format: bool = False
    calibration_providers: Sequence[str] | None = None
    extra_options: Mapping[str, Any] | None = None


def quantize(
    model_input: str | Path | onnx.ModelProto, model_output: str | Path, quant_config: Any
) -> QuantizeResult:
    """Quantize as a configuration says.

    Args:
        model_input: A path or a model.
        model_output: Where to.
        quant_config: A StaticQuantConfig or a DynamicQuantConfig, of this package or of onnxruntime.
    """
    if isinstance(quant_config, _THEIRS.DynamicQuantConfig):
        given = _arguments(quant_config, DynamicQuantConfig)
        return quantize_dynamic(model_input, model_output, **given)
    if isinstance(quant_config, _THEIRS.StaticQuantConfig):
        given = _arguments(quant_config, StaticQuantConfig)
        if not isinstance(quant_config, StaticQuantConfig):
            # onnxruntime's functions list operators from a set, in another order in each run.
            given["op_types_to_quantize"] = sorted(given["op_types_to_quantize"] or ()) or None
        return quantize_static(model_input, model_output, **given)
    raise UsageError(
        f"quant_config is a StaticQuantConfig or a DynamicQuantConfig, not {type(quant_config).__name__}."
    )


def _arguments(config: Any, kind: type[DynamicQuantConfig | StaticQuantConfig]) -> dict[str, Any]:
    """Return what a configuration holds, of this package or of onnxruntime's own class of the same name.

    onnxruntime's has what it does not use as well: a dynamic one the type of activations.
    """
    return {f.name: getattr(config, f.name) for f in fields(kind) if hasattr(config, f.name)}


def get_qdq_config(  # noqa: PLR0913 - onnxruntime's signature
    model_input: str | Path | onnx.ModelProto,
    calibration_data_reader: Any,
    calibrate_method: CalibrationMethod | None = None,
    calibrate_args: Mapping[str, Any] | None = None,
    activation_type: QuantType | None = None,
    weight_type: QuantType | None = None,
    activation_symmetric: bool | None = None,  # noqa: FBT001 - onnxruntime's signature
    weight_symmetric: bool | None = None,  # noqa: FBT001
    per_channel: bool | None = None,  # noqa: FBT001
    reduce_range: bool = False,  # noqa: FBT001
    keep_removable_activations: bool = False,  # noqa: FBT001
    min_real_range: float | None = None,
    tensor_quant_overrides: Mapping[str, Any] | None = None,
    calibration_providers: Sequence[str] | None = None,
    op_types_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | Callable[[Any, Any], bool] | None = None,
    extra_options: Mapping[str, Any] | None = None,
) -> StaticQuantConfig:
    """Return a configuration that quantizes all of a model but Cast, QuantizeLinear and DequantizeLinear.

    Args:
        model_input: A path or a model; weights are not read.
        calibration_data_reader: As of `quantize_static`.
        calibrate_method: How ranges are estimated; None: as `quantize_static` does.
        calibrate_args: symmetric, moving_average, averaging_constant, max_intermediate_outputs, percentile.
        activation_type: Of activations that are not overridden.
        weight_type: Of weights that are not overridden.
        activation_symmetric: Zero points of activations in the middle.
        weight_symmetric: Those of weights; None: of signed types.
        per_channel: One scale per channel of weights.
        reduce_range: Weights of one bit less.
        keep_removable_activations: Relu and Clip stay where a range clips alike.
        min_real_range: The least extent of a range.
        tensor_quant_overrides: Of single tensors.
        calibration_providers: As of `quantize_static`.
        op_types_to_quantize: Only these; None: all that the model has.
        nodes_to_exclude: Never these nodes: names, or a function that is asked about each.
        extra_options: Options of `quantize_static`, which win over all others.
    """
    strange = next((key for key in calibrate_args or {} if key not in _CALIBRATE_ARGS), None)
    if strange is not None:
        raise UsageError(
            f"calibrate_args has no '{strange}': known are {', '.join(_CALIBRATE_ARGS)}."
        )
    if "op_types_to_quantize" not in signature(_THEIRS.get_qdq_config).parameters:
        raise UsageError(
            "get_qdq_config needs a newer onnxruntime: upgrade it, or write a StaticQuantConfig."
        )
    listed = nodes_to_exclude if callable(nodes_to_exclude) else list(nodes_to_exclude or ())
    found = _THEIRS.get_qdq_config(
        model_input,
        calibration_data_reader,
        calibrate_args=calibrate_args,
        activation_type=activation_type,
        weight_type=weight_type,
        activation_symmetric=activation_symmetric,
        weight_symmetric=weight_symmetric,
        keep_removable_activations=keep_removable_activations,
        min_real_range=min_real_range,
        tensor_quant_overrides=tensor_quant_overrides,
        op_types_to_quantize=op_types_to_quantize,
        nodes_to_exclude=listed,
        extra_options=extra_options,
    )
    options = dict(found.extra_options)
    if options.get("ActivationSymmetric", False) is None:
        del options["ActivationSymmetric"]
    return StaticQuantConfig(
        calibration_data_reader,
        calibrate_method=calibrate_method,
        quant_format=QuantFormat.QDQ,
        activation_type=activation_type,
        weight_type=weight_type,
        op_types_to_quantize=list(op_types_to_quantize or sorted(found.op_types_to_quantize)),
        nodes_to_exclude=sorted(found.nodes_to_exclude) or None,
        per_channel=per_channel,
        reduce_range=reduce_range,
        use_external_data_format=found.use_external_data_format,
        calibration_providers=calibration_providers,
        extra_options=options,
    )


_CALIBRATE_ARGS = (
    "symmetric",
    "moving_average",
    "averaging_constant",
    "max_intermediate_outputs",
    "percentile",
)
