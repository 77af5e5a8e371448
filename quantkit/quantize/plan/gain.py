"""The plan of coverage "gain": integers where they gain, between tensors whose ranges were calibrated.

1. A product with a constant weight runs in integers unless something stands against it (`_obstacle`).
2. What stands between products joins them if it costs nothing (`quantkit.quantize.plan.islands`).
3. Every tensor that enters or leaves an integer kernel gets scale and zero point; data movement shares
   them (`quantkit.quantize.plan.sharing`).
4. All other nodes that hold weights are planned as dynamic quantization plans them, so that an LSTM, an
   embedding, or a product inside a Loop shrinks as well.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from quantkit.errors import UsageError
from quantkit.model.ops.float_ops import PRODUCTS
from quantkit.model.ops.view import Node, View, Weight
from quantkit.numerics.dtypes import INT8
from quantkit.quantize.plan.dynamic import plan_dynamic
from quantkit.quantize.plan.islands import Islands, Rules, find_islands, weight_obstacle
from quantkit.quantize.plan.model import ActivationPlan, Kept, Mode, NodePlan, Plan
from quantkit.quantize.plan.ranges import OpenRanges, Ranges, clips_alike
from quantkit.quantize.plan.selection import Selection, check_op_types, resolve_names
from quantkit.quantize.plan.sharing import activation_plans
from quantkit.reasons import Reason, Why, because
from quantkit.settings import DynamicSettings, StaticSettings
from quantkit.targets import Target

_WIDE_OPSET = 21  # QuantizeLinear to 16 bits


def plan_gain(
    view: View,
    observed: Mapping[str, tuple[float, float]],
    options: StaticSettings,
    powers: Mapping[str, float],
    kept: Mapping[str, Kept],
) -> Plan:
    """Decide how each node runs and how each tensor is quantized; arguments are those of `plan_static`."""
    # 1. Which products may run in integers, 2. which nodes join them (islands), 3. once more without the Conv whose
    # results only excluded nodes read, 4. scales of every tensor between them, 5. everything else as dynamic
    # quantization would decide it, with the static nodes given. Weights are decided in 5 for all: one place knows
    # their types and axes. The opset is raised only as far as what was really planned needs.
    ranges = Ranges(view, observed, options, powers)
    chosen = _Chosen(view, options, kept)
    products = _products(view, chosen)
    rules = chosen.rules()
    islands = find_islands(view, products, rules, ranges)
    if chosen.exclude:
        freed = _freed(view, ranges, islands, products.keys() - rules.forced)
        # Where nothing else runs in integers, integers rounded once more are better than none.
        if freed and islands.static.keys() & products.keys() > freed.keys():
            products |= freed
            islands = find_islands(view, products, rules, ranges)
    by_tensor = activation_plans(ranges, islands.quantized, islands.moved)
    decided, activations = _node_plans(view, islands, by_tensor), tuple(by_tensor.values())
    _check_forced(decided, view, options)
    rest = plan_dynamic(
        view, _rest_options(options, chosen), _with_weights(decided, view), chosen.kept
    )
    wide = any(a.dtype.bits > 8 for a in activations)
    static = any(n.mode is Mode.STATIC for n in decided.values())
    opset = max(options.runs_on.min_opset, _WIDE_OPSET if wide else 0) if static else 0
    merged = {
        name: _merged(n, decided.get(name), measured=name in chosen.kept)
        for name, n in rest.node.items()
    }
    nodes = {**decided, **merged}
    return Plan(
        nodes=tuple(nodes[n.name] for n in view.nodes if n.name in nodes),
        weights=rest.weights,
        min_opset=max(rest.min_opset, opset),
        activations=activations,
        integer_bias=options.runs_on.bias is not None,
        target=options.runs_on.name,
    )


def asked_by_gain(view: View, options: StaticSettings) -> Iterable[str]:
    """Return the tensors whose range `plan_gain` asks for, where nothing is left out.

    Args:
        view: The graph.
        options: The target, and the nodes that are forced; the rest is not looked at.
    """
    forced = tuple(rule for rule in options.nodes if rule.mode == "integer")
    most = StaticSettings(target=options.target, nodes=forced)
    ranges = OpenRanges(view, {}, most)
    chosen = _Chosen(view, most)
    # A run does not show what is in subgraphs of other operators than If, Loop and Scan: nothing is asked for there.
    hidden = because(Why.INSIDE_GRAPH)
    inside = {i: hidden for i, node in enumerate(view.nodes) if not node.observable}
    products = _products(view, chosen)
    products |= {i: why for i, why in inside.items() if i in products}
    rules = Rules(chosen.rules().forced - inside.keys(), inside)
    return find_islands(view, products, rules, ranges).asked


def _freed(
    view: View,
    ranges: Ranges,
    found: Islands,
    products: Collection[int],
) -> dict[int, Reason]:
    """Return the products whose results only excluded nodes would have read as integers, and the reason.

    The kernel of a Conv rounds what it makes to 8 bits. Where only an excluded node reads that, the rounding would
    spoil what the user wants exact, so such a Conv is computed in float as well. It goes no further: what *it* reads
    may be rounded.
    """
    target, exclude = ranges.options.runs_on, resolve_names(ranges.options.excluded, view.names)
    chosen = _Chosen(view, ranges.options.with_all_nodes())
    before = find_islands(view, _products(view, chosen), chosen.rules(), ranges)
    # Excluded nodes, and what stands between a product and nothing but them.
    behind = {i for i, node in enumerate(view.nodes) if node.name in exclude}
    freed = {}
    for index in sorted(before.static, reverse=True):
        readers = {r for v in before.results[index] for r in view.readers.get(v, ())}
        others = (readers - behind) & before.static.keys()
        if others or not readers & behind or any(r in found.static for r in readers):
            continue
        if index not in found.static:
            behind.add(index)
        elif index in products and view.nodes[index].op_type in target.needs_output:
            freed[index] = because(Why.FEEDS_EXCLUDED)
    return freed


def _merged(rest: NodePlan, static: NodePlan | None, *, measured: bool) -> NodePlan:
    """Give a product that stays float the reason why it does, not that of dynamic quantization."""
    if static is None or static.mode is not Mode.FLOAT:
        return rest
    if rest.mode is Mode.INTEGER:
        why = because(Why.RUNS_AS_MEASURED, how=rest.reason, because=static.reason)
        return replace(rest, reason=why) if measured else rest
    if rest.mode is Mode.STORED:
        return replace(rest, reason=because(Why.STORED_8_BITS, because=static.reason))
    return replace(rest, reason=static.reason)


class _Chosen(Selection):
    """What the user's rules select, and what integers were tried on and lost."""

    def __init__(
        self, view: View, options: StaticSettings, kept: Mapping[str, Kept] | None = None
    ) -> None:
        self.view = view
        self.options = options
        self.kept = kept or {}
        self.target = options.runs_on
        super().__init__(
            view.names,
            op_types=check_op_types(options.op_types or None, self.target.operators),
            include=options.include,
            exclude=options.excluded,
        )
        self.force = resolve_names(options.forced, view.names)
        against = ((node.name, self.against(node.name, node.op_type)) for node in view.weighted)
        self.left = {name for name, why in against if why}
        self.left |= {name for name, one in self.kept.items() if one.mode is Mode.FLOAT}

    def lost(self, name: str) -> Reason | None:
        """Return what a node loses in integers; None if that was not tried, or not much."""
        return self.kept[name].reason if name in self.kept else None

    def rules(self) -> Rules:
        """Return what is said about single nodes; of data movement, which computes nothing, only who is excluded."""
        moves = self.target.moves
        against = {
            index: why
            for index, node in enumerate(self.view.nodes)
            if (why := self.against(node.name, node.op_type) or self.lost(node.name))
            and (node.op_type not in moves or node.name in self.exclude or node.name in self.kept)
        }
        forced = frozenset(i for i, n in enumerate(self.view.nodes) if n.name in self.force)
        return Rules(forced - against.keys(), against)


