"""Laws of weights in blocks: bounds, what is exact, what never grows."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from quantkit.errors import UsageError
from quantkit.numerics.blocks import (
    BlockCodes,
    BlockGrid,
    as_rows,
    descend,
    fit_blocks,
    from_rows,
    keep_sums,
    round_blocks,
    shrunk,
    solve_blocks,
)
from quantkit.numerics.second_order import carries_of, output_error

Array = NDArray[Any]
PROPERTY = settings(max_examples=40, deadline=None)
SEEDS = st.integers(0, 10_000)
SIZES = st.sampled_from([0, 16, 32])


def grids(bits: int, size: int, *, symmetric: bool) -> BlockGrid:
    return BlockGrid(bits=bits, size=size, symmetric=symmetric, largest=15 if size else 1)


def problem(seed: int, n: int, k: int) -> tuple[Array, Array]:
    """Return a weight with outliers, and moments of correlated inputs."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(4 * k, k)) @ draw.normal(size=(k, k))
    return draw.standard_t(4, size=(n, k)), shrunk(x.T @ x / len(x), len(x))


def is_on_grid(found: BlockCodes) -> bool:
    grid = found.grid
    return bool(
        found.codes.max(initial=0) <= grid.top
        and found.zero.max(initial=0) <= grid.top
        and (found.multiplier >= 1).all()
        and (found.multiplier <= grid.largest).all()
        and (found.scale > 0).all()
        and (not grid.symmetric or (found.zero == grid.middle).all())
    )


@PROPERTY
@given(
    seed=SEEDS,
    bits=st.integers(2, 8),
    size=SIZES,
    n=st.integers(1, 5),
    k=st.integers(1, 70),
    symmetric=st.booleans(),
    method=st.sampled_from(["minmax", "mse", "hqq"]),
)
def test_nearest_codes_are_within_half_a_step_where_nothing_is_cut_off(
    *, seed: int, bits: int, size: int, n: int, k: int, symmetric: bool, method: Any
) -> None:
    rows, _ = problem(seed, n, k)
    grid = grids(bits, size, symmetric=symmetric)
    found = fit_blocks(rows, grid, method=method)
    assert is_on_grid(found)
    inside = (found.codes > 0) & (found.codes < grid.top)
    error = np.abs(rows - found.dequantized())
    step = grid.spread(found.steps, k)
    assert (error <= step * 0.5001)[inside].all()


@PROPERTY
@given(seed=SEEDS, bits=st.integers(2, 8), size=SIZES, n=st.integers(1, 5), k=st.integers(2, 50))
def test_what_integers_say_is_what_codes_stand_for(
    seed: int, bits: int, size: int, n: int, k: int
) -> None:
    rows, _ = problem(seed, n, k)
    found = fit_blocks(rows, grids(bits, size, symmetric=True))
    restored = found.integers * found.scale[:, np.newaxis]
    np.testing.assert_allclose(restored, found.dequantized(), rtol=1e-5)


@PROPERTY
@given(
    seed=SEEDS,
    bits=st.integers(2, 6),
    size=SIZES,
    n=st.integers(1, 6),
    k=st.integers(2, 60),
    symmetric=st.booleans(),
)
def test_descent_never_makes_a_row_worse_and_stays_on_the_grid(
    *, seed: int, bits: int, size: int, n: int, k: int, symmetric: bool
) -> None:
    rows, h = problem(seed, n, k)
    start = fit_blocks(rows, grids(bits, size, symmetric=symmetric), h.diagonal())
    rounded = round_blocks(rows, start, carries_of(h))
    for begun in (start, rounded):
        found = descend(rows, begun, h, 3)
        before, after = (output_error(rows - one.dequantized(), h) for one in (begun, found))
        assert is_on_grid(found)
        assert (after <= before * (1 + 1e-5) + 1e-9).all()


