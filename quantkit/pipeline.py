"""The product, in order: load, simplify, analyze, observe, plan, recover, emit, verify, write.

The only place that wires the stages.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit._version import __version__
from quantkit.calibration import with_model_folder
from quantkit.emit import Format, emit_dynamic, emit_static
from quantkit.errors import ModelError, VerifyError
from quantkit.files import check_outputs
from quantkit.graph.channel_factors import write_divisors
from quantkit.graph.half import half_type, widen, widened_note
from quantkit.graph.load import LoadedModel
from quantkit.graph.normalize import fix_defaults
from quantkit.graph.opset import raise_opset
from quantkit.graph.products import products_of
from quantkit.graph.save import Stage, staged
from quantkit.graph.view import view_of
from quantkit.job import StaticJob, dynamic_origin, static_origin
from quantkit.observe import Calibration
from quantkit.observe.monitor import Monitor, Silent
from quantkit.observe.requests import Request
from quantkit.outcome import (
    QuantizeResult,
    hides_noise,
    is_noise,
    noise,
    require_change,
    require_pair_safe,
    require_same,
    require_static,
    unfused,
    warnings_of,
)
from quantkit.plan import (
    DynamicOptions,
    Kept,
    Mode,
    Plan,
    StaticOptions,
    check_fits,
    check_operators,
    check_settings,
    check_target_of,
    missing_ranges,
    opset_for,
    plan_dynamic,
    plan_static,
    ranges_needed,
)
from quantkit.plan.integers import Solved
from quantkit.preparation import (
    STEPS,
    Prepared,
    evened,
    input_ranges,
    judged_feeds,
    memory_left,
    mismatch,
    moments_of,
    observe_model,
    observe_moments,
    powers_of,
    prepare,
    ranges_of,
    readable_again,
    split,
)
from quantkit.provenance import Provenance, json_digest, write_model
from quantkit.runtime.check_result import (
    LARGE,
    MADE_UP,
    Reference,
    Verification,
    compare,
    run_float,
)
from quantkit.runtime.kernels import fusion_of
from quantkit.runtime.session import load_model, readable_ir_version
from quantkit.settings import DataSettings, memory_text
from quantkit.solve.empirical_bias import SAMPLES, correct_biases
from quantkit.solve.losses import lossy
from quantkit.solve.rounding import Rounding
from quantkit.solve.weights import is_static, moment_request, solve
from quantkit.targets import cores

__all__ = ["QuantizeResult", "dynamic", "plan_model", "static"]

Progress = Callable[[str], None]
Groups = tuple[tuple[Request, ...], ...]


def dynamic(  # noqa: PLR0913 - one parameter a question
    source: str | Path | onnx.ModelProto,
    target: str | Path,
    options: DynamicOptions,
    *,
    verify: bool = True,
    external_data: bool = False,
    sample: Mapping[str, NDArray[Any]] | None = None,
    progress: Progress = lambda _: None,
) -> QuantizeResult:
    """Quantize a model dynamically and write it; see `quantkit.quantize_dynamic`."""
    started = time.perf_counter()
    target = Path(target)
    progress("Reading")
    loaded = load_model(source)
    check_outputs([target], loaded.files)
    loaded.require_weights()
    draft = _draft(loaded.model, options)
    require_change(draft.plan, loaded)
    how = {"verify": verify, "sample": sample is not None, "external_data": external_data}
    origin = dynamic_origin(loaded, options, how)
    with loaded.watched(), staged(target) as stage:
        reference = None
        if verify:
            progress("Running the float model")
            loaded.release()  # onnxruntime maps the same file
            reference = run_float(loaded, sample)
        progress("Quantizing")
        nbytes, checked = _realize(stage, draft, reference, origin)
        if is_noise(checked) and any(n.mode is Mode.INTEGER for n in draft.plan.nodes):
            progress("Quantizing again, without integer arithmetic")
            draft = _second_draft(source, options, checked)
            nbytes, checked = _realize(stage, draft, reference, origin)
        if is_noise(checked) and sample is not None:
            raise VerifyError(f"{noise(checked)} Nothing was written.")
        require_same(loaded, origin)
        external = stage.commit() is not None
    return QuantizeResult(
        plan=draft.plan,
        input_bytes=loaded.nbytes,
        output_bytes=nbytes,
        external_data=external,
        verification=checked,
        warnings=(*draft.warnings, *warnings_of(loaded, nbytes, checked)),
        seconds=time.perf_counter() - started,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """A float graph and the plan for it; the opset is already what the plan needs."""

    model: ir.Model
    plan: Plan
    warnings: tuple[str, ...] = ()


def _draft(model: ir.Model, options: DynamicOptions) -> _Draft:
    """Plan, and raise the opset if the plan needs it; where that fails, plan without it."""
    fixed = fix_defaults(model)
    notes: tuple[str, ...] = (fixed,) if fixed else ()
    if half := half_type(model):
        widen(model)
        notes += (widened_note(half),)
    view = view_of(model)
    plan = plan_dynamic(view, options)
    if view.opset >= plan.min_opset or not plan.weights:
        return _Draft(model=model, plan=plan, warnings=notes)
    try:
        raised = raise_opset(model, plan.min_opset)
    except ModelError as e:
        plan = plan_dynamic(view, _stored_only(options))
        notes += (
            f"{e}; only their weights are quantized, which makes the file smaller and not faster.",
        )
        return _Draft(model=model, plan=plan, warnings=notes)
    notes += (f"Opset raised from {view.opset} to {plan.min_opset}.",)
    return _Draft(model=raised, plan=plan_dynamic(view_of(raised), options), warnings=notes)


def _second_draft(
    source: str | Path | onnx.ModelProto, options: DynamicOptions, checked: Verification | None
) -> _Draft:
    """Plan without integer arithmetic, for a model that does not bear it."""
    again = _draft(load_model(source).model, _stored_only(options))
    warning = (
        f"{noise(checked)} Integer arithmetic was switched off for the whole model: only the weights "
        "are quantized, which makes the file smaller and not faster."
    )
    return _Draft(model=again.model, plan=again.plan, warnings=(*again.warnings, warning))


def _stored_only(options: DynamicOptions) -> DynamicOptions:
    return replace(options, integer=False)


def _realize(
    stage: Stage, draft: _Draft, reference: Reference | None, origin: Provenance
) -> tuple[int, Verification | None]:
    """Emit, check and write the result into the staging folder, and compare it with float."""
    emit_dynamic(draft.model, draft.plan)
    return _write(stage, draft.model, reference, origin)


def _write(
    stage: Stage, model: ir.Model, reference: Reference | None, origin: Provenance
) -> tuple[int, Verification | None]:
    model.ir_version = readable_ir_version(model.ir_version or 0)
    model.metadata_props["quantkit"] = f"{__version__} {origin.kind}"
    try:
        nbytes = write_model(stage, model, origin, external=origin.options["external_data"])
    except onnx.checker.ValidationError as e:
        reason = str(e).strip().splitlines()[0]
        raise VerifyError(f"The quantized model is not valid ONNX: {reason}") from e
    if reference is None:
        return nbytes, None
    return nbytes, compare(stage.model_path, reference, nbytes=nbytes)


def static(  # noqa: PLR0913 - one parameter a question
    job: StaticJob,
    target: str | Path,
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
        target: Where to write.
        plan: An edited plan to apply, instead of making one.
        output_format: How it is written down; None is as the plan says, else QDQ.
        verify: Check the result before writing.
        external_data: Write weights to a file of their own.
        monitor: Is told what is being done.
    """
    started = time.perf_counter()
    digest = None if plan is None else json_digest(plan.to_json())
    output_format = output_format or (plan and plan.output_format) or Format.QDQ
    check_settings(job.options, output_format)
    if plan is not None:
        check_target_of(plan, job.options.target)
        plan = replace(plan, target=job.options.target.name)
    monitor, target = monitor or Silent(), Path(target)
    monitor.step(1, STEPS, "Reading the model")
    loaded = load_model(job.source)
    data = [Path(job.data)] if isinstance(job.data, str | Path) else []
    check_outputs([target], [*loaded.files, *data])
    loaded.require_weights()
    declared = _typed(loaded.model)
    with loaded.watched():
        planned = _planned(loaded, job, monitor, output_format, given=plan)
    require_static(planned.plan, loaded)
    how = {
        "format": output_format.value,
        "plan": digest,
        "verify": verify,
        "external_data": external_data,
    }
    with loaded.watched(), staged(target) as stage:
        reference = None
        if verify:
            monitor.stage("Running the float model")
            reference = run_float(
                load_model(job.source),
                next(iter(planned.judged), None),
                input_ranges(planned.seen, loaded),
                more=planned.judged[1:],
                on=planned.on,
            )
        writer = _StaticWriter(
            job=job,
            stage=stage,
            reference=reference,
            origin=static_origin(loaded, job, planned.seen, how),
            output_format=output_format,
            declared=declared,
            monitor=monitor,
        )
        if plan is None:
            planned, nbytes, checked = writer.settle(planned)
        else:
            nbytes, checked = writer.write(planned, writer.solve(planned))
        if is_noise(checked) and reference is not None and reference.on != MADE_UP:
            raise VerifyError(
                f"{noise(checked)} Nothing was written: calibrate with more samples that look like those in use, leave "
                "layers in float (--exclude), or use `quantkit quantize dynamic`."
            )
        fusion = None
        if verify and nbytes < LARGE:
            fusion = fusion_of(stage.model_path)
            require_pair_safe(planned.ready.model, job.options.target)
        require_same(loaded, writer.origin)
        external = stage.commit() is not None
    return QuantizeResult(
        plan=planned.plan,
        input_bytes=loaded.nbytes,
        output_bytes=nbytes,
        external_data=external,
        verification=checked,
        warnings=(
            *planned.warnings,
            *warnings_of(loaded, nbytes, checked),
            *unfused(planned.plan, fusion, job.options.target),
            *_limit_exceeded(loaded, job.settings.memory),
        ),
        seconds=time.perf_counter() - started,
        fusion=fusion,
        notes=(*planned.ready.notes, *_groups_noted(planned)),
    )


