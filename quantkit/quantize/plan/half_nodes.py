"""Which nodes compute in float16.

A node of the main graph does if ONNX has that for it, it holds no graph, and

1. every constant that it reads keeps its value (`quantkit.quantize.plan.half`);
2. nothing that it reads, makes or adds up inside was seen near 65504, and nothing is so small that digits are lost;
3. it is connected, through float16 values, with a product: Casts around anything else gain nothing.

Operators without float results read what is there, and a Cast to float makes what its readers want. What is computed of a
constant beyond 65504 counts as beyond it too, up to the next operator that bounds it, also where no sample showed that: a mask
of an attention is seen in batches with padding alone.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import sqrt

from quantkit.model.ops.float_ops import AVERAGES, BOUNDED, DIVISORS, FLOAT_PRODUCTS, SQUARES
from quantkit.model.ops.view import HalfSlots, HalfView, Node, View
from quantkit.numerics.half import LARGEST, LEAST_NORMAL
from quantkit.quantize.groups import Groups
from quantkit.reasons import Reason, Why, because

Ranges = Mapping[str, tuple[float, float]]
Uses = Mapping[str, list[tuple[Node, int]]]

_ROOM = 2.0  # other samples may hold values that are so many times as large as those that were seen


def uses_of(view: View) -> Uses:
    """Return who reads each tensor, and in which slot."""
    found: dict[str, list[tuple[Node, int]]] = {}
    for node in view.nodes:
        for slot, name in enumerate(node.inputs):
            found.setdefault(name, []).append((node, slot))
    return found


def is_half(node: Node, found: Mapping[str, Reason | None]) -> bool:
    """Say whether a node computes in float16, by what `computed` returned."""
    return node.name in found and found[node.name] is None


def reads_half(node: Node, slot: int, half: HalfView, found: Mapping[str, Reason | None]) -> bool:
    """Say whether a node reads float16 in a slot.

    Args:
        node: The reader.
        slot: Which of its inputs.
        half: The graph.
        found: What `computed` returned.
    """
    return is_half(node, found) and slot in half.slots[node.name].inputs


def beyond(name: str, ranges: Ranges | None) -> Reason | None:
    """Return why a tensor's values do not fit into float16; None if they do, or nobody looked."""
    if ranges is None:
        return None
    if name not in ranges:
        return because(Why.HALF_VALUES_UNKNOWN, tensor=name)
    most = float(max(map(abs, ranges[name])))
    if most * _ROOM > LARGEST:
        return because(Why.HALF_VALUES_LARGE, limit=LARGEST, tensor=name, most=most)
    if 0 < most < LEAST_NORMAL:
        return because(Why.HALF_VALUES_SMALL, tensor=name, most=most)
    return None


def computed(
    half: HalfView,
    uses: Uses,
    kept: Mapping[str, Reason],
    excluded: frozenset[str],
    ranges: Ranges | None,
) -> dict[str, Reason | None]:
    """Return why each node with floats stays float32; None if it computes in float16.

    Args:
        half: The graph, with types.
        uses: Who reads what.
        kept: Constants that stay float32, and why.
        excluded: Nodes that the user leaves out.
        ranges: What was seen of each float tensor; None: nobody looked.
    """
    # In order, so that who makes a value is decided before who reads it; then backwards, for Casts that make floats of
    # integers; at last groups without a product are taken back.
    found = _forward(_Obstacles(half, kept, excluded, ranges))
    for node in reversed(half.view.nodes):
        if is_half(node, found) and not half.slots[node.name].inputs:
            found[node.name] = _why_made(node, half, uses, found)
    return _with_products(half, uses, found)


def _forward(against: "_Obstacles") -> dict[str, Reason | None]:
    half, found = against.half, dict[str, Reason | None]()
    floats = {*half.floats, *half.constants}
    huge: set[str] = set()
    for node in half.view.nodes:
        if floats.isdisjoint(node.inputs) and floats.isdisjoint(node.outputs):
            continue
        why = against.node(node)
        large = {name for name in node.inputs if name in huge or against.overflows(name)}
        if not why and large:
            why = because(Why.HALF_BY_CONSTANT, limit=LARGEST, tensor=min(large))
        if why and large and node.op_type not in BOUNDED:
            huge.update(filter(None, node.outputs))
        found[node.name] = why or _why_read(node, half, found)
    return found


def _why_read(node: Node, half: HalfView, found: Mapping[str, Reason | None]) -> Reason | None:
    """Return why a node without float results reads float32: what it reads is that."""
    slots = half.slots[node.name]
    makers = (half.view.maker(node.inputs[slot]) for slot in slots.inputs)
    if not slots.outputs and any(m is None or not is_half(m, found) for m in makers):
        return because(Why.HALF_READS_FLOAT)
    return None


