"""Every built-in calibrator obeys the laws, and the laws catch what does not."""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from calibrators import (
    Calibrator,
    ChannelMoments,
    Entropy,
    MeanSquaredError,
    Method,
    MinMax,
    MovingAverage,
    Percentile,
    Range,
    SecondMoment,
    Sketch,
    SketchCalibrator,
    State,
    Statistic,
)
from calibrators.testing import check_calibrator, check_statistic

Array = NDArray[Any]

METHODS = [
    pytest.param(MinMax(), id="minmax"),
    pytest.param(Percentile(), id="percentile"),
    pytest.param(Percentile(keep=80), id="percentile-80"),
    pytest.param(Entropy(), id="entropy"),
    pytest.param(Entropy(levels=3), id="entropy-2-bits"),
    pytest.param(MeanSquaredError(), id="mse"),
    pytest.param(MeanSquaredError(levels=15), id="mse-4-bits"),
    pytest.param(MeanSquaredError(symmetric=True), id="mse-symmetric"),
]
STREAMS = st.lists(
    hnp.arrays(
        np.float32,
        (2, 3),
        elements=st.floats(width=32) | st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-40, 3e38]),
    ),
    min_size=3,
    max_size=5,
)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("axis", "most"),
    [
        pytest.param(None, None, id="tensor"),
        pytest.param(None, 7, id="few"),
        pytest.param(-1, None, id="channels"),
    ],
)
def test_sketch_calibrators_obey(method: Method, axis: int | None, most: int | None) -> None:
    check_calibrator(lambda: SketchCalibrator(method, axis=axis, most=most))


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_the_moving_average_obeys(momentum: float) -> None:
    check_calibrator(lambda: MovingAverage(momentum))


@pytest.mark.parametrize(
    "factory",
    [
        pytest.param(Sketch, id="sketch"),
        pytest.param(lambda: Sketch(axis=0), id="sketch-channels"),
        pytest.param(lambda: ChannelMoments(1), id="channel-moments"),
        pytest.param(lambda: SecondMoment(-1), id="second-moment"),
    ],
)
def test_statistics_obey(factory: Callable[[], Statistic]) -> None:
    check_statistic(factory)


@settings(max_examples=15, deadline=None)
@given(arrays=STREAMS, axis=st.sampled_from([None, 0, 1]))
def test_the_sketch_obeys_on_any_values(arrays: list[Array], axis: int | None) -> None:
    check_statistic(lambda: Sketch(axis=axis), arrays=arrays)


@settings(max_examples=15, deadline=None)
@given(arrays=STREAMS, momentum=st.floats(0, 0.99))
def test_the_moving_average_obeys_on_any_values(arrays: list[Array], momentum: float) -> None:
    check_calibrator(lambda: MovingAverage(momentum), arrays=arrays)


@settings(max_examples=40, deadline=None)
@given(array=hnp.arrays(np.float32, st.integers(0, 30), elements=st.floats(width=32)))
def test_ranges_are_safe_on_any_values(array: Array) -> None:
    sketch = Sketch()
    sketch.observe(array)
    good = np.append(array[np.isfinite(array)], np.float32(0))
    for method in (Percentile(), Entropy(levels=3), MeanSquaredError()):
        found = method(sketch)
        assert good.min() <= found.low.item() <= 0 <= found.high.item() <= good.max()


class _Unordered(MovingAverage):
    """Claims that order does not matter."""

    ordered: ClassVar[bool] = False


class _Exact(MovingAverage):
    """Claims that merging changes no bit."""

    exact: ClassVar[bool] = True


class _Base:
    """A plain calibrator that is right, to break in one way at a time."""

    ordered: ClassVar[bool] = False
    exact: ClassVar[bool] = True

    def __init__(self) -> None:
        self.ends = np.zeros(2, np.float32)

    def observe(self, array: Array) -> None:
        with np.errstate(over="ignore"):
            x = np.asarray(array).astype(np.float32)
        x = np.append(x[np.isfinite(x)], np.float32(0))
        self.ends = np.array([min(x.min(), self.ends[0]), max(x.max(), self.ends[1])], np.float32)

    def merge(self, other: "_Base") -> None:
        mine, its = self.ends, other.ends
        self.ends = np.array([min(mine[0], its[0]), max(mine[1], its[1])], np.float32)

    def range(self) -> Range:
        return Range(low=self.ends[:1] + 0, high=self.ends[1:] + 0)

    def state(self) -> State:
        return {"ends": self.ends.copy()}

    @classmethod
    def from_state(cls, state: State) -> "_Base":
        found = cls()
        found.ends = state["ends"].copy()
        return found


