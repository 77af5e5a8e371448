"""Weight-only quantization, in order: load -> time layers -> plan -> give bits -> solve -> emit -> write -> verify -> rename.

A run that was killed goes on: its plan, and the codes of every weight that is solved, lie in ``<output>.partial`` until the file is written.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit._version import __version__
from quantkit.calibration.job import sample_digest
from quantkit.calibration.monitor import Monitor, Silent
from quantkit.calibration.origin import samples_origin
from quantkit.calibration.prepare import inputs_of
from quantkit.data import Samples, batches, collate
from quantkit.data.feeds import batch_for
from quantkit.errors import QuantkitError
from quantkit.files import replace_text, scratch
from quantkit.model.graph.channel_factors import Divisors, write_divisors
from quantkit.model.graph.half import half_type, widen, widened_note
from quantkit.model.graph.load import LoadedModel
from quantkit.model.graph.normalize import fix_defaults
from quantkit.model.graph.opset import opset_of, raise_opset
from quantkit.model.graph.products import products_of
from quantkit.model.graph.save import Stage, copy_of, staged
from quantkit.model.graph.view import view_of
from quantkit.model.ops.view import View
from quantkit.model.provenance import DataOrigin, ModelOrigin, Provenance, json_digest, model_digest
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
from quantkit.pipeline.block_times import (
    LayerTimes,
    kept_out_of_blocks,
    rounding_noted,
    times_in_blocks,
)
from quantkit.pipeline.calibrate import CalibrateOptions, OneShotData, OpenedData, opened_for
from quantkit.pipeline.checks import (
    read_model,
    require_change,
    require_same,
    require_signal,
    require_smaller,
    warnings_of,
)
from quantkit.pipeline.ignored import ignored_requests
from quantkit.pipeline.measure import SWITCH
from quantkit.pipeline.partial import Partial, partial_folder
from quantkit.pipeline.quantize import write_checked
from quantkit.pipeline.record import kept_of, kept_record
from quantkit.pipeline.repair import ratio_to_float
from quantkit.pipeline.result import QuantizeResult
from quantkit.quantize.emit.blocks import emit_blocks
from quantkit.quantize.plan import Kept, Plan, WeightPlan, check_fits, plan_blocks
from quantkit.quantize.plan.blocks import grid_of
from quantkit.quantize.plan.model import SolvedIntegers
from quantkit.quantize.rewrite.awq import scale_inputs
from quantkit.quantize.rewrite.simplify.initializers import tie_weights
from quantkit.quantize.rewrite.smooth import smoothable
from quantkit.quantize.solve.blocks import BlockSettings, CodesFolder, solve_blind, solve_in_order
from quantkit.runtime.check_result import LARGE, Reference, run_float
from quantkit.runtime.kernels import fusion_of
from quantkit.runtime.profile import load_text
from quantkit.runtime.session import RUNTIME_ERRORS, first_line
from quantkit.runtime.taps import read_tensors
from quantkit.settings import DataSettings, WeightsSettings
from quantkit.settings.record import settings_record
from quantkit.targets import cores

__all__ = ["WeightsJob", "plan_weights", "quantize_weights"]

Feeds = Mapping[str, NDArray[Any]]
_STEPS = 4  # read, decide, solve, write
_PROBES = 4  # samples on which single weights are tried
_LOOKED_AT = 32  # samples that tell how large inputs are
_SLOWEST = 1.02  # of float's time
_DECIDED = "decided.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsJob:
    """What to quantize, and how.

    Attributes:
        source: The float model.
        data: What weights are fitted to; None: nothing is run.
        options: What the user chose.
        settings: How samples are prepared.
        skip_bad: Leave out samples that cannot be read.
        kept: What measuring decided when the same file was made before; None: nobody has measured yet.
        bits: Likewise, how many bits weights got.
    """

    source: str | Path | onnx.ModelProto
    data: object = None
    options: WeightsSettings = field(default_factory=WeightsSettings)
    settings: DataSettings = field(default_factory=DataSettings)
    skip_bad: bool = False
    kept: Mapping[str, Kept] | None = None
    bits: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ready:
    """A float model that can be planned; nobody changes it.

    Attributes:
        source: As it was read.
        model: The graph, weights that were there twice stored once.
        view: The same for planners.
        notes: What was done to it.
        lab: A folder for what is needed meanwhile.
        data: The samples; None: there are none, and nothing is run.
        floats: The graph in a file, where it is run.
        divided: Tensors whose channels were divided by factors.
        skip_bad: Samples that cannot be read are left out.
    """

    source: LoadedModel
    model: ir.Model
    view: View
    notes: tuple[str, ...]
    lab: Path
    data: OpenedData | None = None
    floats: Path | None = None
    divided: tuple[Divisors, ...] = ()
    skip_bad: bool = False

    @property
    def resumable(self) -> bool:
        """Whether a run that was killed can be told to be the same."""
        return self.data is None or isinstance(self.data.samples, Samples)

    @property
    def tensors(self) -> dict[str, ir.TensorProtocol]:
        """The contents of its constants."""
        return {
            name: value.const_value
            for graph in self.model.graphs()
            for name, value in graph.initializers.items()
            if value.const_value is not None
        }

    def feeds(self) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield the samples that weights are fitted to, one run at a time."""
        assert self.data is not None  # noqa: S101 - asked only where there is data
        samples, chosen = self.data.require(), self.data.settings
        together = 1
        first = next(
            batches(samples, shuffle=chosen.shuffle, seed=chosen.seed, skip_bad=self.skip_bad), []
        )
        if first:
            together = batch_for(inputs_of(self.source), first[0], chosen.batch or 1)
        for batch in batches(
            samples,
            size=together,
            limit=chosen.limit,
            shuffle=chosen.shuffle,
            seed=chosen.seed,
            skip_bad=self.skip_bad,
        ):
            if len(batch) == together or not first:
                yield from collate(batch)


