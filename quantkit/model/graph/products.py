"""The products of a model by what they read, their weights as matrices."""

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators import Window
from quantkit.model.ops.integer_ops import QUANTIZED_PRODUCTS
from quantkit.model.ops.view import Node, View, has_vector_bias
from quantkit.numerics.dtypes import IntType

_BIAS = 2  # input slot of Conv and Gemm


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a weight of `shape` becomes a matrix: rows are output channels, columns what is summed.

    Rows are (groups, channels / groups, K), with K in the order in which kernels sum: for Conv (kh, kw, c), c fastest.
    """

    shape: tuple[int, ...]
    channel: int
    summed: tuple[int, ...]
    group: int = 1

    def rows(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the matrix."""
        transposed = array.transpose(self.channel, *self.summed)
        return transposed.reshape(self.group, transposed.shape[0] // self.group, -1)

    def back(self, rows: NDArray[Any], dtype: IntType) -> NDArray[Any]:
        """Undo `rows`, into an integer type."""
        return np.ascontiguousarray(self.shaped(rows).astype(dtype.storage))

    def shaped(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Undo `rows`."""
        order = (self.channel, *self.summed)
        transposed = rows.reshape([self.shape[axis] for axis in order])
        return transposed.transpose(np.argsort(order))

    @property
    def inputs(self) -> int:
        """K: how many products are summed."""
        return prod(self.shape[axis] for axis in self.summed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A Conv, Gemm or MatMul with a constant weight.

    Attributes:
        node: Its name.
        reads: The tensor that it multiplies.
        weight: The tensor that it multiplies by.
        bias: The tensor that it adds; "" if none.
        biased: Whether it can add one: none that is computed is there, or no vector.
        layout: The weight as a matrix.
        window: What it reads of its input at once.
        alpha: The factor of a Gemm's product.
        beta: The factor of a Gemm's bias.
        inside: It stands in a subgraph of another node.
        repeated: In that of a Loop or Scan: of what it reads samples are seen, and no shape.
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
    inside: bool = False
    repeated: bool = False


def products_of(view: View) -> tuple[Product, ...]:
    """Return the products that a run can be made to show, in order."""
    found = []
    for node in view.nodes:
        if not node.observable or node.domain or node.op_type not in QUANTIZED_PRODUCTS:
            continue
        if set(node.weights) != {1} or node.attributes.get("transA"):
            continue  # of a transposed input the sum runs along another axis; it stays float
        weight = view.weights[node.weights[1]]
        if node.op_type == "MatMul" and len(weight.shape) != 2:
            continue
        conv = node.op_type == "Conv"
        found.append(
            Product(
                node=node.name,
                reads=node.inputs[0],
                weight=weight.tensor,
                bias=node.input(_BIAS),
                biased=node.op_type != "MatMul" and has_vector_bias(node, view, absent=True),
                layout=_layout(node, weight.shape),
                window=Window.of_conv(weight.shape[2:], node.attributes) if conv else Window(),
                alpha=_factor(node, "alpha"),
                beta=_factor(node, "beta"),
                inside=node.in_subgraph,
                repeated=any(holder != "If" for holder in node.inside),
            )
        )
    return tuple(found)


def _layout(node: Node, shape: tuple[int, ...]) -> Layout:
    if node.op_type == "Conv":
        group = node.attributes.get("group", 1)
        assert isinstance(group, int)  # noqa: S101 - by the standard
        return Layout(shape=shape, channel=0, summed=(*range(2, len(shape)), 1), group=group)
    # MatMul has its channels last, Gemm by transB; read through a Transpose they are where the others are.
    last = node.op_type == "MatMul" or not node.attributes.get("transB")
    channel = 1 if last != node.transposes(1) else 0
    return Layout(shape=shape, channel=channel, summed=(1 - channel,))


def _factor(node: Node, name: str) -> float:
    value = node.attributes.get(name, 1.0)
    return float(value) if node.op_type == "Gemm" and isinstance(value, int | float) else 1.0
