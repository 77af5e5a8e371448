"""Weights of 2 to 8 bits in blocks: neighbours along the summed axis share a step and a zero.

    w' = (c - z) m s        c, z in 0 .. 2^bits - 1;   m in 1 .. largest

One z and one m per block, one float s per row. So the step of a block is a small integer times that of its row: four bits in the file
instead of 32, which is the best use of them (`benchmarks/results/grids.md`), and, where m is small enough, ``(c - z) m`` is itself an int8 of one
scale per row, which integer kernels take.

`fit_blocks` chooses steps and zeros and rounds to the nearest codes. With H = E[x x^T] of what a row multiplies, `solve_blocks` makes up for the
error of each code in later ones (`quantkit.numerics.second_order`), the largest inputs first, and then moves single codes, zeros and steps as long
as the error ``e H e^T`` of a row becomes less.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quantkit.errors import UsageError
from quantkit.numerics.affine import storable_scale
from quantkit.numerics.second_order import Carries, carries_of, output_error

Array = NDArray[Any]
Floats = NDArray[np.floating[Any]]
FitMethod = Literal["minmax", "mse", "hqq"]

_FEWEST_BITS, _MOST_BITS = 2, 8
_BYTE_VALUES = 255
_LARGEST_BLOCK = 1 << 24
_NUMBERS = 1 << 20  # weights that are worked on at a time: temporaries are a few times that
_TOGETHER = 128  # inputs whose errors are carried over one at a time; the rest by matrix products
_TINY = float(np.finfo(np.float32).tiny)
# Shares of a block's range that are tried. Of many bits little is gained by cutting anything off.
_SHARES = tuple(np.linspace(1.0, 0.6, 9))
_FEW_SHARES = (1.0, 0.97, 0.94)
_FINE = 6  # bits
_CACHED = 1 << 16  # numbers that are gone over again and again
_DAMPING = 0.01  # of the mean of H's diagonal
_MOST_SHRUNK = 0.5
_SWEEPS = 8
_LONG = (
    4e9  # multiplications of a sweep from which on there are fewer: half of them gain four fifths
)
_SETTLED = 1e-6  # of a scale: a smaller change is none
_TILE = 32  # inputs of a row that is one block, whose codes are moved one after the other


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockGrid:
    """Which numbers a weight in blocks may have.

    Attributes:
        bits: Of a code, 2 to 8.
        size: Neighbours that share step and zero; 0: a whole row.
        symmetric: All zeros are ``2^(bits - 1)``, and are not stored.
        largest: The largest multiplier of a block's step; 1: all blocks of a row have the same.
    """

    bits: int
    size: int = 32
    symmetric: bool = False
    largest: int = 15

    def __post_init__(self) -> None:
        if not _FEWEST_BITS <= self.bits <= _MOST_BITS:
            raise UsageError(
                f"Weights of {self.bits} bits are asked for: use {_FEWEST_BITS} to {_MOST_BITS}."
            )
        if not 0 <= self.size <= _LARGEST_BLOCK:
            raise UsageError(f"Block size {self.size} is not between 0 and {_LARGEST_BLOCK}.")
        if not 1 <= self.largest <= _BYTE_VALUES:
            raise UsageError(f"Multipliers are 1 to {_BYTE_VALUES}, not {self.largest}.")

    def __str__(self) -> str:
        shared = f"blocks of {self.size}" if self.size else "whole rows"
        zeros = "" if self.symmetric else ", with zero points"
        return f"{self.bits} bits, {shared}{zeros}"

    @property
    def top(self) -> int:
        """The largest code."""
        return (1 << self.bits) - 1

    @property
    def middle(self) -> int:
        """The zero of a symmetric grid."""
        return 1 << (self.bits - 1)

    @property
    def peak(self) -> int:
        """The largest ``|(c - z) m|`` of a symmetric grid."""
        return self.middle * self.largest

    def count(self, inputs: int) -> int:
        """Return how many blocks a row of so many inputs has; the last may not be full."""
        return 1 if not self.size else max(1, -(-inputs // self.size))

    def spread(self, per_block: Array, inputs: int) -> Array:
        """Return what each input of a row has of a number per block: (..., blocks) -> (..., inputs)."""
        if per_block.shape[-1] == 1:
            return np.broadcast_to(per_block, (*per_block.shape[:-1], inputs))
        return np.repeat(per_block, self.size, axis=-1)[..., :inputs]

    def blocked(self, rows: Array) -> Array:
        """Cut rows into blocks, the last filled up with zeros: (N, K) -> (N, blocks, size)."""
        n, k = rows.shape
        size = self.size or k
        missing = self.count(k) * size - k
        padded = np.pad(rows, ((0, 0), (0, missing))) if missing else rows
        return padded.reshape(n, -1, size)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCodes:
    """A weight of N rows and K inputs on a grid.

    Attributes:
        grid: What numbers it may have.
        codes: (N, K).
        zero: (N, blocks).
        multiplier: (N, blocks).
        scale: (N,), positive.
    """

    grid: BlockGrid
    codes: NDArray[np.uint8]
    zero: NDArray[np.uint8]
    multiplier: NDArray[np.uint8]
    scale: NDArray[np.float32]

    @property
    def steps(self) -> NDArray[np.float32]:
        """The step of each block, (N, blocks)."""
        return np.multiply(self.multiplier, self.scale[:, np.newaxis], dtype=np.float32)

    @property
    def integers(self) -> NDArray[np.int16]:
        """``(c - z) m``, the weight in units of its row's scale, (N, K)."""
        k = self.codes.shape[1]
        zero = self.grid.spread(self.zero, k).astype(np.int16)
        return (self.codes - zero) * self.grid.spread(self.multiplier, k).astype(np.int16)

    def dequantized(self) -> NDArray[np.float32]:
        """Return the numbers that the codes stand for, (N, K), as a float32 runtime computes them."""
        k = self.codes.shape[1]
        zero = self.grid.spread(self.zero, k)
        centred = np.subtract(self.codes, zero, dtype=np.float32)
        return np.multiply(centred, self.grid.spread(self.steps, k), dtype=np.float32)

    def widened(self, rows: Array, least: Array) -> "BlockCodes":
        """Return the same codes with no scale below `least`; the rows of which that was so are rounded again, with one step for all blocks.

        Args:
            rows: The weight, (N, K).
            least: Of each row, (N,).
        """
        wide = self.scale < least
        scale = np.where(wide, least, self.scale).astype(np.float32)
        multiplier = np.where(wide[:, np.newaxis], np.uint8(1), self.multiplier)
        found = replace(self, scale=scale, multiplier=multiplier)
        codes = np.where(wide[:, np.newaxis], nearest_codes(rows, found), self.codes)
        return replace(found, codes=codes)

    @classmethod
    def joined(cls, parts: "list[BlockCodes]") -> "BlockCodes":
        """Return the rows of all parts, one after the other."""
        if len(parts) == 1:
            return parts[0]
        names = ("codes", "zero", "multiplier", "scale")
        arrays = {name: np.concatenate([getattr(p, name) for p in parts]) for name in names}
        return cls(grid=parts[0].grid, **arrays)


