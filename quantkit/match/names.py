"""What a tensor was called before somebody quantized it.

Tools that quantize name what they add after the tensor it stands for: ``w`` becomes ``w_quantized`` and
``w_DequantizeLinear_Output``. Names are a hint for matching, never the proof that two tensors are equal.
"""

from functools import cache

__all__ = ["base_name"]

# Of quantkit, onnxruntime.quantization and exporters that quantize themselves.
_SUFFIXES = (
    "_QuantizeLinear_Output",
    "_QuantizeLinear_Input",
    "_DequantizeLinear_Output",
    "_dequantized",
    "_quantized",
    "_widened",
)


@cache
def base_name(tensor: str) -> str:
    """Return the name without the endings of quantization, however many there are."""
    for suffix in _SUFFIXES:
        if tensor.endswith(suffix) and len(tensor) > len(suffix):
            return base_name(tensor.removesuffix(suffix))
    return tensor
