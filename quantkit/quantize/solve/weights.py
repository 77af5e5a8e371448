"""All weights of a plan, solved from the moments of what they multiply; biases with them.

The integers of a weight keep its product's output, not the weight itself:

    minimise  E |(W - Wq) x|^2 = tr (W - Wq) H (W - Wq)^T      H = E[x x^T], observed

in three steps, each of which can be left out: the scale of each channel, second-order rounding, and coordinate
descent on the integers, after which the scale is fitted again. Where a bias takes the mean away, H is the
covariance instead.

The scale of each output channel is chosen by the error that is left. A wide scale makes every step coarse. A narrow one clips the largest weights, or the pairs of
neighbours that would saturate together (`quantkit.numerics.pairs`). Which is better is decided
per channel by trying both ends and what is between them.

Weights are (..., N, K), scales (..., N), importance (..., K).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators import PatchMoments
from quantkit.calibration.calibration import Calibration
from quantkit.calibration.forks import forked_map
from quantkit.calibration.monitor import Monitor, Silent
from quantkit.calibration.requests import PatchesOf, Request
from quantkit.model.graph.products import Layout, Product
from quantkit.numerics.affine import storable_scale
from quantkit.numerics.blocks import BlockCodes, BlockGrid, solve_blocks
from quantkit.numerics.grids import grid_scales
from quantkit.numerics.pairs import PAIRED, Limits, pair_peak, round_pairs
from quantkit.numerics.second_order import carries_of, damped, damping_share, improve, round_carried
from quantkit.quantize.plan import Mode, Plan
from quantkit.quantize.plan.solved import SolvedIntegers, SolvedWeight
from quantkit.spec import PerAxis, PerBlock, PerTensor, QParams, QuantSpec

Array = NDArray[Any]
Floats = NDArray[np.float64]

_NARROWEST = 0.5  # of the scale that clips nothing
_STEPS = 32
_TINY = float(np.finfo(np.float32).tiny)

# Without having seen what it multiplies, a weight larger than this is rounded while it is written instead:
# solving holds all integers at once.
_BLIND = 1 << 22
_WIDEST = 8192  # K above which K x K numbers are too many
# Numbers that all matrices of moments together may have: making and factoring them takes time. Beyond that, weights are
# rounded without having seen what they multiply. ResNet-50 has 125 million.
_BUDGET = 1 << 27
# Multiplications that rounding with them may take: those of two layers of 5120 x 5120, or of ResNet-50 five times.
_WORK = 3 * 10**11
# Positions of a sample that are looked at: neighbours are alike, and a few inputs have few moments.
_NARROW, _FEW, _MANY = 64, 16, 64


def peak_scale(weight: Array, limits: Limits = PAIRED) -> Floats:
    """Return ``max |w| / peak`` of each channel: no single weight is clipped."""
    return _storable(np.abs(weight).max(axis=-1, initial=0) / np.float64(limits.peak))


def safe_scale(weight: Array, limits: Limits = PAIRED) -> Floats:
    """Return the scale at which plain rounding keeps to `limits`.

    Each of the two roundings of a pair adds at most 1/2, hence ``pair - 1``.
    """
    if limits.pair >= 2 * limits.peak:
        return peak_scale(weight, limits)
    sums = pair_peak(np.swapaxes(weight, -1, -2))[..., 0, :] / np.float64(limits.pair - 1)
    return np.maximum(peak_scale(weight, limits), _storable(sums))


def choose_scale(weight: Array, importance: Array | float, limits: Limits = PAIRED) -> Floats:
    """Return each channel's scale with the least ``sum_k importance_k (w_k - s q_k)^2``.

    q are the integers that `round_pairs` gives at that scale. Scales tried are evenly spaced in
    logarithm from half of `peak_scale` to `safe_scale`; the first of equals wins, so the result is
    never worse than `safe_scale`, which is tried first.

    Args:
        weight: (..., N, K).
        importance: Of each input, (..., K); one number: all alike.
        limits: Which integers are allowed.
    """
    # Searched, not solved: the error as a function of the scale jumps at every rounding and has many minima. Scales
    # below the one of the peak clip the largest weights, which is worth it where few are large; scales above it are
    # needed where two large neighbours break the limit of pairs. Scales are float32 from the start, as the file
    # stores them, so that the error found is the error had.
    weight = np.asarray(weight, np.float64)
    widest = safe_scale(weight, limits)
    narrowest = _NARROWEST * peak_scale(weight, limits)
    best, least = widest, _diagonal_error(weight, widest, importance, limits)
    for share in np.linspace(1, 0, _STEPS)[1:]:
        scale = _storable(widest**share * narrowest ** (1 - share))
        error = _diagonal_error(weight, scale, importance, limits)
        better = error < least
        best, least = np.where(better, scale, best), np.where(better, error, least)
    return best


def _diagonal_error(
    weight: Floats, scale: Floats, importance: Array | float, limits: Limits
) -> Floats:
    spread = np.asarray(importance, np.float64)
    if spread.ndim:
        spread = spread[..., np.newaxis, :]  # one for all channels
    step = scale[..., np.newaxis]
    error = weight - round_pairs(weight / step, limits, spread) * step
    found: Floats = (spread * error**2).sum(axis=-1)
    return found


def refit_scale(q: Array, weight: Array, scale: Array, moments: Array) -> Floats:
    """Return the scale that is best for given integers, ``s = (w H q^T) / (q H q^T)``.

    It minimises ``(w - s q) H (w - s q)^T``. Where that is not a scale (all integers zero, or a
    sign turned around) the old one stays.

    Args:
        q: The integers, (..., N, K).
        weight: (..., N, K).
        scale: The old one, (..., N).
        moments: H = E[x x^T], (..., K, K).
    """
    through = q @ np.asarray(moments, np.float64)
    along = np.einsum("...nk,...nk->...n", through, weight)
    power = np.einsum("...nk,...nk->...n", through, q)
    usable = (power > 0) & (along > _TINY * power)
    return np.where(usable, _storable(along / np.where(usable, power, 1)), scale)


def _storable(scale: Array) -> Floats:
    """Return a scale as the file will hold it, for sums in float64."""
    return storable_scale(scale).astype(np.float64)


_NUMBERS = 1 << 21  # weights that are in float64 at a time
_COPIES = 8  # of them, while they are rounded
_BYTES = 8
_DENSE = 0.75  # of the weights not zero: below, zeros are there on purpose, and stay


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """What to do about a weight.

    Attributes:
        ranges: Choose each channel's scale by the error that it leaves; else no weight is clipped.
        second_order: Let later weights make up for the errors of earlier ones; else round to nearest.
        adaptive: Descend on the integers afterwards, and fit the scale again.
    """

    ranges: bool = False
    second_order: bool = True
    adaptive: bool = False


def solving_bytes(layout: Layout) -> int:
    """Return about what solving a weight takes: its matrix of moments, and a part of its channels in float64."""
    numbers = prod(layout.shape)
    return _BYTES * (layout.group * layout.inputs**2 + _COPIES * min(_NUMBERS, numbers) + numbers)


def solve_weight(
    array: NDArray[Any],
    spec: QuantSpec,
    layout: Layout,
    moments: PatchMoments | None,
    settings: Rounding,
    *,
    centred: bool,
) -> tuple[SolvedWeight, NDArray[np.float32]]:
    """Return the integers of a weight, and what they change the mean of each output channel by.

    `centred`: that change will be taken off the bias.

    Args:
        array: The weight, as the graph holds it.
        spec: Type, granularity and limits of its integers.
        layout: How it is a matrix of output channels by inputs.
        moments: Of what the product reads; None: inputs are taken to be all alike.
        settings: How weights are rounded.
        centred: The change of the mean will be taken off the bias, so only the variance of the error counts.
    """
    rows = layout.rows(array)
    limits = _limits(spec)
    h = _row_moments(rows, moments, centred=centred)
    importance = np.diagonal(h, axis1=-2, axis2=-1).copy() if settings.ranges else None
    carries = carries_of(h, own=not settings.adaptive) if settings.second_order else None
    per_channel = isinstance(spec.granularity, PerAxis)
    common = None if per_channel else _common(rows, limits, spec)
    sparse = bool(np.count_nonzero(rows) <= _DENSE * rows.size)
    q = np.empty(rows.shape, np.int32)
    scale, shift = np.empty(rows.shape[:2]), np.empty(rows.shape[:2], np.float32)
    for some in _channels(rows):
        part = rows[:, some].astype(np.float64)
        if common is None:
            own, exact = _scale(part, importance, limits, spec)
        else:
            own, exact = np.full(part.shape[:2], common), np.ones(part.shape[:2], bool)
        if carries is not None:
            integers = round_carried(part, own, carries, limits, keep_zeros=sparse)
        else:
            integers = round_pairs(part / own[..., np.newaxis], limits)
        if settings.adaptive:
            integers = improve(integers, part, own, h, limits)
            integers = np.where(sparse & (part == 0), 0, integers)
            own = np.where(exact, own, refit_scale(integers, part, own, h))
        q[:, some], scale[:, some] = integers, own
        shift[:, some] = _shift(part - integers * own[..., np.newaxis], moments)
    return _solved_weight(q, scale, spec, layout), shift.reshape(-1)


def solve_packed(
    array: NDArray[Any],
    grid: BlockGrid,
    layout: Layout,
    moments: PatchMoments | None,
    *,
    centred: bool,
) -> tuple[BlockCodes, NDArray[np.float32]]:
    """Find the codes of a weight of few bits, and what its bias must take over.

    Args:
        array: The weight.
        grid: How it stands in the file.
        layout: How it becomes a matrix.
        moments: Of what the product reads; None: inputs are taken to be all alike.
        centred: The change of the mean will be taken off the bias, so only the variance of the error counts.
    """
    order = _natural(layout)
    rows = layout.rows(array)[..., order]
    h = _row_moments(rows, moments, centred=centred)
    if moments is not None and moments.count:
        h = np.ascontiguousarray(h[:, order][:, :, order])
    parts = [solve_blocks(own, grid, h[g]) for g, own in enumerate(rows)]
    codes = BlockCodes.joined(parts)
    error = rows - codes.dequantized().reshape(rows.shape)
    if moments is None or not moments.count:
        return codes, np.zeros(codes.scale.shape, np.float32)
    shift = np.einsum("gnk,gk->gn", error, moments.mean[:, order])
    return codes, shift.reshape(-1).astype(np.float32)


def _natural(layout: Layout) -> NDArray[np.intp]:
    """Return which column of a layout stands for each value of a row as the weight lies: of a Conv (c, kh, kw)."""
    extents = [layout.shape[axis] for axis in layout.summed]
    places = np.arange(prod(extents)).reshape(extents)
    return places.transpose(np.argsort(layout.summed)).reshape(-1)


def _channels(rows: NDArray[Any]) -> Iterator[slice]:
    """Cut channels into parts that take little memory in float64: each is rounded without the others."""
    groups, channels, inputs = rows.shape
    step = max(1, _NUMBERS // (groups * inputs))
    return (slice(start, start + step) for start in range(0, channels, step))


def _limits(spec: QuantSpec) -> Limits:
    """Return which integers a symmetric weight may have, counted from its zero point."""
    if spec.pair_axes:
        return PAIRED
    peak = (spec.qmax - spec.qmin) // 2
    return Limits(peak=peak, pair=2 * peak)


def _common(rows: NDArray[Any], limits: Limits, spec: QuantSpec) -> float:
    """Return one scale for all channels; those of zeros have no say, whose own would be 1."""
    parts = (rows[:, some].astype(np.float64) for some in _channels(rows))
    found = (_usual(part, None, limits, spec)[part.any(axis=-1)] for part in parts)
    widest = np.array([max((float(own.max()) for own in found if own.size), default=1.0)])
    if spec.whole or spec.pinned:
        return float(widest[0])
    extents = [(found.max(keepdims=True), limit) for found, limit in _extents(rows, limits)]
    grid = grid_scales(rows.reshape(1, -1), widest, extents[0][0], extents)
    return float(grid[0] or widest[0])


def _extents(rows: NDArray[Any], limits: Limits) -> list[tuple[NDArray[Any], NDArray[Any] | int]]:
    """Return what integers must have room for in each channel: the largest weight, and the largest sum of neighbours."""
    found: list[tuple[NDArray[Any], NDArray[Any] | int]] = [
        (np.abs(rows).max(axis=-1, initial=0).reshape(-1), limits.peak)
    ]
    if limits.pair < 2 * limits.peak:
        found.append((pair_peak(np.swapaxes(rows, -1, -2)).reshape(-1), limits.pair))
    return found


def _row_moments(rows: NDArray[Any], moments: PatchMoments | None, *, centred: bool) -> Floats:
    """Return H; without data, that of independent inputs whose mean is as large as their deviation."""
    k = rows.shape[-1]
    if moments is not None and moments.count:
        seen = moments.covariance if centred else moments.second
        return damped(seen, damping_share(k, moments.count), own=True)
    one: Floats = np.ones((k, k))
    one[np.arange(k), np.arange(k)] += 1
    return one[np.newaxis] if rows.shape[0] == 1 else np.broadcast_to(one, (rows.shape[0], k, k))


def _scale(
    rows: Floats, importance: Floats | None, limits: Limits, spec: QuantSpec
) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the scale of each channel, and whether its weights are exact at it and it must stay."""
    usual = _usual(rows, importance, limits, spec)
    if spec.whole or spec.pinned:
        return usual, np.zeros(usual.shape, bool)
    extents = _extents(rows, limits)
    flat = rows.reshape(-1, rows.shape[-1])
    grid = grid_scales(flat, usual.reshape(-1), extents[0][0], extents).reshape(usual.shape)
    return np.where(grid > 0, grid, usual), grid > 0


