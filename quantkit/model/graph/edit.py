"""The few ways in which a graph is changed: by passes that simplify, and by emitters, which draw on a `Canvas`.

Invariants of all of them: inputs are untouched; outputs keep names, order and declared types, of subgraphs
too; no value of one graph becomes an output of another. Names of values are unique along nested graphs: onnxruntime
refuses others.

New names take amortized constant time, also when thousands share a stem.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray


class Names:
    """A set of names in use, with multiplicity: a name is free when nobody holds it any more."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._held = Counter(taken)
        self._next: Counter[str] = Counter()

    def hold(self, names: Iterable[str]) -> None:
        """Mark names as in use."""
        self._held.update(list(names))  # a list: Counter would add up the values of a mapping

    def renew(self, name: str) -> str:
        """Give up one use of a name and return one that is free: the same, if nobody else has it."""
        self._held[name] -= 1
        return self.fresh(name)

    def fresh(self, wanted: str) -> str:
        """Return `wanted` if it is free, else `wanted` with a number; it is in use from now on."""
        chosen = wanted
        while self._held[chosen] > 0:
            self._next[wanted] += 1
            chosen = f"{wanted}_{self._next[wanted]}"
        self._held[chosen] += 1
        return chosen


# Inputs of a reader above which it is left as it is: onnx-ir makes all of them anew for each that changes, so that a
# Sum of 100,000 equal terms would take an hour.
_WIDE = 1024


def nodes_of(model: ir.Model) -> list[ir.Node]:
    """Return all nodes in order, those of subgraphs included."""
    return list(model.graph.all_nodes())


def own_name(item: ir.Node | ir.Value | ir.TensorProtocol) -> str:
    """Return the name of a node, value or tensor; "" if it has none."""
    return item.name or ""


def optional(node: ir.Node, slot: int) -> ir.Value | None:
    """Return an input that a node may lack."""
    return node.inputs[slot] if slot < len(node.inputs) else None


def producer_of(value: ir.Value | None) -> ir.Node | None:
    """Return the node that computes a value; None for inputs, initializers and inputs that are left out."""
    return None if value is None else value.producer()


