"""The plan of dynamic quantization: no calibration data, weights in int8.

For each node that holds weights, in this order:

1. excluded by the user, weight computed at run time, not finite, or too small to save a byte
   -> FLOAT;
2. an int8 kernel that onnxruntime fuses and that is faster than float -> INTEGER;
3. else -> STORED: the file shrinks as much, onnxruntime turns the weight back into float once,
   at load, and the node runs exactly as fast as before.

A weight that some node needs in float stays float for all: two copies would make the file grow.

That is coverage "gain". With "all", size and speed do not matter: every node that has a kernel is INTEGER, and whoever
else reads its weight reads it scaled back from the integers; only an excluded node keeps a weight float. Conv, which takes
several times as long then, is INTEGER where it is named, or where nothing else can be.

`obstacle` knows when those kernels can compute a node, and when that is faster than float.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

from quantkit.model.ops import Kernel
from quantkit.model.ops.float_ops import NAMED
from quantkit.model.ops.view import Node, View, Weight, WeightUse
from quantkit.numerics.dtypes import INT8, UINT8
from quantkit.quantize.plan.model import Kept, Mode, NodePlan, Plan, WeightPlan
from quantkit.quantize.plan.selection import Selection, check_op_types
from quantkit.reasons import Reason, Why, because
from quantkit.settings import DynamicSettings
from quantkit.spec import Granularity, PerAxis, PerTensor, QuantSpec

# From about here DynamicQuantizeMatMul beats float MatMul on AVX2 (benchmarks/crossover.py). Below, with few
# rows, quantizing the activation costs more than the product saves; with many rows some would still gain.
_MIN_ELEMENTS = 128 * 128
_MIN_EXTENT = 128
# Rows looked up as integers cost three nodes each time and save memory; below 4 MB of float that is not
# worth it.
MIN_TABLE = 1 << 20

_ATTENTION_WEIGHT_BIAS, _ATTENTION_BIAS = 2, 5  # input slots
_EMBED_CONSTANTS, _EMBED_POSITIONS, _EMBED_OUTPUTS = (2, 3, 4, 5, 6), 8, 2

Weights = Mapping[int, Weight]


def obstacle(node: Node, view: View, *, named: bool, every: bool = False) -> Reason | None:
    """Return why the kernel of its operator cannot or should not run this node; None if it should.

    Args:
        node: That may run in integers.
        view: The graph.
        named: The user asked for this very node, so its size does not matter.
        every: Nor does speed matter: coverage is "all".
    """
    weights = view.weights_of(node)
    match node.kernel:
        case Kernel.CONV:
            return None
        case Kernel.MATMUL:
            return _matmul(weights, every=every) or (
                None if named or every else _too_small(weights)
            )
        case _ if any(map(node.transposes, weights)):
            return because(Why.WEIGHT_TRANSPOSED)
        case Kernel.LOOKUP:
            return _lookup(node, weights, every=every) or (
                None if named or every else _small_table(weights)
            )
        case _:
            return _fused(node, view)


def _fused(node: Node, view: View) -> Reason | None:
    """Return why an operator that another of com.microsoft takes the place of cannot run in it."""
    if node.kernel is Kernel.LSTM:
        return _lstm(node, view.weights_of(node))
    return _attention(node) if node.kernel is Kernel.ATTENTION else _embed(node, view)


def _matmul(weights: Weights, *, every: bool) -> Reason | None:
    if 1 not in weights or 0 in weights:
        return because(Why.LEFT_OPERAND)
    if len(weights[1].shape) != 2 and not every:
        return because(Why.WEIGHT_RANK, axes=len(weights[1].shape))
    return None


def _too_small(weights: Weights) -> Reason | None:
    rows, columns = weights[1].shape
    if rows * columns < _MIN_ELEMENTS or min(rows, columns) < _MIN_EXTENT:
        return because(Why.SMALL_LAYER, rows=rows, columns=columns)
    return None


def _lookup(node: Node, weights: Weights, *, every: bool) -> Reason | None:
    rows = node.attributes.get("axis", 0) == 0 and len(weights[0].shape) == 2
    # A table of another kind has scales that suit this look-up alone.
    if not rows and not (every and len(weights[0].uses) == 1):
        return because(Why.ROWS_AS_INTEGERS)
    return None


def _small_table(weights: Weights) -> Reason | None:
    return because(Why.SMALL_TABLE) if weights[0].size < MIN_TABLE else None


def _lstm(node: Node, weights: Weights) -> Reason | None:
    if set(weights) != {1, 2}:
        return because(Why.LSTM_WEIGHT_COMPUTED)
    return because(Why.LSTM_LAYOUT) if node.attributes.get("layout") else None


def _attention(node: Node) -> Reason | None:
    missing = [
        name for name in ("do_rotary", "past_present_share_buffer") if node.attributes.get(name)
    ]
    if missing:
        return because(Why.ATTENTION_ATTRIBUTE, attribute=missing[0])
    sizes = node.attributes.get("qkv_hidden_sizes", ())
    if isinstance(sizes, tuple) and len(set(sizes)) > 1:
        return because(Why.ATTENTION_SIZES)
    if any(node.inputs[_ATTENTION_BIAS:]):
        return because(Why.ATTENTION_INPUTS)
    if len(node.inputs) <= _ATTENTION_WEIGHT_BIAS or not node.inputs[_ATTENTION_WEIGHT_BIAS]:
        return because(Why.ATTENTION_WITHOUT_BIAS)
    return None


def _embed(node: Node, view: View) -> Reason | None:
    used = {node.inputs[slot] for slot in _EMBED_CONSTANTS if slot < len(node.inputs)} - {""}
    if not used <= view.initializers:
        return because(Why.EMBED_COMPUTED)
    if any(node.inputs[_EMBED_POSITIONS:]) or view.used_outputs(node) > _EMBED_OUTPUTS:
        return because(Why.EMBED_FORM)
    return None


# Bytes that the nodes and names of one stored weight add to a file (measured: 330 to 420).
_STORED_OVERHEAD = 420
_RESTORED_OPSET = 13  # DequantizeLinear along an axis
_INTEGER_OPSET = 11  # DynamicQuantizeLinear
_STORED_OPSET = 7  # broadcasting Mul and Sub
_QUANTIZES = frozenset({Kernel.MATMUL, Kernel.CONV, Kernel.ATTENTION})  # its input, as it comes
_MULTIPLIED = _QUANTIZES | {Kernel.LSTM, Kernel.STATIC}


def plan_dynamic(
    view: View,
    options: DynamicSettings | None = None,
    decided: Mapping[str, NodePlan] = MappingProxyType({}),
    kept: Mapping[str, Kept] = MappingProxyType({}),
) -> Plan:
    """Decide how each node runs and how each weight is quantized.

    Args:
        view: The graph.
        options: What the user chose; None: the defaults.
        decided: Nodes that run in calibrated integers, whatever dynamic quantization would do.
        kept: Nodes of which it was measured how they run best, whatever their size says.
    """
    options = options or DynamicSettings()
    chooser = _Chooser(view, options, decided, kept)
    nodes = {node.name: node for node in view.weighted}
    first = {name: chooser.first_choice(node) for name, node in nodes.items()}
    floats = frozenset(
        w.tensor for w in view.weights.values() if not chooser.is_quantized(w, first)
    )
    chosen = take_back(view, first, floats)
    quantized = [weight for name, weight in view.weights.items() if name not in floats]
    return Plan(
        nodes=tuple(chosen[name] for name in nodes),
        weights=tuple(weight_plan(weight, nodes, chosen, options) for weight in quantized),
        min_opset=_least_opset(nodes, chosen, quantized),
    )


def _least_opset(
    nodes: Mapping[str, Node], chosen: Mapping[str, NodePlan], quantized: list[Weight]
) -> int:
    """Return the lowest opset of what is written."""
    if not all(use.known for weight in quantized for use in weight.uses):
        return _RESTORED_OPSET
    integer = (name for name, plan in chosen.items() if plan.mode is Mode.INTEGER)
    return _INTEGER_OPSET if any(nodes[n].kernel in _QUANTIZES for n in integer) else _STORED_OPSET


class _Chooser(Selection):
    """Decides one node at a time, knowing what the user asked for."""

    def __init__(
        self,
        view: View,
        options: DynamicSettings,
        decided: Mapping[str, NodePlan],
        kept: Mapping[str, Kept],
    ) -> None:
        self.view = view
        self.options = options
        self.decided = decided
        self.kept = {name: one for name, one in kept.items() if one.mode is not None}
        self.shared = {w for n in view.weighted if n.name in decided for w in n.weights.values()}
        super().__init__(
            view.names,
            op_types=check_op_types(options.op_types or None, NAMED if options.covers_all else ()),
            include=options.include,
            exclude=options.exclude,
        )

    def first_choice(self, node: Node) -> NodePlan:
        """Return the mode this node would have if it shared no weight with others."""
        if node.name in self.decided:
            return self.decided[node.name]
        why = self._left_alone(node)
        if not why and self._multiplies_activations(node):
            return NodePlan.of(node, Mode.INTEGER, because(Why.BOTH_DYNAMIC))
        why = why or unusable_weights(node, self.view)
        if why:
            return NodePlan.of(node, Mode.FLOAT, why)
        why = self._why_not_integer(node)
        asked = self.options.covers_all or node.name in self.include
        if why or not asked:
            small = self._too_small(node)
            if small:
                return NodePlan.of(node, Mode.FLOAT, small)
        if why:
            return NodePlan.of(node, Mode.STORED, because(Why.STORED_8_BITS, because=why))
        kernel = node.kernel.value
        against = self._why_no_gain(node) if self.options.covers_all else None
        how = because(Why.RUNS_AS, kernel=kernel)
        if against is not None:
            how = because(Why.RUNS_AS_REQUESTED, kernel=kernel, against=against)
        return NodePlan.of(node, Mode.INTEGER, how)

    def is_quantized(self, weight: Weight, chosen: Mapping[str, NodePlan]) -> bool:
        """Say whether every reader of the weight can take it as integers, or has to."""
        if weight.exposed or not weight.finite or not weight.uses:
            return False
        plans = [chosen[use.node] if use.known else None for use in weight.uses]
        if all(plan is not None and plan.mode is not Mode.FLOAT for plan in plans):
            return True
        integer = any(plan is not None and plan.mode is Mode.INTEGER for plan in plans)
        excluded = any(use.node in self.exclude for use in weight.uses)
        return self.options.covers_all and integer and not excluded

    def _left_alone(self, node: Node) -> Reason | None:
        if node.in_subgraph and not self.options.subgraphs:
            return because(Why.IN_SUBGRAPH)
        return self.against(node.name, node.op_type)

    def _is_wanted(self, node: Node) -> bool:
        """Say whether a kernel that is slower than float is to be used: its node is named, or no other has one."""
        named = node.name in self.include or node.op_type in (self.op_types or ())
        return node.kernel is not Kernel.NONE and (named or not self._faster)

    @cached_property
    def _faster(self) -> bool:
        """Whether the graph has a node with a kernel that is not slower than float, if it is large enough."""
        return any(
            node.fact is not None
            and not node.fact.why
            and not (self._left_alone(node) or unusable_weights(node, self.view))
            and not obstacle(node, self.view, named=True, every=True)
            for node in self.view.weighted
        )

    def _why_no_gain(self, node: Node) -> Reason | None:
        """Return why a node would not run in integers if only what gains did; None if it would."""
        assert node.fact is not None  # noqa: S101 - it holds weights
        if node.fact.why is not None:
            return because(node.fact.why)
        return obstacle(node, self.view, named=False) or self._too_small(node)

    def _multiplies_activations(self, node: Node) -> bool:
        """Say whether it is a MatMul of two activations, which has a kernel too."""
        if not (self.options.activation_products and self.options.covers_all):
            return False
        others = (self.view.initializers, self.view.constants, self.view.not_float)
        computed = not any(name in known for name in node.inputs for known in others)
        return node.op_type == "MatMul" and self.options.integer and computed

    def _why_not_integer(self, node: Node) -> Reason | None:
        assert node.fact is not None  # noqa: S101 - it holds weights
        every = self.options.covers_all
        if node.fact.why is not None and not (every and self._is_wanted(node)):
            return because(node.fact.why)
        if not self.options.integer:
            return because(Why.INTEGERS_OFF)
        measured = self.kept.get(node.name)
        if measured is not None and measured.mode is not Mode.INTEGER:
            return measured.reason
        named = measured is not None or node.name in self.include
        return obstacle(node, self.view, named=named, every=every)

    def _too_small(self, node: Node) -> Reason | None:
        if self.shared.issuperset(node.weights.values()):
            return None
        weights = self.view.weights_of(node)
        if not any(self._saves_bytes(node, *slot) for slot in weights.items()):
            return because(Why.WEIGHT_TOO_SMALL)
        return None

    def _saves_bytes(self, node: Node, slot: int, weight: Weight) -> bool:
        channels = 1
        if self.options.per_channel:
            channels = weight.shape[node.channel_axis(slot, len(weight.shape))]
        return 3 * weight.size > 8 * channels + _STORED_OVERHEAD


def unusable_weights(node: Node, view: View) -> Reason | None:
    """Return why the weights of a node cannot be integers, whatever runs it; None if they can."""
    weights = view.weights_of(node)
    if not weights:
        return because(Why.NO_WEIGHT)
    finite = all(weight.finite for weight in weights.values())
    return None if finite else because(Why.WEIGHT_NOT_FINITE)


def take_back(
    view: View, chosen: Mapping[str, NodePlan], kept: frozenset[str]
) -> dict[str, NodePlan]:
    """Take back modes whose weights must stay float (`kept`) for another node's sake, or cannot stay float.

    One pass is enough: a node made FLOAT here has only weights that stay float anyway.
    """
    result = dict(chosen)
    for node in view.weighted:
        own, mode = set(node.weights.values()), chosen[node.name].mode
        if mode is Mode.FLOAT and own - kept:
            why = because(Why.SHARED_WITH_INTEGER_NODE, tensor=min(own - kept))
            result[node.name] = replace(chosen[node.name], mode=Mode.STORED, reason=why)
        elif mode is not Mode.FLOAT and own & kept:
            why = _why_kept(view.weights[min(own & kept)], chosen)
            mode = Mode.FLOAT if own <= kept else Mode.STORED
            result[node.name] = replace(chosen[node.name], mode=mode, reason=why)
    return result


def _why_kept(weight: Weight, chosen: Mapping[str, NodePlan]) -> Reason:
    if weight.exposed:
        return because(Why.WEIGHT_EXPOSED, tensor=weight.tensor)
    blocker = next(u for u in weight.uses if not u.known or chosen[u.node].mode is Mode.FLOAT)
    return because(Why.SHARED_WITH_FLOAT_NODE, tensor=weight.tensor, node=blocker.node)


@dataclass(frozen=True, slots=True)
class _Reader:
    """One node that reads a weight, with all that is known of it."""

    use: WeightUse
    node: Node
    mode: Mode

    def axis(self, rank: int) -> int:
        """Return the axis of output channels in the weight as it is stored."""
        return self.node.channel_axis(self.use.slot, rank)

    @property
    def kernel(self) -> Kernel:
        """Return the kernel that reads the integers; NONE if they are turned into float at load."""
        if self.mode is Mode.STATIC:
            return Kernel.STATIC
        return self.node.kernel if self.mode is Mode.INTEGER else Kernel.NONE


def weight_plan(
    weight: Weight,
    nodes: Mapping[str, Node],
    chosen: Mapping[str, NodePlan],
    options: DynamicSettings,
) -> WeightPlan:
    """Return how a weight is quantized.

    Args:
        weight: It, with the uses that count.
        nodes: Who reads it, by name.
        chosen: How these run.
        options: Type, granularity, and whether pairs must not saturate.
    """
    readers = [
        _Reader(use=use, node=nodes[use.node], mode=chosen[use.node].mode)
        for use in weight.uses
        if use.known
    ]
    kernels = {reader.kernel for reader in readers}
    # ConvInteger of int8 weights is new in onnxruntime, and not on every CPU. Of uint8 nothing saturates.
    dtype = UINT8 if Kernel.CONV in kernels else options.weight
    granularity = _granularity(weight, readers, options)
    symmetric = _is_symmetric(kernels, granularity, options, signed=dtype.signed)
    summed = _MULTIPLIED & kernels
    # What is summed in int16 must not saturate: with a zero point of its own an int8 weight has 7 bits.
    paired = dtype is INT8 and options.pair_safe
    spec = QuantSpec(
        dtype=dtype,
        granularity=granularity,
        symmetric=symmetric,
        # A bit is given away for products that saturate; what is looked up or turned into float at load has none.
        reduced=(options.reduce_range or (paired and not symmetric)) and bool(summed),
        pair_axes=_summed_axes(weight, readers) if paired and symmetric else (),
        sum_axis=readers[0].axis(len(weight.shape)) if kernels == {Kernel.NONE} else None,
    )
    return WeightPlan(
        tensor=weight.tensor, spec=spec, transposed=all(_wants_transposed(r) for r in readers)
    )


def _is_symmetric(
    kernels: set[Kernel], granularity: Granularity, options: DynamicSettings, *, signed: bool
) -> bool:
    # DynamicQuantizeLSTM, QLinearConv and ConvInteger take one zero point for all channels.
    single = {Kernel.LSTM, Kernel.STATIC} | (
        {Kernel.CONV} if isinstance(granularity, PerAxis) else set()
    )
    if single & kernels:
        return True
    return signed if options.symmetric_weights is None else options.symmetric_weights


def _wants_transposed(reader: _Reader) -> bool:
    """MatMulInteger has no transB; DynamicQuantizeLSTM wants (input, gates) for (gates, input)."""
    if reader.kernel is Kernel.LSTM:
        return True
    if reader.kernel is Kernel.STATIC:
        return reader.use.transposed
    flag = bool(reader.node.attributes.get("transB"))
    return reader.kernel is Kernel.MATMUL and flag != reader.use.transposed


def _granularity(weight: Weight, readers: list[_Reader], options: DynamicSettings) -> Granularity:
    rank = len(weight.shape)
    if not options.per_channel or any(_wants_one_scale(r, rank) for r in readers):
        return PerTensor()
    # Integer products need their own axis; a weight turned back to float, or looked up, can follow any.
    multiplied = [r for r in readers if r.kernel in _MULTIPLIED]
    stored = [r for r in readers if r.kernel is Kernel.NONE]
    axes = {r.axis(rank) for r in multiplied or stored or readers}
    return PerAxis(axes.pop()) if len(axes) == 1 else PerTensor()


def _wants_one_scale(reader: _Reader, rank: int) -> bool:
    """QEmbedLayerNormalization takes one scale a table, MatMulInteger one a stack of matrices; what is looked up along the axis of scales has no place for them."""
    if reader.kernel is Kernel.LOOKUP:
        axis = reader.node.attributes.get("axis", 0)
        return isinstance(axis, int) and axis % rank == reader.axis(rank)
    return reader.kernel is Kernel.EMBED or (reader.kernel is Kernel.MATMUL and rank != 2)


def _summed_axes(weight: Weight, readers: list[_Reader]) -> tuple[tuple[int, ...], ...]:
    """Return the axes that integer products sum over, the fastest last; one tuple for each way of reading."""
    rank = len(weight.shape)
    multiplied = [r for r in readers if r.kernel in _MULTIPLIED]
    return tuple(sorted({axes for r in multiplied if (axes := _summed(weight, r, rank))}))


def _summed(weight: Weight, reader: _Reader, rank: int) -> tuple[int, ...]:
    """Conv (M, C, kh, kw) sums over (kh, kw, C); a matrix over the one of its last two axes without channels."""
    if reader.node.op_type == "ConvTranspose":
        return ()  # no kernel adds its products in 16 bits
    if reader.node.op_type == "Conv":
        # A depthwise Conv, one channel in and one out a group, has a kernel of its own, which does not saturate.
        group = reader.node.attributes.get("group", 1)
        depthwise = weight.shape[1] == 1 and weight.shape[0] == group
        return () if depthwise and group != 1 else (*range(2, rank), 1)
    return (rank - 1,) if reader.axis(rank) == rank - 2 else (rank - 2,)
