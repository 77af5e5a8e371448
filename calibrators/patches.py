"""First and second moments of what a product reads: the patches of a Conv, the rows of a matrix product.

    y = W x + b      E[x],  E[x x^T]      x: one patch, laid out (taps, channels), channels fastest

From these two follow the output error of any change of W, and the bias that takes its mean away.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from calibrators._tally import as_float32
from calibrators.protocol import State

Floats = NDArray[np.float64]

_TOGETHER = 128  # patches that are multiplied at once
_BAND = 256  # rows of a matrix of products that are made at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What a product reads of its input at once.

    Attributes:
        kernel: Extents of a Conv's kernel; empty for a matrix product, which reads the last axis.
        strides: As in ONNX; so are the next two.
        pads: All starts, then all ends.
        dilations: Distance of taps.
        group: Channels are cut into so many groups, each of which has moments of its own.
        auto_pad: NOTSET, VALID, SAME_UPPER or SAME_LOWER.
    """

    kernel: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    group: int = 1
    auto_pad: str = "NOTSET"

    @classmethod
    def of_conv(cls, kernel: tuple[int, ...], attributes: Mapping[str, Any]) -> Self:
        """Return the window of a Conv by its ONNX attributes; those that are left out have their defaults."""

        def ints(name: str, default: int, count: int) -> tuple[int, ...]:
            return tuple(int(n) for n in attributes.get(name) or (default,) * count)

        return cls(
            kernel=kernel,
            strides=ints("strides", 1, len(kernel)),
            pads=ints("pads", 0, 2 * len(kernel)),
            dilations=ints("dilations", 1, len(kernel)),
            group=int(attributes.get("group", 1)),
            auto_pad=str(attributes.get("auto_pad", "NOTSET")),
        )

    def padding(self, extents: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
        """Return zeros before and after each axis, for an input of these extents."""
        axes = range(len(self.kernel))
        if not self.auto_pad.startswith("SAME"):
            given = self.pads if self.auto_pad == "NOTSET" else ()
            given = given or (0,) * 2 * len(self.kernel)
            return tuple((given[i], given[i + len(self.kernel)]) for i in axes)
        found = []
        for i in axes:
            step, reach = self.strides[i], (self.kernel[i] - 1) * self.dilations[i] + 1
            total = max(0, (-(-extents[i] // step) - 1) * step + reach - extents[i])
            small, large = total // 2, total - total // 2
            found.append((large, small) if self.auto_pad == "SAME_LOWER" else (small, large))
        return tuple(found)

    def patches(self, array: NDArray[Any], most: int) -> NDArray[Any]:
        """Cut patches out of a batch, of at most `most` evenly spaced positions per sample: (groups, patches, K)."""
        if not self.kernel:
            rows = array.reshape(-1, array.shape[-1])
            return rows[_spread(len(rows), most * len(array))][np.newaxis]
        places, inside = _places(self, array.shape[2:], most)
        flat = array.reshape(*array.shape[:2], -1)[:, :, places]  # N, C, positions, taps
        if not inside.all():
            flat[:, :, ~inside] = 0
        n, channels, positions, taps = flat.shape
        cut = flat.reshape(n, self.group, channels // self.group, positions, taps)
        return np.ascontiguousarray(cut.transpose(1, 0, 3, 4, 2)).reshape(
            self.group, n * positions, -1
        )


class PatchMoments:
    """Sum, sum of products and count of patches, of at most `rows` positions per sample.

    Patches with a NaN or an infinity are left out. Positions are evenly spaced, so that a large image costs no
    more than a small one. Exact to rounding only, as `SecondMoment`.

    Of the products, which are symmetric, the lower half is kept, in bands of rows: half the memory, and no more than a band
    is ever made at once. All sums are one array, so that they can lie in memory that processes share (`sharing`).

    Invariants: `matrix` is (groups, K, K), symmetric; `total` is (groups, K); `count` patches entered each.
    """

    ordered: ClassVar[bool] = False
    exact: ClassVar[bool] = False

    __slots__ = ("_lock", "_pending", "_shape", "_sums", "rows", "window")

    def __init__(self, window: Window, rows: int = 64) -> None:
        self.window = window
        self.rows = rows
        self._shape = (0, 0)  # groups, K
        self._sums: Floats = np.zeros(0)  # count, totals, bands
        self._lock: AbstractContextManager[Any] = nullcontext()
        self._pending: list[NDArray[np.float32]] = []

    @staticmethod
    def nbytes(groups: int, inputs: int) -> int:
        """Return what the sums of so many inputs take."""
        bands = sum((high - low) * high for low, high in _bands(inputs))
        return np.dtype(np.float64).itemsize * (1 + groups * (inputs + bands))

    @staticmethod
    def waiting(groups: int, inputs: int) -> int:
        """Return what patches of so many inputs take before they are multiplied."""
        return np.dtype(np.float32).itemsize * groups * inputs * _TOGETHER

    @classmethod
    def sharing(
        cls,
        window: Window,
        rows: int,
        inputs: int,
        sums: Floats,
        lock: AbstractContextManager[Any],
    ) -> Self:
        """Return moments whose sums are kept in `sums`, which others may add to as well, and changed under `lock` alone.

        `sums` takes `nbytes(groups, inputs)`, and is zero at first.

        Args:
            window: What a product reads at once.
            rows: Positions per sample at most.
            inputs: K, the values of a patch of one group.
            sums: Zeros at first, of `nbytes(groups, inputs)` bytes; others may add to it as well.
            lock: Held while `sums` is changed.
        """
        found = cls(window, rows)
        found._shape, found._sums, found._lock = (window.group, inputs), sums, lock
        return found

    def part(self) -> Self:
        """Return moments that add to the same sums, with patches of their own that wait to be multiplied."""
        return self.sharing(self.window, self.rows, self._shape[1], self._sums, self._lock)

    def observe(self, array: NDArray[Any]) -> None:
        """Take in one batch.

        Raises:
            ValueError: The number of channels differs from before.
        """
        if array.size == 0:
            return
        # One sum over all patches tells that all values are finite, which is the rule, without an array of answers. Large
        # finite values may make it overflow: then each is asked, and none is left out. A patch with a hole goes in all
        # groups: `count` is one number for all of them.
        patches = self.window.patches(as_float32(array), self.rows)
        with np.errstate(invalid="ignore", over="ignore"):
            is_clean = bool(np.isfinite(patches.sum()))
        if not is_clean:
            patches = patches[:, np.isfinite(patches).all(axis=(0, 2))]
        shape = (patches.shape[0], patches.shape[2])
        if self._shape == (0, 0):
            self._shape, self._sums = shape, _zeros(shape)
        elif self._shape != shape:
            raise ValueError(
                f"Moments of {self._shape[1]} inputs met {shape[1]}: an axis of changing length has no moments."
            )
        self._pending.append(patches)
        if sum(p.shape[1] for p in self._pending) >= _TOGETHER:
            self.flush()

    def flush(self) -> None:
        """Multiply what has come together: K x K sums are long, and adding to them costs as much as a hundred rows."""
        if not self._pending:
            return
        patches = np.concatenate(self._pending, axis=1, dtype=np.float64)
        self._pending = []
        total = patches.sum(axis=1)
        turned = patches.swapaxes(-1, -2)
        for at, (low, high) in enumerate(_bands(self._shape[1])):
            products = np.matmul(turned[:, low:high], patches[:, :, :high])
            with self._lock:
                if not at:
                    self._sums[0] += patches.shape[1]
                    self._totals()[...] += total
                self._band(at)[...] += products

    def merge(self, other: Self) -> None:
        """Take in what `other` saw.

        Raises:
            ValueError: The window or the number of channels differs.
        """
        if self.window != other.window:
            raise ValueError("Moments of different windows do not add up.")
        if not other.count:
            return
        self.flush()
        if self._shape == (0, 0):
            self._shape, self._sums = other._shape, other._sums.copy()
            return
        if self._shape != other._shape:
            raise ValueError(
                f"Moments of {self._shape} inputs met {other._shape}: an axis of changing length has no "
                "moments."
            )
        with self._lock:
            self._sums += other._sums

    def _totals(self) -> Floats:
        groups, inputs = self._shape
        return self._sums[1 : 1 + groups * inputs].reshape(groups, inputs)

    def _band(self, at: int) -> Floats:
        """Return the rows of a band up to their diagonal, (groups, rows, columns)."""
        groups, inputs = self._shape
        start = 1 + groups * inputs
        for low, high in _bands(inputs)[:at]:
            start += groups * (high - low) * high
        low, high = _bands(inputs)[at]
        size = groups * (high - low) * high
        return self._sums[start : start + size].reshape(groups, high - low, high)

    @property
    def count(self) -> int:
        """How many patches were seen."""
        self.flush()
        return int(self._sums[0]) if self._sums.size else 0

    @property
    def total(self) -> Floats:
        """Their sum, (groups, K)."""
        self.flush()
        return self._totals() if self._sums.size else np.zeros((0, 0))

    @property
    def matrix(self) -> Floats:
        """The sum of their products, (groups, K, K); made anew each time."""
        self.flush()
        groups, inputs = self._shape
        whole = np.empty((groups, inputs, inputs))
        for at, (low, high) in enumerate(_bands(inputs)):
            band = self._band(at)
            whole[:, low:high, :high] = band
            whole[:, :low, low:high] = band[:, :, :low].swapaxes(1, 2)
        return whole

    @property
    def mean(self) -> Floats:
        """E[x], (groups, K)."""
        return self.total / max(1, self.count)

    @property
    def second(self) -> Floats:
        """E[x x^T], (groups, K, K)."""
        found = self.matrix
        found /= max(1, self.count)
        return found

    @property
    def covariance(self) -> Floats:
        """E[x x^T] - E[x] E[x]^T."""
        found, mean = self.second, self.mean
        for low, high in _bands(self._shape[1]):
            found[:, low:high] -= mean[:, low:high, np.newaxis] * mean[:, np.newaxis, :]
        return found

    def state(self) -> State:
        """Return what is known."""
        self.flush()
        window = self.window
        geometry = (window.kernel, window.strides, window.pads, window.dilations)
        return {
            "geometry": np.array([n for part in geometry for n in (len(part), *part)], np.int64),
            "group": np.array([window.group], np.int64),
            "auto_pad": np.frombuffer(window.auto_pad.encode(), np.uint8).copy(),
            "rows": np.array([self.rows], np.int64),
            "shape": np.array(self._shape, np.int64),
            "sums": self._sums.copy(),
        }

    @classmethod
    def from_state(cls, state: State) -> Self:
        """Build the moments that had this state."""
        numbers = [int(n) for n in state["geometry"]]
        parts = []
        while numbers:
            length, *numbers = numbers
            parts.append(tuple(numbers[:length]))
            numbers = numbers[length:]
        window = Window(
            kernel=parts[0],
            strides=parts[1],
            pads=parts[2],
            dilations=parts[3],
            group=int(state["group"][0]),
            auto_pad=state["auto_pad"].tobytes().decode(),
        )
        found = cls(window, int(state["rows"][0]))
        groups, inputs = state["shape"].tolist()
        found._shape, found._sums = (groups, inputs), state["sums"].copy()
        return found

    @classmethod
    def of(cls, window: Window, *, count: int, total: Floats, matrix: Floats) -> Self:
        """Build moments from their sums.

        Args:
            window: What a product reads at once.
            count: Patches.
            total: Their sum, (groups, K).
            matrix: The sum of their products, (groups, K, K).
        """
        found = cls(window)
        found._shape = (total.shape[0], total.shape[1])
        found._sums = _zeros(found._shape)
        found._sums[0] = count
        found._totals()[...] = total
        for at, (low, high) in enumerate(_bands(total.shape[1])):
            found._band(at)[...] = matrix[:, low:high, :high]
        return found


def _zeros(shape: tuple[int, int]) -> Floats:
    return np.zeros(PatchMoments.nbytes(*shape) // np.dtype(np.float64).itemsize)


def _bands(inputs: int) -> list[tuple[int, int]]:
    """Cut the rows of a matrix into bands: first row, and the row behind the last."""
    return [(low, min(low + _BAND, inputs)) for low in range(0, inputs, _BAND)]


def _spread(length: int, most: int) -> NDArray[np.intp]:
    """Return at most `most` indices below `length`, evenly spaced."""
    count = min(length, most)
    return (np.arange(count) * length) // max(1, count)


@lru_cache(maxsize=1024)
def _places(
    window: Window, extents: tuple[int, ...], most: int
) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Return flat indices into an image, (positions, taps), and which of them lie inside; the others are padding."""
    padding = window.padding(extents)
    reaches = [(k - 1) * d + 1 for k, d in zip(window.kernel, window.dilations, strict=True)]
    counts = [
        (n + sum(pad) - reach) // s + 1
        for n, pad, reach, s in zip(extents, padding, reaches, window.strides, strict=True)
    ]
    chosen = np.unravel_index(_spread(prod(counts), most), counts)
    taps = np.indices(window.kernel).reshape(len(window.kernel), -1)
    places, inside = np.zeros((), np.intp), np.ones((), np.bool_)
    for axis, extent in enumerate(extents):
        first = chosen[axis] * window.strides[axis] - padding[axis][0]
        at = first[:, np.newaxis] + taps[axis] * window.dilations[axis]
        inside = inside & (at >= 0) & (at < extent)
        places = places * extent + at
    places = np.where(inside, places, 0)
    places.flags.writeable = inside.flags.writeable = False
    return places, inside
