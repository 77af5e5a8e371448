from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from data.makers import VECTOR, ramp, spec
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit.calibration.model_inputs import fixed_batch
from quantkit.data import InputSpec, Padding, Sample, batches, collate, open_data, order

PROPERTY = settings(max_examples=50, deadline=None)
SHAPES = st.lists(st.tuples(st.integers(1, 3), st.sampled_from([(2,), (3,), (2, 2)])), max_size=8)


def sample(*shape: int, start: float = 0.0, padding: Padding | None = None) -> Sample:
    return Sample(feeds={"x": ramp(*shape) + np.float32(start)}, name="s", padding=padding)


@PROPERTY
@given(n=st.integers(0, 200), seed=st.integers(0, 10), limit=st.none() | st.integers(1, 300))
def test_a_mixed_order_is_part_of_a_permutation(n: int, seed: int, limit: int | None) -> None:
    found = order(n, limit=limit, shuffle=True, seed=seed)
    assert found.dtype == np.int64
    assert len(found) == (n if limit is None else min(n, limit))
    assert len(set(found.tolist())) == len(found)
    assert set(found.tolist()) <= set(range(n))
    np.testing.assert_array_equal(found, order(n, limit=limit, shuffle=True, seed=seed))


def test_order_without_mixing_is_the_first_ones() -> None:
    assert order(5, limit=3).tolist() == [0, 1, 2]
    assert order(5).tolist() == [0, 1, 2, 3, 4]


def test_a_limit_is_the_beginning_of_the_whole_order() -> None:
    whole = order(100, shuffle=True, seed=3)
    np.testing.assert_array_equal(order(100, limit=10, shuffle=True, seed=3), whole[:10])
    assert order(100, shuffle=True, seed=4).tolist() != whole.tolist()


def test_the_order_is_the_same_on_every_machine() -> None:
    assert order(10, shuffle=True, seed=0).tolist() == [4, 6, 2, 7, 3, 5, 9, 0, 8, 1]


@PROPERTY
@given(shapes=SHAPES)
def test_collate_keeps_every_row_in_order(shapes: list[tuple[int, tuple[int, ...]]]) -> None:
    samples = [sample(n, *rest, start=1000.0 * i) for i, (n, rest) in enumerate(shapes)]
    feeds = collate(samples)
    rows = [row for feed in feeds for row in feed["x"]]
    expected = [row for s in samples for row in s.feeds["x"]]
    assert len(rows) == len(expected)
    assert all(np.array_equal(a, b) for a, b in zip(rows, expected, strict=True))


@PROPERTY
@given(shapes=SHAPES)
def test_neighbours_of_one_shape_share_a_feed(
    shapes: list[tuple[int, tuple[int, ...]]],
) -> None:
    feeds = collate([sample(n, *rest) for n, rest in shapes])
    assert all(a["x"].shape[1:] != b["x"].shape[1:] for a, b in pairwise(feeds))


def test_another_shape_starts_a_new_feed() -> None:
    feeds = collate([sample(1, 2), sample(1, 2), sample(1, 3), sample(1, 2)])
    assert [feed["x"].shape for feed in feeds] == [(2, 2), (1, 3), (1, 2)]


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_text_is_padded_to_the_longest(left: bool) -> None:  # noqa: FBT001
    def text(*ids: int) -> Sample:
        row = np.asarray([ids], np.int64)
        return Sample(
            feeds={"ids": row, "mask": np.ones_like(row)},
            name="t",
            padding=Padding(values={"ids": 9, "mask": 0}, left=left),
        )

    (feed,) = collate([text(1), text(1, 2, 3)])
    assert feed["ids"].tolist() == [[9, 9, 1] if left else [1, 9, 9], [1, 2, 3]]
    assert feed["mask"].tolist() == [[0, 0, 1] if left else [1, 0, 0], [1, 1, 1]]


def test_inputs_without_axes_run_alone() -> None:
    scalar = Sample(feeds={"x": ramp(1, 2), "rate": np.asarray(8000)}, name="s")
    assert len(collate([scalar, scalar])) == 2


def test_collate_of_nothing_is_nothing() -> None:
    assert collate([]) == []


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ([spec("a", None, 3), spec("b", None, 3)], None),
        ([spec("a", 4, 3), spec("b", 4)], 4),
        ([spec("a", 1, 3)], 1),
        ([spec("a", None, 3), spec("anchors", 100, 4)], 1),
        ([spec("a", None, 3), spec("rate")], None),
    ],
    ids=["free", "fixed", "one", "mixed", "scalar"],
)
def test_fixed_batch(inputs: list[InputSpec], expected: int | None) -> None:
    assert fixed_batch(inputs) == expected


def test_batches_of_random_access() -> None:
    samples = open_data(ramp(7, 4), VECTOR)
    found = [[s.name for s in batch] for batch in batches(samples, size=3)]
    assert [len(b) for b in found] == [3, 3, 1]
    mixed = [s.name for b in batches(samples, size=3, shuffle=True, seed=1) for s in b]
    assert sorted(mixed) == sorted(n for b in found for n in b)
    assert mixed != [n for b in found for n in b]
    assert [s.name for b in batches(samples, limit=2, shuffle=True, seed=1) for s in b] == mixed[:2]


def test_batches_of_a_stream_read_no_more_than_the_limit() -> None:
    read = []

    def feeds() -> Iterator[dict[str, object]]:
        for i in range(10):
            read.append(i)
            yield {"x": ramp(1, 4)}

    found = list(batches(open_data(feeds(), VECTOR), size=2, limit=3))
    assert [len(b) for b in found] == [2, 1]
    assert read == [0, 1, 2]
