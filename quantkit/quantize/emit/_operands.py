"""What a plan guarantees of a graph: operands that are there, tensors that are constant, values that a node makes."""

from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.model.graph.edit import owner_of


def operand(node: ir.Node, slot: int) -> ir.Value:
    """Return a required input of a node."""
    value = node.inputs[slot]
    assert value is not None  # noqa: S101 - ONNX requires it
    return value


def tensor_of(value: ir.Value) -> ir.TensorProtocol:
    """Return the contents of a value that the plan knows to be constant."""
    tensor = ir.convenience.get_const_tensor(value)
    assert tensor is not None  # noqa: S101 - the planner read it
    return tensor


def array_of(value: ir.Value) -> NDArray[Any]:
    """Return the contents of a small constant."""
    return tensor_of(value).numpy()


def shape_of(tensor: ir.TensorProtocol) -> tuple[int, ...]:
    """Return the extents of a tensor, which are known."""
    return tuple(int(n) for n in tensor.shape.numpy())


def maker_of(value: ir.Value) -> ir.Node:
    """Return the node that makes a value, which is neither an input nor an initializer."""
    maker = value.producer()
    assert maker is not None  # noqa: S101 - a node was inserted for it
    return maker


def graph_of(value: ir.Value) -> ir.Graph:
    """Return the graph in which a value is made or declared."""
    maker = value.producer()
    graph = value.graph if maker is None else owner_of(maker)
    assert isinstance(graph, ir.Graph)  # noqa: S101 - functions are inlined at load
    return graph


def factor(node: ir.Node, name: str) -> float:
    """Return alpha or beta of a Gemm; 1 of other operators."""
    return node.attributes.get_float(name, 1.0) if node.op_type == "Gemm" else 1.0
