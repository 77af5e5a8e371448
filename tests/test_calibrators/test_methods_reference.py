"""The methods against brute force on the values themselves.

A sketch knows values to the width of a bin. So percentiles must be within one bin of numpy's. For entropy and
MSE, whose objectives are flat around the best, it is asked that the threshold is within one bin of brute force's OR
that its objective, computed without the sketch, is within 1 % of the best that brute force found.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from calibrators import Entropy, MeanSquaredError, MinMax, Percentile, Range, Sketch

Array = NDArray[Any]
Draw = Callable[[], Array]
PROPERTY = settings(max_examples=60, deadline=None)
BIN = 2.0**-7
SMALLEST = 2.0**-133  # what is below shares the bin of zero


def draw(name: str, size: int, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    drawn: dict[str, Draw] = {
        "normal": lambda: rng.standard_normal(size),
        "shifted": lambda: rng.normal(1, 1, size),
        "heavy": lambda: rng.standard_t(2.5, size),
        "cauchy": lambda: rng.standard_cauchy(size),
        "positive": lambda: rng.exponential(1, size),
        "negative": lambda: -rng.lognormal(0, 1, size),
        "relu": lambda: np.maximum(rng.standard_normal(size), 0),
        "uniform": lambda: rng.uniform(-1, 3, size),
        "tiny": lambda: rng.standard_normal(size) * 1e-36,
        "huge": lambda: rng.uniform(-3.4e38, 3.4e38, size),
    }
    return drawn[name]().astype(np.float32)


def sketch_of(array: Array) -> Sketch:
    found = Sketch()
    found.observe(array)
    return found


def near(found: float, expected: float) -> bool:
    """Whether two thresholds are at most one bin apart."""
    return abs(found - expected) <= BIN * max(abs(found), abs(expected)) + SMALLEST


class TestMinMax:
    @PROPERTY
    @given(
        array=hnp.arrays(np.float32, st.integers(1, 30), elements=st.floats(-1e9, 1e9, width=32))
    )
    def test_is_exact(self, array: Array) -> None:
        found = MinMax()(sketch_of(array))
        assert found.low.item() == min(array.min(), 0)
        assert found.high.item() == max(array.max(), 0)


def brute_percentile(array: Array, keep: float) -> tuple[float, float]:
    low, high = array.min(), array.max()
    tail = (100 - keep) / 2 if low < 0 < high else 100 - keep
    below, above = np.percentile(array.astype(np.float64), [tail, 100 - tail])
    return min(below, 0), max(above, 0)


class TestPercentile:
    @pytest.mark.parametrize("keep", [90, 99, 99.99, 100])
    @pytest.mark.parametrize("size", [1, 2, 37, 20_000])
    @pytest.mark.parametrize(
        "name",
        ["normal", "shifted", "heavy", "cauchy", "positive", "negative", "relu", "tiny", "huge"],
    )
    def test_is_within_a_bin_of_numpy(self, name: str, size: int, keep: float) -> None:
        array = draw(name, size, seed=size)
        found = Percentile(keep)(sketch_of(array))
        low, high = brute_percentile(array, keep)
        assert near(found.low.item(), low)
        assert near(found.high.item(), high)

    @PROPERTY
    @given(
        array=hnp.arrays(
            np.float32, st.integers(1, 50), elements=st.floats(2.0**-100, 2.0**100, width=32)
        ),
        keep=st.floats(1, 100),
        sign=st.sampled_from([-1, 1]),
    )
    def test_is_within_a_bin_for_any_values_of_one_sign(
        self, array: Array, keep: float, sign: int
    ) -> None:
        array = array * np.float32(sign)
        found = Percentile(keep)(sketch_of(array))
        low, high = brute_percentile(array, keep)
        assert near(found.low.item(), low)
        assert near(found.high.item(), high)

    @PROPERTY
    @given(
        # Subnormal numbers have no interpolation between them, only rounding.
        array=hnp.arrays(
            np.float32,
            st.integers(1, 50),
            elements=st.floats(-1e9, 1e9, width=32, allow_subnormal=False),
        ),
        keep=st.floats(1, 99),
    )
    def test_keeping_more_never_narrows(self, array: Array, keep: float) -> None:
        sketch = sketch_of(array)
        narrow, wide = Percentile(keep)(sketch), Percentile(keep + 1)(sketch)
        assert wide.low.item() <= narrow.low.item()
        assert wide.high.item() >= narrow.high.item()

    @pytest.mark.parametrize("keep", [0, -1, 100.1, float("nan")])
    def test_shares_that_are_none_are_refused(self, keep: float) -> None:
        with pytest.raises(ValueError, match="per cent"):
            Percentile(keep)


def squared_error(array: Array, low: float, high: float, levels: int) -> float:
    """Squared error after rounding values to `levels` steps of a range."""
    if low == high:
        return float(np.square(array.astype(np.float64)).sum())
    step = (high - low) / levels
    x = array.astype(np.float64) / step
    qmin = np.rint(low / step)
    return float(np.square(np.clip(np.rint(x), qmin, qmin + levels) - x).sum() * step * step)


def brute_mse(array: Array, levels: int) -> tuple[float, float]:
    """The best of all pairs of ends, each a fifth of an octave from the next, over 3.6 octaves."""
    low, high = min(float(array.min()), 0), max(float(array.max()), 0)
    shrink = 2.0 ** (-np.arange(19) / 5)
    pairs = [
        (a * low, b * high) for a in (shrink if low else [1]) for b in (shrink if high else [1])
    ]
    return min(pairs, key=lambda pair: squared_error(array, pair[0], pair[1], levels))


class TestMeanSquaredError:
    @pytest.mark.parametrize("levels", [15, 255])
    @pytest.mark.parametrize(
        "name", ["normal", "shifted", "heavy", "positive", "negative", "relu", "uniform", "tiny"]
    )
    def test_is_as_good_as_brute_force(self, name: str, levels: int) -> None:
        array = draw(name, 60_000, seed=levels)
        found = MeanSquaredError(levels)(sketch_of(array))
        low, high = brute_mse(array, levels)
        best = squared_error(array, low, high, levels)
        mine = squared_error(array, found.low.item(), found.high.item(), levels)
        same = near(found.low.item(), low) and near(found.high.item(), high)
        assert same or mine <= 1.01 * best

    @PROPERTY
    @given(seed=st.integers(0, 9999), levels=st.sampled_from([3, 15, 255]))
    def test_is_never_worse_than_minmax(self, seed: int, levels: int) -> None:
        array = draw("heavy", 4000, seed)
        found = MeanSquaredError(levels)(sketch_of(array))
        mine = squared_error(array, found.low.item(), found.high.item(), levels)
        # The sketch sees rounding errors only on average; the worst of 3600 draws was 0.8 % off.
        assert mine <= 1.03 * squared_error(array, array.min(), array.max(), levels)

    def test_cuts_an_outlier_that_wastes_the_range(self) -> None:
        array = draw("normal", 100_000)
        array[0] = 40
        found = MeanSquaredError(levels=15)(sketch_of(array))
        assert found.high.item() < 6

    @pytest.mark.parametrize("name", ["shifted", "positive", "negative", "heavy"])
    def test_symmetric_searches_symmetric_grids(self, name: str) -> None:
        array = draw(name, 60_000)
        found = MeanSquaredError(levels=15, symmetric=True)(sketch_of(array))
        t = max(-found.low.item(), found.high.item())
        tops = np.abs(array).max() * 2.0 ** (-np.arange(33) / 8)
        best = min(squared_error(array, -a, a, 14) for a in tops.tolist())
        assert squared_error(array, -t, t, 14) <= 1.01 * best


def brute_divergence(bins: list[tuple[float, float, float]], last: int, k: int) -> float:
    """KL(P || Q) cell by cell: every bin is cut at every edge of a level."""
    t, total = bins[last][1], sum(c for _, _, c in bins)
    kept = bins[: last + 1]
    inside = sum(c for _, _, c in kept)
    edges = t * np.arange(k + 1) / k
    lower, upper, count = np.array(kept).T
    cuts = np.unique(np.concatenate([lower, upper, edges]))
    middle = (cuts[:-1] + cuts[1:]) / 2
    at_bin = np.searchsorted(lower, middle, side="right") - 1
    covered = (at_bin >= 0) & (middle < upper[at_bin])
    at_bin, middle, size = at_bin[covered], middle[covered], np.diff(cuts)[covered]
    share = size / (upper - lower)[at_bin]
    mass = count[at_bin] * share
    p_mass = mass + np.where(at_bin == last, total - inside, 0) * share
    at = np.searchsorted(edges, middle, side="right") - 1
    density = np.bincount(at, mass, k) / np.maximum(np.bincount(at, size, k), 1e-300)
    q_mass = density[at] * size / inside
    p_mass /= total
    return float((p_mass * np.log(p_mass / q_mass)).sum())


def bins_of(array: Array) -> list[tuple[float, float, float]]:
    """The bins of |x| without zero, by arithmetic instead of bits."""
    x = np.abs(array[array != 0].astype(np.float64))
    fraction, exponent = np.frexp(x)
    width = np.ldexp(1.0, exponent - 8)
    lower, counts = np.unique(np.floor(x / width) * width, return_counts=True)
    upper = lower + np.ldexp(1.0, np.frexp(lower)[1] - 8)
    assert (fraction < 1).all()
    return list(zip(lower.tolist(), upper.tolist(), counts.tolist(), strict=True))


def brute_entropy(array: Array, levels: int) -> dict[float, float]:
    """The divergence of every threshold that the method's documentation says is tried."""
    two_sided = array.min() < 0 < array.max()
    k = levels // 2 if two_sided else levels
    bins = bins_of(array)
    kept = np.cumsum([c for _, _, c in bins]) / sum(c for _, _, c in bins)
    first = max(k - 1, int(np.searchsorted(kept, 0.9)))
    tried = np.linspace(first, len(bins) - 1, min(256, len(bins) - first))
    top = float(np.abs(array).max())
    return {
        min(bins[i][1], top): brute_divergence(bins, i, k)
        for i in np.rint(tried).astype(int).tolist()
    }


