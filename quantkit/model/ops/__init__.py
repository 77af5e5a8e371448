"""What operators are, each fact once: float ones, and a row per quantized one. Knows neither onnx nor onnxruntime.

The float operators that hold weights: in which inputs, along which axis, and what computes them in integers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from quantkit.model.ops.integer_ops import MICROSOFT
from quantkit.reasons import Why

__all__ = ["FACTS", "MICROSOFT", "Kernel", "OpFact", "channel_axis", "fact_of"]


class Kernel(StrEnum):
    """What computes an operator with int8 weights and float inputs."""

    MATMUL = "MatMulInteger"  # with DynamicQuantizeLinear; onnxruntime fuses it into one kernel
    CONV = "ConvInteger"  # with DynamicQuantizeLinear; not fused
    LOOKUP = "Gather"  # rows are looked up as integers, then scaled
    LSTM = "DynamicQuantizeLSTM"
    ATTENTION = "QAttention"
    EMBED = "QEmbedLayerNormalization"
    STATIC = "QLinear"  # inputs in calibrated integers
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpFact:
    """An operator that holds weights.

    Attributes:
        op_type: Its name.
        domain: Its domain.
        weights: Input slots that hold weights.
        channel_axis: The axis of the weight that holds output channels.
        kernel: The dynamic int8 kernel, if there is one.
        why: Why there is none, or none worth using: it is used only where coverage is "all".
    """

    op_type: str
    weights: tuple[int, ...]
    channel_axis: int
    kernel: Kernel = Kernel.NONE
    why: Why | None = None
    domain: str = ""


_SLOW_CONV, _NO_KERNEL = Why.SLOW_CONV_INTEGER, Why.NO_DYNAMIC_KERNEL

# Sources: onnxruntime's kernel table and the measurements in ``benchmarks/``.
_WEIGHTED = (
    OpFact(op_type="MatMul", weights=(1, 0), channel_axis=-1, kernel=Kernel.MATMUL),
    OpFact(op_type="Gemm", weights=(1,), channel_axis=1, kernel=Kernel.MATMUL),
    OpFact(op_type="Gather", weights=(0,), channel_axis=-1, kernel=Kernel.LOOKUP),
    OpFact(op_type="LSTM", weights=(1, 2), channel_axis=1, kernel=Kernel.LSTM),
    OpFact(op_type="Conv", weights=(1,), channel_axis=0, kernel=Kernel.CONV, why=_SLOW_CONV),
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
    {(fact.domain, fact.op_type): fact for fact in _WEIGHTED}
)


# They look rows up by numbers: the input with the numbers, and the one with the table.
LOOKUPS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "EmbedLayerNormalization": (0, 2),
        "Gather": (1, 0),
        "GatherBlockQuantized": (1, 0),
        "QEmbedLayerNormalization": (0, 2),
    }
)


def fact_of(domain: str, op_type: str) -> OpFact | None:
    """Return what is known of an operator; None if it holds no weights."""
    return FACTS.get(("" if domain == "ai.onnx" else domain, op_type))


def channel_axis(fact: OpFact, slot: int, rank: int, attributes: Mapping[str, object]) -> int:
    """Return the axis of output channels in a weight, as a number >= 0.

    Args:
        fact: The operator.
        slot: The input slot of the weight.
        rank: How many axes the weight has.
        attributes: Those of the node.
    """
    axis = fact.channel_axis
    if attributes.get("transB") or (fact.op_type == "MatMul" and slot == 0):
        axis = -2  # the last axis is summed over
    return axis % rank
