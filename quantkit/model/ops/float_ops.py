"""What float operators mean: which hold weights and where, which multiply, move, join or bound what they read.

Pure data: no onnx, no decisions. Three questions about movement are told apart:

- what ONNX moves (`MOVES`): the values that come out are values that went in;
- what a reader may look through to find where values come from (`SEEN_THROUGH`, and Cast for constants);
- what a *runtime* moves on integers, which is data of `quantkit.targets`, not of this table.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Flag, StrEnum, auto
from types import MappingProxyType

from quantkit.model.ops.integer_ops import MICROSOFT
from quantkit.reasons import Why

__all__ = [
    "ABSORBED_BY",
    "BIASED",
    "BY_CONSTANT",
    "CLIPS",
    "COMPARES",
    "COMPUTES",
    "COVERED_SLOTS",
    "FACTS",
    "FILL_SLOTS",
    "FIXED_RANGES",
    "FLOAT_PRODUCTS",
    "KEEPS_FACTORS",
    "MATRIX_PRODUCTS",
    "MOVES",
    "NAMED",
    "NORMALIZES",
    "PRODUCTS",
    "SEEN_THROUGH",
    "SELECTS",
    "Kernel",
    "OpFact",
    "Trait",
    "activation_slots",
    "channel_axis",
    "fact_of",
    "having",
]


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


class Trait(Flag):
    """What holds of an operator, whoever runs it."""

    PRODUCT = auto()  # of activations and weights
    BIASED = auto()  # a product that adds a bias
    SLIDES = auto()  # a product over windows of its input; else it is one of matrices
    MULTIPLIES = auto()  # counts as a product where sessions are looked at
    COMPUTES = (
        auto()
    )  # some runtime computes it in integers: ranges of what goes in and out are needed
    EVERY_INPUT = auto()  # all its inputs are activations
    MOVES = (
        auto()
    )  # what comes out are values that went in: they share the scale of the first input
    JOINS = auto()  # values of several inputs come out as they are
    CLIPS = auto()  # goes into the kernel before it, or into the quantization of its result
    BOUNDED = auto()  # its formula keeps it between 0 and 1
    KEEPS_FACTORS = auto()  # a positive factor per channel of its inputs is one of its output


_T = Trait
_PRODUCT = _T.PRODUCT | _T.MULTIPLIES | _T.COMPUTES
# Operators of the standard domain and of com.microsoft; no name means two things in them.
_TRAITS: Mapping[str, Trait] = MappingProxyType(
    {
        "Add": _T.COMPUTES | _T.EVERY_INPUT | _T.KEEPS_FACTORS,
        "Attention": _T.MULTIPLIES | _T.COMPUTES,
        "AveragePool": _T.COMPUTES | _T.KEEPS_FACTORS,
        "Clip": _T.CLIPS | _T.KEEPS_FACTORS,  # if it starts at 0
        "Concat": _T.COMPUTES | _T.EVERY_INPUT | _T.JOINS,
        "Conv": _PRODUCT | _T.BIASED | _T.SLIDES,
        "ConvTranspose": _PRODUCT | _T.BIASED | _T.SLIDES,
        "DepthToSpace": _T.MOVES,
        "Einsum": _T.COMPUTES,  # a product, a sum or a transposition, by its equation
        "EmbedLayerNormalization": _T.COMPUTES,
        "Expand": _T.MOVES,
        "Flatten": _T.MOVES,
        "FusedConv": _T.MULTIPLIES | _T.COMPUTES,
        "FusedGemm": _T.MULTIPLIES | _T.COMPUTES,
        "FusedMatMul": _T.MULTIPLIES | _T.COMPUTES,
        "GRU": _T.MULTIPLIES | _T.COMPUTES,
        "Gather": _T.MOVES,
        "Gelu": _T.COMPUTES,
        "Gemm": _PRODUCT | _T.BIASED,
        "GlobalAveragePool": _T.COMPUTES | _T.KEEPS_FACTORS,
        "HardSigmoid": _T.COMPUTES | _T.BOUNDED,
        "HardSwish": _T.COMPUTES,
        "Identity": _T.MOVES,
        "InstanceNormalization": _T.COMPUTES,
        "LSTM": _T.MULTIPLIES | _T.COMPUTES,
        "LayerNormalization": _T.COMPUTES,
        "LeakyRelu": _T.COMPUTES | _T.KEEPS_FACTORS,
        "MatMul": _PRODUCT,
        "Max": _T.EVERY_INPUT | _T.JOINS | _T.KEEPS_FACTORS,
        "MaxPool": _T.MOVES | _T.KEEPS_FACTORS,
        "Min": _T.EVERY_INPUT | _T.JOINS | _T.KEEPS_FACTORS,
        "Mul": _T.COMPUTES | _T.EVERY_INPUT,
        "MultiHeadAttention": _T.MULTIPLIES,
        "NhwcFusedConv": _T.MULTIPLIES,  # in optimized graphs
        "Pad": _T.MOVES,
        "RNN": _T.MULTIPLIES | _T.COMPUTES,
        "Relu": _T.CLIPS | _T.KEEPS_FACTORS,
        "Reshape": _T.MOVES,
        "Resize": _T.COMPUTES,
        "Sigmoid": _T.COMPUTES | _T.BOUNDED,
        "Slice": _T.MOVES,
        "Softmax": _T.COMPUTES | _T.BOUNDED,
        "SpaceToDepth": _T.MOVES,
        "Split": _T.MOVES,
        "Squeeze": _T.MOVES,
        "Tile": _T.MOVES,
        "Transpose": _T.MOVES,
        "Unsqueeze": _T.MOVES,
        "Where": _T.COMPUTES,
    }
)


def having(trait: Trait) -> frozenset[str]:
    """Return the operators that have one of these traits."""
    return frozenset(op_type for op_type, traits in _TRAITS.items() if traits & trait)


PRODUCTS = having(Trait.PRODUCT)
BIASED = having(Trait.BIASED)
MATRIX_PRODUCTS = PRODUCTS - having(Trait.SLIDES)
FLOAT_PRODUCTS = having(Trait.MULTIPLIES)
COMPUTES = having(Trait.COMPUTES)
MOVES = having(Trait.MOVES)
SEEN_THROUGH = having(Trait.MOVES | Trait.JOINS)
CLIPS = having(Trait.CLIPS)
KEEPS_FACTORS = having(Trait.KEEPS_FACTORS)

# They run in integers for the sake of their neighbours only.
BY_CONSTANT = having(Trait.EVERY_INPUT) - having(Trait.JOINS)

# An operator that disappears into the kernel of the one before it, if nobody else reads what is between.
ABSORBED_BY: Mapping[str, frozenset[str]] = MappingProxyType(
    {"BatchNormalization": BIASED} | dict.fromkeys(CLIPS, COMPUTES | {"BatchNormalization"})
)

# What an operator's formula bounds. 256 steps of 1/256: onnxruntime's kernels use that scale as well.
FIXED_RANGES: Mapping[str, tuple[float, float]] = MappingProxyType(
    dict.fromkeys(having(Trait.BOUNDED), (0.0, 255 / 256))
)

# Of data movement, the input with a value that is put in beside those that are moved.
FILL_SLOTS: Mapping[str, int] = MappingProxyType({"Pad": 2})


# Operators that somebody may ask to be quantized, whether or not there is a way to do it.
NAMED = frozenset(_TRAITS) | {
    "ArgMax",
    "BatchNormalization",
    "CumSum",
    "GatherElements",
    "TopK",
}

# What comes out lies among the values that went in, or between them: the first result may have the scale of the first input.
SELECTS = MOVES | {
    *("GatherElements", "GatherND", "GlobalMaxPool", "ReduceMax", "ReduceMin", "Resize", "TopK"),
    "Upsample",
}

# What comes out are indices, the same for integers as for the floats that they stand for.
COMPARES = frozenset({"ArgMax"})

# They scale and shift what they normalize: by the second input and the third, which is a bias like that of a product.
NORMALIZES = frozenset({"BatchNormalization", "InstanceNormalization", "LayerNormalization"})

# The inputs that are values to be quantized, where others are floats too: factors, bounds, statistics. A bias is none of
# them: it has the scale of what it is added to.
COVERED_SLOTS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    dict.fromkeys(("Clip", "Dropout", "Resize", "Upsample"), (0,))
    | dict.fromkeys(BIASED | NORMALIZES, (0, 1))
)


def activation_slots(op_type: str, inputs: int, *, product: bool) -> range:
    """Return which of its inputs an operator that runs in integers reads as integers.

    Args:
        op_type: The operator.
        inputs: How many inputs it has.
        product: It multiplies by a weight, which is not one of them.
    """
    if op_type == "Where":  # its condition is no number
        return range(1, inputs)
    if op_type.startswith("Scatter"):  # data, and what is written into it; between them are indices
        return range(0, inputs, 2)
    every = Trait.EVERY_INPUT in _TRAITS.get(op_type, Trait(0))
    return range(inputs if every or (op_type == "MatMul" and not product) else 1)


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