def _check_forced(decided: Mapping[str, NodePlan], view: View, options: StaticSettings) -> None:
    """Refuse a rule that asks for integers where no node that it names can have them."""
    for rule in options.forced:
        named = sorted(resolve_names([rule], view.names))
        plans = [decided.get(name) for name in named]
        if any(p is not None and p.mode in {Mode.STATIC, Mode.ABSORBED} for p in plans):
            continue
        no_kernel = because(Why.NO_KERNEL_FOR_IT, target=options.runs_on.name)
        why = plans[0].reason if plans[0] else no_kernel
        raise UsageError(f"Node '{named[0]}' cannot run in integers: {why}.")


def _products(view: View, chosen: _Chosen) -> dict[int, Reason | None]:
    """Return every product with a constant weight, and the reason against it or None."""
    found: dict[int, Reason | None] = {}
    for index, node in enumerate(view.nodes):
        if node.domain or node.op_type not in PRODUCTS:
            continue
        if node.op_type == "MatMul" and not node.weights:
            continue  # a product of two activations
        found[index] = (
            chosen.against(node.name, node.op_type)
            or chosen.lost(node.name)
            or _no_kernel(node, chosen.target)
            or _obstacle(node, view, chosen)
            or _bias_obstacle(node, view)
        )
    return found