def const_of(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Return the contents of a constant, also of one that can be fed; None for others and for inputs that are left out."""
    return None if value is None else ir.convenience.get_const_tensor(value)


def is_op(node: ir.Node, *op_types: str) -> bool:
    """Say whether a node is one of these operators of the default domain."""
    return node.op_type in op_types and not node.domain


def constant(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Return the tensor that a value always is: an initializer that is no input, or a `Constant`."""
    producer = None if value is None else value.producer()
    tensor = None
    if producer is not None:
        attribute = producer.attributes.get("value") if is_op(producer, "Constant") else None
        if attribute is not None and attribute.type is ir.AttributeType.TENSOR:
            tensor = attribute.as_tensor()
    elif value is not None and value.is_initializer() and not value.is_graph_input():
        tensor = value.const_value
    # External data that is left is data whose file is missing.
    return None if isinstance(tensor, ir.ExternalTensor) else tensor


def owner_of(node: ir.Node) -> ir.Graph:
    """Return the graph a node stands in."""
    assert isinstance(node.graph, ir.Graph)  # noqa: S101 - functions are inlined at load
    return node.graph


def sole_reader(value: ir.Value) -> ir.Node | None:
    """Return the node that alone needs a value, once, in the value's own graph; None if others do too."""
    uses = value.uses()
    if len(uses) != 1 or value.is_graph_output():
        return None
    reader = next(iter(uses)).node
    return reader if reader.graph is value.graph else None


def can_redirect(old: ir.Value, new: ir.Value) -> bool:
    """Say whether `new` can stand for `old` everywhere.

    An output gives its name to what stands for it; inputs, initializers, other outputs and values of an
    outer graph have names of their own. Readers of thousands of values are left as they are.
    """
    if any(len(use.node.inputs) > _WIDE for use in old.uses()):
        return False
    if not old.is_graph_output():
        return True
    return new.producer() is not None and new.graph is old.graph and not new.is_graph_output()


def redirect(old: ir.Value, new: ir.Value) -> None:
    """Let everything that reads `old` read `new`, which has the same contents."""
    for key, known in old.meta.items():  # what was found of one holds of the other
        new.meta.setdefault(key, known)
    if not old.is_graph_output():
        old.replace_all_uses_with(new)
        return
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    _inherit(new, old)


def succeed(old: ir.Value, new: ir.Value) -> None:
    """Redirect `old` to `new`, which takes its name even if `old` is no output."""
    redirect(old, new)
    _inherit(new, old)


def _inherit(new: ir.Value, old: ir.Value) -> None:
    new.name = old.name
    new.type = old.type or new.type
    new.shape = old.shape


def bypass(node: ir.Node, source: ir.Value) -> bool:
    """Remove a node whose first output is `source` and whose others nobody reads; False if it must stay."""
    out = node.outputs[0]
    if not can_redirect(out, source):
        return False
    redirect(out, source)
    discard(node)
    return True


def discard(node: ir.Node) -> None:
    """Remove a node that nobody reads. Nodes of its subgraphs no longer count as readers either."""
    for graph in subgraphs_of(node):
        for inner in graph.all_nodes():
            for slot in range(len(inner.inputs)):
                inner.replace_input_with(slot, None)
    if node.graph is not None:
        node.graph.remove(node, safe=True)


def subgraphs_of(node: ir.Node) -> Iterator[ir.Graph]:
    """Yield the graphs that a node holds."""
    for attribute in node.attributes.values():
        if attribute.type is ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type is ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def value_names(model: ir.Model) -> Names:
    """Return all names of values in use, of all graphs."""
    names = Names()
    for graph in model.graphs():
        names.hold(v.name for v in graph.inputs if v.name and not v.is_initializer())
        names.hold(graph.initializers)
        names.hold(out.name for node in graph for out in node.outputs if out.name)
    return names


def add_initializer(graph: ir.Graph, name: str, tensor: ir.TensorProtocol) -> ir.Value:
    """Add a constant to a graph; no value may have its name.

    Args:
        graph: Where it is declared.
        name: That no value of any graph has.
        tensor: Its contents.
    """
    value = ir.Value(
        name=name,
        type=ir.TensorType(tensor.dtype),
        shape=ir.Shape(tensor.shape.numpy()),
        const_value=tensor,
    )
    graph.register_initializer(value)
    return value


class QuantizedInput(NamedTuple):
    """The three outputs of a DynamicQuantizeLinear."""

    values: ir.Value
    scale: ir.Value
    zero_point: ir.Value


@dataclass(slots=True)
class Canvas:
    """A graph under change. Names given out are new in all its graphs."""

    model: ir.Model
    _names: Names = field(init=False)
    _inputs: dict[tuple[ir.Value, ir.Graph], QuantizedInput] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._names = value_names(self.model)
        self._names.hold(own_name(node) for node in self.model.graph.all_nodes())

    def name(self, wanted: str) -> str:
        """Return `wanted`, or a variant of it that no value or node has."""
        return self._names.fresh(wanted)

    def constant(self, graph: ir.Graph, array: NDArray[Any], name: str) -> ir.Value:
        """Add a small initializer.

        Args:
            graph: Where it is declared.
            array: Its values.
            name: Made new if it is taken.
        """
        return self.initializer(graph, ir.Tensor(np.asarray(array)), name)

    def initializer(self, graph: ir.Graph, tensor: ir.TensorProtocol, name: str) -> ir.Value:
        """Add an initializer, which may be lazy.

        Args:
            graph: Where it is declared.
            tensor: Its contents, which may be computed when they are read.
            name: Made new if it is taken.
        """
        return add_initializer(graph, self.name(name), tensor)

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
        name: str | None = "",
    ) -> tuple[ir.Value, ...]:
        """Insert a node before or after another one; its outputs are named `outputs` (made new), as it is by `name`; None: it has none."""
        values = [ir.Value(name=self.name(o)) for o in outputs]
        node = ir.node(
            op_type,
            inputs,
            attributes,
            domain=domain,
            outputs=values,
            name=None if name is None else self.name(name or f"{outputs[0]}_{op_type}"),
        )
        if before is not None:
            owner_of(before).insert_before(before, node)
        elif after is not None:
            owner_of(after).insert_after(after, node)
        if domain:
            self.model.opset_imports.setdefault(domain, 1)
        return tuple(values)

    def swapped(self, value: ir.Value, rank: int, *, before: ir.Node) -> ir.Value:
        """Insert a Transpose of the last two axes.

        Args:
            value: What is transposed.
            rank: Its number of axes.
            before: The node in front of which the Transpose is put.
        """
        perm = [*range(rank - 2), rank - 1, rank - 2]
        (transposed,) = self.node(
            "Transpose",
            [value],
            before=before,
            attributes={"perm": ir.AttrInt64s("perm", perm)},
            outputs=[f"{value.name}_transposed"],
        )
        return transposed

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
        """Let `replacement` stand for an output of `node`, under its old name.

        Args:
            node: Whose output is replaced.
            replacement: What is read instead; it gets the output's name.
            output: Which one.
        """
        old = node.outputs[output]
        succeed(old, replacement)
        old.name = self.name(f"{old.name}_replaced")  # the node may stay, for its other outputs
