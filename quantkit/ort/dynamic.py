"""onnxruntime's `quantize_dynamic`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from quantkit import api
from quantkit.ort.quant_utils import QuantType
from quantkit.pipeline import QuantizeResult

__all__ = ["quantize_dynamic"]


def quantize_dynamic(  # noqa: PLR0913 - onnxruntime's signature
    model_input: str | Path | onnx.ModelProto,
    model_output: str | Path,
    op_types_to_quantize: Sequence[str] | None = None,
    per_channel: bool | None = None,  # noqa: FBT001 - onnxruntime's signature
    reduce_range: bool = False,  # noqa: FBT001 - onnxruntime's signature
    weight_type: QuantType = QuantType.QInt8,
    nodes_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | None = None,
    use_external_data_format: bool = False,  # noqa: FBT001 - onnxruntime's signature
    extra_options: Mapping[str, Any] | None = None,
) -> QuantizeResult:
    """Quantize as `quantkit.quantize_dynamic` does, called as onnxruntime's users do.

    `per_channel` left out is quantkit's choice, per channel; False is per tensor, as you ask.
    """
    return api.quantize_dynamic(
        model_input,
        model_output,
        weight_type,  # type: ignore[arg-type]  # told apart by name
        per_channel=True if per_channel is None else per_channel,
        reduce_range=reduce_range,
        op_types_to_quantize=op_types_to_quantize or None,
        nodes_to_quantize=nodes_to_quantize,
        nodes_to_exclude=nodes_to_exclude,
        use_external_data_format=use_external_data_format,
        extra_options=extra_options,
    )
