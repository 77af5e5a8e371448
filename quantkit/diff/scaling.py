"""How the integers of a constant become floats, read off the nodes that use them; see `quantkit.diff.stored`."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.ops.integer_ops import INTEGER_OPS, Operand

__all__ = ["Floats", "Scaling", "array_of", "scaling_of"]

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Where a constant's scale and zero point are.

    Attributes:
        scales: Constants whose product is the scale.
        zero: The zero point; None: 0.
        axis: Along which there is one scale per channel; None: they broadcast as they are.
        block: Values along `axis` that share a scale; 0: one per channel.
    """

    scales: tuple[ir.Value, ...]
    zero: ir.Value | None = None
    axis: int | None = None
    block: int = 0

    def scale(self) -> Floats:
        """Return the scale, as it is stored."""
        found = np.ones((), np.float32)
        for value in self.scales:
            found = np.asarray(found * array_of(value).astype(np.float32))
        return found

    def restored(self, integers: NDArray[Any]) -> Floats:
        """Return ``(q - z) s``."""
        z = np.float32(0) if self.zero is None else array_of(self.zero).astype(np.float32)
        centred = integers.astype(np.float32) - self._fitted(np.asarray(z), integers)
        return np.asarray(centred * self._fitted(self.scale(), integers), np.float32)

    def _fitted(self, array: Floats, integers: NDArray[Any]) -> Floats:
        """Return a parameter so that it broadcasts against the constant."""
        if self.axis is None or array.size == 1:
            return array.reshape(()) if array.size == 1 else array
        axis = self.axis % integers.ndim
        if self.block:
            repeated = np.repeat(array, self.block, axis)
            return repeated[tuple(slice(n) for n in integers.shape)]
        return array.reshape([-1 if i == axis else 1 for i in range(integers.ndim)])


def array_of(value: ir.Value) -> NDArray[Any]:
    """Return the contents of a constant."""
    assert value.const_value is not None  # noqa: S101 - callers looked
    return value.const_value.numpy()


def scaling_of(value: ir.Value) -> Scaling | None:
    """Return how the first reader that tells turns a constant into floats; None if none does."""
    found = (_by_reader(use.node, use.idx) for use in value.uses())
    return next((scaling for scaling in found if scaling is not None), None)


def _by_reader(node: ir.Node, slot: int) -> Scaling | None:
    match node.op_type, slot:
        case "DequantizeLinear", 0:
            axis, block = _integer(node, "axis", 1), _integer(node, "block_size", 0)
            found = _of_slots(node, 1, 2, axis, block)
        case "Cast", _:
            found = _behind_cast(node)
        case "Gather", 0:
            found = scaling_of(node.outputs[0])
        case _:
            found = _of_operator(node, slot)
    return found


def _of_operator(node: ir.Node, slot: int) -> Scaling | None:
    """Return what an operator on integers says of its weight, or of a bias in the scale of its sums."""
    # Where the scale of a constant is written depends on what reads it: beside it, for a weight of an operator that
    # takes scales; behind it, for operators that hand on raw sums (MatMulInteger), where Cast and Mul follow;
    # nowhere, for a bias in int32, whose scale is the product of the activation's and the weight's. If one of two is
    # computed at run time, the bias has no scale that could be compared.
    row = INTEGER_OPS.get(node.op_type)
    weight = row.weights[0] if row is not None and row.weights else None
    if row is None or weight is None or weight.axis is None:
        return None
    if slot == weight.values and row.makes_sums:
        return _behind_product(node, weight)
    if slot == weight.values:
        axis = 0 if _integer(node, "transB", 0) else weight.axis
        return _of_slots(node, weight.scale, weight.zero_point, axis)
    if slot == row.bias and row.reads:
        scales = [_constant(node, operand.scale) for operand in (row.reads[0], weight)]
        known = tuple(s for s in scales if s is not None)
        return Scaling(scales=known) if len(known) == len(scales) else None
    return None


def _integer(node: ir.Node, name: str, default: int) -> int:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_int()


def _of_slots(
    node: ir.Node, scale: int | None, zero: int | None, axis: int, block: int = 0
) -> Scaling | None:
    s, z = _constant(node, scale), _constant(node, zero)
    return None if s is None else Scaling(scales=(s,), zero=z, axis=axis, block=block)


def _constant(node: ir.Node, slot: int | None) -> ir.Value | None:
    """Return a constant input; where rows of one are looked up, that one."""
    value = node.inputs[slot] if slot is not None and slot < len(node.inputs) else None
    producer = value.producer() if value is not None else None
    if producer is not None and producer.op_type == "Gather":
        value = producer.inputs[0]
    return value if value is not None and value.const_value is not None else None


def _only_reader(node: ir.Node, op_type: str) -> ir.Node | None:
    readers = [use.node for use in node.outputs[0].uses() if use.node.op_type == op_type]
    return readers[0] if len(readers) == 1 else None


def _behind_cast(cast: ir.Node) -> Scaling | None:
    """Read ``Mul(Sub(Cast(q), z), s)``, where Sub may be left out."""
    shifted = _only_reader(cast, "Sub")
    zero = _constant(shifted, 1) if shifted is not None else None
    scaled = _only_reader(shifted or cast, "Mul")
    scale = _constant(scaled, 1) if scaled is not None else None
    return None if scale is None else Scaling(scales=(scale,), zero=zero)


def _behind_product(product: ir.Node, weight: Operand) -> Scaling | None:
    """Read ``Mul(Cast(MatMulInteger(x, q, zx, z)), Mul(sx, s))``."""
    cast = _only_reader(product, "Cast")
    scaled = _only_reader(cast, "Mul") if cast is not None else None
    factors = [v.producer() for v in scaled.inputs if v is not None] if scaled is not None else []
    factor = next((p for p in factors if p is not None and p.op_type == "Mul"), None)
    if factor is None:
        return None
    scale = _constant(factor, 1) or _constant(factor, 0)
    zero = _constant(product, weight.zero_point)
    return None if scale is None else Scaling(scales=(scale,), zero=zero, axis=weight.axis)
