"""How an activation is quantized in a graph: scale, zero point and type, and what that does to values.

q = clip(rint(x / s) + z, qmin, qmax)        x' = (q - z) * s
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from quantkit.match.structure import Structure
from quantkit.ops.integer_ops import INTEGER_OPS, Role

__all__ = ["DYNAMIC", "Quantizer", "made_by", "quantizer_of"]

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Quantizer:
    """One scale and zero point for a whole activation; `scale` None: chosen at run time from its values, in uint8."""

    scale: float | None
    zero_point: int = 0
    dtype: str = "uint8"

    @property
    def ends(self) -> tuple[int, int]:
        """The least and the largest integer."""
        info = np.iinfo(self.dtype)
        return int(info.min), int(info.max)

    @property
    def bits(self) -> int:
        """How many bits its integers have."""
        return 8 * np.dtype(self.dtype).itemsize

    @property
    def clips_below_zero(self) -> bool:
        """Whether no negative value survives."""
        return self.scale is not None and self.zero_point == self.ends[0]

    def integers(self, array: Array) -> Array:
        """Return q, as QuantizeLinear gives it."""
        scale, zero = self._numbers(array)
        q = np.rint(array / np.float32(scale)) + zero
        return np.asarray(np.clip(q, *self.ends).astype(self.dtype))

    def floats(self, integers: Array) -> Array:
        """Return ``(q - z) * s``."""
        assert self.scale is not None  # noqa: S101 - only calibrated integers are kept
        shifted = integers.astype(np.float32) - np.float32(self.zero_point)
        return np.asarray(shifted * np.float32(self.scale))

    def both(self, array: Array) -> Array:
        """Return the values that come back from the integers."""
        scale, zero = self._numbers(array)
        q = np.clip(np.rint(array / np.float32(scale)) + zero, *self.ends)
        return np.asarray(((q - zero) * scale).astype(np.float32))

    def needed(self, low: float, high: float) -> float:
        """Return the least scale at which, with this zero point, nothing in [low, high] is clipped."""
        qmin, qmax = self.ends
        above = high / (qmax - self.zero_point) if qmax > self.zero_point else 0.0
        below = low / (qmin - self.zero_point) if qmin < self.zero_point else 0.0
        return max(above, below, 0.0)

    def _numbers(self, array: Array) -> tuple[float, int]:
        if self.scale is not None:
            return self.scale, self.zero_point
        low, high = min(float(array.min()), 0.0), max(float(array.max()), 0.0)
        scale = (high - low) / 255 or 1.0
        return scale, int(np.clip(np.rint(-low / scale), 0, 255))


DYNAMIC = Quantizer(None)


def quantizer_of(model: Structure, node: onnx.NodeProto) -> Quantizer | None:
    """Return what a QuantizeLinear, DequantizeLinear or DynamicQuantizeLinear does, if it is one and has one scale."""
    if node.op_type == "DynamicQuantizeLinear":
        return DYNAMIC
    row = INTEGER_OPS.get(node.op_type)
    if row is None or row.role is not Role.CONVERTS:
        return None
    slots = row.result or (row.reads[0].scale, row.reads[0].zero_point)
    return _quantizer_at(model, node, slots)


def made_by(model: Structure, node: onnx.NodeProto) -> Quantizer | None:
    """Return scale and zero point of the integers that a QLinear operator makes; None for other nodes."""
    row = INTEGER_OPS.get(node.op_type)
    if row is None or row.result is None or row.role is Role.CONVERTS:
        return None
    return _quantizer_at(model, node, row.result)


_Slots = tuple[int | None, int | None]  # of scale and zero point


def _quantizer_at(model: Structure, node: onnx.NodeProto, slots: _Slots) -> Quantizer | None:
    scale, zero = (
        model.constant(node.input[i])
        if i is not None and i < len(node.input) and node.input[i]
        else None
        for i in slots
    )
    if scale is None or scale.size != 1:
        return None
    if zero is None:
        return Quantizer(float(scale.reshape(-1)[0]))
    if zero.dtype.kind not in "iu":
        return None
    return Quantizer(float(scale.reshape(-1)[0]), int(zero.reshape(-1)[0]), zero.dtype.name)
