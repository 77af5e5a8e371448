"""The plan of 16 bits: which tensors the file holds in float16 or bfloat16, and which nodes compute in float16 and why not.

In the file (always). A float32 initializer is stored in 16 bits if it gains by that and loses little:

1. an input or output of its graph, NaN or infinity, too large for onnxruntime to turn back at load -> float32;
2. a value beyond 65504, less than 60 dB left, a divisor of which a value would become 0 -> float32;
3. below 1 KB, or a vector -> float32. Rounding costs a layer about as much whatever the size of its weight, so that small ones gain
   little for it; biases and gains of channels are a hundredth or two of a file, and cost 3 to 5 dB, as nothing averages their
   errors out (`benchmarks/results/float16.md`).

In arithmetic (`compute`): as below. What float16 nodes alone read is float16, whatever its size.

A node of the main graph computes in float16 if ONNX has that for it, it holds no graph, and

1. every constant that it reads keeps its value;
2. nothing that it reads, makes or adds up inside was seen near 65504, and nothing is so small that digits are lost;
3. it is connected, through float16 values, with a product: Casts around anything else gain nothing.

Operators without float results read what is there, and a Cast to float makes what its readers want. What is computed of a
constant beyond 65504 counts as beyond it too, up to the next operator that bounds it, also where no sample showed that: a mask
of an attention is seen in batches with padding alone.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import sqrt

from quantkit.model.ops.float_ops import (
    AVERAGES,
    BOUNDED,
    BOUNDS,
    DIVISORS,
    FLOAT_PRODUCTS,
    SQUARES,
)
from quantkit.model.ops.view import FloatConstant, HalfSlots, HalfView, Node, View
from quantkit.numerics.half import LARGEST, LEAST_NORMAL, HalfLoss
from quantkit.quantize.groups import Groups
from quantkit.quantize.plan.model import HalfPlan, HalfType, Mode, NodePlan, Plan
from quantkit.quantize.plan.selection import resolve_names
from quantkit.reasons import Reason, Why, because
from quantkit.settings import Float16Settings
from quantkit.text import human

LEAST_OPSET = {"float16": 6, "bfloat16": 13}  # from which Cast knows the type

# Rounding to nearest leaves float16 about 73 dB and bfloat16 about 55 of a tensor whose values are of one order of
# magnitude; below, a good part of it is too small for the type.
_LEAST_DB = {"float16": 60.0, "bfloat16": 50.0}
# From here on onnxruntime computes a Cast of a constant in every run (its optimization.constant_folding_max_output_size_in_bytes).
_FOLDED = 1 << 30
_SMALL = 1 << 10  # bytes
_CAST = 64  # bytes that a Cast takes in the file, besides the names in it
_VECTORS = 0.05  # of all floats; where vectors take more they are stored like matrices

Ranges = Mapping[str, tuple[float, float]]
Uses = Mapping[str, list[tuple[Node, int]]]

_ROOM = 2.0  # other samples may hold values that are so many times as large as those that were seen


def plan_half(half: HalfView, settings: Float16Settings, ranges: Ranges | None = None) -> Plan:
    """Decide what has 16 bits.

    Args:
        half: The graph; with types of all values if anything is to be computed in float16.
        settings: What the user chose.
        ranges: The smallest and largest value of each float tensor that was seen; None: nobody looked.
    """
    excluded = resolve_names(settings.exclude, half.view.names)
    uses = uses_of(half.view)
    found = {
        constant.tensor: _why_kept(constant, uses, settings.dtype, excluded)
        for constant in half.constants.values()
    }
    kept = {tensor: why for tensor, why in found.items() if why is not None}
    nodes = computed(half, uses, kept, excluded, ranges) if settings.compute else {}
    decided = _Decided(half, uses, kept, _gaining(half), nodes)
    halves = (*decided.stored(settings.dtype), *_ports(half, settings, ranges))
    names = frozenset(one.tensor for one in halves)
    plans = (decided.node_plan(node, names) for node in half.view.nodes)
    return Plan(
        nodes=tuple(one for one in plans if one is not None),
        weights=(),
        min_opset=LEAST_OPSET[settings.dtype],
        halves=halves,
    )


def _why_kept(
    constant: FloatConstant, uses: Uses, dtype: str, excluded: frozenset[str]
) -> Reason | None:
    """Return why an initializer cannot have 16 bits; None if it can."""
    name, loss, readers = constant.tensor, constant.loss, uses.get(constant.tensor, [])
    if constant.exposed:
        return because(Why.HALF_EXPOSED, tensor=name)
    if loss is None:
        return because(Why.HALF_ABSENT, tensor=name)
    if not loss.finite:
        return because(Why.HALF_NOT_FINITE, tensor=name)
    if constant.nbytes >= _FOLDED:
        sizes = {"size": human(constant.nbytes), "limit": human(_FOLDED)}
        return because(Why.HALF_TOO_LARGE, tensor=name, **sizes)
    if any(node.name in excluded for node, _ in readers):
        return because(Why.EXCLUDED)
    return _why_lossy(name, loss, readers, dtype)


def _why_lossy(
    name: str, loss: HalfLoss, readers: list[tuple[Node, int]], dtype: str
) -> Reason | None:
    """Return what 16 bits do to values that no reader may lose; None for nothing."""
    if loss.overflows:
        bounds = bool(readers) and all(slot in BOUNDS.get(n.op_type, ()) for n, slot in readers)
        most = float(loss.largest)
        return (
            None if bounds else because(Why.HALF_OVERFLOWS, limit=LARGEST, tensor=name, most=most)
        )
    if loss.vanishes and any(DIVISORS.get(node.op_type) == slot for node, slot in readers):
        return because(Why.HALF_DIVISOR, tensor=name)
    if loss.sqnr_db < _LEAST_DB[dtype]:
        return because(Why.HALF_COARSE, dtype=dtype, tensor=name, db=float(loss.sqnr_db))
    return None


def _gaining(half: HalfView) -> frozenset[str]:
    """Return the initializers of which 16 bits save more than they cost."""
    constants = half.constants.values()
    spared = sum(c.nbytes for c in constants if c.is_vector) < _VECTORS * half.float_bytes
    return frozenset(
        c.tensor
        for c in constants
        if c.nbytes >= max(_SMALL, 2 * (_CAST + 3 * len(c.tensor))) and not (c.is_vector and spared)
    )


@dataclass(frozen=True, slots=True)
class _Decided:
    """What was found of a graph.

    Attributes:
        half: The graph.
        uses: Who reads what.
        kept: Constants that stay float32, and why.
        gaining: Constants that are worth a Cast.
        nodes: Why nodes with floats stay float32; None: they compute in float16.
    """

    half: HalfView
    uses: Uses
    kept: Mapping[str, Reason]
    gaining: frozenset[str]
    nodes: Mapping[str, Reason | None]

    def stored(self, dtype: HalfType) -> Iterator[HalfPlan]:
        """Yield the initializers that have 16 bits."""
        for constant in self.half.constants.values():
            name = constant.tensor
            readers = self.uses.get(name, ())
            halves = [reads_half(node, slot, self.half, self.nodes) for node, slot in readers]
            if name in self.kept or not readers:
                continue
            if all(halves):
                yield HalfPlan(tensor=name, dtype=dtype, reason=because(Why.HALF_READERS))
            elif constant.tensor in self.gaining:
                yield HalfPlan(tensor=name, dtype=dtype, reason=because(Why.HALF_AT_LOAD))

    def node_plan(self, node: Node, halves: frozenset[str]) -> NodePlan | None:
        """Return what is said of a node; None if it has no weights worth a word and could not compute in float16."""
        why = self.nodes.get(node.name)
        if is_half(node, self.nodes):
            return NodePlan.of(node, Mode.HALF, because(Why.HALF_FITS))
        held = [self.half.constants[name] for name in node.inputs if name in self.half.constants]
        held = [constant for constant in held if constant.tensor in self.gaining]
        if why is None and not held:
            return None
        stored = any(constant.tensor in halves for constant in held)
        kept = [self.kept[c.tensor] for c in held if c.tensor in self.kept]
        reason = why or next(iter(kept), because(Why.HALF_IN_FILE))
        return NodePlan.of(node, Mode.STORED if stored else Mode.FLOAT, reason)


def _ports(half: HalfView, settings: Float16Settings, ranges: Ranges | None) -> Iterator[HalfPlan]:
    """Yield the inputs and outputs that are asked for in float16 and fit."""
    view, floats = half.view, frozenset(half.floats)
    asked = [n for n in view.inputs if n not in view.outputs] if settings.half_inputs else []
    asked += [n for n in half.outputs if n in view.producer] if settings.half_outputs else []
    for name in asked:
        if name in floats and not beyond(name, ranges):
            yield HalfPlan(tensor=name, dtype=settings.dtype, reason=because(Why.REQUESTED))


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
