"""Runtimes other than onnxruntime's CPU provider.

Their facts are read in the vendors' guides and sources, not measured: the tests have no such hardware.
Where a source lists more operators than are known to gain, the shorter list stands here.
"""

from quantkit.numerics.dtypes import INT8, INT32, UINT8
from quantkit.targets.model import Target

__all__ = ["OPENVINO", "QNN", "TENSORRT"]

# QLinear operators are onnxruntime's own, for its CPU provider: its other providers look for QDQ, and other runtimes read
# some of them at most.
_QDQ = frozenset({"qdq"})

# onnxruntime rewrites QDQ at its level 1, which no provider switches off, before it asks a provider what it runs: it quantizes
# float weights and biases between DequantizeLinear and QuantizeLinear, and moves both. QNN is a provider of onnxruntime and nothing
# else, and takes every operator between the two for an integer one: it needs barriers. TensorRT and OpenVINO read the file
# themselves, fuse what follows a product in float, and would stop at a barrier. As providers they need onnxruntime's optimization off
# with barriers too: it also makes int32 of every bias before a QuantizeLinear.
_UNTOUCHED = (
    "As onnxruntime's provider, give it the file untouched: with graph_optimization_level ORT_DISABLE_ALL. Else onnxruntime "
    "quantizes biases, and layers that were left in float, before the provider sees them."
)

_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})

# Quantizing before or after these gives the same values, whatever the runtime.
_MOVES = "Concat Flatten MaxPool Reshape Slice Split Squeeze Tile Transpose Unsqueeze"

_QNN_COMPUTES = """
    Add AveragePool Clip Div Elu Exp Gelu GlobalAveragePool HardSigmoid HardSwish InstanceNormalization
    LayerNormalization LeakyRelu Mul PRelu ReduceMean ReduceSum Relu Sigmoid Softmax Sqrt Sub Tanh Where
"""
_QNN_MOVES = f"""
    {_MOVES} DepthToSpace Expand Gather GatherElements GlobalMaxPool Pad ReduceMax ReduceMin Resize
    SpaceToDepth
"""

# NVIDIA's guide to explicit quantization: signed and symmetric alone (its ONNX parser refuses other zero points);
# quantize the inputs of products, not their outputs; quantize the residual input of an Add, which is then fused
# into the product before it; activations by tensor, weights by channel. The parser also refuses int32 in DequantizeLinear,
# which a quantized bias would need.
TENSORRT = Target(
    name="tensorrt",
    title="NVIDIA GPU",
    activation=INT8,
    weight=INT8,
    symmetric_activations=True,
    symmetric_weights=True,
    per_channel=True,
    channelwise=_PRODUCTS,
    saturates=False,
    computes=frozenset({"Add", "AveragePool", "GlobalAveragePool"}),
    products=_PRODUCTS,
    moves=frozenset(_MOVES.split()) | {"DepthToSpace", "Expand", "Gather", "Resize"},
    needs_output=frozenset(),
    int16=False,
    bias=None,
    min_opset=13,
    runtime="TensorRT, alone or as onnxruntime's provider",
    formats=_QDQ,
    needs_barriers=False,
    types=frozenset({INT8}),
    zero_points=False,
    notes=(
        "Zero points are 0: TensorRT refuses a model with others.",
        "Conv, Gemm and MatMul are quantized at their inputs only: TensorRT fuses what follows into them in higher precision.",
        "Both inputs of an Add are quantized: it is then fused into the layer before it.",
        "Biases stay float: TensorRT refuses DequantizeLinear of int32.",
        _UNTOUCHED,
        "Read in NVIDIA's guide, not measured.",
    ),
)

# The CPU settings of NNCF, OpenVINO's own quantizer: activations of any sign, weights symmetric by channel; Concat with
# one scale for all; of eight bits of a weight seven are used, unless the hardware is known not to saturate.
# NNCF also quantizes Sub, Div, Pow and reductions; left out here.
OPENVINO = Target(
    name="openvino",
    title="Intel CPU, GPU or NPU",
    activation=UINT8,
    weight=INT8,
    symmetric_activations=False,
    symmetric_weights=True,
    per_channel=True,
    channelwise=_PRODUCTS,
    saturates=True,
    computes=frozenset({"Add", "AveragePool", "GlobalAveragePool", "Mul"}),
    products=_PRODUCTS,
    moves=frozenset(_MOVES.split()) | {"GlobalMaxPool", "ReduceMax"},
    needs_output=frozenset(),
    int16=False,
    bias=None,
    min_opset=13,
    runtime="OpenVINO, alone or as onnxruntime's provider",
    formats=_QDQ,
    needs_barriers=False,
    notes=(
        "Weights are chosen so that nothing saturates: OpenVINO too adds in 16 bits on AVX2, and on AVX-512 without VNNI.",
        "Conv, Gemm and MatMul are quantized at their inputs only; what follows is fused in float.",
        _UNTOUCHED,
        "Read in NNCF's sources, not measured.",
    ),
)

# The provider's list of operators, and onnxruntime's own settings for it: every tensor is quantized; a scale per channel for
# the weights of Conv and ConvTranspose, not of MatMul.
QNN = Target(
    name="qnn",
    title="Qualcomm NPU (Hexagon)",
    activation=UINT8,
    weight=INT8,
    symmetric_activations=False,
    symmetric_weights=True,
    per_channel=True,
    channelwise=frozenset({"Conv", "ConvTranspose"}),
    saturates=False,
    computes=frozenset(_QNN_COMPUTES.split()),
    products=_PRODUCTS,
    moves=frozenset(_QNN_MOVES.split()),
    needs_output=_PRODUCTS,
    int16=True,
    bias=INT32,
    min_opset=13,
    runtime="onnxruntime, QNN provider (HTP)",
    formats=_QDQ,
    fixed_outputs=frozenset({"HardSigmoid", "Sigmoid", "Softmax"}),
    notes=(
        "Every tensor is quantized: an operator left in float leaves the integer part of the NPU, or the NPU.",
        "MatMul's weights have one scale; its documented weight type is uint8: choose it if int8 is refused.",
        "16-bit activations run in integers; they need opset 21, or the operators of com.microsoft.",
        "Shapes must be fixed: the provider takes no dynamic ones.",
        "Read in the provider's documentation, not measured.",
    ),
)
