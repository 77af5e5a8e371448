"""Weights of few bits in the file, put together again by nodes that onnxruntime computes once, at load. Others may not: OpenVINO 2026.4 computed other values.

Codes of b bits stand in the file as planes of 4, 2 and 1 bits (`quantkit.numerics.packing`), and

    BitShift -> Mod -> Cast (-> Mul -> Add for each further plane)      codes, as floats
    (codes - zero) * multiplier -> Cast(int8)                          what an integer kernel reads, one scale per row
    (codes - zero) * (multiplier * scale)                              what a float kernel reads

onnxruntime folds all of that on constants before it looks for patterns, so that the graph it runs is the same as with plain weights: QLinearConv,
MatMulNBits, a fused float Conv. Operators of opset 11 alone; no type of fewer than 8 bits, which older runtimes and other tools do not know.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.model.graph.edit import Canvas
from quantkit.model.graph.mapping import lazy
from quantkit.numerics.blocks import BlockCodes, BlockGrid
from quantkit.numerics.packing import plane_widths, planes
from quantkit.quantize.emit._operands import maker_of

# Bytes that the nodes of a plane add to a file: what saves less is written as it is.
_NODES = 600
_FLOAT, _UINT8, _INT8 = ir.DataType.FLOAT, ir.DataType.UINT8, ir.DataType.INT8


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A weight that is to be written: N rows of K inputs.

    Attributes:
        tensor: Its name; new names begin with it.
        graph: The graph that owns it.
        before: The node in front of which it is put together.
        grid: How it is stored.
        rows: N.
        inputs: K.
        read: Returns the codes; called while the file is written.
    """

    tensor: str
    graph: ir.Graph
    before: ir.Node
    grid: BlockGrid
    rows: int
    inputs: int
    read: Callable[[], BlockCodes]

    @property
    def blocks(self) -> int:
        """How many blocks a row has."""
        return self.grid.count(self.inputs)

    @property
    def padded(self) -> int:
        """K, with the last block filled up."""
        return self.blocks * (self.grid.size or self.inputs)

    def padded_codes(self) -> NDArray[np.uint8]:
        """Return the codes, (N, padded); what is filled in stands for 0."""
        found = self.read()
        missing = self.padded - self.inputs
        if not missing:
            return found.codes
        zeros = np.repeat(found.zero[:, -1:], missing, axis=1)
        return np.concatenate([found.codes, zeros], axis=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Numbers:
    """Small numbers of a weight that are written as planes of bits.

    Attributes:
        name: What they are: codes, zeros or multipliers.
        bits: Of each.
        shape: That they get.
        read: Returns them; called while the file is written.
    """

    name: str
    bits: int
    shape: Sequence[int]
    read: Callable[[], NDArray[np.uint8]]


@dataclass(slots=True)
class Packer:
    """Writes weights of few bits; constants that several need are there once, and so are the codes of a weight that is read in two forms."""

    canvas: Canvas
    _shared: dict[tuple[ir.Graph, str, bytes], ir.Value] = field(default_factory=dict)
    _known: dict[tuple[str, str], ir.Value] = field(default_factory=dict)
    _last: dict[str, ir.Node] = field(default_factory=dict)  # of each weight, where its nodes end

    def integers(self, weight: Packed, shape: Sequence[int]) -> ir.Value:
        """Return ``(c - z) m`` as int8, in this shape."""
        value = self._centred(weight)
        if weight.grid.largest > 1:
            value = self._op(weight, "Mul", [value, self._multipliers(weight)])
        value = self._cast(weight, value, _INT8)
        return self._shaped(weight, value, shape)

    def floats(self, weight: Packed, shape: Sequence[int]) -> ir.Value:
        """Return the weight as float32, in this shape."""
        steps = self._op(
            weight,
            "Reshape",
            [self.steps(weight), self._shape(weight, (weight.rows, weight.blocks, 1))],
        )
        value = self._op(weight, "Mul", [self._centred(weight), steps])
        return self._shaped(weight, value, shape)

    def steps(self, weight: Packed) -> ir.Value:
        """Return the step of each block as float32, (N, blocks), written once."""
        key = (weight.tensor, "steps")
        if key not in self._known:
            self._known[key] = self._made_steps(weight)
        return self._known[key]

    def _made_steps(self, weight: Packed) -> ir.Value:
        scale = self._lazy(
            weight,
            lambda: weight.read().scale.reshape(-1, 1),
            _FLOAT,
            (weight.rows, 1),
            "scale",
        )
        if weight.grid.largest == 1 or weight.blocks == 1:
            return scale  # of rows of one block
        flat = self._shape(weight, (weight.rows, weight.blocks))
        flat = self._op(weight, "Reshape", [self._multipliers(weight), flat])
        return self._op(weight, "Mul", [flat, scale])

    def codes(self, weight: Packed, shape: Sequence[int], shift: int = 0) -> ir.Value:
        """Return the codes, the last block filled up, as uint8 in this shape.

        Args:
            weight: It.
            shape: Of N * padded values.
            shift: What is added to each of them.
        """
        if not shift and _is_plain(weight.grid.bits, prod(shape)):
            # Not through floats: onnxruntime takes Casts there and back out even with optimization off, and finds the codes constant (`quantkit.quantize.emit.blocks`).
            flat = (weight.rows, weight.padded)
            plain = self._lazy(weight, weight.padded_codes, _UINT8, flat, "codes")
            return self.reshaped(weight, plain, shape)
        value = self._codes(weight, shape)
        if shift:
            value = self._op(weight, "Add", [value, self._number(weight, shift)])
        return self._cast(weight, value, _UINT8)

    def zeros(self, weight: Packed) -> ir.Value:
        """Return the zero of each block as float32, (N, blocks, 1)."""
        shape = (weight.rows, weight.blocks, 1)
        return self._unpacked(
            weight,
            _Numbers(
                name="zero", bits=weight.grid.bits, shape=shape, read=lambda: weight.read().zero
            ),
        )

    def _codes(self, weight: Packed, shape: Sequence[int]) -> ir.Value:
        codes = _Numbers(name="codes", bits=weight.grid.bits, shape=shape, read=weight.padded_codes)
        return self._unpacked(weight, codes)

    def _centred(self, weight: Packed) -> ir.Value:
        """Return ``c - z`` as floats, (N, blocks, size)."""
        shape = (weight.rows, weight.blocks, weight.padded // weight.blocks)
        value = self._codes(weight, shape)
        symmetric = weight.grid.symmetric
        zero = self._number(weight, weight.grid.middle) if symmetric else self.zeros(weight)
        return self._op(weight, "Sub", [value, zero])

    def _multipliers(self, weight: Packed) -> ir.Value:
        """Return the multipliers as floats, (N, blocks, 1). The file has them less 1: 1 to 8 are three bits."""
        multipliers = _Numbers(
            name="multiplier",
            bits=(weight.grid.largest - 1).bit_length(),
            shape=(weight.rows, weight.blocks, 1),
            read=lambda: weight.read().multiplier - np.uint8(1),
        )
        value = self._unpacked(weight, multipliers)
        return self._op(weight, "Add", [value, self._number(weight, 1)])

    def _unpacked(self, weight: Packed, numbers: _Numbers) -> ir.Value:
        """Return small numbers as floats, written once."""
        key = (weight.tensor, numbers.name)
        if key not in self._known:
            self._known[key] = self._written(weight, numbers)
        return self._known[key]

    def _written(self, weight: Packed, numbers: _Numbers) -> ir.Value:
        read, shape = numbers.read, numbers.shape
        if _is_plain(numbers.bits, prod(shape)):
            plain = self._lazy(weight, lambda: read().reshape(shape), _UINT8, shape, numbers.name)
            return self._cast(weight, plain, _FLOAT)
        first, *widths = plane_widths(numbers.bits)
        total, shift = self._plane(weight, numbers, 0), first
        for number, width in enumerate(widths, 1):
            value = self._plane(weight, numbers, number)
            value = self._op(weight, "Mul", [value, self._number(weight, 1 << shift)])
            total, shift = self._op(weight, "Add", [total, value]), shift + width
        return total

    def _plane(self, weight: Packed, numbers: _Numbers, number: int) -> ir.Value:
        """Return one plane as floats of the shape: as long as values have one byte, folding them takes least."""
        width, count = plane_widths(numbers.bits)[number], prod(numbers.shape)
        per_byte = 8 // width
        length = -(-count // per_byte)
        content = self._lazy(
            weight,
            lambda: planes(numbers.read(), numbers.bits)[number].content.reshape(1, length),
            _UINT8,
            (1, length),
            f"{numbers.name}_plane{number}",
        )
        shifts = np.arange(0, 8, width, dtype=np.uint8).reshape(-1, 1)
        value = self._op(
            weight,
            "BitShift",
            [content, self._constant(weight, shifts, f"shifts{width}")],
            direction="RIGHT",
        )
        top = self._constant(weight, np.asarray(1 << width, np.uint8), f"modulus{width}")
        value = self._op(weight, "Mod", [value, top])
        if length * per_byte != count:
            flat = self._shape(weight, (-1,))
            value = self._op(weight, "Reshape", [value, flat])
            ends = [self._shape(weight, (end,)) for end in (0, count)]
            value = self._op(weight, "Slice", [value, *ends])
        return self._cast(weight, self.reshaped(weight, value, numbers.shape), _FLOAT)

    def cut(self, weight: Packed, value: ir.Value, shape: tuple[int, int], width: int) -> ir.Value:
        """Return a value as a matrix, of so many of its columns.

        Args:
            weight: What it belongs to.
            value: With as many values as `shape` has.
            shape: Rows and columns.
            width: Columns that are kept.
        """
        value = self.reshaped(weight, value, shape)
        if width == shape[1]:
            return value
        ends = [self._shape(weight, (end,)) for end in (0, width, 1)]
        return self._op(weight, "Slice", [value, *ends])

    def reshaped(self, weight: Packed, value: ir.Value, shape: Sequence[int]) -> ir.Value:
        """Return a value of a weight in another shape.

        Args:
            weight: What it belongs to.
            value: With as many values as `shape` has.
            shape: That it gets.
        """
        return self._op(weight, "Reshape", [value, self._shape(weight, shape)])

    def _shaped(self, weight: Packed, value: ir.Value, shape: Sequence[int]) -> ir.Value:
        """Return (N, blocks, size) in a shape, without what the last block was filled up with."""
        if weight.padded != weight.inputs:
            value = self.cut(weight, value, (weight.rows, weight.padded), weight.inputs)
        return self.reshaped(weight, value, shape)

    def _op(
        self,
        weight: Packed,
        op_type: str,
        inputs: Sequence[ir.Value],
        **attributes: Any,
    ) -> ir.Value:
        # What is written later for the same weight follows what is there: readers come and go in between.
        last = self._last.get(weight.tensor)
        (made,) = self.canvas.node(
            op_type,
            inputs,
            before=weight.before if last is None else None,
            after=last,
            attributes=attributes or None,
            outputs=["packed"],  # short: a weight has a score of them
            name=None,
        )
        self._last[weight.tensor] = maker_of(made)
        return made

    def _cast(self, weight: Packed, value: ir.Value, to: ir.DataType) -> ir.Value:
        return self._op(weight, "Cast", [value], to=int(to))

    def _lazy(
        self,
        weight: Packed,
        read: Callable[[], NDArray[Any]],
        dtype: ir.DataType,
        shape: Sequence[int],
        name: str,
    ) -> ir.Value:
        name = f"{weight.tensor}_{name}"
        tensor = lazy(read, dtype, tuple(shape), name)
        return self.canvas.initializer(weight.graph, tensor, name)

    def _number(self, weight: Packed, number: int) -> ir.Value:
        return self._constant(weight, np.asarray(number, np.float32), f"float_{number}")

    def _shape(self, weight: Packed, shape: Sequence[int]) -> ir.Value:
        name = "x".join(str(n) for n in shape)
        return self._constant(weight, np.asarray(shape, np.int64), f"int64_{name}")

    def _constant(self, weight: Packed, array: NDArray[Any], name: str) -> ir.Value:
        key = (weight.graph, f"{array.dtype}{array.shape}", array.tobytes())
        if key not in self._shared:
            self._shared[key] = self.canvas.constant(weight.graph, array, f"quantkit_{name}")
        return self._shared[key]


def _is_plain(bits: int, count: int) -> bool:
    """Say whether so many codes are written a byte each: what their planes would save, the nodes of these would take."""
    return bits == 8 or count * (8 - bits) < 8 * _NODES * len(plane_widths(bits))
