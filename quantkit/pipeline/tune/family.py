"""The plans that a search moves along, from the fastest to the most exact, by what was measured before any file is made.

What noise is worth in seconds is raised step by step: for each value the plan that costs least is a cut of the graph
(`quantkit.quantize.plan.measured.choose`). What it loses is measured on the float model with its roundings switched on
(`quantkit.quantize.solve.losses`), what it takes is the sum of its nodes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from quantkit.model.ops.view import View
from quantkit.pipeline.measure import decide
from quantkit.pipeline.plan_prepared import format_of, planner_of
from quantkit.pipeline.plan_search import assumed_costs
from quantkit.pipeline.prepared import Prepared
from quantkit.pipeline.tune.choice import Choice
from quantkit.pipeline.tune.folder import Family
from quantkit.pipeline.tune.make import plan_for
from quantkit.quantize.plan import Mode, Plan, SolvedIntegers
from quantkit.quantize.plan.measured import Costs, Losses, choose, predict
from quantkit.quantize.plan.model import Kept
from quantkit.quantize.solve.losses import Meter
from quantkit.runtime.session import RUNTIME_ERRORS

_LOOKED_AT = 8  # samples that tell what each rounding loses
_FINE = 64  # times less than a plan's noise that a rounding may add without being told apart
_STEPS, _DEARER = (
    28,
    2.0,
)  # values of noise that plans are made for, and by what it is dearer from one to the next
_SILENT = 1e-30


def first_of_family(prepared: Prepared) -> Family:
    """Return the fastest plan alone.

    Args:
        prepared: The model, with its measured costs, where it was measured.
    """
    output_format = format_of(prepared.job.options)
    decision = decide(prepared, output_format)
    plan = plan_for(prepared, Choice(), decision.kept)
    others = plan_for(prepared, Choice(form="dynamic"), {})
    return Family(
        kept=(dict(decision.kept),),
        noises=(1.0,),
        seconds=(_share(prepared.ready.view, plan, decision.costs or assumed_costs(prepared)),),
        dynamic=any(node.mode is Mode.INTEGER for node in others.nodes),
    )


def whole_family(first: Family, prepared: Prepared) -> Family:
    """Return plans from the fastest to the most exact: the dearer noise is, the more stays out of integers.

    Args:
        first: The fastest plan.
        prepared: The model.
    """
    view = prepared.ready.view
    output_format = format_of(prepared.job.options)
    costs = decide(prepared, output_format).costs or assumed_costs(prepared)
    planned = planner_of(prepared, output_format)
    every = planned({})
    try:
        meter = Meter(
            prepared.ready.model, view, every, SolvedIntegers(), prepared.judged[:_LOOKED_AT]
        )
        noise = _worst(meter, planned(first.kept[0]))
        losses = meter.losses(noise / _FINE)
    except RUNTIME_ERRORS:  # a model that does not run with switches in it
        return replace(first, whole=True)
    fastest = first.kept[0]
    found = [_Plan(kept=fastest, noise=noise, seconds=first.seconds[0])]
    tried = {frozenset(fastest)}
    for more in (*_cuts(view, every, costs, losses, noise), *_worst_first(every, losses)):
        kept = {**more, **fastest}
        if frozenset(kept) in tried:
            continue
        tried.add(frozenset(kept))
        plan = planned(kept)
        if any(node.mode is Mode.STATIC for node in plan.nodes):
            lost, taken = _worst(meter, plan), _share(view, plan, costs)
            found.append(_Plan(kept=kept, noise=lost, seconds=taken))
    best = _undominated(found)
    return replace(
        first,
        kept=tuple(one.kept for one in best),
        noises=tuple(one.noise for one in best),
        seconds=tuple(one.seconds for one in best),
        whole=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """A plan by what it leaves out of integers, with its noise and its time."""

    kept: Mapping[str, Kept]
    noise: float
    seconds: float


def _undominated(found: Sequence[_Plan]) -> list[_Plan]:
    """Return the first, then those that are quieter than all that are faster."""
    best = [found[0]]
    for one in sorted(found[1:], key=lambda one: (one.seconds, one.noise)):
        if one.noise < best[-1].noise:
            best.append(one)
    return best


def _cuts(
    view: View, every: Plan, costs: Costs, losses: Losses, noise: float
) -> Iterator[Mapping[str, Kept]]:
    """Yield what the cheapest plans leave out, the dearer noise is the more."""
    weight = sum(costs.floats.values()) / max(noise, _SILENT) / _FINE
    for _ in range(_STEPS):
        yield choose(view, every, costs, losses, weight)
        weight *= _DEARER


def _worst_first(every: Plan, losses: Losses) -> Iterator[Mapping[str, Kept]]:
    """Yield the nodes whose weights lose most, one, two, three, five, eight, ... of them: where a cut takes many at once."""
    static = {node.node for node in every.nodes if node.mode is Mode.STATIC}
    lost = {n: max(figures, default=0.0) for n, figures in losses.nodes.items() if n in static}
    ranked = sorted(lost, key=lambda name: (-lost[name], name))
    count, following = 1, 2
    while count < len(ranked):
        yield {name: Kept(losses.of_weight(name)) for name in ranked[:count]}
        count, following = following, count + following


def _worst(meter: Meter, plan: Plan) -> float:
    return max(meter.noise_of(plan).values(), default=0.0)


def _share(view: View, plan: Plan, costs: Costs) -> float:
    """Return the time of a plan as a multiple of float's, by the costs of its nodes."""
    return predict(view, plan, costs) / max(sum(costs.floats.values()), _SILENT)
