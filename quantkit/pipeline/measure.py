"""Profile a prepared model and choose the nodes to keep out of int8.

    the rules' plan -> emit it, rounded to nearest -> profile it beside the float model -> costs -> the nodes that lose time

It runs nothing of the data but a sample or two, and what it finds is kept with the preparation. `ratio_to_float` and
`time_ratios` compare finished files by their run time, in turns.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from weakref import WeakKeyDictionary

import numpy as np
import onnx_ir as ir

from quantkit.calibration.monitor import Monitor, Silent
from quantkit.evaluate.latency import Lab, measure_latency
from quantkit.files import scratch
from quantkit.model.graph.load import LoadedModel
from quantkit.model.graph.save import Stage, copy_of
from quantkit.model.ops.float_ops import MATRIX_PRODUCTS, PRODUCTS
from quantkit.model.ops.view import View
from quantkit.pipeline.plan_prepared import plan_of
from quantkit.pipeline.prepared import Feeds, Prepared
from quantkit.quantize.emit import Format, emit_static
from quantkit.quantize.plan import Kept, Mode, Plan, SolvedIntegers
from quantkit.quantize.plan.measured import Costs, choose, predict
from quantkit.quantize.plan.selection import resolve_names
from quantkit.result import Interval
from quantkit.runtime.check_result import LARGE
from quantkit.runtime.profile import (
    CLOCK,
    Pace,
    Profile,
    fused_nodes,
    is_plausible,
    kernel_sums,
    load_text,
    profile_models,
    run_seconds,
    time_models,
)
from quantkit.runtime.runs import run_made_up
from quantkit.runtime.session import RUNTIME_ERRORS, first_line, make_session
from quantkit.targets import integer_time, this_machine

SLOWEST = 1.02  # of float's time: a result may take no more
_SECONDS = 1.0  # for which each of two models is timed
_TRIES = 2  # to measure times that are plausible and steady
SWITCH = "QUANTKIT_MEASURE"  # "0": unless it is asked for, nothing is measured
_SHORTEST = 100e-6  # seconds; of less than that, calling the runtime is the larger part
_SAMPLES = 2
# By how much of themselves figures may be wrong that did not come true.
_COARSER, _UNSURE = (0.25,), 100.0
_FOREIGN = 0.5  # the same, of a CPU that is not this one
_LONG = 30e-3  # seconds; one sample of a run as long as that is enough
_LITTLE = 0.05  # of the time: products that take less are not tried in a third way
_NONE_SLOWER = "no node is slower in int8"
_GAIN = 0.02  # of the time: less is not worth another plan than that of the rules
_QUANTIZED = frozenset({Mode.STATIC, Mode.ABSORBED})
_ENOUGH = 4  # conversions that say how seconds grow
_START, _RATE = 3e-6, 4e-10  # seconds of a conversion, and of each element, on x86 with AVX-512


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What measuring led to.

    Attributes:
        kept: The nodes that are not to run in calibrated integers, and how instead.
        costs: What was measured; None: nothing was.
        rules: The plan without what was measured; None: nobody asked for costs.
        notes: Why nothing was measured.
    """

    kept: Mapping[str, Kept] = field(default_factory=lambda: MappingProxyType({}))
    costs: Costs | None = None
    rules: Plan | None = None
    notes: tuple[str, ...] = ()


def with_costs(
    prepared: Prepared, output_format: Format = Format.QDQ, monitor: Monitor | None = None
) -> Prepared:
    """Return a preparation that knows the times of its nodes on this machine, or why they are unknown.

    Times that are known are not measured again, and nothing is measured where the settings say no.

    Args:
        prepared: The model.
        output_format: How it is to be written down.
        monitor: Told what is done.
    """
    if (
        prepared.job.kept is not None
        or not _is_measured(prepared)
        or _key(prepared) in prepared.costs
    ):
        return prepared
    found = _costs(prepared, plan_of(prepared, output_format), monitor)
    return replace(prepared, costs={**prepared.costs, _key(prepared): found})


