"""Every batch of every group is given out exactly once, within its segment."""

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.calibration.job import Shard, ShardResult
from quantkit.calibration.requests import Observations
from quantkit.calibration.run import SEGMENTS, Schedule, segment_ends


def result(shard: Shard, last: int, seconds: float) -> ShardResult:
    return ShardResult(shard=shard, last=last, seconds=seconds, seen=Observations({}, {}))


@given(st.integers(1, 5000))
def test_segments_are_an_eighth_a_quarter_a_half_and_all(batches: int) -> None:
    ends = segment_ends(batches)
    assert len(ends) == SEGMENTS
    assert ends == sorted(ends)
    assert ends[-1] == batches
    assert 0 <= ends[0] - batches / 8 < 1


@given(
    groups=st.integers(1, 3),
    batches=st.integers(1, 200),
    workers=st.integers(1, 9),
    data=st.data(),
)
@pytest.mark.slow
def test_shards_cover_what_is_left_exactly_once(
    groups: int, batches: int, workers: int, data: st.DataObject
) -> None:
    mask = data.draw(st.lists(st.booleans(), min_size=groups * batches, max_size=groups * batches))
    done = np.array(mask).reshape(groups, batches)
    paces = st.floats(0, 10) | st.sampled_from([0.0, 1e-9, 1e9])
    given_out = np.zeros((groups, batches), np.int64)
    schedule = Schedule(groups=groups, batches=batches, workers=workers)
    schedule.resume(done)
    ends = segment_ends(batches)
    for shard in chain.from_iterable(map(schedule.shards, range(groups))):
        assert shard.first < shard.last
        assert ends[shard.segment - 1] <= shard.first if shard.segment else True
        assert shard.last <= ends[shard.segment]
        given_out[shard.group, shard.first : shard.last] += 1
        seconds = data.draw(paces) * (shard.last - shard.first)
        schedule.finish(result(shard, shard.last, seconds))
    np.testing.assert_array_equal(given_out, ~done)
    assert schedule.done.all()


@given(st.integers(1, 300), st.integers(1, 8))
def test_shards_cover_all_also_if_none_is_finished_meanwhile(batches: int, workers: int) -> None:
    schedule = Schedule(groups=1, batches=batches, workers=workers)
    seen = [b for s in schedule.shards() for b in range(s.first, s.last)]
    assert seen == list(range(batches))


def test_a_shard_that_stopped_early_leaves_the_rest_undone() -> None:
    schedule = Schedule(groups=1, batches=64, workers=1)
    shard = max(schedule.shards(), key=lambda s: s.last - s.first)
    schedule.finish(result(shard, shard.first + 2, 1.0))
    assert np.flatnonzero(schedule.done[0]).tolist() == [shard.first, shard.first + 1]
    again = Schedule(groups=1, batches=64, workers=1)
    again.resume(schedule.done)
    left = [b for s in again.shards() for b in range(s.first, s.last)]
    assert left == [b for b in range(64) if b not in {shard.first, shard.first + 1}]


def test_slow_batches_make_short_shards_and_quick_ones_long() -> None:
    def longest(pace: float) -> int:
        schedule = Schedule(groups=1, batches=4096, workers=2)
        lengths = []
        for shard in schedule.shards():
            lengths.append(shard.last - shard.first)
            schedule.finish(result(shard, shard.last, pace * lengths[-1]))
        return max(lengths[1:])

    assert longest(10.0) == 1
    assert longest(1e-5) == 1024  # half of the last segment, for two workers
    assert 1 < longest(0.1) <= 30
