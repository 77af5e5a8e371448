"""Which operators read and write activations that a plan may quantize.

Pure data, from onnxruntime's kernels and the conventions of other runtimes for Q/DQ pairs. What is in
none of these sets computes in float, and nobody needs the range of what stands between two such nodes.
"""

from quantkit.ops.facts import FACTS

__all__ = [
    "ABSORBED_BY",
    "BY_CONSTANT",
    "COMPUTES",
    "FIXED_RANGES",
    "MOVES",
    "PRODUCTS",
    "activation_slots",
]

# They have a kernel for integers (or are quantized by another runtime): ranges of what goes in and out.
COMPUTES = frozenset(
    {
        "Add",
        "AveragePool",
        "Concat",
        "Conv",
        "ConvTranspose",
        "Gelu",
        "Gemm",
        "GlobalAveragePool",
        "HardSwish",
        "InstanceNormalization",
        "LayerNormalization",
        "LeakyRelu",
        "MatMul",
        "Mul",
        "Resize",
        "Sigmoid",
        "Softmax",
        "Where",
    }
) | frozenset(op_type for _, op_type in FACTS if op_type != "Gather")

# What comes out are values that went in: they share the scale of their first input.
MOVES = frozenset(
    {
        "DepthToSpace",
        "Expand",
        "Flatten",
        "Gather",
        "Identity",
        "MaxPool",
        "Pad",
        "Reshape",
        "Slice",
        "SpaceToDepth",
        "Split",
        "Squeeze",
        "Tile",
        "Transpose",
        "Unsqueeze",
    }
)

# Products of activations and weights.
PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})

# They run in integers for the sake of their neighbours only.
BY_CONSTANT = frozenset({"Add", "Mul"})

# An operator that disappears into the kernel of the one before it, if nobody else reads what is between.
ABSORBED_BY = {
    "BatchNormalization": PRODUCTS - {"MatMul"},
    "Clip": COMPUTES | {"BatchNormalization"},
    "Relu": COMPUTES | {"BatchNormalization"},
}

# What an operator's formula bounds. 256 steps of 1/256: onnxruntime's kernels use that scale as well.
FIXED_RANGES = {
    "HardSigmoid": (0.0, 255 / 256),
    "Sigmoid": (0.0, 255 / 256),
    "Softmax": (0.0, 255 / 256),
}


def activation_slots(op_type: str, inputs: int, *, product: bool) -> range:
    """Return which of its inputs an operator that runs in integers reads as integers.

    `product`: it multiplies by a weight, which is not one of them.
    """
    match op_type:
        case "Add" | "Mul" | "Concat" | "Max" | "Min":
            return range(inputs)
        case "MatMul" if not product:
            return range(inputs)
        case "Where":
            return range(1, inputs)
        case "ScatterElements" | "ScatterND":
            return range(
                0, inputs, 2
            )  # data, and what is written into it; between them are indices
        case _:
            return range(1)
