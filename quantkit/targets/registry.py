"""Targets by name: the built-in ones, and plug-ins.

A plug-in is an entry point of the group "quantkit.targets" that names a `Target`, whose name is the entry point's.
It is imported only when asked for by name. `check_target` checks it.

The first are those of onnxruntime's CPU execution provider: `tests/targets/test_targets_runtime.py` proves every operator listed here.

The facts of other runtimes are read in the vendors' guides and sources, not measured: the tests have no such hardware.
Where a source lists more operators than are known to gain, the shorter list stands here.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from types import MappingProxyType

from calibrators.plugins import Plugins
from quantkit.errors import UsageError
from quantkit.numerics.dtypes import INT8, INT32, UINT8
from quantkit.targets.model import Target

# Quantization is moved through these before patterns are matched.
MOVED_THROUGH = frozenset(
    {"Flatten", "Gather", "Identity", "MaxPool", "Reshape", "Slice", "Squeeze", "Transpose"}
    | {"Unsqueeze"}
)

# A stored weight is restored by these when the model is loaded.
RESTORES = frozenset(
    {"Add", "Cast", "DequantizeLinear", "Div", "Gather", "Identity", "Mul", "Reshape", "Sub"}
    | {"Transpose", "Unsqueeze"}
)


# onnxruntime 1.31 turns DequantizeLinear, one of these and QuantizeLinear into a kernel called QLinear...
_COMPUTES = """
    Add AveragePool Concat GlobalAveragePool LeakyRelu Mul Sigmoid Softmax Where
"""
# Nothing is computed, or only compared: the operator itself runs on integers. MaxPool from opset 12 on.
_MOVES = """
    DepthToSpace Expand Flatten Gather GatherElements MaxPool ReduceMax ReduceMin Reshape Resize Slice
    Split Squeeze Tile Transpose Unsqueeze
"""
# What onnxruntime's own tool puts between conversions besides: computed in float, with no gain on a CPU. The file is then one
# that other providers can take over.
_COVERS = """
    ArgMax BatchNormalization ConvTranspose CumSum InstanceNormalization LayerNormalization TopK
"""
# A sum with a constant that its result's quantization clips: no kernel of its own, but that of a sum.
_SUMS = frozenset({"HardSigmoid"})
# No kernel, but made of operators that have one, and faster in float too (`benchmarks/results/operators.md`).
_DECOMPOSED = frozenset({"HardSwish", "PRelu"})
# Of movement, what runs on integers only if it is written so: between conversions onnxruntime leaves it in float.
_BARE = frozenset({"Max", "Min", "Pad"})
# Their kernels round otherwise on ARM: by one step.
STEPPED_ON_ARM = frozenset({"Add", "HardSigmoid", "Mul"})
# Other tools leave these as they are, so a file that is to hold pairs around all that is quantized has none here.
_UNCOVERED = _SUMS | {"Max", "Min"}
_NOTES = (
    "Conv runs in integers only if its output is quantized too, and its bias is int32 with the scale x_scale * w_scale.",
    "Relu and Clip are fused into the layer before them if no integer of the output exceeds their bounds; else both run in float.",
    "PRelu runs as Max of its input and of that times the slopes, HardSigmoid and HardSwish as sums and products.",
    "Tanh, Gelu, Sub, Div, normalizations, Relu without a layer before it, and all else not listed run in float.",
    "Conv in groups of less than 8 channels runs in float, which is faster, unless it is depthwise.",
    "Resize runs on integers in mode nearest; in modes linear and cubic it runs in float.",
    "With 16-bit activations layers run in float.",
)

CPU = Target(
    name="cpu",
    title="any CPU: layers give the same integers on AVX2, VNNI and ARM",
    activation=UINT8,
    weight=INT8,
    symmetric_activations=False,
    symmetric_weights=True,
    per_channel=True,
    channelwise=frozenset({"Conv", "Gemm", "MatMul"}),
    saturates=True,
    computes=frozenset(_COMPUTES.split()) | _SUMS,
    products=frozenset({"Conv", "Gemm", "MatMul"}),
    moves=frozenset(_MOVES.split()) | _BARE,
    bare=_BARE,
    written_as_sums=_SUMS,
    uncovered=_UNCOVERED,
    decomposed=_DECOMPOSED,
    # One product of matrices for each group: of 2 channels it takes 8 to 23 times as long as float, of 8 as long.
    least_group=8,
    needs_output=frozenset({"Conv"}),
    int16=False,
    bias=INT32,
    min_opset=13,
    covers=frozenset(_COVERS.split()),
    runtime="onnxruntime, CPU provider",
    notes=(
        "Weights are chosen so that nothing saturates: x86 without VNNI adds two uint8 x int8 products in 16 bits.",
        "On ARM, Add and Mul may differ by one step from x86: about 1 value in 50,000 for Add, up to 1 in 2,000 for Mul.",
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
    uncovered=_SUMS,
    notes=(_ON_X86, *_NOTES),
)


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
_PROVIDER_MOVES = "Concat Flatten MaxPool Reshape Slice Split Squeeze Tile Transpose Unsqueeze"

_QNN_COMPUTES = """
    Add AveragePool Clip Div Elu Exp Gelu GlobalAveragePool HardSigmoid HardSwish InstanceNormalization
    LayerNormalization LeakyRelu Mul PRelu ReduceMean ReduceSum Relu Sigmoid Softmax Sqrt Sub Tanh Where
