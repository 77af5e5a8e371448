"""Where a graph looks rows up by token ids, multiplies by the same vocabulary, and uses ids in any other way."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from quantkit.errors import ModelError, NothingToQuantizeError
from quantkit.model.graph.edit import constant
from quantkit.model.graph.shapes import dims, integers
from quantkit.model.ops import LOOKUPS, fact_of
from quantkit.model.ops.float_ops import (
    ALIGNS,
    BIASED,
    COPIES,
    EQUALITY,
    EXTENTS,
    FILL_SLOTS,
    FLOAT_PRODUCTS,
    FUNCTIONS,
    MOVES,
)
from quantkit.model.ops.integer_ops import BLOCKWISE, CONVERSIONS, INTEGER_OPS, Role

_BIAS, _MATRIX = 2, 2  # input slot of Gemm; axes
_FEWEST = 2  # ids: a single row is looked up by anything


@dataclass(frozen=True, slots=True)
class Place:
    """An input of a node that has an axis of tokens."""

    node: ir.Node
    slot: int
    axis: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """A node that looks rows up by token ids.

    Attributes:
        node: The node.
        ids: The input with the ids.
        parts: The table, and what belongs to its rows.
        rows: How many there are.
    """

    node: ir.Node
    ids: int
    parts: tuple[Place, ...]
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A product with one result per token, and all that is computed from it until the outputs.

    Attributes:
        node: The product.
        parts: Its weight, and the constants behind it that have a value per token.
        shapes: Targets of Reshape that name the number of tokens last.
        outputs: The model's outputs that have a value per token in their last axis.
        rows: How many tokens there are.
    """

    node: ir.Node
    parts: tuple[Place, ...]
    shapes: tuple[Place, ...]
    outputs: tuple[str, ...]
    rows: int


@dataclass(slots=True, kw_only=True)
class Uses:
    """How a graph uses token ids.

    Attributes:
        lookups: Nodes that look rows up.
        heads: Products over the vocabulary.
        compared: Constants that ids are compared with.
        zero: A node that asks whether ids are 0.
        others: Nodes that compute with ids in another way, with the input that takes them.
    """

    lookups: list[Lookup] = field(default_factory=list)
    heads: list[Head] = field(default_factory=list)
    compared: list[Place] = field(default_factory=list)
    zero: bool = False
    others: list[ir.Node] = field(default_factory=list)

    @property
    def ids(self) -> set[int]:
        """The ids that the graph names."""
        found = {0} if self.zero else set()
        for part in self.compared:
            tensor = constant(part.node.inputs[part.slot])
            assert tensor is not None  # noqa: S101 - constants are compared
            found |= {int(i) for i in tensor.numpy().reshape(-1)}
        return {i for i in found if 0 <= i < self.lookups[0].rows}


def find_uses(model: ir.Model, inputs: Sequence[str]) -> Uses:
    """Return how a model uses its token ids; shapes must be inferred.

    Args:
        model: The model.
        inputs: Those that take token ids.

    Raises:
        NothingToQuantizeError: No node looks rows up by token ids.
        ModelError: Tables have different numbers of rows.
    """
    uses = Uses()
    queue = [value for value in model.graph.inputs if value.name in inputs]
    for value in queue:
        for use in value.uses():
            queue += _follow(use.node, use.idx, uses)
    sizes = {lookup.rows for lookup in uses.lookups}
    if not sizes:
        raise NothingToQuantizeError(
            f"Nothing to trim: no table is looked up by {', '.join(inputs) or 'token ids'}"
        )
    if len(sizes) > 1:
        named = ", ".join(f"'{one.node.name}' {one.rows}" for one in uses.lookups)
        raise ModelError(f"Tables of token ids have different numbers of rows ({named}).")
    heads = (_head(node, *sizes) for node in model.graph.all_nodes())
    uses.heads += (head for head in heads if head is not None)
    return uses


def _follow(node: ir.Node, slot: int, uses: Uses) -> Iterator[ir.Value]:
    """Note how a node uses token ids; yield its results that are token ids themselves."""
    lookup = _lookup(node, slot)
    others = [i for i in range(len(node.inputs)) if i != slot]
    if lookup is not None:
        uses.lookups.append(lookup)
    elif node.op_type in EXTENTS:
        return
    elif node.op_type in EQUALITY and constant(node.inputs[others[0]]) is not None:
        uses.compared.append(Place(node, others[0], 0))
    elif node.op_type in COPIES and node.attributes.get_int("to", 0) == ir.DataType.BOOL:
        uses.zero = True
    elif slot == 0 and node.op_type in (MOVES | COPIES) - FILL_SLOTS.keys():
        yield from node.outputs
    else:
        uses.others.append(node)


def _lookup(node: ir.Node, slot: int) -> Lookup | None:
    """Return what a node looks up by an input; None if that is no lookup, or not one in a constant table."""
    ids, table = LOOKUPS.get(node.op_type, (-1, -1))
    if slot != ids:
        return None
    axis = node.attributes.get_int("gather_axis", node.attributes.get_int("axis", 0))
    shape = dims(node.inputs[table])
    if not is_constant(node.inputs[table]) or shape is None or (rows := shape[axis]) is None:
        return None
    beside = _beside(node, table) if node.op_type in INTEGER_OPS else []
    parts = tuple(_parts(node, [table, *beside], axis, rows))
    return Lookup(node=node, ids=ids, parts=parts, rows=rows) if rows >= _FEWEST else None


