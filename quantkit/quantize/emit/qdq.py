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

from quantkit.model.graph.edit import Canvas, discard, owner_of
from quantkit.model.graph.mapping import lazy
from quantkit.model.ops.float_ops import activation_slots
from quantkit.model.ops.integer_ops import MICROSOFT
from quantkit.quantize.emit.parts import (
    Parts,
    ProductParts,
    Writer,
    moved_inputs,
    quantized_constant,
    sum_of,
)
from quantkit.quantize.plan.model import ActivationPlan, Mode, NodePlan

__all__ = ["emit_qdq"]

_BIAS = 2
_INTEGERS = "_quantized"


def emit_qdq(
    parts: Parts, bare: frozenset[str] = frozenset(), sums: frozenset[str] = frozenset()
) -> None:
    """Insert the pairs that the plan asks for, in place.

    Args:
        parts: The plan, and what is made of its constants.
        bare: Data movement that the target runs on integers, but only if it is written so.
        sums: What it runs in integers only if it is written as a sum.
    """
    _Writer(parts).write()
    for node in list(parts.canvas.model.graph.all_nodes()):
        decided = parts.plan.node.get(node.name or "")
        if decided is None or decided.mode is not Mode.STATIC:
            continue
        if node.op_type in bare:
            _uncover(node)
        elif node.op_type in sums:
            _write_as_sum(parts.canvas, node)


