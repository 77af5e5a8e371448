"""The data of one quantization, opened once: what it is calibrated with, and what its result is judged on."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from quantkit.data import InputSpec, Sample, Samples, Stream, collate, order
from quantkit.errors import DataError, QuantkitError
from quantkit.graph.load import LoadedModel
from quantkit.observe.collect import CalibrateOptions
from quantkit.observe.prepare import batch_for, inputs_of, with_model_folder
from quantkit.runtime.check_result import CALIBRATED, HELD_OUT
from quantkit.settings import DataSettings
from quantkit.workflows.calibrate import open_samples

__all__ = ["OneShotData", "OpenedData", "opened_for"]

# Of data that has enough samples, one in so many is not calibrated with, and judges the result; at most so many.
_ENOUGH, _SHARE, _HELD_OUT = 40, 10, 16
# On so many samples the result is judged, by the bytes of the float model below which that is quick.
_JUDGED = ((64 << 20, 16), (256 << 20, 8), (1 << 30, 4))
_FEWEST = 2
_HELD_BYTES = 128 << 20  # of these samples; beyond, there are fewer


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

    def judged(
        self, loaded: LoadedModel, count: int | None = None
    ) -> tuple[list[dict[str, Any]], str]:
        """Return real samples to judge a result on, and what they are (`HELD_OUT` or `CALIBRATED`).

        `count`: how many; None: as many as are run in short time.
        """
        count = count or next((n for limit, n in _JUDGED if loaded.nbytes < limit), _FEWEST)
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
        chosen = self.settings
        seen = order(len(samples), limit=chosen.limit, shuffle=chosen.shuffle, seed=chosen.seed)
        return _feeds(samples, seen.tolist(), count, inputs), CALIBRATED


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
    try:
        samples = open_samples(data, inputs_of(loaded), settings, options or CalibrateOptions())
    except QuantkitError as e:
        return OpenedData(samples=None, error=e, settings=settings)
    if not isinstance(samples, Samples):
        stream = samples if _is_reopenable(data) else OneShotData(samples)
        return OpenedData(samples=stream, settings=settings)
    mixed = order(len(samples), shuffle=settings.shuffle, seed=settings.seed).tolist()
    used = min(len(mixed), settings.limit or len(mixed))
    if used == len(mixed) and used >= _ENOUGH and settings.shuffle:
        used -= min(_HELD_OUT, used // _SHARE)
        settings = replace(settings, limit=used)
    return OpenedData(
        samples=samples, settings=settings, unseen=tuple(mixed[used : used + _HELD_OUT])
    )


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
