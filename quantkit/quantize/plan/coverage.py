"""The plan of coverage "all": every operator that is asked for is quantized, and every tensor between them.

Nothing is left out because it would not gain: what NPUs take, and what users of onnxruntime's tool list, is a graph in which
each operator stands between DequantizeLinear and QuantizeLinear. One walk from front to back:

1. An operator that computes has its float inputs and results quantized; constants too, weights of products by channel and
   biases in the scale of the sums (`quantkit.quantize.emit`).
2. What moves data shares the scale of what it moves, and is quantized where that is.
3. A Relu or Clip goes where the quantization of its result clips alike.

What is not asked for, is excluded, or cannot be quantized stays as it is, with the reason. Written as QLinear operators a
node is quantized only if there is one for it, or if it moves integers as they are; what it pads shares the scale, too.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from quantkit.errors import UnsupportedError, UsageError
from quantkit.model.ops.float_ops import (
    CLIPS,
    COMPARES,
    COVERED_SLOTS,
    MOVED_AS_INTEGERS,
    MOVED_IN_PAIRS,
    NORMALIZES,
    PRODUCTS,
    SELECTS,
    TABLES,
    UNCOVERED,
)
from quantkit.model.ops.integer_ops import STATIC_OPS
from quantkit.model.ops.view import Node, View, Weight, fills_in, has_vector_bias
from quantkit.numerics.dtypes import INT8
from quantkit.quantize.plan.dynamic import weight_plan
from quantkit.quantize.plan.islands import form_obstacle, weight_obstacle
from quantkit.quantize.plan.model import ActivationPlan, Kept, Mode, NodePlan, Plan, WeightPlan
from quantkit.quantize.plan.ranges import CoveredRanges, OpenCoveredRanges, Ranges, clips_alike
from quantkit.quantize.plan.selection import Selection, near
from quantkit.quantize.plan.sharing import Sharing, activation_plans
from quantkit.reasons import Reason, Why, because
from quantkit.settings import DynamicSettings, StaticSettings, TensorRule
from quantkit.spec import Granularity, PerAxis, PerBlock, PerTensor, QuantSpec

_PAIR_OPSET = 10  # QuantizeLinear
_WIDE_OPSET = 21  # QuantizeLinear to 16 bits
# What is not computed in integers for its own sake.
_LATENT = COMPARES | {"GlobalAveragePool"}


def plan_all(
    view: View,
    observed: Mapping[str, tuple[float, float]],
    options: StaticSettings,
    powers: Mapping[str, float],  # noqa: ARG001 - no Softmax is too coarse here
    kept: Mapping[str, Kept],  # noqa: ARG001 - nothing is measured
) -> Plan:
    """Decide how each node and tensor is quantized where all are to be; arguments are those of `plan_static`."""
    target, ranges = options.runs_on, CoveredRanges(view, observed, options)
    found = _Walk(view, ranges).walk()
    by_tensor = activation_plans(
        ranges, found.quantized, found.moved, found.joined, found.constants
    )
    nodes, activations = _node_plans(found, view, by_tensor), tuple(by_tensor.values())
    weights = tuple(_weight_plans(found, view, ranges))
    static = any(node.mode is Mode.STATIC for node in nodes)
    types = [a.dtype for a in activations] + [w.spec.dtype for w in weights]
    types += [a.converted.dtype for a in activations if a.converted is not None]
    blocks = any(isinstance(w.spec.granularity, PerBlock) for w in weights)
    wide = blocks or (not options.qdq.contrib_ops and any(t.bits != 8 for t in types))
    return Plan(
        nodes=nodes,
        weights=weights,
        # Without a scale per channel any opset with pairs does.
        min_opset=max(target.min_opset if weights else _PAIR_OPSET, _WIDE_OPSET if wide else 0)
        if static
        else 0,
        activations=activations,
        integer_bias=target.bias is not None
        and (not options.qdq.float_bias or options.format == "qoperator"),
        target=target.name,
        coverage="all",
        qdq=options.qdq,
    )


def asked_by_all(view: View, options: StaticSettings) -> Iterable[str]:
    """Return the tensors whose range `plan_all` asks for.

    Args:
        view: The graph.
        options: What the user chose; rules about single nodes and tensors only ask for less.
    """
    most = replace(options, tensors=(), nodes=(), include=(), exclude=(), format="qdq")
    return _Walk(view, OpenCoveredRanges(view, {}, most)).walk().asked


@dataclass(slots=True)
class _Found:
    """What was found; nodes by index.

    Attributes:
        static: The nodes that are quantized.
        floats: The nodes that are not, and why.
        absorbed: Relu and Clip whose work the quantization of their result does, and the node that makes it.
        quantized: Tensors that need a scale, in graph order.
        moved: A tensor that has the numbers of the one that was moved into it.
        joined: What is put together with one scale for all: parts, and results.
        constants: Those that are quantized as weights are, with one scale.
        weights: The products that read a weight, by its name, with the input.
        made: Which tensors a node hands on quantized.
        asked: Tensors whose range was asked for.
    """

    static: dict[int, Reason] = field(default_factory=dict)
    floats: dict[int, Reason] = field(default_factory=dict)
    absorbed: dict[int, int] = field(default_factory=dict)
    quantized: dict[str, None] = field(default_factory=dict)
    moved: dict[str, tuple[str, ...]] = field(default_factory=dict)
    joined: list[tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=list)
    constants: set[str] = field(default_factory=set)
    weights: dict[str, list[Node]] = field(default_factory=dict)
    made: dict[int, tuple[str, ...]] = field(default_factory=dict)
    asked: dict[str, None] = field(default_factory=dict)


class _Walk:
    """One walk over the nodes, in their order: what is before a node is decided."""

    def __init__(self, view: View, ranges: Ranges) -> None:
        self.view = view
        self.ranges = ranges
        self.options = ranges.options
        self.target = self.options.runs_on
        self.qdq = self.options.qdq
        self.found = _Found()
        self.sharing = Sharing(ranges)
        forced = self.qdq.quantize_moves
        self.moves_all = self.target.wants_all if forced is None else forced
        self.qlinear = self.options.format == "qoperator"
        self.named = frozenset(name.strip() for name in self.options.op_types)
        self.selection = Selection(
            view.names,
            op_types=self._known(self.named) or self.target.covered,
            include=self.options.include,
            exclude=self.options.excluded,
        )

    def walk(self) -> _Found:
        for index, node in enumerate(self.view.nodes):
            why = self._against(node)
            if not why:
                why = self._cover(index, node)
            if why and self._computes_floats(node):
                self.found.floats[index] = why
        return self.found

    def _known(self, named: frozenset[str]) -> frozenset[str]:
        """Refuse a name that neither the model nor anybody knows: it is a slip."""
        here = {node.op_type for node in self.view.nodes}
        known = here | self.target.covered | SELECTS | PRODUCTS | NORMALIZES
        for name in sorted(named - known):
            if slip := near(name, known):
                raise UsageError(f"Operator type '{name}' is not in the model{slip}")
        return named

    def _against(self, node: Node) -> Reason | None:
        """Return why a node is left alone, whatever its tensors are."""
        if node.in_subgraph:
            return because(Why.COVER_SUBGRAPH)
        if node.op_type in UNCOVERED:
            return because(Why.CONVERTS)
        if node.domain and node.op_type not in self.named:
            return because(Why.NOT_STANDARD)
        if not self.named and node.op_type not in self.target.covered:
            return because(Why.TARGET_TAKES_FLOAT, target=self.target.name)
        why = self.selection.against(node.name, node.op_type)
        if not why and self.qlinear:
            why = self._without_qlinear(node)
        return why or (form_obstacle(node, self.view) if node.op_type == "AveragePool" else None)

    def _without_qlinear(self, node: Node) -> Reason | None:
        """Return why a node cannot be written as a QLinear operator, or on integers."""
        moves = node.op_type in self.target.moves
        if node.op_type not in STATIC_OPS and not moves and node.op_type not in CLIPS | COMPARES:
            return because(Why.NO_QLINEAR)
        if node.op_type in self.qdq.float_outputs:
            return because(Why.NO_QLINEAR_FLOAT_OUTPUT)
        if node.op_type in PRODUCTS:
            return _without_qlinear_product(node, self.view)
        if moves and any(map(self.ranges.is_ruled, node.outputs)):
            return because(Why.NO_QLINEAR_OWN_SCALE)
        if node.op_type in _LATENT and node.inputs[0] not in self.found.quantized:
            return because(Why.NO_QLINEAR_FLOAT_INPUT)
        return None if node.op_type == "Pad" else form_obstacle(node, self.view)

    def _cover(self, index: int, node: Node) -> Reason | None:
        """Quantize what a node reads and makes; return why not."""
        if node.op_type in CLIPS:
            return self._clip(index, node)
        if node.op_type in SELECTS:
            return self._select(index, node)
        if node.op_type in PRODUCTS:
            return self._product(index, node)
        return self._compute(index, node)

    def _compute(self, index: int, node: Node) -> Reason | None:
        slots = COVERED_SLOTS.get(node.op_type, range(len(node.inputs)))
        inputs = [node.inputs[s] for s in slots if s < len(node.inputs) and node.inputs[s]]
        inputs = [n for n in inputs if self._is_float(n) and not self._is_restored(n)]
        if not inputs and not self._results(node):
            return because(Why.NO_FLOAT_TENSORS)
        if node.op_type == "Where" and not self.moves_all and not self._all_quantized(inputs):
            return because(Why.CHOOSES_FLOAT)
        why = self._unknown([*inputs, *(self._results(node) if self.qlinear else ())])
        if why:
            return why
        self._take(inputs)
        if node.op_type in NORMALIZES and node.inputs[1] in self.view.constants:
            self.found.constants.add(node.inputs[1])
        results = self._hand_on(index, node)
        if node.op_type in self.target.moves and results and not self.sharing.against(inputs):
            self.found.joined.append((tuple(inputs), results))
            self.sharing.join(inputs, results)
        self.found.static[index] = because(Why.ALL_QUANTIZED)
        return None

    def _all_quantized(self, inputs: list[str]) -> bool:
        computed = [name for name in inputs if name not in self.view.constants]
        return bool(computed) and all(name in self.found.quantized for name in computed)

    def _product(self, index: int, node: Node) -> Reason | None:
        """A constant weight has scales of its own; without one it is a product of two activations."""
        weight = self.view.weights.get(node.weights.get(1, ""))
        reads = [
            name
            for slot, name in enumerate(node.inputs[:2])
            if name and not (slot and weight) and not (weight is None and self._is_restored(name))
        ]
        why = self._unknown(reads) if weight is None else weight_obstacle(node, weight)
        why = why or self._unknown([*reads, *(node.outputs[:1] if self.qlinear else ())])
        if why:
            return why
        self._take(reads)
        if weight is not None:
            self.found.weights.setdefault(weight.tensor, []).append(node)
        self._hand_on(index, node)
        self.found.static[index] = because(Why.ALL_QUANTIZED)
        return None

    def _select(self, index: int, node: Node) -> Reason | None:
        """What comes out has the scale of what goes in, where it is among that."""
        source = node.input(0)
        fill = node.inputs[2] if node.op_type == "Pad" and len(node.inputs) > 2 else ""
        reads = [source, fill] if self._is_float(fill) else [source]
        why = self._why_not_moved(node, source) or self._unknown(reads)
        if why:
            return why
        results = self._selected(node)
        if self.qlinear and len(reads) > 1:
            return self._pad(index, reads, results)
        self._take(reads)
        self.found.static[index] = because(Why.ALL_QUANTIZED)
        if node.op_type not in self.qdq.float_outputs:
            self._move(index, node, source, results)
        return None

    def _why_not_moved(self, node: Node, source: str) -> Reason | None:
        """Return why what a node moves stays float."""
        if not self._is_float(source):
            return because(Why.NO_FLOAT_TENSORS)
        constant = node.op_type in TABLES and source in self.view.constants
        free = MOVED_AS_INTEGERS if self.qlinear else MOVED_IN_PAIRS
        asked = constant or node.op_type in free or self.moves_all
        return None if asked or source in self.found.quantized else because(Why.MOVES_FLOAT)

    def _selected(self, node: Node) -> tuple[str, ...]:
        """Return the results that are values that went in: of most operators the first."""
        results = self._results(node)
        if node.op_type == "Split":
            return results
        return results[:1] if node.outputs[:1] == results[:1] else ()

    def _move(self, index: int, node: Node, source: str, results: tuple[str, ...]) -> None:
        """Quantize what comes out: as what went in, or by a range of its own."""
        own = _adds_values(node, self.view) and not self.qlinear
        kept = [name for name in results if not own and not self.ranges.is_ruled(name)]
        others = [name for name in results if name not in kept and not self._unknown([name])]
        self._take([*kept, *others])
        self.found.moved.update(dict.fromkeys(kept, (source,)))
        if kept:
            self.sharing.join([source], kept)
        self.found.made[index] = tuple(name for name in results if name in self.found.quantized)

    def _pad(self, index: int, reads: list[str], results: tuple[str, ...]) -> Reason | None:
        """Among integers what is filled in has the scale of what it is put beside."""
        why = self.sharing.against(reads)
        if why:
            return why
        self._take([*reads, *results])
        self.sharing.join(reads, results)
        self.found.joined.append((tuple(reads), results))
        self.found.static[index] = because(Why.ALL_QUANTIZED)
        self.found.made[index] = results
        return None

    def _clip(self, index: int, node: Node) -> Reason | None:
        """It goes with what makes its input, or is quantized as other operators are."""
        (source, *_), (result, *_) = node.inputs, node.outputs
        if source not in self.found.quantized:
            return because(Why.CLIPS_FLOAT)
        maker = self.view.producer.get(source)
        maker = self.found.absorbed.get(maker, maker) if maker is not None else None
        why = self._unknown([result])
        if why and not self.ranges.is_float(result):
            return why
        if maker is not None and not why and self._is_absorbed(index, node, maker):
            del self.found.quantized[source]
            self._take([result])
            self.found.made[maker] = (result,)
            self.found.absorbed[index] = maker
            return None
        if self.qlinear:
            return because(Why.NO_QLINEAR_CLIP)
        self._hand_on(index, node)
        self.found.static[index] = because(Why.ALL_QUANTIZED)
        return None

    def _is_absorbed(self, index: int, node: Node, maker: int) -> bool:
        """Say whether the quantization of a clip's result, made by `maker`, does its work."""
        source, result = node.inputs[0], node.outputs[0]
        decided = self.ranges.plan(result)
        return (
            not (self.qdq.keep_clips or self.options.symmetric)
            and node.op_type not in self.qdq.float_outputs
            and maker in self.found.static
            and self.found.made.get(maker) == (source,)
            and source not in self.found.moved
            and self.view.only_reader(source) == index
            and decided is not None
            and clips_alike(node, self.view, decided, half_a_step=True)
        )

    def _hand_on(self, index: int, node: Node) -> tuple[str, ...]:
        """Quantize the results of a node, as far as that is asked for and their ranges are known."""
        results = () if node.op_type in self.qdq.float_outputs else self._results(node)
        results = tuple(name for name in results if not self._unknown([name]))
        self._take(results)
        self.found.made[index] = results
        return results

    def _results(self, node: Node) -> tuple[str, ...]:
        view = self.view
        used = (name for name in node.outputs if name in view.readers or name in view.outputs)
        return tuple(name for name in used if self._is_float(name))

    def _take(self, names: Iterable[str]) -> None:
        self.found.quantized.update(dict.fromkeys(names))

    def _unknown(self, names: Iterable[str]) -> Reason | None:
        """Say which tensor cannot be quantized, and why. The one place where a range decides."""
        for name in names:
            self.found.asked[name] = None
            if self.ranges.is_float(name):
                return because(Why.TENSOR_STAYS_FLOAT, tensor=name)
            if self.ranges.of(name) is None:
                return because(Why.RANGE_NOT_KNOWN, tensor=name)
            maker = self.view.maker(name)
            if maker is not None and maker.op_type == "DequantizeLinear":
                return because(Why.ALREADY_QUANTIZED, tensor=name)
        return None

    def _is_restored(self, name: str) -> bool:
        """Say whether the file has a tensor in integers already; QLinear operators would need it in their own."""
        maker = self.view.maker(name)
        return not self.qlinear and maker is not None and maker.op_type == "DequantizeLinear"

    def _is_float(self, name: str) -> bool:
        constant = self.view.constants.get(name)
        return (
            bool(name)
            and name not in self.view.not_float
            and (constant is None or constant.is_float)
        )

    def _computes_floats(self, node: Node) -> bool:
        """Say whether a node is worth a reason: shapes and indices are not listed."""
        names = [name for name in (*node.inputs, *node.outputs) if name not in self.view.constants]
        return any(self._is_float(name) for name in names)


