"""The plan of dynamic quantization: no calibration data, weights in int8.

For each node that holds weights, in this order:

1. excluded by the user, weight computed at run time, not finite, or too small to save a byte
   -> FLOAT;
2. an int8 kernel that onnxruntime fuses and that is faster than float -> INTEGER;
3. else -> STORED: the file shrinks as much, onnxruntime turns the weight back into float once,
   at load, and the node runs exactly as fast as before.

A weight that some node needs in float stays float for all: two copies would make the file grow.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from quantkit.analyze.facts import ModelFacts, NodeFact, WeightFact, WeightUse
from quantkit.numerics.dtypes import INT8, UINT8, IntType
from quantkit.ops import FACTS, Kernel, OpFact, channel_axis
from quantkit.plan.kernels import obstacle
from quantkit.plan.model import Mode, NodePlan, Plan, WeightPlan
from quantkit.plan.selection import check_op_types, resolve_names
from quantkit.spec import Granularity, PerAxis, PerTensor, QuantSpec

__all__ = ["DynamicOptions", "plan_dynamic"]

# Bytes that the nodes and names of one stored weight add to a file (measured: 330 to 420).
_STORED_OVERHEAD = 420
_INTEGER_OPSET = 11  # DynamicQuantizeLinear
_STORED_OPSET = 7  # broadcasting Mul and Sub
_MATRIX = 2
_MULTIPLIED = frozenset({Kernel.MATMUL, Kernel.ATTENTION, Kernel.LSTM, Kernel.STATIC})


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicOptions:
    """What a user may choose; the defaults are what an expert would.

    Attributes:
        weight_type: Type of the stored weights.
        per_channel: One scale an output channel.
        reduce_range: Use 7 bits. Not needed: int8 weights are already safe from saturation.
        op_types: Only these operators; None for all.
        include: Only these nodes (names or patterns), and in integer arithmetic where a kernel exists,
            whatever their size.
        exclude: Never these nodes (names or patterns).
        integer: Allow integer arithmetic; without it weights are only stored as integers.
        pair_safe: Keep int8 weights from saturating x86 without VNNI.
    """

    weight_type: IntType = UINT8
    per_channel: bool = True
    reduce_range: bool = False
    op_types: tuple[str, ...] | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    integer: bool = True
    pair_safe: bool = True


def plan_dynamic(
    facts: ModelFacts,
    options: DynamicOptions | None = None,
    decided: Mapping[str, NodePlan] = MappingProxyType({}),
) -> Plan:
    """Decide how each node runs and how each weight is quantized.

    `decided`: nodes that run in calibrated integers, whatever dynamic quantization would do.
    """
    options = options or DynamicOptions()
    chooser = _Chooser(facts, options, decided)
    chosen = {node.name: chooser.first_choice(node) for node in facts.nodes}
    chosen = _spread(facts, chosen)
    nodes = {node.name: node for node in facts.nodes}
    weights = tuple(
        _weight_plan(fact, nodes, chosen, options)
        for fact in facts.weights.values()
        if _is_quantized(fact, chosen)
    )
    quantizes_inputs = any(
        chosen[node.name].mode is Mode.INTEGER
        and FACTS[node.domain, node.op_type].kernel in {Kernel.MATMUL, Kernel.ATTENTION}
        for node in facts.nodes
    )
    return Plan(
        nodes=tuple(chosen[node.name] for node in facts.nodes),
        weights=weights,
        min_opset=_INTEGER_OPSET if quantizes_inputs else _STORED_OPSET,
    )


class _Chooser:
    """Decides one node at a time, knowing what the user asked for."""

    def __init__(
        self, facts: ModelFacts, options: DynamicOptions, decided: Mapping[str, NodePlan]
    ) -> None:
        self.facts = facts
        self.options = options
        self.decided = decided
        self.shared = {w for n in facts.nodes if n.name in decided for w in n.weights.values()}
        self.op_types = check_op_types(options.op_types)
        self.include = resolve_names(options.include, facts.names)
        self.exclude = resolve_names(options.exclude, facts.names)

    def first_choice(self, node: NodeFact) -> NodePlan:
        """Return the mode this node would have if it shared no weight with others."""
        if node.name in self.decided:
            return self.decided[node.name]
        why = self._why_float(node)
        if why:
            return _node_plan(node, Mode.FLOAT, why)
        fact = FACTS[node.domain, node.op_type]
        why = fact.why or self._why_not_integer(node, fact)
        if why:
            return _node_plan(node, Mode.STORED, f"{why}; computed in float, its weight in 8 bits")
        return _node_plan(node, Mode.INTEGER, f"runs as {fact.kernel.value}")

    def _why_not_integer(self, node: NodeFact, fact: OpFact) -> str:
        if not self.options.integer:
            return "integer arithmetic is switched off"
        weights = {slot: self.facts.weights[name] for slot, name in node.weights.items()}
        return obstacle(node, fact, weights, named=node.name in self.include)

    def _why_float(self, node: NodeFact) -> str:
        if node.name in self.exclude:
            return "excluded"
        if self.include and node.name not in self.include:
            return "not among the chosen nodes (--include, --exclude)"
        if self.op_types is not None and node.op_type not in self.op_types:
            return f"operator type {node.op_type} not asked for"
        return self._why_weights_stay(node)

    def _why_weights_stay(self, node: NodeFact) -> str:
        weights = [self.facts.weights[name] for name in node.weights.values()]
        if not weights:
            return "has no constant float32 weight"
        if not all(w.finite for w in weights):
            return "its weight holds NaN or infinity"
        if self.shared.issuperset(node.weights.values()):
            return ""
        if not any(self._saves_bytes(node, slot) for slot in node.weights):
            return "its weight is too small for 8 bits to save anything"
        return ""

    def _saves_bytes(self, node: NodeFact, slot: int) -> bool:
        weight = self.facts.weights[node.weights[slot]]
        channels = 1
        if self.options.per_channel:
            fact = FACTS[node.domain, node.op_type]
            axis = channel_axis(fact, slot, len(weight.shape), node.attributes)
            through_transpose = node.inputs[slot] != weight.tensor
            channels = weight.shape[1 - axis if through_transpose else axis]
        return 3 * weight.size > 8 * channels + _STORED_OVERHEAD


def _node_plan(node: NodeFact, mode: Mode, why: str) -> NodePlan:
    return NodePlan(node=node.name, op_type=node.op_type, mode=mode, why=why)


def _is_quantized(weight: WeightFact, chosen: Mapping[str, NodePlan]) -> bool:
    """Say whether every reader of the weight can take it as integers."""
    if weight.exposed or not weight.finite or not weight.uses:
        return False
    return all(use.known and chosen[use.node].mode is not Mode.FLOAT for use in weight.uses)


def _spread(facts: ModelFacts, chosen: dict[str, NodePlan]) -> dict[str, NodePlan]:
    """Take back modes whose weights must stay float for another node's sake.

    One pass is enough: a node made FLOAT here has only weights that stay float anyway.
    """
    result = dict(chosen)
    kept = {name for name, fact in facts.weights.items() if not _is_quantized(fact, chosen)}
    for node in facts.nodes:
        own = set(node.weights.values())
        if chosen[node.name].mode is Mode.FLOAT or not own & kept:
            continue
        why = _why_kept(facts.weights[min(own & kept)], chosen)
        mode = Mode.FLOAT if own <= kept else Mode.STORED
        result[node.name] = replace(chosen[node.name], mode=mode, why=why)
    return result


def _why_kept(weight: WeightFact, chosen: Mapping[str, NodePlan]) -> str:
    if weight.exposed:
        return (
            f"weight '{weight.tensor}' is an input or output of the graph; export the model with "
            "keep_initializers_as_inputs=False"
        )
    blocker = next(u for u in weight.uses if not u.known or chosen[u.node].mode is Mode.FLOAT)
    return f"weight '{weight.tensor}' is shared with node '{blocker.node}', which stays float"


@dataclass(frozen=True, slots=True)
class _Reader:
    """One node that reads a weight, with all that is known of it."""

    use: WeightUse
    node: NodeFact
    fact: OpFact
    mode: Mode

    def axis(self, rank: int) -> int:
        """Return the axis of output channels in the weight as it is stored."""
        axis = channel_axis(self.fact, self.use.slot, rank, self.node.attributes)
        return 1 - axis if self.use.transposed else axis

    @property
    def kernel(self) -> Kernel:
        """Return the kernel that reads the integers; NONE if they are turned into float at load."""
        if self.mode is Mode.STATIC:
            return Kernel.STATIC
        return self.fact.kernel if self.mode is Mode.INTEGER else Kernel.NONE


def _weight_plan(
    weight: WeightFact,
    nodes: Mapping[str, NodeFact],
    chosen: Mapping[str, NodePlan],
    options: DynamicOptions,
) -> WeightPlan:
    readers = [
        _Reader(
            use=use,
            node=nodes[use.node],
            fact=FACTS[nodes[use.node].domain, nodes[use.node].op_type],
            mode=chosen[use.node].mode,
        )
        for use in weight.uses
    ]
    kernels = {reader.kernel for reader in readers}
    dtype = options.weight_type
    granularity = _granularity(weight, readers, options)
    spec = QuantSpec(
        dtype=dtype,
        granularity=granularity,
        # DynamicQuantizeLSTM and QLinearConv take one zero point for all channels.
        symmetric=dtype.signed or bool({Kernel.LSTM, Kernel.STATIC} & kernels),
        reduced=options.reduce_range,
        pair_axes=_summed_axes(weight, readers) if dtype is INT8 and options.pair_safe else (),
        sum_axis=readers[0].axis(len(weight.shape)) if kernels == {Kernel.NONE} else None,
    )
    return WeightPlan(
        tensor=weight.tensor, spec=spec, transposed=all(_wants_transposed(r) for r in readers)
    )


def _wants_transposed(reader: _Reader) -> bool:
    """MatMulInteger has no transB; DynamicQuantizeLSTM wants (input, gates) for (gates, input)."""
    if reader.kernel is Kernel.LSTM:
        return True
    if reader.kernel is Kernel.STATIC:
        return reader.use.transposed
    flag = bool(reader.node.attributes.get("transB"))
    return reader.kernel is Kernel.MATMUL and flag != reader.use.transposed


def _granularity(
    weight: WeightFact, readers: list[_Reader], options: DynamicOptions
) -> Granularity:
    rank = len(weight.shape)
    if not options.per_channel or any(r.kernel is Kernel.EMBED for r in readers):
        return PerTensor()  # QEmbedLayerNormalization takes one scale a table
    # Integer products need their own axis; a weight turned back to float, or looked up, can follow any.
    multiplied = [r for r in readers if r.kernel in _MULTIPLIED]
    stored = [r for r in readers if r.kernel is Kernel.NONE]
    axes = {r.axis(rank) for r in multiplied or stored or readers}
    return PerAxis(axes.pop()) if len(axes) == 1 else PerTensor()


def _summed_axes(weight: WeightFact, readers: list[_Reader]) -> tuple[tuple[int, ...], ...]:
    """Return the axes that integer products sum over, the fastest last; one tuple for each way of reading."""
    rank = len(weight.shape)
    multiplied = [r for r in readers if r.kernel in _MULTIPLIED]
    return tuple(sorted({axes for r in multiplied if (axes := _summed(weight, r, rank))}))


def _summed(weight: WeightFact, reader: _Reader, rank: int) -> tuple[int, ...]:
    """Conv (M, C, kh, kw) sums over (kh, kw, C); a matrix over the one of its last two axes without channels."""
    if reader.node.op_type == "Conv":
        # A depthwise Conv, one channel in and one out a group, has a kernel of its own, which does not saturate.
        group = reader.node.attributes.get("group", 1)
        depthwise = weight.shape[1] == 1 and weight.shape[0] == group
        return () if depthwise and group != 1 else (*range(2, rank), 1)
    return (rank - 1,) if reader.axis(rank) == rank - _MATRIX else (rank - _MATRIX,)
