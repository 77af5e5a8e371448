"""Plan a prepared model statically: what is chosen about it becomes a plan. Reads no data, writes nothing."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from quantkit.calibration.calibration import Calibration
from quantkit.calibration.requests import CalibratorOf
from quantkit.errors import UsageError
from quantkit.model.graph.load import LoadedModel
from quantkit.model.ops.view import View
from quantkit.model.provenance import model_digest
from quantkit.pipeline.prepared import FloatModel, Prepared
from quantkit.quantize.plan import (
    Format,
    Kept,
    Plan,
    check_fits,
    check_operators,
    missing_ranges,
    plan_static,
)
from quantkit.quantize.plan.selection import resolve_tensors
from quantkit.settings import StaticSettings

_NOTHING_KEPT: Mapping[str, Kept] = MappingProxyType({})


def format_of(options: StaticSettings) -> Format:
    """Return how a plan is to be written down: as chosen, or QDQ."""
    return Format(options.format or Format.QDQ)


def plan_of(
    prepared: Prepared,
    output_format: Format = Format.QDQ,
    kept: Mapping[str, Kept] = _NOTHING_KEPT,
) -> Plan:
    """Decide how each node and tensor of a prepared model is quantized.

    Args:
        prepared: The model, what was observed of it, and what is asked for.
        output_format: How the plan is to be written down.
        kept: Nodes that compute in float because integers were tried and lose too much.

    Raises:
        UsageError: Something that is asked for makes no sense, or the format has no operator for it.
    """
    return planner_of(prepared, output_format)(kept)


def planner_of(
    prepared: Prepared, output_format: Format = Format.QDQ
) -> Callable[[Mapping[str, Kept]], Plan]:
    """Return `plan_of` for one model and format and any nodes that are kept: ranges, which take longest, are found once.

    Args:
        prepared: The model, what was observed of it, and what is asked for.
        output_format: How plans are to be written down.
    """
    ready, job = prepared.ready, prepared.job
    # The best range depends on how many steps it has.
    fitted = prepared.fitted if job.options.activation.bits == 8 else {}
    ranges = ranges_of(prepared.seen, ready, job.options.methods, fitted)
    powers = _powers(prepared.seen, ready.view)
    options = replace(job.options, format=output_format.value)  # one of its two

    def planned(kept: Mapping[str, Kept]) -> Plan:
        plan = plan_static(ready.view, ranges, options, powers, kept=kept)
        plan = replace(plan, factors_id=ready.factors_id, output_format=output_format)
        check_operators(plan, ready.view, job.options.runs_on, output_format)
        return plan

    return planned


def ranges_of(
    seen: Calibration,
    ready: FloatModel,
    methods: Mapping[str, str],
    fitted: Mapping[str, tuple[float, float]] = MappingProxyType({}),
) -> dict[str, tuple[float, float]]:
    """Return each tensor's range, by its own method where one is asked for.

    Args:
        seen: What was observed.
        ready: The model.
        methods: Of single tensors, by name or pattern.
        fitted: Ranges that replace those of the default method.

    Raises:
        UsageError: A rule matches no tensor, or there is no such method.
    """
    found = {**seen.ranges(), **fitted}
    names = frozenset(found)
    for rule, method in methods.items():
        try:
            other = seen.by(CalibratorOf(name=method))
        except ValueError as e:
            raise UsageError(f"The rule for tensor '{rule}' is wrong: {e}") from e
        for tensor in resolve_tensors(rule, names):
            bounds = other.range(tensor)
            found[tensor] = (float(bounds.low[0]), float(bounds.high[0]))
    for tensor, was in ready.renamed.items():  # of a calibration of the model in halves
        if was in found:
            found.setdefault(tensor, found[was])
    return found


def _powers(seen: Calibration, view: View) -> dict[str, float]:
    """Return the mean square of what each Softmax makes, where its distribution was observed."""
    made = [node.outputs[0] for node in view.nodes if node.op_type == "Softmax"]
    known = set(seen.tensors)
    sketches = {name: seen.sketch(name) for name in made if name in known}
    return {
        name: float(sketch.variance[0] + sketch.mean[0] ** 2)
        for name, sketch in sketches.items()
        if sketch is not None and not sketch.empty
    }


def check_plan(
    ready: FloatModel, plan: Plan, options: StaticSettings, *, early: bool = False
) -> None:
    """Check that a plan that was given fits a model.

    Args:
        ready: The model.
        plan: The plan, for this target.
        options: Say what is to run the result.
        early: Channels are still to be equalized, so that a plan for equalized ones cannot be told yet.

    Raises:
        UsageError: It does not; names the first thing that is wrong.
    """
    if not (early and plan.factors_id):
        check_fits(plan, ready.view, ready.factors_id)
    output_format = plan.output_format or Format.QDQ
    check_operators(plan, ready.view, options.runs_on, output_format)


def lacks(
    seen: Calibration, source: LoadedModel, ready: FloatModel, options: StaticSettings | None
) -> tuple[str, ...]:
    """Say whether a calibration was made with another model, and which ranges a plan will lack.

    Args:
        seen: The calibration.
        source: The float model as it was read.
        ready: The same, simplified.
        options: What will be planned; None: nothing, there is a plan.
    """
    found = []
    if seen.header.get("model", {}).get("sha256") != model_digest(source)["sha256"]:
        found.append("The calibration was made with another model; tensors are matched by name.")
    if options is None:
        return tuple(found)
    ranges = ranges_of(seen, ready, options.methods)
    missing = missing_ranges(ready.view, ranges, options)
    if not missing:
        return tuple(found)
    count = "1 tensor" if len(missing) == 1 else f"{len(missing)} tensors"
    lack = f"The calibration has no range of {count} that target '{options.runs_on.name}' needs (the first: '{missing[0]}')"
    why = "what makes or reads them may stay float. Calibrate this model again, or quantize with the data itself."
    return (*found, f"{lack}: {why}")
