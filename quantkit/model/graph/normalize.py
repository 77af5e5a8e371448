"""The form in which all later stages see a graph.

1. Model-local functions are inlined (graph traversal does not visit them).
2. Large `Constant` nodes are initializers.
3. ``Identity(initializer)`` is that initializer: exporters write shared weights this way. So is a state that a Loop or Scan begins with
   and only hands on (`read_carried_constants`).
4. Node names are unique and not empty; no value has the name of another, in any graph.
5. Weights that are assembled from constants are initializers (`fold_weights`).
6. Initializers are not graph inputs if the IR version is below 4, where they had to be listed
   (done before 2 to 5, which leave graph inputs alone).

Nothing else changes: outputs are the same, bit for bit.

About 5: exporters cut, stack and turn weights at run time: recurrent layers as Slice, Concat, Unsqueeze of one matrix, linear
layers as Transpose or Reshape, shared layers as Identity. Only data movement is folded; contents stay lazy and are moved
when they are read. A source is folded only if it is then no longer needed, so that nothing is stored twice; results that
are equal are stored once.

About 3: tf2onnx writes every recurrent layer of Keras as a Loop that is given its weights as state and hands them on with Identity. The body may
read such a constant from outside, and what comes out in the end is what went in, whatever the number of steps.
"""

import os
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from quantkit.model.graph.compute import REFUSALS, Array, Computation
from quantkit.model.graph.edit import (
    Names,
    add_initializer,
    can_redirect,
    const_of,
    constant,
    discard,
    is_op,
    nodes_of,
    own_name,
    owner_of,
    subgraphs_of,
    succeed,
)
from quantkit.model.graph.mapping import LIMIT, lazy
from quantkit.model.ops.float_ops import LOOPS, PRODUCTS, REARRANGES

KEEP_INPUTS = "QUANTKIT_KEEP_INPUTS"

_IR_WITHOUT_LISTED_INITIALIZERS = 4

_Known = dict[tuple[ir.Graph, bytes], ir.Value]

# What moves the contents of a constant; folded later, where the result is no larger.
_MOVES = REARRANGES | {"Cast"}


def inline_functions(model: ir.Model) -> None:
    """Do step 1; apart from the others because external data is looked up between the two."""
    if model.functions:
        InlinePass()(model)
        model.functions.clear()  # of functions that nobody calls


def normalize(model: ir.Model) -> None:
    """Do steps 2 to 6, in place. Linear in the number of nodes."""
    _unlist_initializers(model)
    for node in nodes_of(model):
        _lift_constant(node) or _drop_identity(node)
    if read_carried_constants(model):
        for node in nodes_of(model):
            _drop_identity(node)
    _name_nodes(model)
    names = _name_values(model)
    fold_weights(model, names)


def fix_defaults(model: ir.Model, *, keep: bool = False) -> str:
    """Take initializers that are inputs too, whose values a caller may replace, as constants; say so, "" if there are none.

    What is quantized fits the values in the file and no others.

    Args:
        model: The model; such inputs are no longer listed.
        keep: Leave them as they are: what reads them then stays float.
    """
    listed = [own_name(v) for v in model.graph.inputs if v.is_initializer()]
    if not listed or keep or os.environ.get(KEEP_INPUTS):
        return ""
    _unlist(model)
    return (
        f"{len(listed)} inputs that have a value in the file are constants now (the first: '{listed[0]}'); "
        "--keep-inputs keeps them as inputs, in float."
    )


def _unlist_initializers(model: ir.Model) -> None:
    if (model.ir_version or 0) < _IR_WITHOUT_LISTED_INITIALIZERS:
        model.ir_version = _IR_WITHOUT_LISTED_INITIALIZERS
        _unlist(model)


def _unlist(model: ir.Model) -> None:
    kept = [v for v in model.graph.inputs if not v.is_initializer()]
    model.graph.inputs.clear()
    model.graph.inputs.extend(kept)


def lift_weights(model: ir.Model) -> None:
    """Let products read weights and biases from initializers, however small: that is where they are looked for."""
    for node in nodes_of(model):
        read = (use for out in node.outputs for use in out.uses())
        if any(use.idx and is_op(use.node, *PRODUCTS) for use in read):
            _lift_constant(node, least=0)


