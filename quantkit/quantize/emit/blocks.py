"""Weights in blocks that kernels read as they are: MatMulNBits and GatherBlockQuantized, or the same as plain ONNX.

    MatMul(x, w)     ->   MatMulNBits(x, codes, steps, zeros)              codes (N, blocks, bytes), steps and zeros (N, blocks)
    Gather(w, i)     ->   GatherBlockQuantized(codes, i, steps, zeros)     the same bytes as a matrix: a head and its table are stored once

These kernels take 2, 4 and 8 bits. Codes of another number of bits become bytes at load (`quantkit.quantize.emit.packed`), and so do steps, which the file has as
small multiples of one scale per row. Zeros are uint8: with float zeros, or an order of inputs of its own (g_idx), the kernel makes the whole matrix float in
every run.

onnxruntime 1.31 packs constant codes at load together with the steps that it finds constant then. Where steps are put together by nodes and nothing is folded (optimization off),
it packs without them, and the product is zero. So codes are no constant either in such a file: they pass a Reshape, which is folded with all the rest.

As plain ONNX (opset 21) a product reads a DequantizeLinear of blocks along its summed axis, which runtimes fuse with it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.model.graph.edit import Canvas, const_of, optional, own_name, owner_of
from quantkit.model.graph.mapping import lazy
from quantkit.model.ops import MICROSOFT
from quantkit.numerics.dtypes import int_type
from quantkit.numerics.packing import pack
from quantkit.quantize.emit._operands import factor
from quantkit.quantize.emit.dynamic import add_bias, emit_rest, remove_node
from quantkit.quantize.emit.packed import Packed
from quantkit.quantize.emit.parts import typed
from quantkit.quantize.emit.weights import Weights
from quantkit.quantize.plan.model import BlockFormat, Mode, NodePlan, Plan, kernel_bits
from quantkit.quantize.plan.solved import SolvedIntegers

_BIAS = 2  # input slot of Gemm
_KERNEL_BIAS = 5  # input slot of MatMulNBits


def emit_blocks(model: ir.Model, plan: Plan, solved: SolvedIntegers) -> None:
    """Rewrite `model` in place as `plan` says, with the codes that `solved` holds.

    Args:
        model: The float model that was planned; it is rewritten.
        plan: What was decided.
        solved: Codes; weights that it lacks are rounded to nearest.
    """
    weights = Weights(Canvas(model), plan, solved)
    kernels = _Kernels(weights)
    for node in list(model.graph.all_nodes()):
        decided = plan.node.get(own_name(node))
        if decided is None or decided.mode is not Mode.BLOCKS:
            continue
        if plan.block_format is BlockFormat.ONNX:
            _dequantized(weights, node)
            continue
        if node.op_type == "Gather":
            kernels.look_up(node)
        else:
            kernels.multiply(node, decided)
        remove_node(node)
    emit_rest(weights)


@dataclass(frozen=True, slots=True)
class _Operands:
    """What both kernels read of a weight; no zeros: they are in the middle."""

    weight: Packed
    codes: ir.Value
    steps: ir.Value
    zeros: ir.Value | None


@dataclass(slots=True)
class _Kernels:
    """Writes onnxruntime's own operators; a weight that two nodes read is there once."""

    weights: Weights
    _known: dict[ir.Value, _Operands] = field(default_factory=dict)

    @property
    def canvas(self) -> Canvas:
        """The graph that is written."""
        return self.weights.canvas

    def multiply(self, node: ir.Node, decided: NodePlan) -> None:
        """Put MatMulNBits in the place of a MatMul or Gemm."""
        given = self._operands(node.inputs[1])
        weight, base = given.weight, node.outputs[0].name or "product"
        inputs = [node.inputs[0], given.codes, self._steps(node, given), given.zeros]
        bias = self._kernel_bias(node, weight.rows)
        if bias is not None:
            inputs += [*[None] * (_KERNEL_BIAS - len(inputs)), bias]
        (result,) = self.canvas.node(
            "MatMulNBits",
            inputs,
            before=node,
            attributes={
                "K": weight.inputs,
                "N": weight.rows,
                "bits": kernel_bits(weight.grid.bits),
                "block_size": weight.grid.size,
                "accuracy_level": decided.accuracy_level,
            },
            domain=MICROSOFT,
            outputs=[f"{base}_product"],
        )
        if bias is None:
            result = add_bias(self.canvas, node, result, base, "sum")
        self.canvas.replace(node, result)

    def look_up(self, node: ir.Node) -> None:
        """Put GatherBlockQuantized in the place of a Gather of rows."""
        given = self._operands(node.inputs[0])
        weight, bits = given.weight, kernel_bits(given.weight.grid.bits)
        table = self._table(weight, given.codes, bits)
        (result,) = self.canvas.node(
            "GatherBlockQuantized",
            [table, node.inputs[1], given.steps, *([given.zeros] if given.zeros else [])],
            before=node,
            attributes={
                "bits": bits,
                "block_size": weight.grid.size,
                "gather_axis": 0,
                "quantize_axis": 1,
            },
            domain=MICROSOFT,
            outputs=[f"{node.outputs[0].name}_rows"],
        )
        self.canvas.replace(node, result)

    def _table(self, weight: Packed, codes: ir.Value, bits: int) -> ir.Value:
        """Return codes (N, blocks, bytes) as a matrix of the width that is looked up."""
        per_byte = 8 // bits
        wide = (weight.rows, weight.padded // per_byte)
        return self.weights.packer.cut(weight, codes, wide, weight.inputs // per_byte)

    def _operands(self, value: ir.Value | None) -> _Operands:
        source = self.weights.source(value)
        if source not in self._known:
            self._known[source] = self._made(self.weights.packed(source))
        return self._known[source]

    def _made(self, weight: Packed) -> _Operands:
        packer, grid = self.weights.packer, weight.grid
        bits = kernel_bits(grid.bits)
        shape = (weight.rows, weight.blocks, grid.size * bits // 8)
        if bits == grid.bits:
            flat = (weight.rows, shape[1] * shape[2])
            codes = _bytes(self.canvas, weight, "codes", weight.padded_codes, bits, flat)
            codes = packer.reshaped(weight, codes, shape)
        else:
            shift = (1 << (bits - 1)) - grid.middle if grid.symmetric else 0
            codes = packer.codes(weight, shape, shift)
        zeros = None
        if not grid.symmetric:
            wide = (weight.rows, -(-weight.blocks * bits // 8))
            zeros = _bytes(self.canvas, weight, "zeros", lambda: weight.read().zero, bits, wide)
        return _Operands(weight, codes, packer.steps(weight), zeros)

    def _steps(self, node: ir.Node, given: _Operands) -> ir.Value:
        """Return the steps with which a node multiplies: those of its weight, times the alpha of a Gemm."""
        alpha = factor(node, "alpha")
        if alpha == 1:
            return given.steps
        scale = self.canvas.constant(
            given.weight.graph, np.asarray(alpha, np.float32), f"{node.name}_alpha"
        )
        (steps,) = self.canvas.node(
            "Mul", [given.steps, scale], before=node, outputs=[f"{node.name}_steps"]
        )
        return steps

    def _kernel_bias(self, node: ir.Node, channels: int) -> ir.Value | None:
        """Return the bias of a Gemm as the kernel takes it, a vector; None if there is none, or another."""
        value = optional(node, _BIAS)
        tensor = const_of(value)
        if tensor is None or tensor.size != channels or tensor.shape[-1] != channels:
            return None
        array = tensor.numpy().reshape(-1) * np.float32(factor(node, "beta"))
        return self.canvas.constant(
            owner_of(node), array.astype(np.float32), f"{node.name}_kernel_bias"
        )


def _bytes(
    canvas: Canvas,
    weight: Packed,
    name: str,
    read: Callable[[], NDArray[np.uint8]],
    bits: int,
    shape: tuple[int, ...],
) -> ir.Value:
    """Add rows of codes as bytes, each row packed by itself, the first code in the low bits."""

    def packed() -> NDArray[np.uint8]:
        rows, per_byte = read(), 8 // bits
        missing = -rows.shape[1] % per_byte
        padded = np.pad(rows, ((0, 0), (0, missing))) if missing else rows
        whole = padded if bits == 8 else pack(padded, int_type(f"uint{bits}"))
        return np.ascontiguousarray(whole).reshape(shape)

    label = f"{weight.tensor}_{name}"
    return canvas.initializer(weight.graph, lazy(packed, ir.DataType.UINT8, shape, label), label)


def _dequantized(weights: Weights, node: ir.Node) -> None:
    """Let a MatMul or Gemm read the DequantizeLinear of its weight, in the order (K, N) in which runtimes fuse the two."""
    canvas, source = weights.canvas, weights.source(node.inputs[1])
    weight = weights.packed(source)
    dtype = int_type(f"uint{weight.grid.bits}")

    def by_input(name: str, kind: ir.DataType, count: int, read: Callable[[], Any]) -> ir.Value:
        label, shape = f"{weight.tensor}_{name}", (count, weight.rows)
        tensor = lazy(lambda: np.ascontiguousarray(read().T), kind, shape, label)
        return canvas.initializer(weight.graph, tensor, label)

    integers = ir.DataType[dtype.name.upper()]
    (restored,) = canvas.node(
        "DequantizeLinear",
        [
            by_input("codes", integers, weight.inputs, lambda: typed(weight.read().codes, dtype)),
            by_input("steps", ir.DataType.FLOAT, weight.blocks, lambda: weight.read().steps),
            by_input("zeros", integers, weight.blocks, lambda: typed(weight.read().zero, dtype)),
        ],
        before=node,
        attributes={"axis": 0, "block_size": weight.grid.size},
        outputs=[f"{weight.tensor}_dequantized"],
    )
    through = node.inputs[1].producer() if node.inputs[1] is not source else None  # type: ignore[union-attr]
    node.replace_input_with(1, restored)
    if node.op_type == "Gemm":
        node.attributes["transB"] = ir.AttrInt64("transB", 0)
    if through is not None and not through.outputs[0].uses():
        remove_node(through)
