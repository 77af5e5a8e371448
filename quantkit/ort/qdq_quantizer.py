"""onnxruntime's `QDQQuantizer`: quantizes a model in memory by ranges that the caller has."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnxruntime.quantization.onnx_model import ONNXModel
from onnxruntime.quantization.quant_utils import QuantFormat, QuantizationMode

from quantkit.errors import UsageError
from quantkit.files import scratch
from quantkit.ort._passthrough import forward
from quantkit.ort.calibration_cache import calibration_of
from quantkit.ort.quantize import quantize_static

__all__ = ["QDQQuantizer"]

__getattr__ = forward(__name__)


class QDQQuantizer:
    """Quantizes by given ranges, in the form QDQ, all that is named.

    `quantize_model` returns the model, which is verified; `model` then holds it (``model.save_model_to_file(path)``).
    """

    def __init__(  # noqa: PLR0913 - onnxruntime's signature
        self,
        model: onnx.ModelProto | str | Path,
        per_channel: bool,  # noqa: FBT001 - onnxruntime's signature
        reduce_range: bool,  # noqa: FBT001
        weight_qType: Any,  # noqa: N803 - onnxruntime's names
        activation_qType: Any,  # noqa: N803
        tensors_range: Any,
        nodes_to_quantize: Sequence[str] | None,
        nodes_to_exclude: Sequence[str] | None,
        op_types_to_quantize: Sequence[str] | None,
        extra_options: Any = None,
        *older: Any,
    ) -> None:
        """Keep what is asked for.

        Args:
            model: The float model.
            per_channel: One scale per output channel.
            reduce_range: Accepted, and not needed.
            weight_qType: Type of weights.
            activation_qType: Type of activations.
            tensors_range: By tensor what `compute_data` gave, or a lower and an upper end.
            nodes_to_quantize: Only these nodes; empty: all.
            nodes_to_exclude: Never these nodes.
            op_types_to_quantize: Only these operator types; empty: all that there are.
            extra_options: As of `quantize_static`.
            *older: Until onnxruntime 1.18 two more came after `reduce_range`: a QuantizationMode, and whether it is
                static. A call with them is understood.

        Raises:
            UsageError: There are no ranges.
        """
        given = [weight_qType, activation_qType, tensors_range, nodes_to_quantize, nodes_to_exclude]
        given += [op_types_to_quantize, extra_options, *older]
        if isinstance(weight_qType, QuantizationMode):
            given = given[2:]
        weight, activation, ranges, include, exclude, op_types, *rest = given
        if not hasattr(ranges, "items"):
            raise UsageError(
                "tensors_range holds no ranges: give what compute_data() of a calibrater returned."
            )
        self.model = ONNXModel(model if isinstance(model, onnx.ModelProto) else onnx.load(model))
        self.per_channel = per_channel
        self.reduce_range = reduce_range
        self.weight_qType = weight
        self.activation_qType = activation
        self.tensors_range = ranges
        self.nodes_to_quantize = include
        self.nodes_to_exclude = exclude
        self.op_types_to_quantize = op_types
        self.extra_options: Mapping[str, Any] = (rest[0] if rest else None) or {}

    def quantize_model(self) -> onnx.ModelProto:
        """Quantize, and return the model; it is checked, loaded and run before.

        Raises:
            QuantkitError: With one line that says what is wrong. The model stays as it was.
        """
        source = self.model.model
        with scratch() as folder:
            path = folder / "quantized.onnx"
            quantize_static(
                source,
                path,
                calibration_of(self.tensors_range, source),
                quant_format=QuantFormat.QDQ,
                op_types_to_quantize=self.op_types_to_quantize or None,
                per_channel=self.per_channel,
                reduce_range=self.reduce_range,
                activation_type=self.activation_qType,
                weight_type=self.weight_qType,
                nodes_to_quantize=self.nodes_to_quantize or None,
                nodes_to_exclude=self.nodes_to_exclude or None,
                extra_options=self.extra_options,
                coverage="all",
            )
            quantized = onnx.load(path)
        self.model = ONNXModel(quantized)
        return quantized
