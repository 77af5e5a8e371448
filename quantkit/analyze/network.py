"""The whole graph as the static planner sees it: plain data, no ONNX object."""

from collections.abc import Mapping
from dataclasses import dataclass

from quantkit.analyze.facts import Attributes

__all__ = ["Constant", "Network", "Step"]


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
class Step:
    """A node.

    Attributes:
        name: Unique in the model.
        op_type: Its operator.
        domain: The operator's domain.
        attributes: Its attributes that are numbers, strings or lists of them.
        inputs: Names of its inputs, "" where one is left out.
        outputs: Names of its outputs, "" where one is left out.
        hidden: Whether it stands inside If, Loop or Scan.
    """

    name: str
    op_type: str
    domain: str
    attributes: Attributes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    hidden: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """All nodes, in an order in which values are computed before they are read; and who reads what.

    Attributes:
        steps: The nodes; those of a subgraph come after the node that holds it.
        producer: Index of the step that computes a value.
        readers: Indices of the steps that read a value, a step once for each of its inputs.
        outputs: Results of the model and of its subgraphs.
        constants: Initializers that nobody can feed, by name.
    """

    steps: tuple[Step, ...]
    producer: Mapping[str, int]
    readers: Mapping[str, tuple[int, ...]]
    outputs: frozenset[str]
    constants: Mapping[str, Constant]

    def maker(self, value: str) -> Step | None:
        """Return the step that computes a value; None for inputs and constants."""
        index = self.producer.get(value)
        return None if index is None else self.steps[index]

    def only_reader(self, value: str) -> int | None:
        """Return the one step that reads a value, once; None if there are others or it is a result."""
        readers = self.readers.get(value, ())
        return readers[0] if len(readers) == 1 and value not in self.outputs else None
