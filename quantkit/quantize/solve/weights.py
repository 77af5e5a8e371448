"""All weights of a plan, solved from the moments of what they multiply; biases with them."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators import PatchMoments
from quantkit.calibration.calibration import Calibration
from quantkit.calibration.forks import forked_map
from quantkit.calibration.monitor import Monitor, Silent
from quantkit.calibration.requests import PatchesOf, Request
from quantkit.model.graph.products import Product
from quantkit.numerics.blocks import BlockCodes
from quantkit.quantize.plan import Mode, Plan
from quantkit.quantize.plan.solved import SolvedIntegers, SolvedWeight
from quantkit.quantize.solve.rounding import Rounding, solve_packed, solve_weight, solving_bytes
from quantkit.spec import PerAxis, PerBlock, PerTensor, QuantSpec

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