class _Forgets(_Base):
    def merge(self, other: _Base) -> None:
        self.ends = other.ends.copy()


class _Empties(_Base):
    def merge(self, other: _Base) -> None:
        super().merge(other)
        other.ends = np.zeros(2, np.float32)


class _Shares(_Base):
    def state(self) -> State:
        return {"ends": self.ends}

    def observe(self, array: Array) -> None:
        before = self.ends
        super().observe(array)
        before[:] = self.ends
        self.ends = before


class _Sums(_Base):
    """Adds in float64, where grouping changes bits."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0.0

    def observe(self, array: Array) -> None:
        super().observe(array)
        self.total += float(np.nansum(np.asarray(array).astype(np.float64)))

    def merge(self, other: _Base) -> None:
        super().merge(other)
        assert isinstance(other, _Sums)
        self.total += other.total

    def state(self) -> State:
        return {**super().state(), "total": np.array([self.total])}


class _Changes(_Base):
    def observe(self, array: Array) -> None:
        super().observe(array)
        if array.size and array.flags.writeable:
            array[...] = 0


class _Poisoned(_Base):
    def range(self) -> Range:
        zero = self.ends * 0
        with np.errstate(all="ignore"):
            return Range(low=zero[:1] / zero[:1], high=zero[1:])


class _Wide(_Base):
    def range(self) -> Range:
        return Range(low=self.ends[:1] - np.float32(1), high=self.ends[1:] + np.float32(1))


class _Objects(_Base):
    def state(self) -> State:
        return {"ends": self.ends.astype(object)}


def test_the_plain_calibrator_is_right() -> None:
    check_calibrator(_Base)


@pytest.mark.parametrize(
    ("broken", "law"),
    [
        pytest.param(_Unordered, "merge is commutative", id="order"),
        pytest.param(_Exact, "equals observing the whole, bit for bit", id="rounding"),
        pytest.param(_Forgets, "merging one that saw nothing changes nothing", id="forgets"),
        pytest.param(_Sums, "bit for bit", id="careless-sums"),
        pytest.param(_Empties, "merge leaves the other unchanged", id="empties-other"),
        pytest.param(_Shares, "does not change when more is observed", id="shares-state"),
        pytest.param(_Changes, "observing does not change the array", id="changes-array"),
        pytest.param(_Poisoned, "a range is finite", id="poisoned"),
        pytest.param(_Wide, "inside the observed values", id="wide"),
        pytest.param(_Objects, "plain numeric arrays", id="objects"),
    ],
)
def test_a_broken_law_is_named(broken: Callable[[], Calibrator], law: str) -> None:
    with pytest.raises(AssertionError, match=f"Broken law: .*{law}"):
        check_calibrator(broken)


def test_the_laws_need_three_arrays() -> None:
    with pytest.raises(ValueError, match="at least three arrays"):
        check_statistic(Sketch, arrays=[np.zeros(3)])


class TestMovingAverage:
    def test_is_the_exponential_average_of_the_extremes(self) -> None:
        found = MovingAverage(0.5)
        for high in (8, 4, 2):
            found.observe(np.array([-1, high], np.float32))
        assert found.range().high.item() == 4
        assert found.range().low.item() == -1

    def test_leaves_out_arrays_without_values(self) -> None:
        found = MovingAverage()
        found.observe(np.array([np.nan, np.inf], np.float32))
        assert found.arrays == 0

    def test_another_momentum_does_not_merge(self) -> None:
        with pytest.raises(ValueError, match="momentum"):
            MovingAverage(0.5).merge(MovingAverage(0.6))
        with pytest.raises(ValueError, match="momentum"):
            MovingAverage(1)


class TestSketchCalibrator:
    def test_other_methods_do_not_merge(self) -> None:
        with pytest.raises(ValueError, match="Cannot merge"):
            SketchCalibrator(Percentile()).merge(SketchCalibrator(Percentile(keep=99)))

    def test_the_method_comes_back_with_its_settings(self) -> None:
        state = SketchCalibrator(MeanSquaredError(levels=15, symmetric=True), axis=1).state()
        found = SketchCalibrator.from_state(state)
        assert found.method == MeanSquaredError(levels=15, symmetric=True)
        assert found.sketch.axis == 1
