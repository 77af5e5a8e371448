"""Coverage "all" written down: the file looks as onnxruntime's own tool would write it, since its users' scripts read it.

Scales and zero points are named after their tensor and hold their numbers in typed fields, a bias has a zero point, a weight
is restored once for all that read it, and operators that multiply no weight have their bias in integers too.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.model.graph.edit import optional, own_name, owner_of, producer_of
from quantkit.model.ops.float_ops import COVERED_SLOTS
from quantkit.model.ops.integer_ops import CONVERSIONS
from quantkit.numerics.dtypes import int_type
from quantkit.numerics.packing import pack
from quantkit.quantize.emit.parts import Bias, Parts, ProductParts
from quantkit.quantize.emit.qdq import QdqWriter

_BIAS = 2


class CoveredParts(Parts):
    """Makes the constants of a plan of coverage "all"."""

    __slots__ = ()

    def _activation_slots(self, node: ir.Node) -> Iterable[int]:
        product = self.is_product(node)
        slots = COVERED_SLOTS.get(node.op_type, range(len(node.inputs)))
        return [slot for slot in slots if not (slot and product)]

    def _shared_as(self, name: str) -> str:
        return name

    def _constant(self, graph: ir.Graph, array: NDArray[Any], name: str) -> ir.Value:
        return self.canvas.initializer(graph, _in_fields(array), name)

    def _bias_name(self, node: ir.Node) -> str:
        value = optional(node, _BIAS)
        return (value and value.name) or f"{node.name}_bias"

    def _integer_bias(
        self, graph: ir.Graph, base: str, stored: NDArray[np.int32], steps: NDArray[Any]
    ) -> Bias:
        """Add a bias with a zero point, and never without an axis: tools that read such files expect both."""
        zero, base = np.zeros(steps.shape, np.int32), f"{base}_quantized"
        add_zero = self.canvas.constant if zero.size > 1 else self._constant
        return (
            self.canvas.constant(graph, stored, base),
            self.canvas.constant(graph, steps, f"{base}_scale"),
            add_zero(graph, zero, f"{base}_zero_point"),
        )

    def added(self, node: ir.Node) -> Bias | None:
        """Return bias, scale and zero point of a node whose other inputs have one scale each; None if it keeps its own."""
        scales = [self._scale_of(value, node) for value in node.inputs[:_BIAS]]
        bias = self.float_bias(node)
        if bias is None or not self.plan.integer_bias or len(scales) < _BIAS:
            return None
        x, w = scales
        if x is None or w is None or x.size != 1 or w.size not in {1, bias.size}:
            return None
        # No scale would be widened for it: where it does not fit it stays float.
        shape = (-1,) if w.size > 1 else ()
        return self._bias(node, float(x.reshape(())), w.reshape(shape))

    def _scale_of(self, value: ir.Value | None, node: ir.Node) -> NDArray[np.float32] | None:
        """Return the scale in which a node reads a value: the plan's, or that of a file that has it in integers already."""
        decided = self.plan.activation.get(own_name(value)) if value is not None else None
        if decided is not None:
            return np.asarray(decided.read_by(own_name(node)).scale, np.float32)
        maker = producer_of(value)
        if maker is None or maker.op_type != "DequantizeLinear":
            return None
        tensor = ir.convenience.get_const_tensor(maker.inputs[1])  # type: ignore[arg-type]
        return None if tensor is None else tensor.numpy().astype(np.float32)

    def order_parameters(self) -> None:
        """Put scales and zero points where tools look for them, in all graphs."""
        for graph in self.canvas.model.graphs():
            _order_parameters(graph)


def _order_parameters(graph: ir.Graph) -> None:
    """Put zero points and scales before other constants, in the order in which operators meet what they are of.

    So onnxruntime's tool writes them, and whoever reads a file by hand finds them. A zero point stands before its scale.
    """
    first: dict[str, ir.Value] = {}
    for node in graph:
        if node.op_type in CONVERSIONS:
            continue
        around = [value.producer() for value in node.inputs if value is not None]
        around += [use.node for out in node.outputs for use in out.uses()]
        for pair in around:
            if pair is None or pair.op_type not in CONVERSIONS or pair.graph is not graph:
                continue
            for value in (*pair.inputs[2:], pair.inputs[1]):
                if value is not None and value.name in graph.initializers:
                    first.setdefault(str(value.name), value)
    rest = [value for name, value in graph.initializers.items() if name not in first]
    for value in (*first.values(), *rest):
        graph.initializers.pop(own_name(value))
        graph.register_initializer(value)


def _in_fields(array: NDArray[Any]) -> ir.TensorProtocol:
    """Return a small tensor whose numbers stand in the fields of their type, not as bytes."""
    kind = ir.DataType.from_numpy(array.dtype)
    proto = onnx.TensorProto(data_type=int(kind), dims=array.shape)
    if kind is ir.DataType.FLOAT:
        proto.float_data.extend(array.reshape(-1).tolist())
    elif kind is ir.DataType.FLOAT16:  # its bits
        proto.int32_data.extend(array.reshape(-1).view(np.uint16).tolist())
    elif kind in {ir.DataType.INT4, ir.DataType.UINT4}:  # two in a byte
        packed = pack(array.astype(np.int8), int_type(kind.name.lower()))
        proto.int32_data.extend(packed.tolist())
    else:
        proto.int32_data.extend(array.reshape(-1).astype(np.int64).tolist())
    return ir.serde.deserialize_tensor(proto)


@dataclass(slots=True)
class CoveredWriter(QdqWriter):
    """Writes pairs, called as other tools of onnxruntime look for them."""

    parts: CoveredParts
    _weights: dict[tuple[ir.Value, ir.Value, ir.Graph], ir.Value] = field(default_factory=dict)

    def _weight(self, made: ProductParts, node: ir.Node) -> ir.Value:
        graph = owner_of(node)
        key = (made.weight, made.scale, graph)
        if key not in self._weights:
            self._weights[key] = self._restored_weight(made, made.tensor, node, self.first[graph])
        return self._weights[key]

    def _keeps_beta(self, made: ProductParts) -> bool:
        return made.bias[0] is None

    def _bias_base(self, bias: ir.Value) -> str:
        return (bias.name or "bias").removesuffix("_quantized")

    def _names(self, op_type: str, base: str, suffix: str) -> tuple[str, str]:
        return f"{base}_{op_type}_Output{suffix}", f"{base}_{op_type}{suffix}"

    def _is_constant(self, value: ir.Value) -> bool:
        producer = value.producer()
        return value.is_initializer() or (producer is not None and producer.op_type == "Constant")

    def _float_name(self, name: str) -> str:
        return f"{name}_QuantizeLinear_Input"