def _adds_values(node: Node, view: View) -> bool:
    """Say whether values come out that are not between those that went in."""
    return fills_in(node, view.constants) or (
        node.op_type == "Resize"
        and (
            node.attributes.get("mode") == "cubic"
            or node.attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize"
        )
    )


def _without_qlinear_product(node: Node, view: View) -> Reason | None:
    """Return what a QLinear operator of products has no place for."""
    biased = len(node.inputs) > 2 and bool(node.inputs[2])
    if not node.weights.get(1):
        if node.op_type == "Conv":
            return because(Why.WEIGHT_COMPUTED_AT_RUN_TIME)
        return because(Why.NO_QLINEAR_TWO_ACTIVATIONS) if biased else None
    if biased and not has_vector_bias(node, view, absent=True):
        return because(Why.NO_QLINEAR_BIAS)
    return None


def _node_plans(
    found: _Found, view: View, activations: Mapping[str, ActivationPlan]
) -> tuple[NodePlan, ...]:
    plans: list[NodePlan] = []
    for index, node in enumerate(view.nodes):
        mode, why, made = Mode.FLOAT, found.floats.get(index), True
        if index in found.absorbed:
            maker = view.nodes[found.absorbed[index]].name
            # Of several clips in a row the result of the last is quantized.
            (result,) = found.made[found.absorbed[index]]
            alike = clips_alike(node, view, activations[result], half_a_step=True)
            mode = Mode.ABSORBED if alike else Mode.STATIC
            why = because(Why.CLIPPED_BY_RANGE if alike else Why.GOES_WITH, node=maker)
        elif index in found.static:
            mode, why, made = Mode.STATIC, found.static[index], bool(found.made.get(index))
        if why is None:
            continue
        plans.append(NodePlan.of(node, mode, why, float_output=not made))
    return tuple(plans)


