"""Which statistics of a tensor can be asked for. Each stage says what it must see; one pass over the data serves all.

A request is plain data: it travels to other machines, and two equal ones are answered once.

`Observations` hold the answers to all requests, which samples were seen, and which of them set the extremes. Invariant: merging is exact, so that neither the order of the samples nor who observed them changes a bit
(requests that depend on the order excepted; they are observed by one worker, in order).

A file packs many small arrays into a few long ones: with 20,000 tensors it still holds a dozen arrays.
"""

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from calibrators import (
    Calibrator,
    ChannelExtremes,
    ChannelMoments,
    PatchMoments,
    Peaks,
    Range,
    SecondMoment,
    Sketch,
    State,
    Statistic,
    Window,
    create,
)

_SHAPES = 2  # axes: which array, which axis
_LARGEST = (
    1 << 24
)  # no extent is larger; one of nothing could be, and make a statistic take all memory

Arrays = Mapping[str, NDArray[Any]]


class RunningMinMax:
    """The smallest and largest finite value, and how many arrays held NaN or infinity."""

    ordered: ClassVar[bool] = False
    exact: ClassVar[bool] = True

    def __init__(self) -> None:
        self.low = np.full(1, np.inf, np.float32)
        self.high = np.full(1, -np.inf, np.float32)
        self.strange = 0

    @property
    def empty(self) -> bool:
        """Whether no finite value was seen."""
        return bool(self.low[0] > self.high[0])

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and largest finite value; (inf, -inf) if there is none."""
        return float(self.low[0]), float(self.high[0])

    def observe(self, array: NDArray[Any]) -> None:
        """Widen it to hold an array's finite values."""
        if not array.size:
            return
        low, high = array.min(), array.max()
        if not np.isfinite(low) or not np.isfinite(high):
            self.strange += 1
            array = array[np.isfinite(array)]
            if not array.size:
                return
            low, high = array.min(), array.max()
        # Adding zero turns -0 into +0: which of the two min returns is chance.
        self.low[0] = min(self.low[0], low + np.float32(0))
        self.high[0] = max(self.high[0], high + np.float32(0))

    def merge(self, other: Self) -> None:
        """Take in what another has seen."""
        np.minimum(self.low, other.low, out=self.low)
        np.maximum(self.high, other.high, out=self.high)
        self.strange += other.strange

    def range(self) -> Range:
        """Return both ends, widened to hold zero."""
        empty = self.low > self.high
        return Range(
            low=np.where(empty, 0, np.minimum(self.low, 0)).astype(np.float32),
            high=np.where(empty, 0, np.maximum(self.high, 0)).astype(np.float32),
        )

    def state(self) -> State:
        """Return plain arrays."""
        strange = np.array([self.strange], np.int64)
        return {"low": self.low.copy(), "high": self.high.copy(), "strange": strange}

    @classmethod
    def from_state(cls, state: State) -> Self:
        """Restore what `state` gave."""
        found = cls()
        found.low, found.high = state["low"].copy(), state["high"].copy()
        found.strange = int(state["strange"][0])
        return found


# About so many values of a tensor are counted in its histogram, evenly spaced; minimum and maximum are always
# those of all values. Counting all 7 million values per image of MobileNetV2 takes numpy longer than the
# inference itself, and moves ranges less than taking other images does (benchmarks/results/calibrate.md).
_VALUES = 1 << 20
_A_SAMPLE = 1 << 13  # at least