def lift_floats(model: ir.Model) -> None:
    """Make initializers of all floats of the main graph that Constant nodes hold, however small and in whichever attribute."""
    for node in list(model.graph):
        out = node.outputs[0] if is_op(node, "Constant") and node.outputs else None
        tensor = const_of(out)
        if out is None or tensor is None or tensor.dtype is not ir.DataType.FLOAT:
            continue
        if out.name and not out.is_graph_output():
            out.replace_all_uses_with(add_initializer(model.graph, out.name, tensor))
            discard(node)


def _lift_constant(node: ir.Node, least: int = LIMIT) -> bool:
    if node.op_type != "Constant" or node.domain or len(node.outputs) != 1:
        return False
    attribute = node.attributes.get("value")
    if attribute is None or attribute.type is not ir.AttributeType.TENSOR:
        return False
    tensor, out = attribute.as_tensor(), node.outputs[0]
    if tensor.nbytes < least or out.is_graph_output() or out.name is None:
        return False
    out.replace_all_uses_with(add_initializer(owner_of(node), out.name, tensor))
    discard(node)
    return True


def _drop_identity(node: ir.Node) -> bool:
    if node.op_type != "Identity" or node.domain or len(node.inputs) != 1 or not node.outputs:
        return False
    source, out = node.inputs[0], node.outputs[0]
    if source is None or not _is_constant(source) or out.is_graph_output():
        return False
    out.replace_all_uses_with(source)
    discard(node)
    return True


def _is_constant(value: ir.Value) -> bool:
    return value.is_initializer() and not value.is_graph_input() and value.const_value is not None


def _name_nodes(model: ir.Model) -> None:
    """Give each node a name of its own; of several equal names the first stays."""
    nodes = nodes_of(model)
    names = Names(node.name for node in nodes if node.name)
    seen: set[str] = set()
    for node in nodes:
        if not node.name or node.name in seen:
            node.name = names.fresh(node.name or node.op_type)
        seen.add(node.name)


def _name_values(model: ir.Model) -> Names:
    """Give no value the name of another, in whatever graph; return all names in use."""
    # ONNX lets a subgraph shadow an outer name, and two branches of an If may use one name for two weights or two
    # results. Every later stage keys weights and tensors by name alone (a plan, ranges, moments, the tables of the
    # rewrites), so names are made unique over all graphs once, here. What keeps its name: what the caller feeds or
    # fetches by it (inputs and outputs of the main graph), and the first of a name, what is computed before what is
    # stored. Names of initializers are held before any is renewed: a new one must not hit one that comes later.
    graphs = list(model.graphs())
    computed = [value for graph in graphs for value in _computed(graph) if value.name]
    stored = [value for graph in graphs for value in graph.initializers.values()]
    main = model.graph.initializers.values()
    public = [value for value in main if value.is_graph_input() or value.is_graph_output()]
    names = Names(own_name(value) for value in (*computed, *stored))
    seen: set[str | None] = set()
    for value in dict.fromkeys((*public, *computed, *stored)):
        if value.name in seen:
            value.name = names.renew(own_name(value))
        seen.add(value.name)
    return names


