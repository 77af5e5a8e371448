"""From a float model to one that can be planned: raised, simplified, equalized; and what data tells about it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators import ChannelExtremes, ChannelMoments
from quantkit.calibration import CalibrateOptions, calibrate_model
from quantkit.data import InputSpec, Sample, Samples, collate, open_data, order
from quantkit.errors import DataError, ModelError, NothingToQuantizeError, QuantkitError, UsageError
from quantkit.files import scratch
from quantkit.graph.channel_factors import Divisors
from quantkit.graph.half import half_type, widen, widened_note
from quantkit.graph.load import LoadedModel
from quantkit.graph.messages import root_cause
from quantkit.graph.normalize import fix_defaults
from quantkit.graph.opset import opset_of, raise_opset
from quantkit.graph.products import products_of
from quantkit.graph.save import Stage
from quantkit.graph.view import view_of
from quantkit.observe.calibration import Calibration
from quantkit.observe.monitor import Monitor
from quantkit.observe.prepare import batch_for, inputs_of
from quantkit.observe.requests import CalibratorAsk, Request
from quantkit.ops.view import View
from quantkit.plan import StaticOptions
from quantkit.plan.selection import resolve_tensors
from quantkit.provenance import model_digest
from quantkit.rewrite.equalize import equalize, extreme_requests, groups_of
from quantkit.rewrite.simplify import simplify
from quantkit.rewrite.smooth import smooth
from quantkit.rewrite.smoothable import smoothable, smoothing_requests
from quantkit.runtime.check_result import CALIBRATED, HELD_OUT, LARGE
from quantkit.settings import DataSettings, RecoverSettings, resident
from quantkit.solve.weights import in_groups, moment_requests
from quantkit.targets import cores

__all__ = [
    "STEPS",
    "Prepared",
    "described",
    "evened",
    "input_ranges",
    "judged_feeds",
    "memory_left",
    "mismatch",
    "moments_of",
    "observe_model",
    "observe_moments",
    "powers_of",
    "prepare",
    "ranges_of",
    "readable_again",
    "split",
]

STEPS = 5  # of static quantization: read, observe channels, observe ranges, round, write
_WIDE_OPSET = 21  # QuantizeLinear to 16 bits
_BYTE = 8
_FLOAT = 4  # bytes
_WORKERS = 320 << 20  # bytes that processes take beside what is asked
_LEAST = 64 << 20  # bytes that moments have in any case
_LOOKED_AT = 256  # samples that tell a channel's extremes well enough
# Of data that has enough samples, one in so many is not calibrated with, and judges the result; at most so many.
_ENOUGH, _SHARE, _HELD_OUT = 40, 10, 16
# On so many samples the result is judged, by the bytes of the float model below which that is quick.
_JUDGED = ((64 << 20, 16), (256 << 20, 8), (1 << 30, 4))
_FEWEST = 2
_HELD_BYTES = 128 << 20  # of these samples; beyond, there are fewer


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A float model ready to be planned, its description, and what was done to it."""

    model: ir.Model
    view: View
    notes: tuple[str, ...]
    name: str  # of the file, for messages
    known: frozenset[str]  # nodes that rules may name: also those that simplifying took away
    evened: str = ""  # names the factors of `evened`
    divided: tuple[Divisors, ...] = ()  # the factors
    renamed: Mapping[str, str] = field(default_factory=dict)  # of a model in halves: new to old


def prepare(loaded: LoadedModel, options: StaticOptions, at_least: int = 0) -> Prepared:
    """Compute in float32, raise the opset as far as the target needs and to `at_least`, and simplify."""
    notes = []
    minimum = max(_minimum(options), at_least)
    before = opset_of(loaded.model)
    known = frozenset(node.name or "" for node in loaded.model.graph.all_nodes())
    renamed: dict[str, str] = {}
    if fixed := fix_defaults(loaded.model):
        notes.append(fixed)
    if half := half_type(loaded.model):
        renamed = widen(loaded.model)
        notes.append(widened_note(half))
    model = raise_opset(loaded.model, minimum)
    if before < minimum:
        notes.append(f"Opset raised from {before} to {minimum}.")
    notes += simplify(model).notes
    name = loaded.path.name if loaded.path else "model.onnx"
    return replace(described(model, tuple(notes), name, known), renamed=renamed)


