"""Plan and solve for weights in blocks: by rules, by measured times of layers, and by measured noise where there is a target."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import onnx_ir as ir

from quantkit.errors import QuantkitError
from quantkit.files import replace_text
from quantkit.model.graph.channel_factors import write_divisors
from quantkit.numerics.blocks import BlockGrid
from quantkit.pipeline.bits import (
    bits_for_mean,
    bits_for_size,
    choices_of,
    loading_noted,
    record_bytes,
    size_with,
    spread_of,
    wanted_bytes,
)
from quantkit.pipeline.block_times import LayerTimes, kept_out_of_blocks, times_in_blocks
from quantkit.pipeline.form import Monitor, PlanDraft, Provenance
from quantkit.pipeline.measure import SWITCH
from quantkit.pipeline.result import kept_of
from quantkit.pipeline.weights_model import PreparedWeights
from quantkit.quantize.emit.blocks import emit_blocks
from quantkit.quantize.plan import Kept, Plan, SolvedIntegers, WeightPlan, plan_blocks
from quantkit.quantize.plan.blocks import grid_of
from quantkit.quantize.solve.blocks import BlockSettings, solve_blind, solve_in_order
from quantkit.quantize.solve.codes_folder import CodesFolder
from quantkit.runtime.session import RUNTIME_ERRORS, first_line
from quantkit.settings import WeightsSettings
from quantkit.targets import cores

_PROBES = 4  # samples on which single weights are tried
_DECIDED = "decided.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsDraft(PlanDraft):
    """A plan with its codes.

    Attributes:
        times: Of layers in blocks, by node, where they were measured.
        folder: Where codes are put, for a run that goes on.
        solving: What happened while codes were found.
        timed: Whether it was compared with float's time.
    """

    times: Mapping[str, LayerTimes] = field(default_factory=dict)
    folder: Path = Path()
    solving: tuple[str, ...] = ()
    timed: bool = False

    def save(self) -> None:
        """Keep what was decided for a run that goes on."""
        plain = {"plan": self.plan.to_json(), "notes": self.notes, **self.decided}
        replace_text(self.folder / _DECIDED, json.dumps(plain))

    @classmethod
    def load(cls, folder: Path) -> "WeightsDraft | None":
        """Read what `save` wrote; None if it is not there as a whole."""
        try:
            plain = json.loads((folder / _DECIDED).read_text(encoding="utf-8"))
            return cls(
                plan=Plan.from_json(plain["plan"]),
                kept=kept_of(plain),
                bits=plain.get("bits", {}),
                notes=tuple(plain["notes"]),
                folder=folder,
            )
        except (OSError, ValueError, KeyError, TypeError, QuantkitError):
            return None


def plan_weights_of(
    prepared: PreparedWeights,
    record: Callable[[PreparedWeights, WeightsDraft], Provenance],
    monitor: Monitor,
) -> WeightsDraft:
    """Plan by rules, take back what is slower here, and give bits by what is measured where there is a target.

    Args:
        prepared: The model.
        record: Returns what the record of origin says, to know its size.
        monitor: Told what is done.
    """
    job, options, view = prepared.job, prepared.job.options, prepared.ready.view
    kept, notes, times = job.kept or {}, tuple[str, ...](), dict[str, LayerTimes]()
    if job.kept is None and is_measured(options):
        monitor.stage("Timing layers")
        times = times_in_blocks(plan_blocks(view, options), view, options.rows)
        kept = kept_out_of_blocks({n: found for n, found in times.items() if not found.gains})
        notes = tuple(f"Measured: {text}." for text in dict.fromkeys(map(str, times.values())))
    bits = dict(job.bits or {})
    if options.has_target and job.bits is None:
        bits = _bits(prepared, kept, record, monitor)
    plan = plan_blocks(view, options, bits=bits, kept=kept)
    if options.has_target:
        notes += (spread_of(plan, view),)
    notes += loading_noted(plan, view)
    return WeightsDraft(plan=plan, kept=kept, bits=bits, notes=notes, times=times)


def is_measured(options: WeightsSettings) -> bool:
    """Say whether layers are to be timed: as asked, or unless the environment says no."""
    if options.format != "contrib":
        return False
    return os.environ.get(SWITCH) != "0" if options.measure is None else options.measure


def _bits(
    prepared: PreparedWeights,
    kept: Mapping[str, Kept],
    record: Callable[[PreparedWeights, WeightsDraft], Provenance],
    monitor: Monitor,
) -> dict[str, int]:
    """Return how many bits each weight gets under the target."""
    ready, options = prepared.ready, prepared.job.options
    plan = plan_blocks(ready.view, options, kept=kept)

    def grid(weight: WeightPlan, bits: int) -> BlockGrid:
        own = weight.blocks
        assert own is not None  # noqa: S101 - only weights in blocks are asked about
        if not own.size:
            return replace(own, bits=bits)
        return replace(grid_of(options, bits, own.size, kernel=True), size=own.size)

    feeds = list(islice(prepared.feeds(), _PROBES)) if prepared.data is not None else []
    tensors = ready.tensors
    choices = choices_of(plan, grid, tensors, prepared.floats, feeds, monitor)
    if options.target_bits is not None:
        values = sum(tensors[name].size for name in choices)
        return bits_for_mean(choices, options.target_bits, values)
    assert options.target_size is not None  # noqa: S101 - one of the two is given

    def size_of(bits: Mapping[str, int]) -> int:
        plan = plan_blocks(ready.view, options, bits=bits, kept=kept)

        def emit(model: ir.Model, solved: SolvedIntegers) -> None:
            emit_blocks(model, plan, solved)
            write_divisors(model.metadata_props, ready.divided)

        draft = WeightsDraft(plan=plan, kept=kept, bits=bits)
        taken = record_bytes(record(prepared, draft), draft.decided)
        return size_with(ready.model, plan, ready.view, emit) + taken

    wanted = wanted_bytes(options.target_size, prepared.source.nbytes)
    return bits_for_size(choices, wanted, size_of)


def solve_codes(prepared: PreparedWeights, draft: WeightsDraft, monitor: Monitor) -> list[str]:
    """Find the codes of all weights: from what they multiply, in the order of the graph, or without data; return notes.

    Args:
        prepared: The model.
        draft: What is in blocks, and where codes are put.
        monitor: Told what is done.
    """
    options, model = prepared.job.options, prepared.ready.model
    store = CodesFolder(draft.folder)
    settings = BlockSettings(
        method=options.method,
        sequential=options.sequential is not False,
        workers=cores(),
        memory=prepared.job.settings.memory_limit // 2,
    )
    notes = list[str]()
    if prepared.floats is not None and options.rounding is not False:
        tensors = prepared.lab / "tensors"
        tensors.mkdir()
        try:
            return solve_in_order(
                model,
                prepared.floats,
                draft.plan,
                prepared.ready.products,
                prepared.feeds,
                store,
                settings,
                tensors,
                monitor,
            )
        except RUNTIME_ERRORS as e:
            why = f"A part of the model does not run by itself ({first_line(e)}): weights are rounded without data."
            notes = [why]
    solve_blind(model, draft.plan, store, settings, monitor)
    return notes