def quantize_weights(
    job: WeightsJob,
    output: str | Path,
    *,
    plan: Plan | None = None,
    verify: bool = True,
    external_data: bool = False,
    monitor: Monitor | None = None,
) -> QuantizeResult:
    """Quantize weights in blocks and write the model; see `quantkit.quantize_weights`.

    Args:
        job: What to quantize, and how.
        output: Where to write.
        plan: An edited plan to apply, instead of making one.
        verify: Load and run the result, and compare it with float, before it is written.
        external_data: Write weights to a ``.data`` file beside the model.
        monitor: Told what is done.
    """
    started = time.perf_counter()
    monitor, output = monitor or Silent(), Path(output)
    monitor.step(1, _STEPS, "Reading the model")
    source = read_model(job.source, output, job.data)
    with source.watched(), scratch() as lab:
        ready = _ready(source, job, lab, monitor)
        origin = _origin(ready, job)
        how: dict[str, Any] = {"verify": verify, "external_data": external_data}
        how["plan"] = None if plan is None else json_digest(plan.to_json())
        origin = replace(origin, options={**origin.options, **how})
        with partial_folder(output if ready.resumable else None, _key(origin)) as part:
            decided = _decided(ready, job, plan, part, lambda: origin, monitor)
            require_change(decided.plan, source)
            store = CodesFolder(part.folder)
            notes = _solve(ready, job, decided.plan, store, monitor)
            monitor.step(4, _STEPS, "Writing and verifying")
            reference = _float_outputs(ready) if verify else None
            with staged(output) as stage:
                write = partial(
                    _written,
                    ready,
                    store=store,
                    stage=stage,
                    reference=reference,
                    origin=origin,
                )
                result = write(decided)
                timed = plan is None and job.kept is None and _measures(job.options)
                if timed and reference is not None:
                    monitor.stage("Timing it next to float")
                    feeds = [feeds for feeds, _ in reference.runs]
                    ratio = partial(ratio_to_float, source, stage.model_path, feeds)
                    if feeds and result.output_bytes < LARGE:
                        decided, result = _no_slower(ready, job, decided, result, write, ratio)
                require_same(source, origin)
                external = stage.commit() is not None
    return replace(
        result,
        external_data=external,
        seconds=time.perf_counter() - started,
        notes=(*ready.notes, *decided.notes, *notes, *result.notes),
        warnings=(*result.warnings, *ignored_requests(decided.plan, job.options)),
    )


def plan_weights(job: WeightsJob, monitor: Monitor | None = None) -> Plan:
    """Make the plan of `quantize_weights`, and write nothing."""
    monitor = monitor or Silent()
    source = read_model(job.source)
    with source.watched(), scratch() as lab:
        ready = _ready(source, job, lab, monitor)
        origin = partial(_origin, ready, job)
        return _decided(ready, job, None, Partial(lab, False), origin, monitor).plan


def _key(origin: Provenance) -> dict[str, Any]:
    """Return all that codes depend on: what a run that was killed has left is taken up only if it is the same."""
    data = None if origin.data is None else origin.data.digests
    return {
        "float": origin.float.sha256,
        "data": data,
        "options": origin.options,
        "quantkit": __version__,
    }


