"""onnxruntime's dictionary of options for static quantization, read into what quantkit calls the same.

Every key that onnxruntime knows is either translated, or accepted because quantkit always does so, or refused with
the reason. A key that is nearly a known one is an error: onnxruntime ignores it, and so the slip. Any other is named in a
note, and ignored as there: some scripts keep options of their own in the dictionary.

`TensorQuantOverrides`, one of these keys, becomes rules for tensors.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from onnxruntime.quantization.quant_utils import QuantType
from onnxruntime.quantization.tensor_quant_overrides import TensorQuantOverridesHelper

from quantkit.calibration import CalibratorOf
from quantkit.errors import UsageError
from quantkit.numerics.affine import affine_from_range
from quantkit.numerics.dtypes import UINT8, IntType
from quantkit.ort.quant_utils import type_name
from quantkit.settings import QdqSettings, TensorRule, closest
from quantkit.settings.declare import declared
from quantkit.spec import PerTensor, QuantSpec, named_int_type

__all__ = [
    "METHODS",
    "Defaults",
    "ExtraOptions",
    "Tensors",
    "check_overrides",
    "read_extra_options",
    "rules_of",
]

_Given = Mapping[str, Any]

_TYPES = {type_name(member): member for member in QuantType}
_OVERRIDES = (
    *("quant_type", "axis", "scale", "zero_point", "symmetric"),
    *("reduce_range", "rmax", "rmin", "convert", "recv_nodes"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensors:
    """The tensors of a model, as far as overrides ask.

    Attributes:
        constants: The shapes of constants, by name.
        computed: The names of all others.
        weights: The constants that weights are: operands of products and normalizations, and their biases.
        sigmoids: What a Sigmoid makes.
        readers: The names of the nodes that read a tensor.
    """

    constants: Mapping[str, tuple[int, ...]]
    computed: Collection[str]
    weights: Collection[str]
    sigmoids: Sequence[str] = ()
    readers: Mapping[str, Collection[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What holds for tensors of which nothing is said.

    `symmetric` is about activations; `symmetric_weights` None: of signed types.
    """

    activation: IntType
    weight: IntType
    symmetric: bool
    symmetric_weights: bool | None = None


def rules_of(overrides: _Given, tensors: Tensors, defaults: Defaults) -> list[TensorRule]:
    """Return the rules for each tensor that is overridden: one, and another if it is converted for some nodes.

    Args:
        overrides: By tensor a list of dictionaries; see `check_overrides`.
        tensors: Those of the model.
        defaults: Types and symmetry of others.

    Raises:
        UsageError: An override makes no sense, or asks for what quantkit does not do.
    """
    check_overrides(overrides, tensors, _TYPES[defaults.activation.name])
    rules: list[TensorRule] = []
    for tensor, listed in overrides.items():
        if not listed or not listed[0]:
            continue
        if tensor in tensors.constants:
            rules.append(_constant_rule(tensor, listed, tensors, defaults))
            continue
        rules += _activation_rule(tensor, listed[0], defaults)
        if "convert" in listed[0]:
            convert = dict(listed[0]["convert"])
            readers = _readers(tensor, convert.pop("recv_nodes", ()), tensors)
            rules += (
                replace(r, readers=readers) for r in _activation_rule(tensor, convert, defaults)
            )
    return rules


def check_overrides(overrides: _Given, tensors: Tensors, default: QuantType) -> None:
    """Refuse overrides that make no sense.

    {"tensor": [{"quant_type": ..., "axis": ..., "scale": ..., "zero_point": ..., "rmin": ..., "rmax": ...,
                 "symmetric": ..., "reduce_range": ..., "convert": {..., "recv_nodes": {...}}}, ...]}

    A tensor has one dictionary, or, per channel, one for each channel, of which the first names the axis. onnxruntime's own
    check stops at the first tensor that is right: each is given to it alone.

    Args:
        overrides: What was given.
        tensors: Those of the model.
        default: The type of activations that name none.

    Raises:
        UsageError: A tensor is not there, or what is said of it contradicts itself.
    """
    if not isinstance(overrides, Mapping):
        raise UsageError("TensorQuantOverrides maps tensor names to lists of dictionaries.")
    shapes = {name: SimpleNamespace(dims=shape) for name, shape in tensors.constants.items()}
    for tensor, listed in overrides.items():
        wrong = _misspelled(listed)
        if wrong is None:
            helper = TensorQuantOverridesHelper({tensor: [dict(given) for given in listed]})
            wrong = helper.is_valid(shapes, tensors.computed, default)[1]
        if wrong is not None:
            said = wrong.replace("{tensor_name}", tensor).replace(" at index {index}", "")
            raise UsageError(f"TensorQuantOverrides of '{tensor}': {said.removesuffix('.')}.")


