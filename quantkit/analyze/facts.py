"""The model as the planner sees it: plain data, no ONNX object."""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Attributes", "ModelFacts", "NodeFact", "WeightFact", "WeightUse"]

Attributes = Mapping[str, int | float | str | tuple[int, ...] | tuple[str, ...]]


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
class WeightFact:
    """A float32 initializer of two or more axes.

    Attributes:
        tensor: Its name, unique in the model.
        shape: Its shape.
        finite: It holds neither NaN nor infinity.
        exposed: It is a graph input or output, so that its float values must stay.
        uses: Who reads it.
    """

    tensor: str
    shape: tuple[int, ...]
    finite: bool
    exposed: bool
    uses: tuple[WeightUse, ...]

    @property
    def size(self) -> int:
        """Number of values."""
        n = 1
        for extent in self.shape:
            n *= extent
        return n


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFact:
    """A node whose operator holds weights.

    Attributes:
        name: Unique in the model.
        op_type: Its operator.
        domain: The operator's domain.
        attributes: Its attributes that are numbers, strings or lists of them.
        inputs: Names of its inputs, "" where one is left out.
        weights: Weight name by input slot, for the inputs that are constant.
        constants: All input slots that are constant, of whatever type and shape.
        output_count: How many outputs there are up to the last one that is used.
    """

    name: str
    op_type: str
    domain: str
    attributes: Attributes
    inputs: tuple[str, ...]
    weights: Mapping[int, str]
    constants: frozenset[int]
    output_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Everything that a plan is built from. `nodes` is in graph order, subgraphs included."""

    opset: int
    nodes: tuple[NodeFact, ...]
    weights: Mapping[str, WeightFact]
    names: frozenset[str]