# By float model, then by target and types. A second timing may decide differently, and the record could then not say how the
# file of an earlier plan is written again.
_MEASURED: WeakKeyDictionary[ir.Model, dict[str, Costs | str]] = WeakKeyDictionary()


def _costs(prepared: Prepared, rules: Plan, monitor: Monitor | None) -> Costs | str:
    """Return the times of its nodes, or why they are unknown; measured once, unless the preparation knows them."""
    key = _key(prepared)
    if key in prepared.costs:
        return prepared.costs[key]
    measured = _MEASURED.setdefault(prepared.ready.model, {})
    if key not in measured:
        (monitor or Silent()).stage("Measuring what integers gain here")
        measured[key] = _measured(prepared, rules)
    return measured[key]


def _key(prepared: Prepared) -> str:
    """Return by what costs are known: target and types."""
    options = prepared.job.options
    return f"{options.runs_on.name} {options.activation.name} {options.weight.name}"


def decide(
    prepared: Prepared, output_format: Format = Format.QDQ, monitor: Monitor | None = None
) -> Decision:
    """Return which nodes of a prepared model stay out of calibrated integers because these are slower here.

    Args:
        prepared: The model; where it does not know its costs they are measured.
        output_format: How it is to be written down.
        monitor: Told what is done.
    """
    if prepared.job.kept is not None:
        return Decision(kept=prepared.job.kept)
    if not _is_measured(prepared):
        return Decision()
    rules = plan_of(prepared, output_format)
    found = _costs(prepared, rules, monitor)
    if isinstance(found, str):
        return Decision(notes=(found,), rules=rules)
    kept = _slower(prepared, rules, found)
    plan = plan_of(prepared, output_format, kept) if kept else rules
    before, after = (predict(prepared.ready.view, p, found) for p in (rules, plan))
    if after > (1 - _GAIN) * before:
        kept = {}
    return Decision(kept=kept, costs=found, rules=rules)


def _slower(prepared: Prepared, rules: Plan, costs: Costs) -> dict[str, Kept]:
    """Return what is better left out of integers, but for what the user wants there."""
    view = prepared.ready.view
    forced = resolve_names(prepared.job.options.forced, view.names)
    return {n: one for n, one in choose(view, rules, costs).items() if n not in forced}


def timing_notes(
    decision: Decision, view: View, plan: Plan, ratio: float | None = None
) -> tuple[str, ...]:
    """Return what was measured, and what it says of a plan; or why nothing was measured.

    Args:
        decision: What was measured.
        view: The graph.
        plan: The plan that is written in the end.
        ratio: Its time as a share of float's, measured in turns; None: it is predicted.
    """
    costs, rules = decision.costs, decision.rules
    if costs is None or rules is None:
        return decision.notes
    planned, static = (
        [n.node for n in p.nodes if n.mode in {Mode.STATIC, Mode.ABSORBED}] for p in (rules, plan)
    )
    left = len(planned) - len(static)
    rest = f"{left} of {len(planned)} nodes stay out of int8" if left else _NONE_SLOWER
    seconds = predict(view, plan, costs) if ratio is None else ratio * costs.total
    runs = static or any(n.mode is Mode.INTEGER for n in plan.nodes)
    int8 = f", int8 {_ms(seconds)}{' predicted' if ratio is None else ''}" if runs else ""
    busy = f" ({costs.load})" if costs.load else ""
    where = "" if costs.source == "measured" else f", converted for {plan.target}"
    return (f"timing: float {_ms(costs.total)}{int8}{where}; {rest}{busy}",)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


def _is_measured(prepared: Prepared) -> bool:
    """Say whether a model is to be run: asked for, or by default where the target is this machine."""
    options = prepared.job.options
    if options.covers_all or options.measure is False:
        return False
    if options.measure is None and os.environ.get(SWITCH) == "0":
        return False
    return integer_time(options.runs_on.name) is not None and prepared.ready.nbytes < LARGE


