"""Weights of few bits as a runtime sees them once it has loaded a file: constants again, not nodes that make them.

`quantkit.quantize.emit.packed` writes codes as planes of bits and nodes that put them together. Whoever compares weights or looks for integers wants what comes of that. The model is changed in
memory alone; contents are computed each time they are read.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from quantkit.model.graph.compute import Array, Computation
from quantkit.model.graph.edit import (
    add_initializer,
    constant,
    discard,
    is_op,
    own_name,
    value_names,
)
from quantkit.model.graph.mapping import lazy
from quantkit.model.graph.opset import opset_of
from quantkit.model.ops.integer_ops import BLOCKWISE, UNPACKS

STORED_BYTES = "quantkit.stored_bytes"
"""In `ir.Value.meta` of a constant that was packed: what it takes in the file."""

_SUFFIXES = ("_codes_plane0", "_codes")


@dataclass(frozen=True, slots=True)
class _Made:
    """A constant that nodes make of others.

    Attributes:
        read: Computes it.
        dtype: Of its values.
        sources: The initializers that it is made of.
        shifted: Bits were taken apart on the way.
    """

    read: Callable[[], Array]
    dtype: ir.DataType
    sources: frozenset[ir.Value]
    shifted: bool


def unpack(model: ir.Model) -> int:
    """Put constants in the place of nodes that make weights of packed bits, in place; return how many."""
    names = value_names(model)
    count = 0
    for graph in model.graphs():
        made: dict[ir.Value, _Made] = {}
        for node in graph:
            found = _made(node, opset_of(model), made)
            if found is not None:
                made[node.outputs[0]] = found
        count += sum(_replaced(graph, value, one, made, names.fresh) for value, one in made.items())
        for node in [n for n in reversed(graph) if n.outputs and n.outputs[0] in made]:
            if not node.outputs[0].uses() and not node.outputs[0].is_graph_output():
                discard(node)
        unread = [
            n for n, v in graph.initializers.items() if not v.uses() and not v.is_graph_output()
        ]
        for name in unread if count else ():
            del graph.initializers[name]
    return count


def _made(node: ir.Node, opset: int, known: Mapping[ir.Value, _Made]) -> _Made | None:
    """Return how a node's result is computed from constants; None if it is not, or not by what packs weights."""
    if not is_op(node, *UNPACKS) or len(node.outputs) != 1:
        return None
    inputs = []
    for value in node.inputs:
        own = known.get(value) if value is not None else None
        tensor = constant(value) if own is None else None
        if value is None or (own is None and tensor is None):
            return None
        inputs.append(own or _Made(tensor.numpy, tensor.dtype, frozenset({value}), False))  # type: ignore[union-attr]
    to = node.attributes.get_int("to", 0) if node.op_type == "Cast" else 0
    compute = Computation(node, opset)
    return _Made(
        lambda: compute(*(one.read() for one in inputs)),
        ir.DataType(to) if to else inputs[0].dtype,
        frozenset().union(*(one.sources for one in inputs)),
        node.op_type == "BitShift" or any(one.shifted for one in inputs),
    )


def _replaced(
    graph: ir.Graph,
    value: ir.Value,
    one: _Made,
    made: Mapping[ir.Value, _Made],
    fresh: Callable[[str], str],
) -> bool:
    """Let nodes that compute something read a constant where they read what was put together."""
    readers = [u for u in value.uses() if not (u.node.outputs and u.node.outputs[0] in made)]
    if not readers or not (one.shifted or any(u.node.op_type in BLOCKWISE for u in readers)):
        return False
    array = one.read()
    tensor = lazy(one.read, one.dtype, array.shape, None)
    own = add_initializer(graph, fresh(_name(one)), tensor)
    own.meta[STORED_BYTES] = sum(s.const_value.nbytes for s in one.sources if s.const_value)
    for use in readers:
        use.node.replace_input_with(use.idx, own)
    return True


def _name(one: _Made) -> str:
    """Return what the weight was called, as other quantized weights are."""
    names = sorted(own_name(source) for source in one.sources)
    for suffix in _SUFFIXES:
        for name in names:
            if name.endswith(suffix):
                return f"{name.removesuffix(suffix)}_quantized"
    return f"{names[0]}_unpacked"
