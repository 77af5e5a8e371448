"""Single nodes computed outside of a runtime, by onnx's reference implementation."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

Array = NDArray[Any]

# What the reference implementation raises on nodes that are wrong, or of a version that it does not know.
REFUSALS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)


class Computation:
    """What a node of one output computes; it outlives the node."""

    def __init__(self, node: ir.Node, opset: int) -> None:
        """Take over a node.

        Args:
            node: A node of the default domain, without subgraphs.
            opset: Of its model: alone, the node would be read as one of the newest opset.
        """
        proto = ir.serde.serialize_node(node)
        names = ["" if value is None else f"input{i}" for i, value in enumerate(node.inputs)]
        proto.input[:], proto.output[:] = names, ["output"]
        self._model = onnx.ModelProto(ir_version=onnx.IR_VERSION)
        self._model.opset_import.add(domain="", version=opset)
        self._model.graph.node.append(proto)
        self._model.graph.input.extend(onnx.ValueInfoProto(name=name) for name in names if name)
        self._model.graph.output.add(name="output")

    def __call__(self, *arrays: Array | None) -> Array:
        """Compute the output from all inputs; None stands for one that is left out.

        Raises:
            An exception in `REFUSALS`: the node is wrong, or of an unknown version.
        """
        from onnx.reference import ReferenceEvaluator

        feeds = {f"input{i}": array for i, array in enumerate(arrays) if array is not None}
        results: Any = ReferenceEvaluator(self._model).run(None, feeds)
        return np.asarray(results[0])
