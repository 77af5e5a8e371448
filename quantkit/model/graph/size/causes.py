"""Why each tensor of a file is there: what computes with it, or that it is a scale, or that nothing reads it."""

from collections import ChainMap, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from quantkit.model.graph.size.file_map import MapGraph, MapNode, MapTensor
from quantkit.model.ops.float_ops import MOVES
from quantkit.model.ops.integer_ops import scale_slots, stands_for

__all__ = ["DEAD", "SCALES", "SHAPES", "WEIGHTS", "causes_of"]

DEAD, SCALES, SHAPES, WEIGHTS = "dead", "scales", "shapes and indices", "weights of "
_CONSTANT_OUTPUTS = "constant outputs"
_INDEX_TYPES = frozenset({7, 9})  # int64, bool
# What weights are stored in: (u)int8, (u)int16, (u)int4, (u)int2, float8, float4.
_STORED = frozenset({2, 3, 4, 5, 17, 18, 19, 20, 21, 22, 23, 25, 26})
_FURTHEST = 16  # moves between a tensor of the file and the Cast that decodes it
_MOVES = MOVES | {"Cast"}  # of constants: integers of the file may be cast on their way


@dataclass(slots=True, eq=False)
class _Value:
    """A named tensor of one graph."""

    maker: "_Op | None" = None
    dtype: int = 0  # of an initializer
    constant: bool = False
    decoded: bool = False  # integers of the file turned into float: Cast(q), or Cast(q) - z
    live: bool = False
    owner: "_Op | None" = None  # whose graph hands it out
    readers: list["_Op"] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Op:
    """A node whose names are looked up."""

    node: MapNode
    args: list[_Value | None] = field(default_factory=list)
    results: list[_Value] = field(default_factory=list)
    handed_out: list[_Value] = field(default_factory=list)  # outputs of its subgraphs
    constant: bool = False
    live: bool = False


def causes_of(graphs: Iterable[MapGraph]) -> Iterator[tuple[MapTensor, str]]:
    """Yield every tensor once, in the order of the file's graphs, with its cause.

    A node that reads constants only computes a constant: what reads its result is what the constant is for. So
    the integers behind DequantizeLinear, or behind Cast, Sub and Mul, are weights of the operator that multiplies
    with them. Biases are weights of the operator that adds them. "dead" is what no output depends on.
    """
    linked = _Linked()
    outputs = [value for graph in graphs for value in linked.add(graph, ChainMap(), None)]
    _mark_live(outputs, linked.ops)
    scales = _scales(linked.ops)
    for tensor, value, op in linked.tensors:
        if value is None:
            yield tensor, f"{WEIGHTS}{stands_for(op.node.op_type)}" if op and op.live else DEAD
        else:
            yield tensor, _cause(tensor, value, scales)


_Scope = ChainMap[str, _Value]


class _Linked:
    """Nodes and values of all graphs, names resolved: inner graphs see the names of outer ones."""

    def __init__(self) -> None:
        self.ops: list[_Op] = []
        self.tensors: list[tuple[MapTensor, _Value | None, _Op | None]] = []

    def add(self, graph: MapGraph, outer: _Scope, owner: _Op | None) -> list[_Value]:
        """Link a graph; return its outputs."""
        own = {name: _Value() for name in graph.inputs}
        scope = outer.new_child(own)
        for tensor in graph.initializers:
            value = own.setdefault(tensor.name, _Value())
            value.dtype, value.constant = value.dtype or tensor.dtype, True
            self.tensors.append((tensor, value, None))
        ops = [_Op(node) for node in graph.nodes]
        for op in ops:
            op.results = [_Value(maker=op) for _ in op.node.outputs]
            own.update(zip(op.node.outputs, op.results, strict=True))
        for op in ops:
            self._link(op, scope)
        outputs = [scope[name] for name in graph.outputs if name in scope]
        for value in outputs:
            value.owner = value.owner or owner
        return outputs

    def _link(self, op: _Op, scope: _Scope) -> None:
        node = op.node
        self.ops.append(op)
        op.args = [scope.get(name) if name else None for name in node.inputs]
        for value in op.args:
            if value is not None:
                value.readers.append(op)
        # Three kinds of constants: a Constant node's own tensor, initializers, and what a node computes of constants
        # only. The third is why a DequantizeLinear of a stored weight is followed through to who multiplies by it. A
        # node with subgraphs is never constant, even if its inputs are: its branches may read anything. Tensors in
        # attributes of other nodes (a sparse value, a custom operator's table) belong to the node itself, hence
        # `value` None.
        is_constant = node.op_type == "Constant" and bool(op.results)
        known = [value for value in op.args if value is not None]
        op.constant = is_constant or (
            bool(known) and not node.graphs and all(value.constant for value in known)
        )
        for value in op.results:
            value.constant = op.constant
            value.decoded = _is_decoded(op)
        for tensor in node.tensors:
            value = op.results[0] if is_constant else None
            if value is not None:
                value.dtype = tensor.dtype
            self.tensors.append((tensor, value, op))
        for graph in node.graphs:
            op.handed_out += self.add(graph, scope, op)