def _misspelled(listed: Any) -> str | None:
    """Return what onnxruntime does not look at: what is no dictionary, unknown keys, half a range."""
    if not isinstance(listed, list | tuple) or not all(isinstance(g, Mapping) for g in listed):
        return "they are no list of dictionaries"
    if len(listed) > 1 and not listed[0]:
        return "the first of several dictionaries names the axis of channels"
    inner = [given["convert"] for given in listed if "convert" in given]
    if not all(isinstance(convert, Mapping) for convert in inner):
        return "'convert' is a dictionary"
    for given in (*listed, *inner):
        unknown = next((key for key in given if key not in _OVERRIDES), None)
        if unknown is not None:
            return f"'{unknown}' is unknown; use {', '.join(_OVERRIDES)}"
        if "scale" not in given and ("rmin" in given) != ("rmax" in given):
            return "Must provide both 'rmin' and 'rmax', for one says nothing alone"
    return None


def _readers(tensor: str, named: Collection[str], tensors: Tensors) -> tuple[str, ...]:
    """Return the nodes for which a tensor is converted; none named: all."""
    strange = sorted(set(named) - set(tensors.readers.get(tensor, ())))
    if strange:
        raise UsageError(
            f"TensorQuantOverrides of '{tensor}': node '{strange[0]}' of recv_nodes does not read it."
        )
    return tuple(sorted(named)) or ("*",)


def _activation_rule(tensor: str, given: _Given, defaults: Defaults) -> Iterator[TensorRule]:
    dtype = None if given.get("quant_type") is None else type_name(given["quant_type"])
    symmetric, numbers, ends = given.get("symmetric"), None, None
    if "scale" in given:
        numbers = _numbers(tensor, [given], named_int_type(dtype) if dtype else defaults.activation)
    elif "rmin" in given:
        ends = (min(float(given["rmin"]), 0.0), max(float(given["rmax"]), 0.0))
        if ends == (0.0, 0.0):
            ends, numbers = None, ((1.0,), (0,))
    if dtype is None and symmetric is None and numbers is None and ends is None:
        return
    scales, zeros = numbers or ((), ())
    yield TensorRule(
        tensor=tensor,
        dtype=dtype,
        range=ends,
        symmetric=None if symmetric is None else bool(symmetric),
        scales=scales,
        zero_points=zeros,
    )


def _constant_rule(
    tensor: str, listed: Sequence[_Given], tensors: Tensors, defaults: Defaults
) -> TensorRule:
    first, is_weight = listed[0], tensor in tensors.weights
    if not is_weight and (first.get("axis") is not None or first.get("reduce_range")):
        raise UsageError(
            f"TensorQuantOverrides of '{tensor}': axis and reduce_range are for weights, and it stands beside activations."
        )
    dtype = None if first.get("quant_type") is None else type_name(first["quant_type"])
    used = named_int_type(dtype) if dtype else defaults.weight if is_weight else defaults.activation
    symmetric = first.get("symmetric")
    if symmetric is None and is_weight:
        signed = used.signed if defaults.symmetric_weights is None else defaults.symmetric_weights
        symmetric = "axis" in first or signed
    elif symmetric is None:
        symmetric = defaults.symmetric
    numbers: tuple[tuple[float, ...], tuple[int, ...]] = ((), ())
    if "scale" in first:
        numbers = _numbers(tensor, listed, used)
    elif "rmin" in first:
        reduced = bool(first.get("reduce_range"))
        numbers = _by_ranges(listed, used, symmetric=bool(symmetric), reduced=reduced)
    return TensorRule(
        tensor=tensor,
        dtype=dtype,
        symmetric=bool(symmetric),
        scales=numbers[0],
        zero_points=numbers[1],
        axis=first.get("axis"),
        reduced=bool(first.get("reduce_range")),
    )


