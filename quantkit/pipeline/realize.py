"""A plan of a prepared model becomes a file: solve, emit on a copy, write to a staging folder, verify, rename into place."""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

import onnx_ir as ir

from quantkit.calibration.monitor import Monitor, Silent
from quantkit.errors import QuantkitError
from quantkit.files import scratch
from quantkit.model.graph.channel_factors import Divisors, write_divisors
from quantkit.model.graph.load import LoadedModel
from quantkit.model.graph.save import Stage, copy_of, staged
from quantkit.model.provenance import Provenance, json_digest
from quantkit.numerics.decibels import decibels
from quantkit.pipeline.bits import (
    SMALL,
    loading_noted,
    packed_bits,
    record_bytes,
    spread_of,
    wanted_bytes,
)
from quantkit.pipeline.checks import (
    TINY,
    check_output_path,
    is_noise,
    noise,
    require_change,
    require_pair_safe,
    require_same,
    require_signal,
    require_smaller,
    require_static,
    unfused,
    warnings_of,
)
from quantkit.pipeline.fit import excess_of
from quantkit.pipeline.ignored import ignored_requests
from quantkit.pipeline.measure import Decision, decide, timing_notes
from quantkit.pipeline.plan_prepared import for_target, plan_of
from quantkit.pipeline.prepare import (
    STEPS,
    Prepared,
    check_plan,
    memory_left,
    observe_again,
    runnable,
)
from quantkit.pipeline.quantize import write_checked
from quantkit.pipeline.record import kept_record, static_origin
from quantkit.pipeline.repair import (
    faster,
    margin_db,
    quieter,
    ratio_to_float,
    short_of_floor,
    stored_only,
    without_small_weights,
)
from quantkit.pipeline.result import QuantizeResult
from quantkit.pipeline.trade import trade_time_for_noise
from quantkit.quantize.emit import Format, emit_static
from quantkit.quantize.plan import Kept, Mode, Plan, check_target_of
from quantkit.quantize.plan.measured import Costs
from quantkit.quantize.plan.model import SolvedIntegers
from quantkit.quantize.plan.packing import same_bits, with_bits
from quantkit.quantize.plan.selection import resolve_names
from quantkit.quantize.solve.blocks import BlockSettings, solve_blind
from quantkit.quantize.solve.empirical_bias import correct_biases
from quantkit.quantize.solve.rounding import Rounding
from quantkit.quantize.solve.weights import is_static, moment_request, solve, still_static
from quantkit.reasons import Why
from quantkit.runtime.check_result import (
    FLOOR_DB,
    LARGE,
    MADE_UP,
    Reference,
    Verification,
    run_float,
)
from quantkit.runtime.kernels import fusion_of
from quantkit.runtime.profile import load_text
from quantkit.settings import memory_text
from quantkit.targets import cores

__all__ = ["realize"]

_NOTHING_KEPT: Mapping[str, Kept] = MappingProxyType({})
_ALL_BITS: Mapping[str, int] = MappingProxyType({})
_PROBES = 8  # samples on which single weights are tried

