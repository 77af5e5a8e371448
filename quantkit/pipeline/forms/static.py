"""Static quantization: weights and activations in integers, with ranges that were calibrated on data."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from quantkit.errors import QuantkitError
from quantkit.model.graph.channel_factors import write_divisors
from quantkit.model.graph.save import copy_of
from quantkit.model.provenance import json_digest
from quantkit.pipeline.checks import check_output_path, require_pair_safe, require_static, unfused
from quantkit.pipeline.fit import excess_of
from quantkit.pipeline.form import (
    Form,
    Job,
    LoadedModel,
    Monitor,
    Output,
    Prepared,
    Provenance,
    QuantizeResult,
    Reference,
    Repair,
    ignored_requests,
    is_noise,
    realize,
    require_change,
    require_signal,
    require_smaller,
)
from quantkit.pipeline.measure import Decision, decide, timing_notes
from quantkit.pipeline.plan_prepared import check_plan, plan_of
from quantkit.pipeline.prepare import STEPS, Held, Use, prepare
from quantkit.pipeline.static_repairs import StaticRepairs, faults, is_poor
from quantkit.pipeline.static_solving import Packing, StaticAttempt, StaticDraft, rounded
from quantkit.quantize.emit import Format, emit_static
from quantkit.quantize.plan import Plan, check_settings, check_target_of
from quantkit.quantize.solve.empirical_bias import correct_biases
from quantkit.runtime.check_result import LARGE, MADE_UP, Verification
from quantkit.runtime.kernels import Fusion, fusion_of
from quantkit.settings import StaticSettings, memory_text
from quantkit.settings.record import settings_record, to_record

_FEW = 4  # samples
_INSTEAD = (
    "calibrate with more samples that look like those in use, leave layers in float (--exclude), or use "
    "`quantkit quantize dynamic`"
)


class StaticForm(Form[Prepared, StaticDraft]):
    """Runs in calibrated integers what is faster so.

    Args:
        job: What is asked for.
        output: Where to write.
        monitor: Told what is done.
        plan: A plan to apply as it is, instead of making one.
        output_format: How the result is written down; None: as the job or the plan says, else QDQ.
        from_file: The plan was saved, and perhaps edited: the record names it even where the settings lead to the same.
    """

    kind = "static"
    steps = STEPS
    takes_plan = True
    job: Job[StaticSettings]

    def __init__(
        self,
        job: Job[StaticSettings],
        output: Output,
        monitor: Monitor | None = None,
        *,
        plan: Plan | None = None,
        output_format: Format | None = None,
        from_file: bool = True,
    ) -> None:
        super().__init__(job, output, monitor, plan=plan)
        asked = output_format or job.options.format or (plan and plan.output_format)
        self.output_format = Format(asked or Format.QDQ)
        check_settings(job.options, self.output_format)
        if plan is not None:
            check_target_of(plan, job.options.runs_on)
        self.given = plan and replace(
            plan, target=job.options.runs_on.name, output_format=self.output_format
        )
        self.follows = None if plan is None else json_digest(plan.to_json())
        self.from_file = from_file
        self.decision = Decision()
        self.unsafe = list[str]()
        self.fusion: Fusion | None = None
        self._moments: Held = None  # of the first group, until they are used

    # --- prepare and plan

    def prepare(self, source: LoadedModel) -> Prepared:
        """Simplify, equalize and observe the model, and fit the ranges of its activations."""
        # What has fewer bits in the file is solved once more, when all else is decided.
        use: Use = "often" if self.job.options.packs else "once"
        prepared, self._moments = prepare(
            source,
            self.job,
            self.monitor,
            given=self.given,
            moments=use if self.writes else "never",
        )
        self.monitor.stage("Planning")
        return prepared

    def plan(self, prepared: Prepared) -> StaticDraft:
        """Plan by rules and by measured times; a plan that was given is done as it is."""
        source, target = prepared.source, self.job.options.runs_on
        if self.given is None:
            self.decision = decide(prepared, self.output_format, self.monitor)
            kept, rules = self.decision.kept, self.decision.rules
            if kept or rules is None:
                rules = plan_of(prepared, self.output_format, kept)
            if not self.writes:
                for note in timing_notes(self.decision, prepared.ready.view, rules):
                    self.monitor.stage(note)
                return StaticDraft(plan=rules, kept=kept)
            if kept:
                require_change(rules, source)
                return StaticDraft(plan=rules, kept=kept)
            why = require_static(rules, source, observed=prepared.data is not None)
            return StaticDraft(plan=rules, warnings=tuple(why))
        check_target_of(self.given, target)
        check_plan(prepared.ready, self.given, self.job.options)
        require_change(self.given, source)
        if self.from_file:
            return StaticDraft(plan=self.given)
        self.decision = decide(prepared, self.output_format)
        if not self._is_own(prepared, self.given):
            return StaticDraft(plan=self.given)
        self.follows = None
        return StaticDraft(plan=self.given, kept=self.decision.kept)

    def _is_own(self, prepared: Prepared, plan: Plan) -> bool:
        """Say whether a plan is the one that the settings and what was measured lead to, so that these tell all about it."""
        try:
            return plan == plan_of(prepared, self.output_format, self.decision.kept)
        except QuantkitError:
            return False

    # --- solve and emit

    def solve(self, prepared: Prepared, draft: StaticDraft) -> StaticDraft:
        """Round weights by what they multiply, and correct biases."""

        def first() -> Held:
            found, self._moments = self._moments or prepared.moments.held, None
            return found

        found = rounded(prepared, draft.plan, self.monitor, first)
        return replace(draft, solved=found, first=found)

    def emit(self, prepared: Prepared, draft: StaticDraft) -> ir.Model:
        """Emit a copy; types that were only inferred are not stored: they are a tenth of a small file."""
        self.monitor.step(5, STEPS, "Writing and verifying")
        ready, solved = prepared.ready, draft.solved
        if self.job.options.recover.empirical is True and prepared.samples:
            say = self.monitor.stage
            solved = correct_biases(ready.model, draft.plan, solved, prepared.samples, say)
        model = copy_of(ready.model)
        emit_static(model, draft.plan, solved, self.output_format)
        write_divisors(model.metadata_props, ready.divided)
        declared = {v.name for v in _inner_values(prepared.source.model) if v.type is not None}
        for value in _inner_values(model):
            if value.name not in declared:
                value.type = value.shape = None
        return model

    def record(self, prepared: Prepared, draft: StaticDraft) -> dict[str, Any]:
        """Return options and decisions; not how many processes ran, which changes nothing."""
        how = self.job.calibrate
        method = {"method": prepared.seen.method, "minmax_only": how.minmax_only}
        method |= {"every_value": how.every_value, "skip_bad": how.skip_bad}
        return {
            **settings_record(self.job.options, self.job.settings),
            "calibrate": to_record(method),
            "format": self.output_format.value,
            "plan": self.follows,
            "verify": self.output.verify,
            "external_data": self.output.external_data,
            **draft.decided,
        }

    def _whole_record(self, prepared: Prepared, draft: StaticDraft) -> Provenance:
        return replace(self.origin(prepared), options=self.record(prepared, draft))

    # --- check and repair

    def reference(self, prepared: Prepared, draft: StaticDraft, reference: Reference) -> Reference:
        """Return the reference with the noise that samples would have if they did not help to set the ranges."""
        if not draft.plan.activations:  # no range that samples could exceed
            return reference
        found = zip(prepared.judged, excess_of(prepared, draft.plan), strict=False)
        excess = {id(feeds): own for feeds, own in found}
        runs = reference.runs  # of samples that the float model does not take there is none
        return replace(reference, excess=tuple(excess.get(id(feeds), {}) for feeds, _ in runs))

    def repairs(self, draft: StaticDraft) -> Sequence[Repair[Prepared, StaticDraft]]:
        """Give back integers of one's own plan that lose too much; at last give weights fewer bits."""
        settles, packs = self._settles(draft), self.given is None and self.job.options.packs
        costs, form = self.decision.costs, self.output_format
        repairs = StaticRepairs(output_format=form, costs=costs, monitor=self.monitor)
        packing = Packing(output_format=form, record=self._whole_record, monitor=self.monitor)
        last = Repair(when=self._is_good, change=packing.packed, always=True)
        return (*(repairs.settling() if settles else ()), *((last,) if packs else ()))

    def _is_good(self, attempt: StaticAttempt) -> bool:
        """Refuse what is larger than float even with all repairs: fewer bits are for what is good with 8."""
        self._require_smaller(attempt)
        return True

    def _require_smaller(self, attempt: StaticAttempt) -> None:
        if self._settles(attempt.draft) and not is_noise(attempt.checked):
            require_smaller(attempt.prepared.source, attempt.nbytes)

    def _settles(self, draft: StaticDraft) -> bool:
        """Say whether anything may be taken back: not where all is to be quantized, or done again as a record says."""
        return self.given is None and draft.plan.coverage == "gain" and not self.job.kept

    def faults(self, attempt: StaticAttempt) -> float:
        """Return how many dB the worst output lacks, and more if the file has grown."""
        return faults(attempt)

    def check(self, attempt: StaticAttempt) -> None:
        """Refuse noise, and a plan of one's own that gains nothing."""
        self._require_smaller(attempt)
        if attempt.draft.plan.coverage == "gain":
            require_signal(attempt.checked, _INSTEAD)

    def inspect(self, attempt: StaticAttempt) -> dict[str, Any]:
        """Ask onnxruntime what it runs in integers; refuse weights that could saturate."""
        if not self.output.verify or attempt.nbytes >= LARGE:
            return {}
        self.fusion = fusion_of(attempt.path)
        target, planned = self.job.options.runs_on, attempt.draft.plan.weight
        products = attempt.prepared.ready.products
        own = [
            p.node for p in products if p.weight in planned and not planned[p.weight].spec.scales
        ]
        self.unsafe = require_pair_safe(attempt.model, target, own)
        return {"fusion": self.fusion}

    # --- report

    def warnings(self, attempt: StaticAttempt, common: list[str]) -> list[str]:
        """Return what was observed, given up, left unfused, asked for in vain, and exceeded."""
        prepared, draft, options = attempt.prepared, attempt.draft, self.job.options
        return [
            *prepared.warnings,
            *draft.warnings,
            *(draft.given_up if is_poor(attempt) else ()),
            *self.unsafe,
            *common,
            *unfused(draft.plan, self.fusion, options.runs_on),
            *ignored_requests(draft.plan, options, prepared.ready.view),
            *_limit_exceeded(prepared.source, self.job.settings.memory),
        ]

    def notes(self, attempt: StaticAttempt) -> list[str]:
        """Return what was done to the model, and what times and samples say."""
        prepared, draft = attempt.prepared, attempt.draft
        return [
            *prepared.ready.notes,
            *timing_notes(self.decision, prepared.ready.view, draft.plan, draft.ratio),
            *_groups_noted(prepared),
            *draft.notes,
            *(() if is_poor(attempt) else draft.given_up),
            *_few_samples(attempt.checked),
        ]