"""
_QNN_MOVES = f"""
    {_PROVIDER_MOVES} DepthToSpace Expand Gather GatherElements GlobalMaxPool Pad ReduceMax ReduceMin Resize
    SpaceToDepth
"""

# For coverage "all" alone. Unlike the lists above these three were not checked against the vendors' guides or sources: an
# operator that a runtime does not take in integers runs there in float, between conversions.
_TENSORRT_COVERS = """
    Div LeakyRelu Max Min Mul Pad ReduceMax ReduceMean ReduceSum Sigmoid Softmax Sub Tanh
"""
_OPENVINO_COVERS = "Div InstanceNormalization LeakyRelu Pad PRelu ReduceMean ReduceSum Resize Sub"
_QNN_COVERS = """
    Abs ArgMax ArgMin BatchNormalization Ceil Cos CumSum Floor GatherND GridSample Log LogSoftmax LpNormalization Max
    Min Neg Pow Round ScatterElements ScatterND Sign Sin Softplus Sum TopK Upsample
"""

# What the runtimes beside the CPU provider have in common, where they do.
_PROVIDER = replace(
    CPU,
    channelwise=_PRODUCTS,
    products=_PRODUCTS,
    needs_output=frozenset(),
    bare=frozenset(),
    written_as_sums=frozenset(),
    uncovered=frozenset(),
    decomposed=frozenset(),
    least_group=1,
    covers=frozenset(),
    bias=None,
    formats=_QDQ,
    needs_barriers=False,
)

# NVIDIA's guide to explicit quantization: signed and symmetric alone (its ONNX parser refuses other zero points);
# quantize the inputs of products, not their outputs; quantize the residual input of an Add, which is then fused
# into the product before it; activations by tensor, weights by channel. The parser also refuses int32 in DequantizeLinear,
# which a quantized bias would need.
TENSORRT = replace(
    _PROVIDER,
    name="tensorrt",
    title="NVIDIA GPU",
    activation=INT8,
    symmetric_activations=True,
    saturates=False,
    computes=frozenset({"Add", "AveragePool", "GlobalAveragePool"}),
    moves=frozenset(_PROVIDER_MOVES.split()) | {"DepthToSpace", "Expand", "Gather", "Resize"},
    covers=frozenset(_TENSORRT_COVERS.split()),
    runtime="TensorRT, alone or as onnxruntime's provider",
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
OPENVINO = replace(
    _PROVIDER,
    name="openvino",
    title="Intel CPU, GPU or NPU",
    computes=frozenset({"Add", "AveragePool", "GlobalAveragePool", "Mul"}),
    moves=frozenset(_PROVIDER_MOVES.split()) | {"GlobalMaxPool", "ReduceMax"},
    covers=frozenset(_OPENVINO_COVERS.split()),
    runtime="OpenVINO, alone or as onnxruntime's provider",
    notes=(
        "Weights are chosen so that nothing saturates: OpenVINO too adds in 16 bits on AVX2, and on AVX-512 without VNNI.",
        "Conv, Gemm and MatMul are quantized at their inputs only; what follows is fused in float.",
        _UNTOUCHED,
        "Read in NNCF's sources, not measured.",
    ),
)

# The provider's list of operators, and onnxruntime's own settings for it: every tensor is quantized; a scale per channel for
# the weights of Conv and ConvTranspose, not of MatMul.
QNN = replace(
    _PROVIDER,
    name="qnn",
    title="Qualcomm NPU (Hexagon)",
    channelwise=frozenset({"Conv", "ConvTranspose"}),
    saturates=False,
    computes=frozenset(_QNN_COMPUTES.split()),
    moves=frozenset(_QNN_MOVES.split()),
    covers=frozenset(_QNN_COVERS.split()),
    needs_output=_PRODUCTS,
    int16=True,
    bias=INT32,
    runtime="onnxruntime, QNN provider (HTP)",
    fixed_outputs=frozenset({"HardSigmoid", "Sigmoid", "Softmax"}),
    needs_barriers=True,
    notes=(
        "Every tensor is quantized: an operator left in float leaves the integer part of the NPU, or the NPU.",
        "MatMul's weights have one scale; its documented weight type is uint8: choose it if int8 is refused.",
        "16-bit activations run in integers; they need opset 21, or the operators of com.microsoft.",
        "Shapes must be fixed: the provider takes no dynamic ones.",
        "Read in the provider's documentation, not measured.",
    ),
)


GROUP = "quantkit.targets"

TARGETS: Mapping[str, Target] = MappingProxyType(
    {t.name: t for t in (CPU, VNNI, AVX2, ARM64, TENSORRT, OPENVINO, QNN)}
)
"""The built-in targets, the default first."""

DEFAULT = TARGETS["cpu"]
_PLUGINS = Plugins(group=GROUP, kind="target", built_in=TARGETS, error=UsageError)


def names() -> tuple[str, ...]:
    """Return every name that `target` knows, the built-in ones first.

    Raises:
        UsageError: A plug-in takes a name that is already in use.
    """
    return _PLUGINS.names()


def registered() -> tuple[Target, ...]:
    """Return every target, the built-in ones first; plug-ins that cannot be loaded are left to whom asks for them."""
    found = list(TARGETS.values())
    with suppress(UsageError):  # two of one name
        for name in names()[len(TARGETS) :]:
            with suppress(UsageError):  # someone else's code, which this run does not use
                found.append(target(name))
    return tuple(found)


def target(name: str) -> Target:
    """Return a target by its name. Built-in names never look for plug-ins, which takes milliseconds.

    Raises:
        UsageError: No such target, or a plug-in that is none.
    """
    if name in TARGETS:
        return TARGETS[name]
    known = names()
    if name not in known:
        near = get_close_matches(name.lower(), known, n=1)
        hint = f" (did you mean '{near[0]}'?)" if near else ""
        raise UsageError(f"target '{name}' is unknown{hint}: use one of {', '.join(known)}.")
    found = _PLUGINS.load(name)
    if not isinstance(found, Target) or found.name != name:
        raise UsageError(
            f"The plug-in '{_PLUGINS.where(name)}' is no Target called '{name}': it must name one."
        )
    return found
