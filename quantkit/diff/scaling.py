"""How the integers of a constant become floats, read off the nodes that use them; see `quantkit.diff.stored`."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

__all__ = ["Floats", "Scaling", "array_of", "scaling_of"]

Floats = NDArray[np.float32]
# Of operators that read integers: input slots of weight, scale and zero point, and the axis of the scales.
_READERS: dict[str, tuple[int, int, int, int]] = {
    "QLinearConv": (3, 4, 5, 0),
    "QLinearMatMul": (3, 4, 5, -1),
    "QGemm": (3, 4, 5, 1),
    "DynamicQuantizeMatMul": (1, 2, 3, -1),
    "MatMulIntegerToFloat": (1, 3, 5, -1),
}
# Slots of a bias, and of the scales whose product is its scale.
_BIASES: dict[str, tuple[int, int, int]] = {"QLinearConv": (8, 1, 4), "QGemm": (6, 1, 4)}
_PRODUCT_AXIS = {"MatMulInteger": -1, "ConvInteger": 0}
_PRODUCT_ZERO = 3


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
        case (("MatMulInteger" | "ConvInteger"), 1):
            found = _behind_product(node)
        case "Cast", _:
            found = _behind_cast(node)
        case "Gather", 0:
            found = scaling_of(node.outputs[0])
        case _:
            found = _of_operator(node, slot)
    return found


def _of_operator(node: ir.Node, slot: int) -> Scaling | None:
    """Return what an operator on integers says of its weight or bias."""
    kind = node.op_type
    if kind in _READERS and slot == _READERS[kind][0]:
        _, scale, zero, axis = _READERS[kind]
        axis = 0 if kind == "QGemm" and _integer(node, "transB", 0) else axis
        return _of_slots(node, scale, zero, axis)
    if kind in _BIASES and slot == _BIASES[kind][0]:
        scales = [_constant(node, i) for i in _BIASES[kind][1:]]
        known = tuple(s for s in scales if s is not None)
        return Scaling(scales=known) if len(known) == len(scales) else None
    return None


def _integer(node: ir.Node, name: str, default: int) -> int:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_int()


def _of_slots(node: ir.Node, scale: int, zero: int, axis: int, block: int = 0) -> Scaling | None:
    s, z = _constant(node, scale), _constant(node, zero)
    return None if s is None else Scaling(scales=(s,), zero=z, axis=axis, block=block)


def _constant(node: ir.Node, slot: int) -> ir.Value | None:
    """Return a constant input; where rows of one are looked up, that one."""
    value = node.inputs[slot] if slot < len(node.inputs) else None
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


def _behind_product(product: ir.Node) -> Scaling | None:
    """Read ``Mul(Cast(MatMulInteger(x, q, zx, z)), Mul(sx, s))``."""
    cast = _only_reader(product, "Cast")
    scaled = _only_reader(cast, "Mul") if cast is not None else None
    factors = [v.producer() for v in scaled.inputs if v is not None] if scaled is not None else []
    factor = next((p for p in factors if p is not None and p.op_type == "Mul"), None)
    if factor is None:
        return None
    scale = _constant(factor, 1) or _constant(factor, 0)
    axis, zero = _PRODUCT_AXIS[product.op_type], _constant(product, _PRODUCT_ZERO)
    return None if scale is None else Scaling(scales=(scale,), zero=zero, axis=axis)