def _measured(prepared: Prepared, rules: Plan) -> Costs | str:
    """Run the model in float and as the rules plan it; return what that takes, or why nobody knows."""
    if not any(n.mode is Mode.STATIC for n in rules.nodes):
        return "Nothing was measured: nothing of it runs in calibrated integers."
    with scratch() as folder:
        try:
            source = file_of(prepared.source, folder)
            feeds = _feeds(prepared, source)
            if not feeds:
                return "Nothing was measured: no inputs could be made up."
            seconds = run_seconds(str(source), feeds)
            if prepared.job.options.measure is None and seconds < _SHORTEST:
                return f"Nothing was measured: a run takes {1e6 * seconds:.0f} us, of which too much is the call itself."
            lab = _Lab(feeds[: 1 if seconds > _LONG else None], folder, _patience(seconds))
            for _ in range(_TRIES):
                if (costs := _profiled(prepared, rules, source, lab)) is not None:
                    break
            else:
                return f"Planned by rules: timings are unstable ({load_text()})."
            costs = replace(_confirmed(prepared, rules, costs, lab), load=load_text())
            return _elsewhere(costs, rules, prepared.job.options.runs_on.name)
        except RUNTIME_ERRORS as e:
            return f"Nothing was measured: {first_line(e)}"


def _elsewhere(costs: Costs, rules: Plan, target: str) -> Costs:
    """Return what the same takes on the CPU that it is for; of one that is not this machine only large differences count."""
    factor = integer_time(target)
    if factor is None or target in {"cpu", this_machine().target}:
        return costs
    products = {n.node for n in rules.nodes if n.op_type in PRODUCTS}
    static = {n: s * (factor if n in products else 1.0) for n, s in costs.static.items()}
    return replace(costs, static=static, noise=max(costs.noise, _FOREIGN), source="table")


def _feeds(prepared: Prepared, source: Path) -> Feeds:
    """Return a sample of each shape, two at most; made up where no data was given."""
    by_shape = {
        tuple((name, array.shape) for name, array in sorted(feed.items())): feed
        for feed in reversed(prepared.judged)
    }
    if by_shape:
        return list(by_shape.values())[-_SAMPLES:]
    session = make_session(str(source), threads=1)
    found = run_made_up(session, prepared.input_ranges)
    return [found.feeds] if found.feeds else []


@dataclass(frozen=True, slots=True)
class _Lab:
    """What models are run on, where they are written, and the seconds that each may take in all."""

    feeds: Feeds
    folder: Path
    seconds: float


def _patience(run: float) -> float:
    """Return the seconds to spend on a model of which one run takes so long."""
    return min(1.0, max(0.3, 100 * run))


def _profiled(prepared: Prepared, rules: Plan, source: Path, lab: _Lab) -> Costs | None:
    """Return what each node takes; None if runs take too different times for that."""
    view = prepared.ready.view
    paths = [
        source,
        write_draft(prepared, None, lab.folder / "float.onnx"),
        write_draft(prepared, rules, lab.folder / "static.onnx"),
    ]
    found = profile_models(paths, lab.feeds, lab.folder, seconds=lab.seconds)
    given, floats, static = found
    ratios = (floats.total / given.total, static.total / given.total)
    if not all(map(is_plausible, ratios)) or not all(one.steady for one in found):
        return None
    costs = costs_of(view, rules, floats, static, total=given.total)
    products = [
        n.node for n in rules.nodes if n.mode is Mode.STATIC and n.op_type in MATRIX_PRODUCTS
    ]
    if sum(costs.floats.get(name, 0.0) for name in products) < _LITTLE * costs.total:
        return costs
    kept = {n.node: Kept(None, Mode.STORED) for n in rules.nodes if n.mode is Mode.STATIC}
    kept |= {name: Kept(None, Mode.INTEGER) for name in products}
    plan = plan_of(prepared, Format.QDQ, kept)
    products = [name for name in products if plan.node[name].mode is Mode.INTEGER]
    if not products:
        return costs
    path = write_draft(prepared, plan, lab.folder / "dynamic.onnx")
    (dynamic,) = profile_models([path], lab.feeds, lab.folder, seconds=lab.seconds)
    return with_dynamic(view, costs, products, dynamic)


