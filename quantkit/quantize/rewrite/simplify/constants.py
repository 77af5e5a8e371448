"""What does not depend on the inputs is computed now.

1. `Constant` nodes become initializers.
2. Shape and Size of a shape that is certain; Gather and Slice of those extents of it that are.
3. Operators on constants, with onnx's reference implementation: those that move, compare and count, and
   basic arithmetic, for which no kernel gives another result.

Not folded: what makes the file grow, by more than a fiftieth of its constants in all or by more than 1 MB at once: a ConstantOfShape of half a
megabyte is eight bytes in the file; integers or halves that become floats, which is how a weight is stored small; whatever overflows or divides by zero; outputs, which must stay outputs of a node.

Of what a graph computes from shapes, that which is certain is known (2).
"""

from dataclasses import dataclass
from math import prod

import numpy as np
import onnx_ir as ir

from quantkit.model.graph.compute import REFUSALS, Array, Computation
from quantkit.model.graph.edit import (
    Names,
    add_initializer,
    constant,
    discard,
    is_op,
    nodes_of,
    optional,
    own_name,
    producer_of,
    redirect,
    value_names,
)
from quantkit.model.graph.mapping import LIMIT
from quantkit.model.graph.opset import opset_of
from quantkit.model.graph.shapes import dims, dtype, static
from quantkit.quantize.rewrite.simplify.initializers import LEAST_TIED

_FREE = -(1 << 62)  # stands for an extent that depends on the inputs


def _dimensions(node: ir.Node, opset: int) -> Array | None:
    """Return the value of Shape, Size, or Gather and Slice of a Shape; None if it depends on the inputs.

    Gather and Slice may take those extents that are certain from a shape where others are not.
    """
    source = optional(node, 0)
    maker = producer_of(source)
    if is_op(node, "Shape"):
        found = _extents(node)
    elif is_op(node, "Size"):
        found = None if (known := static(source)) is None else np.array(prod(known), np.int64)
    elif is_op(node, "Gather", "Slice") and maker is not None and is_op(maker, "Shape"):
        extents, others = _extents(maker), [_contents(value) for value in node.inputs[1:]]
        absent = [value is None for value in node.inputs[1:]]
        if extents is None or absent != [array is None for array in others]:
            return None
        try:
            found = Computation(node, opset)(extents, *others)
        except REFUSALS:
            return None
    else:
        return None
    return None if found is None or _FREE in found else found


def _extents(node: ir.Node) -> Array | None:
    """Return what a Shape node returns, `_FREE` in the place of what is not certain; None if the rank is not."""
    found = dims(node.inputs[0])
    if found is None:
        return None
    start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", len(found))
    return np.array([_FREE if n is None else n for n in found[start:end]], np.int64)


_LARGEST = 1 << 20  # bytes by which one result may make the file larger
_SLACK = 4096  # bytes by which all of them may make a file without weights larger
_SHARE = 50  # of the bytes of all constants, one in so many may be added
_GROWING = frozenset({"ConstantOfShape", "Expand", "Range", "Tile"})
_COMPUTED = """
    Abs Add And Cast Ceil Concat Div Equal Flatten Floor Gather GatherElements GatherND Greater
    GreaterOrEqual Less LessOrEqual Max Min Mod Mul Neg Not Or Reciprocal ReduceMax ReduceMin
    ReduceProd Reshape Sign Slice Sqrt Squeeze Sub Transpose Unsqueeze Where Xor
"""
_FOLDED = _GROWING | frozenset(_COMPUTED.split())


