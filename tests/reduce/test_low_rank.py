"""Low rank: the best product of two thin matrices, and where it is better than 4 bits."""

from typing import Any

import numpy as np
import pytest
from builders import rng
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from quantkit.numerics.second_order import damped, output_error
from quantkit.reduce.prune.low_rank import factored, low_rank, rank_of_size

Array = NDArray[Any]


def covariance(seed: int, k: int) -> Array:
    generator = rng(seed)
    x = generator.standard_normal((4 * k, k)) @ generator.standard_normal((k, k))
    return damped(np.cov(x.T, bias=True), 0.01)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1000), st.integers(2, 9), st.integers(2, 9), st.integers(1, 8))
def test_no_other_matrix_of_the_rank_has_less_error(seed: int, n: int, k: int, rank: int) -> None:
    rank = min(rank, n, k)
    weight, h = rng(seed).standard_normal((n, k)), covariance(seed + 1, k)
    left, right = factored(weight, h, rank)
    assert left.shape == (n, rank)
    assert right.shape == (rank, k)
    # By Eckart and Young the least error is the sum of the squares of the singular values that are left out.
    values = np.linalg.svd(weight @ np.linalg.cholesky(h), compute_uv=False)
    lost = output_error(weight - left @ right, h).sum()
    np.testing.assert_allclose(lost, np.square(values[rank:]).sum(), rtol=1e-6, atol=1e-8)


def test_whitening_beats_the_plain_decomposition() -> None:
    weight, h = rng(0).standard_normal((24, 32)), covariance(3, 32)
    left, right = factored(weight, h, 8)
    u, s, v = np.linalg.svd(weight)
    plain = (u[:, :8] * s[:8]) @ v[:8]
    assert (
        output_error(weight - left @ right, h).sum() < 0.6 * output_error(weight - plain, h).sum()
    )


@pytest.mark.parametrize(("rows", "inputs"), [(384, 1536), (1000, 2048), (64, 64)])
def test_the_rank_that_competes_is_as_large_as_4_bits(rows: int, inputs: int) -> None:
    rank = rank_of_size(rows, inputs)
    bits = rows * inputs * 4.25 + rows * 32
    assert 32 * rank * (rows + inputs) <= bits < 32 * (rank + 1) * (rows + inputs)


def test_a_matrix_of_low_rank_gains_and_an_ordinary_one_does_not() -> None:
    generator, h = rng(5), covariance(6, 96)
    thin = generator.standard_normal((96, 4)) @ generator.standard_normal((4, 96))
    ordinary = generator.standard_normal((96, 96))
    found = [low_rank(weight, h, covariance(6, 96)) for weight in (thin, ordinary)]
    assert [one is not None and one.gains for one in found] == [True, False]


def test_where_no_rank_is_small_enough_there_is_none() -> None:
    assert low_rank(rng(0).standard_normal((2, 2)), np.eye(2), np.eye(2)) is None
