"""The graph as planners see it: plain data, no ONNX object; `quantkit.model.graph.view` makes it.

It stands beside the facts about operators because `graph`, which makes it, and `plan`, which reads it, may both import
them, and know nothing of each other.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, prod

from quantkit.model.ops import Kernel, OpFact, channel_axis
from quantkit.model.ops.float_ops import FILL_SLOTS
from quantkit.numerics.half import HalfLoss

_SHOWN = frozenset({"If", "Loop", "Scan"})
_BIAS = 2  # input slot of products and normalizations

Attributes = Mapping[str, int | float | str | tuple[int, ...] | tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node.

    Attributes:
        name: Unique in the model.
        op_type: Its operator.
        domain: The operator's domain.
        attributes: Its attributes that are numbers, strings or lists of them.
        inputs: Names of its inputs, "" where one is left out.
        outputs: Names of its outputs, "" where one is left out.
        inside: The operators in whose subgraphs it stands (If, Loop, Scan), the outermost first; empty in the main graph.
        fact: What is known of its operator, if that holds weights; None for others, and for a Gather without a table
            of its own, which looks up shapes or activations.
        weights: The weight that an input reads, by slot; perhaps through a Transpose of its two axes.
    """

    name: str
    op_type: str
    domain: str
    attributes: Attributes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    inside: tuple[str, ...] = ()
    fact: OpFact | None = None
    weights: Mapping[int, str] = field(default_factory=dict)

    @property
    def in_subgraph(self) -> bool:
        """Whether it stands in the subgraph of another node."""
        return bool(self.inside)

    @property
    def observable(self) -> bool:
        """Whether a run can be made to show what it reads and makes (`quantkit.runtime.taps`)."""
        return _SHOWN.issuperset(self.inside)

    @property
    def kernel(self) -> Kernel:
        """What computes it with int8 weights and float inputs."""
        return Kernel.NONE if self.fact is None else self.fact.kernel

    def input(self, slot: int) -> str:
        """Return the name of an input; "" if it is left out."""
        return self.inputs[slot] if slot < len(self.inputs) else ""

    def transposes(self, slot: int) -> bool:
        """Say whether it reads the weight of an input through a Transpose."""
        return self.inputs[slot] != self.weights[slot]

    def channel_axis(self, slot: int, rank: int) -> int:
        """Return the axis of output channels in the weight of an input, of `rank` axes, as it is stored."""
        assert self.fact is not None  # noqa: S101 - it holds a weight
        axis = channel_axis(self.fact, slot, rank, self.attributes)
        return 1 - axis if self.transposes(slot) else axis


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightUse:
    """One input of one node that reads a weight.

    Attributes:
        node: The node's name.
        slot: Which input.
        transposed: It is read through a Transpose of its two axes.
        known: Whether the node's operator has a fact, and that input is one that holds weights.
    """

    node: str
    slot: int
    transposed: bool
    known: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """A float32 initializer of two or more axes.

    Attributes:
        tensor: Its name, unique in the model.
        shape: Its shape.
        finite: It holds neither NaN nor infinity.
        exposed: It is a graph input or output, so that its float values must stay.
        uses: Who reads it.
        low: Its smallest value; None if it was not read.
        high: Its largest value.
    """

    tensor: str
    shape: tuple[int, ...]
    finite: bool
    exposed: bool
    uses: tuple[WeightUse, ...]
    low: float | None = None
    high: float | None = None

    @property
    def size(self) -> int:
        """Number of values."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A constant tensor.

    Attributes:
        shape: Its shape.
        low: Its smallest value, if it is float and was looked at; NaN or infinite if one of its values is.
        high: Its largest value.
        is_float: Whether it is float32.
    """

    shape: tuple[int, ...]
    low: float | None = None
    high: float | None = None
    is_float: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """All nodes, in an order in which values are computed before they are read; who reads what; what is constant.

    Attributes:
        opset: The version of the standard operators.
        nodes: The nodes; those of a subgraph come after the node that holds it.
        names: Nodes that a user may name: these, and perhaps some that simplifying took away.
        producer: Index of the node that computes a value.
        readers: Indices of the nodes that read a value, a node once for each of its inputs.
        inputs: What the model is fed, in order, and defaults that can be.
        outputs: Results of the model and of its subgraphs.
        weights: Float matrices and larger, by name, also those that can be fed.
        constants: Initializers that nobody can feed and what Constant nodes hold, by name.
        initializers: Names of all initializers, also of those that can be fed.
        not_float: Values whose type is known and is not a float that can be quantized.
    """

    opset: int
    nodes: tuple[Node, ...]
    names: frozenset[str]
    producer: Mapping[str, int]
    readers: Mapping[str, tuple[int, ...]]
    inputs: tuple[str, ...]
    outputs: frozenset[str]
    weights: Mapping[str, Weight]
    constants: Mapping[str, Constant]
    initializers: frozenset[str]
    not_float: frozenset[str]

    @property
    def weighted(self) -> tuple[Node, ...]:
        """The nodes whose operator holds weights, in order."""
        return tuple(node for node in self.nodes if node.fact is not None)

    @property
    def tensors(self) -> frozenset[str]:
        """Names of all values that are computed or read."""
        return frozenset(self.producer) | frozenset(self.readers)

    def maker(self, value: str) -> Node | None:
        """Return the node that computes a value; None for inputs and constants."""
        index = self.producer.get(value)
        return None if index is None else self.nodes[index]

    def only_reader(self, value: str) -> int | None:
        """Return the one node that reads a value, once; None if there are others or it is a result."""
        readers = self.readers.get(value, ())
        return readers[0] if len(readers) == 1 and value not in self.outputs else None

    def weights_of(self, node: Node) -> dict[int, Weight]:
        """Return the weights of a node by input slot."""
        return {slot: self.weights[name] for slot, name in node.weights.items()}

    def used_outputs(self, node: Node) -> int:
        """Return how many outputs a node has up to the last one that is used."""
        used = (name in self.readers or name in self.outputs for name in node.outputs)
        return max((count for count, is_used in enumerate(used, 1) if is_used), default=0)


