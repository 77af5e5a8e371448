"""onnxruntime's CPU execution provider. `tests/targets/test_targets_runtime.py` proves every operator listed here."""

from dataclasses import replace

from quantkit.numerics.dtypes import INT8, INT32, UINT8
from quantkit.targets.model import Target

__all__ = ["ARM64", "AVX2", "CPU", "VNNI"]

# onnxruntime 1.31 turns DequantizeLinear, one of these and QuantizeLinear into a kernel called QLinear...
_COMPUTES = """
    Add AveragePool Concat GlobalAveragePool LeakyRelu Mul Sigmoid Softmax Where
"""
# Nothing is computed, or only compared: the operator itself runs on integers. MaxPool from opset 12 on.
_MOVES = """
    DepthToSpace Expand Flatten Gather GatherElements MaxPool ReduceMax ReduceMin Reshape Resize Slice
    Split Squeeze Tile Transpose Unsqueeze
"""
# Likewise, but only if they are written on integers: between conversions onnxruntime leaves them in float.
_BARE = frozenset({"Pad"})
_NOTES = (
    "Conv runs in integers only if its output is quantized too, and its bias is int32 with the scale x_scale * w_scale.",
    "Relu and Clip are fused into the layer before them if no integer of the output exceeds their bounds; else both run in float.",
    "Tanh, Gelu, Sub, Div, normalizations, Relu without a layer before it, and all else not listed run in float.",
    "Resize runs on integers in mode nearest; in modes linear and cubic it runs in float.",
    "With 16-bit activations layers run in float.",
)

CPU = Target(
    name="cpu",
    title="any CPU: the same integers on AVX2, VNNI and ARM",
    activation=UINT8,
    weight=INT8,
    symmetric_activations=False,
    symmetric_weights=True,
    per_channel=True,
    channelwise=frozenset({"Conv", "Gemm", "MatMul"}),
    saturates=True,
    computes=frozenset(_COMPUTES.split()),
    products=frozenset({"Conv", "Gemm", "MatMul"}),
    moves=frozenset(_MOVES.split()) | _BARE,
    bare=_BARE,
    needs_output=frozenset({"Conv"}),
    int16=False,
    bias=INT32,
    min_opset=13,
    runtime="onnxruntime, CPU provider",
    notes=(
        "Weights are chosen so that nothing saturates: x86 without VNNI adds two uint8 x int8 products in 16 bits.",
        *_NOTES,
    ),
)

AVX2 = replace(CPU, name="x86-avx2", title="x86 with AVX2 or AVX-512, without VNNI")

VNNI = replace(
    CPU,
    name="x86-vnni",
    title="x86 with AVX-VNNI, AVX512-VNNI or AMX",
    saturates=False,
    notes=(
        "Weights use all of int8: VNNI adds in 32 bits. On older x86 the same file can give wrong integers.",
        *_NOTES,
    ),
)

_ON_X86 = (
    "int8 activations run in ARM's fastest kernels. On x86 onnxruntime rewrites them to uint8, or runs in float: "
    "use 'cpu' for one file for both."
)

ARM64 = replace(
    CPU,
    name="arm64",
    title="64-bit ARM",
    activation=INT8,
    saturates=False,
    moves=CPU.moves - _BARE,
    bare=frozenset(),
    notes=(_ON_X86, *_NOTES),
)
