"""What onnxruntime makes of float16 arithmetic: where it has no such kernel it computes in float32, between Casts of its own."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx

from quantkit.model.graph.protos import proto_graphs
from quantkit.runtime.kernels.truth import PRODUCTS, optimized_model

_FLOAT = onnx.TensorProto.FLOAT
_HALVES = frozenset({onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16})
# What they make is no float, whatever they read.
_OTHERS = frozenset({"And", "ArgMax", "ArgMin", "Equal", "Greater", "GreaterOrEqual", "IsInf"})
_OTHERS |= {"IsNaN", "Less", "LessOrEqual", "NonZero", "Not", "Or", "Shape", "Size"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfKernels:
    """What a session runs.

    Attributes:
        casts: Casts between float32 and 16 bits that run every time; those of constants were computed once, at load.
        products: Nodes that multiply.
        half_products: Those of them that do it in 16 bits.
    """

    casts: int
    products: int
    half_products: int

    def __str__(self) -> str:
        count = f"{self.casts} {'Cast' if self.casts == 1 else 'Casts'} between float16 and float32"
        if self.half_products:
            ran = f"{self.half_products} of {self.products} layers (Conv, Gemm, MatMul, ...) in float16"
            return f"onnxruntime computes {ran} on this CPU, with {count}"
        return (
            f"onnxruntime computes all {self.products} layers (Conv, Gemm, MatMul, ...) in float32 on this CPU, with {count}: float16 arithmetic gains "
            "no speed here; without it (no --compute) the file is as small, as fast as float and no less exact"
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


def half_kernels(path: Path) -> HalfKernels:
    """Make a session as users do and look at the types that it computes in.

    Raises:
        An exception in `quantkit.runtime.session.RUNTIME_ERRORS`: onnxruntime does not load the model.
    """
    # onnxruntime writes no types of inner values. They are followed from inputs, constants and Casts: whatever else
    # makes floats makes them of the type that it reads.
    products = half_products = casts = 0
    known: dict[str, int] = {}
    for graph in proto_graphs(optimized_model(path).graph):
        known |= {value.name: value.type.tensor_type.elem_type for value in graph.input}
        known |= {tensor.name: tensor.data_type for tensor in graph.initializer}
        for node in graph.node:
            read, made = _floats_of(node, known)
            known |= dict.fromkeys(node.output, made)
            casts += node.op_type == "Cast" and {read, made} in _CASTS
            products += node.op_type in PRODUCTS
            half_products += node.op_type in PRODUCTS and read in _HALVES
    return HalfKernels(casts=casts, products=products, half_products=half_products)


_CASTS = tuple({half, _FLOAT} for half in _HALVES)


def _floats_of(node: onnx.NodeProto, known: Mapping[str, int]) -> tuple[int, int]:
    """Return the float type that a node reads and the one that it makes; 0 for none."""
    kinds = (known.get(name, 0) for name in node.input)
    read = next((kind for kind in kinds if kind in _HALVES or kind == _FLOAT), 0)
    if node.op_type == "Cast":
        return read, next(int(a.i) for a in node.attribute if a.name == "to")
    if node.op_type in {"Constant", "ConstantOfShape"}:
        return 0, next((a.t.data_type for a in node.attribute if a.t.data_type), _FLOAT)
    return read, 0 if node.op_type in _OTHERS else read
