"""The calibrated plan as QuantizeLinear and DequantizeLinear around float operators.

    x -> Q -> DQ -> Conv(DQ(w), DQ(b)) -> Q -> DQ -> ...

A runtime replaces each ``DQ, operator, Q`` by its integer kernel; without optimization the same file computes
the same in float. No node of the model is replaced. Data movement that a runtime does not find in there works on
the integers: x -> Q -> Pad -> DQ -> ...
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.model.graph.edit import discard, own_name, owner_of
from quantkit.model.graph.mapping import lazy
from quantkit.model.ops.float_ops import activation_slots
from quantkit.model.ops.integer_ops import MICROSOFT
from quantkit.quantize.emit._operands import graph_of, maker_of, operand, shape_of, tensor_of
from quantkit.quantize.emit.parts import (
    Bias,
    Parts,
    ProductParts,
    Writer,
    moved_inputs,
    quantized_constant,
)
from quantkit.quantize.plan.model import ActivationPlan, NodePlan
from quantkit.targets import Target

_BIAS = 2
_QUANTIZE = "QuantizeLinear"
_RESTORE = "DequantizeLinear"


@dataclass(slots=True)
class QdqWriter(Writer):
    """Inserts the pairs that a plan asks for, in place."""

    _restored: dict[ir.Value, ir.Value] = field(default_factory=dict)
    _inner: dict[tuple[ir.Value, ir.Graph], ir.Value] = field(default_factory=dict)
    _apart: set[ir.Value] = field(default_factory=set)  # each reader has a pair of its own
    _pairs: Counter[ir.Value] = field(default_factory=Counter)
    _others: dict[ir.Value, ir.Value] = field(default_factory=dict)  # in other numbers
    _readers: dict[ir.Value, list[str]] = field(
        default_factory=dict
    )  # quantized, of what is converted

    def write(self) -> None:
        """Insert them all."""
        static = self.static_nodes()
        if self.plan.qdq.pair_per_reader:
            readers = Counter(v for node, _ in static for v in {*self._read_values(node)})
            self._apart = {value for value, count in readers.items() if count > 1}
        for node, _ in static:
            for value in self._read_values(node):
                if self.plan.activation[own_name(value)].converted is not None:
                    self._readers.setdefault(value, []).append(own_name(node))
        # First all that is read: afterwards values are no longer known by their names in the plan.
        for node, _ in static:
            self._read(node)
        for node, decided in static:
            self._hand_on(node, decided)

    def _read_values(self, node: ir.Node) -> list[ir.Value]:
        values = (operand(node, slot) for slot in self.parts.read_slots(node))
        return [value for value in values if not self._is_constant(value)]

    def _read(self, node: ir.Node) -> None:
        slots = self.parts.read_slots(node)
        values = [operand(node, slot) for slot in slots]
        if self.parts.is_product(node):
            decided = self.plan.activation[own_name(values[0])]
            self._operands(node, decided.read_by(own_name(node)))
        elif (bias := self.parts.added(node)) is not None:
            self._add(node, bias)
        for slot, value in zip(slots, values, strict=True):
            node.replace_input_with(slot, self._local(value, node))

    def _operands(self, node: ir.Node, x: ActivationPlan) -> None:
        """Let a product read its weight and bias from integers."""
        made = self.parts.product(node, x)
        node.replace_input_with(1, self._weight(made, node))
        node.attributes.pop("alpha", None)
        if not self._keeps_beta(made):
            node.attributes.pop("beta", None)
        if made.bias[0] is not None:
            self._add(node, made.bias)

    def _keeps_beta(self, made: ProductParts) -> bool:  # noqa: ARG002 - others may
        """Say whether a Gemm still scales what it adds."""
        return False

    def _weight(self, made: ProductParts, node: ir.Node) -> ir.Value:
        """Return a weight as it comes out of its integers."""
        return self._restored_weight(made, made.weight.name or "weight", node, before=node)

    def _restored_weight(
        self, made: ProductParts, base: str, node: ir.Node, before: ir.Node
    ) -> ir.Value:
        """Insert the pair, or the DequantizeLinear, of a weight.

        Args:
            made: Its integers.
            base: What names begin with.
            node: Who reads it.
            before: The node in front of which it is restored.
        """
        stored = self._rounded(made, base, node) if self.plan.qdq.weight_pairs else made.weight
        inputs = [stored, made.scale, made.zero_point]
        restored = self._convert(_RESTORE, inputs, base, before=before, axis=made.axis)
        self._in_blocks(restored, made)
        if made.block_size is not None and self.parts.fuses:
            # onnxruntime 1.31 takes it for a weight with one scale, and makes a kernel of it that does not run.
            (restored,) = self.canvas.node(
                "Max", [restored], after=restored.producer(), outputs=[f"{base}_apart"]
            )
        return restored

    def _in_blocks(self, value: ir.Value, made: ProductParts) -> None:
        producer = value.producer()
        if made.block_size is not None and producer is not None:
            producer.attributes.add(ir.AttrInt64("block_size", made.block_size))

    def _rounded(self, made: ProductParts, base: str, node: ir.Node) -> ir.Value:
        """Return the integers of a weight as a QuantizeLinear makes them of floats, of just their values."""
        graph, tensor = owner_of(node), made.weight.const_value
        if tensor is None:  # behind a Transpose
            return made.weight
        scale, zero, shape = tensor_of(made.scale), tensor_of(made.zero_point), shape_of(tensor)

        def floats() -> NDArray[Any]:
            numbers = [n.numpy().astype(np.float32) for n in (scale, zero)]
            if made.block_size is not None and made.axis is not None:
                spread = [np.repeat(n, made.block_size, made.axis) for n in numbers]
                numbers = [np.take(n, range(shape[made.axis]), made.axis) for n in spread]
            elif made.axis is not None:
                extents = [-1 if axis == made.axis else 1 for axis in range(len(shape))]
                numbers = [n.reshape(extents) for n in numbers]
            return (tensor.numpy().astype(np.float32) - numbers[1]) * numbers[0]

        name = f"{base}_float"
        value = self.canvas.initializer(graph, lazy(floats, ir.DataType.FLOAT, shape, name), name)
        graph.initializers.pop(own_name(made.weight))
        inputs = [value, made.scale, made.zero_point]
        quantized = self._convert(_QUANTIZE, inputs, base, before=self.first[graph], axis=made.axis)
        self._in_blocks(quantized, made)
        return quantized

    def _add(self, node: ir.Node, parts: Bias) -> None:
        """Let a node add a bias, from integers if it has a scale."""
        bias, scale, zero = parts
        assert bias is not None  # noqa: S101 - there is one
        if scale is not None:
            several = scale.shape is not None and scale.shape.numpy() not in {(), (1,)}
            inputs = [bias, scale] if zero is None else [bias, scale, zero]
            base, axis = self._bias_base(bias), 0 if several else None
            bias = self._convert(_RESTORE, inputs, base, before=node, axis=axis)
        if len(node.inputs) <= _BIAS:
            node.resize_inputs(_BIAS + 1)
        node.replace_input_with(_BIAS, bias)

    def _bias_base(self, bias: ir.Value) -> str:
        """Return what the names around a bias in integers begin with."""
        return bias.name or "bias"

    def _names(self, op_type: str, base: str, suffix: str) -> tuple[str, str]:  # noqa: ARG002 - others number them
        """Return what the result of a conversion is called, and the node; "": as its result."""
        return f"{base}_{'quantized' if op_type == _QUANTIZE else 'dequantized'}", ""

    def _convert(  # noqa: PLR0913 - what a node is made of
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        base: str,
        *,
        before: ir.Node | None = None,
        after: ir.Node | None = None,
        axis: int | None = None,
        suffix: str = "",
    ) -> ir.Value:
        """Insert a QuantizeLinear or DequantizeLinear."""
        output, name = self._names(op_type, base, suffix)
        (made,) = self.canvas.node(
            op_type,
            inputs,
            before=before,
            after=after,
            attributes=None if axis is None else {"axis": axis},
            domain=MICROSOFT if self.plan.qdq.contrib_ops else "",
            outputs=[output],
            name=name,
        )
        return made

    def _local(self, value: ir.Value, reader: ir.Node) -> ir.Value:
        """Return a restored value in the graph of its reader: kernels are not fused across If and Loop."""
        decided = self.plan.activation[own_name(value)]
        restored = self._pair(value)
        if decided.converted is not None and decided.read_by(own_name(reader)) is not decided:
            restored = self._conversion(value, restored)
        maker, graph = maker_of(restored), owner_of(reader)
        if owner_of(maker) is graph:
            return restored
        key = (value, graph)
        if key not in self._inner:
            self._inner[key] = self._convert(
                _RESTORE, list(maker.inputs), value.name or "outer", before=self.first[graph]
            )
        return self._inner[key]

    def _is_constant(self, value: ir.Value) -> bool:
        return value.is_initializer()

    def _pair(self, value: ir.Value) -> ir.Value:
        """Return a value as it comes out of its quantization, made on first use."""
        if value in self._apart:
            self._pairs[value] += 1
            return self._inserted(value, f"_{self._pairs[value]}")
        if value not in self._restored:
            constant = self._is_constant(value)
            self._restored[value] = self._constant(value) if constant else self._inserted(value)
        return self._restored[value]

    def _inserted(self, value: ir.Value, suffix: str = "") -> ir.Value:
        decided = self.plan.activation[own_name(value)]
        after, graph, base = value.producer(), graph_of(value), value.name or "activation"
        before = self.first[graph] if after is None else None
        numbers = self.parts.parameters(graph, decided, half=_is_half(value))
        integers = self._convert(
            _QUANTIZE, [value, *numbers], base, after=after, before=before, suffix=suffix
        )
        maker = integers.producer() if after is not None else None
        restored = self._convert(
            _RESTORE, [integers, *numbers], base, after=maker, before=before, suffix=suffix
        )
        restored.type, restored.shape = value.type, value.shape
        return restored

    def _conversion(self, value: ir.Value, restored: ir.Value) -> ir.Value:
        """Return a value in its other numbers, made on first use: Q -> DQ -> Q' -> DQ'."""
        if value in self._others:
            return self._others[value]
        decided, source = self.plan.activation[own_name(value)], restored
        maker, base = maker_of(restored), f"{value.name}_convert"
        if not self._all_convert(value):
            # A DequantizeLinear of its own, which a runtime makes one conversion of integers with what follows.
            source = self._convert(_RESTORE, list(maker.inputs), f"{base}_clone", after=maker)
            source.name = self.canvas.name(f"{base}_QuantizeLinear_Input")
        numbers = self.parts.parameters(
            owner_of(maker), decided.read_by(_anybody(decided)), "_convert", half=_is_half(value)
        )
        integers = self._convert(_QUANTIZE, [source, *numbers], base, after=source.producer())
        made = self._convert(_RESTORE, [integers, *numbers], base, after=integers.producer())
        made.type, made.shape = value.type, value.shape
        self._others[value] = made
        return made

    def _all_convert(self, value: ir.Value) -> bool:
        """Say whether all quantized nodes that read a value read its other numbers."""
        decided = self.plan.activation[own_name(value)]
        return all(decided.read_by(name) is not decided for name in self._readers.get(value, ()))

    def _constant(self, value: ir.Value) -> ir.Value:
        """Store a constant operand as integers."""
        decided, tensor = self.plan.activation[own_name(value)], tensor_of(value)
        graph, base = graph_of(value), value.name or "constant"
        first, stored = self.first[graph], value
        if not self.plan.qdq.weight_pairs:
            integers = quantized_constant(tensor, decided)
            stored = self.canvas.constant(graph, integers, f"{base}_quantized")
        numbers = self.parts.parameters(graph, decided, half=_is_half(value))
        if self.plan.qdq.weight_pairs:
            stored = self._convert(_QUANTIZE, [value, *numbers], base, before=first)
        return self._convert(_RESTORE, [stored, *numbers], base, before=first)

    def _hand_on(self, node: ir.Node, planned: NodePlan) -> None:
        """Let everybody read what comes out of an integer kernel as it comes out of it."""
        if planned.float_output:
            return
        for value in node.outputs:
            if value.name not in self.plan.activation or value in self._apart:
                continue
            restored = self._pair(value)
            quantizer = operand(maker_of(restored), 0).producer()
            decided, converted = self.plan.activation[own_name(value)], restored
            if decided.converted is not None:
                converted = self._conversion(value, restored)
            for use in tuple(value.uses()):
                if use.node is not quantizer:
                    own = decided.read_by(own_name(use.node)) is decided
                    use.node.replace_input_with(use.idx, restored if own else converted)
            if decided.converted is not None and self._all_convert(value):
                restored = converted
            if value.is_graph_output():
                self._rename_output(value, restored)

    def _rename_output(self, value: ir.Value, restored: ir.Value) -> None:
        """Let the result of the graph be the restored value, under its old name."""
        outputs = graph_of(value).outputs
        for index, output in enumerate(outputs):
            if output is value:
                outputs[index] = restored
        name = value.name
        value.name = self.canvas.name(self._float_name(name or ""))
        restored.name = name

    def _float_name(self, name: str) -> str:
        """Return what the float result of a kernel is called where its quantization takes its name."""
        return f"{name}_float"


def _is_half(value: ir.Value) -> bool:
    return value.dtype is ir.DataType.FLOAT16


def _anybody(decided: ActivationPlan) -> str:
    """Return the name of a node that reads the other numbers."""
    return decided.converted.readers[0] if decided.converted and decided.converted.readers else ""


def write_for_kernels(writer: QdqWriter, target: Target) -> None:
    """Rewrite, in place, what a target runs in integers only in another form.

    Args:
        writer: Has written the pairs of a plan.
        target: Has movement that it runs on integers only if it is written so, and operators that it runs as a sum.
    """
    for node, _ in writer.static_nodes():
        if node.op_type in target.bare:
            _uncover(node)
        elif node.op_type in target.written_as_sums:
            _write_as_sum(writer.parts, node)


def _uncover(node: ir.Node) -> None:
    """Let data movement between DequantizeLinear and QuantizeLinear of one scale and zero point read and make integers."""
    # Movement of integers is exact, so DequantizeLinear and QuantizeLinear of the same parameters around it do
    # nothing but cost time; onnxruntime takes them away for most operators by itself, and for these it does not.
    pairs = _same_pairs(node)
    if pairs is None:
        return
    makers, quantizer, zero = pairs
    integers = [operand(maker, 0) for maker in makers]
    for slot, value in enumerate(moved_inputs(node, integers, zero)):
        if slot >= len(node.inputs):
            node.resize_inputs(slot + 1)
        node.replace_input_with(slot, value)
    made, named = node.outputs[0], quantizer.outputs[0]
    ir.convenience.replace_all_uses_with(named, made)
    owner_of(quantizer).remove(quantizer, safe=True)
    made.name, made.type = named.name, ir.TensorType(ir.DataType.UINT8)
    for maker in dict.fromkeys(makers):
        _drop_unread(maker)


def _same_pairs(node: ir.Node) -> tuple[list[ir.Node], ir.Node, ir.Value] | None:
    """Return the conversions around data movement and their zero point, if all have the very same numbers, in uint8."""
    slots = activation_slots(node.op_type, len(node.inputs), product=False)
    makers = [value.producer() for slot in slots if (value := node.inputs[slot]) is not None]
    found = [m for m in makers if m is not None and m.op_type == _RESTORE]
    readers = [use.node for use in node.outputs[0].uses()]
    # Nobody else may read what is dequantized behind the movement.
    if len(found) < len(slots) or len(readers) != 1 or readers[0].op_type != _QUANTIZE:
        return None
    # A plan may have been edited: with another scale it is computed in float. So it is with integers of 16 bits, for which there
    # are no kernels, and with int8: on x86 onnxruntime makes uint8 of pairs, and of nothing else, so layers behind it would be float.
    numbers = list(found[0].inputs[1:])
    same = all(list(one.inputs[1:]) == numbers for one in (*found, readers[0]))
    zero = numbers[1] if len(numbers) > 1 else None
    if not same or zero is None or zero.dtype is not ir.DataType.UINT8:
        return None
    return found, readers[0], zero


def _drop_unread(maker: ir.Node) -> None:
    """Remove a conversion whose result nobody reads any more."""
    if not maker.outputs[0].uses() and not maker.outputs[0].is_graph_output():
        discard(maker)


def _write_as_sum(parts: Parts, node: ir.Node) -> None:
    """Let a sum stand for a HardSigmoid between DequantizeLinear and QuantizeLinear: there is a kernel for that."""
    canvas, source = parts.canvas, maker_of(operand(node, 0))
    integers, scale, zero = (operand(source, slot) for slot in range(3))
    made = parts.sum_of(node, scale, zero)
    terms = [
        canvas.node(_RESTORE, inputs, before=node, outputs=[f"{node.name}_{suffix}"])[0]
        for suffix, inputs in (
            ("slope", [integers, made.scale, zero]),
            ("offset", [made.constant, made.constant_scale, made.constant_zero]),
        )
    ]
    (result,) = canvas.node("Add", terms, before=node, outputs=[f"{node.outputs[0].name}_sum"])
    canvas.replace(node, result)
    name = node.name
    discard(node)
    maker_of(result).name = name
    _drop_unread(source)