def _computed(graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield what a graph is given and what its own nodes make."""
    yield from (value for value in graph.inputs if not value.is_initializer())
    yield from (out for node in graph for out in node.outputs)


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


class _Carry(NamedTuple):
    """A state: its place among the node's inputs and outputs, and among the body's."""

    given: int
    final: int
    read: int
    handed_on: int


def read_carried_constants(model: ir.Model) -> int:
    """Let bodies of Loop and Scan read constants that they only hand on, in place; return how many states that removes."""
    changes = 0
    for node in nodes_of(
        model
    ):  # those around come before those inside, whose states begin as theirs
        carries = [carry for carry in _carries(node) if _is_removable(node, carry)]
        if carries and len(carries) < len(node.outputs):
            _without(node, carries)
            changes += len(carries)
    return changes


def _carries(node: ir.Node) -> Iterator[_Carry]:
    """Yield the states of a Loop or Scan; none of a Scan of opset 8, whose states have a batch axis."""
    body = _body(node)
    if body is None or len(node.inputs) != len(body.inputs):
        return
    if is_op(node, "Loop") and len(node.outputs) == len(body.outputs) - 1:
        # trip count and condition come first; the body makes the condition anew
        for k in range(len(node.inputs) - 2):
            yield _Carry(given=k + 2, final=k, read=k + 2, handed_on=k + 1)
    elif is_op(node, "Scan") and len(node.outputs) == len(body.outputs):
        for k in range(len(node.inputs) - node.attributes.get_int("num_scan_inputs", 0)):
            yield _Carry(given=k, final=k, read=k, handed_on=k)


def _body(node: ir.Node) -> ir.Graph | None:
    attribute = node.attributes.get("body") if is_op(node, *LOOPS) else None
    return attribute.as_graph() if attribute is not None else None


def _is_removable(node: ir.Node, carry: _Carry) -> bool:
    given, final = node.inputs[carry.given], node.outputs[carry.final]
    if given is None or not _is_moved_constant(given) or not _is_unchanged(node, carry):
        return False
    return not final.is_graph_output() and can_redirect(final, given)


def _is_moved_constant(value: ir.Value) -> bool:
    """Say whether a value is a constant, or data movement on constants."""
    while constant(value) is None:
        maker = value.producer()
        source = maker.inputs[0] if maker is not None and maker.inputs else None
        if maker is None or source is None or not is_op(maker, *_MOVES):
            return False
        if any(constant(v) is None for v in maker.inputs[1:] if v is not None):
            return False
        value = source
    return True


def _is_unchanged(node: ir.Node, carry: _Carry) -> bool:
    body = _body(node)
    assert body is not None  # noqa: S101 - it has states
    return _origin(body.outputs[carry.handed_on]) is body.inputs[carry.read]


def _origin(value: ir.Value) -> ir.Value:
    """Return the value that another one always equals: through Identity, states that are only handed on, and an If of one mind."""
    while (maker := value.producer()) is not None:
        source = _source(maker, value)
        if source is None:
            break
        value = source
    return value


def _source(maker: ir.Node, value: ir.Value) -> ir.Value | None:
    if is_op(maker, "Identity"):
        return maker.inputs[0]
    place = maker.outputs.index(value)
    if is_op(maker, "If"):
        branches = list(subgraphs_of(maker))
        found = {_origin(out) for branch in branches for out in branch.outputs[place : place + 1]}
        source = found.pop() if len(found) == 1 else None
        return source if source is not None and source.graph not in branches else None
    for carry in _carries(maker):
        if carry.final == place and _is_unchanged(maker, carry):
            return maker.inputs[carry.given]
    return None


def _without(node: ir.Node, carries: list[_Carry]) -> None:
    """Replace a node by one without these states."""
    body = _body(node)
    assert body is not None  # noqa: S101 - it has states
    for carry in reversed(carries):
        given = node.inputs[carry.given]
        assert given is not None  # noqa: S101 - it is a constant
        body.outputs.pop(carry.handed_on)
        body.inputs[carry.read].replace_all_uses_with(given)
        body.inputs.pop(carry.read)
        node.outputs[carry.final].replace_all_uses_with(given)
    gone_in, gone_out = {c.given for c in carries}, {c.final for c in carries}
    new = ir.Node(
        node.domain,
        node.op_type,
        [value for i, value in enumerate(node.inputs) if i not in gone_in],
        list(node.attributes.values()),
        num_outputs=len(node.outputs) - len(carries),
        version=node.version,
        name=node.name,
        doc_string=node.doc_string,
        metadata_props=dict(node.metadata_props),
    )
    owner_of(node).insert_before(node, new)
    left = (value for i, value in enumerate(node.outputs) if i not in gone_out)
    for old, now in zip(left, new.outputs, strict=True):
        succeed(old, now)
    node.attributes.clear()  # the body is the new node's
    owner_of(node).remove(node, safe=True)