class TestEntropy:
    @pytest.mark.parametrize(
        ("name", "levels"),
        [
            ("normal", 255),
            ("heavy", 255),
            ("positive", 63),
            ("negative", 63),
            ("relu", 63),
            ("uniform", 15),
        ],
    )
    def test_is_as_good_as_brute_force(self, name: str, levels: int) -> None:
        array = draw(name, 8000)
        found = Entropy(levels)(sketch_of(array))
        t = max(-found.low.item(), found.high.item())
        losses = brute_entropy(array, levels)
        best = min(losses, key=lambda key: losses[key])
        mine = losses[min(losses, key=lambda key: abs(key - t))]
        assert near(t, best) or mine <= 1.01 * losses[best]

    def test_cuts_an_outlier(self) -> None:
        array = draw("normal", 100_000)
        array[0] = 1000
        found = Entropy()(sketch_of(array))
        assert 2 < found.high.item() < 6
        assert -6 < found.low.item() < -2

    def test_zeros_do_not_matter(self) -> None:
        array = draw("positive", 20_000)
        with_zeros = np.concatenate([array, np.zeros(50_000, np.float32)])
        alone, among = Entropy()(sketch_of(array)), Entropy()(sketch_of(with_zeros))
        assert alone.high.item() == among.high.item()

    def test_few_distinct_values_keep_all(self) -> None:
        array = np.tile(np.array([-3, -1, 0, 1, 100], np.float32), 50)
        found = Entropy()(sketch_of(array))
        assert (found.low.item(), found.high.item()) == (-3, 100)


