"""Merging is exact: neither the order nor who observed what changes a bit."""

import pickle
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import pytest
from builders import Array, graph, model, node, rng, weight
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit.calibration import (
    ChannelSketchesOf,
    MinMaxOf,
    MomentsOf,
    Request,
    SecondMomentOf,
    SketchOf,
)
from quantkit.calibration.job import Job, Shard, observe_shard
from quantkit.calibration.model_inputs import inputs_of
from quantkit.calibration.requests import Extremes, Observations, RunningMinMax
from quantkit.data import open_data
from quantkit.model.graph.load import load

K = 6
SAMPLES = 24
BATCH = 2


def product() -> onnx.ModelProto:
    nodes = [node("MatMul", ["x", "w"], ["m"], "mm"), node("Relu", ["m"], ["y"], "r")]
    return model(graph(nodes, {"x": ["N", K]}, {"y": ["N", K]}, {"w": weight(K, K)}))


def job_of(rows: Array, **changes: Any) -> Job:
    source = product()
    asks = (SketchOf(most=4), MinMaxOf(), ChannelSketchesOf(axis=1), MomentsOf(axis=1))
    requests = [Request(tensor=t, statistic=a) for t in ("x", "m", "y") for a in asks]
    given = {
        "key": f"{rows.tobytes()!r}",
        "model": source,
        "samples": open_data({"x": rows}, inputs_of(load(source))),
        "groups": (tuple(requests),),
        "batch": BATCH,
    }
    return Job(**{**given, **changes})


def shard(first: int, last: int) -> Shard:
    return Shard(group=0, segment=0, first=first, last=last)


def merged(parts: Iterable[Observations], job: Job) -> Observations:
    total = Observations.empty(job.groups[0], job.batch)
    for part in parts:
        total.merge(part)
    return total


def assert_same(a: Observations, b: Observations) -> None:
    left, right = a.to_arrays(), b.to_arrays()
    assert left.keys() == right.keys()
    different = [k for k in left if left[k].tobytes() != right[k].tobytes()]
    assert not different
    assert {k: v.dtype for k, v in left.items()} == {k: v.dtype for k, v in right.items()}


ROWS = rng().standard_normal((SAMPLES, K)).astype(np.float32) * 10
BATCHES = SAMPLES // BATCH
JOB = job_of(ROWS)
WHOLE = observe_shard(JOB, shard(0, BATCHES)).seen


def test_two_halves_make_the_whole() -> None:
    half = BATCHES // 2
    parts = [observe_shard(JOB, shard(a, b)).seen for a, b in ((0, half), (half, BATCHES))]
    assert_same(merged(parts, JOB), WHOLE)
    assert_same(merged(reversed(parts), JOB), WHOLE)


@settings(max_examples=25, deadline=None)
@given(cuts=st.sets(st.integers(1, BATCHES - 1)), data=st.data())
def test_any_partition_in_any_order_makes_the_whole(cuts: set[int], data: st.DataObject) -> None:
    ranges = list(pairwise([0, *sorted(cuts), BATCHES]))
    ranges = data.draw(st.permutations(ranges))
    assert_same(merged((observe_shard(JOB, shard(a, b)).seen for a, b in ranges), JOB), WHOLE)


def test_answers_are_those_of_numpy() -> None:
    answers = WHOLE.answers["m"]
    m = ROWS @ weight(K, K)
    span = answers[MinMaxOf()]
    assert isinstance(span, RunningMinMax)
    np.testing.assert_allclose(span.bounds, [m.min(), m.max()], rtol=1e-5)
    moments: Any = answers[MomentsOf(axis=1)]
    np.testing.assert_allclose(moments.mean, m.mean(0), rtol=1e-4, atol=1e-5)
    assert WHOLE.samples.tolist() == list(range(SAMPLES))


def test_sums_of_products_are_merged_to_rounding() -> None:
    what = SecondMomentOf(axis=1)
    requests = (Request(tensor="x", statistic=what), Request(tensor="y", statistic=SketchOf()))
    job = job_of(ROWS, key="products", groups=(requests,))
    parts = [observe_shard(job, shard(a, b)).seen for a, b in ((5, BATCHES), (0, 5))]
    found: Any = merged(parts, job).answers["x"][what]
    x = ROWS.astype(np.float64)
    np.testing.assert_allclose(found.matrix, x.T @ x, rtol=1e-12)
    again: Any = pickle.loads(pickle.dumps(merged(parts, job))).answers["x"][what]  # noqa: S301
    np.testing.assert_array_equal(again.matrix, found.matrix)