def as_rows(array: Array, axis: int) -> Array:
    """Return a weight as a matrix: one row for each index of an axis, the other axes in their order."""
    return np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)


def from_rows(rows: Array, shape: tuple[int, ...], axis: int) -> Array:
    """Undo `as_rows`.

    Args:
        rows: (N, K).
        shape: Of the weight.
        axis: That of the rows.
    """
    axis %= len(shape)
    rest = (*shape[:axis], *shape[axis + 1 :])
    return np.ascontiguousarray(np.moveaxis(rows.reshape(shape[axis], *rest), 0, axis))


def shrunk(moments: Array, seen: int, *, own: bool = False) -> Floats:
    """Return moments that believe less in what few rows showed.

        H' = (1 - l) H + l diag(H),  l = K / (2 rows), at most 1/2;    then 1 % of the mean of the diagonal is added to it

    With as many rows as inputs, products of different inputs are noise: of a language model in 4 bits the divergence from float fell
    from 0.076 to 0.048 with 512 tokens, where rounding to nearest has 0.075; with 8,192 tokens it costs nothing.

    Args:
        moments: H, (K, K).
        seen: Rows that it is the mean of.
        own: The caller needs them no more: they are changed where they are.
    """
    h = np.asarray(moments, np.float64) if own else np.array(moments, np.float64)
    k = len(h)
    share = min(_MOST_SHRUNK, _MOST_SHRUNK * k / max(1, seen))
    diagonal = h.diagonal().copy()
    mean = float(diagonal.mean()) if k else 0.0
    h *= 1 - share
    # An input that is always zero gets a weight of its own: any code of it is as good as any other.
    h[np.arange(k), np.arange(k)] = diagonal + (_DAMPING * mean if mean > 0 else 1.0)
    return h