def _limit_exceeded(loaded: LoadedModel, limit: int | None) -> list[str]:
    taken = 2 * loaded.nbytes  # mapped, and packed once more by the session
    if limit is None or taken <= limit:
        return []
    alone = f"the model and its session alone take up to {memory_text(taken)}"
    return [f"The limit of {memory_text(limit)} cannot be kept: {alone}."]


def _groups_noted(planned: "_Planned") -> list[str]:
    if not planned.later:
        return []
    count = len(planned.later) + 1
    return [f"Moments in {count} groups: the data was run again for each, to keep to the memory."]


def plan_model(
    job: StaticJob, monitor: Monitor | None = None, output_format: Format | None = None
) -> Plan:
    """Make the plan of `static`, and write nothing."""
    output_format = output_format or Format.QDQ
    check_settings(job.options, output_format)
    loaded = load_model(job.source)
    loaded.require_weights()
    return _planned(loaded, job, monitor or Silent(), output_format, moments=False).plan


def _values(model: ir.Model) -> Iterator[ir.Value]:
    """Yield all that nodes compute and no graph returns."""
    for node in model.graph.all_nodes():
        yield from (value for value in node.outputs if not value.is_graph_output())


def _typed(model: ir.Model) -> frozenset[str]:
    return frozenset(value.name or "" for value in _values(model) if value.type is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    """A prepared float model with its plan, what was seen of it, and some real samples.

    Attributes:
        ready: The model; it is rewritten when it is emitted.
        plan: What was decided.
        seen: What was observed.
        prepare: Prepares the model once more.
        warnings: What the user should know.
        samples: Some that it was calibrated with, for empirical bias correction.
        judged: Those that the result is judged on.
        on: What these are.
        kept: Nodes that were found to lose too much in integers.
        settings: How samples are prepared.
        later: Moments that memory had no room for yet, by group.
    """

    ready: Prepared
    plan: Plan
    seen: Calibration
    prepare: Callable[[], Prepared]
    warnings: tuple[str, ...] = ()
    samples: Sequence[Mapping[str, NDArray[Any]]] = ()
    judged: Sequence[Mapping[str, NDArray[Any]]] = ()
    on: str = MADE_UP
    kept: Mapping[str, Kept] = field(default_factory=dict)
    settings: DataSettings = field(default_factory=DataSettings)
    later: Groups = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _StaticWriter:
    """Writes a plan into the staging folder and compares the result with float.

    `declared`: the values whose types the float file states.
    """

    job: StaticJob
    stage: Stage
    reference: Reference | None
    origin: Provenance
    output_format: Format
    declared: frozenset[str]
    monitor: Monitor

    def solve(self, planned: _Planned) -> Solved:
        """Round weights, once for all plans that are tried."""
        return _solved(planned, self.job, self.monitor)

    def write(self, planned: _Planned, solved: Solved) -> tuple[int, Verification | None]:
        """Emit, write and compare."""
        self.monitor.step(5, STEPS, "Writing and verifying")
        model = planned.ready.model
        if self.job.recover.empirical is True and planned.samples:
            say = self.monitor.stage
            solved = correct_biases(model, planned.plan, solved, planned.samples, say)
        emit_static(model, planned.plan, solved, self.output_format)
        write_divisors(model.metadata_props, planned.ready.divided)
        # What was only inferred need not be stored: a tenth of a small file.
        for value in _values(model):
            if value.name not in self.declared:
                value.type = value.shape = None
        return _write(self.stage, model, self.reference, self.origin)

    def settle(self, planned: _Planned) -> tuple[_Planned, int, Verification | None]:
        """Write; if noise comes out, with fewer integers: without what loses most, at last without any."""
        solved = self.solve(planned)
        nbytes, checked = self.write(planned, solved)
        for measured in (True, False):
            if not (is_noise(checked) or hides_noise(checked)):
                break
            self.monitor.stage("Trying again with fewer integers")
            again = self._with_fewer(planned, checked, measured=measured)
            if again is not None:
                planned = again
                nbytes, checked = self.write(planned, _still_static(solved, planned))
        return planned, nbytes, checked

    def _with_fewer(
        self, planned: _Planned, checked: Verification | None, *, measured: bool
    ) -> _Planned | None:
        """Return another plan; None if there is nothing to leave out."""
        ready = planned.prepare()
        products = products_of(ready.view)
        small = sum(w.size for w in ready.view.weights.values()) < LARGE
        feeds = planned.judged if small else ()
        kept = lossy(ready.model, ready.view, planned.plan, products, feeds)
        if not measured:
            all_of_it = Kept("in integers the whole model would give noise")
            kept = {p.node: all_of_it for p in products} | kept
        kept = {**kept, **planned.kept}
        if kept == planned.kept:
            return None
        plan = plan_static(
            ready.view,
            ranges_of(planned.seen, self.job.methods),
            self.job.options,
            powers_of(planned.seen, ready.view),
            kept=kept,
        )
        some = f"{len(kept)} nodes" if len(kept) > 1 else f"Node '{next(iter(kept))}'"
        given_up = some if measured else "All layers"
        warning = (
            f"{noise(checked)} {given_up} stayed in float therefore, which costs time and size."
        )
        return replace(
            planned,
            ready=ready,
            plan=replace(plan, evened=ready.evened, output_format=self.output_format),
            warnings=(*planned.warnings, warning),
            kept=kept,
        )


def _planned(
    loaded: LoadedModel,
    job: StaticJob,
    monitor: Monitor,
    output_format: Format,
    *,
    given: Plan | None = None,
    moments: bool = True,
) -> _Planned:
    """Prepare, observe, plan."""
    monitor.stage("Simplifying")
    target = job.options.target

    def prepared(source: LoadedModel) -> Prepared:
        ready = prepare(source, job.options, 0 if given is None else opset_for(given))
        if given is not None:  # what can be known before data is opened
            check_operators(given, ready.view, target, output_format)
            if not given.evened:
                check_fits(given, ready.view)
        return ready

    ready = prepared(loaded)
    if isinstance(job.data, Calibration):
        found: dict[str, Any] = {
            "seen": job.data,
            "prepare": lambda: prepared(load_model(job.source)),
            "warnings": tuple(mismatch(job.data, loaded)),
        }
    else:
        ready, equalized, found = _observed(loaded, ready, job, monitor, moments=moments)
        found["prepare"] = lambda: equalized(prepared(load_model(job.source)))
    monitor.stage("Planning")
    ranges = ranges_of(found["seen"], job.methods)
    for tensor, was in ready.renamed.items():  # of a calibration of the model in halves
        if was in ranges:
            ranges.setdefault(tensor, ranges[was])
    if given is None:
        powers = powers_of(found["seen"], ready.view)
        plan = plan_static(ready.view, ranges, job.options, powers)
        plan = replace(plan, evened=ready.evened)
        if isinstance(job.data, Calibration):
            found["warnings"] += tuple(_without_ranges(ready, ranges, job.options))
    else:
        plan = given
        check_fits(plan, ready.view, ready.evened)
    check_operators(plan, ready.view, target, output_format)
    return _Planned(ready=ready, plan=replace(plan, output_format=output_format), **found)


def _without_ranges(
    ready: Prepared, ranges: Mapping[str, tuple[float, float]], options: StaticOptions
) -> list[str]:
    """Say that a calibration lacks ranges: it was made with another model, or before its target was known."""
    missing = missing_ranges(ready.view, ranges, options)
    if not missing:
        return []
    count = "1 tensor" if len(missing) == 1 else f"{len(missing)} tensors"
    lacks = f"The calibration has no range of {count} that target '{options.target.name}' needs (the first: '{missing[0]}')"
    return [
        f"{lacks}: what makes or reads them may stay float. Calibrate this model again, or quantize with the data itself."
    ]


def _observed(
    loaded: LoadedModel, ready: Prepared, job: StaticJob, monitor: Monitor, *, moments: bool
) -> tuple[Prepared, Callable[[Prepared], Prepared], dict[str, Any]]:
    """Even out channels and observe; return the model, what evens out another copy, and all of `_Planned` that data tells."""
    data = readable_again(job.data)
    settings, unseen = split(data, loaded, with_model_folder(job.settings, loaded))
    skip_bad = job.calibrate.skip_bad

    def equalized(model: Prepared) -> Prepared:
        return evened(model, data, job.recover, settings, monitor, skip_bad=skip_bad)

    ready = equalized(ready)
    wanted = job.recover.rounding is not False or job.recover.bias is True
    now, later = moments_of(ready, data, settings) if moments and wanted else ((), ())
    monitor.step(3, STEPS, "Observing ranges and moments" if now else "Observing ranges")
    needed = ranges_needed(ready.view, job.options)
    how = replace(job.calibrate, needed=needed)
    seen = observe_model(ready, data, how, settings, monitor, now)
    samples: Sequence[Mapping[str, NDArray[Any]]] = ()
    if job.recover.empirical is True:
        samples, _ = judged_feeds(data, loaded, settings, (), SAMPLES)
    judged, on = judged_feeds(data, loaded, settings, unseen)
    return (
        ready,
        equalized,
        {
            "seen": seen,
            "warnings": tuple(seen.header["warnings"]),
            "samples": samples,
            "judged": judged,
            "on": on,
            "settings": settings,
            "later": later,
        },
    )


def _solved(planned: _Planned, job: StaticJob, monitor: Monitor) -> Solved:
    """Round weights and correct biases, as far as that is not switched off.

    The moments of one group of products are in memory at a time: observed, solved with, and dropped.
    """
    recover = job.recover
    if recover.rounding is False and recover.bias is not True:
        return Solved()
    monitor.step(4, STEPS, "Rounding weights")
    ready, later = planned.ready, planned.later
    products = products_of(ready.view)
    work = partial(
        solve,
        ready.model,
        planned.plan,
        settings=Rounding(
            ranges=recover.ranges is True,
            second_order=recover.rounding is not False,
            adaptive=recover.adaptive is True,
        ),
        bias=recover.bias is not False,
        workers=cores(),
        memory=memory_left(ready, planned.settings),
        monitor=monitor,
    )
    waiting = {request for group in later for request in group}
    solved = work([p for p in products if moment_request(p) not in waiting], planned.seen)
    if not isinstance(job.data, Calibration):  # the caller's stays as it is
        planned.seen.seen.forget_moments()
    for number, group in enumerate(later, 2):
        own = [p for p in products if moment_request(p) in group and is_static(p, planned.plan)]
        monitor.name(f"Observing moments, group {number} of {len(later) + 1}")
        asked = tuple(dict.fromkeys(moment_request(p) for p in own))
        seen = observe_moments(ready, job.data, asked, job.calibrate, planned.settings, monitor)
        solved = solved.with_more(work(own, seen))
    return solved


def _still_static(solved: Solved, planned: _Planned) -> Solved:
    """Return what was solved for products that another plan leaves in integers, as they were."""
    ready, plan = planned.ready, planned.plan
    left = [p for p in products_of(ready.view) if is_static(p, plan)]
    found = {p.weight: solved.weights[p.weight] for p in left if p.weight in solved.weights}
    return Solved(
        weights={n: w for n, w in found.items() if w.qparams.spec == plan.weight[n].spec},
        biases={p.node: solved.biases[p.node] for p in left if p.node in solved.biases},
    )
