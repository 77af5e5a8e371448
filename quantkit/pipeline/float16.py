"""Floats of 16 bits, in order: load -> observe, where samples are to tell what fits -> plan -> emit -> write -> verify -> rename.

Without samples the plan goes by constants alone. What comes out NaN or infinite is planned again with the ranges of just the
samples that it was run on, so that less is computed in float16.
"""

import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx
import onnx_ir as ir

from quantkit.calibration import Calibration, CalibratorOf, MinMaxOf, Request
from quantkit.calibration.collect import CalibrateOptions, collect
from quantkit.calibration.container import is_calibration
from quantkit.calibration.monitor import Monitor, Silent
from quantkit.calibration.notes import require_values
from quantkit.calibration.points import Points
from quantkit.calibration.requests import RunningMinMax
from quantkit.errors import NothingToQuantizeError, QuantkitError, UsageError, VerifyError
from quantkit.model.graph.half import half_type
from quantkit.model.graph.half_view import half_view_of
from quantkit.model.graph.load import LoadedModel
from quantkit.model.graph.normalize import fix_defaults, lift_floats
from quantkit.model.graph.opset import opset_of, raise_opset
from quantkit.model.graph.save import Stage, copy_of, staged
from quantkit.model.graph.shapes import declare_only, declared_inside
from quantkit.model.ops.view import HalfView
from quantkit.model.provenance import Provenance
from quantkit.pipeline.calibrate import OpenedData, opened_for
from quantkit.pipeline.outcome import (
    QuantizeResult,
    read_model,
    require_same,
    require_signal,
    require_smaller,
    warnings_of,
)
from quantkit.pipeline.realize import write_checked
from quantkit.pipeline.record import float16_origin
from quantkit.quantize.emit import emit_half
from quantkit.quantize.plan import Mode, Plan, plan_half
from quantkit.quantize.plan.half import LEAST_OPSET
from quantkit.quantize.plan.half_nodes import Ranges
from quantkit.quantize.rewrite.simplify.initializers import tie_weights
from quantkit.runtime.check_result import Reference, Verification, run_float
from quantkit.runtime.kernels import half_kernels
from quantkit.settings import DataSettings, Float16Settings

__all__ = ["Float16Job", "float16", "foreseen", "held_bytes", "plan_float16"]

_JUDGED_ON = "samples of the given data"
_UNKNOWN = (
    "Ranges are unknown: nodes stay float32 for what their constants are, not for what they compute. Samples (--data) show "
    "which values do not fit into float16."
)
_NOTHING = "Nothing computes in float16, as no layer (Conv, Gemm, MatMul, ...) can: the file is that without --compute."


@dataclass(frozen=True, slots=True, kw_only=True)
class Float16Job:
    """What to write in 16 bits, and how.

    Attributes:
        source: The float model.
        options: What the user chose.
        data: Samples to judge the result on, and to find out what fits; None: there are none.
        settings: How samples are prepared.
        skip_bad: Leave out samples that cannot be read.
    """

    source: str | Path | onnx.ModelProto
    options: Float16Settings = field(default_factory=Float16Settings)
    data: object = None
    settings: DataSettings = field(default_factory=DataSettings)
    skip_bad: bool = False


