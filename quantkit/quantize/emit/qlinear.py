"""The calibrated plan as QLinear operators: what runs is what is written, whatever a runtime fuses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from quantkit.errors import UsageError
from quantkit.model.graph.edit import Canvas, const_of, optional, own_name, owner_of
from quantkit.model.ops.float_ops import CLIPS, COMPARES, FILL_SLOTS, activation_slots
from quantkit.model.ops.integer_ops import INTEGER_OPS, STATIC_OPS, TAKEN_ATTRIBUTES, IntegerOp
from quantkit.quantize.emit._operands import graph_of, operand
from quantkit.quantize.emit.parts import (
    Parts,
    ProductParts,
    Writer,
    moved_inputs,
    quantized_constant,
)
from quantkit.quantize.plan.model import ActivationPlan, Mode, NodePlan, Plan

_Bounds = tuple[float, float]


def emit_qoperator(parts: Parts, moves: frozenset[str]) -> None:
    """Replace the nodes that the plan runs in calibrated integers, in place; `moves`: those that the target moves."""
    clips = _lift_clips(parts.canvas, parts.plan)
    _Writer(parts, clips, moves).write()


@dataclass(frozen=True, slots=True)
class _Integers:
    """A tensor in integers, with its scale and zero point."""

    values: ir.Value
    scale: ir.Value
    zero_point: ir.Value

    @property
    def inputs(self) -> list[ir.Value | None]:
        return [self.values, self.scale, self.zero_point]


@dataclass(slots=True)
class _Writer(Writer):
    clips: Mapping[ir.Value, _Bounds]
    moves: frozenset[str]
    _integers: dict[str, _Integers] = field(default_factory=dict)
    _replaced: list[ir.Node] = field(default_factory=list)

    def write(self) -> None:
        for node, decided in self.static_nodes():
            self._rewrite(node, decided)
        for node in reversed(self._replaced):
            owner_of(node).remove(node, safe=True)

    def _rewrite(self, node: ir.Node, decided: NodePlan) -> None:
        read = [self._read(node, slot) for slot in self.parts.read_slots(node)]
        if self.parts.is_product(node):
            x = self.plan.activation[operand(node, 0).name or ""]
            made = self.parts.product(node, x)
            self._product(node, decided, read[0], made)
        elif node.op_type in TAKEN_ATTRIBUTES:
            self._computed(node, read)
        elif node.op_type in self.moves:
            self._moved(node, read)
        elif node.op_type in COMPARES:
            node.replace_input_with(0, read[0].values)
            return
        else:
            raise _no_kernel(node)
        self._replaced.append(node)

    def _parameters(self, graph: ir.Graph, tensor: str) -> tuple[ir.Value, ir.Value]:
        return self.parts.parameters(graph, self.plan.activation[tensor])

    def _read(self, node: ir.Node, slot: int) -> _Integers:
        """Return an input in integers; a float one is quantized where it is made."""
        value = operand(node, slot)
        name = own_name(value)
        if name not in self._integers:
            self._integers[name] = self._quantized(value, self.plan.activation[name])
        return self._integers[name]

    def _quantized(self, value: ir.Value, decided: ActivationPlan) -> _Integers:
        producer, graph = value.producer(), graph_of(value)
        scale, zero = self.parts.parameters(graph, decided)
        if value.is_initializer() and value.const_value is not None:
            array = quantized_constant(value.const_value, decided)
            return _Integers(
                self.canvas.constant(graph, array, f"{value.name}_quantized"), scale, zero
            )
        (made,) = self.canvas.node(
            "QuantizeLinear",
            [value, scale, zero],
            after=producer,
            before=None if producer is not None else self.first[graph],
            outputs=[f"{value.name}_quantized"],
        )
        return _Integers(made, scale, zero)

    def _hand_on(self, node: ir.Node, values: ir.Value, output: int = 0) -> None:
        """Remember a result in integers, and let those who want floats read it dequantized."""
        old = node.outputs[output]
        name = own_name(old)
        scale, zero = self._parameters(owner_of(node), name)
        if old in self.clips:
            values = self._clipped(
                node, values, _integer_bounds(self.clips[old], self.plan.activation[name])
            )
        self._integers[name] = _Integers(values, scale, zero)
        wanted = old.is_graph_output() or any(
            not self._takes_integers(u.node, u.idx) for u in old.uses()
        )
        if not wanted:
            return
        (restored,) = self.canvas.node(
            "DequantizeLinear", [values, scale, zero], before=node, outputs=[f"{name}_float"]
        )
        self.canvas.replace(node, restored, output)

    def _clipped(self, node: ir.Node, values: ir.Value, bounds: tuple[int, int]) -> ir.Value:
        storage = self.plan.activation[own_name(node.outputs[0])].dtype.storage
        ends = [
            self.canvas.constant(owner_of(node), np.asarray(end, storage), f"{values.name}_{side}")
            for side, end in zip(("low", "high"), bounds, strict=True)
        ]
        (clipped,) = self.canvas.node(
            "Clip", [values, *ends], before=node, outputs=[f"{values.name}_clipped"]
        )
        return clipped

    def _takes_integers(self, reader: ir.Node, slot: int) -> bool:
        decided = self.plan.node.get(own_name(reader))
        if decided is None or decided.mode is not Mode.STATIC:
            return False
        return slot in self.parts.read_slots(reader)

    def _product(self, node: ir.Node, decided: NodePlan, x: _Integers, made: ProductParts) -> None:
        row = STATIC_OPS.get(node.op_type) if node.op_type in TAKEN_ATTRIBUTES else None
        if node.op_type == "MatMul" and decided.float_output:
            row = INTEGER_OPS["MatMulIntegerToFloat"]
        if row is None:
            raise _no_kernel(node)
        name = node.outputs[0].name or "product"
        result = () if decided.float_output else self._parameters(owner_of(node), name)
        weight = _Integers(made.weight, made.scale, made.zero_point)
        bias = {} if row.bias is None else {row.bias: made.bias[0]}
        values = self._node(row, _placed(row, [x, weight], result, bias), node, {})
        if decided.float_output:
            self.canvas.replace(node, values)
        else:
            self._hand_on(node, values)

    def _computed(self, node: ir.Node, read: Sequence[_Integers]) -> None:
        row = STATIC_OPS.get(node.op_type)
        if row is None:  # a HardSigmoid is written as a sum
            row = STATIC_OPS["Add"]
            made = self.parts.sum_of(node, read[0].scale, read[0].zero_point)
            beta = _Integers(made.constant, made.constant_scale, made.constant_zero)
            read = [replace(read[0], scale=made.scale), beta]
        result = self._parameters(owner_of(node), own_name(node.outputs[0]))
        inputs = _placed(row, read, result, {slot: node.inputs[slot] for slot in row.passed})
        added: dict[str, int | float] = {}
        if node.op_type == "Gemm":
            added = {"alpha": node.attributes.get_float("alpha", 1.0)}
        elif node.op_type == "Softmax":
            added = {"opset": self.canvas.model.opset_imports.get("", 13), "axis": -1}
        elif node.op_type.endswith("AveragePool"):
            added = {"channels_last": 0}
        self._hand_on(node, self._node(row, inputs, node, added))

    def _moved(self, node: ir.Node, read: Sequence[_Integers]) -> None:
        """Let data movement work on the integers as they are; what a Pad fills in may be one of them."""
        outputs = [f"{o.name}_quantized" for o in node.outputs]
        fill = (
            read[1].values if node.op_type in FILL_SLOTS and len(read) > 1 else read[0].zero_point
        )
        count = len(activation_slots(node.op_type, len(node.inputs), product=False))
        made = self.canvas.node(
            node.op_type,
            moved_inputs(node, [one.values for one in read[:count]], fill),
            before=node,
            attributes=dict(node.attributes),
            outputs=outputs,
        )
        for index, values in enumerate(made):
            if node.outputs[index].name in self.plan.activation:
                self._hand_on(node, values, index)

    def _node(
        self,
        row: IntegerOp,
        inputs: Sequence[ir.Value | None],
        node: ir.Node,
        added: Mapping[str, int | float],
    ) -> ir.Value:
        """Write the operator of a row in front of `node`; attributes in `added` are defaults for those of `node`."""
        kept = {k: v for k, v in node.attributes.items() if k in TAKEN_ATTRIBUTES[node.op_type]}
        (made,) = self.canvas.node(
            row.op_type,
            inputs,
            before=node,
            attributes={**kept, **{k: v for k, v in added.items() if k not in kept}},
            domain=row.domain,
            outputs=[f"{node.outputs[0].name}_quantized"],
        )
        return made


def _no_kernel(node: ir.Node) -> UsageError:
    return UsageError(
        f"There is no QLinear operator for {node.op_type} '{node.name}': use the QDQ format."
    )


def _placed(
    row: IntegerOp,
    read: Sequence[_Integers],
    result: Sequence[ir.Value],
    others: Mapping[int, ir.Value | None],
) -> list[ir.Value | None]:
    """Return the inputs of an operator, each in the slot that its row names; what is left out at the end is cut off.

    Args:
        row: The operator.
        read: Its operands, activations first.
        result: Scale and zero point of what it makes; none if it makes floats.
        others: Further inputs by slot: a bias, a condition.
    """
    slots = dict(others)
    for slot, integers in zip(row.operands(len(read)), read, strict=True):
        at = (slot.values, slot.scale, slot.zero_point)
        slots |= {i: v for i, v in zip(at, integers.inputs, strict=True) if i is not None}
    slots |= dict(zip(row.result or (), result, strict=False))
    last = max(slot for slot, value in slots.items() if value is not None)
    return [slots.get(slot) for slot in range(last + 1)]


def _lift_clips(canvas: Canvas, plan: Plan) -> dict[ir.Value, _Bounds]:
    """Remove Relu and Clip that the plan counts to the kernel before them; return how each result is clipped.

    They are done on integers, because the scale of their result does not end where they clip.
    """
    found: dict[ir.Value, _Bounds] = {}
    for node in list(canvas.model.graph.all_nodes()):
        decided, source = plan.node.get(own_name(node)), optional(node, 0)
        if decided is None or decided.mode is not Mode.STATIC or node.op_type not in CLIPS:
            continue
        if source is None or source.name in plan.activation:
            continue
        low, high = found.get(source, (-np.inf, np.inf))
        own = _bounds(node)
        canvas.replace(node, source)
        owner_of(node).remove(node, safe=True)
        found[source] = (max(low, own[0]), min(high, own[1]))
    return found


def _bounds(node: ir.Node) -> _Bounds:
    if node.op_type == "Relu":
        return 0.0, np.inf
    given = [optional(node, slot) for slot in (1, 2)]
    tensors = [const_of(v) for v in given]
    low, high = (None if t is None else float(t.numpy()) for t in tensors)
    return -np.inf if low is None else low, np.inf if high is None else high


def _integer_bounds(bounds: _Bounds, plan: ActivationPlan) -> tuple[int, int]:
    """Return ``rint(bound / s) + z``, within the type."""
    ends = np.clip(
        np.rint(np.asarray(bounds) / plan.scale) + plan.zero_point, plan.dtype.qmin, plan.dtype.qmax
    )
    return int(ends[0]), int(ends[1])
