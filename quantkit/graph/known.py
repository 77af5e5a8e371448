"""What passes may know of a value for certain.

Shapes that a file declares for values inside the graph are not trusted: exporters write wrong ones, and
nothing checks them. What counts is what shape inference found from the graph's inputs, which onnxruntime
does check (`quantkit.graph.shapes` leaves it in `Value.meta`), and what constants are.
"""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

__all__ = [
    "Dims",
    "Known",
    "constant",
    "dims",
    "dtype",
    "integers",
    "is_op",
    "known",
    "learn",
    "static",
]

Dims = tuple[int | None, ...]
_KEY = "quantkit.known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Type and extents of a value; an extent that depends on the inputs is None, unknown rank too."""

    dtype: ir.DataType
    dims: Dims | None


def learn(value: ir.Value, known: Known) -> None:
    """Keep what was found of a value; it is not written to the file."""
    value.meta[_KEY] = known


def known(value: ir.Value) -> Known | None:
    """Return what was found of a value; None if nothing was."""
    found = value.meta.get(_KEY)
    return found if isinstance(found, Known) else None


def constant(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Return the tensor that a value always is: an initializer that is no input, or a `Constant`."""
    if value is None:
        return None
    producer = value.producer()
    if producer is None:
        held = value.is_initializer() and not value.is_graph_input()
        tensor = value.const_value if held else None
        # External data that is left is data whose file is missing.
        return None if isinstance(tensor, ir.ExternalTensor) else tensor
    if not is_op(producer, "Constant"):
        return None
    attribute = producer.attributes.get("value")
    return (
        attribute.as_tensor()
        if attribute is not None and attribute.type is ir.AttributeType.TENSOR
        else None
    )


def dims(value: ir.Value | None) -> Dims | None:
    """Return the extents that are certain; None if not even the rank is."""
    if value is None:
        return None
    tensor = constant(value)
    if tensor is not None:
        return tuple(int(n) for n in tensor.shape.numpy())
    found = known(value)
    return None if found is None else found.dims


def static(value: ir.Value | None) -> tuple[int, ...] | None:
    """Return the shape if every extent of it is certain."""
    found = dims(value)
    if found is None:
        return None
    extents = tuple(n for n in found if n is not None)
    return extents if len(extents) == len(found) else None


def dtype(value: ir.Value | None) -> ir.DataType | None:
    """Return the element type if it is certain."""
    if value is None:
        return None
    tensor = constant(value)
    if tensor is not None:
        return tensor.dtype
    found = known(value)
    return None if found is None else found.dtype


def integers(node: ir.Node, slot: int, attribute: str) -> tuple[int, ...] | None:
    """Return a list that older opsets hold in an attribute, newer ones in an input.

    None if it is absent, or computed; `slot` below zero if no opset has it as an input.

    Args:
        node: Whose list it is.
        slot: The input that holds it in newer opsets; below zero: none does.
        attribute: The attribute that holds it in older ones.
    """
    if 0 <= slot < len(node.inputs) and node.inputs[slot] is not None:
        tensor = constant(node.inputs[slot])
        if tensor is None or not tensor.dtype.is_integer():
            return None
        return tuple(int(n) for n in np.asarray(tensor.numpy()).reshape(-1))
    found = node.attributes.get(attribute)
    if found is None or found.type is not ir.AttributeType.INTS:
        return None
    return tuple(found.as_ints())


def is_op(node: ir.Node, *op_types: str) -> bool:
    """Say whether a node is one of these operators of the default domain."""
    return node.op_type in op_types and not node.domain