@dataclass(slots=True)
class _Writer(Writer):
    _restored: dict[ir.Value, ir.Value] = field(default_factory=dict)
    _inner: dict[tuple[ir.Value, ir.Graph], ir.Value] = field(default_factory=dict)
    _weights: dict[tuple[ir.Value, ir.Value, ir.Graph], ir.Value] = field(default_factory=dict)
    _apart: set[ir.Value] = field(default_factory=set)  # each reader has a pair of its own
    _pairs: Counter[ir.Value] = field(default_factory=Counter)
    _others: dict[ir.Value, ir.Value] = field(default_factory=dict)  # in other numbers
    _readers: dict[ir.Value, list[str]] = field(
        default_factory=dict
    )  # quantized, of what is converted

    def write(self) -> None:
        static = self.static_nodes()
        if self.plan.qdq.pair_per_reader:
            readers = Counter(v for node, _ in static for v in {*self._read_values(node)})
            self._apart = {value for value, count in readers.items() if count > 1}
        for node, _ in static:
            for value in self._read_values(node):
                if self.plan.activation[value.name or ""].converted is not None:
                    self._readers.setdefault(value, []).append(node.name or "")
        # First all that is read: afterwards values are no longer known by their names in the plan.
        for node, _ in static:
            self._read(node)
        for node, decided in static:
            self._hand_on(node, decided)

    def _read_values(self, node: ir.Node) -> list[ir.Value]:
        values = [node.inputs[slot] for slot in self.parts.read_slots(node)]
        return [value for value in values if value is not None and not self._is_constant(value)]

    def _read(self, node: ir.Node) -> None:
        slots = self.parts.read_slots(node)
        values = [node.inputs[slot] for slot in slots]
        if self.parts.is_product(node):
            assert values[0] is not None  # noqa: S101 - it is in the plan
            decided = self.plan.activation[values[0].name or ""]
            self._operands(node, decided.read_by(node.name or ""))
        elif self.parts.covers_all and (bias := self.parts.added(node)) is not None:
            self._add(node, bias)
        for slot, value in zip(slots, values, strict=True):
            assert value is not None  # noqa: S101 - it is in the plan
            node.replace_input_with(slot, self._local(value, node))

    def _operands(self, node: ir.Node, x: ActivationPlan) -> None:
        """Let a product read its weight and bias from integers."""
        made = self.parts.product(node, x)
        node.replace_input_with(1, self._weight(made, node))
        node.attributes.pop("alpha", None)
        if made.bias is not None or not self.parts.covers_all:
            node.attributes.pop("beta", None)
        if made.bias is not None:
            self._add(node, (made.bias, made.bias_scale, made.bias_zero_point))

    def _weight(self, made: ProductParts, node: ir.Node) -> ir.Value:
        """Return a weight as it comes out of its integers; one for all that read it, where all is quantized."""
        key = (made.weight, made.scale, owner_of(node))
        if key in self._weights and self.parts.covers_all:
            return self._weights[key]
        base = (made.tensor if self.parts.covers_all else made.weight.name) or "weight"
        stored = made.weight
        if self.plan.qdq.weight_pairs:
            stored = self._rounded(made, base, node)
        inputs = [stored, made.scale, made.zero_point]
        before = self.first[owner_of(node)] if self.parts.covers_all else node
        restored = self._restore(inputs, base, before=before, axis=made.axis)
        self._in_blocks(restored, made)
        if made.block_size is not None and self.parts.fuses:
            # onnxruntime 1.31 takes it for a weight with one scale, and makes a kernel of it that does not run.
            (restored,) = self.canvas.node(
                "Max", [restored], after=restored.producer(), outputs=[f"{base}_apart"]
            )
        self._weights[key] = restored
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
        scale, zero = made.scale.const_value, made.zero_point.const_value
        assert scale is not None  # noqa: S101 - it is an initializer
        assert zero is not None  # noqa: S101 - it is an initializer
        rank = len(tensor.shape)

        def floats() -> NDArray[Any]:
            numbers = [n.numpy().astype(np.float32) for n in (scale, zero)]
            if made.block_size is not None and made.axis is not None:
                extent = int(tensor.shape.numpy()[made.axis])
                spread = [np.repeat(n, made.block_size, made.axis) for n in numbers]
                numbers = [np.take(n, range(extent), made.axis) for n in spread]
            elif made.axis is not None:
                extents = [-1 if axis == made.axis else 1 for axis in range(rank)]
                numbers = [n.reshape(extents) for n in numbers]
            return (tensor.numpy().astype(np.float32) - numbers[1]) * numbers[0]

        shape = tuple(int(n) for n in tensor.shape.numpy())
        value = self.canvas.initializer(
            graph, lazy(floats, ir.DataType.FLOAT, shape, f"{base}_float"), f"{base}_float"
        )
        graph.initializers.pop(made.weight.name or "")
        quantized = self._quantize(
            [value, made.scale, made.zero_point], base, before=self.first[graph], axis=made.axis
        )
        self._in_blocks(quantized, made)
        return quantized

    def _add(self, node: ir.Node, parts: tuple[ir.Value | None, ...]) -> None:
        """Let a node add a bias, from integers if it has a scale."""
        bias, scale, zero = parts
        assert bias is not None  # noqa: S101 - there is one
        if scale is not None:
            base = (bias.name or "bias").removesuffix(_INTEGERS if self.parts.covers_all else "")
            several = scale.shape is not None and scale.shape.numpy() not in {(), (1,)}
            inputs = [bias, scale] if zero is None else [bias, scale, zero]
            bias = self._restore(inputs, base, before=node, axis=0 if several else None)
        if len(node.inputs) <= _BIAS:
            node.resize_inputs(_BIAS + 1)
        node.replace_input_with(_BIAS, bias)

    def _quantize(
        self,
        inputs: Sequence[ir.Value | None],
        base: str,
        *,
        before: ir.Node | None = None,
        after: ir.Node | None = None,
        axis: int | None = None,
        suffix: str = "",
    ) -> ir.Value:
        return self._convert(
            "QuantizeLinear", inputs, (base, suffix), before=before, after=after, axis=axis
        )

    def _restore(
        self,
        inputs: Sequence[ir.Value | None],
        base: str,
        *,
        before: ir.Node | None = None,
        after: ir.Node | None = None,
        axis: int | None = None,
        suffix: str = "",
    ) -> ir.Value:
        return self._convert(
            "DequantizeLinear", inputs, (base, suffix), before=before, after=after, axis=axis
        )

    def _convert(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        called: tuple[str, str],
        *,
        before: ir.Node | None,
        after: ir.Node | None,
        axis: int | None,
    ) -> ir.Value:
        """Insert a conversion; where all is quantized it is called as other tools of onnxruntime look for it."""
        named, (base, suffix) = self.parts.covers_all, called
        short = "quantized" if op_type == "QuantizeLinear" else "dequantized"
        (made,) = self.canvas.node(
            op_type,
            inputs,
            before=before,
            after=after,
            attributes=None if axis is None else {"axis": axis},
            domain=MICROSOFT if self.plan.qdq.contrib_ops else "",
            outputs=[f"{base}_{op_type}_Output{suffix}" if named else f"{base}_{short}"],
            name=f"{base}_{op_type}{suffix}" if named else "",
        )
        return made

    def _local(self, value: ir.Value, reader: ir.Node) -> ir.Value:
        """Return a restored value in the graph of its reader: kernels are not fused across If and Loop."""
        decided = self.plan.activation[value.name or ""]
        restored = self._pair(value)
        if decided.converted is not None and decided.read_by(reader.name or "") is not decided:
            restored = self._conversion(value, restored)
        producer = restored.producer()
        assert producer is not None  # noqa: S101 - it is the result of a DequantizeLinear
        graph = owner_of(reader)
        if owner_of(producer) is graph:
            return restored
        key = (value, graph)
        if key not in self._inner:
            inputs = list(producer.inputs)
            self._inner[key] = self._restore(
                inputs, value.name or "outer", before=self.first[graph]
            )
        return self._inner[key]

    def _is_constant(self, value: ir.Value) -> bool:
        producer = value.producer()
        return value.is_initializer() or (
            self.parts.covers_all and producer is not None and producer.op_type == "Constant"
        )

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
        decided = self.plan.activation[value.name or ""]
        after, before = value.producer(), None
        if after is None:
            assert isinstance(value.graph, ir.Graph)  # noqa: S101 - an input has a graph
            before = self.first[value.graph]
        graph = owner_of(after or before)  # type: ignore[arg-type]  # one of the two is given
        base = value.name or "activation"
        numbers = self.parts.parameters(graph, decided, half=_is_half(value))
        integers = self._quantize(
            [value, *numbers], base, after=after, before=before, suffix=suffix
        )
        maker = integers.producer() if after is not None else None
        restored = self._restore(
            [integers, *numbers], base, after=maker, before=before, suffix=suffix
        )
        restored.type, restored.shape = value.type, value.shape
        return restored

    def _conversion(self, value: ir.Value, restored: ir.Value) -> ir.Value:
        """Return a value in its other numbers, made on first use: Q -> DQ -> Q' -> DQ'."""
        if value in self._others:
            return self._others[value]
        decided = self.plan.activation[value.name or ""]
        assert decided.converted is not None  # noqa: S101 - asked before
        maker, base = restored.producer(), f"{value.name}_convert"
        assert maker is not None  # noqa: S101 - it is the result of a DequantizeLinear
        graph, source = owner_of(maker), restored
        if not self._all_convert(value):
            # A DequantizeLinear of its own, which a runtime makes one conversion of integers with what follows.
            source = self._restore(list(maker.inputs), f"{base}_clone", after=maker)
            source.name = self.canvas.name(f"{base}_QuantizeLinear_Input")
        numbers = self.parts.parameters(
            graph, decided.read_by(_anybody(decided)), "_convert", half=_is_half(value)
        )
        integers = self._quantize([source, *numbers], base, after=source.producer())
        made = self._restore([integers, *numbers], base, after=integers.producer())
        made.type, made.shape = value.type, value.shape
        self._others[value] = made
        return made

    def _all_convert(self, value: ir.Value) -> bool:
        """Say whether all quantized nodes that read a value read its other numbers."""
        decided = self.plan.activation[value.name or ""]
        return all(decided.read_by(name) is not decided for name in self._readers.get(value, ()))

    def _constant(self, value: ir.Value) -> ir.Value:
        """Store a constant operand as integers."""
        decided, tensor = (
            self.plan.activation[value.name or ""],
            ir.convenience.get_const_tensor(value),
        )
        assert tensor is not None  # noqa: S101 - it is a constant
        producer = value.producer()
        graph = value.graph if producer is None else owner_of(producer)
        assert isinstance(graph, ir.Graph)  # noqa: S101 - an initializer has a graph
        base = value.name or "constant"
        first, stored = self.first[graph], value
        if not self.plan.qdq.weight_pairs:
            integers = quantized_constant(tensor, decided)
            stored = self.canvas.constant(graph, integers, f"{base}_quantized")
        numbers = self.parts.parameters(graph, decided, half=_is_half(value))
        if self.plan.qdq.weight_pairs:
            stored = self._quantize([value, *numbers], base, before=first)
        return self._restore([stored, *numbers], base, before=first)

    def _hand_on(self, node: ir.Node, planned: NodePlan) -> None:
        """Let everybody read what comes out of an integer kernel as it comes out of it."""
        if planned.float_output:
            return
        for value in node.outputs:
            if value.name not in self.plan.activation or value in self._apart:
                continue
            restored = self._pair(value)
            quantizer = restored.producer().inputs[0].producer()  # type: ignore[union-attr]
            decided, converted = self.plan.activation[value.name or ""], restored
            if decided.converted is not None:
                converted = self._conversion(value, restored)
            for use in tuple(value.uses()):
                if use.node is not quantizer:
                    own = decided.read_by(use.node.name or "") is decided
                    use.node.replace_input_with(use.idx, restored if own else converted)
            if decided.converted is not None and self._all_convert(value):
                restored = converted
            if value.is_graph_output():
                self._rename_output(value, restored)

    def _rename_output(self, value: ir.Value, restored: ir.Value) -> None:
        """Let the result of the graph be the restored value, under its old name."""
        producer = value.producer()
        assert producer is not None  # noqa: S101 - a kernel made it
        outputs = owner_of(producer).outputs
        for index, output in enumerate(outputs):
            if output is value:
                outputs[index] = restored
        name = value.name
        suffix = "QuantizeLinear_Input" if self.parts.covers_all else "float"
        value.name = self.canvas.name(f"{name}_{suffix}")
        restored.name = name


