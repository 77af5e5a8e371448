"""The tables [static], [static.recover], [static.qdq], [[static.tensor]] and [[static.node]]: static quantization.

Which targets and methods there are is known to `quantkit.targets` and `calibrators`, and whether a name or pattern
matches anything is known to the plan: neither is checked here. What a plan asks of the settings, as targets and integer
types, is looked up when it asks: a command that only shows its help imports neither.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Literal

from quantkit.errors import UsageError
from quantkit.settings.declare import Range, Setting, check
from quantkit.settings.values import Axes, FileSize, Names, OperatorTypes, Switch

if TYPE_CHECKING:
    from quantkit.numerics.dtypes import IntType
    from quantkit.targets import Target

__all__ = ["ActivationType", "Coverage", "NodeRule", "QdqSettings", "RecoverSettings"]
__all__ += ["StaticFormat", "StaticSettings", "StaticWeightType", "TensorRule", "WeightType"]
__all__ += ["check_packing"]

StaticFormat = Literal["qdq", "qoperator"]
ActivationType = Literal["uint8", "int8", "uint16", "int16", "uint4", "int4"]
WeightType = Literal["int8", "uint8"]
StaticWeightType = Literal["int8", "uint8", "int4", "uint4", "int16", "uint16"]
Coverage = Literal["gain", "all"]

_integers = partial(Setting, panel="Integers")
_selection = partial(Setting, panel="Selection")
_recovery = partial(Setting, panel="Accuracy")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverSettings:
    """What is done to win back accuracy: on, off, or "auto" for where it helps.

    "auto" is on for bias and rounding, off for empirical, ranges and adaptive, and decided by what is observed or measured for
    the others.
    """

    equalize: Annotated[Switch, _recovery("Equalize the ranges of channels between layers.")] = (
        "auto"
    )
    smooth: Annotated[
        Switch, _recovery("Move outliers of activations into weights (SmoothQuant).")
    ] = "auto"
    bias: Annotated[Switch, _recovery("Correct the mean error of each channel in its bias.")] = (
        "auto"
    )
    empirical: Annotated[
        Switch,
        _recovery(
            "Then run the quantized model layer by layer and correct biases by what comes out; slow."
        ),
    ] = "auto"
    ranges: Annotated[
        Switch,
        _recovery(
            "Choose the range of each weight by the error that it leaves, instead of clipping none.",
            flag="--weight-ranges/--no-weight-ranges",
        ),
    ] = "auto"
    activation_ranges: Annotated[
        Switch,
        _recovery(
            "Choose the ranges of activations by the noise they leave at the outputs, for inputs not seen yet.",
            flag="--activation-ranges/--no-activation-ranges",
        ),
    ] = "auto"
    rounding: Annotated[
        Switch, _recovery("Round weights so that each layer's output changes least (second order).")
    ] = "auto"
    adaptive: Annotated[
        Switch, _recovery("Search the rounding of single weights further; slower.")
    ] = "auto"

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class QdqSettings:
    """Forms of the QDQ format that some runtimes and tools want; of coverage "all".

    The defaults are what every runtime reads: a DequantizeLinear alone on each constant, one pair for each activation.
    """

    weight_pairs: Annotated[
        bool,
        Setting(
            "Keep weights in float, with QuantizeLinear and DequantizeLinear behind.", flag=None
        ),
    ] = False
    pair_per_reader: Annotated[
        bool, Setting("A pair of its own for each node that reads an activation.", flag=None)
    ] = False
    contrib_ops: Annotated[
        bool,
        Setting("QuantizeLinear and DequantizeLinear of the domain com.microsoft.", flag=None),
    ] = False
    float_bias: Annotated[
        bool, Setting("Leave biases in float, also where the target takes int32.", flag=None)
    ] = False
    keep_clips: Annotated[
        bool,
        Setting(
            "Keep Relu and Clip also where the quantization of their result clips alike.", flag=None
        ),
    ] = False
    float_outputs: Annotated[
        OperatorTypes,
        Setting(
            "Do not quantize what these operators make, unless another reads it so.", flag=None
        ),
    ] = ()
    min_range: Annotated[
        float | None,
        Setting(
            "The narrowest range of a tensor: narrower ones are widened.",
            flag=None,
            range=Range(above=0.0),
        ),
    ] = None
    symmetric_weights: Annotated[
        bool | None,
        Setting(
            "Zero points of weights in the middle; default: as type and target want it.", flag=None
        ),
    ] = None
    block_size: Annotated[
        int | None,
        Setting(
            "One scale for so many weights along the axis that is summed over.", flag=None, least=1
        ),
    ] = None
    adjust_weights: Annotated[
        bool, Setting("Widen scales of weights whose bias would not fit into int32.", flag=None)
    ] = True
    restricted_zero_points: Annotated[
        bool, Setting("Zero points of uint8 activations are 0 or 128.", flag=None)
    ] = False
    channel_axes: Annotated[
        Axes, Setting("The axis of scales per channel, by operator: { MatMul = 0 }.", flag=None)
    ] = ()
    quantize_moves: Annotated[
        bool | None,
        Setting(
            "Quantize data movement also where nothing before it is quantized; default: as the target wants it.",
            flag=None,
        ),
    ] = None

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRule:
    """How certain tensors are quantized. Of the rules that match a tensor the last one counts.

    Invariant: it says something, and nothing twice: `keep_float` stands alone, `range` excludes `method`, `scales` both. Zero is
    within `range`, for it must be exact. Constants, and conversions for single readers, are looked at where coverage is "all".
    """

    tensor: Annotated[str, Setting("A tensor's name, or a pattern such as */attn/*.", flag=None)]
    range: Annotated[
        tuple[float, float] | None,
        Setting("The values that are kept, lowest and highest.", flag=None),
    ] = None
    dtype: Annotated[
        ActivationType | None, Setting("The integer type, instead of activation_type.", flag=None)
    ] = None
    keep_float: Annotated[bool, Setting("Do not quantize it.", flag=None, key="float")] = False
    method: Annotated[
        str | None, Setting("How its range is estimated, instead of method.", flag=None)
    ] = None

    symmetric: Annotated[
        bool | None, Setting("Its zero point is in the middle, or where it fits best.", flag=None)
    ] = None
    scales: Annotated[
        tuple[float, ...],
        Setting("Its scale, or one for each channel, with zero_points.", flag=None),
    ] = ()
    zero_points: Annotated[tuple[int, ...], Setting("As many as scales.", flag=None)] = ()
    axis: Annotated[
        int | None,
        Setting("Of a constant: one scale for each index of this axis.", flag=None, least=-64),
    ] = None
    reduced: Annotated[
        bool, Setting("Of a constant: use one bit less than its type has.", flag=None)
    ] = False
    readers: Annotated[
        Names,
        Setting("The nodes for which it is converted so; others read it as it is made.", flag=None),
    ] = ()

    def __post_init__(self) -> None:
        check(self)
        said: list[object] = [self.range, self.dtype, self.method, self.symmetric, self.axis]
        said += [given or None for given in (self.scales, self.reduced, self.readers)]
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
        self._check_numbers()

    def _check_numbers(self) -> None:
        if len(self.scales) != len(self.zero_points):
            raise UsageError(
                f"the rule for tensor '{self.tensor}' gives {len(self.scales)} scales and "
                f"{len(self.zero_points)} zero_points: give as many."
            )
        if self.scales and (self.range is not None or self.method is not None):
            raise UsageError(
                f"the rule for tensor '{self.tensor}' gives its range twice: "
                "remove scales, or range and method."
            )
        if not all(isfinite(scale) and scale > 0 for scale in self.scales):
            raise UsageError(
                f"the rule for tensor '{self.tensor}' has scales that are not positive."
            )
        if self.readers and self.dtype is None:
            raise UsageError(
                f"the rule for tensor '{self.tensor}' converts it for some nodes: say to which dtype."
            )

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

    @property
    def int_type(self) -> "IntType | None":
        """The integer type; None: that of the others."""
        return None if self.dtype is None else _int_type(self.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRule:
    """How certain nodes run. Of the rules that match a node the last one counts."""

    node: Annotated[str, Setting("A node's name, or a pattern such as */attn/*.", flag=None)]
    mode: Annotated[
        Literal["float", "integer"],
        Setting(
            '"float" leaves it as it is; "integer" quantizes it also where the plan would not, and is an error where no '
            "kernel runs it.",
            flag=None,
        ),
    ]

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticSettings:
    """How a model is quantized statically. None: as the target runs it best; empty: all.

    `tensors` and `nodes` are rules for single ones, in the file's order.
    """

    target: Annotated[
        str | None,
        Setting(
            "What will run it: see quantkit targets. Default: cpu (any CPU), or what a given plan is for.",
            "NAME",
        ),
    ] = None
    format: Annotated[
        StaticFormat | None,
        _integers(
            "qdq (default), which every runtime reads, or qoperator: QLinear operators.", "FORMAT"
        ),
    ] = None
    coverage: Annotated[
        Coverage | None,
        _selection(
            "gain (default): what runs faster in integers; all: every operator that the target has, and every "
            "tensor between them.",
            "WHICH",
        ),
    ] = None
    measure: Annotated[
        bool | None,
        _selection(
            "Run the model to find out what is faster in integers here, or decide by operators alone. Default: run it "
            "where the target is this machine.",
            flag="--measure/--no-measure",
        ),
    ] = None
    simplify: Annotated[
        bool,
        Setting("Simplify the float model first: fold constants, fuse what is linear.", flag=None),
    ] = True
    keep_inputs: Annotated[
        bool,
        Setting(
            "Inputs that have a value in the file stay inputs, in float; default: they become constants.",
            flag="--keep-inputs",
        ),
    ] = False
    activation_type: Annotated[
        ActivationType | None, _integers("uint8, int8, uint16 or int16.", "TYPE")
    ] = None
    weight_type: Annotated[
        StaticWeightType | None,
        _integers("int8 or uint8; with --coverage all also int4, uint4, int16, uint16.", "TYPE"),
    ] = None
    weight_bits: Annotated[
        int | None,
        _integers(
            "Bits of a weight in the file, 2 to 8: int8 is made of fewer when it is loaded, and the same kernels run.",
            "N",
            least=2,
            most=8,
        ),
    ] = None
    target_size: Annotated[
        FileSize | None,
        _integers(
            "Size of the file, 18% of float's or 3.2MB: each weight gets as many bits as it needs, by what is measured.",
            "SIZE",
            range=Range(above=0),
        ),
    ] = None
    per_channel: Annotated[
        bool | None,
        _integers(
            "One scale per output channel (default), or one per tensor.",
            flag="--per-channel/--per-tensor",
        ),
    ] = None
    symmetric_activations: Annotated[
        bool | None,
        _integers(
            "Zero points of activations in the middle of the type, or where they fit best.",
            flag="--symmetric-activations/--asymmetric-activations",
        ),
    ] = None
    method: Annotated[str | None, Setting("How ranges are estimated.", flag=None)] = None
    include: Annotated[
        Names, _selection("Only this node (name or pattern). May be repeated.", "NODE")
    ] = ()
    exclude: Annotated[
        Names, _selection("Never this node (name or pattern). May be repeated.", "NODE")
    ] = ()
    op_types: Annotated[
        OperatorTypes,
        _selection("Only these operator types: Conv,Gemm,... May be repeated.", "TYPES"),
    ] = ()
    recover: RecoverSettings = field(default_factory=RecoverSettings)
    qdq: QdqSettings = field(default_factory=QdqSettings)
    tensors: tuple[TensorRule, ...] = ()
    nodes: tuple[NodeRule, ...] = ()

    def __post_init__(self) -> None:
        check(self)
        check_packing(self.weight_bits, self.target_size)

    @property
    def packs(self) -> bool:
        """Whether weights may have fewer than 8 bits in the file."""
        return self.weight_bits is not None or self.target_size is not None

    @property
    def runs_on(self) -> "Target":
        """What will run the model."""
        from quantkit.targets import DEFAULT, target

        return DEFAULT if self.target is None else target(self.target)

    @property
    def covers_all(self) -> bool:
        """Whether every operator that is asked for is quantized, not only what gains by it."""
        return self.coverage == "all"

    @property
    def activation(self) -> "IntType":
        """The type of activations: as chosen, else the target's."""
        chosen = self.activation_type
        return self.runs_on.activation if chosen is None else _int_type(chosen)

    @property
    def weight(self) -> "IntType":
        """The type of weights: as chosen, else the target's."""
        return self.runs_on.weight if self.weight_type is None else _int_type(self.weight_type)

    @property
    def symmetric(self) -> bool:
        """Whether activations have their zero point in the middle: as chosen, else as the target wants it."""
        chosen = self.symmetric_activations
        return self.runs_on.symmetric_activations if chosen is None else chosen

    @property
    def channelwise(self) -> bool:
        """Whether weights have one scale per output channel, where the target runs that."""
        return self.per_channel is not False

    @property
    def excluded(self) -> tuple[str, ...]:
        """The nodes that stay float, by name or pattern."""
        return (*self.exclude, *(rule.node for rule in self.nodes if rule.mode == "float"))

    @property
    def forced(self) -> tuple[str, ...]:
        """The nodes that run in integers whatever their neighbours are, by name or pattern."""
        return tuple(rule.node for rule in self.nodes if rule.mode == "integer")

    @property
    def overrides(self) -> tuple[TensorRule, ...]:
        """The rules that say more of a tensor than how its range is estimated; a later one wins."""
        kept = (r for r in self.tensors if r.method is None or r.dtype is not None)
        return tuple(r for r in kept if not r.readers)

    @property
    def conversions(self) -> tuple[TensorRule, ...]:
        """The rules by which tensors are converted for some of the nodes that read them."""
        return tuple(r for r in self.tensors if r.readers)

    @property
    def methods(self) -> Mapping[str, str]:
        """How the ranges of single tensors are estimated, by name or pattern."""
        return {rule.tensor: rule.method for rule in self.tensors if rule.method is not None}

    def with_all_nodes(self) -> "StaticSettings":
        """Return the settings with no node excluded."""
        return replace(self, exclude=(), nodes=tuple(r for r in self.nodes if r.mode != "float"))


def check_packing(weight_bits: int | None, target_size: float | None) -> None:
    """Raise UsageError if both ways to ask for fewer bits are used."""
    if weight_bits is not None and target_size is not None:
        raise UsageError("weight_bits and target_size both say how small weights are: give one.")


def _int_type(name: str) -> "IntType":
    from quantkit.numerics.dtypes import int_type

    return int_type(name)