def _confirmed(prepared: Prepared, rules: Plan, costs: Costs, lab: _Lab) -> Costs:
    """Run what the figures lead to beside what the rules lead to: if it is not faster, only larger differences count."""
    before = lab.folder / "static" / "static.onnx"
    for number, noise in enumerate((costs.noise, *_COARSER)):
        found = replace(costs, noise=noise)
        kept = _slower(prepared, rules, found)
        if not kept:
            return found
        plan = plan_of(prepared, Format.QDQ, kept)
        chosen = write_draft(prepared, plan, lab.folder / f"chosen{number}.onnx")
        was, now = time_models([before, chosen], lab.feeds, seconds=lab.seconds)
        if now < (1 - _GAIN / 2) * was:
            return found
    return replace(costs, noise=_UNSURE)


def write_draft(prepared: Prepared, plan: Plan | None, path: Path) -> Path:
    """Write the float model, or what a plan makes of it with weights rounded to nearest, into a folder named as the file.

    Args:
        prepared: The model.
        plan: The plan; None: the float model.
        path: Names the file and its folder.
    """
    model = copy_of(prepared.ready.model)
    if plan is not None:
        emit_static(model, plan, SolvedIntegers(), Format.QDQ)
    folder = path.with_suffix("")
    folder.mkdir(exist_ok=True)
    stage = Stage(folder / path.name, folder)
    stage.write(model)
    return stage.model_path


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


def ratio_to_float(source: LoadedModel, candidate: Path, feeds: Feeds) -> float | None:
    """Return what a file takes of float's time, the two taking turns; at most 1 where the interval holds 1.

    A ratio that cannot be, or has an interval as wide as itself, is measured again; None: it is not known even then.

    Args:
        source: The float model.
        candidate: The file.
        feeds: Samples to time.
    """
    with scratch() as folder:
        for _ in range(_TRIES):
            ((ratio, interval),) = time_ratios([file_of(source, folder), candidate], feeds)
            if interval is None:
                return 1.0
            if is_plausible(ratio) and interval.high <= 2 * interval.low:
                return ratio if interval.low > 1 else min(ratio, 1.0)
    return None


def time_ratios(
    models: Sequence[Path], feeds: Feeds, width: float = 0.02
) -> list[tuple[float, Interval | None]]:
    """Return what each file but the first takes of the first one's time, and its interval; None where it does not run.

    Args:
        models: Files, which take turns.
        feeds: Samples to time.
        width: Half the width of an interval, relative to the ratio, at which timing may end early.
    """
    lab = Lab(clock=CLOCK, pace=Pace(seconds=_SECONDS, width=width))
    named = [(str(number), path) for number, path in enumerate(models)]
    latency = measure_latency(named, feeds, threads=(1,), lab=lab).latency
    found = [latency[name][:1] for name, _ in named[1:]]
    return [(own[0].ratio, own[0].ratio_interval) if own else (1.0, None) for own in found]


def file_of(source: LoadedModel, folder: Path) -> Path:
    """Return the file of a model as it was given; one that was given as an object is written into the folder.

    Args:
        source: The model.
        folder: Where it is written, if it must be.
    """
    if source.path is not None:
        return source.path
    path = folder / "given.onnx"
    assert source.proto is not None  # noqa: S101 - one of the two is given
    path.write_bytes(source.proto.SerializeToString())
    return path
