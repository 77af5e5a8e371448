"""Integers of the weights of a static plan: rounded by what they multiply, and, where that is asked for, with fewer bits in the file."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial

import onnx_ir as ir

from quantkit.calibration.calibration import Calibration
from quantkit.model.graph.channel_factors import write_divisors
from quantkit.pipeline.bits import (
    loading_noted,
    packed_bits,
    record_bytes,
    spread_of,
    wanted_bytes,
)
from quantkit.pipeline.form import Attempt, Monitor, PlanDraft, Prepared, Provenance
from quantkit.pipeline.prepare import memory_left, observe_again
from quantkit.pipeline.result import kept_record
from quantkit.pipeline.static_in_order import fitted_in_order
from quantkit.pipeline.static_model import STEPS, runnable
from quantkit.quantize.emit import Format, emit_static
from quantkit.quantize.plan import Plan, SolvedIntegers
from quantkit.quantize.plan.blocks import same_bits, with_bits
from quantkit.quantize.solve.blocks import BlockSettings, solve_blind
from quantkit.quantize.solve.weights import Rounding, is_static, moment_request, solve, still_static
from quantkit.runtime.check_result import Verification
from quantkit.targets import cores

_SHOWN = 3  # names in a message
_PROBES = 8  # samples on which single weights are tried


def rounded(
    prepared: Prepared,
    plan: Plan,
    monitor: Monitor,
    first: Callable[[], Calibration | None],
    *,
    packed: bool = False,
) -> SolvedIntegers:
    """Round weights and correct biases, as far as that is not switched off.

    The moments of one group of linear operators are in memory at a time: observed, solved with, and dropped.

    Args:
        prepared: The model.
        plan: What was decided.
        monitor: Told what is done.
        first: Returns the moments of the first group; None: the data is run again for them.
        packed: Only weights that have few bits in the file.
    """
    recover, ready = prepared.job.options.recover, prepared.ready
    groups = prepared.moments.groups
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
    # solved for is dropped at once, unless `prepared` is to be written again. Products without moments
    # (a calibration that was made elsewhere, a weight too wide) go with the first.
    group_of = {request: number for number, group in enumerate(groups) for request in group}
    static = [p for p in ready.products if is_static(p, plan)]
    if packed:
        static = [p for p in static if plan.weight[p.weight].blocks is not None]
    solved, seen = SolvedIntegers(), first()
    with ExitStack() as files:
        written = None
        for number in range(max(1, len(groups))):
            own = [p for p in static if group_of.get(moment_request(p), 0) == number]
            asked = [request for p in own if (request := moment_request(p)) in group_of]
            if seen is None and asked:
                written = written or files.enter_context(runnable(ready))
                monitor.name(f"Observing moments, group {number + 1} of {len(groups)}")
                seen = observe_again(prepared, written, tuple(dict.fromkeys(asked)), monitor)
            solved = solved.with_more(work(own, seen))
            seen = None
    return solved


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
        record: Returns what the record of origin says, to know its size.
        monitor: Told what is done.
    """

    output_format: Format
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
        held = prepared.moments.held
        few = rounded(prepared, plan, self.monitor, lambda: held, packed=True)
        blocks = dict(few.blocks)
        how = BlockSettings(workers=cores(), keep_sums=True)
        solve_blind(ready.model, plan, blocks, how, self.monitor)
        left = still_static(ready.products, plan, draft.first)
        whole = {name: w for name, w in left.weights.items() if name not in blocks}
        both = SolvedIntegers(weights=whole, biases={**left.biases, **few.biases}, blocks=blocks)
        both, fitted = fitted_in_order(prepared, plan, both, self.output_format, self.monitor)
        notes = (
            *draft.notes,
            spread_of(plan, ready.view),
            *([fitted] if fitted else ()),
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
            return packed_bits(ready, draft.plan, wanted, emit, run, record, self.monitor)


def _with_all_bits(checked: Verification | None) -> list[str]:
    """Return the SQNR at 8 bits, for comparison."""
    if checked is None or not checked.compared:
        return []
    return [f"With 8 bits in the file: {checked.figures(_SHOWN)}."]
