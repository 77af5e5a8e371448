"""Moments of what a product reads in the float model and behind quantized layers, and what errors of its weight cost by them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from calibrators import Window
from quantkit.numerics.blocks import shrunk
from quantkit.numerics.second_order import Carries, carries_of, damped, damping_share

Array = NDArray[Any]
Floats = NDArray[np.float64]
Detail = Literal["matrix", "diagonal", "mean"]


def _plus(before: Floats | None, more: Array) -> Floats:
    """Return a sum, where it is: a matrix of thousands of inputs must not be there twice."""
    if before is None:
        return more.astype(np.float64)
    before += more
    return before


@dataclass(slots=True, kw_only=True)
class Moments:
    """H and C of one way to read a tensor, (groups, K, K) each.

    Attributes:
        window: What a product reads at once.
        detail: Of too many inputs the diagonal of H alone; of a weight that is solved already the mean alone.
        centred: A bias takes up the means: H and C are of what varies.
        second: The sum of H.
        cross: The sum of C.
        total: Of what is read in the float model, and behind quantized layers, (2, groups, K).
        count: Rows in these sums.
        rows: Rows that were read.
        strange: Of these, rows that hold NaN or infinity in the float model.
    """

    window: Window
    detail: Detail = "matrix"
    centred: bool = False
    second: Floats | None = None
    cross: Floats | None = None
    total: Floats = field(default_factory=lambda: np.zeros(()))
    count: int = 0
    rows: int = 0
    strange: int = 0

    def add(self, exact: Array, rough: Array, rows: int) -> None:
        """Take in what was read of one sample."""
        x0, x = (self._patches(array, rows) for array in (exact, rough))
        finite = np.isfinite(x0).all(axis=(0, 2))
        self.rows += x0.shape[1]
        self.strange += x0.shape[1] - int(finite.sum())
        whole = finite & np.isfinite(x).all(axis=(0, 2))
        x0, x = x0[:, whole], x[:, whole]
        self.count += x.shape[1]
        self.total = self.total + np.stack([one.sum(axis=1, dtype=np.float64) for one in (x0, x)])
        if self.detail == "mean":
            return
        if self.detail == "diagonal":
            self.second = _plus(self.second, np.square(x, dtype=np.float64).sum(axis=1))
            return
        self.second = _plus(self.second, np.swapaxes(x, -1, -2) @ x)
        if exact is not rough:
            self.cross = _plus(self.cross, np.swapaxes(x0 - x, -1, -2) @ x)

    def _patches(self, array: Array, rows: int) -> Array:
        """Return patches (groups, rows, K) in the order of the weight: channels, then taps."""
        found = self.window.patches(np.asarray(array, np.float32), rows)
        taps = int(np.prod(self.window.kernel, dtype=np.int64)) if self.window.kernel else 1
        if taps == 1:
            return found
        groups, count, inputs = found.shape
        by_channel = found.reshape(groups, count, taps, inputs // taps).swapaxes(-1, -2)
        return np.ascontiguousarray(by_channel.reshape(groups, count, inputs))

    @property
    def means(self) -> Floats:
        """The means in the float model, and behind quantized layers, (2, groups, K)."""
        return self.total / max(1, self.count)

    def cost(self, corrected: float, *, damps: bool = False, looked_up: int = 0) -> "Cost | None":
        """Return what errors cost, and forget the moments: of thousands of inputs they are the most that is in memory.

        Args:
            corrected: How much of the error that comes in is to be taken off.
            damps: Add to the diagonal of H, instead of making all else smaller.
            looked_up: How many look rows up in the weight, for each of which an error counts as much as in a product.
        """
        second, cross, count = self.second, self.cross, self.count
        self.second = self.cross = None
        if second is None or not count:
            return None
        second /= count
        exact, rough = self.means
        if self.detail == "diagonal":
            return Cost(groups=len(second), powers=second - np.square(rough) * self.centred)
        if self.centred:
            second -= rough[:, :, np.newaxis] * rough[:, np.newaxis]
        for h in second:
            if damps:
                damped(h, damping_share(len(h), count), own=True)
            else:
                shrunk(h, count, own=True)
            if looked_up:
                h[np.diag_indices(len(h))] += looked_up * h.diagonal().mean()
        shift = []
        if cross is not None:
            cross /= count
            if self.centred:
                cross -= (exact - rough)[:, :, np.newaxis] * rough[:, np.newaxis]
            cross *= corrected
            shift = [_solved(h, c) for h, c in zip(second, cross, strict=True)]
        carries = [carries_of(h) for h in second]
        return Cost(groups=len(second), second=second, carries=carries, shift=shift)


def _solved(h: Floats, c: Floats) -> Floats:
    """Return ``C H^-1``, where C is."""
    from scipy.linalg import cho_factor, cho_solve

    found: Floats = cho_solve(
        cho_factor(h, check_finite=False), c.T, overwrite_b=True, check_finite=False
    )
    return found.T


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What the errors of a weight cost, of each group of its channels.

    Attributes:
        groups: How many there are.
        second: H.
        carries: H, factored.
        shift: ``a C H^-1``; empty: what comes in has no error.
        powers: The diagonal of H, where H itself is too large; None: it is not.
    """

    groups: int
    second: Sequence[Floats] | Floats = ()
    carries: Sequence[Carries] = ()
    shift: Sequence[Floats] = ()
    powers: Floats | None = None
