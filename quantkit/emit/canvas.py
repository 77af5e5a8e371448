"""What all emitters draw with: fresh names, constants, new nodes, one quantized input an activation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.graph.names import Names

__all__ = ["Canvas", "QuantizedInput", "owner_of"]


class QuantizedInput(NamedTuple):
    """The three outputs of a DynamicQuantizeLinear."""

    values: ir.Value
    scale: ir.Value
    zero_point: ir.Value


def owner_of(node: ir.Node) -> ir.Graph:
    """Return the graph a node stands in."""
    assert isinstance(node.graph, ir.Graph)  # noqa: S101 - functions are inlined at load
    return node.graph


@dataclass(slots=True)
class Canvas:
    """A graph under change. Names given out are new in all its graphs."""

    model: ir.Model
    _names: Names = field(default_factory=Names)
    _inputs: dict[tuple[ir.Value, ir.Graph], QuantizedInput] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for graph in self.model.graphs():
            self._names.hold(v.name or "" for v in graph.inputs)
            self._names.hold(graph.initializers)
            for node in graph:
                self._names.hold(o.name or "" for o in node.outputs)
                self._names.hold([node.name or ""])

    def name(self, wanted: str) -> str:
        """Return `wanted`, or a variant of it that no value or node has."""
        return self._names.fresh(wanted)

    def constant(self, graph: ir.Graph, array: NDArray[Any], name: str) -> ir.Value:
        """Add a small initializer."""
        return self.initializer(graph, ir.Tensor(np.asarray(array)), name)

    def initializer(self, graph: ir.Graph, tensor: ir.TensorProtocol, name: str) -> ir.Value:
        """Add an initializer, which may be lazy."""
        value = ir.Value(
            name=self.name(name),
            type=ir.TensorType(tensor.dtype),
            shape=ir.Shape(tensor.shape.numpy()),
            const_value=tensor,
        )
        graph.register_initializer(value)
        return value

    def node(  # noqa: PLR0913 - what a node is made of
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        *,
        before: ir.Node | None = None,
        after: ir.Node | None = None,
        attributes: Mapping[str, ir.Attr | int | float | str] | None = None,
        domain: str = "",
        outputs: Sequence[str] = (),
    ) -> tuple[ir.Value, ...]:
        """Insert a node before or after another one; its outputs are named `outputs` (made new)."""
        values = [ir.Value(name=self.name(o)) for o in outputs]
        node = ir.node(
            op_type,
            inputs,
            attributes,
            domain=domain,
            outputs=values,
            name=self.name(f"{outputs[0]}_{op_type}"),
        )
        if before is not None:
            owner_of(before).insert_before(before, node)
        elif after is not None:
            owner_of(after).insert_after(after, node)
        if domain:
            self.model.opset_imports.setdefault(domain, 1)
        return tuple(values)

    def swapped(self, value: ir.Value, rank: int, *, before: ir.Node) -> ir.Value:
        """Insert a Transpose of the last two axes."""
        perm = [*range(rank - 2), rank - 1, rank - 2]
        (turned,) = self.node(
            "Transpose",
            [value],
            before=before,
            attributes={"perm": ir.AttrInt64s("perm", perm)},
            outputs=[f"{value.name}_transposed"],
        )
        return turned

    def quantized_input(self, value: ir.Value, before: ir.Node) -> QuantizedInput:
        """Return `value` dynamically quantized; one DynamicQuantizeLinear a graph serves all its readers.

        `before` is the first reader: graphs are emitted in topological order.
        """
        key = (value, owner_of(before))
        if key not in self._inputs:
            base = value.name or "activation"
            names = (f"{base}_quantized", f"{base}_scale", f"{base}_zero_point")
            made = self.node("DynamicQuantizeLinear", [value], before=before, outputs=names)
            self._inputs[key] = QuantizedInput(*made)
        return self._inputs[key]

    def replace(self, node: ir.Node, replacement: ir.Value, output: int = 0) -> None:
        """Let `replacement` stand for an output of `node`, under its old name."""
        old = node.outputs[output]
        name = old.name
        replacement.type, replacement.shape = old.type, old.shape
        old.replace_all_uses_with(replacement, replace_graph_outputs=True)
        old.name = self.name(f"{name}_replaced")
        replacement.name = name
