"""The plan of dynamic quantization: no calibration data, weights in int8.

For each node that holds weights, in this order:

1. excluded by the user, weight computed at run time, not finite, or too small to save a byte
   -> FLOAT;
2. an int8 kernel that onnxruntime fuses and that is faster than float -> INTEGER;
3. else -> STORED: the file shrinks as much, onnxruntime turns the weight back into float once,
   at load, and the node runs exactly as fast as before.

A weight that some node needs in float stays float for all: two copies would make the file grow.

`obstacle` knows when those kernels can compute a node, and when that is faster than float.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from quantkit.numerics.dtypes import INT8
from quantkit.ops import Kernel
from quantkit.ops.view import Node, View, Weight, WeightUse
from quantkit.plan.model import Mode, NodePlan, Plan, WeightPlan
from quantkit.plan.selection import Selection, check_op_types
from quantkit.settings import DynamicSettings
from quantkit.spec import Granularity, PerAxis, PerTensor, QuantSpec

__all__ = ["obstacle", "plan_dynamic"]

# From about here DynamicQuantizeMatMul beats float MatMul on AVX2 (benchmarks/crossover.py). Below, with few
# rows, quantizing the activation costs more than the product saves; with many rows some would still gain.
_MIN_ELEMENTS = 128 * 128
_MIN_EXTENT = 128
# Rows looked up as integers cost three nodes each time and save memory; below 4 MB of float that is not
# worth it.
_MIN_TABLE = 1 << 20

_ATTENTION_WEIGHT_BIAS, _ATTENTION_BIAS = 2, 5  # input slots
_EMBED_CONSTANTS, _EMBED_POSITIONS, _EMBED_OUTPUTS = (2, 3, 4, 5, 6), 8, 2

Weights = Mapping[int, Weight]


def obstacle(node: Node, view: View, *, named: bool) -> str:
    """Return why the kernel of its operator cannot or should not run this node; "" if it should.

    `named`: the user asked for this very node, so its size does not matter.

    Args:
        node: That may run in integers.
        view: The graph.
        named: The user asked for this very node, so its size does not matter.
    """
    weights = view.weights_of(node)
    match node.kernel:
        case Kernel.MATMUL:
            return _matmul(weights) or ("" if named else _too_small(weights))
        case _ if any(map(node.transposes, weights)):
            return "its weight is read through a Transpose"
        case Kernel.LOOKUP:
            return _lookup(node, weights) or ("" if named else _small_table(weights))
        case Kernel.LSTM:
            return _lstm(node, weights)
        case Kernel.ATTENTION:
            return _attention(node)
        case _:
            return _embed(node, view)


def _matmul(weights: Weights) -> str:
    if 1 not in weights or 0 in weights:
        return "the constant is the left operand"
    if len(weights[1].shape) != _MATRIX:
        return f"its weight has {len(weights[1].shape)} axes, not 2"
    return ""


def _too_small(weights: Weights) -> str:
    rows, columns = weights[1].shape
    if rows * columns < _MIN_ELEMENTS or min(rows, columns) < _MIN_EXTENT:
        return f"a {rows}x{columns} layer is faster in float"
    return ""


def _lookup(node: Node, weights: Weights) -> str:
    if node.attributes.get("axis", 0) != 0 or len(weights[0].shape) != _MATRIX:
        return "only rows of a matrix are looked up as integers"
    return ""


def _small_table(weights: Weights) -> str:
    if weights[0].size < _MIN_TABLE:
        return "its table is too small for an integer look-up to gain anything"
    return ""


def _lstm(node: Node, weights: Weights) -> str:
    if set(weights) != {1, 2}:
        return "one of its weights is computed at run time"
    if node.attributes.get("layout"):
        return "DynamicQuantizeLSTM knows no batch-first layout"
    return ""


def _attention(node: Node) -> str:
    missing = [
        name for name in ("do_rotary", "past_present_share_buffer") if node.attributes.get(name)
    ]
    if missing:
        return f"QAttention does not support {missing[0]}"
    sizes = node.attributes.get("qkv_hidden_sizes", ())
    if isinstance(sizes, tuple) and len(set(sizes)) > 1:
        return "QAttention needs query, key and value of one size"
    if any(node.inputs[_ATTENTION_BIAS:]):
        return "QAttention takes no attention bias and no past length"
    if len(node.inputs) <= _ATTENTION_WEIGHT_BIAS or not node.inputs[_ATTENTION_WEIGHT_BIAS]:
        return "QAttention needs a bias"
    return ""


def _embed(node: Node, view: View) -> str:
    used = {node.inputs[slot] for slot in _EMBED_CONSTANTS if slot < len(node.inputs)} - {""}
    if not used <= view.initializers:
        return "one of its tables, or gamma or beta, is computed at run time"
    if any(node.inputs[_EMBED_POSITIONS:]) or view.used_outputs(node) > _EMBED_OUTPUTS:
        return "QEmbedLayerNormalization has neither position ids nor the embedding sum"
    return ""


# Bytes that the nodes and names of one stored weight add to a file (measured: 330 to 420).
_STORED_OVERHEAD = 420
_INTEGER_OPSET = 11  # DynamicQuantizeLinear
_STORED_OPSET = 7  # broadcasting Mul and Sub
_MATRIX = 2
_MULTIPLIED = frozenset({Kernel.MATMUL, Kernel.ATTENTION, Kernel.LSTM, Kernel.STATIC})


def plan_dynamic(
    view: View,
    options: DynamicSettings | None = None,
    decided: Mapping[str, NodePlan] = MappingProxyType({}),
) -> Plan:
    """Decide how each node runs and how each weight is quantized.

    `decided`: nodes that run in calibrated integers, whatever dynamic quantization would do.

    Args:
        view: The graph.
        options: What the user chose; None: the defaults.
        decided: Nodes that run in calibrated integers, whatever dynamic quantization would do.
    """
    options = options or DynamicSettings()
    chooser = _Chooser(view, options, decided)
    nodes = {node.name: node for node in view.weighted}
    chosen = _spread(view, {name: chooser.first_choice(node) for name, node in nodes.items()})
    weights = tuple(
        _weight_plan(weight, nodes, chosen, options)
        for weight in view.weights.values()
        if _is_quantized(weight, chosen)
    )
    quantizes_inputs = any(
        chosen[name].mode is Mode.INTEGER and node.kernel in {Kernel.MATMUL, Kernel.ATTENTION}
        for name, node in nodes.items()
    )
    return Plan(
        nodes=tuple(chosen[name] for name in nodes),
        weights=weights,
        min_opset=_INTEGER_OPSET if quantizes_inputs else _STORED_OPSET,
    )


class _Chooser(Selection):
    """Decides one node at a time, knowing what the user asked for."""

    def __init__(
        self, view: View, options: DynamicSettings, decided: Mapping[str, NodePlan]
    ) -> None:
        self.view = view
        self.options = options
        self.decided = decided
        self.shared = {w for n in view.weighted if n.name in decided for w in n.weights.values()}
        super().__init__(
            view.names,
            op_types=check_op_types(options.op_types or None),
            include=options.include,
            exclude=options.exclude,
        )

    def first_choice(self, node: Node) -> NodePlan:
        """Return the mode this node would have if it shared no weight with others."""
        if node.name in self.decided:
            return self.decided[node.name]
        why = self.against(node.name, node.op_type) or self._why_weights_stay(node)
        if why:
            return _node_plan(node, Mode.FLOAT, why)
        assert node.fact is not None  # noqa: S101 - it holds weights
        why = node.fact.why or self._why_not_integer(node)
        if why:
            return _node_plan(node, Mode.STORED, f"{why}; computed in float, its weight in 8 bits")
        return _node_plan(node, Mode.INTEGER, f"runs as {node.kernel.value}")

    def _why_not_integer(self, node: Node) -> str:
        if not self.options.integer:
            return "integer arithmetic is switched off"
        return obstacle(node, self.view, named=node.name in self.include)

    def _why_weights_stay(self, node: Node) -> str:
        weights = self.view.weights_of(node)
        if not weights:
            return "has no constant float32 weight"
        if not all(w.finite for w in weights.values()):
            return "its weight holds NaN or infinity"
        if self.shared.issuperset(node.weights.values()):
            return ""
        if not any(self._saves_bytes(node, *slot) for slot in weights.items()):
            return "its weight is too small for 8 bits to save anything"
        return ""

    def _saves_bytes(self, node: Node, slot: int, weight: Weight) -> bool:
        channels = 1
        if self.options.per_channel:
            channels = weight.shape[node.channel_axis(slot, len(weight.shape))]
        return 3 * weight.size > 8 * channels + _STORED_OVERHEAD


def _node_plan(node: Node, mode: Mode, why: str) -> NodePlan:
    return NodePlan(node=node.name, op_type=node.op_type, mode=mode, why=why)


def _is_quantized(weight: Weight, chosen: Mapping[str, NodePlan]) -> bool:
    """Say whether every reader of the weight can take it as integers."""
    if weight.exposed or not weight.finite or not weight.uses:
        return False
    return all(use.known and chosen[use.node].mode is not Mode.FLOAT for use in weight.uses)


def _spread(view: View, chosen: dict[str, NodePlan]) -> dict[str, NodePlan]:
    """Take back modes whose weights must stay float for another node's sake.

    One pass is enough: a node made FLOAT here has only weights that stay float anyway.
    """
    result = dict(chosen)
    kept = {name for name, weight in view.weights.items() if not _is_quantized(weight, chosen)}
    for node in view.weighted:
        own = set(node.weights.values())
        if chosen[node.name].mode is Mode.FLOAT or not own & kept:
            continue
        why = _why_kept(view.weights[min(own & kept)], chosen)
        mode = Mode.FLOAT if own <= kept else Mode.STORED
        result[node.name] = replace(chosen[node.name], mode=mode, why=why)
    return result


def _why_kept(weight: Weight, chosen: Mapping[str, NodePlan]) -> str:
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


def _weight_plan(
    weight: Weight,
    nodes: Mapping[str, Node],
    chosen: Mapping[str, NodePlan],
    options: DynamicSettings,
) -> WeightPlan:
    readers = [
        _Reader(use=use, node=nodes[use.node], mode=chosen[use.node].mode) for use in weight.uses
    ]
    kernels = {reader.kernel for reader in readers}
    dtype = options.weight
    granularity = _granularity(weight, readers, options)
    spec = QuantSpec(
        dtype=dtype,
        granularity=granularity,
        # DynamicQuantizeLSTM and QLinearConv take one zero point for all channels.
        symmetric=dtype.signed or bool({Kernel.LSTM, Kernel.STATIC} & kernels),
        # A bit is given away for products that saturate; what is looked up or turned into float at load has none.
        reduced=options.reduce_range and bool(_MULTIPLIED & kernels),
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


def _granularity(weight: Weight, readers: list[_Reader], options: DynamicSettings) -> Granularity:
    rank = len(weight.shape)
    if not options.per_channel or any(r.kernel is Kernel.EMBED for r in readers):
        return PerTensor()  # QEmbedLayerNormalization takes one scale a table
    # Integer products need their own axis; a weight turned back to float, or looked up, can follow any.
    multiplied = [r for r in readers if r.kernel in _MULTIPLIED]
    stored = [r for r in readers if r.kernel is Kernel.NONE]
    axes = {r.axis(rank) for r in multiplied or stored or readers}
    return PerAxis(axes.pop()) if len(axes) == 1 else PerTensor()


def _summed_axes(weight: Weight, readers: list[_Reader]) -> tuple[tuple[int, ...], ...]:
    """Return the axes that integer products sum over, the fastest last; one tuple for each way of reading."""
    rank = len(weight.shape)
    multiplied = [r for r in readers if r.kernel in _MULTIPLIED]
    return tuple(sorted({axes for r in multiplied if (axes := _summed(weight, r, rank))}))


def _summed(weight: Weight, reader: _Reader, rank: int) -> tuple[int, ...]:
    """Conv (M, C, kh, kw) sums over (kh, kw, C); a matrix over the one of its last two axes without channels."""
    if reader.node.op_type == "Conv":
        # A depthwise Conv, one channel in and one out a group, has a kernel of its own, which does not saturate.
        group = reader.node.attributes.get("group", 1)
        depthwise = weight.shape[1] == 1 and weight.shape[0] == group
        return () if depthwise and group != 1 else (*range(2, rank), 1)
    return (rank - 1,) if reader.axis(rank) == rank - _MATRIX else (rank - _MATRIX,)
