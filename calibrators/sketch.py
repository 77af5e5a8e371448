"""One sketch, every calibrator: a mergeable summary of all the values a tensor took.

65,536 fixed log-spaced bins (`calibrators.histogram`), exact extremes and exact sums. No range has to be
known first, memory does not grow with the data, and every range method reads the same sketch.
"""

import sys
from collections.abc import Iterator
from math import isfinite
from typing import Any, ClassVar, Self
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from calibrators import histogram
from calibrators._tally import RUN, Tallied, Tally, as_float32, rows_of, run_sums, scratch
from calibrators.histogram import BINS, Histogram
from calibrators.protocol import State, read_settings, settings
from calibrators.ranges import Range

# Values read at a time: 512 KB of float32, so that the passes after the first find them in the L2 cache.
_CHUNK = 2**17
_ONE = np.int64(1)
_FEW = 2**15  # values that are not worth a table of half a megabyte
_GLANCES = 64  # values that choose where counting begins
_TOP = int(sys.byteorder == "little")  # which half of a float32 has the sign and the exponent


Entries = tuple[NDArray[np.intp], NDArray[np.int64]]


class Sketch(Tallied):
    """Histogram, extremes and sums of a tensor's values, or of each channel's along `axis`.

    Exact: `low` and `high` (finite values), `seen`, `nan`, `inf`, and, of the values counted, `count`, the
    bins and the sums. NaN and infinities are counted as such and enter nothing else. Values are
    cast to float32 first; float64 beyond its range counts as infinite.

    `most` bounds the work per tensor: of an array of n > `most` values only every k-th is counted, k = ceil(n /
    most), from a start that differs from array to array, so that many arrays together visit every place.
    Extremes, NaN and infinities are still those of all values. Channels are counted in full.

    Invariants: one number of channels for good, 1 without an axis, 0 before the first array with one.
    """

    ordered: ClassVar[bool] = False
    exact: ClassVar[bool] = True

    __slots__ = ("_counts", "_entries", "_waiting", "axis", "most")

    def __init__(self, *, axis: int | None = None, most: int | None = None) -> None:
        if most is not None and most < 1:
            raise ValueError(f"A sketch must count at least one value of an array, not {most}.")
        self.axis = axis
        self.most = most
        self._tally = Tally(1 if axis is None else 0)
        self._counts: NDArray[np.int64] | None = None  # made when there is something to count
        # What was restored or merged, and is not needed as a table yet: places in it, and their counts.
        self._entries: Entries = (np.empty(0, np.intp), np.empty(0, np.int64))
        # Bins of values that were seen and not counted yet: of a few values no table is made.
        self._waiting: list[NDArray[np.uint16]] = []

    def observe(self, array: NDArray[Any]) -> None:
        """Take in one array.

        Raises:
            ValueError: The number of channels differs from before.
        """
        if array.size == 0:
            return
        if self.axis is None:
            self._observe_tensor(np.ascontiguousarray(as_float32(array)).reshape(-1))
            return
        rows = rows_of(array, self.axis)
        self._expect(len(rows))
        finite = self._tally.observe(rows)
        bins = rows.view(np.uint16)[:, _TOP::2].astype(np.intp)
        bins += np.arange(0, len(rows) * BINS, BINS)[:, None]
        # Only bins that occur are touched, where adding whole tables would write every page.
        np.add.at(self._table().reshape(-1), bins.ravel() if finite is None else bins[finite], 1)

    def merge(self, other: Self) -> None:
        """Take in what `other` saw.

        Raises:
            ValueError: The sketches were made with different settings, or of different channels.
        """
        if (self.axis, self.most) != (other.axis, other.most):
            raise ValueError(
                f"Cannot merge a sketch with axis {other.axis} and most {other.most} "
                f"into one with axis {self.axis} and most {self.most}."
            )
        if not other.channels:
            return
        self._expect(other.channels)
        self._tally.merge(other._tally)
        # Sparse as long as nothing was observed here: whoever only merges (the parent of many workers) never makes
        # the table of half a megabyte per tensor. Counts are integers and extremes exact, so merging in any order
        # gives the same sketch bit for bit; ranges then do not depend on how many workers there were.
        found = other._occupied()
        self._settle()
        if self._counts is None:  # stays sparse: who only merges needs no table
            self._entries = _joined(self._entries, found)
        else:
            self._counts.reshape(-1)[found[0]] += found[1]

    def state(self) -> State:
        """Return what is known; of the bins those in use, channel by channel."""
        used, counts = self._occupied()
        rows, bins = np.divmod(used, BINS)
        return {
            "settings": settings(self.axis, self.most),
            "starts": np.searchsorted(rows, np.arange(self.channels + 1)).astype(np.int64),
            "bins": bins.astype(np.uint16),
            "bin_counts": counts,
            **self._tally.state(),
        }

    @classmethod
    def from_state(cls, state: State) -> Self:
        """Build the sketch that had this state."""
        axis, most = read_settings(state["settings"])
        found = cls(axis=axis, most=most)
        found._tally = Tally.from_state(state)
        rows = np.repeat(np.arange(found.channels), np.diff(state["starts"]))
        found._entries = (rows * BINS + state["bins"], state["bin_counts"].copy())
        return found

    @property
    def empty(self) -> bool:
        """Whether no finite value was seen."""
        return not (self._tally.low <= self._tally.high).any()

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and largest finite value of a tensor; (inf, -inf) if there is none."""
        return float(self._tally.low[0]), float(self._tally.high[0])

    @property
    def seen(self) -> NDArray[np.int64]:
        """Values seen per channel: counted or not, finite or not."""
        return self._tally.seen.copy()

    @property
    def nan(self) -> NDArray[np.int64]:
        """NaNs seen, per channel."""
        return self._tally.nan.copy()

    @property
    def inf(self) -> NDArray[np.int64]:
        """Infinities seen, per channel."""
        return self._tally.inf.copy()

    @property
    def std(self) -> NDArray[np.float64]:
        """The standard deviation of the counted values, per channel."""
        return np.sqrt(self.variance)

    def histogram(self, channel: int = 0) -> Histogram:
        """Return the occupied bins of a channel by ascending value, clipped to its exact extremes."""
        low, high = self._tally.low[channel], self._tally.high[channel]
        return histogram.values(self._row(channel), float(low), float(high))

    def magnitudes(self, channel: int = 0) -> Histogram:
        """Return the occupied bins of |x| of a channel, without zero."""
        return histogram.magnitudes(self._row(channel))

    def share_outside(self, found: Range) -> NDArray[np.float64]:
        """Return the share of the counted values outside a range, per channel, to the width of a bin."""
        shares = np.zeros(self.channels)
        for i in np.flatnonzero(self._tally.count):
            bins = self.histogram(int(i))
            outside = (bins.center < found.low[i]) | (bins.center > found.high[i])
            shares[i] = bins.count[outside].sum() / self._tally.count[i]
        return shares

    def _table(self) -> NDArray[np.int64]:
        if self._counts is None:
            self._settle()
            self._counts = histogram.table(self.channels)
            used, counts = self._entries
            self._counts.reshape(-1)[used] = counts
        return self._counts

    def _row(self, channel: int) -> NDArray[np.int64]:
        """Return a channel's counts, to be read."""
        self._settle()
        if self._counts is not None:
            whole: NDArray[np.int64] = self._counts[channel]
            return whole
        used, counts = self._entries
        own = slice(*np.searchsorted(used, [channel * BINS, (channel + 1) * BINS]))
        row = np.zeros(BINS, np.int64)
        row[used[own] - channel * BINS] = counts[own]
        return row

    def _occupied(self) -> Entries:
        """Return the places of the table that are not zero, channel by channel, and their counts."""
        self._settle()
        if self._counts is None:
            return self._entries
        ends = zip(self._counts, self._tally.low.tolist(), self._tally.high.tolist(), strict=True)
        bins = [histogram.occupied(row, low, high) for row, low, high in ends]
        used = np.concatenate([row * BINS + at for row, at in enumerate(bins)])
        return used, self._counts.reshape(-1)[used]

    def _expect(self, channels: int) -> None:
        if not self.channels:
            self._tally = Tally(channels)
        elif self.channels != channels:
            raise ValueError(
                f"A sketch of {self.channels} channels met {channels} along axis {self.axis}; "
                "an axis of changing length has no channels."
            )

    def _observe_tensor(self, flat: NDArray[np.float32]) -> None:
        self._tally.seen[0] += flat.size
        k = 1 if self.most is None else -(-flat.size // self.most)
        skip = _start(flat, k)
        picked = flat if k == 1 else scratch(np.float32, len(range(skip, flat.size, k)))
        clean, filled = True, 0
        for chunk in _chunks(flat):
            clean &= self._bound(chunk)
            if k == 1:
                continue
            part = chunk[skip::k]
            picked[filled : filled + part.size] = part
            filled += part.size
            skip = (skip - chunk.size) % k
        if not clean:
            picked = picked[np.isfinite(picked)]
        self._tally.count[0] += picked.size
        sums = []
        for start in range(0, picked.size, RUN):
            run = picked[start : start + RUN]
            sums.append(run_sums(run[None])[:, 0])
            self._count(run.view(np.uint16)[_TOP::2])
        if sums:
            self._tally.sums.add(np.array(sums))

    def _count(self, found: NDArray[np.uint16]) -> None:
        """Count bins of a tensor's values: in a table, or, as long as there are few, later."""
        if self._counts is None:
            self._waiting.append(found.copy())
            if sum(part.size for part in self._waiting) <= _FEW:
                return
            found, self._waiting = np.concatenate(self._waiting), []
        bins = scratch(np.intp, found.size)
        np.copyto(bins, found)
        # np.bincount would make, and have us add, a table of up to 512 KB for each run.
        np.add.at(self._table()[0], bins, _ONE)

    def _settle(self) -> None:
        """Count what waits."""
        if self._waiting:
            used, counts = np.unique(np.concatenate(self._waiting), return_counts=True)
            self._waiting = []
            self._entries = _joined(self._entries, (used.astype(np.intp), counts.astype(np.int64)))

    def _bound(self, chunk: NDArray[np.float32]) -> bool:
        """Widen the extremes; return whether all values are finite. min and max pass NaN on."""
        tally = self._tally
        low, high = np.minimum.reduce(chunk), np.maximum.reduce(chunk)
        clean = isfinite(float(low) - float(high))
        if not clean:
            finite = np.isfinite(chunk)
            low = np.minimum.reduce(chunk, where=finite, initial=np.inf)
            high = np.maximum.reduce(chunk, where=finite, initial=-np.inf)
            nan = np.count_nonzero(np.isnan(chunk))
            tally.nan[0] += nan
            tally.inf[0] += chunk.size - np.count_nonzero(finite) - nan
        if low < tally.low[0] or high > tally.high[0]:
            tally.bound(low, high)
        return clean


def _joined(a: Entries, b: Entries) -> Entries:
    """Add up counts by place; places ascend."""
    if not a[0].size or not b[0].size:
        used, counts = a if a[0].size else b
        return used, counts.copy()
    used, place = np.unique(np.concatenate([a[0], b[0]]), return_inverse=True)
    counts = np.zeros(used.size, np.int64)
    np.add.at(counts, place, np.concatenate([a[1], b[1]]))
    return used, counts


def _chunks(flat: NDArray[np.float32]) -> Iterator[NDArray[np.float32]]:
    for start in range(0, flat.size, _CHUNK):
        yield flat[start : start + _CHUNK]


def _start(flat: NDArray[np.float32], k: int) -> int:
    """Return where to begin if every k-th value is counted: a place below k that the values themselves choose.

    Were it always the first, the same places of a feature map would be counted in every sample, and the channels
    that matter at others never. It must not depend on what was seen before, or the order would matter.
    """
    return 0 if k == 1 else crc32(flat[:: max(1, flat.size // _GLANCES)].tobytes()) % k
