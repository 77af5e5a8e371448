"""Operators of optimized graphs: which multiply, and which of those in integers."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx

from quantkit.files import scratch
from quantkit.graph.load import read_structure
from quantkit.graph.messages import proto_graphs
from quantkit.ops.float_ops import FLOAT_PRODUCTS
from quantkit.ops.integer_ops import INTEGER_OPS, INTEGER_PRODUCTS, is_quantized
from quantkit.result import Runs
from quantkit.runtime.session import make_session

__all__ = [
    "PRODUCTS",
    "dynamic_tensors",
    "file_nodes",
    "is_integer",
    "kind_of",
    "optimized_nodes",
]

# Conv is both onnx's and that of the domain com.microsoft.nchwc.
PRODUCTS = INTEGER_PRODUCTS | FLOAT_PRODUCTS
# MatMulNBits multiplies in integers at this accuracy_level alone; at others weights become float for each product.
_INTEGER_LEVEL = 4


def optimized_nodes(model: Path) -> tuple[onnx.NodeProto, ...]:
    """Return the nodes that a session as users make it would run, subgraphs included.

    The optimized graph with its weights is on disk, in a temporary folder, while it is read.

    Raises:
        An exception in `quantkit.runtime.session.RUNTIME_ERRORS`: onnxruntime does not load the model.
    """
    with scratch() as folder:
        saved = folder / "optimized.onnx"
        # Nothing is run: kernels need no copies of the weights. The graph is the same.
        make_session(str(model), prepack=False, optimized_path=saved)
        return tuple(_nodes(onnx.load(saved, load_external_data=False)))


def file_nodes(model: Path) -> tuple[onnx.NodeProto, ...]:
    """Return the nodes of the file as it is, subgraphs included, functions not."""
    return tuple(_nodes(read_structure(model)))


def _nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    return (node for graph in proto_graphs(model.graph) for node in graph.node)


def is_integer(node: onnx.NodeProto) -> bool:
    """Say whether a node computes on integers, product or not."""
    if node.op_type == "MatMulNBits":
        return any(a.name == "accuracy_level" and a.i == _INTEGER_LEVEL for a in node.attribute)
    row = INTEGER_OPS.get(node.op_type)
    return is_quantized(node.op_type) if row is None else row.in_integers


def dynamic_tensors(nodes: Iterable[onnx.NodeProto]) -> frozenset[str]:
    """Return what DynamicQuantizeLinear makes: integers whose range is taken at run time."""
    made = (node for node in nodes if node.op_type == "DynamicQuantizeLinear")
    return frozenset(name for node in made for name in node.output)


def kind_of(product: onnx.NodeProto, dynamic: frozenset[str]) -> Runs:
    """Say how a product of an optimized graph is computed; `dynamic`: see `dynamic_tensors`."""
    if not is_integer(product):
        return "float"
    taken = INTEGER_OPS[product.op_type].dynamic or not dynamic.isdisjoint(product.input)
    return "dynamic" if taken else "integer"
