"""How many kernels of each kind an optimized graph has.

A model in QDQ form only asks for integer arithmetic. Whether a Conv between DequantizeLinear and
QuantizeLinear becomes a QLinearConv is decided when a session is made, and one that does not match
onnxruntime's patterns is computed in float, slower than before. So the session saves its optimized
graph to a temporary folder, and the nodes of that graph are counted.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from quantkit.ops.integer_ops import CONVERSIONS, INTEGER_PRODUCTS
from quantkit.runtime.kernels.optimized import (
    PRODUCTS,
    file_nodes,
    is_integer,
    optimized_nodes,
)
from quantkit.runtime.kernels.origins import Origins

__all__ = ["Fusion", "counted", "fusion_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """The kernels of an optimized graph, subgraphs included.

    Attributes:
        integer: Nodes that compute on integers, by operator; products and all others.
        float: Products that are computed in float, by operator.
        conversions: QuantizeLinear and DequantizeLinear that are left and run every time.
        float_products: The names, in the given model, of the products that are computed in float
            (an unnamed one goes by its first output; one that cannot be traced back goes by
            onnxruntime's name for it).
    """

    integer: Mapping[str, int]
    float: Mapping[str, int]
    conversions: Mapping[str, int]
    float_products: tuple[str, ...]

    @property
    def integer_products(self) -> dict[str, int]:
        """Products that are computed in integers, by operator."""
        return {op: n for op, n in self.integer.items() if op in INTEGER_PRODUCTS}

    @property
    def integer_count(self) -> int:
        """How many products are computed in integers."""
        return sum(self.integer_products.values())

    @property
    def product_count(self) -> int:
        """How many products the model has, in whatever type."""
        return self.integer_count + sum(self.float.values())

    def to_json(self) -> dict[str, object]:
        """Return plain data."""
        return {
            "integer": dict(self.integer),
            "float": dict(self.float),
            "conversions": dict(self.conversions),
            "float_products": list(self.float_products),
        }


def fusion_of(model: Path) -> Fusion:
    """Make a session as users do and count what it runs.

    Raises:
        An exception in `quantkit.runtime.session.RUNTIME_ERRORS`: onnxruntime does not load the model.
    """
    nodes = optimized_nodes(model)
    left = [n for n in nodes if n.op_type in PRODUCTS and not is_integer(n)]
    origins = Origins(file_nodes(model), nodes)
    return Fusion(
        integer=counted(node.op_type for node in nodes if is_integer(node)),
        float=counted(node.op_type for node in left),
        conversions=counted(node.op_type for node in nodes if node.op_type in CONVERSIONS),
        float_products=tuple(origins.find(node) for node in left),
    )


def counted(op_types: Iterable[str]) -> Mapping[str, int]:
    """Return how often each occurs, by name."""
    return MappingProxyType(dict(sorted(Counter(op_types).items())))
