"""Which inputs of quantized operators are scales and zero points, and what float operator they stand for."""

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["computes", "scale_slots"]

_BINARY = (1, 2, 4, 5, 6, 7)  # a, its scale and zero point, b, the same, those of the result
_UNARY = (1, 2, 3, 4)
_SLOTS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        "ConvInteger": (2, 3),
        "DequantizeLinear": (1, 2),
        "DynamicQuantizeLSTM": (8, 9, 10, 11),
        "DynamicQuantizeMatMul": (2, 3),
        "GatherBlockQuantized": (2, 3),
        "MatMulBnb4": (2,),
        "MatMulInteger": (2, 3),
        "MatMulIntegerToFloat": (2, 3, 4, 5),
        "MatMulNBits": (2, 3),
        "QAttention": (3, 4, 6, 7),
        "QEmbedLayerNormalization": tuple(range(8, 18)),
        "QGemm": (1, 2, 4, 5, 7, 8),
        "QLinearAdd": _BINARY,
        "QLinearAveragePool": _UNARY,
        "QLinearConv": _BINARY,
        "QLinearGlobalAveragePool": _UNARY,
        "QLinearLeakyRelu": _UNARY,
        "QLinearMatMul": _BINARY,
        "QLinearMul": _BINARY,
        "QLinearReduceMean": _UNARY,
        "QLinearSigmoid": _UNARY,
        "QLinearSoftmax": _UNARY,
        "QLinearWhere": (2, 3, 5, 6, 7, 8),
        "QuantizeLinear": (1, 2),
    }
)
_COMPUTES: Mapping[str, str] = MappingProxyType(
    {
        "ConvInteger": "Conv",
        "DynamicQuantizeLSTM": "LSTM",
        "DynamicQuantizeMatMul": "MatMul",
        "GatherBlockQuantized": "Gather",
        "MatMulBnb4": "MatMul",
        "MatMulInteger": "MatMul",
        "MatMulIntegerToFloat": "MatMul",
        "MatMulNBits": "MatMul",
        "QAttention": "Attention",
        "QEmbedLayerNormalization": "EmbedLayerNormalization",
        "QGemm": "Gemm",
    }
)


def scale_slots(op_type: str, inputs: int) -> tuple[int, ...]:
    """Return the inputs that are scales or zero points."""
    if op_type == "QLinearConcat":  # those of the result, then (tensor, scale, zero point) repeated
        return tuple(i for i in range(inputs) if i < 2 or (i - 2) % 3)  # noqa: PLR2004
    return tuple(i for i in _SLOTS.get(op_type, ()) if i < inputs)


def computes(op_type: str) -> str:
    """Return the float operator that an operator stands for; so float and quantized models compare."""
    return _COMPUTES.get(op_type) or op_type.removeprefix("QLinear")
