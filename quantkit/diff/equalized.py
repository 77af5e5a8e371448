"""Weights as they were before channels were equalized or smoothed, by the factors that the model notes.

With x and y what a product reads and makes, and x / d, y / e what the equalized model holds (`quantkit.graph.channel_factors`):

    w'[o, i] = w[o, i] d[i] / e[o]        b'[o] = b[o] / e[o]
"""

import numpy as np
import onnx_ir as ir

from quantkit.diff.scaling import Floats
from quantkit.diff.stored import Stored
from quantkit.graph.channel_factors import read_divisors
from quantkit.ops.float_ops import KEEPS_FACTORS
from quantkit.ops.integer_ops import CONVERSIONS, INTEGER_OPS, QUANTIZED_PRODUCTS, STATIC_OPS

__all__ = ["Factors"]

# What changes nothing but type or shape, or lets a factor through; and how stored weights are restored.
_KEEPS = KEEPS_FACTORS - {"Add"}
_THROUGH = CONVERSIONS | _KEEPS | {STATIC_OPS[op].op_type for op in _KEEPS & STATIC_OPS.keys()}
_THROUGH |= {"Cast", "Flatten", "Identity", "Max", "Mul", "Reshape", "Sub"}
_BIAS = 2  # input slot of float products
_STEPS = 6  # nodes between a weight and its product, or a product and a tensor that is named
_MATRIX = 2


class Factors:
    """What one model says about its channels."""

    def __init__(self, model: ir.Model) -> None:
        self._divisors = read_divisors(model.metadata_props) or {}

    def undone(self, weight: Floats, constant: Stored) -> tuple[Floats, bool]:
        """Return a weight or bias as it was before, and whether that is another."""
        product, own = _product(constant.value) if self._divisors else (None, "")
        if product is None:
            return weight, False
        made = self._output_divisors(product.outputs[0])
        if weight.ndim == 1:
            if own != "bias" or made is None or made.size != weight.size:
                return weight, False
            return np.asarray(weight * made, np.float32), True
        read = self._input_divisors(product.inputs[0])
        factor = _factor(weight.shape, product, read, made)
        return (
            (weight, False) if factor is None else (np.asarray(weight * factor, np.float32), True)
        )

    def _output_divisors(self, value: ir.Value) -> Floats | None:
        """Return the divisors of what a product makes, looking on to the tensor that is named."""
        for _ in range(_STEPS):
            if (found := self._of(value)) is not None:
                return found
            readers = {use.node for use in value.uses()}
            follows = next(iter(readers)) if len(readers) == 1 else None
            if follows is None or follows.op_type not in _THROUGH | {"Add"}:
                return None
            value = follows.outputs[0]
        return None

    def _input_divisors(self, value: ir.Value | None) -> Floats | None:
        """Return the divisors of what a product reads, looking back to the tensor that is named."""
        for _ in range(_STEPS):
            if value is None:
                return None
            if (found := self._of(value)) is not None:
                return found
            maker = value.producer()
            if maker is None or maker.op_type not in _THROUGH:
                return None
            value = maker.inputs[0]
        return None

    def _of(self, value: ir.Value) -> Floats | None:
        name = value.name or ""
        found = self._divisors.get(name) or self._divisors.get(name.removesuffix("_quantized"))
        return None if found is None else found.values


def _product(value: ir.Value) -> tuple[ir.Node | None, str]:
    """Return the product that reads a constant, through whatever restores it, and as what."""
    for _ in range(_STEPS):
        uses = list(value.uses())
        if len(uses) != 1:
            return None, ""
        node, slot = uses[0].node, uses[0].idx
        if _is_product(node.op_type):
            row = INTEGER_OPS.get(node.op_type)
            return node, "bias" if slot == (row.bias if row else _BIAS) else "weight"
        if node.op_type not in _THROUGH:
            return None, ""
        value = node.outputs[0]
    return None, ""


def _is_product(op_type: str) -> bool:
    """Say whether an operator multiplies by a weight that is stored as a matrix, or as windows."""
    row = INTEGER_OPS.get(op_type)
    if row is None:
        return op_type in QUANTIZED_PRODUCTS | {"FusedConv"}
    return row.float_op in QUANTIZED_PRODUCTS and row.weights[0].axis is not None


def _factor(
    shape: tuple[int, ...], product: ir.Node, read: Floats | None, made: Floats | None
) -> Floats | None:
    """Return by what to multiply a weight; None if nothing is known that fits it."""
    conv = "Conv" in product.op_type
    transposed = (
        not conv
        and (attribute := product.attributes.get("transB")) is not None
        and attribute.as_int()
    )
    # w = w' e[o] / d[i]: multiplied by what its result was divided by, divided by what its input was. Which axis is
    # which depends on the operator alone: [O, I, ...] for Conv and for Gemm with transB, [..., I, O] for the others.
    # Divisors that do not have as many entries as the axis are of another tensor of the same name and are ignored:
    # undoing the wrong ones would show two equal weights as unlike.
    out, inner = (0, 1) if conv or transposed else (len(shape) - 1, len(shape) - 2)
    factor = np.ones([n if i in {out, inner} else 1 for i, n in enumerate(shape)], np.float32)
    known = False
    if made is not None and made.size == shape[out]:
        factor = factor * made.reshape([-1 if i == out else 1 for i in range(len(shape))])
        known = True
    if read is not None:
        groups = max(1, read.size // shape[inner])
        if (
            read.size == groups * shape[inner]
            and shape[out] % groups == 0
            and (groups == 1 or conv)
        ):
            # of a Conv in groups each output channel reads those of its group
            rows = np.repeat(read.reshape(groups, shape[inner]), shape[out] // groups, axis=0)
            table = rows if out < inner else rows.T
            factor = factor / table.reshape(factor.shape)
            known = True
    return factor.astype(np.float32) if known else None