def _numbers(
    tensor: str, listed: Sequence[_Given], dtype: IntType
) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Return scales and zero points as they are given."""
    scales = tuple(float(np.float32(given["scale"])) for given in listed)
    zeros = tuple(int(np.asarray(given["zero_point"]).reshape(-1)[0]) for given in listed)
    for scale, zero in zip(scales, zeros, strict=True):
        if not scale > 0 or not dtype.qmin <= zero <= dtype.qmax:
            raise UsageError(
                f"TensorQuantOverrides of '{tensor}': scale {scale} and zero point {zero} are none of {dtype.name}."
            )
    return scales, zeros


def _by_ranges(
    listed: Sequence[_Given], dtype: IntType, *, symmetric: bool, reduced: bool
) -> tuple[tuple[float, ...], tuple[int, ...]]:
    spec = QuantSpec(
        dtype=dtype, granularity=PerTensor(), symmetric=symmetric, reduced=reduced, whole=True
    )
    found = affine_from_range(
        np.asarray([float(given["rmin"]) for given in listed]),
        np.asarray([float(given["rmax"]) for given in listed]),
        qmin=spec.qmin,
        qmax=spec.qmax,
        symmetric=symmetric,
        whole=True,
    )
    return tuple(map(float, found.scale)), tuple(map(int, found.zero_point))


# onnxruntime's default share of the newest batch in a moving average.
_NEWEST = 0.01
_PERCENTILE = 99.999  # onnxruntime's default
# onnxruntime's calibration methods by quantkit's names; for integers a distribution is its whole range.
METHODS = {
    "MinMax": "minmax",
    "Entropy": "entropy",
    "Percentile": "percentile",
    "Distribution": "minmax",
}
# What NNAPI's Sigmoid makes in uint8.
_NNAPI_SCALE = 1 / 256


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
        subgraphs: Look into If, Loop and Scan.
        constant_b: Only MatMul with a constant second operand.
        nnapi_sigmoid: The results of Sigmoid have the scale that NNAPI gives them.
        unknown: Keys that are none of onnxruntime's.
    """

    symmetric: bool | None = None
    smooth: bool | None = None
    momentum: float | None = None
    percentile: float | None = None
    stride: int | None = None
    overrides: Mapping[str, Any] | None = None
    qdq: QdqSettings = field(default_factory=QdqSettings)
    subgraphs: bool | None = None
    constant_b: bool = False
    nnapi_sigmoid: bool = False
    unknown: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """What is said of keys that nobody knows."""
        return tuple(
            f"extra_options key '{key}' is none of onnxruntime's: ignored." for key in self.unknown
        )

    @property
    def states_form(self) -> bool:
        """Whether they say what the graph is to look like; onnxruntime's own defaults do not."""
        qdq = self.qdq
        plain = replace(
            qdq,
            symmetric_weights=qdq.symmetric_weights and None,
            quantize_moves=qdq.quantize_moves or None,
        )
        return plain != QdqSettings() or bool(self.overrides) or self.nnapi_sigmoid

    def calibrator(self, method: Any) -> CalibratorOf | None:
        """Return the calibrator that the options and a `CalibrationMethod` ask for together; None if neither does.

        Raises:
            UsageError: There is no such method, or settings that do not belong to it.
        """
        name = None if method is None else str(getattr(method, "name", method))
        if name is not None and name not in METHODS:
            known = ", ".join(METHODS)
            raise UsageError(f"Unknown calibration method {method!r}: use one of {known}.")
        if self.momentum is not None and name in {None, "MinMax"}:
            return _calibrator("moving_average", momentum=self.momentum)
        if name == "Percentile" or (name is None and self.percentile is not None):
            keep = _PERCENTILE if self.percentile is None else float(self.percentile)
            return _calibrator("percentile", keep=keep)
        return None if name is None else _calibrator(METHODS[name])

    def rules(self, tensors: Tensors, defaults: Defaults) -> tuple[TensorRule, ...]:
        """Return what is said of single tensors, as rules."""
        found = rules_of(self.overrides or {}, tensors, defaults)
        if self.nnapi_sigmoid:
            if defaults.activation is not UINT8:
                raise UsageError("extra.Sigmoid.nnapi is for activations of uint8.")
            named = {rule.tensor for rule in found}
            found += [
                TensorRule(tensor=name, scales=(_NNAPI_SCALE,), zero_points=(0,))
                for name in tensors.sigmoids
                if name not in named
            ]
        return tuple(found)


def _calibrator(name: str, **settings: float) -> CalibratorOf:
    ask = CalibratorOf(name=name, settings=tuple(settings.items()))
    try:
        ask.create(1)
    except ValueError as e:
        raise UsageError(str(e)) from e
    return ask