def _usual(rows: Floats, importance: Floats | None, limits: Limits, spec: QuantSpec) -> Floats:
    if importance is not None:
        return choose_scale(rows, importance, limits)
    levels = spec.qmax - spec.qmin
    if spec.whole:
        found = _storable(2 * np.abs(rows).max(axis=-1, initial=0) / np.float64(levels))
    else:
        found = safe_scale(rows, limits)
    return np.maximum(found, _storable(np.asarray(spec.least / levels))) if spec.least else found


def _shift(error: Floats, moments: PatchMoments | None) -> Floats:
    """Return E[(W - Wq) x] of each output channel; zero without data."""
    if moments is None or not moments.count:
        return np.zeros(error.shape[:2])
    found: Floats = np.einsum("gnk,gk->gn", error, moments.mean)
    return found


def _solved_weight(
    q: NDArray[np.int32], scale: Floats, spec: QuantSpec, layout: Layout
) -> SolvedWeight:
    zero = 0 if spec.dtype.signed else 1 << (spec.dtype.bits - 1)
    flat = scale.reshape(-1).astype(np.float32)
    per_channel = isinstance(spec.granularity, PerAxis)
    scales = flat if per_channel else flat[0].reshape(())
    return SolvedWeight(
        integers=layout.back(q + zero, spec.dtype),
        qparams=QParams(
            spec=spec,
            scale=scales,
            zero_point=np.full(scales.shape, zero, spec.dtype.storage),
        ),
    )


