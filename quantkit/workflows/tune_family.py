"""The plans that a search moves along, from the fastest to the most exact, by what was measured before any file is made.

What noise is worth in seconds is raised step by step: for each value the plan that costs least is a cut of the graph
(`quantkit.plan.measured.choose`). What it loses is measured on the float model with its roundings switched on
(`quantkit.solve.losses`), what it takes is the sum of its nodes.
"""

from dataclasses import replace

from quantkit.ops.view import View
from quantkit.plan import Format, Mode, Plan
from quantkit.plan.measured import Costs, choose, predict
from quantkit.plan.model import SolvedIntegers
from quantkit.runtime.session import RUNTIME_ERRORS
from quantkit.solve.losses import Meter
from quantkit.workflows.measure import decide
from quantkit.workflows.plan_prepared import planner_of
from quantkit.workflows.prepare import Prepared
from quantkit.workflows.repair import assumed_costs
from quantkit.workflows.tune_folder import Family
from quantkit.workflows.tune_search import Choice
from quantkit.workflows.tune_trial import plan_for

__all__ = ["first_of_family", "whole_family"]

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
    output_format = prepared.job.output_format or Format.QDQ
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
    output_format = prepared.job.output_format or Format.QDQ
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
    found = [(first.kept[0], noise)]
    weight = sum(costs.floats.values()) / max(noise, _SILENT) / _FINE
    for _ in range(_STEPS):
        kept = choose(view, every, costs, losses, weight) | dict(first.kept[0])
        weight *= _DEARER
        if frozenset(kept) in {frozenset(k) for k, _ in found}:
            continue
        plan = planned(kept)
        if not any(node.mode is Mode.STATIC for node in plan.nodes):
            break  # from here on it is the form that only stores weights
        quieter = _worst(meter, plan)
        if quieter < found[-1][1]:
            found.append((kept, quieter))
    return replace(
        first,
        kept=tuple(kept for kept, _ in found),
        noises=tuple(noise for _, noise in found),
        seconds=tuple(_share(view, planned(kept), costs) for kept, _ in found),
        whole=True,
    )


def _worst(meter: Meter, plan: Plan) -> float:
    return max(meter.noise_of(plan).values(), default=0.0)


def _share(view: View, plan: Plan, costs: Costs) -> float:
    """Return the time of a plan as a multiple of float's, by the costs of its nodes."""
    return predict(view, plan, costs) / max(sum(costs.floats.values()), _SILENT)
