"""Dynamic quantization: weights in 8 bits, activations quantized while the model runs. Needs no data."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import onnx_ir as ir

from quantkit.calibration.monitor import Silent
from quantkit.errors import ModelError
from quantkit.files import scratch
from quantkit.model.graph.normalize import lift_weights
from quantkit.model.graph.save import copy_of
from quantkit.pipeline.bits import (
    RECORD,
    loading_noted,
    packed_bits,
    small_weights,
    spread_of,
    wanted_bytes,
)
from quantkit.pipeline.checks import TINY
from quantkit.pipeline.form import (
    Attempt,
    FloatModel,
    Form,
    Job,
    LoadedModel,
    Monitor,
    Output,
    PlanDraft,
    Prepared,
    Repair,
    float_copy,
    ignored_requests,
    is_noise,
    noise,
    require_change,
    require_signal,
    require_smaller,
    with_opset,
)
from quantkit.quantize.emit import emit_dynamic
from quantkit.quantize.plan import Mode, Plan, SolvedIntegers, plan_dynamic
from quantkit.quantize.plan.blocks import PACKED_OPSET, same_bits, with_bits
from quantkit.quantize.rewrite.simplify.initializers import tie_weights
from quantkit.quantize.solve.blocks import BlockSettings, solve_blind
from quantkit.quantize.solve.codes_folder import CodesFolder
from quantkit.runtime.check_result import GIVEN, MADE_UP
from quantkit.settings import DynamicSettings
from quantkit.settings.record import settings_record
from quantkit.targets import cores


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft(PlanDraft):
    """A plan for a float model whose opset is already what the plan needs.

    Attributes:
        ready: The float model.
        options: What it was planned with.
        asked: What the user chose: without what a repair changed.
        repaired: What repairs changed, and why.
    """

    ready: FloatModel
    options: DynamicSettings
    asked: DynamicSettings
    repaired: tuple[str, ...] = ()


class DynamicForm(Form[Prepared, _Draft]):
    """Quantizes weights; products of matrices quantize their activations as they come.

    The data of its job is one sample to compare on, by input; None: inputs are made up.

    Args:
        otherwise: What to do instead where the options gain nothing; None: nothing else.
    """

    kind = "dynamic"
    job: Job[DynamicSettings]

    def __init__(
        self,
        job: Job[DynamicSettings],
        output: Output,
        monitor: Monitor | None = None,
        *,
        plan: Plan | None = None,
        otherwise: DynamicSettings | None = None,
    ) -> None:
        super().__init__(job, output, monitor, plan=plan)
        self.sample: Any = job.data
        self.otherwise = otherwise

    def prepare(self, source: LoadedModel) -> Prepared:
        """Only make the float model ready: there is no data to look at."""
        self.monitor.stage("Planning")
        given = self.sample is not None
        return Prepared(
            job=self.job,
            source=source,
            ready=_ready(source, self.job.options),
            judged=() if self.sample is None else (self.sample,),
            on=GIVEN if given else MADE_UP,
        )

    def plan(self, prepared: Prepared) -> _Draft:
        """Plan as asked for, or with the other options where the first ones run nothing in integers."""
        options = self.job.options
        draft = self._draft(prepared, options)
        if self.otherwise is not None and not _runs_integers(draft.plan):
            other = self._draft(prepared, self.otherwise)
            # Weights that are only stored gain as much as a Conv can; other products are meant to run in integers.
            if (
                not draft.plan.changes
                or options.reduce_range
                or _runs_integers(other.plan, but="Conv")
            ):
                draft = other
        require_change(draft.plan, prepared.source)
        return draft

    def emit(self, prepared: Prepared, draft: _Draft) -> ir.Model:
        """Emit a copy; weights that have few bits in the file are rounded to them first."""
        self.monitor.stage("Quantizing")
        model = copy_of(draft.ready.model)
        codes = CodesFolder(self.files.enter_context(scratch()))
        how = BlockSettings(workers=cores(), keep_sums=True)
        solve_blind(model, draft.plan, codes, how, Silent())
        emit_dynamic(model, draft.plan, SolvedIntegers(blocks=codes))
        return model

    def record(self, prepared: Prepared, draft: _Draft) -> dict[str, Any]:
        """Return the options, as they were asked for."""
        how = {"verify": self.output.verify, "external_data": self.output.external_data}
        return {**settings_record(draft.asked), **how, "sample": self.sample is not None}

    def repairs(self, draft: _Draft) -> Sequence[Repair[Prepared, _Draft]]:
        """Try the other options, then no integer arithmetic, then without small weights."""
        return (
            Repair(when=self._gains_nothing, change=self._with_other_options, always=True),
            Repair(when=_is_noise_of_integers, change=self._without_integers, always=True),
            Repair(when=_has_grown, change=self._without_small_weights, always=True),
        )

    def check(self, attempt: Attempt[Prepared, _Draft]) -> None:
        """Refuse noise, and a result that is not smaller unless every operator was to be quantized."""
        require_signal(attempt.checked)
        if not attempt.draft.options.covers_all:
            require_smaller(attempt.prepared.source, attempt.nbytes)

    def warnings(self, attempt: Attempt[Prepared, _Draft], common: list[str]) -> list[str]:
        """Return what was changed, what was asked for in vain, and what is true of every form."""
        draft = attempt.draft
        ignored = ignored_requests(draft.plan, draft.asked)
        return [*draft.warnings, *draft.repaired, *ignored, *common]

    def notes(self, attempt: Attempt[Prepared, _Draft]) -> list[str]:
        """Return nothing: all that is done to the float model is a warning."""
        return []

    def wrote(self, done: int, of: int) -> None:
        """Show how far it is: what is quantized is computed while the file is written."""
        done_all = done == of and self.output.verify
        self.monitor.stage("Verifying" if done_all else f"Quantizing: {done} of {of} weights")

    # --- drafts

    def _draft(
        self, prepared: Prepared, options: DynamicSettings, asked: DynamicSettings | None = None
    ) -> _Draft:
        """Plan, and raise the opset if the plan needs it; where that fails, plan without it."""
        same = options.coverage == self.job.options.coverage
        ready = prepared.ready if same else _ready(prepared.source, options)
        new = partial(_Draft, options=options, asked=asked or options)
        plan = plan_dynamic(ready.view, options)
        least = max(plan.min_opset, PACKED_OPSET) if options.packs else plan.min_opset
        if plan.changes and ready.view.opset < least:
            try:
                model, notes = with_opset(ready.model, least)
            except ModelError as e:
                plan = plan_dynamic(ready.view, replace(options, integer=False))
                why = f"{e}; only their weights are quantized, which makes the file smaller and not faster."
                return new(ready=ready, plan=plan, warnings=(*ready.notes, why))
            ready = FloatModel.of(model, notes=(*ready.notes, *notes))
            plan = plan_dynamic(ready.view, options)
        return _packed(new(ready=ready, plan=plan, warnings=ready.notes), prepared.source.nbytes)

    def _gains_nothing(self, attempt: Attempt[Prepared, _Draft]) -> bool:
        """Say whether the file is not smaller, and other options are left."""
        left = self.otherwise is not None and attempt.draft.asked is not self.otherwise
        return left and attempt.nbytes >= attempt.prepared.source.nbytes

    def _with_other_options(self, attempt: Attempt[Prepared, _Draft]) -> _Draft:
        assert self.otherwise is not None  # noqa: S101 - see `_gains_nothing`
        return self._draft(attempt.prepared, self.otherwise)

    def _without_integers(self, attempt: Attempt[Prepared, _Draft]) -> _Draft:
        """Plan without integer arithmetic, for a model that does not bear it."""
        self.monitor.stage("Quantizing again, without integer arithmetic")
        draft = attempt.draft
        again = self._draft(attempt.prepared, replace(draft.options, integer=False), draft.asked)
        why = (
            f"{noise(attempt.checked)} Integer arithmetic was switched off for the whole model: only the weights "
            "are quantized, which makes the file smaller and not faster."
        )
        return replace(again, repaired=(*draft.repaired, why))

    def _without_small_weights(self, attempt: Attempt[Prepared, _Draft]) -> _Draft:
        """Plan without weights that are too small to gain, for a model that would grow by them."""
        self.monitor.stage("Quantizing again, without small weights")
        draft, nbytes = attempt.draft, attempt.nbytes
        small = set(small_weights(draft.ready.view))
        left = tuple(
            n.node for n in draft.plan.nodes if n.node in small and n.mode is not Mode.FLOAT
        )
        fewer = replace(draft.options, exclude=(*draft.options.exclude, *left))
        again = self._draft(attempt.prepared, fewer, draft.asked)
        if not again.plan.changes:
            require_smaller(attempt.prepared.source, nbytes)
        why = f"{len(left)} small weights stayed float: with them the file would have grown to {nbytes} bytes."
        return replace(again, repaired=(*draft.repaired, why))


def _ready(source: LoadedModel, options: DynamicSettings) -> FloatModel:
    """Compute in float32, and store once what is there twice."""
    model, notes, _ = float_copy(source.model, keep_inputs=options.keep_inputs)
    if options.covers_all:
        lift_weights(model)
    else:
        tie_weights(model)
    return FloatModel.of(model, notes=tuple(notes))


def _packed(draft: _Draft, nbytes: int) -> _Draft:
    """Give weights fewer bits in the file, where that is asked for: all the same, or by their own errors.

    Args:
        draft: With weights of 8 bits.
        nbytes: Size of the float model.
    """
    options = draft.options
    if not options.packs or not draft.plan.changes:
        return draft
    view = draft.ready.view
    if options.weight_bits is not None:
        bits = same_bits(options.weight_bits, view)
    else:
        assert options.target_size is not None  # noqa: S101 - one of the two is given
        wanted = wanted_bytes(options.target_size, nbytes)
        run, record = (None, ()), lambda _: RECORD
        bits = packed_bits(draft.ready, draft.plan, wanted, emit_dynamic, run, record, Silent())
    plan = with_bits(draft.plan, view, bits)
    said = (spread_of(plan, view), *loading_noted(plan, view))
    return replace(draft, plan=plan, warnings=(*draft.warnings, *said))


def _runs_integers(plan: Plan, but: str = "") -> bool:
    """Say whether a node runs in integers, other than of one operator."""
    return any(n.mode is Mode.INTEGER and n.op_type != but for n in plan.nodes)


def _is_noise_of_integers(attempt: Attempt[Prepared, _Draft]) -> bool:
    draft = attempt.draft
    return is_noise(attempt.checked) and not draft.options.covers_all and _runs_integers(draft.plan)


def _has_grown(attempt: Attempt[Prepared, _Draft]) -> bool:
    grown = attempt.nbytes >= attempt.prepared.source.nbytes >= TINY
    return grown and not attempt.draft.options.covers_all