def _weight_plans(found: _Found, view: View, ranges: Ranges) -> Iterable[WeightPlan]:
    """Yield how the weights of quantized products are; who reads them besides has them in float."""
    options = ranges.options
    target = options.runs_on
    stored = DynamicSettings(
        weight_type="int8" if options.weight.signed else "uint8",
        per_channel=options.channelwise and target.per_channel,
        pair_safe=target.saturates,
    )
    for tensor, nodes in found.weights.items():
        weight = view.weights[tensor]
        names = {node.name for node in nodes}
        uses = tuple(use for use in weight.uses if use.slot == 1 and use.node in names)
        by_name = {node.name: node for node in nodes}
        static = {
            n: NodePlan.of(by_name[n], Mode.STATIC, because(Why.ALL_QUANTIZED)) for n in names
        }
        channelwise = all(_has_channels(node, weight, options) for node in nodes)
        plan = weight_plan(
            replace(weight, uses=uses),
            by_name,
            static,
            replace(stored, per_channel=stored.per_channel and channelwise),
        )
        channel = nodes[0].channel_axis(1, len(weight.shape))
        axes = {dict(options.qdq.channel_axes).get(node.op_type, channel) for node in nodes}
        spec = _spec(plan.spec, weight.shape, ranges.rule(tensor), options)
        if isinstance(spec.granularity, PerAxis) and ranges.rule(tensor) is None:
            spec = replace(spec, granularity=PerAxis(_axis(axes, weight)))
        if options.qdq.block_size and ranges.rule(tensor) is None:
            spec = replace(spec, granularity=_blocks(weight, channel, options.qdq.block_size))
        yield replace(plan, spec=spec)
    yield from _bias_plans(found, view, ranges)