# Keys about the form of the QDQ format, and the settings that they are; of some the setting says the opposite.
_FORMS = {
    "ActivationRestrictedAsymmetric": "restricted_zero_points",
    "AddQDQPairToWeight": "weight_pairs",
    "BlockSize": "block_size",
    "DedicatedQDQPair": "pair_per_reader",
    "ForceQuantizeNoInputCheck": "quantize_moves",
    "MinimumRealRange": "min_range",
    "OpTypesToExcludeOutputQuantization": "float_outputs",
    "QDQDisableWeightAdjustForInt32Bias": "adjust_weights",
    "QDQKeepRemovableActivations": "keep_clips",
    "QDQOpTypePerChannelSupportToAxis": "channel_axes",
    "QuantizeBias": "float_bias",
    "UseQDQContribOps": "contrib_ops",
    "WeightSymmetric": "symmetric_weights",
}
_NEGATED = {"QDQDisableWeightAdjustForInt32Bias", "QuantizeBias"}

# Keys that are translated.
_READ = (
    *_FORMS,
    "ActivationSymmetric",
    "CalibMovingAverage",
    "CalibMovingAverageConstant",
    "CalibPercentile",
    "CalibStridedMinMax",
    "CalibTensorRangeSymmetric",
    "EnableSubgraph",
    "MatMulConstBOnly",
    "SmoothQuant",
    "TensorQuantOverrides",
    "extra.Sigmoid.nnapi",
)

# Keys that say what quantkit does whatever they say.
_HARMLESS = {
    "CalibMaxIntermediateOutputs",  # memory does not grow with the data
    "DefaultTensorType",  # shapes and types are inferred
}

# Keys that cannot be had otherwise: the values that are as quantkit does it, and what to do instead of others.
_FIXED: dict[str, tuple[tuple[Any, ...], str]] = {
    "SmoothQuantAlpha": ((0.5, None), "quantkit chooses how far to smooth"),
    "SmoothQuantFolding": ((True,), "smoothing is folded into the weights"),
}


def read_extra_options(extra_options: Mapping[str, Any] | None) -> ExtraOptions:
    """Read an options dictionary.

    Raises:
        UsageError: A key is nearly one that there is, or asks for what quantkit does not do.
    """
    given = dict(extra_options or {})
    known = (*_READ, *sorted(_HARMLESS), *_FIXED)
    unknown = [str(key) for key in given if key not in known]
    for key in unknown:
        if slip := closest(key, known):
            raise UsageError(
                f"extra_options key '{key}' is unknown{slip}; remove it (understood: {', '.join(known)})."
            )
    for key, value in given.items():
        if key in _FIXED and value not in _FIXED[key][0]:
            raise UsageError(f"extra_options {key}={value!r} is not available: {_FIXED[key][1]}.")
    smooth, inside = given.get("SmoothQuant"), given.get("EnableSubgraph")
    return ExtraOptions(
        symmetric=_symmetric(given),
        smooth=None if smooth is None else bool(smooth),
        momentum=_momentum(given),
        percentile=given.get("CalibPercentile"),
        stride=given.get("CalibStridedMinMax") or None,
        overrides=given.get("TensorQuantOverrides") or None,
        qdq=_qdq(given),
        subgraphs=None if inside is None else _switch(given, "EnableSubgraph"),
        constant_b=_switch(given, "MatMulConstBOnly"),
        nnapi_sigmoid=_switch(given, "extra.Sigmoid.nnapi"),
        unknown=tuple(unknown),
    )


def _qdq(given: _Given) -> QdqSettings:
    """Return the form of the QDQ format."""
    known, found = declared(QdqSettings), {}
    for key, name in _FORMS.items():
        value, one = given.get(key), known[name]
        if value is None or (one.type in (int, float) and value == 0):
            continue
        if one.type is bool and isinstance(value, int | np.bool_):
            value = bool(value)  # what onnxruntime takes for true
        found[name] = one.read(value, f"extra_options {key}")
        if key in _NEGATED:
            found[name] = not found[name]
    return QdqSettings(**found)


def _switch(given: _Given, key: str) -> bool:
    """Return an option that is on or off; None counts as left out, and what onnxruntime takes for true as true."""
    value = given.get(key)
    if not isinstance(value, int | np.bool_ | None):
        raise UsageError(f"extra_options {key} = {value!r}: give True or False.")
    return bool(value)


def _symmetric(given: Mapping[str, Any]) -> bool | None:
    """A range that is made symmetric about 0 has its zero point in the middle."""
    said = [given[k] for k in ("ActivationSymmetric", "CalibTensorRangeSymmetric") if k in given]
    return any(said) if said else None


def _momentum(given: Mapping[str, Any]) -> float | None:
    """Onnxruntime gives the weight of the newest batch, quantkit that of all before it."""
    if not given.get("CalibMovingAverage"):
        return None
    return 1 - float(given.get("CalibMovingAverageConstant", _NEWEST))
