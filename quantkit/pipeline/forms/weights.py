"""Weight-only quantization: weights in blocks of few bits, activations in float.

A run that was killed goes on: its plan, and the codes of every weight that is solved, lie in ``<output>.partial`` until the file is written.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import onnx_ir as ir

from quantkit._version import __version__
from quantkit.files import scratch
from quantkit.model.graph.channel_factors import write_divisors
from quantkit.model.graph.save import copy_of
from quantkit.model.provenance import json_digest
from quantkit.pipeline.block_times import kept_out_of_blocks
from quantkit.pipeline.form import (
    Attempt,
    Form,
    Job,
    LoadedModel,
    Monitor,
    Output,
    Provenance,
    Repair,
    ignored_requests,
    require_change,
    require_signal,
    require_smaller,
)
from quantkit.pipeline.measure import SLOWEST, ratio_to_float
from quantkit.pipeline.partial import Partial, partial_folder
from quantkit.pipeline.weights_model import PreparedWeights, prepare_weights
from quantkit.pipeline.weights_plan import WeightsDraft, is_measured, plan_weights_of, solve_codes
from quantkit.quantize.emit.blocks import emit_blocks
from quantkit.quantize.plan import Plan, SolvedIntegers, check_fits, plan_blocks
from quantkit.quantize.solve.codes_folder import CodesFolder
from quantkit.runtime.check_result import LARGE
from quantkit.runtime.kernels import fusion_of, rounding_noted
from quantkit.runtime.profile import load_text
from quantkit.settings import WeightsSettings
from quantkit.settings.record import settings_record

_STEPS = 4  # read, decide, solve, write
_PROBES = 4  # samples on which single weights are tried
_DECIDED = "decided.json"
_INSTEAD = "use more bits (--bits, --target-bits), smaller blocks, more samples, or leave layers in float (--exclude)"


_Attempt = Attempt[PreparedWeights, WeightsDraft]


class WeightsForm(Form[PreparedWeights, WeightsDraft]):
    """Stores weights in blocks of few bits, and solves for their codes with the data, if there is any."""

    kind = "weights"
    steps = _STEPS
    takes_plan = True
    job: Job[WeightsSettings]

    def __init__(
        self,
        job: Job[WeightsSettings],
        output: Output,
        monitor: Monitor | None = None,
        *,
        plan: Plan | None = None,
    ) -> None:
        super().__init__(job, output, monitor, plan=plan)
        self._origin: Provenance | None = None

    def prepare(self, source: LoadedModel) -> PreparedWeights:
        """Make a copy ready, and open the data."""
        lab = self.files.enter_context(scratch())
        prepared = prepare_weights(source, self.job, lab)
        if prepared.data is not None:
            self.monitor.data_found(prepared.data.require().description)
        return prepared

    def origin(self, prepared: PreparedWeights) -> Provenance:
        """Name the samples too: what was left of a run that was killed is only good for the same ones."""
        if self._origin is None:
            self._origin = replace(super().origin(prepared), data=prepared.data_origin())
        return self._origin

    def record(self, prepared: PreparedWeights, draft: WeightsDraft) -> dict[str, Any]:
        """Return the options, and what timing and data decided."""
        return {**self._options(), **draft.decided}

    def _options(self) -> dict[str, Any]:
        return {
            **settings_record(self.job.options, self.job.settings),
            "verify": self.output.verify,
            "external_data": self.output.external_data,
            "plan": None if self.given is None else json_digest(self.given.to_json()),
        }

    # --- plan

    def plan(self, prepared: PreparedWeights) -> WeightsDraft:
        """Return the plan that was given, or that an earlier run of the same has left, or make one."""
        part = self._partial(prepared)
        self.monitor.step(2, _STEPS, "Deciding")
        draft = WeightsDraft.load(part.folder) if part.resumed else None
        if draft is None:
            for codes in part.folder.glob("*.npz"):  # of decisions that cannot be read any more
                codes.unlink()
            if self.given is None:
                draft = plan_weights_of(prepared, self._whole_record, self.monitor)
            else:
                check_fits(self.given, prepared.ready.view)
                draft = WeightsDraft(plan=self.given)
            draft = replace(draft, folder=part.folder)
            draft.save()
        if self.writes:
            require_change(draft.plan, prepared.source)
        return draft

    def _whole_record(self, prepared: PreparedWeights, draft: WeightsDraft) -> Provenance:
        return replace(self.origin(prepared), options=self.record(prepared, draft))

    def _partial(self, prepared: PreparedWeights) -> Partial:
        """Open the folder for what a killed run leaves, named by all that codes depend on."""
        if not self.writes:
            return Partial(prepared.lab, False)
        origin = self.origin(prepared)
        key = {
            "float": origin.float.sha256,
            "data": None if origin.data is None else origin.data.digests,
            "options": self._options(),
            "quantkit": __version__,
        }
        path = self.output.path if prepared.resumable else None
        return self.files.enter_context(partial_folder(path, key))

    # --- solve and emit

    def solve(self, prepared: PreparedWeights, draft: WeightsDraft) -> WeightsDraft:
        """Find the codes of all weights."""
        self.monitor.step(3, _STEPS, "Solving for weights")
        return replace(draft, solving=tuple(solve_codes(prepared, draft, self.monitor)))

    def emit(self, prepared: PreparedWeights, draft: WeightsDraft) -> ir.Model:
        """Emit a copy with the codes that were solved for."""
        self.monitor.step(4, _STEPS, "Writing and verifying")
        model = copy_of(prepared.ready.model)
        emit_blocks(model, draft.plan, SolvedIntegers(blocks=CodesFolder(draft.folder)))
        write_divisors(model.metadata_props, prepared.ready.divided)
        return model

    # --- check and repair

    def repairs(self, draft: WeightsDraft) -> Sequence[Repair[PreparedWeights, WeightsDraft]]:
        """Where layers are timed, time the result too, and once more without its slow layers."""
        if self.given is not None or self.job.kept is not None or not is_measured(self.job.options):
            return ()
        faster = Repair(when=_is_to_time, change=self._without_slow_layers, always=True)
        return (faster, replace(faster, change=self._compared_with_float))

    def _without_slow_layers(self, attempt: _Attempt) -> WeightsDraft | _Attempt:
        """Time a result in turns with float; where it is slower, leave out the layers that lose time in blocks.

        Layers that gain with one row and lose with many stay: which of the two counts is not known.
        """
        ratio, draft = self._ratio(attempt), attempt.draft
        slow = {n: t for n, t in draft.times.items() if t.mean > 1 and n not in draft.kept}
        if ratio is None or ratio <= SLOWEST or not slow:
            return _timed(attempt, ratio)
        kept = {**draft.kept, **kept_out_of_blocks(slow)}
        plan = plan_blocks(
            attempt.prepared.ready.view, self.job.options, bits=draft.bits, kept=kept
        )
        why = f"In blocks the model took {ratio:.2f}x float's time: {len(slow)} layers that lose time become float at load."
        return replace(draft, plan=plan, kept=kept, notes=(*draft.notes, why))

    def _compared_with_float(self, attempt: _Attempt) -> _Attempt:
        return _timed(attempt, self._ratio(attempt))

    def _ratio(self, attempt: _Attempt) -> float | None:
        self.monitor.stage("Timing it next to float")
        return ratio_to_float(attempt.prepared.source, attempt.path, attempt.feeds)

    def check(self, attempt: _Attempt) -> None:
        """Refuse noise, and a result that is not smaller."""
        require_signal(attempt.checked, _INSTEAD)
        require_smaller(attempt.prepared.source, attempt.nbytes)

    def inspect(self, attempt: _Attempt) -> dict[str, Any]:
        """Ask onnxruntime what it runs in integers."""
        small = attempt.nbytes < LARGE and attempt.reference is not None
        return {"fusion": fusion_of(attempt.path)} if small else {}

    def warnings(self, attempt: _Attempt, common: list[str]) -> list[str]:
        """Return what is true of every form, how long it takes, and what was asked for in vain."""
        draft = attempt.draft
        return [*common, *draft.warnings, *ignored_requests(draft.plan, self.job.options)]

    def notes(self, attempt: _Attempt) -> list[str]:
        """Return what was done, with the noise that kernels add by themselves."""
        found, reference = [*super().notes(attempt), *attempt.draft.solving], attempt.reference
        if attempt.nbytes < LARGE and reference is not None and reference.outputs:
            found += rounding_noted(attempt.path, reference)
        return found


def _is_to_time(attempt: _Attempt) -> bool:
    """Say whether a result that may be written can be timed, and was not yet."""
    smaller = attempt.nbytes < min(LARGE, attempt.prepared.source.nbytes)
    return bool(attempt.feeds) and smaller and not attempt.draft.timed


def _timed(attempt: _Attempt, ratio: float | None) -> _Attempt:
    """Add to an attempt what its time says of it: a ratio to that of float, or None."""
    why = ""
    if ratio is None:
        why = f"Not compared with float's time: timings are unstable ({load_text()})."
    elif ratio > SLOWEST:
        why = f"The result takes {ratio:.2f}x float's time; --exclude leaves layers in float, --rows times layers with as many rows as you use."
    draft = attempt.draft
    warnings = (*draft.warnings, why) if why else draft.warnings
    return replace(attempt, draft=replace(draft, warnings=warnings, timed=True))
