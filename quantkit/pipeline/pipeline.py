"""The product, in order: static quantization is prepare -> plan -> realize, dynamic is load -> plan -> emit -> write.

Each function is read top to bottom; what a stage does stands in its own package.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.calibration.monitor import Monitor, Silent
from quantkit.errors import ModelError
from quantkit.files import scratch
from quantkit.model.graph.half import half_type, widen, widened_note
from quantkit.model.graph.load import LoadedModel
from quantkit.model.graph.normalize import fix_defaults, lift_weights
from quantkit.model.graph.opset import raise_opset
from quantkit.model.graph.save import Stage, copy_of, staged
from quantkit.model.graph.view import view_of
from quantkit.model.provenance import Provenance
from quantkit.pipeline.apart import compare_apart
from quantkit.pipeline.bits import RECORD, loading_noted, packed_bits, spread_of, wanted_bytes
from quantkit.pipeline.fit import with_fitted_ranges
from quantkit.pipeline.measure import decide, timing_notes
from quantkit.pipeline.outcome import (
    TINY,
    QuantizeResult,
    is_noise,
    noise,
    read_model,
    require_change,
    require_same,
    require_signal,
    require_smaller,
    unheeded,
    warnings_of,
)
from quantkit.pipeline.plan_prepared import for_target, plan_of
from quantkit.pipeline.prepare import STEPS, Prepared, Use, prepare
from quantkit.pipeline.realize import realize, write_checked
from quantkit.pipeline.record import StaticJob, dynamic_origin
from quantkit.pipeline.repair import SMALL, small_weights
from quantkit.quantize.emit import Format, emit_dynamic
from quantkit.quantize.plan import Mode, Plan, check_settings, check_target_of, plan_dynamic
from quantkit.quantize.plan.model import SolvedIntegers
from quantkit.quantize.plan.packing import PACKED_OPSET, same_bits, with_bits
from quantkit.quantize.rewrite.simplify.initializers import tie_weights
from quantkit.quantize.solve.blocks import BlockSettings, CodesFolder, solve_blind
from quantkit.runtime.check_result import (
    Reference,
    Verification,
    run_float,
)
from quantkit.settings import DynamicSettings
from quantkit.settings.record import dynamic_record
from quantkit.targets import cores

__all__ = ["QuantizeResult", "dynamic", "plan_model", "prepare_model", "static", "write_float"]

Progress = Callable[[str], None]


def static(  # noqa: PLR0913 - one parameter per question
    job: StaticJob,
    output: str | Path,
    *,
    plan: Plan | None = None,
    output_format: Format | None = None,
    verify: bool = True,
    external_data: bool = False,
    monitor: Monitor | None = None,
) -> QuantizeResult:
    """Quantize a model with calibrated ranges and write it; see `quantkit.quantize_static`.

    Args:
        job: What to quantize, and how.
        output: Where to write.
        plan: An edited plan to apply, instead of making one.
        output_format: How it is written down; None is as the job says, else the plan, else QDQ.
        verify: Load and run the result, and compare it with float, before it is written.
        external_data: Write weights to a ``.data`` file beside the model.
        monitor: Told what is done.
    """
    started = time.perf_counter()
    monitor, output = monitor or Silent(), Path(output)
    asked = output_format or job.output_format
    output_format = asked or (plan and plan.output_format) or Format.QDQ
    check_settings(job.options, output_format)
    if plan is not None:
        check_target_of(plan, job.options.runs_on)
    monitor.step(1, STEPS, "Reading the model")
    source = read_model(job.source, output, job.data)
    with source.watched():
        prepared = prepare(
            source,
            job,
            monitor,
            given=plan and for_target(plan, job, output_format),
            # What has fewer bits in the file is solved once more, when all else is decided.
            moments="often" if job.options.packs else "once",
        )
        if plan is None:
            prepared = with_fitted_ranges(prepared, monitor)
        monitor.stage("Planning")
        result = realize(
            prepared,
            plan,
            output,
            output_format=output_format,
            verify=verify,
            external_data=external_data,
            from_file=True,
            monitor=monitor,
        )
    return replace(result, seconds=time.perf_counter() - started)


def write_float(
    source: str | Path | onnx.ModelProto,
    output: str | Path,
    why: str,
    *,
    external_data: bool = False,
) -> QuantizeResult:
    """Write a model as it is, for callers who want a file also where there is nothing to quantize.

    Args:
        source: A path or a model.
        output: Where to write.
        why: What is said about it, as a warning.
        external_data: Write weights to a ``.data`` file beside the model.
    """
    started, output = time.perf_counter(), Path(output)
    loaded = read_model(source, output)
    with loaded.watched(), staged(output) as stage:
        reference = run_float(loaded)
        nbytes = stage.write(copy_of(loaded.model), external=external_data)
        checked = compare_apart(stage.model_path, reference, nbytes=nbytes)
        loaded.require_unchanged()
        external = stage.commit() is not None
    return QuantizeResult(
        plan=Plan(nodes=(), weights=(), min_opset=0),
        input_bytes=loaded.nbytes,
        output_bytes=nbytes,
        external_data=external,
        verification=checked,
        warnings=(why,),
        seconds=time.perf_counter() - started,
    )


def prepare_model(
    job: StaticJob,
    monitor: Monitor | None = None,
    *,
    moments: Use = "often",
) -> Prepared:
    """Read and prepare a model, to be planned and realized as often as one likes; see `quantkit.prepare_static`.

    Args:
        job: What to quantize, and how: a format, target and types that do not go together are refused here.
        monitor: Told what is done.
        moments: Whether to observe what rounding reads, and whether to keep it for more than one plan.
    """
    check_settings(job.options, job.output_format or Format.QDQ)
    source = read_model(job.source)
    with source.watched():
        prepared = prepare(source, job, monitor or Silent(), moments=moments)
        prepared = with_fitted_ranges(prepared, monitor or Silent())
        if moments == "often":
            # Now, so that planning runs nothing, and what is saved has it.
            decide(prepared, job.output_format or Format.QDQ, monitor)
    return prepared


def plan_model(job: StaticJob, monitor: Monitor | None = None) -> Plan:
    """Make the plan of `static`, and write nothing."""
    monitor = monitor or Silent()
    prepared = prepare_model(job, monitor, moments="never")
    monitor.stage("Planning")
    output_format = job.output_format or Format.QDQ
    decision = decide(prepared, output_format, monitor)
    plan = plan_of(prepared, output_format, decision.kept)
    for note in timing_notes(decision, prepared.ready.view, plan):
        monitor.stage(note)
    return plan


def dynamic(  # noqa: PLR0913 - one parameter per question
    source: str | Path | onnx.ModelProto,
    output: str | Path,
    options: DynamicSettings,
    *,
    verify: bool = True,
    external_data: bool = False,
    sample: Mapping[str, NDArray[Any]] | None = None,
    otherwise: DynamicSettings | None = None,
    progress: Progress = lambda _: None,
) -> QuantizeResult:
    """Quantize a model dynamically and write it; see `quantkit.quantize_dynamic`.

    Args:
        source: A path or a model.
        output: Where to write.
        options: What the user chose.
        verify: Load the result and compare it with float.
        external_data: Write weights beside the model.
        sample: What to compare on; None: inputs are made up.
        otherwise: What to do instead where the options gain nothing; None: nothing else.
        progress: Called with what is being done.
    """
    started, output = time.perf_counter(), Path(output)
    progress("Reading")
    loaded = read_model(source, output)
    progress("Planning")
    draft = _draft(loaded, options)
    if otherwise is not None and not _runs_integers(draft.plan):
        other = _draft(loaded, otherwise)
        # Weights that are only stored gain as much as a Conv can; other products are meant to run in integers.
        if not draft.plan.changes or options.reduce_range or _runs_integers(other.plan, but="Conv"):
            draft, options, otherwise = other, otherwise, None
    require_change(draft.plan, loaded)
    how = {"verify": verify, "sample": sample is not None, "external_data": external_data}
    origin = dynamic_origin(loaded, options, how)
    with loaded.watched(), staged(output) as stage:
        reference = None
        stage.wrote = lambda done, of: progress(
            f"Quantizing: {done} of {of} weights" if done < of or not verify else "Verifying"
        )
        if verify:
            progress("Running the float model")
            reference = run_float(loaded, sample)
        progress("Quantizing")
        nbytes, checked = _written(stage, draft, reference, origin)
        if otherwise is not None and nbytes >= loaded.nbytes:
            options, draft = otherwise, _draft(loaded, otherwise)
            origin = replace(origin, options={**dynamic_record(options), **how})
            nbytes, checked = _written(stage, draft, reference, origin)
        if is_noise(checked) and not options.covers_all and _runs_integers(draft.plan):
            progress("Quantizing again, without integer arithmetic")
            draft = _second_draft(loaded, options, checked)
            nbytes, checked = _written(stage, draft, reference, origin)
        require_signal(checked)
        if nbytes >= loaded.nbytes >= TINY and not options.covers_all:
            progress("Quantizing again, without small weights")
            draft = _draft_of_large(loaded, options, draft.plan, nbytes)
            nbytes, checked = _written(stage, draft, reference, origin)
            require_smaller(loaded, nbytes)
        require_same(loaded, origin)
        external = stage.commit() is not None
    return QuantizeResult(
        plan=draft.plan,
        input_bytes=loaded.nbytes,
        output_bytes=nbytes,
        external_data=external,
        verification=checked,
        warnings=(
            *draft.warnings,
            *unheeded(draft.plan, options),
            *warnings_of(draft.plan, loaded, nbytes, checked),
        ),
        seconds=time.perf_counter() - started,
    )


def _runs_integers(plan: Plan, but: str = "") -> bool:
    """Say whether a node runs in integers, other than of one operator."""
    return any(n.mode is Mode.INTEGER and n.op_type != but for n in plan.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """A float graph and the plan for it; the opset is already what the plan needs."""

    model: ir.Model
    plan: Plan
    warnings: tuple[str, ...] = ()


def _draft(loaded: LoadedModel, options: DynamicSettings) -> _Draft:
    """Plan, and raise the opset if the plan needs it; where that fails, plan without it. The source stays as it is."""
    model = copy_of(loaded.model)
    fixed = fix_defaults(model, keep=options.keep_inputs)
    notes: tuple[str, ...] = (fixed,) if fixed else ()
    if half := half_type(model):
        widen(model)
        notes += (widened_note(half),)
    if options.covers_all:
        lift_weights(model)
    else:
        tie_weights(model)
    view = view_of(model)
    plan = plan_dynamic(view, options)
    least = max(plan.min_opset, PACKED_OPSET) if options.packs else plan.min_opset
    if view.opset >= least or not plan.changes:
        return _packed(_Draft(model=model, plan=plan, warnings=notes), options, loaded.nbytes)
    try:
        raised = raise_opset(model, least)
    except ModelError as e:
        plan = plan_dynamic(view, _stored_only(options))
        notes += (
            f"{e}; only their weights are quantized, which makes the file smaller and not faster.",
        )
        return _Draft(model=model, plan=plan, warnings=notes)
    notes += (f"Opset raised from {view.opset} to {least}.",)
    again = _Draft(model=raised, plan=plan_dynamic(view_of(raised), options), warnings=notes)
    return _packed(again, options, loaded.nbytes)


def _packed(draft: _Draft, options: DynamicSettings, nbytes: int) -> _Draft:
    """Give weights fewer bits in the file, where that is asked for: all the same, or by their own errors.

    Args:
        draft: With weights of 8 bits.
        options: What the user chose.
        nbytes: Of the float model.
    """
    if not options.packs or not draft.plan.changes:
        return draft
    view = view_of(draft.model, read_weights=False)
    if options.weight_bits is not None:
        bits = same_bits(options.weight_bits, view)
    else:
        assert options.target_size is not None  # noqa: S101 - one of the two is given
        bits = packed_bits(
            draft.model,
            view,
            draft.plan,
            wanted_bytes(options.target_size, nbytes),
            emit_dynamic,
            (None, ()),
            lambda _: RECORD,
            Silent(),
        )
    plan = with_bits(draft.plan, view, bits)
    said = (spread_of(plan, view), *loading_noted(plan, view))
    return replace(draft, plan=plan, warnings=(*draft.warnings, *said))


def _second_draft(
    loaded: LoadedModel, options: DynamicSettings, checked: Verification | None
) -> _Draft:
    """Plan without integer arithmetic, for a model that does not bear it."""
    again = _draft(loaded, _stored_only(options))
    warning = (
        f"{noise(checked)} Integer arithmetic was switched off for the whole model: only the weights "
        "are quantized, which makes the file smaller and not faster."
    )
    return replace(again, warnings=(*again.warnings, warning))


def _draft_of_large(
    loaded: LoadedModel, options: DynamicSettings, plan: Plan, nbytes: int
) -> _Draft:
    """Plan without weights that are too small to gain, for a model that would grow by them."""
    small = set(small_weights(view_of(_draft(loaded, options).model), SMALL))
    left = tuple(n.node for n in plan.nodes if n.node in small and n.mode is not Mode.FLOAT)
    again = _draft(loaded, replace(options, exclude=(*options.exclude, *left)))
    if not again.plan.changes:
        require_smaller(loaded, nbytes)
    warning = f"{len(left)} small weights stayed float: with them the file would have grown to {nbytes} bytes."
    return replace(again, warnings=(*again.warnings, warning))


def _stored_only(options: DynamicSettings) -> DynamicSettings:
    return replace(options, integer=False)


def _written(
    stage: Stage, draft: _Draft, reference: Reference | None, origin: Provenance
) -> tuple[int, Verification | None]:
    """Emit, check and write the result into the staging folder, and compare it with float."""
    with scratch() as folder:
        codes = CodesFolder(folder)
        how = BlockSettings(workers=cores(), keep_sums=True)
        solve_blind(draft.model, draft.plan, codes, how, Silent())
        emit_dynamic(draft.model, draft.plan, SolvedIntegers(blocks=codes))
        return write_checked(stage, draft.model, reference, origin)
