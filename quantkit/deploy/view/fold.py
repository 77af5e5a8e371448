"""One box a layer: which nodes of a graph are drawn together.

A raw quantized graph cannot be read: of 298 nodes of a ResNet-20 in Q/DQ form 32 say what it computes. So

- conversions (QuantizeLinear, DequantizeLinear, Cast) and Identity go to what they read;
- BatchNormalization, activation functions, biases and scales go to the product before them; a Relu to whatever is before it;
- what is made of constants (weights that are restored at load), scales taken at run time, and the arithmetic of shapes
  go to the first layer that reads them, and no line is drawn for them.

Every node is in exactly one box, and the boxes have no cycles. All passes are linear.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from quantkit.deploy.view.groups import topological
from quantkit.errors import ModelError
from quantkit.model.graph.edit import owner_of, subgraphs_of
from quantkit.model.ops.float_ops import (
    ACTIVATIONS,
    ARITHMETIC,
    CLIPS,
    COPIES,
    EXTENTS,
    FLOAT_PRODUCTS,
    SHAPE_ARITHMETIC,
)
from quantkit.model.ops.integer_ops import (
    CONVERSIONS,
    INTEGER_OPS,
    INTEGER_PRODUCTS,
    Role,
    stands_for,
)

_PRODUCTS = FLOAT_PRODUCTS | INTEGER_PRODUCTS
_PRODUCTS |= {op for op, row in INTEGER_OPS.items() if row.role is Role.MULTIPLIES}
_FOLLOWS = CONVERSIONS | COPIES
_TAILS = ACTIVATIONS | ARITHMETIC | {"BatchNormalization"}


@dataclass(slots=True)
class Folded:
    """A box while it is made.

    Attributes:
        head: The node that it is named after; None: an input or an output of the model.
        value: That input or output; None: it has a head.
        nodes: All its nodes, in order; the head is one of them.
        reads: The boxes whose values it reads, in order, each once.
    """

    head: ir.Node | None = None
    value: ir.Value | None = None
    nodes: list[ir.Node] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)


def nodes_in_order(model: ir.Model) -> list[ir.Node]:
    """Return all nodes, each after what it reads: those of a subgraph before the node that holds it."""
    found: list[ir.Node] = []
    todo: list[Iterator[ir.Node]] = [iter(model.graph)]
    held: list[ir.Node] = []  # whose subgraphs are being listed
    while todo:
        node = next(todo[-1], None)
        if node is None:
            todo.pop()
            if held:
                found.append(held.pop())
            continue
        inside = list(subgraphs_of(node))
        if inside:
            held.append(node)
            todo.append(n for graph in inside for n in graph)
        else:
            found.append(node)
    return found


def fold(model: ir.Model, *, raw: bool = False) -> list[Folded]:
    """Return the boxes of a model, each after those that it reads: inputs, layers, outputs.

    Args:
        model: The model; it is left as it is.
        raw: Every node in a box of its own.
    """
    nodes = nodes_in_order(model)
    homes = _Homes(model, nodes)
    if raw:
        homes.each_alone()
    else:
        homes.settle()
    boxes = _ordered(homes.boxes())
    if boxes is None and not raw:  # boxes that read each other; nodes alone never do
        return fold(model, raw=True)
    if boxes is None:
        raise ModelError("The nodes of the model read each other in a circle: it has no order.")
    return boxes


class _Homes:
    """Gives every node a box."""

    def __init__(self, model: ir.Model, nodes: list[ir.Node]) -> None:
        self.model = model
        self.nodes = nodes
        self.fed = [v for v in model.graph.inputs if not v.is_initializer()]
        self.silent = _silent(nodes)  # values that no line is drawn for
        self.found: list[Folded] = [Folded(value=value) for value in self.fed]
        self.of_value: dict[ir.Value, int] = {value: i for i, value in enumerate(self.fed)}
        self.of_node: dict[ir.Node, int] = {}

    def each_alone(self) -> None:
        self.silent = set()
        for node in self.nodes:
            self._open(node)

    def settle(self) -> None:
        later = []
        for node in self.nodes:
            if node.outputs and all(out in self.silent for out in node.outputs):
                later.append(node)
                continue
            home = self._joined(node)
            if home is None:
                self._open(node)
            else:
                self._enter(node, home)
        for node in reversed(later):
            readers = (use.node for out in node.outputs for use in out.uses())
            homes = [self.of_node[reader] for reader in readers if reader in self.of_node]
            handed_on = any(out.is_graph_output() for out in node.outputs)
            if homes and not handed_on:
                self._enter(node, min(homes))
            else:
                self.silent.difference_update(node.outputs)
                self._open(node)

    def boxes(self) -> list[Folded]:
        """Return the boxes with what they read, and those of the outputs."""
        place = {node: i for i, node in enumerate(self.nodes)}
        for box in self.found:
            box.nodes.sort(key=place.__getitem__)
        for number, box in enumerate(self.found):
            seen = dict.fromkeys(
                self.of_value[value]
                for node in box.nodes
                for value in _read(node)
                if value in self.of_value and value not in self.silent
            )
            box.reads = [source for source in seen if source != number]
        ends = [
            Folded(value=value, reads=[self.of_value[value]] if value in self.of_value else [])
            for value in self.model.graph.outputs
        ]
        return [*self.found, *ends]

    def _open(self, node: ir.Node) -> None:
        self.found.append(Folded(head=node))
        self._enter(node, len(self.found) - 1)

    def _enter(self, node: ir.Node, home: int) -> None:
        self.found[home].nodes.append(node)
        self.of_node[node] = home
        self.of_value.update((out, home) for out in node.outputs)

    def _joined(self, node: ir.Node) -> int | None:
        """Return the box that a node belongs to with what it reads; None: one of its own."""
        active = [v for v in node.inputs if v in self.of_value and v not in self.silent]
        homes = {self.of_value[v] for v in active}
        if len(homes) != 1 or any(_inside(v) is not owner_of(node) for v in active):
            return None
        home = homes.pop()
        follows = node.op_type in _FOLLOWS or _ends(node, self.found[home].head, active)
        return home if follows else None


def _ends(node: ir.Node, head: ir.Node | None, active: Sequence[ir.Value]) -> bool:
    """Say whether a node ends what a layer computes: a Relu any layer, and other functions a product.

    Args:
        node: The node.
        head: What the box that it reads is named after.
        active: What it reads of that.
    """
    if head is None or any(True for _ in subgraphs_of(node)):
        return False
    alone = all(len(v.uses()) == 1 and not v.is_graph_output() for v in active)
    if head.op_type not in _PRODUCTS and not _looks_up(head):
        return node.op_type in CLIPS and alone
    # What a product is multiplied by, or has added, is part of it if nobody wants it without.
    free = node.op_type not in ARITHMETIC or alone or len(active) > 1
    return stands_for(node.op_type) in _TAILS and free


def _looks_up(node: ir.Node) -> bool:
    """Say whether a node reads rows of a constant table."""
    return node.op_type == "Gather" and node.inputs[0] is not None and _is_constant(node.inputs[0])


def _inside(value: ir.Value) -> ir.Graph | None:
    maker = value.producer()
    return value.graph if maker is None else owner_of(maker)


def _read(node: ir.Node) -> Iterator[ir.Value]:
    """Yield what a node reads; one that holds subgraphs reads what they hand out."""
    yield from (value for value in node.inputs if value is not None)
    for graph in subgraphs_of(node):
        yield from graph.outputs


def _silent(nodes: Iterable[ir.Node]) -> set[ir.Value]:
    """Return the values that say nothing of the flow of data: constants, scales taken at run time, shapes."""
    quiet: set[ir.Value] = set()  # constants and scales
    shapes: set[ir.Value] = set()
    for node in nodes:
        if any(True for _ in subgraphs_of(node)):
            continue
        active = {v for v in node.inputs if v is not None and not _is_constant(v)} - quiet
        if not active and (node.inputs or node.op_type == "Constant"):
            quiet.update(node.outputs)
        elif node.op_type == "DynamicQuantizeLinear":
            quiet.update(node.outputs[1:])
        elif node.op_type in EXTENTS or (node.op_type in SHAPE_ARITHMETIC and active <= shapes):
            shapes.update(node.outputs)
    return quiet | shapes


def _is_constant(value: ir.Value) -> bool:
    return value.is_initializer() and not value.is_graph_input()


def _ordered(boxes: list[Folded]) -> list[Folded] | None:
    """Return the boxes in an order in which each comes after those it reads, nearest to the given one; None if there is none."""
    order = topological([box.reads for box in boxes])
    if len(order) < len(boxes):
        return None
    place = {old: new for new, old in enumerate(order)}
    for box in boxes:
        box.reads = [place[source] for source in box.reads]
    return [boxes[i] for i in order]
