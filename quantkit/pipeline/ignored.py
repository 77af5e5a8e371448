"""Requests by name that a plan does not fulfil: operators, nodes and rules for tensors, each with the reason."""

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase

from quantkit.model.ops.view import View
from quantkit.quantize.plan import Mode, NodePlan, Plan
from quantkit.quantize.plan.selection import AS_CHOSEN
from quantkit.settings import DynamicSettings, StaticSettings, TensorRule, WeightsSettings


def ignored_requests(
    plan: Plan,
    options: StaticSettings | DynamicSettings | WeightsSettings,
    view: View | None = None,
) -> list[str]:
    """Return what the user asked for by name and does not get: operators, nodes, rules for tensors; each with the reason.

    Args:
        plan: What was decided.
        options: What the user chose.
        view: The graph that was planned, for the reasons of tensors; None if there is none at hand.
    """
    static = isinstance(options, StaticSettings)
    missed = {Mode.FLOAT, Mode.STORED} if static and plan.coverage == "gain" else {Mode.FLOAT}
    said = []
    chosen = [n for n in plan.nodes if n.reason.why not in AS_CHOSEN]
    for op_type in dict.fromkeys(options.op_types):
        nodes = [n for n in chosen if n.op_type == op_type]
        said += _missed(f"{op_type} was asked for", nodes, missed)
    for rule in dict.fromkeys(options.include):
        nodes = _named(rule, plan)
        # Of a pattern it is enough that something is quantized.
        if all(n.mode in missed and n.reason.why not in AS_CHOSEN for n in nodes):
            said += _missed(f"'{rule}' was asked for", nodes, missed)
    rules = options.tensors if isinstance(options, StaticSettings) else ()
    reasons = [(r.tensor, _unruled(r, plan, view)) for r in rules if not r.keep_float]
    said += [
        f"The rule for tensor '{tensor}' has no effect: {why}." for tensor, why in reasons if why
    ]
    return said


def _named(rule: str, plan: Plan) -> list[NodePlan]:
    """Return the node of that name, else the nodes that a pattern matches."""
    exact = plan.node.get(rule)
    return [exact] if exact else [n for n in plan.nodes if fnmatchcase(n.node, rule)]


def _missed(what: str, nodes: Sequence[NodePlan], modes: Collection[Mode]) -> list[str]:
    missed = [node for node in nodes if node.mode in modes]
    if not missed:
        return []
    first = missed[0]
    some = f"{len(missed)} of {len(nodes)} nodes do not run in integers, the first '{first.node}'"
    said = some if len(nodes) > 1 else "does not run in integers"
    return [f"{what} and {said}: {first.why}."]


def _unruled(rule: TensorRule, plan: Plan, view: View | None) -> str:
    """Return why a rule for tensors changes nothing; "" if it does."""
    quantized = {*plan.activation, *plan.weight}
    named = {rule.tensor} if rule.tensor in quantized else set()
    named = named or {name for name in quantized if fnmatchcase(name, rule.tensor)}
    if not named:
        return _why_unquantized(rule.tensor, plan, view)
    if not named & plan.activation.keys() and not any(plan.weight[n].spec.pinned for n in named):
        return "it is a weight; use the weight settings"
    found = [a for a in plan.activations if a.tensor in named]
    kinds = {a.dtype.name for a in found}
    kinds |= {a.converted.dtype.name for a in found if a.converted is not None}
    if rule.dtype is not None and kinds and rule.dtype not in kinds:
        return (
            f"its integers are {', '.join(sorted(kinds))}, those of what it shares its scale with"
        )
    return ""


def _why_unquantized(tensor: str, plan: Plan, view: View | None) -> str:
    if view is None or tensor not in view.readers.keys() | view.producer.keys():
        return "nothing that it names is quantized"
    maker = view.maker(tensor)
    around = [view.nodes[i] for i in view.readers.get(tensor, ())] + ([maker] if maker else [])
    decided = [(node, plan.node[node.name]) for node in around if node.name in plan.node]
    for node, one in decided:
        if one.mode is Mode.ABSORBED and tensor in node.inputs:
            return f"'{node.name}' behind it is fused, and its result '{node.outputs[0]}' is what is quantized"
    for node, one in decided:
        if one.mode in {Mode.FLOAT, Mode.STORED}:
            return f"not quantized because node '{node.name}' stays float: {one.why}"
    return "it is not quantized"