def _ready(source: LoadedModel, job: WeightsJob, lab: Path, monitor: Monitor) -> _Ready:
    """Compute in float32, store once what is there twice, raise the opset as far as the format needs, open the data."""
    options, model, notes = job.options, copy_of(source.model), []
    if fixed := fix_defaults(model, keep=options.keep_inputs):
        notes.append(fixed)
    if half := half_type(model):
        widen(model)
        notes.append(widened_note(half))
    if tied := tie_weights(model):
        several = (
            "weight that was there twice is" if tied == 1 else "weights that were there twice are"
        )
        notes.append(f"{tied} {several} stored once.")
    needed, before = plan_blocks(view_of(model), options).min_opset, opset_of(model)
    if before < needed:
        model = raise_opset(model, needed)
        notes.append(f"Opset raised from {before} to {needed}.")
    ready = _Ready(source=source, model=model, view=view_of(model), notes=tuple(notes), lab=lab)
    if job.data is None:
        return ready
    data = _opened(source, job)
    monitor.data_found(data.require().description)
    ready = replace(ready, data=data, floats=_file_of(model, lab), skip_bad=job.skip_bad)
    scales = options.rounding is False if options.awq == "auto" else options.awq
    return _with_scaled_inputs(ready, options) if scales else ready


def _opened(source: LoadedModel, job: WeightsJob) -> OpenedData:
    """Open the samples. What can be read only once is held in memory: weights are fitted in several passes.

    Raises:
        QuantkitError: They cannot be read, or do not fit the model.
    """
    everything = CalibrateOptions(most=None)
    data = opened_for(source, job.data, job.settings, everything)
    samples = data.require()
    if not isinstance(samples, OneShotData):
        return data
    held = [*islice(samples, job.settings.limit), *samples.held_out]
    return opened_for(source, [dict(sample.feeds) for sample in held], job.settings, everything)


def _file_of(model: ir.Model, lab: Path) -> Path:
    """Write a float model where parts of it can be run from."""
    stage = Stage(lab / "float.onnx", lab)
    stage.write(copy_of(model))
    return stage.model_path


def _with_scaled_inputs(ready: _Ready, options: WeightsSettings) -> _Ready:
    """Scale the inputs that count most up, where the normalization before them takes that."""
    found = [one for one in smoothable(ready.view) if one.folds]
    plan = plan_blocks(ready.view, options)
    grids = {
        node.name: grid
        for node in ready.view.weighted
        for name in node.weights.values()
        if name in plan.weight and (grid := plan.weight[name].blocks) is not None
    }
    assert ready.floats is not None  # noqa: S101 - there is data
    powers: dict[str, NDArray[Any]] = {}
    count = 0
    names = [one.tensor for one in found]
    for seen in read_tensors(ready.floats, names, list(islice(ready.feeds(), _LOOKED_AT))):
        count += 1
        for name, array in seen.items():
            mean = np.square(array, dtype=np.float64).reshape(-1, array.shape[-1]).mean(axis=0)
            powers[name] = powers[name] + mean if name in powers else mean
    model = copy_of(ready.model)
    divided = scale_inputs(model, found, {n: p / count for n, p in powers.items()}, grids)
    if not divided:
        return ready
    return replace(
        ready,
        model=model,
        view=view_of(model),
        floats=_file_of(model, ready.lab),
        divided=divided,
        notes=(*ready.notes, f"Scaled the inputs of {len(divided)} groups of layers (AWQ)."),
    )