def _why_made(
    node: Node, half: HalfView, uses: Uses, found: Mapping[str, Reason | None]
) -> Reason | None:
    """Return why a node that reads no floats makes float32: somebody who reads it wants that."""
    names = [node.outputs[slot] for slot in half.slots[node.name].outputs]
    readers = [use for name in names for use in uses.get(name, ())]
    halves = all(reads_half(reader, slot, half, found) for reader, slot in readers)
    wanted = bool(readers) and halves and half.view.outputs.isdisjoint(names)
    return None if wanted else because(Why.HALF_FLOAT_WANTED)


def _with_products(
    half: HalfView, uses: Uses, found: dict[str, Reason | None]
) -> dict[str, Reason | None]:
    """Take back nodes that are connected with no product, through values in float16."""
    groups = Groups()
    halves = [node for node in half.view.nodes if is_half(node, found)]
    for node in halves:
        for slot in half.slots[node.name].outputs:
            for reader, i in uses.get(node.outputs[slot], ()):
                if reads_half(reader, i, half, found):
                    groups.join(node.name, reader.name)
    multiply = {groups.root(n.name) for n in halves if n.op_type in FLOAT_PRODUCTS}
    alone = (n.name for n in halves if groups.root(n.name) not in multiply)
    return found | dict.fromkeys(alone, because(Why.HALF_NO_PRODUCT))


@dataclass(frozen=True, slots=True)
class _Obstacles:
    """What in a node, its constants or its ranges is against float16."""

    half: HalfView
    kept: Mapping[str, Reason]
    excluded: frozenset[str]
    ranges: Ranges | None

    def node(self, node: Node) -> Reason | None:
        """Return what is against float16; None if nothing is."""
        slots = self.half.slots.get(node.name)
        if slots is None or node.name in self.excluded:
            return self._unable(node)
        if _moves_batch(node):
            return because(Why.HALF_CRASHES)
        read = [node.inputs[slot] for slot in sorted(slots.inputs)]
        made = [node.outputs[slot] for slot in sorted(slots.outputs)]
        found = (*self._of_values(read, made), self._inside(node, slots))
        return next(filter(None, found), None)

    def overflows(self, name: str) -> bool:
        """Say whether it is a constant with values beyond float16, and not a bound."""
        constant = self.half.constants.get(name) if name in self.kept else None
        return constant is not None and constant.loss is not None and constant.loss.overflows

    def _unable(self, node: Node) -> Reason:
        if node.name in self.excluded:
            return because(Why.EXCLUDED)
        if node.inside:
            return because(Why.HALF_INSIDE, op_type=node.inside[0])
        if node.name in self.half.holders:
            return because(Why.HALF_HOLDS_GRAPH)
        if node.domain:
            return because(Why.HALF_DOMAIN, domain=node.domain)
        if node.name in self.half.untyped:
            return because(Why.HALF_UNTYPED)
        return because(Why.HALF_NO_INPUT)

    def _of_values(self, read: list[str], made: list[str]) -> Iterator[Reason | None]:
        constants = self.half.constants
        yield from (self.kept[name] for name in read if name in self.kept)
        yield from (beyond(n, self.ranges) for n in (*read, *made) if n not in constants)

    def _inside(self, node: Node, slots: HalfSlots) -> Reason | None:
        """Return what an operator computes on its way that does not fit."""
        if self.ranges is None:
            return None
        read = {slot: self.ranges.get(node.inputs[slot], (0.0, 0.0)) for slot in slots.inputs}
        largest = max((abs(end) for ends in read.values() for end in ends), default=0.0)
        if node.op_type in SQUARES and largest * _ROOM > sqrt(LARGEST):
            return because(Why.HALF_SQUARES, limit=LARGEST, most=float(largest))
        count = self.half.sums.get(node.name, 1)
        made = self.ranges.get(node.outputs[0], (0.0, 0.0)) if node.op_type in AVERAGES else (0.0,)
        total = max(map(abs, made)) * count
        if total * _ROOM > LARGEST:
            return because(Why.HALF_SUMS, limit=LARGEST, count=count, most=float(total))
        least = read.get(DIVISORS.get(node.op_type, -1), (0.0, 0.0))[0]
        if 0 < least < LEAST_NORMAL:
            return because(Why.HALF_VANISHES, least=float(least))
        return None


def _moves_batch(node: Node) -> bool:
    """Tell whether a node is a Transpose that moves the first of several batch axes.

    onnxruntime 1.31 fuses it with the MatMul behind it. If a float16 weight is multiplied, its inference of shapes then
    reads memory that is not there (SIGSEGV at load). A Cast between the two keeps them apart.
    """
    perm = node.attributes.get("perm", ())
    return (
        node.op_type == "Transpose" and isinstance(perm, tuple) and perm[2:] != () and perm[0] != 0
    )
