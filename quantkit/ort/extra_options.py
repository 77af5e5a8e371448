"""onnxruntime's dictionary of options for static quantization, read into what quantkit calls the same.

Every key that onnxruntime knows is either translated, or accepted because quantkit always does so, or refused with
the reason. An unknown key is an error: onnxruntime ignores it, and a typing error with it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quantkit.errors import UsageError
from quantkit.recipe import closest

__all__ = ["ExtraOptions", "read_extra_options"]

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
        overrides: Of single tensors.
    """

    symmetric: bool | None = None
    smooth: bool | None = None
    momentum: float | None = None
    percentile: float | None = None
    overrides: Mapping[str, Any] | None = None


# Keys that are translated.
_READ = (
    "ActivationSymmetric",
    "CalibMovingAverage",
    "CalibMovingAverageConstant",
    "CalibPercentile",
    "CalibTensorRangeSymmetric",
    "SmoothQuant",
    "TensorQuantOverrides",
)

# Keys that say what quantkit does whatever they say.
_HARMLESS = {
    "CalibMaxIntermediateOutputs",  # memory does not grow with the data
    "CalibStridedMinMax",
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