def values_counted(samples: int) -> int:
    """Return how many values of a tensor to count in each of so many samples."""
    return max(_A_SAMPLE, _VALUES // max(samples, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticOf(ABC):
    """Which statistic of one tensor a stage must see."""

    in_graph: ClassVar[bool] = False
    """Whether the graph answers with minimum and maximum, so that the tensor never leaves it."""
    once: ClassVar[bool] = False
    """Whether one answer is kept for all the data: it is too large to have one for each part that an audit compares."""

    @property
    def ordered(self) -> bool:
        """Whether the answer depends on the order of the samples."""
        return False

    @abstractmethod
    def create(self, rows: int) -> Statistic:
        """Return an empty answer, for batches of `rows` samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SketchOf(StatisticOf):
    """The distribution of the values, of `most` per sample or of all: every range method reads it."""

    most: int | None = None

    def create(self, rows: int) -> Statistic:
        """Return an empty sketch."""
        return Sketch(most=None if self.most is None else self.most * rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class MinMaxOf(StatisticOf):
    """Minimum and maximum only, taken inside the graph."""

    in_graph: ClassVar[bool] = True  # two numbers leave the graph instead of the tensor

    def create(self, rows: int) -> Statistic:  # noqa: ARG002 - all have one signature
        """Return empty ends."""
        return RunningMinMax()


@dataclass(frozen=True, slots=True, kw_only=True)
class PeaksOf(StatisticOf):
    """The extremes of single samples: how far samples that were not seen may reach."""

    def create(self, rows: int) -> Statistic:
        """Return empty peaks."""
        return Peaks(rows=rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChannelsOf(StatisticOf):
    """A statistic of each channel along `axis`; `kind` makes an empty one."""

    axis: int

    kind: ClassVar[Callable[..., Statistic]]

    def create(self, rows: int) -> Statistic:  # noqa: ARG002 - all have one signature
        """Return an empty statistic."""
        return type(self).kind(axis=self.axis)


class ChannelSketchesOf(_ChannelsOf):
    """The distribution of each channel along `axis`."""

    kind = Sketch


class MomentsOf(_ChannelsOf):
    """Minimum, maximum, mean and variance of each channel: for smoothing and bias correction."""

    kind = ChannelMoments


class ExtremesOf(_ChannelsOf):
    """Minimum and maximum of each channel: for equalization and smoothing."""

    kind = ChannelExtremes


class SecondMomentOf(_ChannelsOf):
    """Sums of products of channels, X'X: for second-order rounding."""

    kind = SecondMoment
    once = True  # there are channels^2 sums


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchesOf(StatisticOf):
    """Moments of the patches that a product reads, of at most `rows` positions per sample: for rounding and bias.

    `inputs`: values in a patch of one group, so that memory for their moments can be had before any is seen; 0 if
    nobody knows.
    """

    window: Window = field(default_factory=Window)
    rows: int = 64
    inputs: int = 0

    once: ClassVar[bool] = True  # there are inputs^2 sums

    @property
    def nbytes(self) -> int:
        """How much memory the answer takes."""
        return PatchMoments.nbytes(self.window.group, self.inputs)

    @property
    def waiting(self) -> int:
        """How much memory a worker needs for patches that wait to be multiplied."""
        return PatchMoments.waiting(self.window.group, self.inputs)

    def create(self, rows: int) -> Statistic:  # noqa: ARG002 - all have one signature
        """Return empty moments."""
        return PatchMoments(self.window, self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratorOf(StatisticOf):
    """A calibrator that reads no sketch: a moving average, or a plug-in that collects its own."""

    name: str
    settings: tuple[tuple[str, float], ...] = ()

    @property
    def ordered(self) -> bool:
        """Whether the calibrator depends on the order of the samples."""
        return self.create(1).ordered

    def create(self, rows: int) -> Calibrator:  # noqa: ARG002 - all have one signature
        """Return a new calibrator."""
        settings: dict[str, Any] = dict(self.settings)
        return create(self.name, **settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One statistic of one tensor."""

    tensor: str
    statistic: StatisticOf


# What files call these: names of an earlier version, which stay, so that calibrations that were written are still read.
STORED_NAMES: dict[str, type[Any]] = {
    "SketchAsk": SketchOf,
    "SpanAsk": MinMaxOf,
    "ChannelsAsk": ChannelSketchesOf,
    "MomentsAsk": MomentsOf,
    "ExtremesAsk": ExtremesOf,
    "ProductsAsk": SecondMomentOf,
    "PatchesAsk": PatchesOf,
    "CalibratorAsk": CalibratorOf,
    "PeaksOf": PeaksOf,
}
_NAMES = {kind: name for name, kind in STORED_NAMES.items()}


def stored_name(statistic: StatisticOf) -> str:
    """Return what files call this kind of statistic."""
    return _NAMES.get(type(statistic), type(statistic).__name__)


def stored_key(statistic: StatisticOf) -> str:
    """Return what files call this very statistic, parameters included; arrays are sorted by it."""
    return str(statistic).replace(type(statistic).__name__, stored_name(statistic), 1)


def pack(states: Sequence[Arrays]) -> dict[str, NDArray[Any]]:
    """Join arrays of the same name: their values, one after the other, and their shapes.

    All states have the same names, and under a name the same type and number of axes.
    """
    packed: dict[str, NDArray[Any]] = {}
    for name in states[0] if states else ():
        arrays = [np.asarray(state[name]) for state in states]
        packed[f"{name}.values"] = np.concatenate([a.reshape(-1) for a in arrays])
        packed[f"{name}.shapes"] = np.array([a.shape for a in arrays], np.int64)
    return packed


def unpack(packed: Arrays) -> list[dict[str, NDArray[Any]]]:
    """Take apart what `pack` joined."""
    states: list[dict[str, NDArray[Any]]] = []
    for key, shapes in packed.items():
        if not key.endswith(".shapes"):
            continue
        name = key.removesuffix(".shapes")
        if shapes.ndim != _SHAPES or (
            shapes.size and not 0 <= shapes.min() <= shapes.max() < _LARGEST
        ):
            raise ValueError(f"the shapes of '{name}' make no sense")
        sizes = np.prod(shapes, axis=1, dtype=np.int64)
        if sizes.sum() != packed[f"{name}.values"].size:
            raise ValueError(f"the values of '{name}' do not fit their shapes")
        parts = np.split(packed[f"{name}.values"], np.cumsum(sizes)[:-1])
        states = states or [{} for _ in shapes]
        for state, part, shape in zip(states, parts, shapes, strict=True):
            state[name] = part.reshape(shape)
    return states


@dataclass(slots=True)
class Extremes:
    """The samples that hold the smallest and the largest value of a tensor.

    Samples are numbered by their place in the order of the run; of several with the same value the first
    is kept, so that merging does not depend on who saw what.
    """

    low: float = np.inf
    low_sample: int = -1
    high: float = -np.inf
    high_sample: int = -1

    def lower(self, value: float, sample: int) -> None:
        """Take in a value that may be the smallest."""
        if (value, sample) < (self.low, self.low_sample) or self.low_sample < 0:
            self.low, self.low_sample = value, sample

    def raise_(self, value: float, sample: int) -> None:
        """Take in a value that may be the largest."""
        if (-value, sample) < (-self.high, self.high_sample) or self.high_sample < 0:
            self.high, self.high_sample = value, sample

    def merge(self, other: "Extremes") -> None:
        """Take in what another has seen."""
        if other.low_sample >= 0:
            self.lower(other.low, other.low_sample)
        if other.high_sample >= 0:
            self.raise_(other.high, other.high_sample)


@dataclass(slots=True)
class Observations:
    """Answers, and what is known of the samples.

    Attributes:
        answers: By tensor and question.
        extremes: By tensor.
        samples: Places of the samples seen, in no order.
        digests: A 64-bit digest of each sample's inputs.
        bad: Samples that could not be read and were left out, with the reason.
    """

    answers: dict[str, dict[StatisticOf, Statistic]]
    extremes: dict[str, Extremes]
    samples: "array[int]" = field(default_factory=lambda: array("q"))
    digests: "array[int]" = field(default_factory=lambda: array("Q"))
    bad: dict[int, str] = field(default_factory=dict)

    @classmethod
    def empty(cls, requests: Sequence[Request], rows: int) -> Self:
        """Return observations of nothing, for batches of `rows` samples."""
        answers: dict[str, dict[StatisticOf, Statistic]] = {}
        for request in requests:
            answers.setdefault(request.tensor, {})[request.statistic] = request.statistic.create(
                rows
            )
        return cls(answers=answers, extremes={tensor: Extremes() for tensor in answers})

    @property
    def requests(self) -> list[Request]:
        """All requests that it answers."""
        return [
            Request(tensor=t, statistic=kind) for t, kinds in self.answers.items() for kind in kinds
        ]

    def merge(self, other: Self, rest: Self | None = None) -> None:
        """Take in what another has seen of the same requests, or of some of them; `rest` takes in what this does not hold."""
        for tensor, kinds in other.answers.items():
            for kind, statistic in kinds.items():
                mine = self.answers.get(tensor, {}).get(kind)
                if mine is None and rest is not None:
                    mine = rest.answers[tensor][kind]
                assert mine is not None  # noqa: S101 - somebody asked
                mine.merge(statistic)
            home = rest if rest is not None and tensor not in self.extremes else self
            home.extremes[tensor].merge(other.extremes[tensor])
        self.samples += other.samples
        self.digests += other.digests
        self.bad |= other.bad

    def copy(self) -> Self:
        """Return the same knowledge, to be merged into."""
        return self.from_arrays(self.to_arrays(), self.requests, self.reasons())

    def with_rest(self, rest: Self, requests: Sequence[Request]) -> Self:
        """Return what both hold, in the order of `requests`; nothing is copied."""
        answers: dict[str, dict[StatisticOf, Statistic]] = {}
        for r in requests:
            home = self if r.statistic in self.answers.get(r.tensor, {}) else rest
            answers.setdefault(r.tensor, {})[r.statistic] = home.answers[r.tensor][r.statistic]
        extremes = {t: (self if t in self.extremes else rest).extremes[t] for t in answers}
        return replace(self, answers=answers, extremes=extremes)

    def forget(self, request: Request) -> None:
        """Drop an answer, and the tensor with its last one."""
        del self.answers[request.tensor][request.statistic]
        if not self.answers[request.tensor]:
            del self.answers[request.tensor], self.extremes[request.tensor]

    def select(self, chosen: Callable[[Request], bool]) -> Self:
        """Return the answers to some requests; nothing is copied."""
        answers: dict[str, dict[StatisticOf, Statistic]] = {}
        for r in filter(chosen, self.requests):
            answers.setdefault(r.tensor, {})[r.statistic] = self.answers[r.tensor][r.statistic]
        return replace(self, answers=answers, extremes={t: self.extremes[t] for t in answers})

    def reasons(self) -> list[str]:
        """Return why samples were left out, by their number."""
        return [self.bad[number] for number in sorted(self.bad)]

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel as plain arrays: a sketch has half a megabyte of bins, most of them empty."""
        return type(self).from_arrays, (self.to_arrays(), self.requests, self.reasons())

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return everything as plain arrays; the same knowledge gives the same arrays."""
        order = np.argsort(np.array(self.samples, np.int64), kind="stable")
        extremes = [
            (e.low, e.low_sample, e.high, e.high_sample) for _, e in sorted(self.extremes.items())
        ]
        arrays = {
            "samples": np.array(self.samples, np.int64)[order],
            "digests": np.array(self.digests, np.uint64)[order],
            "extremes": np.array(extremes, np.float64).reshape(-1, 4),
            "bad": np.array(sorted(self.bad), np.int64),
        }
        for kind, requests in _by_kind(self.requests).items():
            states = [self.answers[r.tensor][r.statistic].state() for r in requests]
            arrays |= {f"{kind}/{name}": a for name, a in pack(states).items()}
        return arrays

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, NDArray[Any]], requests: Sequence[Request], reasons: Sequence[str]
    ) -> Self:
        """Restore observations; `reasons` are those of the bad samples, in their order.

        Args:
            arrays: As `to_arrays` gave them.
            requests: What was asked, which the arrays do not say.
            reasons: Why samples were bad, in the order of their numbers.
        """
        found = cls.empty(requests, rows=1)
        for kind, group in _by_kind(requests).items():
            prefix = f"{kind}/"
            packed = {k.removeprefix(prefix): a for k, a in arrays.items() if k.startswith(prefix)}
            for request, state in zip(group, unpack(packed), strict=True):
                kept = found.answers[request.tensor]
                kept[request.statistic] = type(kept[request.statistic]).from_state(state)
        for tensor, row in zip(sorted(found.extremes), arrays["extremes"].tolist(), strict=True):
            low, at_low, high, at_high = row
            found.extremes[tensor] = Extremes(low, int(at_low), high, int(at_high))
        found.samples = array("q", arrays["samples"].tobytes())
        found.digests = array("Q", arrays["digests"].tobytes())
        found.bad = dict(zip(arrays["bad"].tolist(), reasons, strict=True))
        return found


def _by_kind(requests: Sequence[Request]) -> dict[str, list[Request]]:
    """Group requests by what is asked, each group sorted by tensor."""
    groups: dict[str, list[Request]] = {}
    for request in sorted(requests, key=lambda r: (stored_key(r.statistic), r.tensor)):
        groups.setdefault(stored_key(request.statistic), []).append(request)
    return groups