def _axis(axes: set[int], weight: Weight) -> int:
    """Return the axis of channels that is asked for, of all that read a weight."""
    rank = len(weight.shape)
    axis = min(axes)
    if len(axes) > 1 or not -rank <= axis < rank:
        raise UsageError(
            f"channel_axes asks for axes {sorted(axes)} of weight '{weight.tensor}', which has {rank}: give one that all "
            "who read it can have."
        )
    return axis % rank


def _blocks(weight: Weight, channel: int, size: int) -> PerBlock:
    if len(weight.shape) != 2:
        raise UnsupportedError(
            f"Blocks are for matrices, and weight '{weight.tensor}' has {len(weight.shape)} axes: leave its node out, or "
            "leave block_size away."
        )
    return PerBlock(1 - channel % 2, size)


def _spec(
    spec: QuantSpec, shape: tuple[int, ...], rule: TensorRule | None, options: StaticSettings
) -> QuantSpec:
    """Return how a weight is quantized where its type may be any; what a rule says of it is done as it says."""
    dtype = (rule and rule.int_type) or options.weight
    granularity = _granularity(spec.granularity, shape, rule)
    asked = options.qdq.symmetric_weights
    symmetric = isinstance(granularity, PerAxis) or (dtype.signed if asked is None else asked)
    if rule is not None and rule.symmetric is not None:
        symmetric = rule.symmetric
    reduced = rule is not None and rule.reduced
    # Of int8 and int16 all grids are whole, but for those that are reduced. So are others between pairs, as tools expect
    # them there; in a whole grid the largest weight is half a step beyond its end, so that for QLinear operators it is centred.
    own = rule is None and options.format == "qoperator"
    whole = reduced or not symmetric or not (dtype.bits >= 8 and (dtype.signed or own))
    numbers = (rule.scales, rule.zero_points) if rule is not None else ((), ())
    safe = dtype is INT8 and options.runs_on.saturates and not reduced and not numbers[0]
    return replace(
        spec,
        dtype=dtype,
        granularity=granularity,
        symmetric=symmetric,
        reduced=reduced,
        pair_axes=spec.pair_axes if safe else (),
        whole=whole,
        least=options.qdq.min_range or 0.0,
        scales=numbers[0],
        zero_points=numbers[1],
        pinned=rule is not None,
    )


