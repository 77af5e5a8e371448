"""`get_qnn_qdq_config`: what QNN's kernels want of single tensors, as overrides."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from quantkit.ort.execution_providers.qnn.mixed_precision_overrides_utils import (
    MixedPrecisionTensorQuantOverridesFixer,
)
from quantkit.ort.missing import missing
from quantkit.ort.quant_utils import CalibrationMethod, QuantType
from quantkit.ort.quantize import StaticQuantConfig, model_facts
from quantkit.ort.tensor_quant_overrides import TensorQuantOverridesHelper

__all__ = ["get_qnn_qdq_config"]
__path__: list[str] = []  # so that what is missing is said; see quantkit.ort.missing

# By name, so that members of onnxruntime's own enumeration are known as well.
_BYTES = {"QInt8", "QUInt8"}
_WIDE = {"QInt16", "QUInt16"}
_NARROW = {"QInt4", "QUInt4"}
# Below this opset QuantizeLinear has 8 bits; of wider and narrower types onnxruntime has operators of its own.
_ALL_TYPES = 21
_LEAST_RANGE = 0.0001
# Scale and zero point of results in 16 bits that QNN's kernels have built in.
_BUILT_IN: dict[tuple[str, str], tuple[float, Any]] = {
    ("Sigmoid", "QUInt16"): (1 / 65536, np.array(0, np.uint16)),
    ("Sigmoid", "QInt16"): (1 / 32768, np.array(0, np.int16)),
    ("Tanh", "QUInt16"): (1 / 32768, np.array(32768, np.uint16)),
    ("Tanh", "QInt16"): (1 / 32768, np.array(0, np.int16)),
}


def _name(quant_type: Any) -> str:
    return str(getattr(quant_type, "name", quant_type))


def get_qnn_qdq_config(  # noqa: PLR0913 - onnxruntime's signature
    model_input: str | Path | onnx.ModelProto,
    calibration_data_reader: Any,
    calibrate_method: CalibrationMethod | None = None,
    activation_type: QuantType = QuantType.QUInt8,
    weight_type: QuantType = QuantType.QUInt8,
    per_channel: bool = False,  # noqa: FBT001 - onnxruntime's signature
    init_overrides: Mapping[str, list[dict[str, Any]]] | None = None,
    add_qtype_converts: bool = True,  # noqa: FBT001
    activation_symmetric: bool = False,  # noqa: FBT001
    weight_symmetric: bool | None = None,  # noqa: FBT001
    keep_removable_activations: bool = False,  # noqa: FBT001
    stride: int | None = None,
    calibration_providers: Sequence[str] | None = None,
    op_types_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | None = None,
) -> StaticQuantConfig:
    """Return a configuration that quantizes all of a model as QNN runs it.

    Args:
        model_input: A path or a model; weights are not read.
        calibration_data_reader: As of `quantize_static`.
        calibrate_method: How ranges are estimated; None: as `quantize_static` does.
        activation_type: Of activations that are not overridden.
        weight_type: Of weights that are not overridden.
        per_channel: One scale per channel for Conv and ConvTranspose; QNN has none for MatMul.
        init_overrides: Of single tensors; a copy is added to.
        add_qtype_converts: Spread overridden types to neighbours, and convert where types meet.
        activation_symmetric: Zero points of activations in the middle.
        weight_symmetric: Those of weights; None: of signed types.
        keep_removable_activations: Relu and Clip stay where a range clips alike.
        stride: Of samples that are calibrated together; memory does not need it here.
        calibration_providers: As of `quantize_static`.
        op_types_to_quantize: Only these; None: all but Cast.
        nodes_to_exclude: Never these.
    """
    facts = model_facts(model_input)
    if weight_symmetric is None:
        weight_symmetric = _name(weight_type) in {"QInt8", "QInt16"}
    overrides = TensorQuantOverridesHelper(deepcopy(dict(init_overrides or {})))
    if not overrides.empty() and add_qtype_converts:
        MixedPrecisionTensorQuantOverridesFixer.create_from_model(
            overrides, facts.model, activation_type
        ).apply(activation_type, activation_symmetric)
    rules = _Rules(
        overrides=overrides,
        constants=frozenset(tensor.name for tensor in facts.model.graph.initializer),
        activation_type=activation_type,
        weight={"quant_type": weight_type, "symmetric": weight_symmetric},
    )
    chosen = facts.chosen(op_types_to_quantize, frozenset(nodes_to_exclude or ()))
    for node in chosen:
        rules.apply(node, per_channel=per_channel)
    options: dict[str, Any] = {
        "MinimumRealRange": _LEAST_RANGE,
        "DedicatedQDQPair": False,
        "QDQKeepRemovableActivations": keep_removable_activations,
        "TensorQuantOverrides": overrides.get_dict(),
        "ActivationSymmetric": activation_symmetric,
        "WeightSymmetric": weight_symmetric,
        "CalibStridedMinMax": stride,
    }
    types = {_name(t) for t in (activation_type, weight_type, *overrides.get_quant_types())}
    if facts.opset < _ALL_TYPES and types & (_WIDE | _NARROW):
        options["UseQDQContribOps"] = True
    found = {node.op_type for node in chosen} - {"Cast"}
    return StaticQuantConfig(
        calibration_data_reader,
        calibrate_method=calibrate_method,
        activation_type=activation_type,
        weight_type=weight_type,
        op_types_to_quantize=list(op_types_to_quantize or sorted(found)),
        nodes_to_exclude=nodes_to_exclude,
        per_channel=per_channel,
        use_external_data_format=facts.external,
        calibration_providers=calibration_providers,
        extra_options=options,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rules:
    """What QNN wants of the tensors of single operators.

    `weight`: what is said of weights that are not overridden.
    """

    overrides: TensorQuantOverridesHelper
    constants: frozenset[str]
    activation_type: QuantType
    weight: Mapping[str, Any]

    def apply(self, node: onnx.NodeProto, *, per_channel: bool) -> None:
        """Add what a node's tensors need, unless it was said otherwise."""
        match node.op_type:
            case "MatMul" if per_channel:
                for name in node.input:
                    if name in self.constants and name not in self.overrides:
                        self.overrides.update_tensor_overrides(name, self.weight)
            case "MatMul" | "LayerNormalization" if not per_channel:
                self._keep_weight_narrow(node)
            case "Sigmoid" | "Tanh":
                self._use_built_in(node)

    def _keep_weight_narrow(self, node: onnx.NodeProto) -> None:
        """Beside an activation of 16 bits a constant would be taken for another; it has 8 as other weights do."""
        if _name(self.weight["quant_type"]) not in _BYTES:
            return
        constant, wide = None, False
        for name in filter(None, node.input[:2]):
            known = name in self.constants
            default = None if known else self.activation_type
            info = self.overrides.get_node_input_qtype_info(name, node.name, default)
            if info.axis is not None:
                return
            if known:
                constant = name
            wide = wide or (not known and _name(info.quant_type) in _WIDE)
        if constant is not None and wide:
            self.overrides.update_tensor_overrides(constant, self.weight, overwrite=False)

    def _use_built_in(self, node: onnx.NodeProto) -> None:
        result = node.output[0]
        made = self.overrides.get_node_output_qtype_info(result, self.activation_type).quant_type
        if (node.op_type, _name(made)) not in _BUILT_IN:
            return
        scale, zero = _BUILT_IN[node.op_type, _name(made)]
        said = {"quant_type": made, "scale": np.array(scale, np.float32), "zero_point": zero}
        self.overrides.update_tensor_overrides(result, said)


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)
