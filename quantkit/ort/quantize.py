"""onnxruntime's configurations: the arguments of a call, kept for `quantize`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from quantkit.errors import UsageError
from quantkit.ort.dynamic import quantize_dynamic
from quantkit.ort.missing import missing
from quantkit.ort.quant_utils import CalibrationMethod, QuantFormat, QuantizationMode, QuantType
from quantkit.ort.static import quantize_static
from quantkit.pipeline import QuantizeResult

__all__ = ["DynamicQuantConfig", "StaticQuantConfig", "get_qdq_config", "quantize"]
__all__ += ["QuantizationMode", "quantize_dynamic", "quantize_static"]
__path__: list[str] = []  # so that what is missing is said; see quantkit.ort.missing

# How `get_qdq_config` calls what `extra_options` calls otherwise.
_CALIBRATE_ARGS = {
    "symmetric": "CalibTensorRangeSymmetric",
    "moving_average": "CalibMovingAverage",
    "averaging_constant": "CalibMovingAverageConstant",
    "max_intermediate_outputs": "CalibMaxIntermediateOutputs",
    "percentile": "CalibPercentile",
}


@dataclass
class DynamicQuantConfig:
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
class StaticQuantConfig:
    """The arguments of `quantize_static`, kept for `quantize`. What is left out is quantkit's choice."""

    calibration_data_reader: Any
    calibrate_method: CalibrationMethod | None = None
    quant_format: QuantFormat = QuantFormat.QDQ
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
    """Quantize as a configuration says."""
    if isinstance(quant_config, DynamicQuantConfig):
        return quantize_dynamic(model_input, model_output, **vars(quant_config))
    if isinstance(quant_config, StaticQuantConfig):
        return quantize_static(model_input, model_output, **vars(quant_config))
    raise UsageError(
        f"quant_config is a StaticQuantConfig or a DynamicQuantConfig, not {type(quant_config).__name__}."
    )


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
    """Return a configuration that quantizes all that the target runs in integers."""
    strange = next((key for key in calibrate_args or {} if key not in _CALIBRATE_ARGS), None)
    if strange is not None:
        raise UsageError(
            f"calibrate_args has no '{strange}': known are {', '.join(_CALIBRATE_ARGS)}."
        )
    options: dict[str, Any] = {
        "QDQKeepRemovableActivations": keep_removable_activations,
        "MinimumRealRange": min_real_range,
        "WeightSymmetric": weight_symmetric,
        "TensorQuantOverrides": tensor_quant_overrides or {},
        **{_CALIBRATE_ARGS[key]: value for key, value in (calibrate_args or {}).items()},
    }
    if activation_symmetric is not None:
        options["ActivationSymmetric"] = activation_symmetric
    return StaticQuantConfig(
        calibration_data_reader,
        calibrate_method=calibrate_method,
        activation_type=activation_type,
        weight_type=weight_type,
        op_types_to_quantize=op_types_to_quantize,
        nodes_to_exclude=_excluded(model_input, nodes_to_exclude),
        per_channel=per_channel,
        reduce_range=reduce_range,
        calibration_providers=calibration_providers,
        extra_options={**options, **(extra_options or {})},
    )


def _excluded(
    model_input: str | Path | onnx.ModelProto,
    nodes_to_exclude: Sequence[str] | Callable[[Any, Any], bool] | None,
) -> Sequence[str] | None:
    """Return the names of excluded nodes; a function is asked about each node of the model."""
    if not callable(nodes_to_exclude):
        return nodes_to_exclude
    model = model_input
    if not isinstance(model, onnx.ModelProto):
        model = onnx.load_model(model, load_external_data=False)
    return [node.name for node in model.graph.node if nodes_to_exclude(model, node)]


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)