def _parts(node: ir.Node, slots: Sequence[int], axis: int, rows: int) -> Iterator[Place]:
    """Yield the inputs that have an axis of tokens: this one, or the only one."""
    for slot in slots:
        shape = (dims(node.inputs[slot]) if slot < len(node.inputs) else None) or (1,)
        at = axis % len(shape) if len(shape) > 1 else 0
        if shape[at] and (shape[at] or 0) % rows == 0:
            yield Place(node, slot, at)


def is_constant(value: ir.Value | None) -> bool:
    """Say whether a value is computed from constants alone."""
    stack, seen = [value], set()
    while stack:
        one = stack.pop()
        if one is None or one in seen or constant(one) is not None:
            continue
        seen.add(one)
        maker = one.producer()
        if maker is None:
            return False
        stack += maker.inputs
    return value is not None


def _head(node: ir.Node, rows: int) -> Head | None:
    """Return the head that a product is; None if it is none."""
    place = _weight(node)
    shape = None if place is None else dims(node.inputs[place.slot])
    if place is None or shape is None or shape[place.axis] != rows:
        return None
    found = _Behind(rows)
    if not is_constant(node.inputs[place.slot]) or not found.follow(node.outputs[0]):
        return None
    axis = place.axis if node.op_type in BLOCKWISE else -1
    beside = _parts(node, _beside(node, place.slot), axis, rows)
    return Head(
        node=node,
        parts=(place, *beside, *found.parts),
        shapes=tuple(found.shapes),
        outputs=tuple(found.outputs),
        rows=rows,
    )


def _beside(node: ir.Node, slot: int) -> list[int]:
    """Return the inputs of a product that may have a value per result: scales, zero points and bias of its weight."""
    row = INTEGER_OPS.get(node.op_type)
    if row is None:
        return [_BIAS] if node.op_type in BIASED else []
    operand = next(o for o in row.weights if o.values == slot)
    return [s for s in (operand.scale, operand.zero_point, row.bias) if s is not None]


def _weight(node: ir.Node) -> Place | None:
    """Return where a product has its weight, and which of its axes the results are in; None if it is no product."""
    row, fact = INTEGER_OPS.get(node.op_type), fact_of(node.domain, node.op_type)
    swapped = bool(node.attributes.get_int("transB", 0))
    if row is not None and row.role is Role.MULTIPLIES:
        slot, axis = row.weights[0].values, row.weights[0].axis
        axis = 0 if node.op_type in BLOCKWISE else axis
    elif fact is not None and node.op_type in FLOAT_PRODUCTS:
        slot, axis = 1, fact.channel_axis
    else:
        return None
    rank = len((dims(node.inputs[slot]) if slot < len(node.inputs) else None) or ())
    if axis is None or rank < _MATRIX or (rank > _MATRIX and node.op_type not in BLOCKWISE):
        return None
    return Place(node, slot, (axis - swapped) % rank)


@dataclass(slots=True)
class _Behind:
    """What is computed from values of tokens until the outputs.

    Attributes:
        rows: How many tokens there are.
        parts: Constants with a value per token.
        shapes: Targets of Reshape that end with the number of tokens.
        outputs: Of the model.
    """

    rows: int
    parts: list[Place] = field(default_factory=list)
    shapes: list[Place] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)

    def follow(self, value: ir.Value) -> bool:
        """Follow values of tokens; False if a node combines several tokens, or none leads to an output."""
        queue = [value]
        for one in queue:
            self.outputs += [one.name or ""] if one.is_graph_output() else []
            for use in one.uses():
                if not self._passes(use.node, use.idx):
                    return False
                queue += use.node.outputs
        return bool(self.outputs)

    def _passes(self, node: ir.Node, slot: int) -> bool:
        """Note what a node needs to keep the last axis of an input; False if it does not keep it."""
        if node.op_type in ALIGNS | CONVERSIONS:
            others = [i for i in range(len(node.inputs)) if i != slot]
            self.parts += (
                Place(node, i, -1) for i in others if has_tokens(node.inputs[i], self.rows)
            )
            return True
        if slot != 0 or node.op_type in FUNCTIONS:
            return slot == 0
        if node.op_type == "Reshape":
            target = integers(node, 1, "shape") or ()
            self.shapes += [Place(node, 1, 0)] if target[-1:] == (self.rows,) else []
            return target[-1:] in {(self.rows,), (-1,), (0,)}
        return _moves_others(node)


def _moves_others(node: ir.Node) -> bool:
    """Say whether a node takes values apart along other axes than the last."""
    rank = len(dims(node.inputs[0]) or ())
    axes = integers(node, 3, "axes") if node.op_type == "Slice" else None
    axes = (node.attributes.get_int("axis", 0),) if node.op_type == "Gather" else axes
    return bool(rank and axes) and all(a % rank != rank - 1 for a in axes or ())


def has_tokens(value: ir.Value | None, rows: int) -> bool:
    """Say whether the last axis of a value, or of what it is computed from element by element, is that of tokens."""
    shape = dims(value)
    if shape is not None and None not in shape[-1:]:
        return shape[-1:] == (rows,)
    maker = None if value is None else value.producer()
    return maker is not None and any(has_tokens(v, rows) for v in maker.inputs)