_SHOWN = 3  # names in a message
_FEW = 4  # samples
_SLOWEST = 1.02  # of float's time
_INSTEAD = (
    "calibrate with more samples that look like those in use, leave layers in float (--exclude), or use "
    "`quantkit quantize dynamic`"
)
_LARGER = 100.0  # dB that a file that has grown counts as: better noisy than larger, never both


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """A plan that was written into the staging folder.

    Attributes:
        plan: The plan.
        model: The quantized model.
        nbytes: Its size.
        checked: What the comparison with float found; None if it was switched off.
        kept: Nodes that are left out of integers because they were found to lose too much, or to gain too little.
        excess: How much more noise samples have that do not help to set the ranges.
        given_up: What was given up, and why.
        is_noise: An earlier attempt gave noise.
        notes: What else was done.
        ratio: Its time as a share of float's, measured in turns; None if it was not.
    """

    plan: Plan
    model: ir.Model
    nbytes: int
    checked: Verification | None
    kept: Mapping[str, Kept] = field(default_factory=dict)
    excess: float = 1.0
    given_up: tuple[str, ...] = ()
    is_noise: bool = False
    notes: tuple[str, ...] = ()
    ratio: float | None = None

    @property
    def is_poor(self) -> bool:
        """Whether noise comes out, or came out before."""
        return self.is_noise or (self.checked is not None and self.checked.has_noise)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Writer:
    """Writes plans of one prepared model into a staging folder, and compares what comes of them with float."""

    prepared: Prepared
    stage: Stage
    reference: Reference | None
    origin: Provenance
    output_format: Format
    monitor: Monitor

    def write(
        self,
        plan: Plan,
        solved: SolvedIntegers,
        kept: Mapping[str, Kept] = _NOTHING_KEPT,
        bits: Mapping[str, int] = _ALL_BITS,
    ) -> _Attempt:
        """Emit a copy of the model, write it with what was left out of integers, and compare it."""
        prepared, ready = self.prepared, self.prepared.ready
        self.monitor.step(5, STEPS, "Writing and verifying")
        if prepared.job.recover.empirical is True and prepared.samples:
            say = self.monitor.stage
            solved = correct_biases(ready.model, plan, solved, prepared.samples, say)
        model = copy_of(ready.model)
        emit_static(model, plan, solved, self.output_format)
        write_divisors(model.metadata_props, ready.divided)
        # What was only inferred need not be stored: a tenth of a small file.
        declared = {v.name for v in _values(prepared.source.model) if v.type is not None}
        for value in _values(model):
            if value.name not in declared:
                value.type = value.shape = None
        decided = {**kept_record(kept), **({"bits": dict(bits)} if bits else {})}
        origin = replace(self.origin, options={**self.origin.options, **decided})
        reference = self._reference(plan)
        nbytes, checked = write_checked(self.stage, model, reference, origin)
        return _Attempt(
            plan=plan,
            model=model,
            nbytes=nbytes,
            checked=checked,
            kept=kept,
            excess=1.0 if reference is None else reference.excess_ratio,
        )

    def _reference(self, plan: Plan) -> Reference | None:
        """Return the reference with the noise that samples would have if they did not help to set the ranges."""
        if self.reference is None or not plan.activations:  # no range that samples could exceed
            return self.reference
        judged = self.prepared.judged
        found = zip(judged, excess_of(self.prepared, plan), strict=False)
        excess = {id(feeds): own for feeds, own in found}
        runs = self.reference.runs  # of samples that the float model does not take there is none
        return replace(self.reference, excess=tuple(excess.get(id(feeds), {}) for feeds, _ in runs))

    def settle(
        self, plan: Plan, solved: SolvedIntegers, kept: Mapping[str, Kept], costs: Costs | None
    ) -> _Attempt:
        """Write; if the result is too noisy or too large, with fewer integers: without what loses most, at last without any.

        Args:
            plan: The first plan to try.
            solved: Its integers.
            kept: What it leaves out already.
            costs: What each node takes; None: not known.
        """
        found = best = self.write(plan, solved, kept)
        if not self._faults(best):  # what has to be repaired gets the margin of a repair instead
            found = best = self._traded(best, solved, costs)
        options, names = self.prepared.job.options, self.prepared.ready.view.names
        forced = resolve_names(options.forced, names)
        margin = margin_db(0 if best.checked is None else best.checked.samples)
        quieter = partial(self._quieter, solved=solved, costs=costs)
        # What is expected of a plan may not come, so that the second time more is asked for. Weights that are stored
        # lose as well: the last step leaves the worst of them float.
        for repair in (
            partial(quieter, aim=FLOOR_DB + margin),
            partial(quieter, aim=FLOOR_DB + 2 * margin),
            self._smaller,
            partial(self._smaller, least=8 * SMALL),
            self._stored,
            partial(quieter, aim=FLOOR_DB + margin),
        ):
            if not self._faults(best):
                break
            # What the user wants in integers stays there, whatever it loses.
            kept = {name: one for name, one in repair(found).items() if name not in forced}
            fewer = plan_of(self.prepared, self.output_format, kept)
            if kept == found.kept or not fewer.changes:
                continue
            found = self._again(found, fewer, solved, kept, self._given_up(found, kept))
            if self._faults(found) <= self._faults(best):
                best = found
        if best is not found:  # what is in the staging folder is the last one
            left = still_static(self.prepared.ready.products, best.plan, solved)
            again = self.write(best.plan, left, best.kept)
            best = replace(again, given_up=best.given_up, is_noise=best.is_noise, notes=best.notes)
        best = self._no_slower(best, solved, costs, forced)
        if not is_noise(best.checked):
            require_smaller(self.prepared.source, best.nbytes)
        return best

    def _traded(self, found: _Attempt, solved: SolvedIntegers, costs: Costs | None) -> _Attempt:
        """Write what is nearly free in float as float, if the result is as good as promised with it too."""
        trade = trade_time_for_noise(
            self.prepared, found.plan, solved, costs, found.kept, self.monitor
        )
        if not trade.notes:
            return found
        left = still_static(self.prepared.ready.products, trade.plan, solved)
        again = replace(self.write(trade.plan, left, trade.kept), notes=trade.notes)
        return self.write(found.plan, solved, found.kept) if self._faults(again) else again

    def pack(self, found: _Attempt, solved: SolvedIntegers) -> _Attempt:
        """Write what was found once more, with weights of fewer bits in the file.

        Args:
            found: What is good with 8 bits.
            solved: Its integers.
        """
        prepared, ready = self.prepared, self.prepared.ready
        bits = prepared.job.bits
        if bits is None:
            bits = self._bits(found)
        plan = with_bits(found.plan, ready.view, bits)
        if plan is found.plan:
            return replace(found, notes=(*found.notes, "No weight could have fewer bits."))
        few = _solved(prepared, plan, self.monitor, packed=True)
        blocks = dict(few.blocks)
        how = BlockSettings(workers=cores(), keep_sums=True)
        solve_blind(ready.model, plan, blocks, how, self.monitor)
        left = still_static(ready.products, plan, solved)
        whole = {name: w for name, w in left.weights.items() if name not in blocks}
        both = SolvedIntegers(weights=whole, biases={**left.biases, **few.biases}, blocks=blocks)
        again = self.write(plan, both, found.kept, bits)
        return replace(
            again,
            given_up=found.given_up,
            is_noise=found.is_noise,
            notes=(
                *found.notes,
                spread_of(plan, ready.view),
                *loading_noted(plan, ready.view),
                *_with_all_bits(found.checked),
            ),
        )

    def _bits(self, found: _Attempt) -> dict[str, int]:
        """Return how many bits each weight gets, by what is asked for."""
        prepared, ready = self.prepared, self.prepared.ready
        options = prepared.job.options
        if options.weight_bits is not None:
            return same_bits(options.weight_bits, ready.view)
        assert options.target_size is not None  # noqa: S101 - one of the two is given
        data = prepared.data and replace(prepared.data, unseen=())  # never those that judge
        samples = data.judged(prepared.source, _PROBES)[0] if data is not None else []
        with runnable(ready) as written:
            return packed_bits(
                ready.model,
                ready.view,
                found.plan,
                wanted_bytes(options.target_size, prepared.source.nbytes),
                partial(_emitted, self.output_format, ready.divided),
                (written.path, samples),
                lambda bits: record_bytes(self.origin, {**kept_record(found.kept), "bits": bits}),
                self.monitor,
            )

    def _again(
        self,
        found: _Attempt,
        plan: Plan,
        solved: SolvedIntegers,
        kept: Mapping[str, Kept],
        why: str,
    ) -> _Attempt:
        """Write another plan after one that did not keep what is promised."""
        self.monitor.stage("Trying again with fewer integers")
        again = self.write(plan, still_static(self.prepared.ready.products, plan, solved), kept)
        return replace(again, given_up=(*found.given_up, why), is_noise=found.is_poor)

    def _no_slower(
        self,
        found: _Attempt,
        solved: SolvedIntegers,
        costs: Costs | None,
        forced: Collection[str],
    ) -> _Attempt:
        """Where time counts: a result that is measured to be slower than float is made with fewer integers, at last without any.

        What is left out of integers makes nothing noisier, and nothing larger that was stored before.
        """
        if costs is None or costs.source != "measured" or self.reference is None:
            return found
        feeds = [feeds for feeds, _ in self.reference.runs]
        for first in (True, False):
            if not any(n.mode in {Mode.STATIC, Mode.INTEGER} for n in found.plan.nodes):
                break
            self.monitor.stage("Timing it beside float")
            ratio = ratio_to_float(self.prepared.source, self.stage.model_path, feeds)
            if ratio is None:
                note = f"Not compared with float's time: timings are unstable ({load_text()})."
                return replace(found, notes=(*found.notes, note))
            found = replace(found, ratio=ratio)
            if ratio <= _SLOWEST:
                break
            kept = (
                faster(self.prepared, found.plan, costs, ratio)
                if first
                else stored_only(self.prepared, Why.SLOWER_THAN_FLOAT)
            )
            kept = {n: one for n, one in {**kept, **found.kept}.items() if n not in forced}
            fewer = plan_of(self.prepared, self.output_format, kept)
            if kept != found.kept and fewer.changes:
                why = f"The quantized model took {ratio:.2f}x float's time; kept in float: {_named(found, kept)}."
                found = self._again(found, fewer, solved, kept, why)
        return found

    def _faults(self, found: _Attempt) -> float:
        """Return by how much a result misses what is promised of it; 0: by nothing."""
        return self._short(found) + (_LARGER if self._has_grown(found) else 0.0)

    def _short(self, found: _Attempt) -> float:
        return short_of_floor(found.checked)

    def _has_grown(self, found: _Attempt) -> bool:
        return found.nbytes >= self.prepared.source.nbytes >= TINY

    def _quieter(
        self, found: _Attempt, *, solved: SolvedIntegers, costs: Costs | None, aim: float
    ) -> Mapping[str, Kept]:
        """Leave out what loses most, where too little is left of an output."""
        if not self._short(found) or self.reference is None or self.prepared.ready.nbytes > LARGE:
            return found.kept
        self.monitor.stage("Measuring which layers lose most")
        # What is measured lacks the noise of samples that do not set the ranges, which the result is judged with.
        return quieter(
            self.prepared,
            found.plan,
            still_static(self.prepared.ready.products, found.plan, solved),
            costs,
            kept=found.kept,
            aim=aim + decibels(found.excess),
            feeds=[feeds for feeds, _ in self.reference.runs],
        )

    def _smaller(self, found: _Attempt, least: int = SMALL) -> Mapping[str, Kept]:
        """Leave weights float that are too small to gain, where the file has grown."""
        if not self._has_grown(found):
            return found.kept
        return {**without_small_weights(self.prepared, found.plan, least), **found.kept}

    def _stored(self, found: _Attempt) -> Mapping[str, Kept]:
        """Compute everything in float."""
        grown = self._has_grown(found)
        why = Why.FILE_GROWS if grown else Why.MODEL_LOSES
        return {**stored_only(self.prepared, why), **found.kept}

    def _given_up(self, found: _Attempt, kept: Mapping[str, Kept]) -> str:
        """Say what came of an attempt, and what is left out of the next."""
        said = _named(found, kept)
        if not self._short(found):
            sizes = f"{self.prepared.source.nbytes} -> {found.nbytes} bytes"
            return f"The quantized model was not smaller than float ({sizes}): float instead are {said}."
        return f"{noise(found.checked)} Less runs in integers therefore, which costs time or size: {said}."


