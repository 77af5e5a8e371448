"""Codes of all weights of a plan in blocks: blindly, or from the moments of what they multiply, one group of products after the other.

With samples, for products that read the same tensor,

    H = E[x x^T],   C = E[(x0 - x) x^T]        x0 in the float model, x behind the weights that are quantized already
    W' = W + a W C H^-1                        what W would have to be to take off a part a of the error that comes in

and W' is solved for under H (`quantkit.numerics.blocks.solve_blocks`). A half of the error is best: all of it would be paid for by what the layer itself then loses.

A weight that several products read, or that rows are looked up in as well (a head that is its embedding), is solved first, from the sum of the moments of the float
model. What is looked up counts as much as what is multiplied: the mean of H's diagonal is added to it once more (a tied table of a language model in 5 bits: divergence
0.0058 instead of 0.0067).

Solved codes lie in a folder, a file per weight: they are too many to be held, and a run that was killed goes on with them.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators import Window
from quantkit.calibration.forks import forked_map
from quantkit.calibration.monitor import Monitor
from quantkit.errors import DataError
from quantkit.model.graph.products import Product
from quantkit.numerics.blocks import (
    BlockCodes,
    BlockGrid,
    FitMethod,
    as_rows,
    fit_blocks,
    from_rows,
    keep_sums,
    shrunk,
    solve_blocks,
)
from quantkit.numerics.second_order import Carries, carries_of
from quantkit.quantize.plan import Plan
from quantkit.quantize.plan.model import WeightPlan
from quantkit.quantize.solve.stream import Feeds, Stream, stretches_of
from quantkit.runtime.pieces import read_structure
from quantkit.runtime.taps import read_tensors
from quantkit.spec import PerAxis

Array = NDArray[Any]
Floats = NDArray[np.float64]

_CORRECTED = 0.5  # of the error that comes in
_ROWS = 1 << 15  # of activations that moments are taken of, in all
_FEWEST_ROWS, _POSITIONS = 64, 64  # of a sample; of an image, whose neighbours are alike
_CHUNK = 1 << 21  # weights that one worker solves at a time
_MATRICES = 4  # of K x K numbers that solving a weight holds
_FLOAT64 = 8
_ENOUGH = 4  # rows for each input, from which on more bring little


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSettings:
    """How codes are solved for.

    Attributes:
        method: How ranges of blocks are chosen.
        sequential: Fit each layer to what quantized layers before it deliver.
        workers: Processes.
        memory: Bytes that moments may take; a product whose inputs are too many is solved by the diagonal of its moments alone.
        keep_sums: Of weights whose inputs nobody has seen, keep the sum of each row: what they multiply has a mean as a rule, behind a Relu always.
    """

    method: FitMethod = "mse"
    sequential: bool = True
    workers: int = 1
    memory: int = 1 << 30
    keep_sums: bool = False


def solve_blind(
    model: ir.Model,
    plan: Plan,
    store: MutableMapping[str, BlockCodes],
    settings: BlockSettings,
    monitor: Monitor,
) -> None:
    """Round every weight that has no codes yet, without having seen what it multiplies.

    Args:
        model: The float model that was planned.
        plan: What was decided.
        store: Where codes are, and go.
        settings: How ranges are chosen, and by how many processes.
        monitor: Told of each weight that is done.
    """
    _round(model, [w for w in plan.weights if w.blocks is not None], store, settings, monitor)


def _round(
    model: ir.Model,
    weights: Iterable[WeightPlan],
    store: MutableMapping[str, BlockCodes],
    settings: BlockSettings,
    monitor: Monitor,
) -> None:
    left = [w for w in weights if w.tensor not in store]
    if not left:
        return
    arrays = _constants(model, {w.tensor for w in left})
    monitor.name("Rounding weights")
    monitor.start(len(left), "weights")
    for planned in left:
        weight = _Weight(planned, arrays[planned.tensor])
        store[planned.tensor] = weight.solved(settings)
        monitor.tick(1)


def solve_in_order(  # noqa: PLR0913 - one parameter per question
    model: ir.Model,
    path: Path,
    plan: Plan,
    products: Iterable[Product],
    feeds: Callable[[], Iterator[Feeds]],
    store: MutableMapping[str, BlockCodes],
    settings: BlockSettings,
    folder: Path,
    monitor: Monitor,
) -> list[str]:
    """Solve weights from what products read, in the order in which the graph computes; return notes.

    Weights that no product of the main graph reads are rounded first, without data. What has codes already is not solved again; it is run, as later layers read what it
    makes.

    Args:
        model: The float model that was planned.
        path: The same, in a file.
        plan: What was decided.
        products: Its products.
        feeds: Returns the samples, the same ones each time.
        store: Where codes are, and go.
        settings: How they are solved for.
        folder: Where tensors are kept meanwhile.
        monitor: Told of each weight that is done.

    Raises:
        An exception in `quantkit.runtime.session.RUNTIME_ERRORS`: a part of the model does not run.
        DataError: What a weight multiplies is never finite.
    """
    job = _Job(
        path=path,
        plan=plan,
        store=store,
        settings=settings,
        monitor=monitor,
        feeds=feeds,
        tensors=_constants(model, {w.tensor for w in plan.weights}),
    )
    by_weight = defaultdict[str, list[Product]](list)
    for product in products:
        own = plan.weight.get(product.weight)
        if own is not None and own.blocks is not None:
            by_weight[product.weight].append(product)
    uses = _uses(model, by_weight)
    inner = {p.weight for found in by_weight.values() for p in found if p.inside}
    shared = {w for w, found in by_weight.items() if len(found) > 1 or uses[w] > len(found)} - inner
    alone = [found[0] for w, found in by_weight.items() if w not in shared | inner]
    seen = shared | {product.weight for product in alone}
    others = [w for w in plan.weights if w.blocks is not None and w.tensor not in seen]
    _round(model, others, store, settings, monitor)
    monitor.name("Solving for weights")
    monitor.start(len(alone) + len(shared), "weights")
    if shared:
        job.solve_shared({w: by_weight[w] for w in shared}, uses)
    job.solve_alone(alone, folder)
    return job.notes


def _uses(model: ir.Model, names: Iterable[str]) -> dict[str, int]:
    """Return how many nodes read each weight, as it is or through a Transpose."""
    wanted, found = set(names), dict[str, int]()
    for graph in model.graphs():
        for name, value in graph.initializers.items():
            if name in wanted:
                readers = [use.node for use in value.uses()]
                through = [n for n in readers if n.op_type == "Transpose"]
                inner = sum(len(n.outputs[0].uses()) for n in through)
                found[name] = len(readers) - len(through) + inner
    return found


def _constants(model: ir.Model, names: set[str]) -> dict[str, ir.TensorProtocol]:
    return {
        name: value.const_value
        for graph in model.graphs()
        for name, value in graph.initializers.items()
        if name in names and value.const_value is not None
    }


def _plus(before: Floats | None, more: Array) -> Floats:
    """Return a sum, where it is: a matrix of thousands of inputs must not be there twice."""
    if before is None:
        return more.astype(np.float64)
    before += more
    return before


@dataclass(slots=True, kw_only=True)
class _Moments:
    """H and C of one way to read a tensor, (groups, K, K) each; of too many inputs the diagonal of H alone."""

    window: Window
    diagonal: bool
    second: Floats | None = None
    cross: Floats | None = None
    count: int = 0
    rows: int = 0
    strange: int = 0  # of the rows, which hold NaN or infinity in the float model

    def add(self, exact: Array, rough: Array, rows: int) -> None:
        """Take in what was read of one sample."""
        x0, x = (self._patches(array, rows) for array in (exact, rough))
        finite = np.isfinite(x0).all(axis=(0, 2))
        self.rows += x0.shape[1]
        self.strange += x0.shape[1] - int(finite.sum())
        whole = finite & np.isfinite(x).all(axis=(0, 2))
        x0, x = x0[:, whole], x[:, whole]
        self.count += x.shape[1]
        if self.diagonal:
            power = np.square(x, dtype=np.float64).sum(axis=1)
            self.second = power if self.second is None else self.second + power
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

    def cost(self, looked_up: int = 0) -> "_Cost | None":
        """Return what errors cost, and forget the moments: of thousands of inputs they are the most that is in memory.

        Args:
            looked_up: How many look rows up in the weight, for each of which an error counts as much as in a product.
        """
        second, cross, count = self.second, self.cross, self.count
        self.second = self.cross = None
        if second is None or not count:
            return None
        second /= count
        if self.diagonal:
            return _Cost(groups=len(second), powers=second)
        for h in second:
            shrunk(h, count, own=True)
            if looked_up:
                h[np.diag_indices(len(h))] += looked_up * h.diagonal().mean()
        shift = []
        if cross is not None:
            cross *= _CORRECTED / count
            shift = [_solved(h, c) for h, c in zip(second, cross, strict=True)]
        carries = [carries_of(h) for h in second]
        return _Cost(groups=len(second), second=second, carries=carries, shift=shift)


def _solved(h: Floats, c: Floats) -> Floats:
    """Return ``C H^-1``, where C is."""
    from scipy.linalg import cho_factor, cho_solve

    found: Floats = cho_solve(
        cho_factor(h, check_finite=False), c.T, overwrite_b=True, check_finite=False
    )
    return found.T


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cost:
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


@dataclass(frozen=True, slots=True)
class _Weight:
    """A weight that is to be solved for."""

    plan: WeightPlan
    tensor: ir.TensorProtocol

    @property
    def axis(self) -> int:
        """That of its rows."""
        granularity = self.plan.spec.granularity
        assert isinstance(granularity, PerAxis)  # noqa: S101 - what is in blocks has rows
        return granularity.axis

    def rows(self) -> Array:
        """Return it as a matrix."""
        return as_rows(self.tensor.numpy(), self.axis)

    def restored(self, codes: BlockCodes) -> Array:
        """Return what codes stand for, in its own layout."""
        shape = tuple(int(n) for n in self.tensor.shape.numpy())
        return from_rows(codes.dequantized(), shape, self.axis)

    def solved(self, settings: BlockSettings, cost: "_Cost | None" = None) -> BlockCodes:
        """Return its codes, found by several processes.

        Args:
            settings: How.
            cost: What its errors cost, by what it multiplies; None: not seen.
        """
        rows, grid = self.rows(), self.plan.blocks
        assert grid is not None  # noqa: S101 - it is planned in blocks
        if cost is None:
            return self._blind(rows, grid, settings)

        def solve(part: Array, g: int) -> BlockCodes:
            if cost.powers is not None:
                return fit_blocks(part, grid, cost.powers[g], settings.method)
            wanted = np.asarray(part, np.float64)
            if cost.shift:
                wanted = wanted + wanted @ cost.shift[g]
            h, carries = cost.second[g], cost.carries[g]
            return solve_blocks(wanted, grid, h, carries, method=settings.method)

        return self._in_parts(rows, cost.groups, settings, solve)

    def _blind(self, rows: Array, grid: BlockGrid, settings: BlockSettings) -> BlockCodes:
        """Return its codes without having seen what it multiplies."""

        def solve(part: Array, _: int) -> BlockCodes:
            found = fit_blocks(part, grid, None, settings.method)
            return keep_sums(part, found) if settings.keep_sums else found

        return self._in_parts(rows, 1, settings, solve)

    def _in_parts(
        self,
        rows: Array,
        groups: int,
        settings: BlockSettings,
        solve: Callable[[Array, int], BlockCodes],
    ) -> BlockCodes:
        """Solve some rows at a time, each with the moments of its group."""
        per_group = rows.shape[0] // groups
        # As many parts as there are processes: what is done for each input costs the less the more rows there are.
        step = max(1, min(_CHUNK // max(1, rows.shape[1]), -(-per_group // settings.workers)))
        parts = [
            (g, slice(g * per_group + first, g * per_group + min(first + step, per_group)))
            for g in range(groups)
            for first in range(0, per_group, step)
        ]
        found = forked_map(lambda one: solve(rows[one[1]], one[0]), parts, settings.workers)
        return BlockCodes.joined(found)


@dataclass(slots=True, kw_only=True)
class _Job:
    """Solves for the weights of one model."""

    path: Path
    plan: Plan
    store: MutableMapping[str, BlockCodes]
    settings: BlockSettings
    monitor: Monitor
    feeds: Callable[[], Iterator[Feeds]]
    tensors: Mapping[str, ir.TensorProtocol]
    notes: list[str] = field(default_factory=list)
    doubted: bool = False
    thin: bool = False

    def solve_shared(
        self, shared: Mapping[str, Sequence[Product]], uses: Mapping[str, int]
    ) -> None:
        """Solve weights that several read, from the sum of the moments in the float model."""
        left = {name: found for name, found in shared.items() if name not in self.store}
        self.monitor.tick(len(shared) - len(left))
        if not left:
            return
        samples = list(self.feeds())
        rows = _rows_of(len(samples))
        moments = {name: self._moments(found[0]) for name, found in left.items()}
        read = {p.reads for found in left.values() for p in found}
        for found in read_tensors(self.path, read, samples):
            for name, products in left.items():
                for product in products:
                    array = found.get(product.reads)
                    if array is not None:
                        moments[name].add(array, array, _most(product, rows))
        for name, products in left.items():
            self._check_values(name, moments[name])
            self._solve(name, moments[name].cost(looked_up=uses[name] - len(products)))

    def solve_alone(self, products: Sequence[Product], folder: Path) -> None:
        """Solve weights that one product reads each, in the order of the graph."""
        if not products:
            return
        structure = read_structure(self.path)
        by_stop = defaultdict[str, list[Product]](list)
        for product in products:
            by_stop[product.reads].append(product)
        stretches = stretches_of(structure, by_stop, self.store_names())
        stream = Stream(structure, stretches, self.feeds(), self._floats, folder)
        rows = _rows_of(stream.samples)
        for stretch in stretches:
            found = [p for p in by_stop[stretch.reads] if p.weight not in self.store]
            moments: dict[Window, _Moments] = {p.window: self._moments(p) for p in found}
            for exact, rough in stream.advance():
                for window, own in moments.items():
                    product = next(p for p in found if p.window == window)
                    own.add(exact, rough, _most(product, rows))
            self.monitor.tick(len(by_stop[stretch.reads]) - len(found))
            for window, own in moments.items():
                alike = [p.weight for p in found if p.window == window]
                self._check_values(alike[0], own)
                cost = own.cost()
                for name in alike:
                    self._solve(name, cost)

    def store_names(self) -> list[str]:
        """Return the weights that are quantized in what is run: those with codes now, or later."""
        return [w.tensor for w in self.plan.weights if w.blocks is not None]

    def _floats(self, tensor: str, run: str) -> Array:
        weight = _Weight(self.plan.weight[tensor], self.tensors[tensor])
        quantized = run == "rough" and self.settings.sequential and tensor in self.store
        return weight.restored(self.store[tensor]) if quantized else weight.tensor.numpy()

    def _moments(self, product: Product) -> _Moments:
        inputs, groups = product.layout.inputs, product.layout.group
        takes = _FLOAT64 * groups * inputs**2 * _MATRICES
        if takes <= self.settings.memory:
            return _Moments(window=product.window, diagonal=False)
        self.notes.append(
            f"'{product.node}' has {inputs} inputs, whose moments take more memory than there is: its weight is rounded by how large "
            "each input is."
        )
        return _Moments(window=product.window, diagonal=True)

    def _solve(self, tensor: str, cost: _Cost | None) -> None:
        weight = _Weight(self.plan.weight[tensor], self.tensors[tensor])
        self.store[tensor] = weight.solved(self.settings, cost)
        self.monitor.tick(1)

    def _check_values(self, tensor: str, moments: _Moments) -> None:
        """Refuse to fit a weight to nothing but NaN; say once that some of what was read is, or that there is little of it."""
        inputs = 0 if moments.second is None else moments.second.shape[-1]
        if moments.count < _ENOUGH * inputs and not self.thin:
            self.thin = True
            self.notes.append(
                f"Few samples: weight '{tensor}' has {inputs} inputs, and {moments.count} rows of them were seen. {_ENOUGH * inputs} and more make its rounding better."
            )
        if not moments.strange:
            return
        if moments.strange == moments.rows:
            raise DataError(
                f"What weight '{tensor}' multiplies held NaN or infinity in every row of all samples: check the preprocessing, or the model itself."
            )
        if not self.doubted:
            self.doubted = True
            self.notes.append(
                f"What weight '{tensor}' multiplies holds NaN or infinity in {moments.strange} of {moments.rows} rows, which are left out."
            )


def _rows_of(samples: int) -> int:
    """Return how many rows of each sample moments are taken of."""
    return max(_FEWEST_ROWS, _ROWS // max(1, samples))


def _most(product: Product, rows: int) -> int:
    return min(rows, _POSITIONS) if product.window.kernel else rows