def test_solving_with_moments_beats_rounding_to_nearest() -> None:
    rows, h = problem(0, 24, 96)
    grid = BlockGrid(bits=4, size=32)
    nearest = fit_blocks(rows, grid, h.diagonal())
    solved = solve_blocks(rows, grid, h)
    lost = [output_error(rows - one.dequantized(), h).sum() for one in (nearest, solved)]
    assert lost[1] < 0.6 * lost[0]


def test_the_order_of_inputs_does_not_change_where_steps_lie() -> None:
    rows, h = problem(3, 8, 64)
    start = fit_blocks(rows, BlockGrid(bits=4, size=16), h.diagonal())
    found = round_blocks(rows, start, carries_of(h))
    np.testing.assert_array_equal(found.multiplier, start.multiplier)
    np.testing.assert_array_equal(found.zero, start.zero)


@PROPERTY
@given(seed=SEEDS, bits=st.integers(2, 8), n=st.integers(1, 6), k=st.integers(1, 80))
def test_kept_sums_move_by_half_a_step_unless_codes_are_at_their_ends(
    seed: int, bits: int, n: int, k: int
) -> None:
    rows, _ = problem(seed, n, k)
    grid = BlockGrid(bits=bits, size=16, symmetric=True)
    nearest = fit_blocks(rows, grid, method="minmax")
    found = keep_sums(rows, nearest)
    assert is_on_grid(found)
    assert (np.abs(found.codes.astype(int) - nearest.codes) <= 1).all()
    moved = np.abs((rows - found.dequantized()).sum(axis=1))
    before = np.abs((rows - nearest.dequantized()).sum(axis=1))
    assert (moved <= before + 1e-6).all()


def test_a_weight_that_is_all_zeros_stays_zeros() -> None:
    for grid in (BlockGrid(bits=4), BlockGrid(bits=4, size=0, symmetric=True, largest=1)):
        found = fit_blocks(np.zeros((3, 40)), grid)
        assert not found.dequantized().any()
        assert (found.scale > 0).all()
        assert not descend(np.zeros((3, 40)), found, np.eye(40)).dequantized().any()


def test_a_block_of_zeros_beside_a_large_one_stays_zeros() -> None:
    rows = np.zeros((2, 64))
    rows[:, :32] = np.linspace(-5, 5, 32)
    assert not fit_blocks(rows, BlockGrid(bits=4)).dequantized()[:, 32:].any()


@pytest.mark.parametrize("shape", [(6, 4), (6, 4, 3, 3), (2, 6, 4)])
def test_rows_and_back(shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).normal(size=shape)
    for axis in range(len(shape)):
        rows = as_rows(array, axis)
        assert rows.shape == (shape[axis], array.size // shape[axis])
        np.testing.assert_array_equal(from_rows(rows, shape, axis), array)


def test_a_wider_scale_rounds_only_the_rows_that_need_it() -> None:
    rows, _ = problem(5, 4, 48)
    rows[1] *= 1e-6
    found = fit_blocks(rows, BlockGrid(bits=4, size=16, symmetric=True))
    least = np.full(4, found.scale[0] / 2, np.float32)
    wider = found.widened(rows, least)
    assert (wider.scale >= least).all()
    np.testing.assert_array_equal(wider.codes[0], found.codes[0])
    assert not wider.dequantized()[1].any()


def test_few_rows_say_less_about_pairs_of_inputs() -> None:
    x = np.random.default_rng(0).normal(size=(16, 64))
    h = x.T @ x / len(x)
    few, many = shrunk(h, 16), shrunk(h, 1 << 20)
    off = ~np.eye(64, dtype=bool)
    np.testing.assert_allclose(few[off], h[off] / 2)
    np.testing.assert_allclose(many[off], h[off], rtol=1e-3)
    np.linalg.cholesky(few)  # positive definite, though seen 16 times only


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"bits": 1}, "2 to 8"),
        ({"bits": 9}, "2 to 8"),
        ({"bits": 4, "size": -1}, "not between"),
        ({"bits": 4, "largest": 0}, "1 to 255"),
    ],
)
def test_a_grid_that_cannot_be_is_refused(bad: dict[str, int], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        BlockGrid(**bad)  # type: ignore[arg-type]