def _is_decoded(op: _Op) -> bool:
    first = op.args[0] if op.args else None
    if first is None:
        return False
    if op.node.op_type == "Sub":
        return first.decoded
    return op.node.op_type == "Cast" and _moved_from(first).dtype in _STORED


def _moved_from(value: _Value) -> _Value:
    for _ in range(_FURTHEST):
        op = value.maker
        first = op.args[0] if op and op.node.op_type in _MOVES and op.args else None
        if first is None:
            break
        value = first
    return value


def _mark_live(outputs: Iterable[_Value], ops: Iterable[_Op]) -> None:
    """Mark what an output depends on, and nodes without a result, which are there for something else."""
    pending = list(outputs)
    for op in ops:
        if not op.results:
            op.live = True
            pending += [arg for arg in op.args if arg is not None]
            pending += op.handed_out
    while pending:
        value = pending.pop()
        if value.live:
            continue
        value.live = True
        maker = value.maker
        if maker is not None and not maker.live:
            maker.live = True
            pending += [arg for arg in maker.args if arg is not None]
            pending += maker.handed_out


def _scales(ops: Iterable[_Op]) -> set[_Value]:
    """Return scales and zero points, and the constants that they are moved or computed from."""
    found: set[_Value] = set()
    pending = [value for op in ops for value in _scale_inputs(op)]
    while pending:
        value = pending.pop()
        if value in found:
            continue
        found.add(value)
        if value.maker is not None and value.maker.node.op_type != "Constant":
            args = value.maker.args
            moved = value.maker.node.op_type in _MOVES
            sources = args if value.maker.constant else args[:1] if moved else []
            pending += [arg for arg in sources if arg is not None]
    return found


def _scale_inputs(op: _Op) -> list[_Value]:
    # Operators with scales in fixed slots are the easy case. The others are weights decoded by hand, (Cast(q) - z) *
    # s, and products of two scales that DynamicQuantizeLinear found at run time times the weight's: there the other
    # operand of a Sub or Mul is the zero point or the scale. A Mul has them in either order, a Sub only as the
    # second.
    kind, args = op.node.op_type, op.args
    slots = set(scale_slots(kind, len(args)))
    if kind in {"Sub", "Mul"} and len(args) == 2:
        first, second = args
        if first is not None and (first.decoded or (kind == "Mul" and _is_taken_scale(first))):
            slots.add(1)
        elif kind == "Mul" and second is not None and (second.decoded or _is_taken_scale(second)):
            slots.add(0)
    return [value for i in slots if (value := args[i]) is not None]


def _is_taken_scale(value: _Value) -> bool:
    """Say whether it is the scale that DynamicQuantizeLinear found."""
    op = value.maker
    return op is not None and op.node.op_type == "DynamicQuantizeLinear" and value in op.results[1:]


def _cause(tensor: MapTensor, value: _Value, scales: set[_Value]) -> str:
    if not value.live:
        return DEAD
    if value in scales:
        return SCALES
    if tensor.dtype in _INDEX_TYPES:
        return SHAPES
    # The nearest node that computes with it, breadth first: nodes that compute constants only are looked through. A
    # tensor with two uses is counted for the nearer one; sizes must add up, so it cannot count for both. A branch
    # that hands a constant out makes it the If's.
    pending, seen = deque([value]), {value}
    while pending:
        at = pending.popleft()
        for op in at.readers:
            if op.live and not op.constant:
                return f"{WEIGHTS}{stands_for(op.node.op_type)}"
            if op.live:
                pending += [result for result in op.results if result not in seen]
                seen.update(op.results)
        if at.owner is not None and at.owner.live:
            return f"{WEIGHTS}{at.owner.node.op_type}"
    return _CONSTANT_OUTPUTS
