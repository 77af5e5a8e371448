"""The calibrated plan as QuantizeLinear and DequantizeLinear around float operators.

    x -> Q -> DQ -> Conv(DQ(w), DQ(b)) -> Q -> DQ -> ...

A runtime replaces each ``DQ, operator, Q`` by its integer kernel; without optimization the same file computes
the same in float. No node of the model is replaced. Data movement that a runtime does not find in there works on
the integers: x -> Q -> Pad -> DQ -> ...
"""

from dataclasses import dataclass, field

import onnx_ir as ir

from quantkit.emit.parts import Parts, Writer, moved_inputs, quantized_constant
from quantkit.graph.edit import owner_of
from quantkit.plan.model import ActivationPlan, Mode, NodePlan

__all__ = ["emit_qdq"]

_BIAS = 2


def emit_qdq(parts: Parts, bare: frozenset[str] = frozenset()) -> None:
    """Insert the pairs that the plan asks for, in place.

    Args:
        parts: The plan, and what is made of its constants.
        bare: Data movement that the target runs on integers, but only if it is written so.
    """
    _Writer(parts).write()
    for node in list(parts.canvas.model.graph.all_nodes()):
        decided = parts.plan.node.get(node.name or "")
        if node.op_type in bare and decided is not None and decided.mode is Mode.STATIC:
            _uncover(node)


@dataclass(slots=True)
class _Writer(Writer):
    _restored: dict[ir.Value, ir.Value] = field(default_factory=dict)
    _inner: dict[tuple[ir.Value, ir.Graph], ir.Value] = field(default_factory=dict)

    def write(self) -> None:
        static = self.static_nodes()
        # First all that is read: afterwards values are no longer known by their names in the plan.
        for node, _ in static:
            self._read(node)
        for node, decided in static:
            self._hand_on(node, decided)

    def _read(self, node: ir.Node) -> None:
        product = self.parts.is_product(node)
        for slot in self.parts.read_slots(node):
            value = node.inputs[slot]
            assert value is not None  # noqa: S101 - it is in the plan
            if product:
                self._operands(node, self.plan.activation[value.name or ""])
            node.replace_input_with(slot, self._local(value, node))

    def _operands(self, node: ir.Node, x: ActivationPlan) -> None:
        """Let a product read its weight and bias from integers."""
        made = self.parts.product(node, x)
        base = made.weight.name or "weight"
        weight = self._restore(
            [made.weight, made.scale, made.zero_point], base, before=node, axis=made.axis
        )
        node.replace_input_with(1, weight)
        for name in ("alpha", "beta"):
            node.attributes.pop(name, None)
        if made.bias is None:
            return
        bias = made.bias
        if made.bias_scale is not None:
            axis = 0 if made.axis is not None else None
            bias = self._restore(
                [made.bias, made.bias_scale], made.bias.name or "bias", before=node, axis=axis
            )
        if len(node.inputs) <= _BIAS:
            node.resize_inputs(_BIAS + 1)
        node.replace_input_with(_BIAS, bias)

    def _restore(
        self, inputs: list[ir.Value | None], base: str, *, before: ir.Node, axis: int | None
    ) -> ir.Value:
        (made,) = self.canvas.node(
            "DequantizeLinear",
            inputs,
            before=before,
            attributes=None if axis is None else {"axis": axis},
            outputs=[f"{base}_dequantized"],
        )
        return made

    def _local(self, value: ir.Value, reader: ir.Node) -> ir.Value:
        """Return a restored value in the graph of its reader: kernels are not fused across If and Loop."""
        restored = self._pair(value)
        producer = restored.producer()
        assert producer is not None  # noqa: S101 - it is the result of a DequantizeLinear
        graph = owner_of(reader)
        if owner_of(producer) is graph:
            return restored
        key = (value, graph)
        if key not in self._inner:
            inputs = list(producer.inputs)
            self._inner[key] = self._restore(
                inputs, value.name or "outer", before=self.first[graph], axis=None
            )
        return self._inner[key]

    def _pair(self, value: ir.Value) -> ir.Value:
        """Return a value as it comes out of its quantization, made on first use."""
        if value not in self._restored:
            producer = value.producer()
            if value.is_initializer():
                self._restored[value] = self._constant(value)
            elif producer is not None:
                self._restored[value] = self._inserted(value, after=producer)
            else:
                assert isinstance(value.graph, ir.Graph)  # noqa: S101 - an input has a graph
                self._restored[value] = self._inserted(value, before=self.first[value.graph])
        return self._restored[value]

    def _inserted(
        self, value: ir.Value, *, after: ir.Node | None = None, before: ir.Node | None = None
    ) -> ir.Value:
        decided = self.plan.activation[value.name or ""]
        graph = owner_of(after or before)  # type: ignore[arg-type]  # one of the two is given
        scale, zero = self.parts.parameters(graph, decided)
        (integers,) = self.canvas.node(
            "QuantizeLinear",
            [value, scale, zero],
            after=after,
            before=before,
            outputs=[f"{value.name}_quantized"],
        )
        (restored,) = self.canvas.node(
            "DequantizeLinear",
            [integers, scale, zero],
            after=integers.producer() if after is not None else None,
            before=before,
            outputs=[f"{value.name}_dequantized"],
        )
        restored.type, restored.shape = value.type, value.shape
        return restored

    def _constant(self, value: ir.Value) -> ir.Value:
        """Store a constant operand as integers."""
        decided, tensor = self.plan.activation[value.name or ""], value.const_value
        assert tensor is not None  # noqa: S101 - it is an initializer
        assert isinstance(value.graph, ir.Graph)  # noqa: S101 - an initializer has a graph
        integers = quantized_constant(tensor, decided)
        stored = self.canvas.constant(value.graph, integers, f"{value.name}_quantized")
        scale, zero = self.parts.parameters(value.graph, decided)
        first = self.first[value.graph]
        return self._restore(
            [stored, scale, zero], value.name or "constant", before=first, axis=None
        )

    def _hand_on(self, node: ir.Node, decided: NodePlan) -> None:
        """Let everybody read what comes out of an integer kernel as it comes out of it."""
        if decided.float_output:
            return
        for value in node.outputs:
            if value.name not in self.plan.activation:
                continue
            restored = self._pair(value)
            quantizer = restored.producer().inputs[0].producer()  # type: ignore[union-attr]
            for use in tuple(value.uses()):
                if use.node is not quantizer:
                    use.node.replace_input_with(use.idx, restored)
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
        value.name = self.canvas.name(f"{name}_float")
        restored.name = name


