"""The plan of 16 bits, executed: tensors become halves, and Casts stand wherever one type meets the other.

A value has one type. What float16 nodes make is float16, and so is an initializer or input that the plan names; all else
is what it was. A reader that wants the other type reads a Cast, one for all such readers, in front of the first of them:
that of a constant is folded by onnxruntime when the session is made, so that

    w (float16) -> Cast -> w_float32 -> Conv

runs as the float model did. Initializers keep their names; outputs of the model keep name and type unless the plan says so.

Why not onnxruntime's converter (`onnxruntime.transformers.float16`, 1.31) with a list of nodes that stay float32: it hands every
value between two such nodes through float16, so that what lies beyond 65504 is infinite all the same; two of them that read one
value get two Casts of one name, a file that does not load; and it appends Casts at the end, which `onnx.checker` refuses.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.model.graph.edit import Canvas, own_name
from quantkit.model.graph.mapping import lazy
from quantkit.model.graph.opset import opset_of
from quantkit.model.graph.view import half_slots
from quantkit.model.ops.view import HalfSlots
from quantkit.numerics.half import halved
from quantkit.quantize.emit._operands import graph_of, shape_of, tensor_of
from quantkit.quantize.plan.model import HalfPlan, Mode, Plan

_FLOAT, _HALF = ir.DataType.FLOAT, ir.DataType.FLOAT16
_NONE = HalfSlots(frozenset(), frozenset())


def emit_half(model: ir.Model, plan: Plan) -> None:
    """Rewrite `model` in place as `plan` says. Its values know their types; weights stay lazy until the model is saved."""
    # Slots first, as they are told by types before anything has another one. Then what is given, then who reads it.
    slots = _half_nodes(model, plan)
    writer = _Writer(Canvas(model))
    for value in (v for graph in model.graphs() for v in graph.initializers.values()):
        if (half := plan.half.get(own_name(value))) is not None:
            writer.store(value, half)
    for value in model.graph.inputs:
        if value.name in plan.half:
            writer.retype(value, _HALF)
    for node, found in slots.items():
        writer.make(node, found)
    for node in list(model.graph.all_nodes()):
        writer.read(node, slots.get(node, _NONE).inputs)
    for index, value in enumerate(model.graph.outputs):
        model.graph.outputs[index] = writer.handed_out(value, plan.half)


def _half_nodes(model: ir.Model, plan: Plan) -> dict[ir.Node, HalfSlots]:
    """Return the nodes that compute in float16, with what they read and make in it."""
    halves = {n.node for n in plan.nodes if n.mode is Mode.HALF}
    opset = opset_of(model)
    return {n: half_slots(n, opset) or _NONE for n in model.graph if n.name in halves}


@dataclass(slots=True)
class _Writer:
    """Changes types, and puts Casts between.

    Attributes:
        canvas: The model.
        changed: Values that were float32, with the type that they have now.
        casts: What a value is read as instead, in the other type.
    """

    canvas: Canvas
    changed: dict[ir.Value, ir.DataType] = field(default_factory=dict)
    casts: dict[ir.Value, ir.Value] = field(default_factory=dict)

    def retype(self, value: ir.Value, dtype: ir.DataType) -> None:
        """Let a float32 value be of another type."""
        self.changed[value] = dtype
        value.type = ir.TensorType(dtype)

    def store(self, value: ir.Value, half: HalfPlan) -> None:
        """Let an initializer have 16 bits; they are computed when the file is written."""
        tensor, dtype = tensor_of(value), ir.DataType[half.dtype.upper()]
        kind = dtype.numpy()

        def read() -> NDArray[Any]:
            return halved(tensor.numpy(), kind)

        value.const_value = lazy(read, dtype, shape_of(tensor), tensor.name)
        self.retype(value, dtype)

    def make(self, node: ir.Node, slots: HalfSlots) -> None:
        """Let a node make float16."""
        for slot in slots.outputs:
            self.retype(node.outputs[slot], _HALF)
        if node.op_type == "Cast" and slots.outputs:
            node.attributes["to"] = ir.AttrInt64("to", _HALF.value)

    def read(self, node: ir.Node, halves: frozenset[int]) -> None:
        """Let a node read float16 in the slots that are named, and float32 in all others."""
        for slot, value in enumerate(node.inputs):
            if value is None or not (value in self.changed or slot in halves):
                continue
            wants = _HALF if slot in halves else _FLOAT
            if value.dtype is not wants:
                node.replace_input_with(slot, self._cast(value, wants, node))

    def _cast(self, value: ir.Value, dtype: ir.DataType, reader: ir.Node) -> ir.Value:
        if value not in self.casts:
            name = f"{value.name}_{'float32' if dtype is _FLOAT else 'float16'}"
            made = self._insert(value, dtype, name, reader)
            made.type, made.shape = ir.TensorType(dtype), value.shape
            self.casts[value] = made
        return self.casts[value]

    def _insert(self, value: ir.Value, dtype: ir.DataType, name: str, reader: ir.Node) -> ir.Value:
        """Put a Cast in front of the first reader; if that stands in a subgraph, where the value is made."""
        attributes, maker, graph = {"to": dtype.value}, value.producer(), graph_of(value)
        place: dict[str, Any] = {"before": reader}
        if reader.graph is not graph:
            place = {"before": next(iter(graph))} if maker is None else {"after": maker}
        (made,) = self.canvas.node("Cast", [value], attributes=attributes, outputs=[name], **place)
        return made

    def handed_out(self, value: ir.Value, halves: Mapping[str, HalfPlan]) -> ir.Value:
        """Return what stands for an output of the model, under its name, in the type that the plan wants."""
        wants = _HALF if value.name in halves else _FLOAT
        maker = value.producer()
        concerned = value in self.changed or value.name in halves
        if maker is None or not concerned or value.dtype is wants:
            return value
        name, made = own_name(value), self.casts.get(value)
        if made is None:
            (made,) = self.canvas.node(
                "Cast",
                [value],
                after=maker,
                attributes={"to": wants.value},
                outputs=[f"{name}_cast"],
            )
            made.type, made.shape = ir.TensorType(wants), value.shape
        value.name = self.canvas.name(f"{name}_float16" if wants is _FLOAT else f"{name}_float32")
        made.name = name
        return made