def _emitted(
    output_format: Format,
    divided: Sequence[Divisors],
    model: ir.Model,
    plan: Plan,
    solved: SolvedIntegers,
) -> None:
    emit_static(model, plan, solved, output_format)
    write_divisors(model.metadata_props, divided)


def _with_all_bits(checked: Verification | None) -> list[str]:
    """Return the SQNR at 8 bits, for comparison."""
    if checked is None or not checked.compared:
        return []
    return [f"With 8 bits in the file: {checked.figures(_SHOWN)}."]


def _named(found: _Attempt, kept: Mapping[str, Kept]) -> str:
    """Name what is left out beside what was before."""
    names = [f"'{name}'" for name in kept if kept[name] != found.kept.get(name)]
    more = f" and {len(names) - _SHOWN} more" if names[_SHOWN:] else ""
    return f"{', '.join(names[:_SHOWN])}{more}"


def realize(  # noqa: PLR0913 - one parameter per question
    prepared: Prepared,
    plan: Plan | None,
    output: Path | None,
    *,
    output_format: Format | None = None,
    verify: bool = True,
    external_data: bool = False,
    from_file: bool = False,
    monitor: Monitor | None = None,
) -> QuantizeResult:
    """Quantize a prepared model as a plan says, and write it.

    Nothing of `prepared` is changed, so that it can be planned and realized again. Data is read only where the moments that
    rounding needs are not held in memory; the result says so.

    Args:
        prepared: The model, what was observed of it, and what is asked for.
        plan: What to do, done as it is; None: what `plan_of` says, with fewer integers where noise comes out.
        output: Where to write; None: nowhere. The result then tells what the plan is worth.
        output_format: How it is written down; None is as the plan says, else the job, else QDQ.
        verify: Load and run the result, and compare it with float, before it is written.
        external_data: Write weights to a ``.data`` file beside the model.
        from_file: The plan was saved, and perhaps edited: the record names it even where the settings lead to the same.
        monitor: Told what is done.

    Raises:
        QuantkitError: The plan does not fit, the result is noise, or cannot be written. Nothing is written then.
    """
    started = time.perf_counter()
    monitor, source, job = monitor or Silent(), prepared.source, prepared.job
    check_output_path(output, source, job.data)
    output_format = output_format or (plan and plan.output_format) or job.output_format
    output_format = output_format or Format.QDQ
    decision = Decision()
    if plan is None:
        decision = decide(prepared, output_format, monitor)
        chosen = plan_of(prepared, output_format, decision.kept)
    else:
        check_target_of(plan, job.options.runs_on)
        chosen = for_target(plan, job, output_format)
        check_plan(prepared.ready, chosen, job.options.runs_on)
    uncalibrated: list[str] = []
    if plan is None and not decision.kept:
        uncalibrated = require_static(chosen, source, observed=prepared.data is not None)
    else:  # a plan that was given is done as it is, also where all of it is weights in 8 bits
        require_change(chosen, source)
    own = plan is None
    if plan is not None and not from_file:
        decision = decide(prepared, output_format)
        own = _is_own(prepared, chosen, decision)
    how = {
        "format": output_format.value,
        "plan": None if plan is None or own else json_digest(plan.to_json()),
        "verify": verify,
        "external_data": external_data,
    }
    # All or nothing: everything is written into a folder of its own and takes its place by `commit`, last. What must
    # hold before that: the result loads, runs and is no noise beside float, no sum can saturate, and the input is
    # still the file that was read. A plan that was given is done as it is (`write`); of one's own plan nodes go back
    # to float until the result is no noise (`settle`).
    with source.watched(), _staged(output, source) as stage:
        writer = _Writer(
            prepared=prepared,
            stage=stage,
            reference=_float_outputs(prepared, monitor) if verify else None,
            origin=static_origin(source, job, prepared.seen, how),
            output_format=output_format,
            monitor=monitor,
        )
        solved = _solved(prepared, chosen, monitor)
        # Where all is to be quantized nothing is taken back, and noise is a warning.
        # What is made again as a record says is done as it was.
        settles = plan is None and chosen.coverage == "gain" and not job.kept
        kept = decision.kept if own else _NOTHING_KEPT
        found = (
            writer.settle(chosen, solved, kept, decision.costs)
            if settles
            else writer.write(chosen, solved, kept)
        )
        if plan is None and job.options.packs:
            found = writer.pack(found, solved)
        if chosen.coverage == "gain":
            require_signal(found.checked, _INSTEAD)
        fusion, unsafe = None, list[str]()
        if verify and found.nbytes < LARGE:
            fusion = fusion_of(stage.model_path)
            unsafe = require_pair_safe(found.model, job.options.runs_on, _rounded(prepared, found))
        require_same(source, writer.origin)
        external = stage.data_path is not None if output is None else stage.commit() is not None
    return QuantizeResult(
        plan=found.plan,
        input_bytes=source.nbytes,
        output_bytes=found.nbytes,
        external_data=external,
        verification=found.checked,
        warnings=(
            *prepared.warnings,
            *uncalibrated,
            *(found.given_up if found.is_poor else ()),
            *unsafe,
            *warnings_of(found.plan, source, found.nbytes, found.checked),
            *unfused(found.plan, fusion, job.options.runs_on),
            *ignored_requests(found.plan, job.options, prepared.ready.view),
            *_limit_exceeded(source, job.settings.memory),
        ),
        seconds=time.perf_counter() - started,
        fusion=fusion,
        notes=(
            *prepared.ready.notes,
            *timing_notes(decision, prepared.ready.view, found.plan, found.ratio),
            *_groups_noted(prepared),
            *found.notes,
            *(() if found.is_poor else found.given_up),
            *_few_samples(found.checked),
        ),
    )


