"""Rows of the vocabulary taken out of constants, through the nodes that put a constant together when a file is loaded.

A weight may stand in the file as it is, as 16-bit floats behind a Cast, as integers behind DequantizeLinear, transposed, or as planes of a
few bits (`quantkit.quantize.emit.packed`). The nodes stay, with fewer rows: what a runtime computes of a kept row is what it was.

A value of the vocabulary is, whatever its shape, an array of ``outer x tokens x inner``: Reshape keeps the three.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.errors import ModelError
from quantkit.model.graph.compute import Computation
from quantkit.model.graph.edit import Canvas, constant, is_op, owner_of
from quantkit.model.graph.mapping import lazy
from quantkit.model.graph.opset import opset_of
from quantkit.model.graph.shapes import dims, integers, static
from quantkit.model.ops.float_ops import ALIGNS, FUNCTIONS
from quantkit.model.ops.integer_ops import CONVERSIONS
from quantkit.reduce.trim.uses import Place

Array = NDArray[Any]
_BYTE = 8  # bits


@dataclass(slots=True)
class Rows:
    """Takes rows out of the constants of a graph; a constant that several nodes read is cut once.

    Attributes:
        canvas: The graph.
        kept: Which rows stay, in order.
        count: How many there were.
        cut: Constants of the file that were cut, by what is left of them.
    """

    canvas: Canvas
    kept: NDArray[np.int64]
    count: int
    cut: dict[ir.Value, ir.Value] = field(default_factory=dict)
    _known: dict[tuple[ir.Value, int], ir.Value] = field(default_factory=dict)

    def take(self, part: Place) -> None:
        """Let an input of a node have kept rows alone."""
        value = part.node.inputs[part.slot]
        assert value is not None  # noqa: S101 - it has an axis of tokens
        part.node.replace_input_with(part.slot, self._taken(value, part.axis))

    def shorten(self, part: Place) -> None:
        """Let a target of Reshape that ends with the number of tokens end with that of kept ones."""
        target = integers(part.node, part.slot, "shape") or ()
        ends = target[-1:] == (self.count,)
        shape = (*target[:-1], len(self.kept)) if ends else target
        part.node.replace_input_with(part.slot, self._shape(part.node, shape))

    def _taken(self, value: ir.Value, axis: int) -> ir.Value:
        shape = static(value)
        axis = axis if shape is None else axis % len(shape)
        if (value, axis) not in self._known:
            tensor, maker = constant(value), value.producer()
            if tensor is not None:
                found = self._initializer(value, tensor.numpy, tensor.dtype, axis)
                self.cut[value] = found
            elif maker is None:
                raise ModelError(f"Input '{value.name}' has a value per token: it cannot be cut.")
            else:
                found = self._made(maker, value, axis)
            self._known[value, axis] = found
        return self._known[value, axis]

    def _extents(self, shape: Sequence[int], axis: int) -> tuple[tuple[int, int, int], list[int]]:
        """Return outer, tokens and inner of a value, and its new shape."""
        inner = shape[axis] // self.count * prod(shape[axis + 1 :])
        new = list(shape)
        new[axis] = shape[axis] // self.count * len(self.kept)
        return (prod(shape[:axis]), self.count, inner), new

    def _initializer(
        self, value: ir.Value, read: Callable[[], Array], dtype: ir.DataType, axis: int
    ) -> ir.Value:
        """Add a constant with the kept rows of another one, taken when it is read."""
        parts, new = self._extents(static(value) or (), axis)
        name = f"{value.name}_kept"

        def taken() -> Array:
            return np.ascontiguousarray(read().reshape(parts)[:, self.kept].reshape(new))

        graph = value.graph if isinstance(value.graph, ir.Graph) else self.canvas.model.graph
        return self.canvas.initializer(graph, lazy(taken, dtype, tuple(new), name), name)

    # --- nodes on constants

    def _made(self, node: ir.Node, value: ir.Value, axis: int) -> ir.Value:
        """Return the result of a copy of a node that reads kept rows."""
        if node.op_type == "Reshape":
            return self._reshaped(node, value, axis) or self._computed(node, value, axis)
        if node.op_type in ALIGNS:
            inputs = self._aligned(node, value, axis)
        elif node.op_type in CONVERSIONS:
            inputs = self._converted(node, axis)
        elif (before := _axis_before(node, axis)) is not None:
            inputs = [self._taken(_first(node), before), *node.inputs[1:]]
        else:
            return self._computed(node, value, axis)
        return self._copy(node, inputs)

    def _aligned(self, node: ir.Node, value: ir.Value, axis: int) -> list[ir.Value | None]:
        """Return the operands of a node; an axis counts from the last, as operands may have fewer."""
        shape = static(value)
        back = axis - len(shape) if shape is not None and axis >= 0 else axis
        return [
            self._taken(one, back) if one is not None and self._has(one, back) else one
            for one in node.inputs
        ]

    def _computed(self, node: ir.Node, value: ir.Value, axis: int) -> ir.Value:
        """Return kept rows of what nodes compute from constants in a way that mixes tokens, such as blocks along them."""
        sources: set[ir.Value] = set()
        read = self._reader(value, sources)
        if read is None or static(value) is None:
            raise ModelError(
                f"Node '{node.name}' ({node.op_type}) computes values of tokens in a way that cannot be cut."
            )
        found = self._initializer(value, read, ir.DataType.from_numpy(read().dtype), axis)
        for one in sources:
            self.cut[one] = found
        return found

    def _reader(self, value: ir.Value | None, sources: set[ir.Value]) -> Callable[[], Array] | None:
        """Return what computes a constant, and add the constants of the file that it reads; None if it is no constant."""
        tensor = constant(value)
        if tensor is not None and value is not None:
            sources |= {value} if tensor.size >= self.count else set()
            return tensor.numpy
        maker = None if value is None else value.producer()
        inputs = [] if maker is None else [self._reader(one, sources) for one in maker.inputs]
        if maker is None or not inputs or None in inputs:
            return None
        compute = Computation(maker, opset_of(self.canvas.model))
        return lambda: compute(*(read() for read in inputs if read is not None))

    def _has(self, value: ir.Value, back: int) -> bool:
        """Say whether an operand has the axis of tokens, counted from the last, and is not spread along it."""
        shape = dims(value)
        if shape is None:  # computed from constants and activations, element by element
            return constant(value) is None
        return len(shape) >= -back and self._divides([shape[back]])

    def _converted(self, node: ir.Node, axis: int) -> list[ir.Value | None]:
        """Return the inputs of a DequantizeLinear: scales and zero points have an axis of tokens, or are the same for all."""
        inputs, rank = list(node.inputs), len(static(node.inputs[0]) or ())
        inputs[0] = self._taken(_first(node), axis)
        along = node.attributes.get_int("axis", 1) % rank
        for slot, value in enumerate(inputs[1:], 1):
            shape = static(value) or ()
            at = axis if len(shape) > 1 or along == axis else rank
            at = 0 if len(shape) == 1 and at == axis else at
            if value is not None and self._divides(shape[at : at + 1]):
                inputs[slot] = self._taken(value, at)
        return inputs

    def _divides(self, extents: Sequence[int | None]) -> bool:
        """Say whether an extent is that of tokens, or a multiple of it."""
        return any(n is not None and n > 1 and n % self.count == 0 for n in extents)

    def _reshaped(self, node: ir.Node, value: ir.Value, axis: int) -> ir.Value | None:
        """Return a Reshape to fewer rows, of what was there before it; of planes of bits, with new planes. None: it mixes tokens."""
        source, shape = _first(node), static(value) or ()
        (outer, *_), new = self._extents(shape, axis)
        if _is_plane(source):
            source = self._plane(node, source, axis)
        else:
            before = static(source) or ()
            ways = [
                i for i, n in enumerate(before) if prod(before[:i]) == outer and self._divides([n])
            ]
            if not ways:
                return None
            source = self._taken(source, ways[0])
        return self._copy(node, [source, self._shape(node, new)])

    def _plane(self, node: ir.Node, source: ir.Value, axis: int) -> ir.Value:
        """Return the kept rows of a plane of bits: codes lie apart in it by its length, so that it is packed anew."""
        modulo = source.producer()
        while modulo is not None and not is_op(modulo, "Mod"):
            modulo = _first(modulo).producer()
        shift = None if modulo is None else _first(modulo).producer()
        assert modulo is not None and shift is not None  # noqa: S101, PT018 - it is a plane
        planes, opset = _first(shift), opset_of(self.canvas.model)
        tensor = constant(planes)
        assert tensor is not None  # noqa: S101 - it is a plane
        width = _BYTE // _array(shift.inputs[1]).size
        parts, new = self._extents(static(node.outputs[0]) or (), axis)
        count = prod(new)
        length = -(-count * width // _BYTE)

        def packed() -> Array:
            found = tensor.numpy()
            for compute, second in steps:
                found = compute(found, second)
            flat = found.reshape(-1)[: prod(parts)].reshape(parts)[:, self.kept].reshape(-1)
            padded = np.zeros(length * _BYTE // width, np.uint8)
            padded[:count] = flat
            rows = padded.reshape(-1, length) << np.arange(0, _BYTE, width, dtype=np.uint8)[:, None]
            whole: Array = np.bitwise_or.reduce(rows, axis=0)
            return whole.astype(np.uint8).reshape(1, length)

        steps = [(Computation(one, opset), _array(one.inputs[1])) for one in (shift, modulo)]
        name = f"{planes.name}_kept"
        graph = planes.graph if isinstance(planes.graph, ir.Graph) else self.canvas.model.graph
        own = lazy(packed, ir.DataType.UINT8, (1, length), name)
        self.cut[planes] = self.canvas.initializer(graph, own, name)
        result = self._copy(shift, [self.cut[planes], shift.inputs[1]])
        result = self._copy(modulo, [result, modulo.inputs[1]])
        if length * _BYTE == count * width:
            return result
        result = self._op(node, "Reshape", [result, self._shape(node, (-1,))])
        ends = [self._shape(node, (end,)) for end in (0, count)]
        return self._op(node, "Slice", [result, *ends])

    def _shape(self, node: ir.Node, shape: Sequence[int]) -> ir.Value:
        return self.canvas.constant(owner_of(node), np.asarray(shape, np.int64), "kept_shape")

    def _op(self, node: ir.Node, op_type: str, inputs: Sequence[ir.Value]) -> ir.Value:
        (made,) = self.canvas.node(op_type, inputs, before=node, outputs=["kept"], name=None)
        return made

    def _copy(self, node: ir.Node, inputs: Sequence[ir.Value | None]) -> ir.Value:
        """Insert a copy of a node of one output that reads other inputs; return what it outputs."""
        out = node.outputs[0]
        (made,) = self.canvas.node(
            node.op_type,
            inputs,
            after=node,
            attributes=dict(node.attributes),
            domain=node.domain,
            outputs=[f"{out.name}_kept"],
            name=None,
        )
        made.type = out.type
        return made


def _array(value: ir.Value | None) -> Array:
    tensor = constant(value)
    assert tensor is not None  # noqa: S101 - part of a plane
    return tensor.numpy()


def _first(node: ir.Node) -> ir.Value:
    value = node.inputs[0]
    assert value is not None  # noqa: S101 - required by the operator
    return value


def _axis_before(node: ir.Node, axis: int) -> int | None:
    """Return which axis of its first input becomes this one of its result; None if it takes values of it apart."""
    rank = len(dims(_first(node)) or ())
    if node.op_type in FUNCTIONS:
        return axis
    if node.op_type == "Transpose":
        return node.attributes.get_ints("perm", tuple(reversed(range(rank))))[axis]
    axes = integers(node, 3, "axes") if node.op_type == "Slice" else None
    return axis if axes is not None and axis not in [a % rank for a in axes] else None


def _is_plane(value: ir.Value) -> bool:
    """Say whether a value is codes out of a plane of bits, perhaps less those that fill the last byte."""
    maker = value.producer()
    while maker is not None and is_op(maker, "Slice", "Reshape"):
        maker = _first(maker).producer()
    if maker is None or not is_op(maker, "Mod"):
        return False
    maker = _first(maker).producer()
    return maker is not None and is_op(maker, "BitShift")
