"""What a plan is: frozen data addressed by node and tensor name, that round-trips through JSON.

`SolvedIntegers` are numbers that were found for a plan: integers of weights, and biases. What is missing is computed as
the plan says.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, Literal

from msgspec import Meta

from quantkit.model.ops.view import Node
from quantkit.numerics.blocks import BlockGrid
from quantkit.numerics.dtypes import IntType
from quantkit.quantize.plan.codec import from_plain, to_plain
from quantkit.reasons import Reason
from quantkit.settings import Coverage, QdqSettings
from quantkit.spec import LEFT_OUT, QuantSpec

_KERNEL_BITS = (2, 4, 8)
HalfType = Literal["float16", "bfloat16"]

_FIRST = ("target", "output_format", "block_format", "min_opset")  # in files
_LARGEST = 3.4028234e38  # of float32
_Scale = Annotated[float, Meta(ge=-_LARGEST, le=_LARGEST)]
_Small = Annotated[int, Meta(ge=-(2**31), lt=2**31)]


def kernel_bits(bits: int) -> int:
    """Return in how many bits kernels of weights in blocks read a weight that has so many in the file."""
    return bits if bits in _KERNEL_BITS else _KERNEL_BITS[-1]


class Format(StrEnum):
    """How integer arithmetic is written down."""

    # Float operators between DequantizeLinear and QuantizeLinear; the runtime fuses them.
    QDQ = "qdq"
    # QLinear operators; what runs is what is written.
    QOPERATOR = "qoperator"


class BlockFormat(StrEnum):
    """How weights in blocks are written down."""

    # onnxruntime's own operators: MatMulNBits, GatherBlockQuantized.
    CONTRIB = "contrib"
    # DequantizeLinear of blocks in front of the float operator.
    ONNX = "onnx"


class Mode(StrEnum):
    """How a node runs in the quantized model."""

    STATIC = "static"  # integer arithmetic between tensors whose ranges were calibrated
    ABSORBED = "absorbed"  # gone: the quantization of its output clips as it did
    INTEGER = "integer"  # integer weights, inputs quantized as they come (or integer look-up)
    BLOCKS = (
        "blocks"  # integer weights in blocks, which the kernel itself multiplies float inputs by
    )
    STORED = "stored"  # weights of fewer bits in the file, turned back to float once, at load
    HALF = "half"  # computed in float16
    FLOAT = "float"  # unchanged

    @property
    def words(self) -> str:
        """What people call it; `value` is what files say."""
        return _WORDS[self]


_WORDS = {
    Mode.STATIC: "static int8",
    Mode.ABSORBED: "fused into the layer before",
    Mode.INTEGER: "dynamic int8",
    Mode.BLOCKS: "weights in blocks",
    Mode.HALF: "float16",
    Mode.STORED: "weights only",
    Mode.FLOAT: "float",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """What happens to one node, and why.

    Attributes:
        node: Its name.
        op_type: Its operator.
        mode: How it runs.
        reason: Why.
        float_output: It reads calibrated integers, but hands on floats.
        accuracy_level: Of MatMulNBits: 4 rounds activations to 8 bits, a block at a time; else they stay float.
    """

    node: str
    op_type: str
    mode: Mode
    reason: Reason
    float_output: bool = False
    accuracy_level: Annotated[int, Meta(ge=0, le=4)] = field(default=0, metadata=LEFT_OUT)

    @classmethod
    def of(
        cls, node: Node, mode: Mode, reason: Reason, *, float_output: bool = False
    ) -> "NodePlan":
        """Return the plan of a node of the view."""
        return cls(
            node=node.name,
            op_type=node.op_type,
            mode=mode,
            reason=reason,
            float_output=float_output,
        )

    @property
    def why(self) -> str:
        """The reason in a sentence."""
        return str(self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightPlan:
    """How one weight is quantized.

    Attributes:
        tensor: Its name.
        spec: The integers that kernels read, or that become float at load.
        transposed: It is written with its two axes swapped, because every node that reads it wants it so.
        blocks: It has fewer than 8 bits in the file, or a step for each block; None: one integer of `spec` per value. Rows run along the axis
            of `spec`. What is read in integers is made of the codes when the file is loaded.
    """

    tensor: str
    spec: QuantSpec
    transposed: bool = False
    blocks: BlockGrid | None = field(default=None, metadata=LEFT_OUT)

    @property
    def bits(self) -> int:
        """Of a value in the file."""
        return self.spec.dtype.bits if self.blocks is None else self.blocks.bits


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfPlan:
    """A float tensor that the file holds in 16 bits.

    Attributes:
        tensor: An initializer, or an input or output of the model.
        dtype: "float16" or "bfloat16".
        reason: Why.
    """

    tensor: str
    dtype: HalfType
    reason: Reason

    @property
    def why(self) -> str:
        """The reason in a sentence."""
        return str(self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationPlan:
    """How one tensor that is computed at run time is quantized.

    Invariants: scale > 0 and a float32; the zero point is a value of `dtype`. `shares`: the tensor whose numbers these are,
    where the file is to have them once; "" for its own.
    """

    tensor: str
    dtype: IntType
    scale: _Scale
    zero_point: _Small
    reason: Reason
    shares: str = field(default="", metadata=LEFT_OUT)
    converted: "Conversion | None" = field(default=None, metadata=LEFT_OUT)

    @property
    def why(self) -> str:
        """The reason in a sentence."""
        return str(self.reason)

    @property
    def low(self) -> float:
        """The smallest value that it can hold."""
        return (self.dtype.qmin - self.zero_point) * self.scale

    @property
    def high(self) -> float:
        """The largest value that it can hold."""
        return (self.dtype.qmax - self.zero_point) * self.scale

    def read_by(self, node: str) -> "ActivationPlan":
        """Return the numbers in which a node reads it."""
        converted = self.converted
        if converted is None or (converted.readers and node not in converted.readers):
            return self
        return replace(
            self, dtype=converted.dtype, scale=converted.scale, zero_point=converted.zero_point
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """The other numbers in which some nodes read a quantized tensor; no `readers`: all of them do."""

    dtype: IntType
    scale: _Scale
    zero_point: _Small
    readers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Kept:
    """A node that does not run in calibrated integers, because that was measured to be slower, or to lose too much.

    `reason`: None only while it is tried what else it could be. `mode`: how it runs instead: INTEGER, quantized as it comes; STORED, in float with its weight in 8 bits; or FLOAT. None is
    as dynamic quantization decides. Where INTEGER or STORED cannot be had, the next one is.
    """

    reason: Reason | None
    mode: Mode | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All decisions about a model. Nothing after it decides anything.

    Attributes:
        nodes: Every node that was thought about, in graph order.
        weights: Every weight that is quantized.
        min_opset: The lowest opset that the emitted operators need.
        activations: Every tensor that is computed at run time and quantized with fixed numbers.
        integer_bias: The bias of a calibrated product is int32, in the scale of its sums; else float.
        factors_id: Names the factors by which channels were equalized before ranges were taken; "" if they were not.
            Scales hold only for a model with the same factors; files call them `evened`.
        target: What it was made for, a name that `quantkit.targets.target` knows; None of dynamic plans, and of files
            older than this field.
        output_format: How it is to be written down, if nobody says otherwise; None likewise.
        block_format: How weights in blocks are; None where there are none.
        coverage: Which nodes were to be quantized: what gains by it, or all. Of the latter nothing is added that is not
            a quantization: what it looks like is asked for.
        qdq: How pairs are written.
        halves: Every float tensor that the file holds in 16 bits.
    """

    nodes: tuple[NodePlan, ...]
    weights: tuple[WeightPlan, ...]
    min_opset: Annotated[int, Meta(ge=1, le=1000)]
    activations: tuple[ActivationPlan, ...] = ()
    integer_bias: bool = True
    factors_id: str = field(default="", metadata={"name": "evened"})
    target: str | None = field(default=None, metadata=LEFT_OUT)
    output_format: Format | None = field(default=None, metadata=LEFT_OUT)
    block_format: BlockFormat | None = field(default=None, metadata=LEFT_OUT)
    coverage: Coverage = field(default="gain", metadata=LEFT_OUT)
    qdq: QdqSettings = field(default_factory=QdqSettings, metadata=LEFT_OUT)
    halves: tuple[HalfPlan, ...] = field(default=(), metadata=LEFT_OUT)

    def __str__(self) -> str:
        """Count the decisions."""
        modes = Counter(node.mode for node in self.nodes)
        counted = ", ".join(f"{modes[mode]} {mode.words}" for mode in Mode if modes[mode])
        text = f"{len(self.nodes)} nodes" + (f" ({counted})" if counted else "")
        text += (
            f", {len(self.weights)} quantized weights" if self.weights or not self.halves else ""
        )
        text += f", {len(self.halves)} tensors in 16 bits" if self.halves else ""
        ranges = len(self.activations)
        return f"{text}, {ranges} activations with calibrated ranges" if ranges else text

    def __repr__(self) -> str:
        return f"<Plan: {self}>"

    @property
    def changes(self) -> bool:
        """Whether anything is quantized."""
        computed = {Mode.STATIC, Mode.INTEGER, Mode.BLOCKS, Mode.HALF}
        return bool(self.weights or self.halves) or any(n.mode in computed for n in self.nodes)

    @cached_property
    def activation(self) -> dict[str, ActivationPlan]:
        """Activation plans by tensor name."""
        return {a.tensor: a for a in self.activations}

    @cached_property
    def weight(self) -> dict[str, WeightPlan]:
        """Weight plans by tensor name."""
        return {w.tensor: w for w in self.weights}

    @cached_property
    def half(self) -> dict[str, HalfPlan]:
        """Plans of 16 bits by tensor name."""
        return {h.tensor: h for h in self.halves}

    @cached_property
    def node(self) -> dict[str, NodePlan]:
        """Node plans by node name."""
        return {n.node: n for n in self.nodes}

    def counts(self) -> dict[str, Counter[Mode]]:
        """Return how many nodes of each operator run in each mode."""
        table: dict[str, Counter[Mode]] = {}
        for node in self.nodes:
            table.setdefault(node.op_type, Counter())[node.mode] += 1
        return table

    def to_json(self) -> dict[str, Any]:
        """Return plain data; `from_json` is its inverse. What is not known about target and format is left out."""
        plain = to_plain(self)
        return {key: plain[key] for key in (*_FIRST, *plain) if key in plain}

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> "Plan":
        """Read what `to_json` wrote.

        Raises:
            UsageError: An edit made it wrong; says where.
        """
        return from_plain(cls, plain)
