"""onnxruntime's dictionary of options for static quantization, read into what quantkit calls the same.

Every key that onnxruntime knows is either translated, or accepted because quantkit always does so, or refused with
the reason. An unknown key is an error: onnxruntime ignores it, and a typing error with it.

`TensorQuantOverrides`, one of these keys, becomes rules for tensors.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from quantkit.errors import UsageError
from quantkit.numerics.dtypes import IntType
from quantkit.ort.quant_utils import type_name
from quantkit.settings import QdqSettings, TensorRule, closest
from quantkit.spec import named_int_type

__all__ = ["ExtraOptions", "read_extra_options", "rules_of"]

_KNOWN = ("quant_type", "scale", "zero_point", "rmin", "rmax", "symmetric")
# Keys that there is nothing like, and why.
_REFUSED = {
    "axis": "activations have one scale, and scales of weights are chosen by what they multiply",
    "convert": "a tensor has one type for all that read it",
}


def rules_of(
    overrides: Mapping[str, Any], weights: Collection[str], default: IntType, *, symmetric: bool
) -> list[TensorRule]:
    """Return a rule for each tensor that is overridden.

    Args:
        overrides: By tensor a list of one dictionary: quant_type, scale and zero_point, rmin and rmax, symmetric.
        weights: The model's constants, which have no rules.
        default: The type of activations that name none.
        symmetric: Whether activations have their zero points in the middle.

    Raises:
        UsageError: An override makes no sense, or asks for what quantkit does not do.
    """
    if not isinstance(overrides, Mapping):
        raise UsageError("TensorQuantOverrides maps tensor names to lists of one dictionary.")
    rules = []
    for tensor, listed in overrides.items():
        given = _only(tensor, listed)
        if tensor in weights:
            raise _refusal(
                tensor, "it is a weight: use weight_type and per_channel, or edit a saved plan"
            )
        rule = _rule(tensor, given, default, symmetric=symmetric)
        if rule is not None:
            rules.append(rule)
    return rules


def _refusal(tensor: str, why: str) -> UsageError:
    return UsageError(f"TensorQuantOverrides of '{tensor}' is not available: {why}.")


def _only(tensor: str, listed: Any) -> Mapping[str, Any]:
    if not isinstance(listed, list | tuple) or not all(isinstance(g, Mapping) for g in listed):
        raise UsageError(f"TensorQuantOverrides of '{tensor}' is no list of dictionaries.")
    if len(listed) != 1:
        raise _refusal(tensor, f"it has {len(listed)} entries, and an activation takes one")
    given: Mapping[str, Any] = listed[0]
    for key in given:
        if key in _REFUSED:
            raise _refusal(tensor, f"'{key}': {_REFUSED[key]}")
        if key == "reduce_range" and not given[key]:
            continue
        if key not in _KNOWN:
            raise _refusal(tensor, f"'{key}' has no meaning for an activation")
    return given


def _rule(
    tensor: str, given: Mapping[str, Any], default: IntType, *, symmetric: bool
) -> TensorRule | None:
    dtype = type_name(given["quant_type"]) if given.get("quant_type") is not None else None
    ends = _by_scale(tensor, given, named_int_type(dtype) if dtype else default)
    ends = ends or _by_range(tensor, given)
    wanted = given.get("symmetric")
    if wanted is not None and bool(wanted) != symmetric:
        if not wanted or ends is None:
            raise _refusal(
                tensor, f"symmetric={wanted}: set ActivationSymmetric for all, or rmin and rmax"
            )
        extent = max(-ends[0], ends[1])
        ends = (-extent, extent)
    if dtype is None and ends is None:
        return None
    return TensorRule(tensor=tensor, dtype=dtype, range=ends)


def _by_scale(tensor: str, given: Mapping[str, Any], dtype: IntType) -> tuple[float, float] | None:
    """Return the range of all integers: scale * (q - zero_point) for the lowest and the highest q."""
    if ("scale" in given) != ("zero_point" in given):
        raise _refusal(tensor, "scale and zero_point go together")
    if "scale" not in given:
        return None
    if {"rmin", "rmax", "symmetric"} & set(given):
        raise _refusal(tensor, "scale and zero_point leave nothing for rmin, rmax and symmetric")
    scale, zero = float(given["scale"]), int(given["zero_point"])
    if not scale > 0 or not dtype.qmin <= zero <= dtype.qmax:
        raise _refusal(tensor, f"scale {scale} and zero point {zero} are none of {dtype.name}")
    return scale * (dtype.qmin - zero), scale * (dtype.qmax - zero)


def _by_range(tensor: str, given: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the range that is given, widened to hold 0 as onnxruntime does it."""
    if ("rmin" in given) != ("rmax" in given):
        raise _refusal(tensor, "rmin and rmax go together")
    if "rmin" not in given:
        return None
    return min(float(given["rmin"]), 0.0), max(float(given["rmax"]), 0.0)


