"""Constants as a model stores them: their type, and the floats that integers stand for.

An integer constant means nothing by itself. Its scale and zero point are found at who reads it:

    DequantizeLinear(q, s, z)          QLinearConv(..., q, s, z, ...), QLinearMatMul, QGemm
    Mul(Sub(Cast(q), z), s)            MatMulInteger(x, q, zx, z) -> Cast -> Mul(., Mul(sx, s))

all of which stand for ``w = (q - z) s``, also behind a Gather of rows. A bias of QLinearConv or QGemm has the scale
of input times weight.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from quantkit.diff.scaling import Floats, Scaling, scaling_of
from quantkit.ops.integer_ops import scale_slots

__all__ = ["Stored", "dtype_name", "stored_constants"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One initializer.

    Attributes:
        value: The initializer.
        tensor: Its contents, unread.
        scaling: How its integers become floats; None: it means itself.
    """

    value: ir.Value
    tensor: ir.TensorProtocol
    scaling: Scaling | None = None

    @property
    def name(self) -> str:
        """The name of the constant."""
        return self.value.name or ""

    @property
    def dtype(self) -> str:
        """The type in which it is stored: "float", "int8"."""
        return dtype_name(self.tensor.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in which it is stored."""
        return tuple(int(n) for n in self.tensor.shape.numpy())

    def floats(self) -> Floats:
        """Return what it stands for; read anew each time."""
        array = self.tensor.numpy()
        return array.astype(np.float32) if self.scaling is None else self.scaling.restored(array)


def dtype_name(dtype: ir.DataType) -> str:
    """Return "float32" for FLOAT, "int8" for INT8."""
    name = str(dtype.name).lower()
    return {"float": "float32", "double": "float64"}.get(name, name)


def stored_constants(model: ir.Model) -> dict[str, Stored]:
    """Return all initializers but scales and zero points, by name."""
    found = [_stored(v, v.const_value) for v in _initializers(model) if v.const_value is not None]
    parameters = set(_parameters(model))
    for constant in found:
        if constant.scaling is not None:
            parameters.update(constant.scaling.scales)
            parameters.add(constant.scaling.zero)
    return {c.name: c for c in found if c.value not in parameters}


def _initializers(model: ir.Model) -> Iterator[ir.Value]:
    for graph in model.graphs():
        yield from graph.initializers.values()


def _parameters(model: ir.Model) -> Iterator[ir.Value | None]:
    """Yield what operators read as scales and zero points."""
    for node in model.graph.all_nodes():
        for slot in scale_slots(node.op_type, len(node.inputs)):
            yield node.inputs[slot]


def _stored(value: ir.Value, tensor: ir.TensorProtocol) -> Stored:
    scaling = scaling_of(value) if tensor.dtype.is_integer() and tensor.size > 1 else None
    return Stored(value=value, tensor=tensor, scaling=scaling)
