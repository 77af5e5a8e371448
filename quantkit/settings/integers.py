"""Static and dynamic quantization: [static], [static.recover], [static.qdq], [[static.tensor]], [[static.node]], and flags.

Which targets and methods there are is known to `quantkit.targets` and `calibrators`, and whether a name or pattern
matches anything is known to the plan: neither is checked here. What a plan asks of the settings, as targets and integer
types, is looked up when it asks: a command that only shows its help imports neither.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from quantkit.errors import UsageError
from quantkit.settings.declare import (
    Axes,
    FileSize,
    Floats,
    Names,
    OperatorTypes,
    Range,
    Settings,
    Switch,
    Wholes,
    metadata_of,
    setting,
    short_repr,
    table,
)

if TYPE_CHECKING:
    from quantkit.numerics.dtypes import IntType
    from quantkit.targets import Target


StaticFormat = Literal["qdq", "qoperator"]
ActivationType = Literal["uint8", "int8", "uint16", "int16", "uint4", "int4"]
WeightType = Literal["int8", "uint8"]
StaticWeightType = Literal["int8", "uint8", "int4", "uint4", "int16", "uint16"]
Coverage = Literal["gain", "all"]

_integers = partial(setting, panel="Integers")
_selection = partial(setting, panel="Selection")
_recovery = partial(setting, default="auto", panel="Accuracy")
_form = partial(setting, default=False, flag=None)  # of QDQ, or of a rule: no flag says it
include_nodes = partial(
    setting, "Only this node (name or pattern). May be repeated.", "NODE", default=()
)
exclude_nodes = partial(
    setting, "Never this node (name or pattern). May be repeated.", "NODE", default=()
)
keep_inputs = partial(
    setting,
    "Inputs that have a value in the file stay inputs, in float; default: they become constants.",
    default=False,
    flag="--keep-inputs",
)
_weight_bits = partial(
    setting,
    "Bits of a weight in the file, 2 to 8: int8 is made of fewer when it is loaded, and the same kernels run.",
    "N",
    ge=2,
    le=8,
)
_rule = partial(setting, flag=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverSettings(Settings):
    """What is done to win back accuracy: on, off, or "auto" for where it helps.

    "auto" is on for bias and rounding, off for empirical, ranges and adaptive, and decided by what is observed or measured for
    the others.
    """

    equalize: Switch = _recovery("Equalize the ranges of channels between layers.")
    smooth: Switch = _recovery("Move outliers of activations into weights (SmoothQuant).")
    bias: Switch = _recovery("Correct the mean error of each channel in its bias.")
    empirical: Switch = _recovery(
        "Then run the quantized model layer by layer and correct biases by what comes out; slow."
    )
    ranges: Switch = _recovery(
        "Choose the range of each weight by the error that it leaves, instead of clipping none.",
        flag="--weight-ranges/--no-weight-ranges",
    )
    activation_ranges: Switch = _recovery(
        "Choose the ranges of activations by the noise they leave at the outputs, for inputs not seen yet.",
        flag="--activation-ranges/--no-activation-ranges",
    )
    rounding: Switch = _recovery(
        "Round weights so that each layer's output changes least (second order)."
    )
    adaptive: Switch = _recovery("Search the rounding of single weights further; slower.")


@dataclass(frozen=True, slots=True, kw_only=True)
class QdqSettings(Settings):
    """Forms of the QDQ format that some runtimes and tools want; of coverage "all".

    The defaults are what every runtime reads: a DequantizeLinear alone on each constant, one pair for each activation.
    """

    weight_pairs: bool = _form(
        "Keep weights in float, with QuantizeLinear and DequantizeLinear behind."
    )
    pair_per_reader: bool = _form("A pair of its own for each node that reads an activation.")
    contrib_ops: bool = _form("QuantizeLinear and DequantizeLinear of the domain com.microsoft.")
    float_bias: bool = _form("Leave biases in float, also where the target takes int32.")
    keep_clips: bool = _form(
        "Keep Relu and Clip also where the quantization of their result clips alike."
    )
    float_outputs: OperatorTypes = _rule(
        "Do not quantize what these operators make, unless another reads it so.", default=()
    )
    min_range: float | None = _rule(
        "The narrowest range of a tensor: narrower ones are widened.", gt=0.0
    )
    symmetric_weights: bool | None = _rule(
        "Zero points of weights in the middle; default: as type and target want it."
    )
    block_size: int | None = _rule(
        "One scale for so many weights along the axis that is summed over.", ge=1
    )
    adjust_weights: bool = _rule(
        "Widen scales of weights whose bias would not fit into int32.", default=True
    )
    restricted_zero_points: bool = _form("Zero points of uint8 activations are 0 or 128.")
    channel_axes: Axes = _rule(
        "The axis of scales per channel, by operator: { MatMul = 0 }.", default=()
    )
    quantize_moves: bool | None = _rule(
        "Quantize data movement also where nothing before it is quantized; default: as the target wants it."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRule(Settings):
    """How certain tensors are quantized. Of the rules that match a tensor the last one counts.

    Invariant: it says something, and nothing twice: `keep_float` stands alone, `range` excludes `method`, `scales` both. Zero is
    within `range`, for it must be exact. Constants, and conversions for single readers, are looked at where coverage is "all".
    """

    tensor: str = field(
        metadata=metadata_of("A tensor's name, or a pattern such as */attn/*.", flag=None)
    )
    range: Range | None = _rule("The values that are kept, lowest and highest.")
    dtype: ActivationType | None = _rule("The integer type, instead of activation_type.")
    keep_float: bool = _form("Do not quantize it.", key="float")
    method: str | None = _rule("How its range is estimated, instead of method.")

    symmetric: bool | None = _rule("Its zero point is in the middle, or where it fits best.")
    scales: Floats = _rule(
        "Its scale, or one for each channel, with zero_points.", default=(), gt=0
    )
    zero_points: Wholes = _rule("As many as scales.", default=())
    axis: int | None = _rule("Of a constant: one scale for each index of this axis.", ge=-64)
    reduced: bool = _form("Of a constant: use one bit less than its type has.")
    readers: Names = _rule(
        "The nodes for which it is converted so; others read it as it is made.", default=()
    )

    def _check(self) -> None:
        given: list[object] = [self.range, self.dtype, self.method, self.symmetric, self.axis]
        given += [one or None for one in (self.scales, self.reduced, self.readers)]
        says = any(one is not None for one in given)
        low, high = self.range or (0, 1)
        scales, zero_points = len(self.scales), len(self.zero_points)
        wrong = {
            "says nothing: give range, dtype, method or float": not says and not self.keep_float,
            "leaves it in float: remove range, dtype and method, or float": says
            and self.keep_float,
            "gives its range twice: remove range or method": self.range and self.method,
            "gives its range twice: remove scales, or range and method": scales
            and (self.range or self.method),
            f"has the range {short_repr(self.range)}, which is empty: use [low, high]": low >= high,
            f"has the range {short_repr(self.range)}, which must hold 0, for that has to be exact: use "
            f"{[min(low, 0.0), max(high, 0.0)]}": not low <= 0 <= high,
            f"gives {scales} scales and {zero_points} zero_points: give as many": scales
            != zero_points,
            "converts it for some nodes: say to which dtype": self.readers and self.dtype is None,
        }
        for text, found in wrong.items():
            if found:
                raise UsageError(f"the rule for tensor '{self.tensor}' {text}.")

    @property
    def int_type(self) -> "IntType | None":
        """The integer type; None: that of the others."""
        return None if self.dtype is None else _int_type(self.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRule(Settings):
    """How certain nodes run. Of the rules that match a node the last one counts."""

    node: str = field(
        metadata=metadata_of("A node's name, or a pattern such as */attn/*.", flag=None)
    )
    mode: Literal["float", "integer"] = field(
        metadata=metadata_of(
            '"float" leaves it as it is; "integer" quantizes it also where the plan would not, and is an error where no '
            "kernel runs it.",
            flag=None,
        )
    )


class _IntegerSettings(Settings):
    """What static and dynamic settings have in common; each declares the fields, with flags and defaults of its own."""

    __slots__ = ()
    weight_bits: int | None
    target_size: float | None
    coverage: Coverage | None

    def _check(self) -> None:
        if self.weight_bits is not None and self.target_size is not None:
            raise UsageError(
                "weight_bits and target_size both say how small weights are: give one."
            )

    @property
    def packs(self) -> bool:
        """Whether weights may have fewer than 8 bits in the file."""
        return self.weight_bits is not None or self.target_size is not None

    @property
    def covers_all(self) -> bool:
        """Whether every operator that is asked for is quantized, not only what gains by it."""
        return self.coverage == "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticSettings(_IntegerSettings):
    """How a model is quantized statically. None: as the target runs it best; empty: all.

    `tensors` and `nodes` are rules for single ones, in the file's order.
    """

    target: str | None = setting(
        "What will run it: see quantkit targets. Default: cpu (any CPU), or what a given plan is for.",
        "NAME",
    )
    format: StaticFormat | None = _integers(
        "qdq (default), which every runtime reads, or qoperator: QLinear operators.", "FORMAT"
    )
    coverage: Coverage | None = _selection(
        "gain (default): what runs faster in integers; all: every operator that the target has, and every "
        "tensor between them.",
        "WHICH",
    )
    measure: bool | None = _selection(
        "Run the model to find out what is faster in integers here, or decide by operators alone. Default: run it "
        "where the target is this machine.",
        flag="--measure/--no-measure",
    )
    simplify: bool = setting(
        "Simplify the float model first: fold constants, fuse what is linear.",
        default=True,
        flag=None,
    )
    keep_inputs: bool = keep_inputs()
    activation_type: ActivationType | None = _integers("uint8, int8, uint16 or int16.", "TYPE")
    weight_type: StaticWeightType | None = _integers(
        "int8 or uint8; with --coverage all also int4, uint4, int16, uint16.", "TYPE"
    )
    weight_bits: int | None = _weight_bits(panel="Integers")
    target_size: FileSize | None = _integers(
        "Size of the file, 18% of float's or 3.2MB: each weight gets as many bits as it needs, by what is measured.",
        "SIZE",
        gt=0,
    )
    per_channel: bool | None = _integers(
        "One scale per output channel (default), or one per tensor.",
        flag="--per-channel/--per-tensor",
    )
    symmetric_activations: bool | None = _integers(
        "Zero points of activations in the middle of the type, or where they fit best.",
        flag="--symmetric-activations/--asymmetric-activations",
    )
    method: str | None = setting("How ranges are estimated.", flag=None)
    include: Names = include_nodes(panel="Selection")
    exclude: Names = exclude_nodes(panel="Selection")
    op_types: OperatorTypes = _selection(
        "Only these operator types: Conv,Gemm,... May be repeated.", "TYPES", default=()
    )
    recover: RecoverSettings = table(RecoverSettings)
    qdq: QdqSettings = table(QdqSettings)
    tensors: tuple[TensorRule, ...] = table(TensorRule, "tensor", several=True)
    nodes: tuple[NodeRule, ...] = table(NodeRule, "node", several=True)

    @property
    def runs_on(self) -> "Target":
        """What will run the model."""
        from quantkit.targets import DEFAULT, target

        return DEFAULT if self.target is None else target(self.target)

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


def _int_type(name: str) -> "IntType":
    from quantkit.numerics.dtypes import int_type

    return int_type(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicSettings(_IntegerSettings):
    """How a model is quantized dynamically; the defaults are what an expert would choose. Empty: all.

    Nodes that are included run in integer arithmetic where a kernel exists, whatever their size. So do all nodes where
    coverage is "all"; Conv, which takes longer than in float, where it is named or nothing else can.
    """

    weight_type: WeightType = setting(
        "uint8 (default, most accurate) or int8 (faster on x86, as safe from saturation).",
        "TYPE",
        default="uint8",
    )
    weight_bits: int | None = _weight_bits()
    target_size: FileSize | None = setting(
        "Size of the file, 15% of float's or 3.2MB: bits are assigned per weight by its quantization error.",
        "SIZE",
        gt=0,
    )
    per_channel: bool = setting(
        "One scale per channel (default), or one per tensor.",
        default=True,
        flag="--per-channel/--per-tensor",
    )
    reduce_range: bool = setting(
        "Use 7 bits: not needed, int8 weights are safe from saturation.", default=False, flag=None
    )
    op_types: OperatorTypes = setting(
        "Only these operator types: MatMul,Gemm,... May be repeated.", "TYPES", default=()
    )
    include: Names = include_nodes()
    exclude: Names = exclude_nodes()
    coverage: Coverage = setting(
        "gain (default): what is faster in integers, or smaller; all: every operator that has an integer kernel.",
        "WHICH",
        default="gain",
    )
    keep_inputs: bool = keep_inputs()
    integer: bool = setting(
        "Integer arithmetic, not only weights stored as integers.", default=True, flag=None
    )
    pair_safe: bool = setting(
        "Keep int8 weights from saturating x86 without VNNI.", default=True, flag=None
    )
    symmetric_weights: bool | None = setting(
        "Zero points of weights in the middle; else as the type has it.", flag=None
    )
    activation_products: bool = setting(
        "Also MatMul of two activations, where coverage is all.", default=False, flag=None
    )
    subgraphs: bool = setting("Also nodes inside of If, Loop and Scan.", default=True, flag=None)

    @property
    def weight(self) -> "IntType":
        """The type of weights."""
        return _int_type(self.weight_type)
