"""Bits under a budget: against every combination, and what is given up first."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit.pipeline.bits import Choices, bits_within


def weight(size: int, noise: float, bits: tuple[int, ...] = (2, 3, 4, 6, 8)) -> Choices:
    """A weight whose noise falls by four for each bit more, as rounding has it."""
    return Choices(
        nbytes={b: size * b for b in bits}, noise={b: noise * 4.0 ** (4 - b) for b in bits}
    )


def total(weights: dict[str, Choices], bits: dict[str, int]) -> tuple[int, float]:
    spent = sum(weights[name].nbytes[b] for name, b in bits.items())
    return spent, sum(weights[name].noise[b] for name, b in bits.items())


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=4),
    noises=st.lists(st.floats(1e-6, 1.0), min_size=4, max_size=4),
    share=st.floats(0.0, 1.2),
)
def test_the_budget_is_kept_and_nothing_much_better_fits(
    sizes: list[int], noises: list[float], share: float
) -> None:
    weights = {str(i): weight(n, noises[i]) for i, n in enumerate(sizes)}
    least, most = (sum(f(w.nbytes.values()) for w in weights.values()) for f in (min, max))
    budget = int(least + share * (most - least))
    found = bits_within(weights, budget)
    spent, lost = total(weights, found)
    assert spent <= budget
    # The best within what the last step may leave over is never beaten.
    step = max(w.nbytes[8] - w.nbytes[2] for w in weights.values())
    for each in product(*(w.nbytes for w in weights.values())):
        other = dict(zip(weights, each, strict=True))
        its, noise = total(weights, other)
        assert its > budget - step or noise >= lost * (1 - 1e-9)


def test_the_same_for_all_beats_four_and_eight_side_by_side() -> None:
    weights = {str(i): weight(10, 1.0) for i in range(4)}
    assert set(bits_within(weights, 4 * 60).values()) == {6}


def test_who_is_loud_gets_more() -> None:
    weights = {"loud": weight(10, 1.0), "quiet": weight(10, 1e-3)}
    found = bits_within(weights, 10 * 10)
    assert found["loud"] > found["quiet"]


def test_where_nothing_fits_everybody_gets_least() -> None:
    assert bits_within({"w": weight(10, 1.0)}, 1) == {"w": 2}


def test_bits_that_bring_nothing_are_not_taken() -> None:
    grown = Choices(nbytes={2: 10, 3: 12, 4: 11}, noise={2: 1.0, 3: 0.9, 4: 0.5})
    assert grown.bits == (2, 4)
    assert bits_within({"w": grown}, 100) == {"w": 4}


def test_a_step_that_does_not_fit_gives_way_to_a_smaller_one() -> None:
    one = Choices(nbytes={2: 20, 4: 40, 8: 80}, noise={2: 1.0, 4: 0.9, 8: 0.0})
    assert bits_within({"w": one}, 50) == {"w": 4}


@pytest.mark.parametrize("count", [20_000])
def test_many_weights_take_no_time_to_speak_of(count: int) -> None:
    weights = {str(i): weight(1 + i % 7, 1 / (1 + i % 11)) for i in range(count)}
    found = bits_within(weights, count * 20)
    assert len(found) == count
