"""Weights, and on request arithmetic, in 16 bits.

Without samples the plan depends on constants alone. If the result outputs NaN or infinity, it is planned again with the ranges of just
the samples that it was run on, so that less is computed in float16.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx_ir as ir

from quantkit.calibration.opened import opened_for
from quantkit.errors import NothingToQuantizeError, QuantkitError
from quantkit.model.graph.half import half_type
from quantkit.model.graph.normalize import lift_floats
from quantkit.model.graph.save import copy_of
from quantkit.model.graph.shapes import declare_only, declared_inside
from quantkit.model.graph.view import half_view_of
from quantkit.model.ops.view import HalfView
from quantkit.pipeline.float16_ranges import observed_ranges, open_for_float16, ranges_in
from quantkit.pipeline.form import (
    Attempt,
    FloatModel,
    Form,
    Job,
    LoadedModel,
    PlanDraft,
    Prepared,
    Reference,
    Repair,
    float_copy,
    with_opset,
)
from quantkit.quantize.emit import emit_half
from quantkit.quantize.plan import Mode, Plan, plan_half
from quantkit.quantize.plan.half import LEAST_OPSET
from quantkit.quantize.rewrite.simplify.initializers import tie_weights
from quantkit.runtime.kernels import half_kernels
from quantkit.settings import DataSettings, Float16Settings
from quantkit.settings.record import settings_record

_JUDGED_ON = "samples of the given data"
_UNKNOWN = (
    "Ranges are unknown: nodes stay float32 for what their constants are, not for what they compute. Samples (--data) show "
    "which values do not fit into float16."
)
_NOTHING = "Nothing computes in float16, as no layer (Conv, Gemm, MatMul, ...) can: the file is that without --compute."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared(Prepared):
    """With what planners see of the model, and the values whose types it declared by itself."""

    half: HalfView
    declared: frozenset[str]


_Attempt = Attempt[_Prepared, PlanDraft]


class Float16Form(Form[_Prepared, PlanDraft]):
    """Stores weights in 16 bits, and computes with them where the settings say so and values fit."""

    kind = "float16"
    job: Job[Float16Settings]

    def prepare(self, source: LoadedModel) -> _Prepared:
        """Make a copy ready, and observe the ranges where these decide what computes in float16."""
        options = self.job.options
        found = _ready(source, self.job)
        if self.writes:
            _require_halves(plan_half(found.half, options), source, options)
        data = open_for_float16(source, self.job, self.monitor)
        if data is None:
            return found
        judged, _ = data.judged(source)
        found = replace(found, data=data, judged=judged, on=_JUDGED_ON)
        if not options.compute:
            return found
        skip_bad = self.job.calibrate.skip_bad
        return replace(
            found, seen=observed_ranges(source, found.half, data, self.monitor, skip_bad=skip_bad)
        )

    def plan(self, prepared: _Prepared) -> PlanDraft:
        """Plan with the ranges, where they were observed."""
        ranges = ranges_in(prepared.seen) if self._observes(prepared) else None
        return PlanDraft(plan=plan_half(prepared.half, self.job.options, ranges))

    def _observes(self, prepared: _Prepared) -> bool:
        return self.job.options.compute and prepared.data is not None

    def emit(self, prepared: _Prepared, draft: PlanDraft) -> ir.Model:
        """Emit a copy; types that the model did not declare itself are not stored."""
        self.monitor.stage("Writing and comparing")
        model = copy_of(prepared.ready.model)
        emit_half(model, draft.plan)
        declare_only(model, prepared.declared)
        return model

    def record(self, prepared: _Prepared, draft: PlanDraft) -> dict[str, Any]:
        """Return the options; settings of data only where it decided something."""
        settings = self.job.settings if self._observes(prepared) else None
        return {
            **settings_record(self.job.options, settings),
            "verify": self.output.verify,
            "external_data": self.output.external_data,
            "skip_bad": self.job.calibrate.skip_bad,
        }

    def reference(self, prepared: _Prepared, draft: PlanDraft, reference: Reference) -> Reference:
        """Feed and read in float16 the inputs and outputs that are float16 in the result."""
        ports = {*prepared.half.view.inputs, *prepared.half.outputs} & draft.plan.half.keys()
        return replace(reference, halved=frozenset(ports))

    def repairs(self, draft: PlanDraft) -> Sequence[Repair[_Prepared, PlanDraft]]:
        """Leave more in float32, where the result does not run or outputs NaN."""
        return (
            Repair(when=_is_broken, change=self._with_less_in_float16, always=True, errors=True),
        )

    def inspect(self, attempt: _Attempt) -> dict[str, Any]:
        """Ask onnxruntime what it computes in float16."""
        if not self.job.options.compute or not self.output.verify:
            return {}
        self.monitor.stage("Looking at what runs")
        return {"half": half_kernels(attempt.path)}

    def warnings(self, attempt: _Attempt, common: list[str]) -> list[str]:
        """Return what was changed or asked for in vain, and whether anything computes in float16."""
        options, prepared, plan = self.job.options, attempt.prepared, attempt.draft.plan
        found = [*attempt.draft.warnings, *_ignored_ports(plan, prepared.half, options)]
        found += [_UNKNOWN] if options.compute and prepared.data is None else []
        found += [_NOTHING] if options.compute and not _computed(plan) else []
        return [*found, *common]

    def _with_less_in_float16(self, attempt: _Attempt) -> PlanDraft | None:
        """Plan with the ranges of just the samples that the result was run on; None if that changes nothing."""
        prepared, before = attempt.prepared, attempt.draft.plan
        if not self.job.options.compute or not attempt.feeds:
            return None
        try:
            feeds = [dict(feeds) for feeds in attempt.feeds]
            data = opened_for(prepared.source, feeds, DataSettings(shuffle=False))
            more = ranges_in(observed_ranges(prepared.source, prepared.half, data, self.monitor))
        except QuantkitError:
            return None
        known = ranges_in(prepared.seen)
        both = {
            tensor: (
                min(low, known.get(tensor, (low, high))[0]),
                max(high, known.get(tensor, (low, high))[1]),
            )
            for tensor, (low, high) in more.items()
        }
        plan = plan_half(prepared.half, self.job.options, {**known, **both})
        if plan == before:
            return None
        fewer = _computed(before) - _computed(plan)
        why = f"{attempt.error} So more stays float32: nodes ({fewer}), inputs and outputs that hold such values."
        return PlanDraft(plan=plan, warnings=(why,))


def foreseen(loaded: LoadedModel) -> tuple[Plan, int]:
    """Return what would be stored in float16 by default, and about how many bytes the file would have; nothing is changed.

    Raises:
        ModelError: Its opset is too old, and cannot be raised.
    """
    job = Job(source="", options=Float16Settings())
    found = _ready(loaded, job)
    plan = plan_half(found.half, job.options)
    saved = sum(found.half.constants[name].nbytes // 2 for name in plan.half)
    tied = held_bytes(loaded.model) - held_bytes(found.ready.model)
    return plan, loaded.nbytes - saved - tied


def held_bytes(model: ir.Model) -> int:
    """Return what all initializers take."""
    tensors = (v.const_value for g in model.graphs() for v in g.initializers.values())
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def _ready(source: LoadedModel, job: Job[Float16Settings]) -> _Prepared:
    """Raise the opset, store once what is there twice, and declare the types inside."""
    options = job.options
    model, notes, _ = float_copy(source.model, keep_inputs=options.keep_inputs, wide=False)
    model, raised = with_opset(model, LEAST_OPSET[options.dtype])
    notes += raised
    if tied := tie_weights(model):
        notes.append(f"Weights that stood in the file twice and are stored once: {tied}.")
    if options.compute:
        lift_floats(model)
    declared = declared_inside(model)
    half = half_view_of(model, options.dtype, computed=options.compute)
    ready = FloatModel(model=model, view=half.view, notes=tuple(notes))
    return _Prepared(job=job, source=source, ready=ready, half=half, declared=declared)


def _require_halves(plan: Plan, loaded: LoadedModel, options: Float16Settings) -> None:
    """Refuse a plan that changes nothing, with the reasons."""
    if plan.changes:
        return
    half = half_type(loaded.model)
    heads = (f"{n.op_type}: {n.reason.head}" for n in plan.nodes)
    reasons = Counter(heads).most_common(2)
    why = f"its weights are {half} already" if half else "it has no float32 weights worth it"
    if reasons and not half:
        why = "; ".join(f"{count} {reason}" for reason, count in reasons)
    raise NothingToQuantizeError(f"Nothing to store in {options.dtype} in {loaded.name}: {why}")


def _is_broken(attempt: _Attempt) -> bool:
    return attempt.error is not None


def _ignored_ports(plan: Plan, half: HalfView, options: Float16Settings) -> list[str]:
    """Return which inputs and outputs were asked for in float16 and stay float32."""
    asked = [*half.view.inputs] if options.half_inputs else []
    asked += half.outputs if options.half_outputs else ()
    floats = frozenset(half.floats)
    return [
        f"'{name}' was asked for in float16 and stays float32: its values do not fit, or it is input and output at once."
        for name in asked
        if name in floats and name not in plan.half
    ]


def _computed(plan: Plan) -> int:
    return sum(node.mode is Mode.HALF for node in plan.nodes)
