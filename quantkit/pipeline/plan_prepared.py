"""The second step of static quantization: what is chosen about a prepared model becomes a plan. Reads no data, writes nothing."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from quantkit.calibration.calibration import Calibration
from quantkit.errors import UsageError
from quantkit.model.graph.opset import opset_of
from quantkit.model.ops.view import View
from quantkit.pipeline.prepare import Prepared, minimum_opset, ranges_of
from quantkit.pipeline.record import StaticJob
from quantkit.quantize.plan import Format, Kept, Plan, check_operators, plan_static

__all__ = ["for_target", "plan_of", "planner_of", "with_choices"]

_NOTHING_KEPT: Mapping[str, Kept] = MappingProxyType({})


def with_choices(prepared: Prepared, job: StaticJob) -> Prepared:
    """Return the same preparation for other choices about nodes, tensors and ranges.

    Args:
        prepared: The preparation; it stays as it is.
        job: What is asked for now, of the same model and data.

    Raises:
        UsageError: Something else was to be observed or rewritten for that.
    """
    was, target = prepared.job, job.options.runs_on
    if target != was.options.runs_on:
        raise UsageError(
            f"The model was prepared for {was.options.runs_on.name}, and {target.name} is asked for: prepare it again, with "
            "that target."
        )
    if job.recover != was.recover:
        raise UsageError(
            "What is done to win back accuracy is decided when a model is prepared: prepare it again, with these settings."
        )
    if job.options.keep_inputs != was.options.keep_inputs:
        raise UsageError(
            "Which inputs become constants is decided when a model is prepared: prepare it again, with these settings."
        )
    model = prepared.ready.model
    needed, opset = minimum_opset(job.options, model), opset_of(model)
    if needed > opset:
        raise UsageError(
            f"These types need opset {needed}, and the model was prepared in opset {opset}: prepare it again, with these types."
        )
    method = job.calibrate.method
    if method == was.calibrate.method:
        return replace(prepared, job=job)
    return replace(prepared, job=job, seen=prepared.seen.by(method), fitted={}, turns=None)


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
    ranges = ranges_of(prepared.seen, ready, job.methods, fitted)
    powers = _powers(prepared.seen, ready.view)
    options = replace(job.options, format=output_format.value)  # one of its two

    def planned(kept: Mapping[str, Kept]) -> Plan:
        plan = plan_static(ready.view, ranges, options, powers, kept=kept)
        plan = replace(plan, factors_id=ready.factors_id, output_format=output_format)
        check_operators(plan, ready.view, job.options.runs_on, output_format)
        return plan

    return planned


def for_target(plan: Plan, job: StaticJob, output_format: Format) -> Plan:
    """Return a plan that was given, for the target and the format that it is applied with: a file may lack both.

    Args:
        plan: As it was given.
        job: Names the target.
        output_format: How it will be written down.
    """
    return replace(plan, target=job.options.runs_on.name, output_format=output_format)


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
