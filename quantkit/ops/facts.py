"""Which operators hold weights, where, and what onnxruntime's CPU provider can do with them in int8.

Pure data: no onnx, no decisions. Sources: onnxruntime's kernel table and the measurements in
``benchmarks/``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

__all__ = ["FACTS", "MICROSOFT", "QUANTIZED_OPS", "Kernel", "OpFact", "channel_axis", "fact_of"]

MICROSOFT = "com.microsoft"


class Kernel(StrEnum):
    """What computes an operator with int8 weights and float inputs."""

    MATMUL = "MatMulInteger"  # with DynamicQuantizeLinear; onnxruntime fuses it into one kernel
    LOOKUP = "Gather"  # rows are looked up as integers, then scaled
    LSTM = "DynamicQuantizeLSTM"
    ATTENTION = "QAttention"
    EMBED = "QEmbedLayerNormalization"
    STATIC = "QLinear"  # inputs in calibrated integers
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpFact:
    """One operator.

    Attributes:
        op_type: Its name.
        domain: Its domain.
        weights: Input slots that hold weights.
        channel_axis: The axis of the weight that holds output channels.
        kernel: The dynamic int8 kernel, if there is one worth using.
        why: If there is none, why.
    """

    op_type: str
    weights: tuple[int, ...]
    channel_axis: int
    kernel: Kernel = Kernel.NONE
    why: str = ""
    domain: str = ""


_SLOW_CONV = (
    "onnxruntime does not fuse a dynamic ConvInteger, which takes 2 to 4 times as long as float"
)
_NO_KERNEL = "onnxruntime has no dynamic int8 kernel for it"

_ALL = (
    OpFact(op_type="MatMul", weights=(1, 0), channel_axis=-1, kernel=Kernel.MATMUL),
    OpFact(op_type="Gemm", weights=(1,), channel_axis=1, kernel=Kernel.MATMUL),
    OpFact(op_type="Gather", weights=(0,), channel_axis=-1, kernel=Kernel.LOOKUP),
    OpFact(op_type="LSTM", weights=(1, 2), channel_axis=1, kernel=Kernel.LSTM),
    OpFact(op_type="Conv", weights=(1,), channel_axis=0, why=_SLOW_CONV),
    OpFact(op_type="ConvTranspose", weights=(1,), channel_axis=1, why=_NO_KERNEL),
    OpFact(op_type="GRU", weights=(1, 2), channel_axis=1, why=_NO_KERNEL),
    OpFact(op_type="RNN", weights=(1, 2), channel_axis=1, why=_NO_KERNEL),
    OpFact(op_type="Einsum", weights=(0, 1), channel_axis=-1, why=_NO_KERNEL),
    OpFact(
        op_type="Attention",
        domain=MICROSOFT,
        weights=(1,),
        channel_axis=1,
        kernel=Kernel.ATTENTION,
    ),
    OpFact(
        op_type="EmbedLayerNormalization",
        domain=MICROSOFT,
        weights=(2, 3, 4),
        channel_axis=-1,
        kernel=Kernel.EMBED,
    ),
    OpFact(op_type="FusedConv", domain=MICROSOFT, weights=(1,), channel_axis=0, why=_SLOW_CONV),
    OpFact(op_type="FusedMatMul", domain=MICROSOFT, weights=(1,), channel_axis=-1, why=_NO_KERNEL),
    OpFact(op_type="FusedGemm", domain=MICROSOFT, weights=(1,), channel_axis=1, why=_NO_KERNEL),
)

FACTS: Mapping[tuple[str, str], OpFact] = MappingProxyType(
    {(fact.domain, fact.op_type): fact for fact in _ALL}
)


# Operators that only quantized models have.
QUANTIZED_OPS = frozenset(
    {
        "ConvInteger",
        "DequantizeLinear",
        "DynamicQuantizeLSTM",
        "DynamicQuantizeLinear",
        "DynamicQuantizeMatMul",
        "MatMulInteger",
        "MatMulNBits",
        "QAttention",
        "QEmbedLayerNormalization",
        "QLinearConv",
        "QLinearMatMul",
    }
)


def fact_of(domain: str, op_type: str) -> OpFact | None:
    """Return what is known of an operator; None if it holds no weights."""
    return FACTS.get(("" if domain == "ai.onnx" else domain, op_type))


def channel_axis(fact: OpFact, slot: int, rank: int, attributes: Mapping[str, object]) -> int:
    """Return the axis of output channels in a weight of `rank` axes, as a number >= 0."""
    axis = fact.channel_axis
    if (fact.op_type in {"Gemm", "FusedGemm", "FusedMatMul"} and attributes.get("transB")) or (
        fact.op_type == "MatMul" and slot == 0
    ):
        axis = -2
    return axis % rank