def _few_samples(checked: Verification | None) -> list[str]:
    """Say on how little the result was judged, where that is not enough to promise anything of other samples."""
    if checked is None or checked.on == MADE_UP or not 0 < checked.samples < _FEW:
        return []
    return [f"Judged on {checked.judged_on} only: what is promised may not hold on others."]


def _rounded(prepared: Prepared, found: _Attempt) -> list[str]:
    """Return the products whose weights' scales were chosen here, not given."""
    planned = found.plan.weight
    return [
        p.node
        for p in prepared.ready.products
        if p.weight in planned and not planned[p.weight].spec.scales
    ]


def _is_own(prepared: Prepared, plan: Plan, decision: Decision) -> bool:
    """Say whether a plan is the one that the settings and what was measured lead to, so that these tell all about it."""
    try:
        return plan == plan_of(prepared, plan.output_format or Format.QDQ, decision.kept)
    except QuantkitError:
        return False


@contextmanager
def _staged(output: Path | None, source: LoadedModel) -> Iterator[Stage]:
    """Make a staging folder: beside the output, or, where nothing is to be written, anywhere."""
    if output is not None:
        with staged(output) as stage:
            yield stage
        return
    with scratch() as folder:
        yield Stage(folder / (source.path.name if source.path else "model.onnx"), folder)