def solve_blocks(
    rows: Array,
    grid: BlockGrid,
    moments: Array,
    carries: Carries | None = None,
    *,
    method: FitMethod = "mse",
) -> BlockCodes:
    """Find codes, zeros and steps of a weight that keep ``e H e^T`` of each row small.

    Rounded in order of falling inputs, then moved one at a time. Weights that are not large are rounded once more with the steps that this led to, and moved again; of the
    two each row keeps the better, which takes 2 to 4 % off the error.

    Args:
        rows: The weight, or some of its rows, (N, K).
        grid: Which numbers it may have.
        moments: H, (K, K), positive definite (`shrunk`).
        carries: The same, factored (`carries_of`), where several calls share them.
        method: As of `fit_blocks`.
    """
    factored = carries_of(moments) if carries is None else carries
    work = rows.shape[0] * rows.shape[1] ** 2
    sweeps = _SWEEPS if work < _LONG else _SWEEPS // 2
    parts = []
    for some in _chunks(rows):
        part = np.asarray(rows[some], np.float32)
        start = fit_blocks(part, grid, moments.diagonal(), method)
        found = descend(part, round_blocks(part, start, factored), moments, sweeps)
        if work < _LONG:
            again = descend(part, round_blocks(part, found, factored), moments, sweeps)
            found = _better(part, found, again, moments)
        parts.append(found)
    return BlockCodes.joined(parts)


def _better(rows: Floats, first: BlockCodes, second: BlockCodes, moments: Array) -> BlockCodes:
    """Return the rows with less error of two."""
    lost = [output_error(rows - one.dequantized(), moments) for one in (first, second)]
    own = lost[1] < lost[0]
    wide = own[:, np.newaxis]
    return BlockCodes(
        grid=first.grid,
        codes=np.where(wide, second.codes, first.codes),
        zero=np.where(wide, second.zero, first.zero),
        multiplier=np.where(wide, second.multiplier, first.multiplier),
        scale=np.where(own, second.scale, first.scale),
    )


