"""What can be asked about a tensor. Each stage says what it must see; one pass over the data serves all.

A request is plain data: it travels to other machines, and two equal ones are answered once.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

from calibrators import (
    Calibrator,
    ChannelExtremes,
    ChannelMoments,
    PatchMoments,
    SecondMoment,
    Sketch,
    Statistic,
    Window,
    create,
)
from quantkit.observe.min_max import Span

__all__ = [
    "CalibratorAsk",
    "ChannelsAsk",
    "ExtremesAsk",
    "MomentsAsk",
    "PatchesAsk",
    "ProductsAsk",
    "Request",
    "SketchAsk",
    "SpanAsk",
    "What",
    "values_counted",
]

# About so many values of a tensor are counted in its histogram, evenly spaced; minimum and maximum are always
# those of all values. Counting all 7 million values per image of MobileNetV2 takes numpy longer than the
# inference itself, and moves ranges less than taking other images does (benchmarks/results/calibrate.md).
_VALUES = 1 << 20
_A_SAMPLE = 1 << 13  # at least


def values_counted(samples: int) -> int:
    """Return how many values of a tensor to count in each of so many samples."""
    return max(_A_SAMPLE, _VALUES // max(samples, 1))


class What(Protocol):
    """A question about one tensor."""

    @property
    def in_graph(self) -> bool:
        """Whether the graph answers with minimum and maximum, so that the tensor never leaves it."""

    @property
    def ordered(self) -> bool:
        """Whether the answer depends on the order of the samples."""

    @property
    def once(self) -> bool:
        """Whether one answer is kept for all the data: it is too large to have one for each part that an audit compares."""

    def create(self, rows: int) -> Statistic:
        """Return an empty answer, for batches of `rows` samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ask:
    @property
    def in_graph(self) -> bool:
        return False

    @property
    def ordered(self) -> bool:
        return False

    @property
    def once(self) -> bool:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class SketchAsk(_Ask):
    """The distribution of the values, of `most` per sample or of all: every range method reads it."""

    most: int | None = None

    def create(self, rows: int) -> Statistic:
        """Return an empty sketch."""
        return Sketch(most=None if self.most is None else self.most * rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanAsk(_Ask):
    """Minimum and maximum only, taken inside the graph."""

    @property
    def in_graph(self) -> bool:
        """Yes: two numbers leave the graph instead of the tensor."""
        return True

    def create(self, rows: int) -> Statistic:  # noqa: ARG002 - one question, one signature
        """Return an empty span."""
        return Span()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelsAsk(_Ask):
    """The distribution of each channel along `axis`."""

    axis: int

    def create(self, rows: int) -> Statistic:  # noqa: ARG002 - one question, one signature
        """Return an empty sketch per channel."""
        return Sketch(axis=self.axis)


@dataclass(frozen=True, slots=True, kw_only=True)
class MomentsAsk(_Ask):
    """Minimum, maximum, mean and variance of each channel: for smoothing and bias correction."""

    axis: int

    def create(self, rows: int) -> Statistic:  # noqa: ARG002 - one question, one signature
        """Return empty moments."""
        return ChannelMoments(self.axis)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtremesAsk(_Ask):
    """Minimum and maximum of each channel: for equalization and smoothing."""

    axis: int

    def create(self, rows: int) -> Statistic:  # noqa: ARG002 - one question, one signature
        """Return empty extremes."""
        return ChannelExtremes(self.axis)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductsAsk(_Ask):
    """Sums of products of channels, X'X: for second-order rounding."""

    axis: int

    @property
    def once(self) -> bool:
        """Yes: there are channels^2 sums."""
        return True

    def create(self, rows: int) -> Statistic:  # noqa: ARG002 - one question, one signature
        """Return an empty matrix."""
        return SecondMoment(self.axis)


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchesAsk(_Ask):
    """Moments of the patches that a product reads, of at most `rows` positions per sample: for rounding and bias.

    `inputs`: values in a patch of one group, so that memory for their moments can be had before any is seen; 0 if
    nobody knows.
    """

    window: Window = field(default_factory=Window)
    rows: int = 64
    inputs: int = 0

    @property
    def once(self) -> bool:
        """Yes: there are inputs^2 sums."""
        return True

    @property
    def nbytes(self) -> int:
        """How much memory the answer takes."""
        return PatchMoments.nbytes(self.window.group, self.inputs)

    @property
    def waiting(self) -> int:
        """How much memory a worker needs for patches that wait to be multiplied."""
        return PatchMoments.waiting(self.window.group, self.inputs)

    def create(self, rows: int) -> Statistic:  # noqa: ARG002 - one question, one signature
        """Return empty moments."""
        return PatchMoments(self.window, self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratorAsk(_Ask):
    """A calibrator that reads no sketch: a moving average, or a plug-in that collects its own."""

    name: str
    settings: tuple[tuple[str, float], ...] = ()

    @property
    def ordered(self) -> bool:
        """As the calibrator says."""
        return self.create(1).ordered

    def create(self, rows: int) -> Calibrator:  # noqa: ARG002 - one question, one signature
        """Return a new calibrator."""
        settings: dict[str, Any] = dict(self.settings)
        return create(self.name, **settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One question about one tensor."""

    tensor: str
    what: What