def _float_outputs(prepared: Prepared, monitor: Monitor) -> Reference:
    """Run the float model as it was given, on the samples that results are judged on."""
    monitor.stage("Running the float model")
    judged = prepared.judged
    return run_float(
        prepared.source,
        next(iter(judged), None),
        prepared.input_ranges,
        more=judged[1:],
        on=prepared.on,
    )


def _values(model: ir.Model) -> Iterator[ir.Value]:
    """Yield all that nodes compute and no graph returns."""
    for node in model.graph.all_nodes():
        yield from (value for value in node.outputs if not value.is_graph_output())


def _solved(
    prepared: Prepared, plan: Plan, monitor: Monitor, *, packed: bool = False
) -> SolvedIntegers:
    """Round weights and correct biases, as far as that is not switched off.

    The moments of one group of products are in memory at a time: observed, solved with, and dropped. `packed`: only weights that have few bits in the file.
    """
    recover, ready, moments = prepared.job.recover, prepared.ready, prepared.moments
    if recover.rounding is False and recover.bias is not True:
        return SolvedIntegers()
    monitor.step(4, STEPS, "Rounding weights")
    work = partial(
        solve,
        ready.model,
        plan,
        settings=Rounding(
            ranges=recover.ranges is True,
            second_order=recover.rounding is not False,
            adaptive=recover.adaptive is True,
        ),
        bias=recover.bias is not False,
        workers=cores(),
        memory=memory_left(ready, prepared.settings),
        monitor=monitor,
    )
    # Moments may be too many for memory, so products go group by group. Of the first group they were observed
    # together with the ranges and are held already; those of later groups cost a pass over the data each. What was
    # solved for is dropped at once (`give_up`), unless `prepared` is to be realized again. Products without moments
    # (a calibration that was made elsewhere, a weight too wide) go with the first.
    later = {request for group in moments.groups[1:] for request in group}
    static = [p for p in ready.products if is_static(p, plan)]
    if packed:
        static = [p for p in static if plan.weight[p.weight].blocks is not None]
    solved, seen = SolvedIntegers(), moments.held
    with ExitStack() as files:
        written: LoadedModel | None = None
        for number, group in enumerate(moments.groups or ((),), 1):
            # What is in no group was never to be observed: it is solved with the first.
            own = [
                p
                for p in static
                if (moment_request(p) not in later if number == 1 else moment_request(p) in group)
            ]
            asked = tuple(
                dict.fromkeys(moment_request(p) for p in own if moment_request(p) in group)
            )
            if seen is None and asked:
                written = written or files.enter_context(runnable(ready))
                monitor.name(f"Observing moments, group {number} of {len(moments.groups)}")
                seen = observe_again(prepared, written, asked, monitor)
            solved = solved.with_more(work(own, seen))
            seen = None
            moments.give_up()
    return solved


def _limit_exceeded(source: LoadedModel, limit: int | None) -> list[str]:
    taken = 2 * source.nbytes  # mapped, and packed once more by the session
    if limit is None or taken <= limit:
        return []
    alone = f"the model and its session alone take up to {memory_text(taken)}"
    return [f"The limit of {memory_text(limit)} cannot be kept: {alone}."]


def _groups_noted(prepared: Prepared) -> list[str]:
    count = len(prepared.moments.groups)
    if count <= 1:
        return []
    return [f"Moments in {count} groups: the data was run again for each, to keep to the memory."]
