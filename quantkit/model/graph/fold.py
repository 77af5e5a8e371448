"""Weights that are assembled from constants when a model runs become initializers.

Exporters cut, stack and turn weights at run time: recurrent layers as Slice, Concat, Unsqueeze of one matrix, linear
layers as Transpose or Reshape, shared layers as Identity. Only data movement is folded; contents stay lazy and are moved
when they are read. A source is folded only if it is then no longer needed, so that nothing is stored twice; results that
are equal are stored once.
"""

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import onnx_ir as ir

from quantkit.model.graph._wire import LIMIT
from quantkit.model.graph.compute import REFUSALS, Array, Computation
from quantkit.model.graph.edit import (
    Names,
    add_initializer,
    constant,
    discard,
    is_op,
    nodes_of,
    owner_of,
)
from quantkit.model.graph.mapping import lazy
from quantkit.model.ops.float_ops import REARRANGES

_Known = dict[tuple[ir.Graph, bytes], ir.Value]


def fold_weights(model: ir.Model, names: Names) -> None:
    """Fold data movement on constants, in place, in one pass over the nodes in order.

    Args:
        model: The model.
        names: Of all values; the results get new ones.
    """
    known: _Known = {}
    vanishing: dict[ir.Value, bool] = {}
    opset = model.opset_imports.get("", 1)
    for node in nodes_of(model):
        if _is_movement(node) and all(_vanishes(v, vanishing) for v in _sources(node)):
            _fold(node, Computation(node, opset), known, names)


def _is_movement(node: ir.Node) -> bool:
    """Say whether the node only moves the contents of constants, at least one of them a weight."""
    # Worth folding is only what is large and float: what exporters leave behind are transposed or reshaped weights,
    # and every planner asks for a weight as an initializer. Small constants are axes and shapes, which onnxruntime
    # folds as well. An output of the graph must keep its maker, and an external tensor that could not be found has no
    # contents to move.
    if not is_op(node, *REARRANGES) or len(node.outputs) != 1:
        return False
    out = node.outputs[0]
    if not out.name or out.is_graph_output() or not node.inputs or node.inputs[0] is None:
        return False
    tensors = [constant(v) for v in node.inputs if v is not None]
    return all(t is not None for t in tensors) and any(
        t is not None and t.nbytes >= LIMIT and t.dtype is ir.DataType.FLOAT for t in tensors
    )


def _sources(node: ir.Node) -> list[ir.Value]:
    """Return the inputs that are weights, not parameters such as axes."""
    found = []
    for value in node.inputs:
        tensor = constant(value)
        if value is not None and (tensor is None or tensor.nbytes >= LIMIT):
            found.append(value)
    return found


def _vanishes(source: ir.Value, vanishing: dict[ir.Value, bool]) -> bool:
    """Say whether a source is no longer needed once all data movement that reads it is folded.

    That holds for all sources that share readers, or for none of them: a node that cannot be folded for the
    sake of one of its sources keeps the others. `vanishing` remembers the answers, so each reader is looked
    at once.
    """
    if source in vanishing:
        return vanishing[source]
    together, queue, needed = {source}, [source], False
    while queue:
        value = queue.pop()
        readers = [use.node for use in value.uses()]
        movers = [reader for reader in readers if _is_movement(reader)]
        needed |= value.is_graph_output() or len(movers) < len(readers)
        for mover in movers:
            new = set(_sources(mover)) - together
            together |= new
            queue += new
    vanishing.update(dict.fromkeys(together, not needed))
    return not needed


def _fold(node: ir.Node, move: Computation, known: _Known, names: Names) -> None:
    tensors = [constant(v) for v in node.inputs]

    def read() -> Array:
        return np.ascontiguousarray(move(*(None if t is None else t.numpy() for t in tensors)))

    # The moved weight is never kept: `read` moves it anew each time, so that a weight of 2 GB is not in memory beside
    # its source. Its shape must be known now, and comes from moving stand-ins. A node that contradicts its own shapes
    # is left as it is: onnxruntime's message about it is better than any of ours. Sources go only when nobody reads
    # them any more, in the graph that owns them, which may be an outer one.
    first = next(t for t in tensors if t is not None)
    try:
        shape = _moved_shape(tensors, move)
    except REFUSALS:
        return  # the node is wrong, and onnxruntime will say how
    out = node.outputs[0]
    folded = lazy(read, first.dtype, shape, out.name)
    inputs = [v for v in node.inputs if v is not None]
    replacement = _registered(node, folded, known, names)
    out.replace_all_uses_with(replacement)
    discard(node)
    for value in inputs:
        if not value.uses() and value.is_initializer() and value.graph is not None and value.name:
            value.graph.initializers.pop(value.name, None)


def _moved_shape(tensors: Sequence[ir.TensorProtocol | None], move: Computation) -> tuple[int, ...]:
    """Move stand-ins of one byte per element; small tensors are parameters and are read."""
    stand_ins: list[Array | None] = []
    for tensor in tensors:
        if tensor is None or tensor.nbytes < LIMIT:
            stand_ins.append(None if tensor is None else tensor.numpy())
        else:
            stand_ins.append(np.zeros(tuple(tensor.shape.numpy()), np.int8))
    return tuple(int(n) for n in move(*stand_ins).shape)


def _registered(node: ir.Node, tensor: ir.LazyTensor, known: _Known, names: Names) -> ir.Value:
    """Return an initializer for the contents in the graph of the sources; equal contents share one.

    Not in the node's own graph: if that is one branch of an If, the other branch could not read it.
    """
    owners = {v.graph for v in node.inputs if v is not None and v.is_initializer()}
    graph = owners.pop() if len(owners) == 1 else owner_of(node)
    assert isinstance(graph, ir.Graph)  # noqa: S101 - functions are inlined
    digest = blake2b(tensor.tobytes(), digest_size=16)
    digest.update(str(tensor.shape).encode())
    key = (graph, digest.digest())
    if key in known:
        graph.register_initializer(known[key])  # it may have been folded away since
        return known[key]
    value = add_initializer(graph, names.renew(node.outputs[0].name or "weight"), tensor)
    known[key] = value
    return value