def test_a_group_of_graph_inputs_only_is_observed() -> None:
    request = Request(tensor="x", statistic=SketchOf())
    job = job_of(ROWS, key="inputs only", groups=((request,),))
    found: Any = observe_shard(job, shard(0, BATCHES)).seen.answers["x"][request.statistic]
    assert found.bounds == (ROWS.min(), ROWS.max())


def test_pickling_keeps_every_bit() -> None:
    again = pickle.loads(pickle.dumps(WHOLE))  # noqa: S301 - our own
    assert_same(again, WHOLE)
    assert again.requests == WHOLE.requests


def test_a_copy_is_merged_into_without_a_change_of_the_first() -> None:
    before = WHOLE.to_arrays()
    copy = WHOLE.copy()
    copy.merge(WHOLE)
    assert len(copy.samples) == 2 * SAMPLES
    after = WHOLE.to_arrays()
    assert all(np.array_equal(before[k], after[k]) for k in before)


def test_bad_samples_travel_with_their_reasons() -> None:
    seen = Observations.empty(JOB.groups[0], BATCH)
    seen.bad = {7: "seven", 3: "three"}
    again = pickle.loads(pickle.dumps(seen))  # noqa: S301 - our own
    assert again.bad == seen.bad


def test_extremes_name_the_sample_also_within_a_batch() -> None:
    rows = np.zeros((8, K), np.float32)
    rows[3, 2] = 5
    rows[6, 1] = -4
    seen = observe_shard(job_of(rows, batch=4), shard(0, 2)).seen
    extremes = seen.extremes["x"]
    assert (extremes.high, extremes.high_sample) == (5, 3)
    assert (extremes.low, extremes.low_sample) == (-4, 6)


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_of_equal_extremes_the_first_place_is_named(cut: int) -> None:
    rows = np.zeros((8, K), np.float32)
    rows[[2, 5, 7], 0] = 5
    rows[[4, 5, 6], 1] = -5
    job = job_of(rows)
    parts = [observe_shard(job, shard(a, b)).seen for a, b in ((cut, 4), (0, cut))]
    extremes = merged(parts, job).extremes["x"]
    assert (extremes.high_sample, extremes.low_sample) == (2, 4)


@given(st.permutations([(1.0, 4), (1.0, 2), (0.5, 0), (1.0, 9), (-0.5, 3), (-0.5, 1)]))
def test_extremes_do_not_depend_on_the_order(seen: list[tuple[float, int]]) -> None:
    total = Extremes()
    for value, sample in seen:
        total.merge(Extremes(value, sample, value, sample))
    assert (total.low_sample, total.high_sample) == (1, 2)


def test_the_extremes_of_a_span_name_a_sample_that_holds_them() -> None:
    rows = np.zeros((2, K), np.float32)
    rows[0] = 9
    requests = (Request(tensor="y", statistic=MinMaxOf()),)
    seen = observe_shard(job_of(rows, key="span", groups=(requests,)), shard(0, 1)).seen
    assert seen.extremes["y"].high_sample == 0


def test_the_sign_of_zero_in_a_span_does_not_depend_on_the_order() -> None:
    minus, plus = RunningMinMax(), RunningMinMax()
    minus.observe(np.array([-0.0], np.float32))
    plus.observe(np.array([0.0], np.float32))
    forth, back = RunningMinMax(), RunningMinMax()
    for total, parts in ((forth, (minus, plus)), (back, (plus, minus))):
        for part in parts:
            total.merge(part)
    states = [total.state() for total in (forth, back)]
    assert all(states[0][k].tobytes() == states[1][k].tobytes() for k in states[0])


def test_a_shard_stops_after_the_batch_in_which_it_was_told_to() -> None:
    ticks: list[int] = []
    result = observe_shard(JOB, shard(2, 9), ticks.append, lambda: len(ticks) == 3)
    assert (result.last, ticks) == (5, [BATCH] * 3)
    assert result.seen.samples.tolist() == list(range(2 * BATCH, 5 * BATCH))
