"""The data of one quantization, opened once: the samples that calibrate, and others that judge the result."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from quantkit.calibration.collect import CalibrateOptions
from quantkit.calibration.model_inputs import batch_for, inputs_of, with_model_folder
from quantkit.data import InputSpec, Sample, Samples, Stream, collate, open_data, order
from quantkit.errors import DataError, QuantkitError
from quantkit.model.graph.load import LoadedModel
from quantkit.runtime.check_result import CALIBRATED, HELD_OUT
from quantkit.runtime.runs import row_trial
from quantkit.runtime.session import float_session
from quantkit.settings import DataSettings

# Of data that has enough samples, one in so many is not calibrated with, and judges the result; at most so many.
_ENOUGH, _SHARE, _HELD_OUT = 40, 10, 16
# On so many samples the result is judged, by the bytes of the float model below which that is quick.
_JUDGED = ((64 << 20, 40), (256 << 20, 16), (1 << 30, 8))
_FEWEST = 2
_HELD_BYTES = 48 << 20  # of these samples; beyond, there are fewer


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
    settings = with_limit(settings, samples, options)
    if not isinstance(samples, Samples):
        stream = samples if _is_reopenable(data) else OneShotData(samples)
        return OpenedData(samples=stream, settings=settings)
    mixed = order(len(samples), shuffle=settings.shuffle, seed=settings.seed).tolist()
    used = min(len(mixed), settings.limit or len(mixed))
    if used == len(mixed) and used >= _ENOUGH and settings.shuffle:
        used -= min(_HELD_OUT, used // _SHARE)
        settings = replace(settings, limit=used)
    return OpenedData(samples=samples, settings=settings, unseen=tuple(mixed[used:]))


def with_limit(
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
