"""What the integer products of a file read: the integers themselves, their type and their zero point."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.graph.mapping import mapped_model
from quantkit.runtime.saturation import IntegerProduct
from quantkit.runtime.session import make_session, readable_ir_version
from quantkit.runtime.synthetic_inputs import Feeds

__all__ = ["Taps", "activation_type", "becomes_uint8", "constant", "tapped", "zero_point"]

Taps = Mapping[str, Sequence[NDArray[Any]]]
"""Values by name, one map per sample."""

# They read floats, and quantize them on their own.
_READ_FLOATS = frozenset({"DynamicQuantizeLSTM", "DynamicQuantizeMatMul"})
_QDQ = frozenset({"Conv", "Gemm", "MatMul"})
# The slot of the activation's zero point, where it is not 2.
_ZERO_SLOTS: Mapping[str, int] = {"MatMulIntegerToFloat": 4, "QAttention": 6}


def tapped(path: Path, products: Sequence[IntegerProduct], samples: Sequence[Feeds]) -> Taps:
    """Run a file with optimization off; return what its products read: integers, and zero points that are computed.

    Products that quantize what they read on their own, or that stand in a subgraph, are left out.

    Raises:
        An exception in `quantkit.runtime.session.RUNTIME_ERRORS`: it does not run with optimization off.
    """
    values = [v for p in products for v in (p.reads, zero_point(p)) if v is not None]
    computed = {v.name or "" for v in values if ir.convenience.get_const_tensor(v) is None}
    mapped = mapped_model(path, readable_ir_version)
    proto = onnx.ModelProto.FromString(mapped.structure)
    # Three places where a product's integers come from: the model's inputs (they are in the sample already), nodes of
    # the main graph (they become outputs), and constants (the caller has them). Optimization is off, since
    # onnxruntime would fuse the very tensor away that is asked for. What an If or Loop makes cannot be an output of
    # the main graph, and is left out.
    fed = {value.name for value in proto.graph.input} & computed
    listed = {value.name for value in proto.graph.output}
    names = sorted({name for node in proto.graph.node for name in node.output} & computed)
    if not samples or not names:
        return {name: [sample[name] for sample in samples] for name in fed}
    proto.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n not in listed)
    session = make_session(
        proto.SerializeToString(), folder=mapped.folder, level=0, prepack=False, spinning=False
    )
    found: dict[str, list[NDArray[Any]]] = {name: [] for name in (*fed, *names)}
    for sample in samples:
        made = dict(zip(names, session.run(names, dict(sample)), strict=True))
        for name, arrays in found.items():
            arrays.append(made[name] if name in made else sample[name])
    return found


def becomes_uint8(product: IntegerProduct) -> bool:
    """Say whether onnxruntime computes it with uint8 on x86 though the file says int8."""
    return product.node.op_type in _QDQ and activation_type(product) is ir.DataType.INT8


def activation_type(product: IntegerProduct) -> ir.DataType:
    """Return the type of the activation: that of its zero point, uint8 without one."""
    zero = zero_point(product)
    tensor = None if zero is None else ir.convenience.get_const_tensor(zero)
    return ir.DataType.UINT8 if tensor is None else tensor.dtype


def zero_point(product: IntegerProduct) -> ir.Value | None:
    """Return the activation's: beside it, or in the DequantizeLinear that a QDQ operator reads."""
    source = product.node.inputs[0]
    maker = None if source is None or source is product.reads else source.producer()
    node = product.node if maker is None else maker
    slot = _ZERO_SLOTS.get(node.op_type, 2)
    return node.inputs[slot] if len(node.inputs) > slot else None


def constant(value: ir.Value | None, default: Any) -> NDArray[Any]:
    """Return a constant, or a default for what is left out or computed."""
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return np.asarray(default) if tensor is None else tensor.numpy()