def described(
    model: ir.Model, notes: tuple[str, ...], name: str, known: frozenset[str]
) -> Prepared:
    """Describe a model as it is now."""
    view = view_of(model)
    return Prepared(
        model=model,
        view=replace(view, names=view.names | known),
        notes=notes,
        name=name,
        known=known,
    )


def _minimum(options: StaticOptions) -> int:
    types = [options.activation_type, *(o.dtype for o in options.overrides if o.dtype)]
    wide = any(t.bits > _BYTE for t in types)
    return max(options.target.min_opset, _WIDE_OPSET if wide else 0)


def evened(
    ready: Prepared,
    data: object,
    recover: RecoverSettings,
    settings: DataSettings,
    monitor: Monitor,
    *,
    skip_bad: bool = False,
) -> Prepared:
    """Even out the channels of activations, where weights can take that over; see `quantkit.recover`.

    That takes a look at some samples of its own: the extremes of each channel.
    """
    view = ready.view
    groups = groups_of(view, products_of(view)) if recover.equalize is not False else []
    smooths = smoothable(view) if recover.smooth is not False else ()
    if not (groups or smooths) or isinstance(data, KeptFirst):
        return ready
    monitor.step(2, STEPS, "Observing channel extremes for equalization")
    few = replace(settings, limit=min(settings.limit or _LOOKED_AT, _LOOKED_AT))
    extremes, moments = extreme_requests(groups), smoothing_requests(smooths)
    requests = (*extremes, *moments)
    with _written(ready) as path:
        seen = calibrate_model(
            path,
            data,
            None,
            _fitting(CalibrateOptions(ranges=False, requests=requests, skip_bad=skip_bad), ready),
            few,
            monitor,
        )
    notes, digest = [], blake2b(digest_size=8)
    largest = {r.tensor: _largest(seen, r) for r in extremes}
    if equalized := equalize(ready.model, groups, largest):
        notes.append(f"Equalized the channels of {len(equalized)} groups of tensors.")
        for tensor, array in largest.items():
            digest.update(tensor.encode() + array.tobytes())
    if done := smooth(ready.model, smooths, {r.tensor: _channels(seen, r) for r in moments}):
        notes.append(f"Smoothed {len(done)} activations.")
        for one in done:
            digest.update(one.tensor.encode() + one.scale.tobytes())
    if not notes:
        return ready
    again = described(ready.model, (*ready.notes, *notes), ready.name, ready.known)
    divided = (*equalized, *(one.divisors for one in done))
    return replace(again, evened=digest.hexdigest(), divided=divided)


def _channels(seen: Calibration, request: Request) -> ChannelMoments:
    answer = seen.seen.answers[request.tensor][request.what]
    assert isinstance(answer, ChannelMoments)  # noqa: S101 - it was asked for
    return answer


def _largest(seen: Calibration, request: Request) -> NDArray[Any]:
    answer = seen.seen.answers[request.tensor][request.what]
    assert isinstance(answer, ChannelExtremes)  # noqa: S101 - it was asked for
    return answer.largest


def observe_model(
    prepared: Prepared,
    data: object,
    options: CalibrateOptions,
    settings: DataSettings,
    monitor: Monitor,
    requests: tuple[Request, ...] = (),
) -> Calibration:
    """Run the prepared float model on the data; `requests`: what else is to be seen."""
    with _written(prepared) as path:
        try:
            return calibrate_model(
                path,
                data,
                None,
                replace(options, requests=(*options.requests, *requests), compare=False),
                settings,
                monitor,
            )
        except NothingToQuantizeError as e:  # it names the file that was written here
            raise NothingToQuantizeError(
                "Nothing in the model can run in calibrated integers: outside If, Loop and Scan it has no Conv, "
                "Gemm or MatMul. Nothing was written."
            ) from e


