"""The last step of writing a static model: weights that kernels read as int8 get fewer bits in the file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from quantkit.model.graph.channel_factors import write_divisors
from quantkit.pipeline.bits import (
    loading_noted,
    packed_bits,
    record_bytes,
    spread_of,
    wanted_bytes,
)
from quantkit.pipeline.draft import kept_record
from quantkit.pipeline.form import Attempt, Monitor, PlanDraft, Prepared, Provenance
from quantkit.pipeline.static_model import runnable
from quantkit.quantize.emit import Format, emit_static
from quantkit.quantize.plan import Plan, SolvedIntegers
from quantkit.quantize.plan.blocks import same_bits, with_bits
from quantkit.quantize.solve.blocks import BlockSettings, solve_blind
from quantkit.quantize.solve.weights import still_static
from quantkit.runtime.check_result import Verification
from quantkit.targets import cores

_SHOWN = 3  # names in a message
_PROBES = 8  # samples on which single weights are tried


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticDraft(PlanDraft):
    """A static plan with its integers.

    Attributes:
        solved: Integers of weights, and biases, that were solved for.
        first: The same of the first draft, which may have had more in integers.
        given_up: What an earlier draft had in integers and this one has not, and why.
        noisy: An earlier draft gave noise.
        ratio: Its time as a share of float's, measured in turns; None if it was not.
        unstable: Timings were too different to tell the ratio.
    """

    solved: SolvedIntegers = field(default_factory=SolvedIntegers)
    first: SolvedIntegers = field(default_factory=SolvedIntegers)
    given_up: tuple[str, ...] = ()
    noisy: bool = False
    ratio: float | None = None
    unstable: bool = False


StaticAttempt = Attempt[Prepared, StaticDraft]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Gives weights of a draft fewer bits in the file.

    Attributes:
        output_format: How plans are written down.
        solve: Solves for weights that have few bits in the file.
        record: Returns what the record of origin says, to know its size.
        monitor: Told what is done.
    """

    output_format: Format
    solve: Callable[[Prepared, Plan], SolvedIntegers]
    record: Callable[[Prepared, StaticDraft], Provenance]
    monitor: Monitor

    def packed(self, attempt: StaticAttempt) -> StaticDraft | StaticAttempt:
        """Return a draft with fewer bits; `attempt`: what is good with 8 bits."""
        prepared, ready, draft = attempt.prepared, attempt.prepared.ready, attempt.draft
        bits = prepared.job.bits
        if bits is None:
            bits = self._bits(attempt)
        plan = with_bits(draft.plan, ready.view, bits)
        if plan is draft.plan:
            notes = (*draft.notes, "No weight could have fewer bits.")
            return replace(attempt, draft=replace(draft, notes=notes))
        few = self.solve(prepared, plan)
        blocks = dict(few.blocks)
        how = BlockSettings(workers=cores(), keep_sums=True)
        solve_blind(ready.model, plan, blocks, how, self.monitor)
        left = still_static(ready.products, plan, draft.first)
        whole = {name: w for name, w in left.weights.items() if name not in blocks}
        both = SolvedIntegers(weights=whole, biases={**left.biases, **few.biases}, blocks=blocks)
        notes = (
            *draft.notes,
            spread_of(plan, ready.view),
            *loading_noted(plan, ready.view),
            *_with_all_bits(attempt.checked),
        )
        return replace(draft, plan=plan, solved=both, bits=bits, notes=notes, ratio=None)

    def _bits(self, attempt: StaticAttempt) -> dict[str, int]:
        """Return how many bits each weight gets, by what is asked for."""
        prepared, ready, draft = attempt.prepared, attempt.prepared.ready, attempt.draft
        options = prepared.job.options
        if options.weight_bits is not None:
            return same_bits(options.weight_bits, ready.view)

        def emit(model: ir.Model, plan: Plan, solved: SolvedIntegers) -> None:
            emit_static(model, plan, solved, self.output_format)
            write_divisors(model.metadata_props, ready.divided)

        def record(bits: Mapping[str, int]) -> int:
            return record_bytes(
                self.record(prepared, draft), {**kept_record(draft.kept), "bits": bits}
            )

        data = prepared.data and replace(prepared.data, unseen=())  # never those that judge
        samples = data.judged(prepared.source, _PROBES)[0] if data is not None else []
        wanted = wanted_bytes(options.target_size, prepared.source.nbytes)
        with runnable(ready) as written:
            run = (written.path, samples)
            return packed_bits(
                ready.model, ready.view, draft.plan, wanted, emit, run, record, self.monitor
            )


def _with_all_bits(checked: Verification | None) -> list[str]:
    """Return the SQNR at 8 bits, for comparison."""
    if checked is None or not checked.compared:
        return []
    return [f"With 8 bits in the file: {checked.figures(_SHOWN)}."]
