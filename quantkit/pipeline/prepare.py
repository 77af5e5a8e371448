"""From a float model to one that can be planned, as often as one likes: simplified, equalized, observed.

    load -> simplify -> look (extremes of channels) -> rewrite (equalize, smooth) -> observe -> Prepared

What comes out is never changed: whoever emits works on a copy.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from math import inf
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators import ChannelExtremes, ChannelMoments, MeanSquaredError, Peaks, Sketch
from quantkit.calibration.calibration import Calibration
from quantkit.calibration.collect import collect
from quantkit.calibration.monitor import Monitor
from quantkit.calibration.points import points_of
from quantkit.calibration.requests import CalibratorOf, PeaksOf, Request
from quantkit.errors import ModelError, UsageError
from quantkit.files import scratch
from quantkit.model.graph.channel_factors import Divisors
from quantkit.model.graph.edit import nodes_of
from quantkit.model.graph.half import half_type, stays_half, widen, widened_note
from quantkit.model.graph.load import LoadedModel
from quantkit.model.graph.normalize import fix_defaults, lift_weights
from quantkit.model.graph.opset import opset_of, raise_opset
from quantkit.model.graph.products import Product, products_of
from quantkit.model.graph.protos import root_cause
from quantkit.model.graph.save import Stage, copy_of
from quantkit.model.graph.shapes import infer_types
from quantkit.model.graph.view import view_of
from quantkit.model.ops.float_ops import PRODUCTS
from quantkit.model.ops.view import View
from quantkit.model.provenance import model_digest
from quantkit.numerics.decibels import decibels
from quantkit.pipeline.calibrate import CalibrateOptions, OpenedData, opened_for, points_in
from quantkit.pipeline.checks import require_static
from quantkit.pipeline.record import StaticJob
from quantkit.quantize.plan import (
    Format,
    Plan,
    check_fits,
    check_operators,
    missing_ranges,
    opset_for,
    plan_static,
    ranges_needed,
)
from quantkit.quantize.plan.measured import Costs
from quantkit.quantize.plan.model import SolvedIntegers
from quantkit.quantize.plan.selection import resolve_tensors
from quantkit.quantize.rewrite.decompose import decompose
from quantkit.quantize.rewrite.equalize import Group, equalize, extreme_requests, groups_of
from quantkit.quantize.rewrite.simplify import simplify
from quantkit.quantize.rewrite.smooth import Smoothable, smooth, smoothable, smoothing_requests
from quantkit.quantize.rewrite.split import split_fused
from quantkit.quantize.solve.empirical_bias import SAMPLES
from quantkit.quantize.solve.losses import Meter
from quantkit.quantize.solve.weights import in_groups, moment_requests
from quantkit.runtime.check_result import LARGE, MADE_UP
from quantkit.runtime.session import RUNTIME_ERRORS, load_model
from quantkit.runtime.taps import read_tensors
from quantkit.settings import DataSettings, RecoverSettings, StaticSettings, resident
from quantkit.targets import Target, cores

__all__ = [
    "STEPS",
    "FloatModel",
    "Moments",
    "Prepared",
    "Use",
    "check_plan",
    "float_model_from",
    "memory_left",
    "minimum_opset",
    "observe_again",
    "prepare",
    "ranges_of",
    "runnable",
    "simplified",
]

STEPS = 5  # of static quantization: read, observe channels, observe ranges, round, write
_PAIR_OPSET = 10  # QuantizeLinear
_WIDE_OPSET = 21  # QuantizeLinear to 16 bits
_FLOAT = 4  # bytes
_WORKERS = 320 << 20  # bytes that processes take beside what is asked
_LEAST = 64 << 20  # bytes that moments have in any case
_LOOKED_AT = 256  # samples that tell a channel's extremes well enough
_SMOOTHED = "Smoothed"  # begins the note of a smoothed model
_JUDGES = 4  # samples, of a quarter at most, that decide whether smoothing helps

Feeds = Sequence[Mapping[str, NDArray[Any]]]
# Whether moments are observed for rounding, and whether they are kept for a second plan.
Use = Literal["never", "once", "often"]
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatModel:
    """A float model ready to be planned, its description, and what was done to it.

    Attributes:
        model: The graph.
        view: The same for planners.
        notes: What was done to it.
        name: Of the file, for messages.
        known: Nodes that rules may name: also those that simplifying took away.
        factors_id: Names the factors by which channels were equalized or smoothed; "" if they were not.
        divided: These factors.
        renamed: Of a model in halves: tensors by what they were called.
    """

    model: ir.Model
    view: View
    notes: tuple[str, ...]
    name: str
    known: frozenset[str]
    factors_id: str = ""
    divided: tuple[Divisors, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)

    @property
    def products(self) -> tuple[Product, ...]:
        """Its Conv, Gemm and MatMul with constant weights."""
        return products_of(self.view)

    @property
    def nbytes(self) -> int:
        """What its weights take in float32."""
        return sum(weight.size for weight in self.view.weights.values()) * _FLOAT


@dataclass(slots=True)
class Moments:
    """The moments of what products read, in groups that fit into memory.

    The first group was observed together with the ranges. Where it is not held, or not any more, the data is run again.

    Attributes:
        groups: What is asked, by group; the answers of one group are in memory at a time.
        held: The answers of the first group.
        kept: Hold them for the next plan: what a single group takes is within the limit of the memory.
    """

    groups: tuple[tuple[Request, ...], ...] = ()
    held: Calibration | None = None
    kept: bool = False

    def give_up(self) -> None:
        """Free the memory of the first group, unless there is room for it besides all else."""
        if not self.kept or len(self.groups) > 1:
            self.held = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Ranges of activations that were fitted without some of the samples.

    Attributes:
        first: The first of the judged samples that calibrates, too.
        numbers: Scales and zero points by tensor, one mapping per part of these samples; sample n belongs to part n modulo their number.
    """

    first: int
    numbers: tuple[Mapping[str, tuple[float, int]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A float model with all that planning and realizing need: nothing of it is changed by either.

    Attributes:
        job: What was asked for; `options` and `methods` are what `plan_of` plans with.
        source: The float model as it was read.
        ready: The float model to plan: simplified, equalized, smoothed.
        seen: What was observed of it; moments are apart.
        moments: What rounding reads.
        warnings: What the user should know.
        judged: Samples that results are judged on.
        on: What these are.
        samples: Some that it was calibrated with, for empirical bias correction.
        data: The data; None where a calibration was given.
        fitted: Ranges of activations of 8 bits with the least expected noise, instead of those of the range method.
        turns: Ranges for judged samples that calibrate as well; None: no sample does both, or nothing was fitted.
        costs: What its nodes take here, by the types that they were measured with, or why nobody knows; filled when
            somebody asks (`quantkit.pipeline.measure`).
    """

    job: StaticJob
    source: LoadedModel
    ready: FloatModel
    seen: Calibration
    moments: Moments = field(default_factory=Moments)
    warnings: tuple[str, ...] = ()
    judged: Feeds = ()
    on: str = MADE_UP
    samples: Feeds = ()
    data: OpenedData | None = None
    fitted: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    turns: Turns | None = None
    costs: dict[str, Costs | str] = field(default_factory=dict)

    @property
    def settings(self) -> DataSettings:
        """How samples are chosen and ordered, and the limit of the memory."""
        return self.job.settings if self.data is None else self.data.settings

    def observed(self, tensor: str) -> tuple[Sketch, Peaks] | None:
        """Return the values and the peaks of a tensor; None if they were not observed."""
        if tensor not in self.seen.seen.answers:
            return None
        sketch, peaks = self.seen.sketch(tensor), self.seen.answer(tensor, PeaksOf)
        return (sketch, peaks) if sketch is not None and isinstance(peaks, Peaks) else None

    @property
    def input_ranges(self) -> dict[str, tuple[float, float]]:
        """The observed ranges of the model's inputs: made-up ones must lie within them."""
        names = {value.name or "" for value in self.source.model.graph.inputs}
        found = {name: self.seen.range(name) for name in names & set(self.seen.tensors)}
        return {name: (float(r.low[0]), float(r.high[0])) for name, r in found.items()}


def prepare(
    source: LoadedModel,
    job: StaticJob,
    monitor: Monitor,
    *,
    given: Plan | None = None,
    moments: Use = "once",
) -> Prepared:
    """Simplify a model, even out its channels, and observe it on the data.

    Args:
        source: The float model; it stays as it was read.
        job: What is asked for.
        monitor: Told what is done.
        given: A plan that will be applied: what can be known about it is checked before data is opened.
        moments: Whether to observe what rounding reads, and whether to keep it for more than one plan.

    Raises:
        QuantkitError: Model or data cannot be used; says why.
    """
    monitor.stage("Simplifying")
    ready = simplified(source, job.options, 0 if given is None else opset_for(given))
    if given is not None:
        check_plan(ready, given, job.options.runs_on, early=True)
    if isinstance(job.data, Calibration):
        seen, warnings = job.data, _mismatch(job.data, source)
        if given is None:
            warnings += _missing(ready, seen, job)
        # The caller's: its moments, if it has any, stay where they are.
        moments_held = Moments(held=seen, kept=True)
        return Prepared(
            job=job, source=source, ready=ready, seen=seen, moments=moments_held, warnings=warnings
        )
    if given is None and not points_of(ready.view, ranges_needed(ready.view, job.options)).tensors:
        require_static(plan_static(ready.view, {}, job.options), source, observed=True)
    data = opened_for(source, job.data, job.settings, job.calibrate)
    if data.samples is not None:
        monitor.chosen(data.settings.limit, data.samples.description.samples)
    with ExitStack() as files:
        looked_at, ready = _equalized(ready, data, job, files, monitor)
        groups = _moment_groups(ready, data, job.recover) if moments != "never" else ()
        seen = _observed(looked_at, ready, data, job, groups[0] if groups else (), files, monitor)
    seen, held = _without_moments(seen)
    judged, on = data.judged(source)
    empirical = job.recover.empirical is True
    return Prepared(
        job=job,
        source=source,
        ready=ready,
        seen=seen,
        moments=Moments(groups=groups, held=held, kept=moments == "often"),
        warnings=tuple(seen.header["warnings"]),
        judged=judged,
        on=on,
        samples=replace(data, unseen=()).judged(source, SAMPLES)[0] if empirical else (),
        data=data,
    )


def simplified(source: LoadedModel, options: StaticSettings, at_least: int = 0) -> FloatModel:
    """Compute in float32, raise the opset as far as the target needs and to `at_least`, and simplify.

    The source stays as it is.

    Args:
        source: The model as it was loaded.
        options: The target, and which passes are left out.
        at_least: An opset that a plan needs; 0: none.
    """
    notes = []
    model = copy_of(source.model)
    minimum = max(minimum_opset(options, model), at_least)
    if options.covers_all and stays_half(model):
        minimum = max(minimum, _WIDE_OPSET)  # from which float16 is quantized, too
    before = opset_of(model)
    known = frozenset(node.name or "" for node in model.graph.all_nodes())
    renamed: dict[str, str] = {}
    if fixed := fix_defaults(model, keep=options.keep_inputs):
        notes.append(fixed)
    if half := half_type(model):
        renamed = widen(model)
        notes.append(widened_note(half))
    model = raise_opset(model, minimum)
    if before < minimum:
        notes.append(f"Opset raised from {before} to {minimum}.")
    if options.simplify:
        split_fused(model)
        notes += simplify(model).notes
    if options.simplify and not options.covers_all:
        decompose(model, options.runs_on.decomposed)
    if options.covers_all:
        lift_weights(model)
        infer_types(model)  # only floats are quantized
    name = source.path.name if source.path else "model.onnx"
    return replace(float_model_from(model, tuple(notes), name, known), renamed=renamed)


def float_model_from(
    model: ir.Model, notes: tuple[str, ...], name: str, known: frozenset[str]
) -> FloatModel:
    """Describe a model as it is now; see `FloatModel` for the arguments."""
    view = view_of(model)
    return FloatModel(
        model=model,
        view=replace(view, names=view.names | known),
        notes=notes,
        name=name,
        known=known,
    )


def minimum_opset(options: StaticSettings, model: ir.Model) -> int:
    """Return the opset that target and types need for a model.

    A graph that is to stay as it is, and has nothing with a scale per channel, is not raised further than pairs need: a new
    opset makes inputs of attributes.

    Args:
        options: What the user chose.
        model: The float model.
    """
    types = [options.activation, options.weight]
    types += [rule.int_type for rule in options.tensors if rule.int_type]
    # onnxruntime's own operators have all types in every opset, but no blocks.
    wide = not options.qdq.contrib_ops and any(t.bits != 8 for t in types)
    wide = wide or options.qdq.block_size is not None
    stays = options.covers_all and not options.simplify and options.format != "qoperator"
    plain = (
        stays and not options.tensors and not any(n.op_type in PRODUCTS for n in nodes_of(model))
    )
    least = _PAIR_OPSET if plain else options.runs_on.min_opset
    return max(least, _WIDE_OPSET if wide else 0)


def _equalized(
    ready: FloatModel, data: OpenedData, job: StaticJob, files: ExitStack, monitor: Monitor
) -> tuple[LoadedModel | None, FloatModel]:
    """Even out the channels of activations, where weights can take that over; see `quantkit.quantize.rewrite`.

    That takes a look at some samples of its own: the extremes of each channel. Data that can be read only once is left
    for the ranges. Return the file that was looked at, if it is still the model, and the model.
    """
    # Two passes over the data, and no way around it: factors need the extremes of channels of the model as it is,
    # ranges must be of the model as it will be, and a histogram of a whole tensor cannot be rescaled by channel. The
    # first pass is short, as extremes need few samples. Data that can be read only once is kept for the ranges: they
    # are needed, factors only help. The digest names the factors: a plan and a calibration of other factors are then
    # refused instead of being silently wrong.
    view, recover = ready.view, job.recover
    groups = groups_of(view, ready.products) if recover.equalize is not False else []
    smooths = smoothable(view) if recover.smooth is not False else ()
    if not (groups or smooths) or data.once:
        return None, ready
    monitor.step(2, STEPS, "Observing channel extremes for equalization")
    # The last samples set no factors: they decide whether factors help.
    used = data.used
    judges = min(_JUDGES, used // _JUDGES) if smooths and used >= 2 * _JUDGES else 0
    few = replace(data.settings, limit=min(used - judges, _LOOKED_AT) if used else _LOOKED_AT)
    extremes, moments = extreme_requests(groups), smoothing_requests(smooths)
    asked = CalibrateOptions(
        ranges=False, requests=(*extremes, *moments), skip_bad=job.calibrate.skip_bad
    )
    monitor.stage("Reading the model")
    written = files.enter_context(runnable(ready))
    seen = _run(written, data, _fitting(asked, ready), few, monitor)
    largest = {r.tensor: _answer(seen, r, ChannelExtremes).largest for r in extremes}
    channels = {r.tensor: _answer(seen, r, ChannelMoments) for r in moments}
    models = [ready, *_rewritten(ready, (groups, largest), (smooths, channels))]
    if len(models) == 1:
        return written, ready
    if judges and models[-1].notes[-1].startswith(_SMOOTHED):
        monitor.stage("Measuring whether smoothing helps")
        learned = data.at(written, range(min(used - judges, 2 * _JUDGES)))
        judged = data.at(written, range(used - judges, used))
        models = _without_noisier(models[-2:], job, learned, judged)
    if models[-1].model is ready.model:
        return written, models[-1]
    files.close()  # what was written is another model now
    return None, models[-1]


def _rewritten(
    ready: FloatModel,
    even: tuple[Sequence[Group], Mapping[str, NDArray[Any]]],
    smoothing: tuple[Sequence[Smoothable], Mapping[str, ChannelMoments]],
) -> Iterator[FloatModel]:
    """Yield the model with equalized channels, and then with smoothed activations, as far as there are any."""
    digest = blake2b(digest_size=8)
    model = copy_of(ready.model)
    if divided := equalize(model, *even):
        for tensor, array in even[1].items():
            digest.update(tensor.encode() + array.tobytes())
        note = f"Equalized the channels of {len(divided)} groups of tensors."
        again = float_model_from(model, (*ready.notes, note), ready.name, ready.known)
        ready = replace(again, factors_id=digest.hexdigest(), divided=divided)
        yield ready
    model = copy_of(ready.model)
    if done := smooth(model, *smoothing):
        for one in done:
            digest.update(one.tensor.encode() + one.scale.tobytes())
        note = f"{_SMOOTHED} {len(done)} {'activation' if len(done) == 1 else 'activations'}."
        again = float_model_from(model, (*ready.notes, note), ready.name, ready.known)
        divided = (*ready.divided, *(one.divisors for one in done))
        yield replace(again, factors_id=digest.hexdigest(), divided=divided)


def _without_noisier(
    models: Sequence[FloatModel], job: StaticJob, learned: Feeds, judged: Feeds
) -> list[FloatModel]:
    """Return models up to the one with the least noise on samples that set no factors.

    Args:
        models: A float model, and the same with more and more rewritten.
        job: The settings of the plan.
        learned: Samples that ranges are found with.
        judged: Samples on which noise is measured.
    """
    try:
        noise = [_noise_of(model, job.options, learned, judged) for model in models]
    except RUNTIME_ERRORS:  # a model that does not run with more outputs than its own
        return list(models)
    best = int(np.argmin(noise))
    left = [note for note in models[-1].notes if note not in models[best].notes]
    if not left:
        return list(models)
    why = "Not done, as it makes samples noisier that did not set the factors"
    note = f"{why} ({_gain(noise[-1], noise[best])}): {' '.join(left)}"
    return [*models[:best], replace(models[best], notes=(*models[best].notes, note))]


def _gain(more: float, less: float) -> str:
    return f"{decibels(more / less):.1f} dB" if 0 < less < inf and more < inf else "much"


def _noise_of(ready: FloatModel, options: StaticSettings, learned: Feeds, judged: Feeds) -> float:
    """Return noise over signal of the worst output when a model is quantized with ranges of a few samples."""
    needed = ranges_needed(ready.view, options)
    sketches = {name: Sketch() for name in needed}
    for values in read_tensors(ready.model, needed, learned):
        for name, array in values.items():
            sketches[name].observe(array)
    method = MeanSquaredError()
    found = {name: method(sketch) for name, sketch in sketches.items() if not sketch.empty}
    ranges = {name: (float(one.low[0]), float(one.high[0])) for name, one in found.items()}
    plan = plan_static(ready.view, ranges, options)
    meter = Meter(ready.model, ready.view, plan, SolvedIntegers(), judged)
    return max(meter.noise_of(plan).values(), default=0.0)


def _answer(seen: Calibration, request: Request, kind: type[_Answer]) -> _Answer:
    answer = seen.seen.answers[request.tensor][request.statistic]
    assert isinstance(answer, kind)  # noqa: S101 - it was asked for
    return answer


def _moment_groups(
    ready: FloatModel, data: OpenedData, recover: RecoverSettings
) -> tuple[tuple[Request, ...], ...]:
    """Return the moments to observe, those of the first group with the ranges and the others when they are needed.

    Where they do not fit into memory all at once the data is run again for each group; of data that can be read once only,
    what does not fit is never seen.
    """
    if recover.rounding is False and recover.bias is not True:
        return ()
    groups = in_groups(moment_requests(ready.products), memory_left(ready, data.settings) // 2)
    return groups[:1] if data.once else groups


def _observed(  # noqa: PLR0913 - one parameter per question
    written: LoadedModel | None,
    ready: FloatModel,
    data: OpenedData,
    job: StaticJob,
    requests: tuple[Request, ...],
    files: ExitStack,
    monitor: Monitor,
) -> Calibration:
    """Run the prepared float model on the data; `written`: the file that holds it, if there is one."""
    monitor.step(3, STEPS, "Observing ranges and moments" if requests else "Observing ranges")
    needed = ranges_needed(ready.view, job.options)
    if job.calibrate.method == CalibrateOptions().method:  # fitted ranges need them
        requests = (*requests, *(Request(tensor=name, statistic=PeaksOf()) for name in needed))
    asked = replace(job.calibrate, requests=(*job.calibrate.requests, *requests), compare=False)
    monitor.stage("Reading the model")
    written = written or files.enter_context(runnable(ready))
    return _run(written, data, asked, data.settings, monitor, needed)


def observe_again(
    prepared: Prepared, written: LoadedModel, requests: tuple[Request, ...], monitor: Monitor
) -> Calibration:
    """Run the prepared float model on the data once more, for these requests alone; `written`: its file.

    Args:
        prepared: The model, and what is asked for.
        written: Its file.
        requests: What to observe.
        monitor: Told what is done.
    """
    assert prepared.data is not None  # noqa: S101 - a calibration leaves nothing to observe
    asked = replace(
        prepared.job.calibrate, ranges=False, requests=requests, method=CalibratorOf(name="mse")
    )
    return _run(written, prepared.data, asked, prepared.settings, monitor)


def _run(
    written: LoadedModel,
    data: OpenedData,
    options: CalibrateOptions,
    settings: DataSettings,
    monitor: Monitor,
    needed: tuple[str, ...] = (),
) -> Calibration:
    """Run a model on the data; `needed`: tensors whose ranges the plan will ask for, which may be none at all."""
    points = points_in(written, needed)
    monitor.stage("Looking at the data")
    return collect(written, data.require(), points, options, settings, monitor)


def memory_left(ready: FloatModel, settings: DataSettings) -> int:
    """Return what the limit leaves for moments and for solving, beside the model and its session."""
    # A session maps the weights, and may copy them. Where nobody set a limit, the model comes on top of it.
    session = 2 * ready.nbytes if settings.memory is not None else 0
    return max(settings.memory_limit - resident() - session - _WORKERS, _LEAST)


def _fitting(options: CalibrateOptions, ready: FloatModel) -> CalibrateOptions:
    """Run a model that is too large to be in memory once per core in one process, with all cores for each operator."""
    many = options.scheduler is not None or options.workers is not None
    large = ready.nbytes >= LARGE
    return replace(options, workers=1, threads=cores()) if large and not many else options


@contextmanager
def runnable(ready: FloatModel) -> Iterator[LoadedModel]:
    """Write a float model where onnxruntime and workers can read it, for a while, and open it there."""
    with scratch() as folder:
        stage = Stage(folder / ready.name, folder)
        try:
            stage.write(ready.model)
        except onnx.checker.ValidationError as e:
            raise ModelError(f"The simplified model is not valid ONNX: {root_cause(e)}") from e
        except OSError as e:
            raise ModelError(
                f"The simplified model cannot be written to '{folder}': {e.strerror or e}; set TMPDIR to "
                "a folder with room for it."
            ) from e
        yield load_model(stage.model_path)


def _without_moments(seen: Calibration) -> tuple[Calibration, Calibration]:
    """Return what is small, and what is large; nothing is copied."""
    return (
        replace(seen, seen=seen.seen.select(lambda request: not request.statistic.once)),
        replace(seen, seen=seen.seen.select(lambda request: request.statistic.once)),
    )


def check_plan(ready: FloatModel, plan: Plan, target: Target, *, early: bool = False) -> None:
    """Check that a plan that was given fits a model.

    Args:
        ready: The model.
        plan: The plan, for this target.
        target: What is to run the result.
        early: Channels are still to be equalized, so that a plan for equalized ones cannot be told yet.

    Raises:
        UsageError: It does not; names the first thing that is wrong.
    """
    if not (early and plan.factors_id):
        check_fits(plan, ready.view, ready.factors_id)
    output_format = plan.output_format or Format.QDQ
    check_operators(plan, ready.view, target, output_format)


def ranges_of(
    seen: Calibration,
    ready: FloatModel,
    methods: Mapping[str, str],
    fitted: Mapping[str, tuple[float, float]] = MappingProxyType({}),
) -> dict[str, tuple[float, float]]:
    """Return each tensor's range, by its own method where one is asked for.

    Args:
        seen: What was observed.
        ready: The model.
        methods: Of single tensors, by name or pattern.
        fitted: Ranges that replace those of the default method.

    Raises:
        UsageError: A rule matches no tensor, or there is no such method.
    """
    found = {**seen.ranges(), **fitted}
    names = frozenset(found)
    for rule, method in methods.items():
        try:
            other = seen.by(CalibratorOf(name=method))
        except ValueError as e:
            raise UsageError(f"The rule for tensor '{rule}' is wrong: {e}") from e
        for tensor in resolve_tensors(rule, names):
            bounds = other.range(tensor)
            found[tensor] = (float(bounds.low[0]), float(bounds.high[0]))
    for tensor, was in ready.renamed.items():  # of a calibration of the model in halves
        if was in found:
            found.setdefault(tensor, found[was])
    return found


def _mismatch(seen: Calibration, source: LoadedModel) -> tuple[str, ...]:
    """Say whether a calibration was made with another model."""
    if seen.header.get("model", {}).get("sha256") == model_digest(source)["sha256"]:
        return ()
    return ("The calibration was made with another model; tensors are matched by name.",)


def _missing(ready: FloatModel, seen: Calibration, job: StaticJob) -> tuple[str, ...]:
    """Say that a calibration lacks ranges: it was made with another model, or before its target was known."""
    ranges, options = ranges_of(seen, ready, job.methods), job.options
    missing = missing_ranges(ready.view, ranges, options)
    if not missing:
        return ()
    count = "1 tensor" if len(missing) == 1 else f"{len(missing)} tensors"
    lacks = f"The calibration has no range of {count} that target '{options.runs_on.name}' needs (the first: '{missing[0]}')"
    return (
        f"{lacks}: what makes or reads them may stay float. Calibrate this model again, or quantize with the data itself.",
    )