def moments_of(
    ready: Prepared, data: object, settings: DataSettings
) -> tuple[tuple[Request, ...], tuple[tuple[Request, ...], ...]]:
    """Return the moments to observe with the ranges, and those to observe afterwards, a group at a time.

    Where they do not fit into memory all at once the data is run again for each group; of data that can be read once only,
    what does not fit is never seen.
    """
    asked = moment_requests(products_of(ready.view))
    groups = in_groups(asked, memory_left(ready, settings) // 2)
    if not groups:
        return (), ()
    return groups[0], () if isinstance(data, KeptFirst) else groups[1:]


def observe_moments(
    prepared: Prepared,
    data: object,
    requests: tuple[Request, ...],
    options: CalibrateOptions,
    settings: DataSettings,
    monitor: Monitor,
) -> Calibration:
    """Run the prepared float model on the data again, for these requests alone."""
    again = replace(options, ranges=False, requests=requests, method=CalibratorAsk(name="mse"))
    with _written(prepared) as path:
        return calibrate_model(path, data, None, again, settings, monitor)


def memory_left(ready: Prepared, settings: DataSettings) -> int:
    """Return what the limit leaves for moments and for solving, beside the model and its session."""
    weights = sum(weight.size for weight in ready.view.weights.values()) * _FLOAT
    # A session maps the weights, and may copy them. Where nobody set a limit, the model comes on top of it.
    session = 2 * weights if settings.memory is not None else 0
    return max(settings.memory_limit - resident() - session - _WORKERS, _LEAST)


def _fitting(options: CalibrateOptions, ready: Prepared) -> CalibrateOptions:
    """Run a model that is too large to be in memory once a core in one process, with all cores for each operator."""
    nbytes = sum(weight.size for weight in ready.view.weights.values()) * _FLOAT
    many = options.scheduler is not None or options.workers is not None
    return options if many or nbytes < LARGE else replace(options, workers=1, threads=cores())


@contextmanager
def _written(ready: Prepared) -> Iterator[Path]:
    """Write a float model where onnxruntime can read it, for a while."""
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
        yield stage.model_path


class KeptFirst:
    """Data that can be read once only, with its first element kept, and a few that nobody else gets to see.

    The latter are every tenth element, once there were enough.
    """

    def __init__(self, data: Any) -> None:
        self.first: Any = None
        self.held_out: list[Any] = []
        self._kind = type(data).__name__
        self._elements = iter(data.get_next, None) if hasattr(data, "get_next") else iter(data)

    def __iter__(self) -> Iterator[Any]:
        for number, element in enumerate(self._elements, 1):
            if self.first is None:
                self.first = element
            tenth = number >= _ENOUGH and number % _SHARE == 0
            if tenth and len(self.held_out) < _HELD_OUT:
                self.held_out.append(element)
                continue
            yield element
        if self.first is None:
            raise DataError(
                f"The data '{self._kind}' gave no samples: nothing to read (has it been read before?)."
            )


def readable_again(data: object) -> object:
    """Return data that can be read twice as it is; of other data the first element will be kept."""
    again = isinstance(data, str | Path | Mapping) or hasattr(data, "__getitem__")
    return data if again else KeptFirst(data)


def split(
    data: object, loaded: LoadedModel, settings: DataSettings
) -> tuple[DataSettings, tuple[int, ...]]:
    """Return how to calibrate, and the numbers of samples to judge the result on, which calibration will not see.

    Those are samples beyond the limit, or else the last of the mixed order, if there are enough. Data that is not to
    be mixed may be sorted by class: of it all is calibrated with.
    """
    if isinstance(data, KeptFirst):
        return settings, ()
    try:
        samples = open_data(data, inputs_of(loaded), settings)
    except (
        QuantkitError
    ):  # it is said where the data is run; what is wrong with the model comes first
        return settings, ()
    if not isinstance(samples, Samples):
        return settings, ()
    mixed = order(len(samples), shuffle=settings.shuffle, seed=settings.seed).tolist()
    used = min(len(mixed), settings.limit or len(mixed))
    if used == len(mixed) and used >= _ENOUGH and settings.shuffle:
        used -= min(_HELD_OUT, used // _SHARE)
        settings = replace(settings, limit=used)
    return settings, tuple(mixed[used : used + _HELD_OUT])


def judged_feeds(
    data: object,
    loaded: LoadedModel,
    settings: DataSettings,
    unseen: tuple[int, ...],
    count: int | None = None,
) -> tuple[list[dict[str, Any]], str]:
    """Return real samples to judge the result on, and what they are (`quantkit.runtime.check_result.HELD_OUT` or `CALIBRATED`).

    `unseen`: the numbers of samples that it was not calibrated with; without them, the first ones are taken.
    `count`: how many; None: as many as are run in short time.
    """
    count = count or next((n for limit, n in _JUDGED if loaded.nbytes < limit), _FEWEST)
    if isinstance(data, KeptFirst):
        unseen = tuple(range(len(data.held_out)))
        data = data.held_out or [data.first]
    samples = open_data(data, inputs_of(loaded), settings)
    if not isinstance(samples, Samples):
        return [], CALIBRATED
    found = _feeds(samples, unseen, count, inputs_of(loaded))
    if found:
        return found, HELD_OUT
    seen = order(len(samples), limit=settings.limit, shuffle=settings.shuffle, seed=settings.seed)
    return _feeds(samples, seen.tolist(), count, inputs_of(loaded)), CALIBRATED


def _feeds(
    samples: Samples, numbers: Iterable[int], count: int, inputs: Sequence[InputSpec]
) -> list[dict[str, Any]]:
    """Return at most `count` runs, of one sample each unless the model takes only more at once."""
    readable = _readable(samples, numbers)
    first = next(readable, None)
    if first is None:
        return []
    together = batch_for(inputs, first, 1)
    found: list[dict[str, Any]] = []
    readable = chain([first], readable)
    while len(found) < count and sum(_nbytes(feeds) for feeds in found) < _HELD_BYTES:
        batch = list(islice(readable, together))
        if len(batch) < together:
            break
        found += collate(batch)
    return found


def _nbytes(feeds: Mapping[str, NDArray[Any]]) -> int:
    return sum(array.nbytes for array in feeds.values())


def _readable(samples: Samples, numbers: Iterable[int]) -> Iterator[Sample]:
    """Yield samples; those that cannot be read were complained of, or left out on request, before."""
    for number in numbers:
        try:
            yield samples[number]
        except DataError:
            continue


def ranges_of(seen: Calibration, methods: Mapping[str, str]) -> dict[str, tuple[float, float]]:
    """Return each tensor's range, by its own method where one is asked for.

    Raises:
        UsageError: A rule matches no tensor, or there is no such method.
    """
    found = seen.ranges()
    names = frozenset(found)
    for rule, method in methods.items():
        try:
            other = seen.by(CalibratorAsk(name=method))
        except ValueError as e:
            raise UsageError(f"The rule for tensor '{rule}' is wrong: {e}") from e
        for tensor in resolve_tensors(rule, names):
            bounds = other.range(tensor)
            found[tensor] = (float(bounds.low[0]), float(bounds.high[0]))
    return found


def powers_of(seen: Calibration, view: View) -> dict[str, float]:
    """Return the mean square of what each Softmax makes, where its distribution was observed."""
    made = [node.outputs[0] for node in view.nodes if node.op_type == "Softmax"]
    known = set(seen.tensors)
    sketches = {name: seen.sketch(name) for name in made if name in known}
    return {
        name: float(sketch.variance[0] + sketch.mean[0] ** 2)
        for name, sketch in sketches.items()
        if sketch is not None and not sketch.empty
    }


def input_ranges(seen: Calibration, loaded: LoadedModel) -> dict[str, tuple[float, float]]:
    """Return the observed ranges of the model's inputs: made-up ones must lie within them."""
    names = {value.name or "" for value in loaded.model.graph.inputs} & set(seen.tensors)
    found = {name: seen.range(name) for name in names}
    return {name: (float(r.low[0]), float(r.high[0])) for name, r in found.items()}


def mismatch(seen: Calibration, loaded: LoadedModel) -> list[str]:
    """Say whether a calibration was made with another model."""
    if seen.header.get("model", {}).get("sha256") == model_digest(loaded)["sha256"]:
        return []
    return ["The calibration was made with another model; tensors are matched by name."]
