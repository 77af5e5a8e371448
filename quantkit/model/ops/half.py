"""What planners of float16 see: what ONNX lets be float16, and what constants lose in it; `quantkit.model.graph.half_view` makes it.

It stands beside the `View` for the same reason: `graph` makes it, `plan` reads it, and neither imports the other.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from quantkit.model.ops.view import View
from quantkit.numerics.half import HalfLoss

__all__ = ["FloatConstant", "HalfSlots", "HalfView"]


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