# onnxruntime's default share of the newest batch in a moving average.
_NEWEST = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraOptions:
    """What an options dictionary asks for; None: it says nothing.

    Attributes:
        symmetric: Zero points of activations in the middle.
        smooth: Move outliers of activations into weights (SmoothQuant).
        momentum: Of a moving average of minima and maxima, if one is asked for.
        percentile: Per cent of the values kept.
        stride: Samples that the reader is to show at a time; None: it is read to its end.
        overrides: Of single tensors.
        qdq: The form of the QDQ format.
    """

    symmetric: bool | None = None
    smooth: bool | None = None
    momentum: float | None = None
    percentile: float | None = None
    stride: int | None = None
    overrides: Mapping[str, Any] | None = None
    qdq: QdqSettings = field(default_factory=QdqSettings)


# Keys that are translated.
_READ = (
    "ActivationSymmetric",
    "CalibMovingAverage",
    "CalibMovingAverageConstant",
    "CalibPercentile",
    "CalibStridedMinMax",
    "CalibTensorRangeSymmetric",
    "SmoothQuant",
    "TensorQuantOverrides",
)

# Keys that say what quantkit does whatever they say.
_HARMLESS = {
    "CalibMaxIntermediateOutputs",  # memory does not grow with the data
    "DefaultTensorType",  # shapes and types are inferred
    "ForceQuantizeNoInputCheck",  # data movement joins integers where that costs nothing
}

# Keys that cannot be had otherwise: the values that are as quantkit does it, and what to do instead of others.
_FIXED: dict[str, tuple[tuple[Any, ...], str]] = {
    "WeightSymmetric": ((True, None), "weights of static layers are symmetric"),
    "EnableSubgraph": ((True,), "subgraphs are always looked at; exclude nodes by name instead"),
    "MatMulConstBOnly": ((True,), "only layers with a constant weight run in integers"),
    "QuantizeBias": ((True,), "integer kernels need an int32 bias where the target has one"),
    "AddQDQPairToWeight": ((False,), "weights are stored as integers"),
    "DedicatedQDQPair": ((False,), "nodes that read a tensor share its QuantizeLinear"),
    "OpTypesToExcludeOutputQuantization": (
        ([], (), None),
        "name the tensors: quantkit.quantize_static(tensors=[TensorRule(tensor=..., keep_float=True)])",
    ),
    "QDQOpTypePerChannelSupportToAxis": (
        ({}, {"MatMul": 1}, None),
        "scales go by output channel, as per_channel says",
    ),
    "MinimumRealRange": (
        (None, 0),
        "give single tensors a range: quantkit.quantize_static(tensors=[TensorRule(tensor=..., range=...)])",
    ),
    "ActivationRestrictedAsymmetric": ((False,), "zero points are where they fit best"),
    "UseQDQContribOps": ((False,), "types of 16 bits are written with opset 21"),
    "QDQKeepRemovableActivations": ((False,), "Relu and Clip go where a range clips alike"),
    "QDQDisableWeightAdjustForInt32Bias": ((False,), "a bias always fits its int32"),
    "SmoothQuantAlpha": ((0.5, None), "quantkit chooses how far to smooth"),
    "SmoothQuantFolding": ((True,), "smoothing is folded into the weights"),
    "BlockSize": ((0, None), "static layers have one scale per channel or per tensor"),
    "extra.Sigmoid.nnapi": ((False,), "quantkit has no target NNAPI"),
}


def read_extra_options(extra_options: Mapping[str, Any] | None) -> ExtraOptions:
    """Read an options dictionary.

    Raises:
        UsageError: A key is unknown, or asks for what quantkit does not do.
    """
    given = dict(extra_options or {})
    known = (*_READ, *sorted(_HARMLESS), *_FIXED)
    for key, value in given.items():
        if key not in known:
            raise UsageError(
                f"extra_options key '{key}' is unknown{closest(key, known)}; remove it "
                f"(understood: {', '.join(known)})."
            )
        if key in _FIXED and value not in _FIXED[key][0]:
            raise UsageError(f"extra_options {key}={value!r} is not available: {_FIXED[key][1]}.")
    smooth = given.get("SmoothQuant")
    return ExtraOptions(
        symmetric=_symmetric(given),
        smooth=None if smooth is None else bool(smooth),
        momentum=_momentum(given),
        percentile=given.get("CalibPercentile"),
        stride=given.get("CalibStridedMinMax") or None,
        overrides=given.get("TensorQuantOverrides") or None,
    )


def _symmetric(given: Mapping[str, Any]) -> bool | None:
    """A range that is made symmetric about 0 has its zero point in the middle."""
    said = [given[k] for k in ("ActivationSymmetric", "CalibTensorRangeSymmetric") if k in given]
    return any(said) if said else None


def _momentum(given: Mapping[str, Any]) -> float | None:
    """Onnxruntime gives the weight of the newest batch, quantkit that of all before it."""
    if not given.get("CalibMovingAverage"):
        return None
    return 1 - float(given.get("CalibMovingAverageConstant", _NEWEST))
