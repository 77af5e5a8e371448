"""Pruning: channels, neurons, heads and layers that carry least are removed, and the rest is fitted to make up for them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.calibration.monitor import Silent
from quantkit.errors import QuantkitError, UnreachableError, UsageError
from quantkit.files import scratch
from quantkit.pipeline.form import (
    Attempt,
    Draft,
    Form,
    FormResult,
    Job,
    LoadedModel,
    Output,
    Provenance,
    require_signal,
    run_form,
)
from quantkit.pipeline.forms.static import StaticForm
from quantkit.pipeline.measure import file_of, time_ratios
from quantkit.pipeline.prune_costs import measure_costs
from quantkit.pipeline.prune_model import PreparedPrune, prepare_prune
from quantkit.pipeline.prune_observe import observed
from quantkit.pipeline.prune_refit import fit
from quantkit.pipeline.prune_result import PrunedFile, PrunePlan, PruneResult
from quantkit.pipeline.prune_search import (
    at_drop,
    at_size,
    at_speed,
    frontier,
    measure_drops,
)
from quantkit.reduce.prune.allocate import removal_path
from quantkit.reduce.prune.widths import Widths
from quantkit.settings import DataSettings, PruneSettings, RecoverSettings, StaticSettings
from quantkit.settings.record import settings_record

_CALIBRATED = 16  # samples of the int8 files that are only timed
_RECOVERED = ("rounding", "bias", "equalize", "smooth", "activation_ranges")
_STEPS = 4  # read, measure, fit, write
_INSTEAD = "remove less (--speed, --size, --max-drop), or give more samples"
_NEXT = "`quantkit distill FLOAT PRUNED OUT --data DIR` recovers more: training without labels."


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneDraft(Draft):
    """What is removed, and the weights of the rest as far as they were fitted."""

    plan: PrunePlan
    tensors: Mapping[str, NDArray[Any]] = field(default_factory=dict)


_Attempt = Attempt[PreparedPrune, PruneDraft]


class PruneForm(Form[PreparedPrune, PruneDraft]):
    """Removes units from groups of channels, and blocks of transformers, to a time, a size or a drop."""

    kind = "prune"
    steps = _STEPS
    reports: ClassVar[type[FormResult]] = PruneResult
    job: Job[PruneSettings]

    def prepare(self, source: LoadedModel) -> PreparedPrune:
        """Make a copy ready, divide the samples, and observe the inputs of what consumes groups."""
        if self.job.data is None:
            raise UsageError(
                "Pruning needs samples: add --data DIR (images, texts or arrays; no labels needed)."
            )
        lab = self.files.enter_context(scratch())
        prepared = prepare_prune(source, file_of(source, lab), self.job, lab, self.monitor)
        return observed(prepared, self.monitor)

    def plan(self, prepared: PreparedPrune) -> PruneDraft:
        """Decide what is removed by measured times and noise; or as an earlier run has decided."""
        units = {group.name: group.size for group in prepared.graph.groups}
        plan = PrunePlan(
            units=units,
            blocks=tuple(block.name for block in prepared.graph.blocks),
            widths=Widths() if self.job.widths is None else Widths.from_json(self.job.widths),
            split=prepared.split,
        )
        if self.job.widths is not None:
            return PruneDraft(plan=plan)
        self.monitor.step(2, _STEPS, "Measuring what pays")
        options = self.job.options
        costs = measure_costs(prepared, self.monitor)
        path = removal_path(costs, by_size=options.size is not None)
        limit = options.drop
        points = () if self.writes and limit is None else frontier(prepared, path, self.monitor)
        tensors: Mapping[str, NDArray[Any]] = {}
        if options.speed is not None:
            chosen = at_speed(prepared, path, options.speed, self.monitor)
        elif options.size is not None:
            chosen = at_size(prepared, path, options.size)
        elif self.writes and limit is not None:
            fitted = at_drop(prepared, path, points, limit, self.monitor)
            chosen, tensors = fitted.candidate, fitted.tensors
        else:
            chosen = _within(points, limit or 0.0)
        self.monitor.stage("Timing int8 alone and of the pruned model")
        plan = replace(
            plan, widths=chosen.widths, frontier=points, int8=int8_gain(prepared, chosen)
        )
        if self.writes and plan.refusal and not options.force:
            raise UnreachableError(plan.refusal)
        return PruneDraft(plan=plan, tensors=tensors)

    def solve(self, prepared: PreparedPrune, draft: PruneDraft) -> PruneDraft:
        """Fit the weights behind what is removed, unless the search has done that."""
        self.monitor.step(3, _STEPS, "Fitting weights")
        if draft.tensors:
            return draft
        widths, tensors = fit(prepared, draft.plan.widths, self.monitor)
        return replace(draft, plan=replace(draft.plan, widths=widths), tensors=tensors)

    def emit(self, prepared: PreparedPrune, draft: PruneDraft) -> ir.Model:
        """Return the model without what is removed."""
        self.monitor.step(4, _STEPS, "Writing and verifying")
        return prepared.graph.pruned(draft.plan.widths, draft.tensors)

    def origin(self, prepared: PreparedPrune) -> Provenance:
        """Name the samples that weights were fitted to."""
        return replace(super().origin(prepared), data=prepared.data_origin())

    def record(self, prepared: PreparedPrune, draft: PruneDraft) -> dict[str, Any]:
        """Return the options, and the widths, which timing decided."""
        fitted = replace(self.job.settings, limit=prepared.settings.limit)
        return {
            **settings_record(self.job.options, fitted),
            "verify": self.output.verify,
            "external_data": self.output.external_data,
            "skip_bad": self.job.calibrate.skip_bad,
            "widths": draft.plan.widths.to_json(),
        }

    def check(self, attempt: _Attempt) -> None:
        """Refuse noise."""
        require_signal(attempt.checked, _INSTEAD)

    def inspect(self, attempt: _Attempt) -> dict[str, Any]:
        """Judge and time the file next to float; refuse a drop that is certainly too large."""
        prepared = attempt.prepared
        if prepared.split is None or not self.output.verify:
            return {}
        self.monitor.stage("Judging on held-out samples")
        found = measure_drops(
            prepared, {"pruned": attempt.path}, prepared.split.judging, self.monitor
        )
        judged, limit = found["pruned"], self.job.options.drop
        ((speed, interval),) = time_ratios([prepared.file, attempt.path], [prepared.timed])
        if limit is not None and judged.interval and judged.interval.low > limit:
            raise UnreachableError(
                f"The pruned model loses {judged.text()} on held-out samples, more than the {limit:.2%} that it kept to on those that "
                "chose it: give more samples, or allow more."
            )
        return {"judged": judged, "speed": speed, "speed_interval": interval}

    def warnings(self, attempt: _Attempt, common: list[str]) -> list[str]:
        """Return what the user should know: doubts about noise are for files that keep all channels."""
        found = [*attempt.draft.warnings]
        if attempt.checked is None:
            found.append("Not verified: the result was neither loaded nor compared with float.")
        if refusal := attempt.draft.plan.refusal:
            found.append(refusal)
        return found

    def notes(self, attempt: _Attempt) -> list[str]:
        """Return what was done, on which samples, and what comes next."""
        split = attempt.draft.plan.split
        return [*super().notes(attempt), *([f"{split}."] if split else []), _NEXT]


def _within(points: tuple[PrunedFile, ...], limit: float) -> PrunedFile:
    """Return the fastest candidate of a frontier that keeps to a drop; the mildest if none does."""
    if not points:
        raise UnreachableError("Nothing that can be removed saves any latency here: use int8.")
    kept = [one for one in points if one.judged is not None and one.judged.drop <= limit]
    return kept[-1] if kept else points[0]


def int8_gain(prepared: PreparedPrune, candidate: PrunedFile) -> tuple[float, float] | None:
    """Return what int8 takes of float's time, and what int8 of a candidate takes of that; None if int8 does not run."""
    feeds = [dict(prepared.samples_read[place].feeds) for place in prepared.fitting[:_CALIBRATED]]
    files = []
    for name, model in (("whole", prepared.file), ("pruned", candidate.path)):
        folder = prepared.lab / f"int8-{name}"
        folder.mkdir(exist_ok=True)
        files.append(folder / "model.onnx")
        quick = StaticSettings(
            measure=False,
            recover=RecoverSettings(**dict.fromkeys(_RECOVERED, False)),
        )
        job = Job(
            source=model,
            options=quick,
            data=feeds,
            settings=DataSettings(shuffle=False),
        )
        try:
            run_form(StaticForm(job, Output(path=files[-1], verify=False), Silent()))
        except QuantkitError:
            return None
    (whole, _), (pruned, _) = time_ratios([prepared.file, *files], [prepared.timed])
    return whole, pruned / whole
