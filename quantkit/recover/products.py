"""The products of a model by what they read, and the moments that rounding must see of it."""

from collections.abc import Iterable
from dataclasses import dataclass

from calibrators import Window
from quantkit.analyze.facts import ModelFacts
from quantkit.analyze.network import Network, Step
from quantkit.observe.requests import PatchesAsk, Request
from quantkit.recover.layout import Layout, layout_of, window_of

__all__ = ["Product", "in_groups", "moment_requests", "products_of"]

_BIAS = 2  # input slot of Conv and Gemm
_WEIGHTED = frozenset({"Conv", "Gemm", "MatMul"})
# Numbers that all matrices of moments together may have: making and factoring them takes time. Beyond that, weights are
# rounded without having seen what they multiply. ResNet-50 has 125 million.
_BUDGET = 1 << 27
# Multiplications that rounding with them may take: those of two layers of 5120 x 5120, or of ResNet-50 five times.
_WORK = 3 * 10**11
# Positions of a sample that are looked at: neighbours are alike, and a few inputs have few moments.
_NARROW, _FEW, _MANY = 64, 16, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A Conv, Gemm or MatMul with a constant weight.

    Attributes:
        node: Its name.
        reads: The tensor that it multiplies.
        weight: The tensor that it multiplies by.
        bias: The tensor that it adds; "" if none.
        biased: Whether it can add one.
        layout: The weight as a matrix.
        window: What it reads of its input at once.
        alpha: The factor of a Gemm's product.
        beta: The factor of a Gemm's bias.
    """

    node: str
    reads: str
    weight: str
    bias: str
    biased: bool
    layout: Layout
    window: Window
    alpha: float = 1.0
    beta: float = 1.0

    @property
    def ask(self) -> PatchesAsk:
        """What must be seen of its input."""
        k = self.layout.inputs
        return PatchesAsk(window=self.window, rows=_FEW if k <= _NARROW else _MANY, inputs=k)

    @property
    def request(self) -> Request:
        """The moments of its input."""
        return Request(tensor=self.reads, what=self.ask)

    @property
    def moments(self) -> int:
        """How many numbers the moments of its input have."""
        return self.layout.group * self.layout.inputs**2


def products_of(network: Network, facts: ModelFacts) -> tuple[Product, ...]:
    """Return the products of the main graph, in order."""
    nodes = {node.name: node for node in facts.nodes}
    found = []
    for step in network.steps:
        node = nodes.get(step.name)
        if node is None or step.hidden or step.domain or step.op_type not in _WEIGHTED:
            continue
        if set(node.weights) != {1} or step.attributes.get("transA"):
            continue  # of a transposed input the sum runs along another axis; it stays float
        weight = facts.weights[node.weights[1]]
        if step.op_type == "MatMul" and len(weight.shape) != 2:  # noqa: PLR2004 - a matrix
            continue
        found.append(
            Product(
                node=step.name,
                reads=step.inputs[0],
                weight=weight.tensor,
                bias=step.inputs[_BIAS] if len(step.inputs) > _BIAS else "",
                biased=step.op_type != "MatMul",
                layout=layout_of(step, weight.shape, turned=node.inputs[1] != weight.tensor),
                window=window_of(step, weight.shape),
                alpha=_factor(step, "alpha"),
                beta=_factor(step, "beta"),
            )
        )
    return tuple(found)


def _factor(step: Step, name: str) -> float:
    value = step.attributes.get(name, 1.0)
    return float(value) if step.op_type == "Gemm" and isinstance(value, int | float) else 1.0


def moment_requests(products: Iterable[Product], budget: int = _BUDGET) -> tuple[Request, ...]:
    """Ask for the moments of what products read, the cheapest first, as far as the budget goes."""
    asked: dict[Request, None] = {}
    work = _WORK
    for product in sorted(products, key=lambda p: p.moments):
        if product.request in asked:
            continue
        budget -= product.moments
        work -= product.moments * (
            product.layout.shape[product.layout.channel] // product.layout.group
        )
        if budget < 0 or work < 0:
            break
        asked[product.request] = None
    return tuple(asked)


def in_groups(requests: Iterable[Request], memory: int) -> tuple[tuple[Request, ...], ...]:
    """Cut requests for moments into groups that take so many bytes each, or have one request; most models need one."""
    groups: list[list[Request]] = []
    used = 0
    for request in requests:
        assert isinstance(request.what, PatchesAsk)  # noqa: S101 - moments are asked so
        used += request.what.nbytes
        if not groups or used > memory:
            groups.append([])
            used = request.what.nbytes
        groups[-1].append(request)
    return tuple(map(tuple, groups))
