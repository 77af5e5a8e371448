"""What each node and conversion of a planned graph takes, from profiles of the graph in float and in integers."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from quantkit.model.ops.float_ops import PRODUCTS
from quantkit.model.ops.view import View
from quantkit.quantize.plan import Mode, Plan
from quantkit.quantize.plan.measured import Costs
from quantkit.runtime.profile import Profile, fused_nodes, kernel_sums

_QUANTIZED = frozenset({Mode.STATIC, Mode.ABSORBED})
_ENOUGH = 4  # conversions that say how seconds grow
_START, _RATE = 3e-6, 4e-10  # seconds of a conversion, and of each element, on x86 with AVX-512


def costs_of(
    view: View,
    plan: Plan,
    floats: Profile,
    static: Profile,
    *,
    total: float = 0.0,
) -> Costs:
    """Return what each node and conversion takes.

    Args:
        view: The graph that is planned.
        plan: What the rules make of it.
        floats: It, as it is.
        static: The same as that plan has it, in calibrated integers.
        total: Seconds of the model as the user gave it.
    """
    first, second = kernel_sums(view, floats), kernel_sums(view, static)
    fused = fused_nodes(view, floats)
    after = second.by_node()
    elements = {**first.elements, **second.elements}
    quantize, dequantize = (_seen_at(view, plan, s) for s in (second.quantize, second.dequantize))
    line = _fitted([(elements.get(t, 0), s) for t, s in (*quantize.items(), *dequantize.items())])
    usual = {t: line(size) for t, size in elements.items() if size}
    before = _apart(first.by_node(), after, fused, plan)
    before, fused = _sums_apart(view, plan, before, fused, usual)
    slower = _share_excess(view, plan, before, after)
    return Costs(
        floats=before,
        static=after,
        quantize=_added(usual | quantize, slower[0]),
        dequantize=_added(usual | dequantize, slower[1]),
        fused=fused,
        total=total or floats.total,
    )


def _apart(
    before: Mapping[str, float],
    after: Mapping[str, float],
    fused: Iterable[Sequence[str]],
    plan: Plan,
) -> dict[str, float]:
    """Return the seconds of float nodes, those of a kernel of several given to the ones that may be in integers.

    What stays float either way was seen alone, among integers: it takes that, and the others what is left of the kernel.
    """
    found = dict(before)
    for names in fused:
        left = sum(found.pop(name, 0.0) for name in names)
        static = [n for n in names if n in plan.node and plan.node[n].mode in _QUANTIZED]
        for name in names:
            if name not in static and static:
                found[name] = min(left, after.get(name, 0.0))
                left -= found[name]
        found[static[0] if static else names[-1]] = left
    return found


def _sums_apart(
    view: View,
    plan: Plan,
    before: Mapping[str, float],
    fused: Iterable[Sequence[str]],
    usual: Mapping[str, float],
) -> tuple[dict[str, float], tuple[tuple[str, ...], ...]]:
    """Return the seconds of float nodes and the fused ones, with an Add of its own where one kernel does Conv and Add.

    Integer kernels are two: next to an integer Conv, a float Add takes about what a conversion takes.
    """
    found, left = dict(before), []
    nodes = {node.name: node for node in view.nodes}
    for names in fused:
        sums = [n for n in names if nodes[n].op_type == "Add" and nodes[n].outputs[0] in usual]
        products = [n for n in names if nodes[n].op_type in PRODUCTS]
        others = [n for n in names if n not in sums]
        modes = [plan.node[n].mode for n in (*sums, *products) if n in plan.node]
        if len(sums) == len(products) == 1 and modes == [Mode.STATIC, Mode.STATIC]:
            whole = sum(found.pop(n, 0.0) for n in names)
            found[sums[0]] = min(whole / 2, usual[nodes[sums[0]].outputs[0]])
            found[products[0]] = whole - found[sums[0]]
        else:
            others = list(names)
        if len(others) > 1:
            left.append(tuple(others))
    return found, tuple(left)


def with_dynamic(view: View, costs: Costs, products: Collection[str], profile: Profile) -> Costs:
    """Return the costs with those of products that are quantized as they come.

    Args:
        view: The graph that is planned.
        costs: What is known already.
        products: The names of these products.
        profile: The graph with them, and all else in float.
    """
    found = kernel_sums(view, profile).by_node()
    # It ran at another time, when the machine was more or less busy: what is the same in both tells by how much.
    others = [name for name in found if name not in products]
    took = sum(found[name] for name in others)
    factor = sum(costs.floats.get(name, 0.0) for name in others) / took if took > 0 else 1.0
    dynamic = {name: factor * found[name] for name in products if name in found}
    return replace(costs, dynamic=dynamic)


def _added(seconds: Mapping[str, float], more: Mapping[str, float]) -> dict[str, float]:
    return {t: max(0.0, s + more.get(t, 0.0)) for t, s in seconds.items()}


def _seen_at(view: View, plan: Plan, seconds: Mapping[str, float]) -> dict[str, float]:
    """Return seconds of conversions by the tensors that the plan quantizes: behind what was absorbed."""
    found: dict[str, float] = defaultdict(float)
    for name, took in seconds.items():
        tensor, reader = name, view.only_reader(name)
        while tensor not in plan.activation and reader is not None:
            tensor = view.nodes[reader].outputs[0]
            reader = view.only_reader(tensor)
        found[tensor if tensor in plan.activation else name] += took
    return dict(found)


def _share_excess(
    view: View, plan: Plan, before: Mapping[str, float], after: Mapping[str, float]
) -> tuple[dict[str, float], dict[str, float]]:
    """Return what float nodes take longer among integers, as a part of the conversions beside them.

    A layout that suits the integer kernels around it may not suit a float one: PRelu takes half as long again there.
    """
    enter: dict[str, float] = defaultdict(float)
    leave: dict[str, float] = defaultdict(float)
    for node in view.nodes:
        decided = plan.node.get(node.name)
        if decided is not None and decided.mode in _QUANTIZED:
            continue
        excess = after.get(node.name, 0.0) - before.get(node.name, 0.0)
        sides = [(leave, t) for t in node.inputs if t in plan.activation]
        sides += [(enter, t) for t in node.outputs if t in plan.activation]
        for sums, tensor in sides:
            sums[tensor] += excess / len(sides)
    return dict(enter), dict(leave)


def _fitted(seen: Iterable[tuple[int, float]]) -> Callable[[int], float]:
    """Return seconds by elements: a line through what was seen, as far as that is enough."""
    points = [(size, seconds) for size, seconds in seen if size]
    if len(points) < _ENOUGH:
        return lambda size: _START + _RATE * size
    sizes, seconds = np.array(points, dtype=np.float64).T
    # Relative errors count: a conversion of a vector is as often wrong as one of an image.
    weights = 1 / np.maximum(seconds, 1e-7)
    columns = np.stack([weights, weights * sizes], axis=1)
    (start, rate), *_ = np.linalg.lstsq(columns, np.ones(len(points)), rcond=None)
    start, rate = max(float(start), 1e-7), max(float(rate), 1e-11)
    return lambda size: start + rate * size
