"""Which statistics of a tensor can be asked for. Each stage says what it must see; one pass over the data serves all.

A request is plain data: it travels to other machines, and two equal ones are answered once.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
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
class ChannelSketchesOf(StatisticOf):
    """The distribution of each channel along `axis`."""

    axis: int

    def create(self, rows: int) -> Statistic:  # noqa: ARG002 - all have one signature
        """Return an empty sketch per channel."""
        return Sketch(axis=self.axis)


@dataclass(frozen=True, slots=True, kw_only=True)
class MomentsOf(StatisticOf):
    """Minimum, maximum, mean and variance of each channel: for smoothing and bias correction."""

    axis: int

    def create(self, rows: int) -> Statistic:  # noqa: ARG002 - all have one signature
        """Return empty moments."""
        return ChannelMoments(self.axis)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtremesOf(StatisticOf):
    """Minimum and maximum of each channel: for equalization and smoothing."""

    axis: int

    def create(self, rows: int) -> Statistic:  # noqa: ARG002 - all have one signature
        """Return empty extremes."""
        return ChannelExtremes(self.axis)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondMomentOf(StatisticOf):
    """Sums of products of channels, X'X: for second-order rounding."""

    axis: int

    once: ClassVar[bool] = True  # there are channels^2 sums

    def create(self, rows: int) -> Statistic:  # noqa: ARG002 - all have one signature
        """Return an empty matrix."""
        return SecondMoment(self.axis)


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