def _inner_values(model: ir.Model) -> Iterator[ir.Value]:
    """Yield all that nodes compute and no graph returns."""
    for node in model.graph.all_nodes():
        yield from (value for value in node.outputs if not value.is_graph_output())


def _few_samples(checked: Verification | None) -> list[str]:
    """Say on how little the result was judged, where that is not enough to promise anything of other samples."""
    if checked is None or checked.on == MADE_UP or not 0 < checked.samples < _FEW:
        return []
    return [f"Judged on {checked.judged_on} only: what is promised may not hold on others."]


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


def realize_prepared(  # noqa: PLR0913 - one parameter per question
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
    """Quantize a prepared model as a plan says, and write it. It can be planned and written again.

    Data is read where the moments that rounding needs are not in memory, and where weights get fewer than 8 bits in the file; the result says so.

    Args:
        prepared: The model, what was observed of it, and what is asked for.
        plan: What to do, done as it is; None: what the settings lead to, with fewer integers where noise comes out.
        output: Where to write; None: nowhere. The result then tells what the plan is worth.
        output_format: How it is written down; None is as the plan says, else the job, else QDQ.
        verify: Load and run the result, and compare it with float, before it is written.
        external_data: Write weights to a ``.data`` file beside the model.
        from_file: See `StaticForm`.
        monitor: Told what is done.

    Raises:
        QuantkitError: The plan does not fit, the result is noise, or cannot be written. Nothing is written then.
    """
    job: Job[StaticSettings] = prepared.job
    check_output_path(output, prepared.source, job.data)
    to = Output(path=output, verify=verify, external_data=external_data)
    planned = None if plan is None else plan.output_format
    form = StaticForm(
        job, to, monitor, plan=plan, output_format=output_format or planned, from_file=from_file
    )
    with form.files:
        result: QuantizeResult = realize(form, prepared)
    return result
