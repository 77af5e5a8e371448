"""Which operators read and write activations that a plan may quantize.

Pure data, from onnxruntime's kernels and the conventions of other runtimes for Q/DQ pairs. What is in
none of these sets computes in float, and nobody needs the range of what stands between two such nodes.
"""

from quantkit.ops.facts import FACTS

__all__ = ["ABSORBED_BY", "BY_CONSTANT", "COMPUTES", "MOVES", "PRODUCTS"]

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
