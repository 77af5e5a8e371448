"""Blocks of a transformer: what lies between two places where all computation passes through one tensor of the same width.

A block (attention, or the neurons behind it, with the sum that closes it) can be replaced by an affine map, fitted by least squares. Blocks that
follow each other become one map.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise
from math import inf
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass

from quantkit.model.graph.edit import Canvas
from quantkit.model.graph.products import Product
from quantkit.model.graph.shapes import dims

_RANK = 3  # batch, positions, channels
_LEAST = 2  # linear operators, or a map saves nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualBlock:
    """A part of the graph that a map can replace, or several in a row.

    Attributes:
        name: Its first linear operator.
        before: The tensor that it starts from.
        after: The tensor that it computes.
        width: Their last extent.
        nodes: Its nodes.
        number: Its place among all blocks.
    """

    name: str
    before: str
    after: str
    width: int
    nodes: frozenset[str]
    number: int

    @property
    def map(self) -> tuple[str, str, str]:
        """The names of the weight and the bias of its map, and of the flag that turns it on."""
        return f"{self.name}/map", f"{self.name}/map_bias", f"{self.name}/map_on"


def find_blocks(
    model: ir.Model, products: Sequence[Product], exclude: Collection[str] = ()
) -> tuple[ResidualBlock, ...]:
    """Return the blocks of the main graph, in order.

    Args:
        model: With inferred shapes.
        products: Its linear operators.
        exclude: Patterns of names; a block with such a node is left out.
    """
    linear = {product.node for product in products}
    nodes = list(model.graph)
    found: list[ResidualBlock] = []
    cuts = list(_cuts(nodes))
    for (first, before), (last, after) in pairwise(cuts):
        own = [node.name or "" for node in nodes[first + 1 : last + 1]]
        inside = [name for name in own if name in linear]
        kept = any(fnmatchcase(name, pattern) for name in own for pattern in exclude)
        if len(inside) < _LEAST or kept or after.is_graph_output():
            continue
        extents = dims(after)
        assert extents is not None  # noqa: S101 - it is wide
        found.append(
            ResidualBlock(
                name=inside[0],
                before=before.name or "",
                after=after.name or "",
                width=extents[-1] or 0,
                nodes=frozenset(own),
                number=len(found),
            )
        )
    return tuple(found)


def _cuts(nodes: Sequence[ir.Node]) -> Iterator[tuple[int, ir.Value]]:
    """Yield the places where all that depends on the first wide tensor passes through one tensor of its width."""
    start = next(((i, v) for i, n in enumerate(nodes) for v in n.outputs if _width(v)), None)
    if start is None:
        return
    place = {node: number for number, node in enumerate(nodes)}
    first, value = start
    width = _width(value)
    flow, open_until = {value}, {value: _last_use(value, place)}
    yield first, value
    for number in range(first + 1, len(nodes)):
        node = nodes[number]
        if any(one in flow for one in node.inputs):
            flow.update(node.outputs)
            open_until |= {one: _last_use(one, place) for one in node.outputs}
        open_until = {one: last for one, last in open_until.items() if last > number}
        only = next(iter(open_until)) if len(open_until) == 1 else None
        if only is not None and only in node.outputs and _width(only) == width:
            yield number, only


def _width(value: ir.Value) -> int | None:
    extents = dims(value)
    return extents[-1] if extents is not None and len(extents) == _RANK else None


def _last_use(value: ir.Value, place: Mapping[ir.Node, int]) -> float:
    """Return the place of the last consumer; inf if something else than a node of the main graph needs the value."""
    if value.is_graph_output():
        return inf
    return max((place.get(use.node, inf) for use in value.uses()), default=-1)


def joined(blocks: Iterable[ResidualBlock]) -> tuple[ResidualBlock, ...]:
    """Return some blocks, those that follow each other as one."""
    found: list[list[ResidualBlock]] = []
    for block in sorted(blocks, key=lambda one: one.number):
        if found and block.number == found[-1][-1].number + 1:
            found[-1].append(block)
        else:
            found.append([block])
    return tuple(
        ResidualBlock(
            name=run[0].name,
            before=run[0].before,
            after=run[-1].after,
            width=run[0].width,
            nodes=frozenset().union(*(one.nodes for one in run)),
            number=run[0].number,
        )
        for run in found
    )


def add_switched_maps(model: ir.Model, blocks: Iterable[ResidualBlock]) -> None:
    """Add a map beside each block, in place, and a flag that says which of both the graph goes on with: the block, unless it is fed."""
    for block, after, mapped, canvas in _mapped(model, blocks, {}):
        flag = canvas.constant(model.graph, np.array(False), block.map[2])
        readers = [use for use in after.uses() if use.node.graph is model.graph]
        (chosen,) = canvas.node(
            "Where",
            [flag, mapped, after],
            after=mapped.producer(),
            outputs=[f"{block.name}/chosen"],
        )
        for use in readers:
            use.node.replace_input_with(use.idx, chosen)


def replace_by_maps(
    model: ir.Model, blocks: Iterable[ResidualBlock], tensors: Mapping[str, NDArray[Any]]
) -> None:
    """Replace blocks by their maps, in place, and remove what is not needed any more."""
    for _, after, mapped, _ in _mapped(model, blocks, tensors):
        after.replace_all_uses_with(mapped)
    RemoveUnusedNodesPass()(model)


def _mapped(
    model: ir.Model, blocks: Iterable[ResidualBlock], tensors: Mapping[str, NDArray[Any]]
) -> Iterator[tuple[ResidualBlock, ir.Value, ir.Value, Canvas]]:
    """Add the map of each block behind the node that computes its result; yield that result, and the map's."""
    values = {value.name: value for node in model.graph for value in node.outputs}
    canvas = Canvas(model)
    for block in blocks:
        none = {block.map[0]: (block.width, block.width), block.map[1]: (block.width,)}
        weight, bias = (
            canvas.constant(model.graph, tensors.get(name, np.zeros(shape, np.float32)), name)
            for name, shape in none.items()
        )
        after = values[block.after]
        (product,) = canvas.node(
            "MatMul",
            [values[block.before], weight],
            after=after.producer(),
            outputs=[f"{block.name}/mapped"],
        )
        (mapped,) = canvas.node(
            "Add",
            [product, bias],
            after=product.producer(),
            outputs=[f"{block.name}/shifted"],
        )
        yield block, after, mapped, canvas