def _no_kernel(node: Node, target: Target) -> Reason | None:
    if node.op_type not in target.products:
        return because(Why.NO_KERNEL, target=target.name, op_type=node.op_type)
    return None


def _obstacle(node: Node, view: View, chosen: _Chosen) -> Reason | None:
    """Return what keeps a product with these operands from running in integers."""
    if 1 not in node.weights or 0 in node.weights:
        return because(Why.LEFT_OPERAND if 0 in node.weights else Why.WEIGHT_COMPUTED)
    weight = view.weights[node.weights[1]]
    if node.op_type == "MatMul" and len(weight.shape) != 2:
        return because(Why.WEIGHT_RANK, axes=len(weight.shape))
    if node.op_type == "Gemm" and node.attributes.get("transA"):
        return because(Why.INPUT_TRANSPOSED)
    return (
        weight_obstacle(node, weight)
        or _shared_obstacle(weight, chosen)
        or _group_obstacle(node, weight, chosen)
    )


def _group_obstacle(node: Node, weight: Weight, chosen: _Chosen) -> Reason | None:
    """Say that the groups of a Conv are too small to gain."""
    groups = node.attributes.get("group", 1)
    if node.op_type != "Conv" or not isinstance(groups, int) or groups == 1:
        return None
    made, read, *_ = weight.shape
    depthwise = read == 1 and made == groups
    if depthwise or read >= chosen.target.least_group or node.name in chosen.force:
        return None
    return because(Why.SMALL_GROUPS, channels=read)


def _shared_obstacle(weight: Weight, chosen: _Chosen) -> Reason | None:
    """Return which other reader keeps a weight from being stored as integers: then this one stays float."""
    for use in weight.uses:
        if not use.known or use.node in chosen.left:
            return because(Why.SHARED_WITH_FLOAT_NODE, tensor=weight.tensor, node=use.node)
    return None


def _bias_obstacle(node: Node, view: View) -> Reason | None:
    """A bias must be a constant vector: it becomes int32 in the scale of the product."""
    bias = node.input(2)
    if not bias:
        return None
    constant = view.constants.get(bias)
    if constant is None or not constant.is_float:
        return because(Why.BIAS_COMPUTED, tensor=bias)
    extents = constant.shape
    if node.op_type == "Gemm" and any(n != 1 for n in extents[:-1]):
        return because(Why.BIAS_NOT_VECTOR, tensor=bias)
    return None


def _node_plans(
    view: View, islands: Islands, activations: Mapping[str, ActivationPlan]
) -> dict[str, NodePlan]:
    plans: dict[str, NodePlan] = {}

    def put(node: Node, mode: Mode, why: Reason, *, float_output: bool = False) -> None:
        plans[node.name] = NodePlan.of(node, mode, why, float_output=float_output)

    for index, why in islands.static.items():
        made = islands.made.issuperset(islands.results[index])
        put(view.nodes[index], Mode.STATIC, why, float_output=not made)
    for index, why in islands.floats.items():
        put(view.nodes[index], Mode.FLOAT, why)
    for index, maker in islands.absorbed.items():
        result = islands.results[maker][0]
        if maker in islands.static and result in islands.made:
            node, name = view.nodes[index], view.nodes[maker].name
            if clips_alike(node, view, activations[result]):
                put(node, Mode.ABSORBED, because(Why.CLIPPED_BY_RANGE, node=name))
            else:
                put(node, Mode.STATIC, because(Why.ONE_KERNEL, node=name))
    return plans


def _with_weights(decided: Mapping[str, NodePlan], view: View) -> dict[str, NodePlan]:
    """Return the plans of static nodes that hold weights."""
    return {
        node.name: decided[node.name]
        for node in view.weighted
        if node.name in decided and decided[node.name].mode is Mode.STATIC
    }


def _rest_options(options: StaticSettings, chosen: _Chosen) -> DynamicSettings:
    stored: Any = options.weight.name
    return DynamicSettings(
        weight_type=stored,
        per_channel=options.channelwise and options.runs_on.per_channel,
        exclude=tuple(sorted(chosen.left)),
        pair_safe=options.runs_on.saturates and options.weight is INT8,
    )