def has_vector_bias(node: Node, view: View, *, absent: bool) -> bool:
    """Say whether what a product or a normalization adds, its third input, is a constant vector.

    Args:
        node: The node.
        view: The graph.
        absent: What is said of one without a bias.
    """
    name = node.input(_BIAS)
    if not name:
        return absent
    constant = view.constants.get(name)
    known = constant is not None and constant.is_float and name in view.initializers
    return known and constant is not None and all(n == 1 for n in constant.shape[:-1])


def clip_bounds(node: Node, constants: Mapping[str, Constant]) -> tuple[float, float] | None:
    """Return between which constants a node clips; None if it does not, or they are computed."""
    if node.op_type == "Relu":
        return 0.0, inf
    if node.op_type != "Clip":
        return None
    bounds = []
    for slot, name, default in ((1, "min", -inf), (2, "max", inf)):
        given = node.input(slot)
        value = node.attributes.get(name, default)
        if given:
            constant = constants.get(given)
            if constant is None or constant.low is None:
                return None
            value = constant.low
        bounds.append(float(value))  # type: ignore[arg-type]  # a number in every valid model
    return bounds[0], bounds[1]


def fills_in(node: Node, constants: Mapping[str, Constant]) -> bool:
    """Say whether a node that moves data adds values of its own, other than 0, which every range holds."""
    if node.op_type != "Pad" or node.attributes.get("mode", "constant") != "constant":
        return False
    slot = FILL_SLOTS[node.op_type]
    given = node.input(slot)
    if not given:
        return node.attributes.get("value", 0.0) != 0  # before opset 11 an attribute
    constant = constants.get(given)
    return constant is None or constant.low != 0


@dataclass(frozen=True, slots=True)
class HalfSlots:
    """The inputs and outputs of a node that are float32 and that ONNX lets be float16; all of them together or none."""

    inputs: frozenset[int]
    outputs: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatConstant:
    """A float32 initializer.

    Attributes:
        tensor: Its name, unique in the model.
        shape: Its shape.
        exposed: It is an input or output of its graph.
        loss: What it loses in 16 bits; None: it was not read.
    """

    tensor: str
    shape: tuple[int, ...]
    exposed: bool
    loss: HalfLoss | None

    @property
    def size(self) -> int:
        """Number of values."""
        return prod(self.shape)

    @property
    def is_vector(self) -> bool:
        """Whether its values lie along one axis: a bias, a gain of each channel."""
        return self.size == max(self.shape, default=1)

    @property
    def nbytes(self) -> int:
        """What it takes in float32."""
        return 4 * self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfView:
    """A graph with what concerns 16 bits.

    Attributes:
        view: The graph.
        constants: Float32 initializers by name, of all graphs.
        floats: Values of the main graph that are float32 tensors and no constants, as far as types are known, in order.
        outputs: The results of the main graph.
        float_bytes: What all its floats, those of 16 bits too, take in float32.
        slots: By node, where ONNX has float16 for it; only nodes of the main graph without subgraphs.
        holders: Nodes that hold graphs of their own.
        untyped: Nodes that read or make values of unknown type.
        sums: How many values a node adds up inside, where that is known.
    """

    view: View
    constants: Mapping[str, FloatConstant]
    floats: tuple[str, ...]
    outputs: tuple[str, ...]
    float_bytes: int
    slots: Mapping[str, HalfSlots] = field(default_factory=dict)
    holders: frozenset[str] = frozenset()
    untyped: frozenset[str] = frozenset()
    sums: Mapping[str, int] = field(default_factory=dict)