@pytest.mark.parametrize(
    "method",
    [MinMax(), Percentile(), Entropy(), MeanSquaredError(), MeanSquaredError(symmetric=True)],
    ids=lambda m: type(m).__name__,
)
class TestEveryMethod:
    @pytest.mark.parametrize("value", [2.5, -2.5, 1e-40, -3e38])
    def test_a_constant_is_an_end_of_its_range(self, method: Percentile, value: float) -> None:
        found = method(sketch_of(np.full(1000, value, np.float32)))
        ends = sorted([0.0, float(np.float32(value))])
        assert [found.low.item(), found.high.item()] == ends

    def test_nothing_has_an_empty_range(self, method: Percentile) -> None:
        for sketch in (Sketch(), sketch_of(np.full(5, np.nan)), sketch_of(np.zeros(5))):
            found = method(sketch)
            assert found.low.tolist() == found.high.tolist() == [0]

    def test_bad_values_change_nothing(self, method: Percentile) -> None:
        array = draw("heavy", 5000)
        broken = np.concatenate([array, np.array([np.nan, np.inf, -np.inf], np.float32)])
        found, expected = method(sketch_of(broken)), method(sketch_of(array))
        assert (found.low.item(), found.high.item()) == (expected.low.item(), expected.high.item())

    def test_channels_are_independent(self, method: Percentile) -> None:
        array = np.stack([draw(name, 3000) for name in ("normal", "positive", "negative", "relu")])
        together = Sketch(axis=0)
        together.observe(array)
        found: Range = method(together)
        for i in range(len(array)):
            alone = method(sketch_of(array[i]))
            assert (found.low[i], found.high[i]) == (alone.low.item(), alone.high.item())

    def test_extremes_that_were_not_counted_are_kept_in_mind(self, method: Percentile) -> None:
        array = np.array([1, np.nan, np.nan], np.float32)[[1, 0, 2]]
        sketch = Sketch(most=1)
        sketch.observe(array)
        assert sketch.count.item() == 0
        assert method(sketch).high.item() == 1


@pytest.mark.parametrize("method", [Entropy, MeanSquaredError])
def test_ranges_without_a_step_are_refused(method: type[Entropy]) -> None:
    with pytest.raises(ValueError, match="at least one level"):
        method(levels=0)