def _granularity(
    usual: Granularity, shape: tuple[int, ...], rule: TensorRule | None
) -> Granularity:
    """Return what shares a scale, by what a rule says of the tensor."""
    if rule is not None:
        if rule.axis is not None and not -len(shape) <= rule.axis < len(shape):
            raise UsageError(
                f"The rule for '{rule.tensor}' names axis {rule.axis}, and it has {len(shape)} axes."
            )
        usual = PerTensor() if rule.axis is None else PerAxis(rule.axis)
    # With a single channel its zero point may be anywhere.
    single = isinstance(usual, PerAxis) and shape[usual.axis] == 1
    return PerTensor() if single else usual


def _bias_plans(found: _Found, view: View, ranges: Ranges) -> Iterable[WeightPlan]:
    """Yield how biases are quantized of which something is said; they are not in the scale of the sums."""
    readers = [view.nodes[index] for index in found.static]
    biases = dict.fromkeys(
        node.inputs[2]
        for node in readers
        if node.op_type in PRODUCTS | NORMALIZES and len(node.inputs) > 2
    )
    plain = QuantSpec(dtype=INT8, granularity=PerTensor(), symmetric=True)
    for tensor in biases:
        rule, constant = ranges.rule(tensor), view.constants.get(tensor)
        if rule is not None and constant is not None and not rule.keep_float:
            if ranges.options.format == "qoperator":
                raise UsageError(
                    f"The rule for bias '{tensor}' gives it integers of its own, and QLinear operators add int32 in the "
                    "scale of their sums: use the QDQ format."
                )
            spec = _spec(plain, constant.shape, rule, ranges.options)
            yield WeightPlan(tensor=tensor, spec=spec)


def _has_channels(node: Node, weight: Weight, options: StaticSettings) -> bool:
    """Say whether a weight may have a scale per output channel."""
    if node.op_type == "ConvTranspose":  # of several groups, channels of one share a place
        return node.attributes.get("group", 1) == 1
    asked = node.op_type in dict(
        options.qdq.channel_axes
    )  # else those of stacked matrices share a scale
    matrix = node.op_type != "MatMul" or len(weight.shape) == 2 or asked
    return matrix and node.op_type in options.runs_on.channelwise
