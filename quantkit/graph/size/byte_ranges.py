"""Which bytes of a file are accounted for."""

from bisect import bisect_left, bisect_right

__all__ = ["Claims"]


class Claims:
    """Ranges that are taken: disjoint, sorted, and never beyond the file.

    Invariant: what all calls of `take` returned, and `free`, add up to `size`.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.free = size
        self._starts: list[int] = []
        self._ends: list[int] = []

    def take(self, start: int, end: int) -> int:
        """Take the bytes from `start` to before `end`; return how many nobody had taken before."""
        start, end = max(start, 0), min(end, self.size)
        if start >= end:
            return 0
        asked = end - start
        # All ranges that this one overlaps or touches become one.
        first, last = bisect_left(self._ends, start), bisect_right(self._starts, end)
        had = sum(min(self._ends[i], end) - max(self._starts[i], start) for i in range(first, last))
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._starts[first:last], self._ends[first:last] = [start], [end]
        self.free -= asked - had
        return asked - had

    def gaps(self, shorter_than: int) -> int:
        """Return the bytes of all gaps before a taken range that are shorter than a length."""
        lengths = (s - e for s, e in zip(self._starts, [0, *self._ends], strict=False))
        return sum(length for length in lengths if length < shorter_than)
