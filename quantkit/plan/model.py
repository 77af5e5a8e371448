"""What a plan is: frozen data addressed by node and tensor name, that round-trips through JSON."""

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

from quantkit.spec import QuantSpec

__all__ = ["Mode", "NodePlan", "Plan", "WeightPlan"]


class Mode(StrEnum):
    """How a node runs in the quantized model."""

    INTEGER = "integer"  # integer weights, integer arithmetic (or integer look-up)
    STORED = "stored"  # integer weights in the file, turned back to float once, at load
    FLOAT = "float"  # unchanged


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """What happens to one node, and why."""

    node: str
    op_type: str
    mode: Mode
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightPlan:
    """How one weight is quantized.

    `transposed`: it is written with its two axes swapped, because every node that reads it wants
    it so.
    """

    tensor: str
    spec: QuantSpec
    transposed: bool = False


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All decisions about a model. Nothing after it decides anything.

    Attributes:
        nodes: Every node whose operator holds weights, in graph order.
        weights: Every weight that is quantized.
        min_opset: The lowest opset that the emitted operators need.
    """

    nodes: tuple[NodePlan, ...]
    weights: tuple[WeightPlan, ...]
    min_opset: int

    @cached_property
    def weight(self) -> dict[str, WeightPlan]:
        """Weight plans by tensor name."""
        return {w.tensor: w for w in self.weights}

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
        """Return plain data; `from_json` is its inverse."""
        return {
            "min_opset": self.min_opset,
            "nodes": [
                {"node": n.node, "op_type": n.op_type, "mode": n.mode.value, "why": n.why}
                for n in self.nodes
            ],
            "weights": [
                {"tensor": w.tensor, "spec": w.spec.to_json(), "transposed": w.transposed}
                for w in self.weights
            ],
        }

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> "Plan":
        """Read what `to_json` wrote."""
        return cls(
            min_opset=plain["min_opset"],
            nodes=tuple(
                NodePlan(node=n["node"], op_type=n["op_type"], mode=Mode(n["mode"]), why=n["why"])
                for n in plain["nodes"]
            ),
            weights=tuple(
                WeightPlan(
                    tensor=w["tensor"],
                    spec=QuantSpec.from_json(w["spec"]),
                    transposed=w["transposed"],
                )
                for w in plain["weights"]
            ),
        )
