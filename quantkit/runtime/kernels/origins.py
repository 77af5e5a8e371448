"""From a node of the optimized graph back to the product of the file that it stands for.

onnxruntime keeps a product's name, or adds to it, or names the fused node after a tensor. So a node is looked for
by its name, then by the constants it reads, which keep their names, then by the tensors it makes.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import onnx

from quantkit.runtime.kernels.optimized import PRODUCTS

__all__ = ["Origins", "label"]

# onnxruntime names a fused node after one of its parts, or after the tensor that it makes.
_AFFIXES = re.compile(r"fused |_nchwc|/MatMul(Add|Scale)Fusion/?")
_NUMBER = re.compile(r"_token_\d+$")  # what makes a name of its own unique
_LAYOUT = frozenset({"ReorderOutput", "Transpose"})
_FURTHEST = 8  # nodes between a product and the tensor that a fused node is named after
_NEAR = 5  # nodes between a constant and the product that it is the weight of


class Origins:
    """Finds the product of the given file that a node of the optimized graph stands for."""

    def __init__(
        self, given: Sequence[onnx.NodeProto], optimized: Iterable[onnx.NodeProto]
    ) -> None:
        """Look at both graphs once."""
        self.producers = {name: node for node in given for name in node.output if name}
        self.products = [node for node in given if node.op_type in PRODUCTS]
        self.names = {label(node) for node in self.products}
        self.transposed = {
            name: node.output[0]
            for node in optimized
            if node.op_type in _LAYOUT
            for name in node.input[:1]
        }
        self.owners = self._owners()

    def named(self, node: onnx.NodeProto) -> str | None:
        """Return the product that the node is named after."""
        return next((name for name in _bare(node.name) if name in self.names), None)

    def traced(self, node: onnx.NodeProto) -> str | None:
        """Return the only product that reads one of its constants, else the one before what the node makes."""
        owned = (self.owners.get(name) for name in node.input)
        made = (self._before(name) for name in (*self._made(node), *_bare(node.name)))
        return next((name for name in chain(owned, made) if name), None)

    def _made(self, node: onnx.NodeProto) -> Iterator[str]:
        """Yield the tensors that it makes, also in the layout of the file."""
        for name in node.output:
            yield name
            if name in self.transposed:
                yield self.transposed[name]

    def _before(self, tensor: str) -> str | None:
        """Return the nearest product before a tensor, or None if there is none near."""
        for _ in range(_FURTHEST):
            node = self.producers.get(tensor)
            if node is None:
                return None
            if node.op_type in PRODUCTS:
                return label(node)
            tensor = next((name for name in node.input if name in self.producers), "")
        return None

    def _owners(self) -> dict[str, str | None]:
        """Return, for each constant that products read, the product; None if there are several."""
        owners: dict[str, str | None] = {}
        for product in self.products:
            name = label(product)
            for tensor in filter(None, map(self._source, product.input)):
                owners[tensor] = name if owners.get(tensor, name) == name else None
        return owners

    def _source(self, tensor: str) -> str | None:
        """Return what a tensor is made from, if that is near and nobody computes it."""
        for _ in range(_NEAR):
            node = self.producers.get(tensor)
            if node is None:
                return tensor
            if node.op_type in PRODUCTS or not node.input:
                return None
            tensor = node.input[0]
        return None


def label(node: onnx.NodeProto) -> str:
    """Return a node's name; an unnamed one goes by its first output."""
    return str(node.name or node.output[0])


def _bare(name: str) -> tuple[str, ...]:
    """Return a name, without its number, and without what onnxruntime adds."""
    unnumbered = _NUMBER.sub("", name)
    return name, unnumbered, _AFFIXES.sub("", unnumbered)