def constants(model: ir.Model) -> int:
    """Fold what does not depend on the inputs; return how many nodes went."""
    names, room = value_names(model), _Room(left=max(_SLACK, _held_bytes(model) // _SHARE))
    opset = opset_of(model)
    return sum(_fold(node, names, opset, room) for node in nodes_of(model) if not node.domain)


@dataclass(slots=True, kw_only=True)
class _Room:
    """By how many bytes the file may still grow; what is folded away gives room back."""

    left: int

    def takes(self, growth: int) -> bool:
        if growth > min(self.left, _LARGEST):
            return False
        self.left -= growth
        return True


def _held_bytes(model: ir.Model) -> int:
    """Return the bytes of all constants, those in Constant nodes included."""
    graphs = (model.graph, *model.graph.subgraphs())
    tensors = [v.const_value for graph in graphs for v in graph.initializers.values()]
    tensors += [_held(node) for node in nodes_of(model) if is_op(node, "Constant")]
    return sum(t.nbytes for t in tensors if t is not None and t.dtype is not ir.DataType.STRING)


def _fold(node: ir.Node, names: Names, opset: int, room: _Room) -> bool:
    if len(node.outputs) != 1 or node.outputs[0].is_graph_output() or not node.outputs[0].name:
        return False
    if is_op(node, "Constant"):
        tensor = _held(node)
    else:
        found: Array | None = _dimensions(node, opset)
        array = _computed(node, opset, room) if found is None else found
        tensor = None if array is None else ir.tensor(array)
    graph, out = node.graph, node.outputs[0]
    if tensor is None or not isinstance(graph, ir.Graph):
        return False
    # Equal names in two subgraphs are allowed for values, but not for initializers of a quantkit graph.
    value = add_initializer(graph, names.renew(own_name(out)), tensor)
    redirect(out, value)
    discard(node)
    return True


def _held(node: ir.Node) -> ir.TensorProtocol | None:
    """Return what a Constant holds; None for strings and sparse tensors."""
    attribute = next(iter(node.attributes.values()), None)
    if attribute is None or attribute.is_ref():
        return None
    match attribute.type:  # not by its name: onnxruntime takes a number called "value", too
        case ir.AttributeType.TENSOR:
            tensor = attribute.as_tensor()
            if tensor.dtype is ir.DataType.STRING:
                return None
            # A tensor of its own: the other one may be part of the caller's message, and gets a new name.
            return ir.Tensor(tensor.numpy(), dtype=tensor.dtype)
        case ir.AttributeType.INT | ir.AttributeType.INTS:
            return ir.tensor(np.array(attribute.value, np.int64))
        case ir.AttributeType.FLOAT | ir.AttributeType.FLOATS:
            return ir.tensor(np.array(attribute.value, np.float32))
    return None


def _computed(node: ir.Node, opset: int, room: _Room) -> Array | None:
    if node.op_type not in _FOLDED or dtype(node.outputs[0]) is ir.DataType.STRING:
        return None
    # Not folded: what is not wholly constant; texts; what would make the file larger (a Tile, an Expand); a weight
    # that is stored in few bits on purpose, or once for two readers. Computed by onnx's reference, whose result is believed only if type and
    # shape are those that the graph states. What overflows or divides by zero is not folded: what becomes of it is
    # the runtime's to say.
    tensors = [constant(v) for v in node.inputs if v is not None]
    held = [t for t in tensors if t is not None and t.dtype is not ir.DataType.STRING]
    if (
        len(held) < len(tensors)
        or not held
        or not _may_pay(node, held, room)
        or _is_stored(node, held)
        or _is_tied(node, held)
    ):
        return None
    try:
        with np.errstate(all="raise", under="ignore"):
            array = Computation(node, opset)(*(_contents(v) for v in node.inputs))
        expected = _is_expected(array, node.outputs[0])
        return array if expected and room.takes(array.nbytes - _vanishing(node)) else None
    except REFUSALS:
        return None


def _contents(value: ir.Value | None) -> Array | None:
    tensor = constant(value)
    return None if tensor is None else tensor.numpy()


def _may_pay(node: ir.Node, tensors: list[ir.TensorProtocol], room: _Room) -> bool:
    """Say, before it is computed, whether the result can be small enough."""
    out, shape = node.outputs[0], static(node.outputs[0])
    wanted = dtype(out)
    if shape is None or wanted is None:
        return node.op_type not in _GROWING and all(t.nbytes < LIMIT for t in tensors)
    return prod(shape) * wanted.itemsize - _vanishing(node) <= min(room.left, _LARGEST)


def _vanishing(node: ir.Node) -> int:
    """Return the bytes of the constants that only this node reads."""
    sources = {v for v in node.inputs if v is not None and len(v.uses()) == 1}
    return sum(t.nbytes for v in sources if (t := constant(v)) is not None)


def _is_stored(node: ir.Node, tensors: list[ir.TensorProtocol]) -> bool:
    """Say whether this is a weight stored in few bits that is made float where it is read."""
    target = node.attributes.get_int("to")
    if node.op_type != "Cast" or target is None or tensors[0].size * 4 < LIMIT:
        return False
    held, wanted = tensors[0].dtype, ir.DataType(target)
    fewer = held.is_integer() or held.bitwidth < wanted.bitwidth
    return fewer and wanted.is_floating_point()


def _is_tied(node: ir.Node, tensors: list[ir.TensorProtocol]) -> bool:
    """Say whether this is the transpose of a weight that is stored once for several readers (`tie_weights`)."""
    source = node.inputs[0]
    several = source is not None and len(source.uses()) > 1
    return node.op_type == "Transpose" and several and tensors[0].size >= LEAST_TIED


def _is_expected(array: Array, out: ir.Value) -> bool:
    """Compare a result with what inference says of it: a reference that errs is not believed."""
    wanted, extents = dtype(out), dims(out)
    if wanted is None or ir.DataType.from_numpy(array.dtype) != wanted:
        return False
    same_rank = extents is not None and len(extents) == array.ndim
    return extents is None or (
        same_rank and all(e in (None, n) for e, n in zip(extents, array.shape, strict=True))
    )
