"""The tables [static], [static.recover], [[static.tensor]] and [[static.node]]: static quantization.

Which targets and methods there are is known to `quantkit.targets` and `calibrators`, and whether a name or pattern
matches anything is known to the plan: neither is checked here.
"""

from dataclasses import dataclass, field, fields
from math import isfinite
from typing import Literal

from quantkit.errors import UsageError
from quantkit.settings.checks import check_choice
from quantkit.settings.values import Switch, Values, flag, low_high, names, switch, text

__all__ = ["ActivationType", "NodeRule", "RecoverSettings", "StaticFormat", "StaticSettings"]
__all__ += ["TensorRule", "WeightType"]

StaticFormat = Literal["qdq", "qoperator"]
ActivationType = Literal["uint8", "int8", "uint16", "int16"]
WeightType = Literal["int8", "uint8"]

_ACTIVATIONS = ("uint8", "int8", "uint16", "int16")

STATIC_VALUES: Values = {
    "target": text,
    "format": text,
    "activation_type": text,
    "weight_type": text,
    "per_channel": flag,
    "symmetric_activations": flag,
    "method": text,
    "include": names,
    "exclude": names,
    "op_types": names,
}
TENSOR_VALUES: Values = {
    "tensor": text,
    "range": low_high,
    "dtype": text,
    "float": flag,
    "method": text,
}
NODE_VALUES: Values = {"node": text, "mode": text}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverSettings:
    """What is done to win back accuracy: on, off, or "auto" for where it helps. Flags and keys of files are made of the fields.

    Attributes:
        equalize: Even out the ranges of channels between two layers (cross-layer equalization).
        smooth: Move outliers of activations into the weights that read them (SmoothQuant).
        bias: Take the mean of each channel's error off its bias. "auto" is on.
        empirical: Then run the quantized model, layer by layer, and correct biases by what comes out. "auto" is off.
        ranges: Choose each weight's range by the error that it leaves, instead of clipping none. "auto" is off.
        rounding: Round weights by the moments of what they multiply. "auto" is on.
        adaptive: Then move single integers as long as the error falls. "auto" is off.
    """

    equalize: Switch = field(
        default="auto",
        metadata={"help": "Equalize the ranges of channels between layers."},
    )
    smooth: Switch = field(
        default="auto",
        metadata={"help": "Move outliers of activations into weights (SmoothQuant)."},
    )
    bias: Switch = field(
        default="auto",
        metadata={"help": "Correct the mean error of each channel in its bias."},
    )
    empirical: Switch = field(
        default="auto",
        metadata={
            "help": "Then run the quantized model layer by layer and correct biases by what comes out; slow."
        },
    )
    ranges: Switch = field(
        default="auto",
        metadata={
            "help": "Choose the range of each weight by the error that it leaves, instead of clipping none.",
            "flag": "weight-ranges",  # --range is about activations
        },
    )
    rounding: Switch = field(
        default="auto",
        metadata={
            "help": "Round weights so that each layer's output changes least (second order)."
        },
    )
    adaptive: Switch = field(
        default="auto",
        metadata={"help": "Search the rounding of single weights further; slower."},
    )


RECOVER_VALUES: Values = {f.name: switch for f in fields(RecoverSettings)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRule:
    """How certain activations are quantized. Of the rules that match a tensor the last one counts.

    Invariant: it says something, and nothing twice: `keep_float` stands alone, `range` excludes `method`.

    Attributes:
        tensor: A tensor's name, or a pattern such as ``*/attn/*``.
        range: The values that are kept, lowest and highest; zero is among them, for it must be exact.
        dtype: The integer type, instead of ``activation_type``.
        keep_float: Do not quantize it ("float" in the file).
        method: How its range is estimated, instead of ``method``.
    """

    tensor: str
    range: tuple[float, float] | None = None
    dtype: ActivationType | None = None
    keep_float: bool = False
    method: str | None = None

    def __post_init__(self) -> None:
        check_choice("dtype", self.dtype, _ACTIVATIONS)
        said = [self.range, self.dtype, self.method]
        if not self.keep_float and not any(s is not None for s in said):
            raise UsageError(
                f"the rule for tensor '{self.tensor}' says nothing: "
                "give range, dtype, method or float."
            )
        if self.keep_float and any(s is not None for s in said):
            raise UsageError(
                f"the rule for tensor '{self.tensor}' leaves it in float: "
                "remove range, dtype and method, or float."
            )
        if self.range is not None and self.method is not None:
            raise UsageError(
                f"the rule for tensor '{self.tensor}' gives its range twice: "
                "remove range or method."
            )
        self._check_range()

    def _check_range(self) -> None:
        if self.range is None:
            return
        low, high = self.range
        if not (isfinite(low) and isfinite(high) and low < high):
            raise UsageError(f"range '{list(self.range)}' is empty or endless: use [low, high].")
        if not low <= 0 <= high:
            raise UsageError(
                f"range '{list(self.range)}' must hold 0, which has to be exact: "
                f"use {[min(low, 0.0), max(high, 0.0)]}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRule:
    """How certain nodes run. Of the rules that match a node the last one counts.

    Attributes:
        node: A node's name, or a pattern such as ``*/attn/*``.
        mode: "float" leaves it as it is; "integer" quantizes it also where the plan would not, and is
            an error where no kernel runs it.
    """

    node: str
    mode: Literal["float", "integer"]

    def __post_init__(self) -> None:
        check_choice("mode", self.mode, ("float", "integer"))


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticSettings:
    """How a model is quantized statically. None: as the target runs it best.

    Attributes:
        target: What will run the model; a name that `quantkit.targets.target` knows. None: that of a plan that is given,
            else "cpu".
        format: "qdq": float operators between QuantizeLinear and DequantizeLinear, which every runtime
            reads; "qoperator": QLinearConv and its like. None: that of a plan that is given, else "qdq".
        activation_type: The type of activations.
        weight_type: The type of weights.
        per_channel: One scale for each output channel of a weight, or one for all.
        symmetric_activations: Zero points of activations in the middle of the type.
        method: How ranges are estimated; None: the caller's default.
        include: Quantize only these nodes, by name or pattern; empty: all.
        exclude: Leave these nodes in float, by name or pattern.
        op_types: Quantize only these operators; empty: all that the target runs in integers.
        recover: What is done to win back accuracy.
        tensors: Rules for single activations, in the file's order.
        nodes: Rules for single nodes, in the file's order.
    """

    target: str | None = None
    format: StaticFormat | None = None
    activation_type: ActivationType | None = None
    weight_type: WeightType | None = None
    per_channel: bool | None = None
    symmetric_activations: bool | None = None
    method: str | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    op_types: tuple[str, ...] = ()
    recover: RecoverSettings = field(default_factory=RecoverSettings)
    tensors: tuple[TensorRule, ...] = ()
    nodes: tuple[NodeRule, ...] = ()

    def __post_init__(self) -> None:
        check_choice("format", self.format, ("qdq", "qoperator"))
        check_choice("activation_type", self.activation_type, _ACTIVATIONS)
        check_choice("weight_type", self.weight_type, ("int8", "uint8"))