def _uncover(node: ir.Node) -> None:
    """Let data movement between DequantizeLinear and QuantizeLinear of one scale and zero point read and make integers."""
    # Movement of integers is exact, so DequantizeLinear and QuantizeLinear of the same parameters around it do
    # nothing but cost time; onnxruntime takes them away for most operators by itself, and for these it does not. Both
    # must have the very same scale and zero point (by identity of the values, as they share them) and nobody else may
    # read what is dequantized behind the movement.
    maker = node.inputs[0].producer() if node.inputs[0] is not None else None
    readers = [use.node for use in node.outputs[0].uses()]
    if maker is None or maker.op_type != "DequantizeLinear" or len(readers) != 1:
        return
    (integers, *read), (quantizer,) = maker.inputs, readers
    # A plan may have been edited: with another scale it is computed in float. So it is with integers of 16 bits, for which there
    # are no kernels, and with int8: on x86 onnxruntime makes uint8 of pairs, and of nothing else, so layers behind it would be float.
    same = quantizer.op_type == "QuantizeLinear" and list(quantizer.inputs[1:]) == read
    zero = read[1] if len(read) > 1 else None
    if not same or integers is None or zero is None or zero.dtype is not ir.DataType.UINT8:
        return
    for slot, value in enumerate(moved_inputs(node, integers, zero)):
        if slot >= len(node.inputs):
            node.resize_inputs(slot + 1)
        node.replace_input_with(slot, value)
    made, named = node.outputs[0], quantizer.outputs[0]
    ir.convenience.replace_all_uses_with(named, made)
    owner_of(quantizer).remove(quantizer, safe=True)
    made.name, made.type = named.name, ir.TensorType(zero.dtype)
    if not maker.outputs[0].uses() and not maker.outputs[0].is_graph_output():
        owner_of(maker).remove(maker, safe=True)
