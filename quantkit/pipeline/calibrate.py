"""Calibration, in order: load, find the points, open the data, observe, audit, write.

The data of one quantization is opened once (`opened_for`): what it is calibrated with, and what its result is judged on.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.calibration.calibration import Calibration
from quantkit.calibration.collect import CalibrateOptions, collect
from quantkit.calibration.container import is_container
from quantkit.calibration.monitor import Monitor, Silent
from quantkit.calibration.points import Points, points_of
from quantkit.calibration.prepare import inputs_of, with_model_folder
from quantkit.data import InputSpec, Sample, Samples, Stream, collate, open_data, order
from quantkit.data.feeds import batch_for
from quantkit.errors import (
    DataError,
    ModelError,
    NothingToQuantizeError,
    QuantkitError,
    UsageError,
)
from quantkit.files import check_outputs
from quantkit.model.graph.half import half_type, widen
from quantkit.model.graph.load import LoadedModel
from quantkit.model.graph.normalize import fix_defaults
from quantkit.model.graph.opset import raise_opset
from quantkit.model.graph.save import copy_of
from quantkit.model.graph.shapes import infer_types
from quantkit.model.graph.view import view_of
from quantkit.model.ops.view import View
from quantkit.quantize.plan import ranges_needed
from quantkit.quantize.rewrite.simplify import simplify
from quantkit.quantize.rewrite.split import split_fused
from quantkit.runtime.check_result import CALIBRATED, HELD_OUT
from quantkit.runtime.runs import row_trial
from quantkit.runtime.session import float_session, load_model
from quantkit.settings import DataSettings, StaticSettings
from quantkit.targets import DEFAULT, registered

__all__ = ["CalibrateOptions", "OneShotData", "OpenedData", "calibrate_model", "find_points"]
__all__ += [
    "collected",
    "needed_by_any",
    "open_samples",
    "opened_for",
    "points_in",
    "view_for_static",
]

# Of data that has enough samples, one in so many is not calibrated with, and judges the result; at most so many.
_ENOUGH, _SHARE, _HELD_OUT = 40, 10, 16
# On so many samples the result is judged, by the bytes of the float model below which that is quick.
_JUDGED = ((64 << 20, 40), (256 << 20, 16), (1 << 30, 8))
_FEWEST = 2
_HELD_BYTES = 48 << 20  # of these samples; beyond, there are fewer


def calibrate_model(
    source: str | Path | onnx.ModelProto,
    data: object,
    output: Path | None,
    options: CalibrateOptions,
    settings: DataSettings,
    monitor: Monitor | None = None,
) -> Calibration:
    """Learn the ranges of a model's activations from data, and write them; see `quantkit.calibrate`.

    Args:
        source: The float model.
        data: What it is run on.
        output: Where the calibration is written; None: nowhere.
        options: What is asked for, and who works.
        settings: How samples are prepared and ordered.
        monitor: Told what is done.
    """
    monitor = monitor or Silent()
    monitor.stage("Reading the model")
    loaded = load_model(source)
    _check_output(output, loaded, data)
    loaded.require_weights()
    # A file of ranges serves whatever target is chosen later.
    points = find_points(loaded, needed_by_any(loaded.model) if options.ranges else ())
    monitor.stage("Looking at the data")
    with loaded.watched():  # how arrays are cut into samples may be found by running it
        samples = open_samples(loaded, data, with_model_folder(settings, loaded), options)
    settings = _limited(settings, samples, options)
    monitor.chosen(settings.limit, samples.description.samples)
    # Data in memory has no name that tells a changed sample; only files are taken up again.
    partial_file = _partial(output) if output and isinstance(data, str | Path) else None
    found = collect(loaded, samples, points, options, settings, monitor, partial_file=partial_file)
    if output is not None:
        monitor.stage("Writing")
        loaded.require_unchanged()
        found.save(output)
        _partial(output).unlink(missing_ok=True)
    return found


def needed_by_any(model: ir.Model) -> tuple[str, ...]:
    """Return the tensors of a float model whose ranges a plan needs, for whichever target it will be made."""
    view, renamed = view_for_static(model)
    if view is None:  # then no plan can be made either
        return ()
    asked = (ranges_needed(view, StaticSettings(target=t.name)) for t in registered())
    return tuple(dict.fromkeys(renamed.get(name, name) for names in asked for name in names))


def view_for_static(model: ir.Model) -> tuple[View | None, dict[str, str]]:
    """Return a view of a model as `quantkit.pipeline.prepare` plans it, and the names of tensors that it widened.

    Weights are neither copied nor read. The view is None where the opset cannot be raised.
    """
    copy = copy_of(model)
    fix_defaults(copy)
    renamed = widen(copy) if half_type(copy) else {}
    try:
        copy = raise_opset(copy, DEFAULT.min_opset)
    except ModelError:
        return None, renamed
    split_fused(copy)
    simplify(copy)
    return view_of(copy, read_weights=False), renamed


def open_samples(
    loaded: LoadedModel,
    data: object,
    settings: DataSettings,
    options: CalibrateOptions,
) -> Samples | Stream:
    """Open data that workers may have to open again, under the name that the user gave it.

    Args:
        loaded: The model that it is for.
        data: A path or a Python object.
        settings: How samples are prepared.
        options: Who works: workers of a cluster may have another working directory.
    """
    inputs, trial = inputs_of(loaded), row_trial(partial(float_session, loaded))
    if not isinstance(data, str | Path):
        return open_data(data, inputs, settings, trial)
    elsewhere = options.scheduler is not None
    samples = open_data(Path(data).absolute() if elsewhere else data, inputs, settings, trial)
    samples.description = replace(samples.description, location=str(data))
    return samples


def _check_output(output: Path | None, loaded: LoadedModel, data: object) -> None:
    if output is not None:
        read = [Path(data)] if isinstance(data, str | Path) else []
        check_outputs([output, _partial(output)], [*loaded.files, *read])
        partial = _partial(output)
        if partial.is_symlink() or (partial.exists() and not is_container(partial)):
            raise UsageError(
                f"'{partial}' is in the way of what is kept while calibrating, and not quantkit's: move it, or "
                "choose another output."
            )


def find_points(loaded: LoadedModel, needed: tuple[str, ...] = ()) -> Points:
    """Return the tensors of a model to observe; `needed`: those that a plan will ask for.

    Raises:
        NothingToQuantizeError: There are none.
    """
    points = points_in(loaded, needed)
    if points.tensors:
        return points
    where = f": all {points.hidden} stand in subgraphs of other operators" if points.hidden else ""
    raise NothingToQuantizeError(
        f"No activation of {loaded.name} could be quantized{where}; there is nothing to calibrate",
        outcome="",
    )


def points_in(loaded: LoadedModel, needed: tuple[str, ...] = ()) -> Points:
    """Return the tensors of a model to observe, perhaps none; see `find_points`."""
    infer_types(loaded.model)
    return points_of(view_of(loaded.model, read_weights=False), needed)


def _partial(output: Path) -> Path:
    return output.with_name(f"{output.name}.partial")


class OneShotData:
    """A stream that can be read once only, with its first sample kept, and a few that nobody else gets to see.

    The latter are every tenth sample, once there were enough.
    """

    def __init__(self, stream: Stream) -> None:
        self.description = stream.description
        self.first: Sample | None = None
        self.held_out: list[Sample] = []
        self._stream = stream

    def __iter__(self) -> Iterator[Sample]:
        for number, sample in enumerate(self._stream, 1):
            if self.first is None:
                self.first = sample
            tenth = number >= _ENOUGH and number % _SHARE == 0
            if tenth and len(self.held_out) < _HELD_OUT:
                self.held_out.append(sample)
                continue
            yield sample


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedData:
    """Data that was opened for a model, or why it could not be.

    Attributes:
        samples: The data; None if it could not be opened.
        error: Why not: raised where the data is run, so that what is wrong with the model comes first.
        settings: How to calibrate with it: which samples, in which order.
        unseen: The numbers of samples that calibration does not see, for judging the result.
    """

    samples: Samples | Stream | None
    settings: DataSettings
    unseen: tuple[int, ...] = ()
    error: QuantkitError | None = None

    @property
    def once(self) -> bool:
        """Whether it can be read only once."""
        return isinstance(self.samples, OneShotData)

    def require(self) -> Samples | Stream:
        """Return the data.

        Raises:
            QuantkitError: It could not be opened.
        """
        if self.samples is None:
            assert self.error is not None  # noqa: S101 - one of the two is there
            raise self.error
        return self.samples

    def at(self, loaded: LoadedModel, places: Sequence[int]) -> list[dict[str, Any]]:
        """Return the samples at some places in the order of calibration; none of data that cannot be read again."""
        samples = self.require()
        if not isinstance(samples, Samples):
            return []
        numbers = self._order(len(samples))[list(places)].tolist()
        return _feeds(samples, numbers, len(numbers), inputs_of(loaded))

    @property
    def used(self) -> int:
        """How many samples calibrate; 0 if that is not known, as of a stream."""
        samples = self.require()
        return len(self._order(len(samples))) if isinstance(samples, Samples) else 0

    def _order(self, samples: int) -> NDArray[Any]:
        chosen = self.settings
        return order(samples, limit=chosen.limit, shuffle=chosen.shuffle, seed=chosen.seed)

    @staticmethod
    def most_judged(loaded: LoadedModel) -> int:
        """Return on how many samples a model is judged in short time."""
        return next((n for limit, n in _JUDGED if loaded.nbytes < limit), _FEWEST)

    def judged(
        self, loaded: LoadedModel, count: int | None = None
    ) -> tuple[list[dict[str, Any]], str]:
        """Return real samples to judge a result on, and what they are (`HELD_OUT` or `CALIBRATED`).

        `count`: how many; None: as many as are run in short time.
        """
        count = count or self.most_judged(loaded)
        inputs, samples = inputs_of(loaded), self.require()
        if isinstance(samples, OneShotData):
            first = [] if samples.first is None else [samples.first]
            held = samples.held_out
            found = _feeds(held or first, range(len(held or first)), count, inputs)
            return found, HELD_OUT if held else CALIBRATED
        if not isinstance(samples, Samples):
            return [], CALIBRATED
        found = _feeds(samples, self.unseen, count, inputs)
        if found:
            return found, HELD_OUT
        return _feeds(samples, self._order(len(samples)).tolist(), count, inputs), CALIBRATED


def opened_for(
    loaded: LoadedModel,
    data: object,
    settings: DataSettings,
    options: CalibrateOptions | None = None,
) -> OpenedData:
    """Open data for a model, and set samples aside that calibration will not see.

    Those are samples beyond the limit, or else the last of the mixed order, if there are enough. Data that is not to
    be mixed may be sorted by class: of it all is calibrated with.

    Args:
        loaded: The float model.
        data: A path or a Python object.
        settings: How samples are prepared and ordered; a tokenizer is also looked for beside the model.
        options: How it is calibrated.
    """
    settings = with_model_folder(settings, loaded)
    options = options or CalibrateOptions()
    try:
        samples = open_samples(loaded, data, settings, options)
    except QuantkitError as e:
        return OpenedData(samples=None, error=e, settings=settings)
    settings = _limited(settings, samples, options)
    if not isinstance(samples, Samples):
        stream = samples if _is_reopenable(data) else OneShotData(samples)
        return OpenedData(samples=stream, settings=settings)
    mixed = order(len(samples), shuffle=settings.shuffle, seed=settings.seed).tolist()
    used = min(len(mixed), settings.limit or len(mixed))
    if used == len(mixed) and used >= _ENOUGH and settings.shuffle:
        used -= min(_HELD_OUT, used // _SHARE)
        settings = replace(settings, limit=used)
    return OpenedData(samples=samples, settings=settings, unseen=tuple(mixed[used:]))


def _limited(
    settings: DataSettings, samples: Samples | Stream, options: CalibrateOptions
) -> DataSettings:
    """Return the settings with the default limit where they have none and there are more samples.

    The limit of a shuffled order is a draw from all of them. Samples that must keep their order are all used: the first
    ones may be of one class. Of a stream, whose end is not known, the first ones are used.
    """
    if settings.limit is not None or options.most is None:
        return settings
    limit = options.most
    if isinstance(samples, Samples):
        count = len(samples)
        if count <= limit or not settings.shuffle:
            return settings
        limit = min(limit, count - min(_HELD_OUT, count // _SHARE))
    return replace(settings, limit=limit)


def _is_reopenable(data: object) -> bool:
    """Say whether data can be read twice."""
    return isinstance(data, str | Path | Mapping) or hasattr(data, "__getitem__")


def _feeds(
    samples: Samples | Sequence[Sample],
    numbers: Iterable[int],
    count: int,
    inputs: Sequence[InputSpec],
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


def _readable(samples: Samples | Sequence[Sample], numbers: Iterable[int]) -> Iterator[Sample]:
    """Yield samples; those that cannot be read were complained of, or left out on request, before."""
    for number in numbers:
        try:
            yield samples[number]
        except DataError:
            continue


def collected(
    written: LoadedModel,
    data: OpenedData,
    options: CalibrateOptions,
    settings: DataSettings,
    monitor: Monitor,
    needed: tuple[str, ...] = (),
) -> Calibration:
    """Run a written float model on the data.

    Args:
        written: The model.
        data: What it is run on.
        options: What is asked.
        settings: Which samples, in which order.
        monitor: Told what is done.
        needed: Tensors whose ranges the plan will ask for, which may be none at all.
    """
    points = points_in(written, needed)
    monitor.stage("Looking at the data")
    return collect(written, data.require(), points, options, settings, monitor)
