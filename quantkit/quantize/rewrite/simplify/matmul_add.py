"""``MatMul(x, W) + b`` becomes ``Gemm(x, W, b)``.

Only where x is certainly a matrix (Gemm takes nothing else), W is a constant matrix, b a constant row or a single
number, all float32, and the product has no other consumer. The node keeps the name of the MatMul, which is the one
that holds the weight; the output keeps the name of the sum.
"""

import onnx_ir as ir

from quantkit.model.graph.edit import (
    constant,
    discard,
    is_op,
    nodes_of,
    owner_of,
    sole_reader,
    succeed,
)
from quantkit.model.graph.opset import opset_of
from quantkit.model.graph.shapes import dims, dtype

_BROADCASTING_GEMM = 7  # the opset from which Gemm broadcasts its last input without being told to


def matmul_add(model: ir.Model) -> int:
    """Make Gemm of MatMul and Add; return how many."""
    if opset_of(model) < _BROADCASTING_GEMM:
        return 0
    return sum(_fuse(node) for node in nodes_of(model) if is_op(node, "MatMul"))


def _fuse(product: ir.Node) -> bool:
    x, weight = product.inputs
    add = sole_reader(product.outputs[0])
    if x is None or weight is None or add is None or not is_op(add, "Add"):
        return False
    bias = next((v for v in add.inputs if v is not product.outputs[0]), None)
    if bias is None or not _fits(x, weight, bias):
        return False
    gemm = ir.Node("", "Gemm", [x, weight, bias], name=product.name, num_outputs=1)
    gemm.metadata_props.update(product.metadata_props)
    owner_of(add).insert_before(add, gemm)
    succeed(add.outputs[0], gemm.outputs[0])
    discard(add)
    discard(product)
    return True


def _fits(x: ir.Value, weight: ir.Value, bias: ir.Value) -> bool:
    if any(dtype(v) is not ir.DataType.FLOAT for v in (x, weight, bias)):
        return False
    rows, matrix, row = dims(x), constant(weight), constant(bias)
    if rows is None or len(rows) != 2 or matrix is None or len(matrix.shape) != 2:
        return False
    return row is not None and tuple(row.shape.numpy()) in {
        (),
        (1,),
        (1, 1),
        (matrix.shape[1],),
        (1, matrix.shape[1]),
    }