def _is_half(value: ir.Value) -> bool:
    return value.dtype is ir.DataType.FLOAT16


def _anybody(decided: ActivationPlan) -> str:
    """Return the name of a node that reads the other numbers."""
    return decided.converted.readers[0] if decided.converted and decided.converted.readers else ""


def _uncover(node: ir.Node) -> None:
    """Let data movement between DequantizeLinear and QuantizeLinear of one scale and zero point read and make integers."""
    # Movement of integers is exact, so DequantizeLinear and QuantizeLinear of the same parameters around it do
    # nothing but cost time; onnxruntime takes them away for most operators by itself, and for these it does not. Both
    # must have the very same scale and zero point (by identity of the values, as they share them) and nobody else may
    # read what is dequantized behind the movement.
    slots = activation_slots(node.op_type, len(node.inputs), product=False)
    makers = [v.producer() if (v := node.inputs[slot]) is not None else None for slot in slots]
    readers = [use.node for use in node.outputs[0].uses()]
    found = [m for m in makers if m is not None and m.op_type == "DequantizeLinear"]
    if len(found) < len(makers) or len(readers) != 1:
        return
    (first, *_), (quantizer,) = found, readers
    read = list(first.inputs[1:])
    # A plan may have been edited: with another scale it is computed in float. So it is with integers of 16 bits, for which there
    # are no kernels, and with int8: on x86 onnxruntime makes uint8 of pairs, and of nothing else, so layers behind it would be float.
    same = quantizer.op_type == "QuantizeLinear" and all(
        list(one.inputs[1:]) == read for one in (*found, quantizer)
    )
    zero = read[1] if len(read) > 1 else None
    integers = [v for one in found if (v := one.inputs[0]) is not None]
    if not same or zero is None or zero.dtype is not ir.DataType.UINT8:
        return
    for slot, value in enumerate(moved_inputs(node, integers, zero)):
        if slot >= len(node.inputs):
            node.resize_inputs(slot + 1)
        node.replace_input_with(slot, value)
    made, named = node.outputs[0], quantizer.outputs[0]
    ir.convenience.replace_all_uses_with(named, made)
    owner_of(quantizer).remove(quantizer, safe=True)
    made.name, made.type = named.name, ir.TensorType(zero.dtype)
    for maker in dict.fromkeys(found):
        if not maker.outputs[0].uses() and not maker.outputs[0].is_graph_output():
            owner_of(maker).remove(maker, safe=True)


def _write_as_sum(canvas: Canvas, node: ir.Node) -> None:
    """Let a sum stand for a HardSigmoid between DequantizeLinear and QuantizeLinear: there is a kernel for that."""
    source = node.inputs[0].producer() if node.inputs[0] is not None else None
    assert source is not None  # noqa: S101 - it reads a DequantizeLinear
    integers, scale, zero = source.inputs
    assert scale is not None  # noqa: S101 - it has one
    assert zero is not None  # noqa: S101 - it has one
    made = sum_of(canvas, node, scale, zero)
    terms = [
        canvas.node("DequantizeLinear", inputs, before=node, outputs=[f"{node.name}_{suffix}"])[0]
        for suffix, inputs in (
            ("slope", [integers, made.scale, zero]),
            ("offset", [made.constant, made.constant_scale, made.constant_zero]),
        )
    ]
    (result,) = canvas.node("Add", terms, before=node, outputs=[f"{node.outputs[0].name}_sum"])
    canvas.replace(node, result)
    maker, name = result.producer(), node.name
    assert maker is not None  # noqa: S101 - the sum
    discard(node)
    maker.name = name
    if not source.outputs[0].uses() and not source.outputs[0].is_graph_output():
        discard(source)
