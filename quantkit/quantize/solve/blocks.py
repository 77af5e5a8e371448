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
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
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
    solve_blocks,
)
from quantkit.quantize.plan import Plan
from quantkit.quantize.plan.model import WeightPlan
from quantkit.quantize.solve.block_moments import Cost, Moments
from quantkit.quantize.solve.stream import Feeds, Stream, stretches_of
from quantkit.runtime.pieces import read_structure
from quantkit.runtime.taps import read_tensors
from quantkit.spec import PerAxis

Array = NDArray[Any]
Floats = NDArray[np.float64]

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
        corrected: How much of the error of the layers before it a layer takes off. A half is best for language models, all of it for convolutions.
        damps: Believe less in moments by a larger diagonal, as other weights of static quantization, instead of smaller products of different inputs: of
            convolutions, whose biases take up the means, that loses less.
        workers: Processes.
        memory: Bytes that moments may take; a product whose inputs are too many is solved by the diagonal of its moments alone.
        keep_sums: Of weights whose inputs nobody has seen, keep the sum of each row: what they multiply has a mean as a rule, behind a Relu always.
    """

    method: FitMethod = "mse"
    sequential: bool = True
    corrected: float = 0.5
    damps: bool = False
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Refit:
    """Biases to refit while weights are solved for, so that each channel keeps its mean behind quantized layers.

        b' = b + W E[x0] - W' E[x]

    Attributes:
        weights: What weights that have no codes stand for, by tensor.
        nodes: The products whose biases are refitted.
        names: The node that each bias belongs to, by tensor.
        biases: By node; what is refitted is replaced here.
    """

    weights: Mapping[str, Array]
    nodes: Collection[str]
    names: Mapping[str, str]
    biases: MutableMapping[str, NDArray[np.float32]]


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
    refit: Refit | None = None,
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
        refit: Biases to refit, and weights of other kinds; None: biases stay.

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
        tensors=_constants(model, {w.tensor for w in plan.weights} | {*_names_of(refit)}),
        refit=refit,
    )
    products = tuple(products)
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
    if refit is not None:
        alone += [p for p in products if p.node in refit.nodes and p.weight in refit.weights]
    monitor.name("Solving for weights")
    monitor.start(len(alone) + len(shared), "weights")
    if shared:
        job.solve_shared({w: by_weight[w] for w in shared}, uses)
    job.solve_alone(alone, folder)
    return job.notes


def _names_of(refit: Refit | None) -> Iterable[str]:
    """Return the tensors that are not as in the float model though they have no codes."""
    return () if refit is None else (*refit.weights, *refit.names)


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

    def solved(self, settings: BlockSettings, cost: "Cost | None" = None) -> BlockCodes:
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
    refit: Refit | None = None
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
        moments = {name: self._moments(found[:1]) for name, found in left.items()}
        read = {p.reads for found in left.values() for p in found}
        for found in read_tensors(self.path, read, samples):
            for name, products in left.items():
                for product in products:
                    array = found.get(product.reads)
                    if array is not None:
                        moments[name].add(array, array, _most(product, rows))
        for name, products in left.items():
            self._check_values(name, moments[name])
            looked_up = uses[name] - len(products)
            self._solve(name, moments[name].cost(self.settings.corrected, looked_up=looked_up))

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
            alike = defaultdict[tuple[Window, bool], list[Product]](list)
            for product in found:
                alike[product.window, self._refits(product)].append(product)
            moments = [(self._moments(own), own) for own in alike.values()]
            for exact, rough in stream.advance():
                for seen, own in moments:
                    seen.add(exact, rough, _most(own[0], rows))
            self.monitor.tick(len(by_stop[stretch.reads]) - len(found))
            for seen, own in moments:
                self._check_values(own[0].weight, seen)
                cost = seen.cost(self.settings.corrected, damps=self.settings.damps)
                for product in own:
                    if self._has_codes(product.weight):
                        self._solve(product.weight, cost)
                    if self._refits(product) and seen.count:
                        self._refit(product, seen.means)

    def store_names(self) -> list[str]:
        """Return the tensors that are not as in the float model in what is run, now or later."""
        return [*filter(self._has_codes, self.tensors), *_names_of(self.refit)]

    def _has_codes(self, tensor: str) -> bool:
        return tensor in self.plan.weight and self.plan.weight[tensor].blocks is not None

    def _floats(self, tensor: str, run: str) -> Array:
        own: Array = self.tensors[tensor].numpy()
        if run == "exact" or not self.settings.sequential:
            return own
        if tensor in self.store:
            return _Weight(self.plan.weight[tensor], self.tensors[tensor]).restored(
                self.store[tensor]
            )
        if self.refit is not None and tensor in self.refit.names:
            return self.refit.biases[self.refit.names[tensor]].reshape(own.shape)
        return own if self.refit is None else self.refit.weights.get(tensor, own)

    def _refits(self, product: Product) -> bool:
        return self.refit is not None and product.node in self.refit.nodes

    def _refit(self, product: Product, means: Floats) -> None:
        """Let a bias keep the mean of each channel; its weight is solved for."""
        assert self.refit is not None  # noqa: S101 - it is asked for
        groups, inputs = means.shape[1:]
        weights = (
            as_rows(self._floats(product.weight, run), product.layout.channel)
            for run in ("exact", "rough")
        )
        exact, rough = (
            np.einsum("gnk,gk->gn", rows.reshape(groups, -1, inputs), own).reshape(-1)
            for rows, own in zip(weights, means, strict=True)
        )
        bias = self.tensors[product.bias].numpy().reshape(-1)
        self.refit.biases[product.node] = (bias + exact - rough).astype(np.float32)

    def _moments(self, products: Sequence[Product]) -> Moments:
        """Return what is to be observed for products that read the same tensor in the same way."""
        first = products[0]
        centred = self._refits(first)
        if not any(self._has_codes(p.weight) for p in products):
            return Moments(window=first.window, detail="mean", centred=centred)
        inputs, groups = first.layout.inputs, first.layout.group
        takes = _FLOAT64 * groups * inputs**2 * _MATRICES
        if takes <= self.settings.memory:
            return Moments(window=first.window, centred=centred)
        self.notes.append(
            f"'{first.node}' has {inputs} inputs, whose moments take more memory than there is: its weight is rounded by how large "
            "each input is."
        )
        return Moments(window=first.window, detail="diagonal", centred=centred)

    def _solve(self, tensor: str, cost: Cost | None) -> None:
        weight = _Weight(self.plan.weight[tensor], self.tensors[tensor])
        self.store[tensor] = weight.solved(self.settings, cost)
        self.monitor.tick(1)

    def _check_values(self, tensor: str, moments: Moments) -> None:
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
