"""The plan of 16 bits: which tensors the file holds in float16 or bfloat16, and which nodes compute in float16 and why not.

In the file (always). A float32 initializer is stored in 16 bits if it gains by that and loses little:

1. an input or output of its graph, NaN or infinity, too large for onnxruntime to turn back at load -> float32;
2. a value beyond 65504, less than 60 dB left, a divisor of which a value would become 0 -> float32;
3. below 1 KB, or a vector -> float32. Rounding costs a layer about as much whatever the size of its weight, so that small ones gain
   little for it; biases and gains of channels are a hundredth or two of a file, and cost 3 to 5 dB, as nothing averages their
   errors out (`benchmarks/results/float16.md`).

In arithmetic (`compute`): see `quantkit.quantize.plan.half_nodes`. What float16 nodes alone read is float16, whatever its size.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from quantkit.model.ops.float_ops import BOUNDS, DIVISORS
from quantkit.model.ops.view import FloatConstant, HalfView, Node
from quantkit.numbers import human
from quantkit.numerics.half import LARGEST, HalfLoss
from quantkit.quantize.plan.half_nodes import (
    Ranges,
    Uses,
    beyond,
    computed,
    is_half,
    reads_half,
    uses_of,
)
from quantkit.quantize.plan.model import HalfPlan, HalfType, Mode, NodePlan, Plan
from quantkit.quantize.plan.selection import resolve_names
from quantkit.reasons import Reason, Why, because
from quantkit.settings import Float16Settings

LEAST_OPSET = {"float16": 6, "bfloat16": 13}  # from which Cast knows the type

# Rounding to nearest leaves float16 about 73 dB and bfloat16 about 55 of a tensor whose values are of one order of
# magnitude; below, a good part of it is too small for the type.
_LEAST_DB = {"float16": 60.0, "bfloat16": 50.0}
# From here on onnxruntime computes a Cast of a constant in every run (its optimization.constant_folding_max_output_size_in_bytes).
_FOLDED = 1 << 30
_SMALL = 1 << 10  # bytes
_CAST = 64  # bytes that a Cast takes in the file, besides the names in it
_VECTORS = 0.05  # of all floats; where vectors take more they are stored like matrices


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
