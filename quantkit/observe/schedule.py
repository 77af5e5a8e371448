"""Cuts the batches that are left into shards: long enough to be cheap, short enough to lose little.

Results do not depend on the cutting (merging is exact), so a shard may be as long as the pace measured so
far suggests. A segment is cut evenly among the workers, so that they finish it together.
"""

from collections.abc import Iterator
from math import ceil

import numpy as np
from numpy.typing import NDArray

from quantkit.observe.job import Shard, ShardResult

__all__ = ["SEGMENTS", "Schedule", "segment_ends"]

# Prefixes whose ranges are compared in the audit: an eighth, a quarter, a half, and all of the data.
SEGMENTS = 4
_SECONDS = 3.0  # that a shard may take: a kill loses no more than that
_FIRST = 8  # batches in a shard, as long as no pace is known


def segment_ends(batches: int) -> list[int]:
    """Return where each segment ends, in batches: an eighth, a quarter, a half, all."""
    return [ceil(batches / 2**k) for k in reversed(range(SEGMENTS))]


class Schedule:
    """The batches of all groups, and which of them are done."""

    def __init__(self, *, groups: int, batches: int, workers: int) -> None:
        self.batches = batches
        self.workers = workers
        self.done: NDArray[np.bool_] = np.zeros((groups, batches), np.bool_)
        self._given = self.done.copy()
        self._pace: float | None = None

    def resume(self, done: NDArray[np.bool_]) -> None:
        """Leave out what an earlier run has done."""
        self.done = done.copy()
        self._given = done.copy()

    def finish(self, result: ShardResult) -> None:
        """Note what a shard has done, and how long it took."""
        shard = result.shard
        self.done[shard.group, shard.first : result.last] = True
        if result.last > shard.first:
            self._pace = result.seconds / (result.last - shard.first)

    def shards(self, group: int = 0) -> Iterator[Shard]:
        """Yield the shards of a group, each cut when it is asked for."""
        ends = segment_ends(self.batches)
        for segment, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            yield from self._cut(group, segment, start, end)

    def _cut(self, group: int, segment: int, start: int, end: int) -> Iterator[Shard]:
        given = self._given[group]
        first = start
        while first < end:
            if given[first]:
                first += 1
                continue
            last = first + 1
            longest = self._longest(end - start)
            while last < end and last - first < longest and not given[last]:
                last += 1
            given[first:last] = True
            yield Shard(group=group, segment=segment, first=first, last=last)
            first = last

    def _longest(self, batches: int) -> int:
        """Return the length of a shard of a segment: an even part that is short enough."""
        limit = _FIRST if self._pace is None else max(1, int(_SECONDS / max(self._pace, 1e-6)))
        return ceil(batches / (self.workers * ceil(batches / (self.workers * limit))))
