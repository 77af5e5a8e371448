"""What float operators mean: which multiply, move, join or bound what they read.

Pure data: no onnx, no decisions. Three questions about movement are told apart:

- what ONNX moves (`MOVES`): the values that come out are values that went in;
- what a reader may look through to find where values come from (`SEEN_THROUGH`, and Cast for constants);
- what a *runtime* moves on integers, which is data of `quantkit.targets`, not of this table.
"""

from collections.abc import Mapping
from enum import Flag, auto
from types import MappingProxyType


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

# What exporters assemble weights with: the contents of constants in another order or shape.
REARRANGES = frozenset(
    {"Concat", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"}
)

# They keep the number of axes of their first input.
KEEPS_RANK = frozenset(
    {"Cast", "Clip", "Dropout", "Erf", "Gelu", "Identity", "LayerNormalization", "LogSoftmax"}
    | {"Neg", "Relu", "Sigmoid", "Softmax", "Sqrt", "Tanh"}
)

# Their result has as many axes as the input with most of them.
BROADCASTS = frozenset({"Add", "Div", "MatMul", "Max", "Min", "Mul", "Pow", "Sub", "Where"})

# They combine values of the same place in all that they read, an extent of 1 standing for any other.
ALIGNS = BROADCASTS - {"MatMul"} | {"PRelu", "Sum"}

# They fold axes, or add and remove those of extent 1.
UNIT_AXES = frozenset({"Flatten", "Squeeze", "Unsqueeze"})

# They add up many values for each of their results.
AVERAGES = frozenset({"AveragePool", "GlobalAveragePool", "ReduceMean"})

# They run a graph of their own many times.
LOOPS = frozenset({"Loop", "Scan"})

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

# Functions of one value, behind a product in most networks.
ACTIVATIONS = CLIPS | {
    *("Celu", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "PRelu"),
    *("QuickGelu", "Selu", "Sigmoid", "Softplus", "Swish", "Tanh"),
}

# An activation function, Relu too, may be part of them; Max bounds as a Relu does.
ENDS_IN_ACTIVATION = frozenset({"FusedConv", "FusedGemm", "Max"})

# What comes out is what went in, perhaps in another type.
COPIES = frozenset({"Cast", "Dropout", "Identity"})

# Functions of single values, whatever stands next to them; other inputs bound or parametrize.
FUNCTIONS = (
    (ACTIVATIONS - {"PRelu"})
    | COPIES
    | {
        *("Abs", "Ceil", "Cos", "Erf", "Exp", "Floor", "IsNaN", "Log", "Neg", "Not", "Reciprocal"),
        *("Round", "Sign", "Sin", "Softsign", "Sqrt", "ThresholdedRelu"),
    }
)

# They look at each channel of an image by itself.
POOLS = AVERAGES - {"ReduceMean"} | {"GlobalLpPool", "GlobalMaxPool", "LpPool", "MaxPool"}
NORMALIZES_CHANNELS = frozenset({"BatchNormalization", "InstanceNormalization"})
SCALES_AXES = frozenset({"Resize", "Upsample"})

# They compute one value from all along some axes, or from all of an axis.
REDUCES = frozenset({"ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"})
SOFTMAXES = frozenset({"LogSoftmax", "Softmax"})

# They combine two tensors, of which one is often a constant: a bias, a scale, a bound.
ARITHMETIC = frozenset({"Add", "Div", "Max", "Mul", "Sub"})

# Whether two values are the same, for each of them.
EQUALITY = frozenset({"Equal"})

# What comes out are extents; and what is computed of extents is a shape again.
EXTENTS = frozenset({"Shape", "Size"})
SHAPE_ARITHMETIC = ARITHMETIC | {
    *("Cast", "Concat", "Equal", "Floor", "Gather", "Identity", "Min", "Mod", "Neg", "ReduceProd"),
    *("Reshape", "Slice", "Split", "Squeeze", "Unsqueeze", "Where"),
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


# Conversions, and what holds graphs: never quantized as an operator.
UNCOVERED = frozenset({"DequantizeLinear", "If", "Loop", "QuantizeLinear", "Scan"})

# They look values up in a table.
TABLES = frozenset({"Gather", "GatherElements"})

# Movement that is quantized also where what it moves is not: between pairs, and as integers.
MOVED_IN_PAIRS = frozenset({"Pad", "Split"})
MOVED_AS_INTEGERS = frozenset({"Split"})

# One operand may leave too few steps for the others.
MASKED = frozenset({"Add", "Where"})

# All they read has the same factors per channel.
JOINS_FACTORS = frozenset({"Add", "Max", "Min"})

# onnxruntime moves a DequantizeLinear behind the first, and takes the others away before.
PASSED_BY_CONVERSIONS = MOVES | CLIPS | {"Concat", "Dropout"}

# Normalizations with a gain per channel of the last axis, and what else is computed in float and has loud channels.
CHANNEL_GAINS = frozenset({"LayerNormalization", "RMSNormalization"})
LOUD_CHANNELS = CHANNEL_GAINS | {
    *("BiasGelu", "FastGelu", "Gelu", "Mul", "QuickGelu", "SimplifiedLayerNormalization"),
    *("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"),
}

# What onnxruntime fuses with an activation, and the product inside.
FUSED_PRODUCTS: Mapping[str, str] = MappingProxyType({"FusedConv": "Conv", "FusedGemm": "Gemm"})

_MOST = 3.4028234663852886e38  # of float32
# What an activation of theirs takes, in the order of its parameters, with onnxruntime's defaults.
FUSED_ACTIVATIONS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "Relu": {},
        "Sigmoid": {},
        "Tanh": {},
        "LeakyRelu": {"alpha": 0.01},
        "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
        "Clip": {"min": -_MOST, "max": _MOST},
    }
)


# Inputs of which 0 is no value.
DIVISORS: Mapping[str, int] = MappingProxyType({"Div": 1, "Log": 0, "Reciprocal": 0})

# Inputs that bound others: one that becomes infinite bounds as little as before.
BOUNDS: Mapping[str, tuple[int, ...]] = MappingProxyType({"Clip": (1, 2)})

# They square what they read.
SQUARES = frozenset(
    {
        *("GlobalLpPool", "GroupNormalization", "InstanceNormalization", "LRN"),
        *("LpNormalization", "LpPool", "MeanVarianceNormalization", "ReduceL2"),
    }
)

# What comes out does not grow with a constant that is added to what goes in.
BOUNDED = FIXED_RANGES.keys() | FLOAT_PRODUCTS | NORMALIZES | {"Clip", "Erf", "Tanh"}


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
