from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pairing import pairing

from quantkit.quantize.solve.weights import peak_scale, safe_scale

Array = NDArray[Any]

PROPERTY = settings(max_examples=40, deadline=None)


def cost(weight: Array) -> float:
    return float((safe_scale(weight) ** 2).sum())


@PROPERTY
@given(seed=st.integers(0, 10_000), n=st.integers(1, 6), k=st.integers(1, 15))
def test_a_pairing_is_an_order_and_never_worse_than_the_given_one(
    seed: int, n: int, k: int
) -> None:
    weight = np.random.default_rng(seed).standard_t(4, size=(n, k))
    order = pairing(weight)
    np.testing.assert_array_equal(np.sort(order), np.arange(k))
    assert cost(weight[:, order]) <= cost(weight) * (1 + 1e-6)
    np.testing.assert_array_equal(order, pairing(weight))


def test_with_more_inputs_than_outputs_pairs_cost_nothing() -> None:
    weight = np.random.default_rng(0).normal(size=(8, 64))
    paired = weight[:, pairing(weight)]
    assert cost(weight) > 1.2 * cost(paired)
    np.testing.assert_allclose(safe_scale(paired), peak_scale(paired))


def test_all_taps_of_a_conv_count() -> None:
    # The first tap asks for 0 beside 2 or 3, the second forbids 2.
    weight = np.array([[[9.0, 9, 0, 0], [9, 0, 9, 0]]])
    order = pairing(weight).tolist()
    partner = order[order.index(0) ^ 1]
    assert partner == 3


def test_zeros_keep_their_order() -> None:
    np.testing.assert_array_equal(pairing(np.zeros((2, 5))), np.arange(5))