def float16(
    job: Float16Job,
    output: str | Path,
    *,
    verify: bool = True,
    external_data: bool = False,
    monitor: Monitor | None = None,
) -> QuantizeResult:
    """Write a model in 16 bits; see `quantkit.quantize_float16`.

    Args:
        job: What to write, and how.
        output: Where to write.
        verify: Load and run the result, and compare it with float, before it is written.
        external_data: Write weights to a ``.data`` file beside the model.
        monitor: Told what is done.
    """
    started, output, monitor = time.perf_counter(), Path(output), monitor or Silent()
    options, kernels = job.options, None
    monitor.stage("Reading the model")
    loaded = read_model(job.source, output, job.data)
    with loaded.watched():
        draft = _draft(loaded.model, options)
        _require_halves(plan_half(draft.half, options), loaded, options)
        data = _opened(loaded, job, monitor)
        seen = None
        if options.compute and data is not None:
            seen = _observed(loaded, draft.half, data, monitor, skip_bad=job.skip_bad)
        how = {"verify": verify, "external_data": external_data, "skip_bad": job.skip_bad}
        origin = float16_origin(loaded, options, seen, how, job.settings)
        with staged(output) as stage:
            monitor.stage("Running the float model")
            reference = _reference(loaded, data) if verify else None
            monitor.stage("Writing and comparing")
            made = _made(_Work(loaded, draft, options, stage, reference, origin), seen, monitor)
            require_signal(made.checked)
            require_smaller(loaded, made.nbytes)
            if options.compute and verify:
                monitor.stage("Looking at what runs")
                kernels = half_kernels(stage.model_path)
            require_same(loaded, origin)
            external = stage.commit() is not None
    said = [*made.warnings, *_unheeded(made.plan, draft.half, options)]
    said += [_UNKNOWN] if options.compute and seen is None else []
    said += [_NOTHING] if options.compute and not _computed(made.plan) else []
    return QuantizeResult(
        plan=made.plan,
        input_bytes=loaded.nbytes,
        output_bytes=made.nbytes,
        external_data=external,
        verification=made.checked,
        warnings=(*said, *warnings_of(made.plan, loaded, made.nbytes, made.checked)),
        seconds=time.perf_counter() - started,
        notes=draft.notes,
        half=kernels,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """A float graph that is never changed, what planners see of it, and the values whose types it declared by itself."""

    model: ir.Model
    half: HalfView
    declared: frozenset[str]
    notes: tuple[str, ...]


def _draft(source: ir.Model, options: Float16Settings) -> _Draft:
    """Prepare a copy of the model; the source stays as it is."""
    model, before = copy_of(source), opset_of(source)
    fixed = fix_defaults(model, keep=options.keep_inputs)
    notes = [fixed] if fixed else []
    model = raise_opset(model, LEAST_OPSET[options.dtype])
    if opset_of(model) > before:
        notes.append(f"Opset raised from {before} to {opset_of(model)}.")
    if tied := tie_weights(model):
        notes.append(f"Weights that stood in the file twice and are stored once: {tied}.")
    if options.compute:
        lift_floats(model)
    declared = declared_inside(model)
    half = half_view_of(model, options.dtype, computed=options.compute)
    return _Draft(model=model, half=half, declared=declared, notes=tuple(notes))


def plan_float16(job: Float16Job, monitor: Monitor | None = None) -> Plan:
    """Make the plan of `float16`, and write nothing.

    Raises:
        QuantkitError: Model or data cannot be read.
    """
    monitor, loaded, options = monitor or Silent(), read_model(job.source), job.options
    with loaded.watched():
        draft = _draft(loaded.model, options)
        data = _opened(loaded, job, monitor)
        if not options.compute or data is None:
            return plan_half(draft.half, options)
        seen = _observed(loaded, draft.half, data, monitor, skip_bad=job.skip_bad)
        return plan_half(draft.half, options, _ranges(seen))


def foreseen(loaded: LoadedModel) -> tuple[Plan, int]:
    """Return what would be stored in float16 by default, and about how many bytes the file would have; nothing is changed.

    Raises:
        ModelError: Its opset is too old, and cannot be raised.
    """
    options = Float16Settings()
    draft = _draft(loaded.model, options)
    plan = plan_half(draft.half, options)
    saved = sum(draft.half.constants[name].nbytes // 2 for name in plan.half)
    return plan, loaded.nbytes - saved - (held_bytes(loaded.model) - held_bytes(draft.model))


def held_bytes(model: ir.Model) -> int:
    """Return what all initializers take."""
    tensors = (v.const_value for g in model.graphs() for v in g.initializers.values())
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


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
    raise NothingToQuantizeError(
        f"Nothing to store in {options.dtype} in {loaded.name}: {why}. Nothing was written."
    )


def _opened(loaded: LoadedModel, job: Float16Job, monitor: Monitor) -> OpenedData | None:
    """Open the samples, if there are any.

    Raises:
        QuantkitError: They cannot be read, or do not fit the model.
    """
    if job.data is None:
        return None
    path = Path(job.data) if isinstance(job.data, str | Path) else None
    if isinstance(job.data, Calibration) or (path is not None and is_calibration(path)):
        raise UsageError(
            "A calibration holds the ranges of some tensors, and float16 asks for all: give the samples themselves."
        )
    reading = CalibrateOptions(skip_bad=job.skip_bad, most=None)  # any sample may overflow
    data = opened_for(loaded, job.data, job.settings, reading)
    monitor.data_found(data.require().description)
    return data


def _observed(
    loaded: LoadedModel,
    half: HalfView,
    data: OpenedData,
    monitor: Monitor,
    *,
    skip_bad: bool = False,
) -> Calibration:
    """Find the smallest and largest value of every float tensor.

    Raises:
        DataError: The model does not run on the samples, or they hold no finite value.
    """
    monitor.stage("Observing ranges")
    known = {v.name for node in loaded.model.graph for v in node.outputs}
    known |= {v.name for v in loaded.model.graph.inputs}
    asked = tuple(Request(tensor=t, statistic=MinMaxOf()) for t in half.floats if t in known)
    how = CalibrateOptions(
        method=CalibratorOf(name="minmax"), ranges=False, requests=asked, skip_bad=skip_bad
    )
    seen = collect(loaded, data.require(), Points(tensors=()), how, data.settings, monitor)
    # An inner tensor may be infinite everywhere, as a mask is; samples may not.
    fed = {value.name for value in loaded.model.graph.inputs}
    require_values(seen.seen.select(lambda request: request.tensor in fed))
    return seen


def _ranges(seen: Calibration) -> Ranges:
    """Return what was seen; of infinity, which float16 has too, nothing is said."""
    found = {}
    for tensor, answers in seen.seen.answers.items():
        for answer in answers.values():
            if isinstance(answer, RunningMinMax) and (answer.strange or not answer.empty):
                found[tensor] = (0.0, 0.0) if answer.empty else answer.bounds
    return found


def _reference(loaded: LoadedModel, data: OpenedData | None) -> Reference:
    """Run the float model on samples, or on inputs that are made up."""
    feeds, _ = ([], "") if data is None else data.judged(loaded)
    if not feeds:
        return run_float(loaded)
    return run_float(loaded, feeds[0], more=feeds[1:], on=_JUDGED_ON)


@dataclass(frozen=True, slots=True)
class _Work:
    """What a result is made of, and judged by."""

    loaded: LoadedModel
    draft: _Draft
    options: Float16Settings
    stage: Stage
    reference: Reference | None
    origin: Provenance

    def written(self, plan: Plan) -> tuple[int, Verification | None]:
        """Emit a plan, check and write the result into the staging folder, and compare it with float."""
        model = copy_of(self.draft.model)
        emit_half(model, plan)
        declare_only(model, self.draft.declared)
        ports = {*self.draft.half.view.inputs, *self.draft.half.outputs} & plan.half.keys()
        reference = self.reference and replace(self.reference, halved=frozenset(ports))
        return write_checked(self.stage, model, reference, self.origin)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """A result in the staging folder."""

    plan: Plan
    nbytes: int
    checked: Verification | None
    warnings: tuple[str, ...] = ()


def _made(work: _Work, seen: Calibration | None, monitor: Monitor) -> _Made:
    """Write the plan; where that gives NaN or does not run, one with less in float16."""
    half, options = work.draft.half, work.options
    ranges = None if seen is None else _ranges(seen)
    plan = plan_half(half, options, ranges)
    try:
        nbytes, checked = work.written(plan)
    except VerifyError as e:
        again = _safer(work, ranges, monitor)
        if again is None or again == plan:
            raise
        nbytes, checked = work.written(again)
        fewer = _computed(plan) - _computed(again)
        warning = (
            f"{e} So more stays float32: nodes ({fewer}), inputs and outputs that hold such values."
        )
        return _Made(plan=again, nbytes=nbytes, checked=checked, warnings=(warning,))
    return _Made(plan=plan, nbytes=nbytes, checked=checked)


def _unheeded(plan: Plan, half: HalfView, options: Float16Settings) -> list[str]:
    """Say which inputs and outputs were asked for in float16 and stay float32."""
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


def _safer(work: _Work, ranges: Ranges | None, monitor: Monitor) -> Plan | None:
    """Plan with the ranges of just the samples that the result is run on; None if there are none."""
    if not work.options.compute or work.reference is None or not work.reference.runs:
        return None
    feeds = [dict(feeds) for feeds, _ in work.reference.runs]
    try:
        data = opened_for(work.loaded, feeds, DataSettings(shuffle=False))
        more = _ranges(_observed(work.loaded, work.draft.half, data, monitor))
    except QuantkitError:
        return None
    known = ranges or {}
    both = {
        tensor: (
            min(low, known.get(tensor, (low, high))[0]),
            max(high, known.get(tensor, (low, high))[1]),
        )
        for tensor, (low, high) in more.items()
    }
    return plan_half(work.draft.half, work.options, {**known, **both})
