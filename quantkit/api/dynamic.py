"""`quantize_dynamic`: the call that everybody makes first."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

from quantkit.api.arguments import check_output, checked_kinds, checked_names
from quantkit.errors import UsageError
from quantkit.pipeline.forms.dynamic import dynamic
from quantkit.pipeline.result import QuantizeResult
from quantkit.settings import DynamicSettings
from quantkit.spec import QuantType, QUInt8, weight_int_type

__all__ = ["check_extra_options", "quantize_dynamic"]


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
        extra_options: onnxruntime's option dictionary; see `check_extra_options`.
        verify: Check the result before writing.
        sample: Inputs to verify with; made up from the model's signature if not given.

    Returns:
        What was decided for each node and why, sizes, and what the verification found.

    Raises:
        QuantkitError: With one line that says what is wrong and what to do. Nothing is written then.
    """
    check_extra_options(extra_options)
    check_output(model_output)
    if sample is not None and not verify:
        raise UsageError("A sample is what the result is verified with; it needs verify=True.")
    if sample is not None and not isinstance(sample, Mapping):
        raise UsageError("A sample maps input names to arrays: {'input_ids': array, ...}.")
    stored: Any = weight_int_type(weight_type).name
    return dynamic(
        model_input,
        model_output,
        DynamicSettings(
            weight_type=stored,
            per_channel=per_channel,
            weight_bits=weight_bits,
            target_size=target_size,  # type: ignore[arg-type]  # read there
            reduce_range=reduce_range,
            op_types=checked_names(op_types_to_quantize, "op_types_to_quantize"),
            include=checked_names(nodes_to_quantize, "nodes_to_quantize"),
            exclude=checked_names(nodes_to_exclude, "nodes_to_exclude"),
            coverage=coverage,  # type: ignore[arg-type]  # checked there
            keep_inputs=keep_inputs,
        ),
        verify=verify,
        external_data=use_external_data_format,
        sample=sample,
    )


# Keys of onnxruntime's dictionary: the value that quantkit always behaves by, and what to do instead
# of any other.
_ALWAYS: dict[str, tuple[Any, str]] = {
    "EnableSubgraph": (True, "subgraphs are always quantized; exclude nodes by name instead"),
    "MatMulConstBOnly": (True, "only operators with a constant weight are quantized dynamically"),
    "WeightSymmetric": (None, "int8 weights are symmetric and uint8 weights asymmetric"),
    "ActivationSymmetric": (False, "DynamicQuantizeLinear is asymmetric by definition"),
    "ForceQuantizeNoInputCheck": (False, "it has no meaning for dynamic quantization"),
}


def check_extra_options(extra_options: Mapping[str, Any] | None) -> None:
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
