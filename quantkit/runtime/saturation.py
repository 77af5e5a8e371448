"""Proof, from a quantized file alone, that its layers give the same integers on every CPU.

x86 without VNNI adds two neighbouring uint8 x int8 products in a saturating int16. A weight is safe from that if no
pair of neighbours, in the order in which the kernel sums, is too large together (`quantkit.numerics.pairs`).
So it takes no data: only the weights are looked at, of every node that multiplies integers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.model.graph.edit import const_of, own_name
from quantkit.model.ops.integer_ops import INTEGER_OPS, INTEGER_PRODUCTS, QUANTIZED_PRODUCTS
from quantkit.numerics.pairs import is_pair_safe

_BYTE = frozenset({ir.DataType.INT8, ir.DataType.UINT8})
_Operands = tuple[ir.Value, ir.Value, ir.Value | None]


@dataclass(frozen=True, slots=True)
class IntegerProduct:
    """A node that multiplies 8-bit activations by a constant int8 weight.

    Attributes:
        node: The node; in QDQ form the float operator that a runtime replaces.
        reads: The activation, in integers where the file has them.
        weight: The integers as they are stored.
        scale: Their scales; None if the node does not say.
        transposed: They are read through a Transpose, or as transB.
    """

    node: ir.Node
    reads: ir.Value
    weight: ir.TensorProtocol
    scale: ir.Value | None
    transposed: bool

    @property
    def is_conv(self) -> bool:
        """Whether it slides over its input."""
        return "Conv" in self.node.op_type

    @property
    def columns(self) -> NDArray[Any]:
        """The weight as (..., K, N), K in the order in which kernels sum: of a Conv (kh, kw, c), c fastest."""
        array = self.weight.numpy()
        if self.is_conv:
            return np.moveaxis(array, 1, -1).reshape(len(array), -1).T
        if array.ndim == 1:
            return array[:, np.newaxis]
        return np.swapaxes(array, -1, -2) if self.transposed else array

    @property
    def may_saturate(self) -> bool:
        """Whether some activations would clip a pair. Depthwise kernels widen before they add."""
        depthwise = self.is_conv and self.weight.shape[1] == 1
        if depthwise and self.node.attributes.get_int("group", 1) == self.weight.shape[0]:
            return False
        return not is_pair_safe(self.columns)


def saturating_nodes(model: ir.Model) -> tuple[str, ...]:
    """Return the names of the nodes whose sums may saturate on x86 without VNNI; empty if the file is safe on every CPU.

    Activations of int8 count like uint8: onnxruntime turns them into uint8 on x86.
    """
    return tuple(own_name(p.node) for p in integer_products(model) if p.may_saturate)


def integer_products(model: ir.Model) -> Iterator[IntegerProduct]:
    """Yield the products with a constant int8 weight, of all graphs, QDQ or QOperator; uint8 never saturates."""
    for node in model.graph.all_nodes():
        flag = "Gemm" in node.op_type and bool(node.attributes.get_int("transB", 0))
        for reads, value, scale in _operands(node):
            maker = value.producer()
            swapped = maker is not None and maker.op_type == "Transpose"
            source = maker.inputs[0] if maker is not None and swapped else value
            tensor = const_of(source)
            if tensor is not None and tensor.dtype is ir.DataType.INT8:
                yield IntegerProduct(node, reads, tensor, scale, flag != swapped)


def _operands(node: ir.Node) -> Iterator[_Operands]:
    """Yield activation, weight and scale."""
    if node.op_type in QUANTIZED_PRODUCTS:
        yield from _restored(node)
    if node.op_type not in INTEGER_PRODUCTS:
        return
    for operand in INTEGER_OPS[node.op_type].weights:
        reads, value = node.inputs[0], node.inputs[operand.values]
        if reads is not None and value is not None:
            yield reads, value, None if operand.scale is None else node.inputs[operand.scale]


def _restored(node: ir.Node) -> Iterator[_Operands]:
    """Yield those of an operator between DequantizeLinear; with activations of 16 bits it runs in float."""
    # onnxruntime fuses a product only between two DequantizeLinear, of the activation and of the weight; with one of
    # them float it runs in float and cannot saturate. Without a zero point the activation is uint8, QuantizeLinear's
    # default. Activations of 16 bits match no kernel.
    makers = [v.producer() for v in node.inputs[:2] if v is not None]
    if [m.op_type if m else "" for m in makers] != ["DequantizeLinear"] * 2:
        return
    (x, _, *x_zero), (w, scale, *_) = (m.inputs for m in makers if m is not None)
    zero = ir.convenience.get_const_tensor(x_zero[0]) if x_zero and x_zero[0] else None
    if x is not None and w is not None and (zero is None or zero.dtype in _BYTE):
        yield x, w, scale