def moment_request(product: Product) -> Request:
    """Return what must be observed of a product's input."""
    k = product.layout.inputs
    rows = _FEW if k <= _NARROW else _MANY
    return Request(
        tensor=product.reads, statistic=PatchesOf(window=product.window, rows=rows, inputs=k)
    )


def moment_requests(products: Iterable[Product], budget: int = _BUDGET) -> tuple[Request, ...]:
    """Ask for the moments of what products read, the cheapest first, as far as the budget goes."""
    asked: dict[Request, None] = {}
    work = _WORK
    for product in sorted((p for p in products if not p.repeated), key=_moment_count):
        request, layout = moment_request(product), product.layout
        if request in asked:
            continue
        budget -= _moment_count(product)
        work -= _moment_count(product) * (layout.shape[layout.channel] // layout.group)
        if budget < 0 or work < 0:
            break
        asked[request] = None
    return tuple(asked)


def _moment_count(product: Product) -> int:
    """Return how many numbers the moments of a product's input have."""
    return product.layout.group * product.layout.inputs**2


def in_groups(requests: Iterable[Request], memory: int) -> tuple[tuple[Request, ...], ...]:
    """Cut requests for moments into groups that take so many bytes each, or have one request; most models need one."""
    groups: list[list[Request]] = []
    used = 0
    for request in requests:
        assert isinstance(request.statistic, PatchesOf)  # noqa: S101 - moments are asked so
        used += request.statistic.nbytes
        if not groups or used > memory:
            groups.append([])
            used = request.statistic.nbytes
        groups[-1].append(request)
    return tuple(map(tuple, groups))


@dataclass(frozen=True, slots=True)
class _Task:
    product: Product
    moments: PatchMoments | None
    corrects: bool  # the bias takes the mean of the error away

    @property
    def nbytes(self) -> int:
        """The memory that solving it takes."""
        return solving_bytes(self.product.layout)


def solve(  # noqa: PLR0913 - one parameter per question
    model: ir.Model,
    plan: Plan,
    products: Iterable[Product],
    calibration: Calibration | None,
    settings: Rounding,
    *,
    bias: bool = True,
    workers: int = 1,
    memory: int = 1 << 30,
    monitor: Monitor | None = None,
) -> SolvedIntegers:
    """Find the integers of every weight that a calibrated product multiplies by.

    Args:
        model: The float model that was planned.
        plan: What was decided.
        products: Its products, or some of them.
        calibration: Holds the moments that were asked for; None to do without.
        settings: How weights are rounded.
        bias: Take the mean of each channel's error off its bias.
        workers: Processes.
        memory: Bytes that they may take together; a weight that needs more is solved alone.
        monitor: Told how many weights there are, and of each that is done.
    """
    import scipy.linalg  # noqa: F401 - before workers are forked, so that they find its BLAS

    monitor = monitor or Silent()
    tasks = _tasks(plan, products, calibration, bias=bias)
    arrays = _constants(model, {t.product.weight for t in tasks} | {t.product.bias for t in tasks})

    def work(task: _Task) -> tuple[SolvedWeight | BlockCodes, NDArray[np.float32]]:
        p = task.product
        planned = plan.weight[p.weight]
        array = arrays[p.weight].numpy()
        if planned.blocks is not None:
            return solve_packed(
                array, planned.blocks, p.layout, task.moments, centred=task.corrects
            )
        return solve_weight(
            array, planned.spec, p.layout, task.moments, settings, centred=task.corrects
        )

    monitor.name("Rounding weights")
    monitor.start(len(tasks), "weights")
    found: list[tuple[SolvedWeight | BlockCodes, NDArray[np.float32]]] = []
    for at_once, some in _waves(tasks, workers, memory):
        found += forked_map(work, some, at_once, monitor.tick)
    solved = {t.product.weight: w for t, (w, _) in zip(tasks, found, strict=True)}
    biases = {
        t.product.node: _bias(t.product, arrays, shift)
        for t, (_, shift) in zip(tasks, found, strict=True)
        if t.corrects
    }
    return SolvedIntegers(
        weights={name: w for name, w in solved.items() if isinstance(w, SolvedWeight)},
        blocks={name: w for name, w in solved.items() if isinstance(w, BlockCodes)},
        biases=biases,
    )


def _tasks(
    plan: Plan, products: Iterable[Product], calibration: Calibration | None, *, bias: bool
) -> list[_Task]:
    """Return the weights to solve for, the largest first."""
    # Which weights: those of products that run in calibrated integers, each read by one product (two have two inputs
    # to fit, and rounding for one harms the other), with moments, or so small that all integers can be held at once.
    # Biases are corrected only where moments say by how much the mean moves.
    static = [p for p in products if is_static(p, plan)]
    adds = plan.coverage == "gain"  # else a product without a bias is to have none
    shared, tasks = Counter(p.weight for p in static), []
    for product in static:
        planned, moments = plan.weight[product.weight], _moments(product, calibration)
        solvable = planned.blocks is not None or _is_solvable(planned.spec, product)
        if shared[product.weight] > 1 or not solvable or not (moments or _is_small(product)):
            continue
        corrects = bias and product.biased and moments is not None and (adds or bool(product.bias))
        tasks.append(_Task(product, moments, corrects))
    return sorted(tasks, key=lambda task: -task.nbytes)


def _waves(
    tasks: Sequence[_Task], workers: int, memory: int
) -> Iterator[tuple[int, Sequence[_Task]]]:
    """Cut tasks, the largest first, by how many of them fit into memory at once."""
    for at_once, some in groupby(tasks, lambda t: max(1, min(workers, memory // t.nbytes))):
        yield at_once, tuple(some)


def is_static(product: Product, plan: Plan) -> bool:
    """Say whether a plan lets a product run in calibrated integers."""
    decided = plan.node.get(product.node)
    return decided is not None and decided.mode is Mode.STATIC and product.weight in plan.weight


def still_static(products: Iterable[Product], plan: Plan, solved: SolvedIntegers) -> SolvedIntegers:
    """Return what was solved for products that another plan leaves in integers, as they were."""
    left = [p for p in products if is_static(p, plan)]
    found = {p.weight: solved.weights[p.weight] for p in left if p.weight in solved.weights}
    return SolvedIntegers(
        weights={n: w for n, w in found.items() if w.qparams.spec == plan.weight[n].spec},
        biases={p.node: solved.biases[p.node] for p in left if p.node in solved.biases},
    )


def _moments(product: Product, calibration: Calibration | None) -> PatchMoments | None:
    if calibration is None:
        return None
    found = calibration.seen.answers.get(product.reads, {}).get(moment_request(product).statistic)
    return found if isinstance(found, PatchMoments) and found.count else None


def _is_solvable(spec: QuantSpec, product: Product) -> bool:
    """Say whether integers may be looked for: symmetric ones, with a scale of the tensor or of each output channel."""
    if spec.pinned or not spec.symmetric:
        return False
    match spec.granularity:
        case PerTensor():
            return True
        case PerAxis(axis=axis):
            layout = product.layout
            return axis % len(layout.shape) == layout.channel % len(layout.shape)
        case PerBlock():
            return False


def _is_small(product: Product) -> bool:
    size = int(np.prod(product.layout.shape))
    return size <= _BLIND and product.layout.inputs <= _WIDEST


def _constants(model: ir.Model, names: set[str]) -> dict[str, ir.TensorProtocol]:
    found = {}
    for graph in model.graphs():
        for name, value in graph.initializers.items():
            if name in names and value.const_value is not None:
                found[name] = value.const_value
    return found


def _bias(
    product: Product, arrays: Mapping[str, Any], shift: NDArray[np.float32]
) -> NDArray[np.float32]:
    shift = shift * np.float32(product.alpha)
    if not product.bias:
        return shift
    own = arrays[product.bias].numpy().reshape(-1) * np.float32(product.beta)
    return np.asarray(own + shift, np.float32)