def _chunks(rows: Array, numbers: int = _NUMBERS) -> Iterator[slice]:
    step = max(1, numbers // max(1, rows.shape[1]))
    return (slice(start, start + step) for start in range(0, max(1, rows.shape[0]), step))


def fit_blocks(
    rows: Array,
    grid: BlockGrid,
    importance: Array | None = None,
    method: FitMethod = "mse",
) -> BlockCodes:
    """Choose steps and zeros of a weight, and round it to the nearest codes.

    Args:
        rows: The weight, (N, K).
        grid: Which numbers it may have.
        importance: Of the squared error of each input, (K,): the diagonal of H; None: all alike.
        method: "minmax" cuts nothing off. "mse" tries narrower ranges of each block and takes the one with the least error. "hqq"
            moves steps and zeros to where most weights lose least, whatever the few large ones lose (half-quadratic).
    """
    share = None if importance is None else np.asarray(importance, np.float32).reshape(1, -1)
    weights = None if share is None else grid.blocked(share)
    parts = []
    for some in _chunks(rows, _CACHED):
        part = np.asarray(rows[some], np.float32)
        blocks = grid.blocked(part)
        step, zero = _chosen(blocks, weights, grid, method)
        multiplier, scale = _multipliers(blocks, step, zero, weights, grid)
        empty = BlockCodes(
            grid=grid,
            codes=np.zeros(part.shape, np.uint8),
            zero=zero.astype(np.uint8),
            multiplier=multiplier,
            scale=scale,
        )
        parts.append(replace(empty, codes=nearest_codes(part, empty)))
    return BlockCodes.joined(parts)


def nearest_codes(rows: Array, like: BlockCodes) -> NDArray[np.uint8]:
    """Return the codes nearest to a weight (N, K), with the steps and zeros of another that has as many rows."""
    grid, k = like.grid, rows.shape[1]
    scaled = np.divide(rows, grid.spread(like.steps, k), dtype=np.float64)
    codes: Array = np.clip(np.rint(scaled + grid.spread(like.zero, k)), 0, grid.top)
    return codes.astype(np.uint8)


def keep_sums(rows: Array, found: BlockCodes) -> BlockCodes:
    """Move the codes that stand nearest to a tie by one step, until the sum of each row is kept to half a step.

    What a weight multiplies has a mean as a rule, behind a Relu always: a row whose sum has moved is shifted by it (`quantkit.numerics.weights`).

    Args:
        rows: The weight, (N, K).
        found: Its nearest codes.
    """
    grid, k = found.grid, rows.shape[1]
    step = grid.spread(found.steps.astype(np.float64), k)
    error = rows - found.dequantized()
    missing = error.sum(axis=1, dtype=np.float64)
    side = np.where(missing < 0, -1, 1)[:, np.newaxis]
    stuck = np.where(side > 0, found.codes == grid.top, found.codes == 0)
    near = np.where(stuck, -np.inf, error * side / step)
    order = np.argsort(-near, axis=1, kind="stable")
    steps = np.take_along_axis(np.broadcast_to(step, rows.shape), order, axis=1)
    # A step is taken while that brings the sum nearer: half of it counts less than what is missing.
    taken = np.cumsum(steps, axis=1) - steps / 2 < np.abs(missing)[:, np.newaxis]
    moves = np.zeros(rows.shape, np.int16)
    np.put_along_axis(moves, order, taken.astype(np.int16) * side.astype(np.int16), axis=1)
    moves[stuck] = 0
    return replace(found, codes=(found.codes + moves).astype(np.uint8))


def _multipliers(
    blocks: Floats, step: Floats, zero: Floats, weights: Floats | None, grid: BlockGrid
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Write steps (N, blocks) as small integers times one scale per row: of the two next to a step the one that loses less."""
    if grid.largest == 1 or step.shape[1] == 1:
        return np.ones(step.shape, np.uint8), storable_scale(step.max(axis=1))
    scale = storable_scale(step.max(axis=1) / grid.largest)
    wide = scale[:, np.newaxis].astype(np.float64)
    below = np.clip(np.floor(step / wide), 1, grid.largest)
    above = np.minimum(below + 1, grid.largest)
    lost = [_lost(blocks, m * wide, zero, weights, grid) for m in (below, above)]
    return np.where(lost[1] < lost[0], above, below).astype(np.uint8), scale


def _chosen(
    blocks: Floats, weights: Floats | None, grid: BlockGrid, method: FitMethod
) -> tuple[Floats, Floats]:
    """Return step and zero of each block of (N, blocks, size)."""
    low, high = np.minimum(blocks.min(axis=-1), 0), np.maximum(blocks.max(axis=-1), 0)
    best_step, best_zero = _affine(low, high, grid)
    if method == "hqq":
        return _half_quadratic(blocks, best_step, best_zero, grid)
    if method == "minmax":
        return best_step, best_zero
    shares = _SHARES if grid.bits < _FINE else _FEW_SHARES
    # Both ends by themselves: what is far out on one side need not be on the other.
    ends = [(a, b) for a in shares for b in (shares if not grid.symmetric else (a,))]
    least = np.full(low.shape, np.inf)
    for down, up in ends:
        step, zero = _affine(down * low, up * high, grid)
        lost = _lost(blocks, step, zero, weights, grid)
        better = lost < least
        best_step, best_zero = np.where(better, step, best_step), np.where(better, zero, best_zero)
        least = np.where(better, lost, least)
    return best_step, best_zero


def _affine(low: Floats, high: Floats, grid: BlockGrid) -> tuple[Floats, Floats]:
    """Return step and zero that map [low, high] onto the codes; an empty range gets a step of 1."""
    if grid.symmetric:
        step = np.maximum(-low / grid.middle, high / (grid.top - grid.middle))
        return _positive(step), np.full(low.shape, float(grid.middle))
    step = _positive((high - low) / grid.top)
    return step, np.clip(np.rint(-low / step), 0, grid.top)


def _positive(step: Floats) -> Floats:
    return np.where(step < _TINY, 1.0, step)


def _lost(
    blocks: Floats, step: Floats, zero: Floats, weights: Floats | None, grid: BlockGrid
) -> Floats:
    """Return the squared error of each block of (N, blocks, size); in place, as it is asked for a hundred times."""
    step, zero = step[..., np.newaxis], zero[..., np.newaxis]
    error = blocks / step
    error += zero
    np.rint(error, out=error)
    np.clip(error, 0, grid.top, out=error)
    error -= zero
    error *= step
    np.subtract(blocks, error, out=error)
    np.square(error, out=error)
    if weights is not None:
        error *= weights
    lost: Floats = error.sum(axis=-1)
    return lost


def _half_quadratic(
    blocks: Floats, step: Floats, zero: Floats, grid: BlockGrid
) -> tuple[Floats, Floats]:
    """Return steps and zeros with a small ``sum |w - w'|^0.7``: most weights lose little, whatever the few large ones lose.

    The error is split in two, as HQQ (Badri and Shaji, 2023) does it: what a norm below 1 keeps of it (a soft threshold, in steps), and a rest,
    of which the squares are made small by moving step and zero. The threshold falls from round to round. Zeros are integers here, which kernels
    want, so that moving them alone would change next to nothing: the step moves with them, and the best of all rounds counts.
    """
    power, weight, growth, rounds = 0.7, 2.0, 1.3, 12
    best_step, best_zero = step, zero
    least = np.full(step.shape, np.inf)
    for _ in range(rounds):
        wide, middle = step[..., np.newaxis], zero[..., np.newaxis]
        codes = np.clip(np.rint(blocks / wide + middle), 0, grid.top)
        error = blocks / wide - (codes - middle)
        size = np.abs(error)
        lost = ((size * wide) ** power).sum(axis=-1)
        better = lost < least
        best_step, best_zero = np.where(better, step, best_step), np.where(better, zero, best_zero)
        least = np.where(better, lost, least)
        with np.errstate(divide="ignore"):  # the threshold of an error of 0 is infinite
            kept = np.sign(error) * np.maximum(size - size ** (power - 1) * (power / weight), 0)
        wanted = blocks - kept * wide
        if not grid.symmetric:
            zero = np.clip(np.rint((codes - wanted / wide).mean(axis=-1)), 0, grid.top)
        steps = codes - zero[..., np.newaxis]
        fitted = (wanted * steps).sum(axis=-1) / np.maximum((steps**2).sum(axis=-1), 1)
        step = np.where(fitted > _TINY, fitted, step)
        weight *= growth
    return best_step, best_zero


def round_blocks(rows: Array, start: BlockCodes, carries: Carries) -> BlockCodes:
    """Round a weight so that ``e H e^T`` of each row stays small, with the steps and zeros it has.

    Args:
        rows: The weight, (N, K).
        start: Its steps and zeros; its codes are not looked at.
        carries: H, factored (`quantkit.numerics.second_order.carries_of`).
    """
    # Each target is the weight with what earlier errors add to it. The order is that of falling H, two neighbours at a time; steps belong
    # to blocks of the weight as it lies, so that the order changes nothing in the file. Weights lie (K, N) here: each step of the loop
    # works on a contiguous row.
    grid, k = start.grid, rows.shape[1]
    order, carry = carries.order, carries.carry
    if (
        len(order) > k
    ):  # an odd K was filled up with an input that has nothing to do with the others
        own = order < k
        order, carry = order[own], carry[np.ix_(own, own)]
    columns = np.ascontiguousarray(np.asarray(rows, np.float64).T[order])
    at = order // grid.size if grid.size else np.zeros(k, np.intp)
    steps = np.ascontiguousarray(start.steps.T.astype(np.float64))
    zeros = np.ascontiguousarray(start.zero.T.astype(np.float64))
    errors, codes = np.zeros_like(columns), np.empty(columns.shape, np.uint8)
    for first in range(0, k, _TOGETHER):
        last = min(first + _TOGETHER, k)
        targets = columns[first:last].copy()
        if first:
            targets += carry[first:last, :first] @ errors[:first]
        for i in range(first, last):
            t = targets[i - first]
            if i > first:
                t = t + carry[i, first:i] @ errors[first:i]
            step, zero = steps[at[i]], zeros[at[i]]
            c = np.clip(np.rint(t / step + zero), 0, grid.top)
            codes[i] = c
            errors[i] = columns[i] - (c - zero) * step
    found = np.empty_like(codes)
    found[order] = codes
    return replace(start, codes=np.ascontiguousarray(found.T))


def descend(rows: Array, start: BlockCodes, moments: Array, sweeps: int = _SWEEPS) -> BlockCodes:
    """Move codes, zeros and steps one at a time to where ``e H e^T`` of their row is least while all others stay.

    The error never grows. Each sweep goes over all blocks: first every code of a block, then its zero, then its multiplier; where a row is
    one block, its scale comes last.

    Args:
        rows: The weight, (N, K).
        start: Where to begin.
        moments: H, (K, K), positive definite.
        sweeps: At most so many; it ends when one changes nothing.
    """
    # Weights lie (K, N): each move works on contiguous rows. ``H e`` is computed for a stretch of inputs at a time, in one large product; what a block of them changes is
    # taken off the rest of the stretch by another, and only within a block by single moves. In float32: twice as fast, and ``H e`` is computed afresh, so that errors do
    # not add up.
    grid, k = start.grid, rows.shape[1]
    h = np.asarray(moments, np.float32)
    work = _Descent(rows, start)
    size = grid.size or _TILE
    stretch = size * max(1, _TOGETHER // size)
    for _ in range(sweeps):
        moved = False
        for first in range(0, k, stretch):
            end = min(first + stretch, k)
            gradient = h[first:end] @ work.error
            for low in range(first, end, size):
                high = min(low + size, end)
                own = gradient[low - first : high - first]
                before = work.error[low:high].copy()
                moved |= work.move(low, high, np.ascontiguousarray(h[low:high, low:high]), own)
                if high < end:
                    change = before - work.error[low:high]
                    gradient[high - first :] -= h[high:end, low:high] @ change
        if grid.count(k) == 1:
            moved |= work.refit_scale(h)
        if not moved:
            break
    return work.codes_found()


class _Descent:
    """A weight whose codes are moved: (K, N) each, its numbers per block (blocks, N)."""

    def __init__(self, rows: Array, start: BlockCodes) -> None:
        grid, k = start.grid, rows.shape[1]
        self.grid = grid
        self.codes = np.ascontiguousarray(start.codes.T.astype(np.float32))
        self.zero = np.ascontiguousarray(start.zero.T.astype(np.float32))
        self.multiplier = np.ascontiguousarray(start.multiplier.T.astype(np.float32))
        self.scale = start.scale.astype(np.float32)
        step, zero = (
            grid.spread(array.T, k).T for array in (self.multiplier * self.scale, self.zero)
        )
        self.error = np.ascontiguousarray(rows.T - (self.codes - zero) * step, np.float32)

    def codes_found(self) -> BlockCodes:
        """Return what came of it."""
        return BlockCodes(
            grid=self.grid,
            codes=np.ascontiguousarray(self.codes.T.astype(np.uint8)),
            zero=np.ascontiguousarray(self.zero.T.astype(np.uint8)),
            multiplier=np.ascontiguousarray(self.multiplier.T.astype(np.uint8)),
            scale=self.scale.astype(np.float32),
        )

    def move(self, low: int, high: int, h: Floats, gradient: Floats) -> bool:
        """Move codes low to high, and zero and multiplier where they are a block; say whether any moved.

        Args:
            low: The first input.
            high: The one behind the last.
            h: Their own part of H.
            gradient: ``H e`` of them, kept up to date for what is changed here.
        """
        b = low // self.grid.size if self.grid.size else 0
        moved = self._move_codes(slice(low, high), b, h, gradient)
        if self.grid.size:
            moved |= self._move_zero(slice(low, high), b, h, gradient)
            moved |= self._move_multiplier(slice(low, high), b, h, gradient)
        return moved

    def _move_codes(self, own: slice, b: int, h: Floats, gradient: Floats) -> bool:
        """Move each code once.

        Adding d steps s to code j changes the error by ``d^2 s^2 H_jj - 2 d s g_j``, which is least at ``g_j / (s H_jj)``.
        """
        moved = False
        step = self.multiplier[b] * self.scale
        for j, row in enumerate(range(own.start, own.stop)):
            codes = self.codes[row]
            best = np.rint(codes + gradient[j] / (step * h[j, j]))
            change = np.clip(best, 0, self.grid.top) - codes
            if not change.any():
                continue
            moved = True
            codes += change
            change *= step
            self.error[row] -= change
            gradient -= h[:, j, np.newaxis] * change
        return moved

    def _move_zero(self, own: slice, b: int, h: Floats, gradient: Floats) -> bool:
        total = float(h.sum())
        if self.grid.symmetric or not total > 0:
            return False
        zero, step = self.zero[b], self.multiplier[b] * self.scale
        best = np.rint(zero - gradient.sum(axis=0) / (step * total))
        change = np.clip(best, 0, self.grid.top) - zero
        if not change.any():
            return False
        zero += change
        self.error[own] += change * step
        gradient += h.sum(axis=1)[:, np.newaxis] * (change * step)
        return True

    def _move_multiplier(self, own: slice, b: int, h: Floats, gradient: Floats) -> bool:
        if self.grid.largest == 1:
            return False
        centred, multiplier = self.codes[own] - self.zero[b], self.multiplier[b]
        through = h @ centred
        power = np.einsum("gn,gn->n", through, centred)
        along = np.einsum("gn,gn->n", gradient, centred)
        wanted = np.divide(along, self.scale * power, out=np.zeros_like(along), where=power > 0)
        change = np.clip(np.rint(multiplier + wanted), 1, self.grid.largest) - multiplier
        if not change.any():
            return False
        multiplier += change
        change *= self.scale
        self.error[own] -= centred * change
        gradient -= through * change
        return True

    def refit_scale(self, h: Floats) -> bool:
        """Fit the scales of rows that are one block to their codes; say whether any changed."""
        centred = (self.codes - self.zero) * self.multiplier
        through = h @ centred
        power = np.einsum("kn,kn->n", through, centred)
        along = np.einsum("kn,kn->n", through, self.error)
        change = np.divide(along, power, out=np.zeros_like(along), where=power > 0)
        fitted = (self.scale + change).astype(np.float32)
        change = np.where(fitted > _TINY, fitted, self.scale) - self.scale
        self.scale += change
        self.error -= centred * change
        return bool((np.abs(change) > _SETTLED * self.scale).any())