def _origin(ready: _Ready, job: WeightsJob) -> Provenance:
    """Say what came in and what is asked for."""
    data: DataOrigin | None = None
    if ready.data is not None:
        samples, chosen = ready.data.require(), ready.data.settings
        order = {"limit": chosen.limit, "shuffle": chosen.shuffle, "seed": chosen.seed}
        data = samples_origin(
            samples.description,
            samples.fingerprint() if isinstance(samples, Samples) else "",
            [sample_digest(feed) for feed in ready.feeds()],
            order,
            "moments",
        )
    return Provenance(
        kind="weights",
        float=ModelOrigin(**model_digest(ready.source)),
        data=data,
        options=settings_record(job.options, job.settings),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decided:
    """A plan, and what led to it.

    Attributes:
        plan: What to do.
        kept: Nodes that were measured to be slower in blocks.
        bits: Of weights, where a target is to be met.
        notes: What a user is told.
        times: Of layers in blocks, by node, where they were measured.
    """

    plan: Plan
    kept: Mapping[str, Kept] = field(default_factory=dict)
    bits: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    times: Mapping[str, LayerTimes] = field(default_factory=dict)

    @property
    def record(self) -> dict[str, Any]:
        """Timing- and data-dependent decisions, for the provenance record."""
        return {**kept_record(self.kept), **({"bits": dict(self.bits)} if self.bits else {})}

    def save(self, path: Path) -> None:
        """Keep it for a run that goes on."""
        plain = {"plan": self.plan.to_json(), "notes": self.notes, **self.record}
        replace_text(path, json.dumps(plain))

    @classmethod
    def load(cls, path: Path) -> "_Decided | None":
        """Read what `save` wrote; None if it is not there as a whole."""
        try:
            plain = json.loads(path.read_text(encoding="utf-8"))
            return cls(
                plan=Plan.from_json(plain["plan"]),
                kept=kept_of(plain),
                bits=plain.get("bits", {}),
                notes=tuple(plain["notes"]),
            )
        except (OSError, ValueError, KeyError, TypeError, QuantkitError):
            return None


def _decided(
    ready: _Ready,
    job: WeightsJob,
    given: Plan | None,
    part: Partial,
    origin: Callable[[], Provenance],
    monitor: Monitor,
) -> _Decided:
    """Return the plan that was given, or that an earlier run of the same has left, or make one."""
    monitor.step(2, _STEPS, "Deciding")
    left = part.folder / _DECIDED
    if part.resumed and (before := _Decided.load(left)) is not None:
        return before
    for codes in part.folder.glob("*.npz"):  # of decisions that nobody can read any more
        codes.unlink()
    if given is not None:
        check_fits(given, ready.view)
        decided = _Decided(plan=given)
    else:
        decided = _made(ready, job, origin, monitor)
    decided.save(left)
    return decided


def _made(
    ready: _Ready, job: WeightsJob, origin: Callable[[], Provenance], monitor: Monitor
) -> _Decided:
    """Plan by rules, take back what is slower here, and give bits by what is measured where there is a target."""
    options, kept, notes = job.options, job.kept or {}, tuple[str, ...]()
    times: Mapping[str, LayerTimes] = {}
    planned = partial(plan_blocks, ready.view, options)
    if job.kept is None and _measures(options):
        monitor.stage("Timing layers")
        times = times_in_blocks(planned(), ready.view, options.rows)
        kept = kept_out_of_blocks({n: found for n, found in times.items() if not found.gains})
        notes = tuple(f"Measured: {text}." for text in dict.fromkeys(map(str, times.values())))
    bits = dict(job.bits or {})
    if options.has_target and job.bits is None:
        bits = _bits(ready, job, kept, origin, monitor)
    plan = planned(bits=bits, kept=kept)
    if options.has_target:
        notes += (spread_of(plan, ready.view),)
    notes += loading_noted(plan, ready.view)
    return _Decided(plan=plan, kept=kept, bits=bits, notes=notes, times=times)


def _measures(options: WeightsSettings) -> bool:
    """Say whether layers are to be timed: as asked, or unless the environment says no."""
    if options.format != "contrib":
        return False
    return os.environ.get(SWITCH) != "0" if options.measure is None else options.measure


def _bits(
    ready: _Ready,
    job: WeightsJob,
    kept: Mapping[str, Kept],
    origin: Callable[[], Provenance],
    monitor: Monitor,
) -> dict[str, int]:
    """Return how many bits each weight gets under the target."""
    options, plan = job.options, plan_blocks(ready.view, job.options, kept=kept)

    def grid(weight: WeightPlan, bits: int) -> BlockGrid:
        own = weight.blocks
        assert own is not None  # noqa: S101 - only weights in blocks are asked about
        if not own.size:
            return replace(own, bits=bits)
        return replace(grid_of(options, bits, own.size, kernel=True), size=own.size)

    feeds = list(islice(ready.feeds(), _PROBES)) if ready.data is not None else []
    choices = choices_of(plan, grid, ready.tensors, ready.floats, feeds, monitor)
    if options.target_bits is not None:
        values = sum(ready.tensors[name].size for name in choices)
        return bits_for_mean(choices, options.target_bits, values)
    assert options.target_size is not None  # noqa: S101 - one of the two is given
    came = origin()

    def size_of(bits: Mapping[str, int]) -> int:
        plan = plan_blocks(ready.view, options, bits=bits, kept=kept)

        def emit(model: ir.Model, solved: SolvedIntegers) -> None:
            emit_blocks(model, plan, solved)
            write_divisors(model.metadata_props, ready.divided)

        record = record_bytes(came, _Decided(plan=plan, kept=kept, bits=bits).record)
        return size_with(ready.model, plan, ready.view, emit) + record

    wanted = wanted_bytes(options.target_size, ready.source.nbytes)
    return bits_for_size(choices, wanted, size_of)


def _solve(
    ready: _Ready,
    job: WeightsJob,
    plan: Plan,
    store: CodesFolder,
    monitor: Monitor,
) -> list[str]:
    """Find the codes of all weights: from what they multiply, in the order of the graph, or without having seen it."""
    monitor.step(3, _STEPS, "Solving for weights")
    options = job.options
    settings = BlockSettings(
        method=options.method,
        sequential=options.sequential is not False,
        workers=cores(),
        memory=job.settings.memory_limit // 2,
    )
    notes = []
    if ready.floats is not None and options.rounding is not False:
        tensors = ready.lab / "tensors"
        tensors.mkdir()
        try:
            return solve_in_order(
                ready.model,
                ready.floats,
                plan,
                products_of(ready.view),
                ready.feeds,
                store,
                settings,
                tensors,
                monitor,
            )
        except RUNTIME_ERRORS as e:
            notes = [
                f"A part of the model does not run by itself ({first_line(e)}): weights are rounded without data."
            ]
    solve_blind(ready.model, plan, store, settings, monitor)
    return notes


def _float_outputs(ready: _Ready) -> Reference:
    """Run the float model as it was given, on samples that weights were not fitted to where there are enough."""
    if ready.data is None:
        return run_float(ready.source)
    judged, on = ready.data.judged(ready.source)
    return run_float(ready.source, next(iter(judged), None), more=judged[1:], on=on)


def _no_slower(
    ready: _Ready,
    job: WeightsJob,
    decided: _Decided,
    result: QuantizeResult,
    write: Callable[[_Decided], QuantizeResult],
    ratio_of: Callable[[], float | None],
) -> tuple[_Decided, QuantizeResult]:
    """Time a result in turns with float; where it is slower, write it again without the layers that lose time in blocks.

    Layers that gain with one row and lose with many stay: which of the two counts is not known. A result that is slower
    even then has a warning.
    """
    ratio = ratio_of()
    slow = {n: t for n, t in decided.times.items() if t.mean > 1 and n not in decided.kept}
    if ratio is not None and ratio > _SLOWEST and slow:
        kept = {**decided.kept, **kept_out_of_blocks(slow)}
        plan = plan_blocks(ready.view, job.options, bits=decided.bits, kept=kept)
        said = f"In blocks the model took {ratio:.2f}x float's time: {len(slow)} layers that lose time become float at load."
        decided = replace(decided, plan=plan, kept=kept, notes=(*decided.notes, said))
        result, ratio = write(decided), ratio_of()
    if ratio is None:
        said = f"Not compared with float's time: timings are unstable ({load_text()})."
        return decided, replace(result, warnings=(*result.warnings, said))
    if ratio > _SLOWEST:
        said = f"The result takes {ratio:.2f}x float's time; --exclude leaves layers in float, --rows times layers with as many rows as you use."
        return decided, replace(result, warnings=(*result.warnings, said))
    return decided, result


def _written(
    ready: _Ready,
    decided: _Decided,
    store: CodesFolder,
    stage: Stage,
    reference: Reference | None,
    origin: Provenance,
) -> QuantizeResult:
    """Emit a copy of the model, write it into the staging folder, and compare it with float."""
    model, source = copy_of(ready.model), ready.source
    emit_blocks(model, decided.plan, SolvedIntegers(blocks=store))
    write_divisors(model.metadata_props, ready.divided)
    origin = replace(origin, options={**origin.options, **decided.record})
    nbytes, checked = write_checked(stage, model, reference, origin)
    require_signal(
        checked,
        "use more bits (--bits, --target-bits), smaller blocks, more samples, or leave layers in float (--exclude)",
    )
    require_smaller(source, nbytes)
    small = nbytes < LARGE
    notes = []
    if small and checked is not None and reference is not None and reference.outputs:
        notes = rounding_noted(stage.model_path, reference)
    return QuantizeResult(
        plan=decided.plan,
        input_bytes=source.nbytes,
        output_bytes=nbytes,
        external_data=False,
        verification=checked,
        warnings=tuple(warnings_of(decided.plan, source, nbytes, checked)),
        seconds=0.0,
        fusion=fusion_of(stage.model_path) if small and reference is not None else None,
        notes=tuple(notes),
    )
