"""What onnxruntime really computes in integers, read from the graph that it optimized.

A model in QDQ form only asks for integer arithmetic. Whether a Conv between DequantizeLinear and
QuantizeLinear becomes a QLinearConv is decided when a session is made, and one that does not match
onnxruntime's patterns is computed in float, slower than before. So the session saves its optimized
graph to a temporary folder, and the nodes of that graph are counted.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

import onnx

from quantkit.graph._proto import proto_graphs
from quantkit.graph._wire import split
from quantkit.graph.mapping import MappedFile
from quantkit.runtime import make_session

__all__ = ["Fusion", "fusion_of"]

# Kernels that multiply with weights in integers.
_INTEGER_PRODUCTS = frozenset(
    {"ConvInteger", "QAttention", "QGemm", "QLinearConv", "QLinearMatMul"}
)
_INTEGER_PRODUCTS |= {"MatMulInteger", "MatMulIntegerToFloat", "MatMulNBits"}
_INTEGER_PRODUCTS |= {"DynamicQuantizeLSTM", "DynamicQuantizeMatMul"}
# Other kernels on integers, beside QLinearAdd, QLinearConcat and all else named QLinear...
_INTEGER_OTHERS = frozenset({"QEmbedLayerNormalization"})
# Conv is both onnx's and that of the domain com.microsoft.nchwc.
_FLOAT_PRODUCTS = frozenset({"Conv", "ConvTranspose", "FusedConv", "NhwcFusedConv"})
_FLOAT_PRODUCTS |= {"FusedGemm", "FusedMatMul", "Gemm", "MatMul"}
_FLOAT_PRODUCTS |= {"Attention", "GRU", "LSTM", "MultiHeadAttention", "RNN"}
_CONVERSIONS = frozenset({"DequantizeLinear", "DynamicQuantizeLinear", "QuantizeLinear"})
# onnxruntime names a fused node after one of its parts, or after the tensor that it makes.
_AFFIXES = ("fused ", "_nchwc", "/MatMulScaleFusion/", "/MatMulAddFusion/")
_FURTHEST = 8  # nodes between a product and the tensor that a fused node is named after


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """The kernels of an optimized graph, subgraphs included.

    Attributes:
        integer: Nodes that compute on integers, by operator; products and all others.
        float: Products that are computed in float, by operator.
        conversions: QuantizeLinear and DequantizeLinear that are left and run every time.
        float_products: The names, in the given model, of the products that are computed in float
            (an unnamed one goes by its first output; one that cannot be traced back goes by
            onnxruntime's name for it).
    """

    integer: Mapping[str, int]
    float: Mapping[str, int]
    conversions: Mapping[str, int]
    float_products: tuple[str, ...]

    @property
    def integer_products(self) -> dict[str, int]:
        """Products that are computed in integers, by operator."""
        return {op: n for op, n in self.integer.items() if op in _INTEGER_PRODUCTS}

    @property
    def integer_count(self) -> int:
        """How many products are computed in integers."""
        return sum(self.integer_products.values())

    @property
    def product_count(self) -> int:
        """All products."""
        return self.integer_count + sum(self.float.values())

    def to_json(self) -> dict[str, object]:
        """Return plain data."""
        return {
            "integer": dict(self.integer),
            "float": dict(self.float),
            "conversions": dict(self.conversions),
            "float_products": list(self.float_products),
        }


def fusion_of(model: Path) -> Fusion:
    """Make a session as users do and count what it runs.

    The optimized graph with its weights is on disk, in a temporary folder, while it is read.

    Raises:
        An exception in `quantkit.runtime.RUNTIME_ERRORS`: onnxruntime does not load the model.
    """
    with TemporaryDirectory() as folder:
        saved = Path(folder) / "optimized.onnx"
        # Nothing is run: kernels need no copies of the weights. The graph is the same.
        make_session(str(model), prepack=False, optimized_path=saved)
        nodes = tuple(_nodes(onnx.load(saved, load_external_data=False)))
    left = [node for node in nodes if node.op_type in _FLOAT_PRODUCTS]
    origins = _Origins(_nodes(onnx.ModelProto.FromString(split(MappedFile(model).view()))))
    return Fusion(
        integer=_counted(node.op_type for node in nodes if _is_integer(node.op_type)),
        float=_counted(node.op_type for node in left),
        conversions=_counted(node.op_type for node in nodes if node.op_type in _CONVERSIONS),
        float_products=tuple(origins.find(node) for node in left),
    )


def _nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    return (node for graph in proto_graphs(model.graph) for node in graph.node)


def _counted(op_types: Iterable[str]) -> Mapping[str, int]:
    return MappingProxyType(dict(sorted(Counter(op_types).items())))


def _is_integer(op_type: str) -> bool:
    known = op_type in _INTEGER_PRODUCTS or op_type in _INTEGER_OTHERS
    return known or op_type.startswith("QLinear")


class _Origins:
    """Finds the product of the given model that a node of the optimized graph stands for."""

    def __init__(self, nodes: Iterable[onnx.NodeProto]) -> None:
        self.producers = {name: node for node in nodes for name in node.output if name}
        products = (n for n in self.producers.values() if n.op_type in _FLOAT_PRODUCTS)
        self.names = {_label(node) for node in products}

    def find(self, node: onnx.NodeProto) -> str:
        """Return the product's name: by name, else by the tensor that the node makes."""
        bare = reduce(lambda text, affix: text.replace(affix, ""), _AFFIXES, node.name)
        named = next((name for name in (node.name, bare) if name in self.names), None)
        made = (self._before(tensor) for tensor in (*node.output, bare))
        return named or next((name for name in made if name), _label(node))

    def _before(self, tensor: str) -> str | None:
        """Return the nearest product before a tensor, or None if there is none near."""
        for _ in range(_FURTHEST):
            node = self.producers.get(tensor)
            if node is None:
                return None
            if _label(node) in self.names:
                return _label(node)
            tensor = next((name for name in node.input if name in self.producers), "")
        return None


def _label(node: onnx.NodeProto) -> str:
    return node.name or node.output[0]
