"""The calibrated plan as QLinear operators: what runs is what is written, whatever a runtime fuses."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from quantkit.emit.clips import Bounds, integer_bounds, lift_clips
from quantkit.emit.parts import Parts, ProductParts, quantized_constant
from quantkit.errors import UsageError
from quantkit.graph.edit import Canvas, owner_of
from quantkit.ops import MICROSOFT
from quantkit.plan.model import ActivationPlan, Mode, NodePlan, Plan

__all__ = ["emit_qoperator"]

_SHAPE_ONLY = frozenset({"auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"})


def emit_qoperator(parts: Parts, moves: frozenset[str]) -> None:
    """Replace the nodes that the plan runs in calibrated integers, in place; `moves`: those that the target moves."""
    clips = lift_clips(parts.canvas, parts.plan)
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
class _Writer:
    parts: Parts
    clips: Mapping[ir.Value, Bounds]
    moves: frozenset[str]
    _integers: dict[str, _Integers] = field(default_factory=dict)
    _first: dict[ir.Graph, ir.Node] = field(default_factory=dict)
    _replaced: list[ir.Node] = field(default_factory=list)

    @property
    def canvas(self) -> Canvas:
        return self.parts.canvas

    @property
    def plan(self) -> Plan:
        return self.parts.plan

    def write(self) -> None:
        model = self.canvas.model
        self._first = {graph: next(iter(graph)) for graph in model.graphs() if len(graph)}
        for node in list(model.graph.all_nodes()):
            decided = self.plan.node.get(node.name or "")
            if decided is not None and decided.mode is Mode.STATIC:
                self._rewrite(node, decided)
        for node in reversed(self._replaced):
            owner_of(node).remove(node, safe=True)

    def _rewrite(self, node: ir.Node, decided: NodePlan) -> None:
        read = [self._read(node, slot) for slot in self.parts.read_slots(node)]
        if self.parts.is_product(node):
            value = node.inputs[0]
            assert value is not None  # noqa: S101 - a required input
            made = self.parts.product(node, self.plan.activation[value.name or ""])
            self._product(node, decided, read[0], made)
        elif node.op_type in _KERNELS:
            self._computed(node, read)
        elif node.op_type in self.moves:
            self._moved(node, read[0])
        else:
            raise _no_kernel(node)
        self._replaced.append(node)

    def _parameters(self, graph: ir.Graph, tensor: str) -> tuple[ir.Value, ir.Value]:
        return self.parts.parameters(graph, self.plan.activation[tensor])

    def _read(self, node: ir.Node, slot: int) -> _Integers:
        """Return an input in integers; a float one is quantized where it is made."""
        value = node.inputs[slot]
        assert value is not None  # noqa: S101 - it is in the plan
        name = value.name or ""
        if name not in self._integers:
            self._integers[name] = self._quantized(value, self.plan.activation[name])
        return self._integers[name]

    def _quantized(self, value: ir.Value, decided: ActivationPlan) -> _Integers:
        producer = value.producer()
        graph = owner_of(producer) if producer is not None else value.graph
        assert isinstance(graph, ir.Graph)  # noqa: S101 - inputs and constants have a graph
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
            before=None if producer is not None else self._first[graph],
            outputs=[f"{value.name}_quantized"],
        )
        return _Integers(made, scale, zero)

    def _hand_on(self, node: ir.Node, values: ir.Value, output: int = 0) -> None:
        """Remember a result in integers, and let those who want floats read it dequantized."""
        old = node.outputs[output]
        name = old.name or ""
        scale, zero = self._parameters(owner_of(node), name)
        if old in self.clips:
            values = self._clipped(
                node, values, integer_bounds(self.clips[old], self.plan.activation[name])
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
        storage = self.plan.activation[node.outputs[0].name or ""].dtype.storage
        ends = [
            self.canvas.constant(owner_of(node), np.asarray(end, storage), f"{values.name}_{side}")
            for side, end in zip(("low", "high"), bounds, strict=True)
        ]
        (clipped,) = self.canvas.node(
            "Clip", [values, *ends], before=node, outputs=[f"{values.name}_clipped"]
        )
        return clipped

    def _takes_integers(self, reader: ir.Node, slot: int) -> bool:
        decided = self.plan.node.get(reader.name or "")
        if decided is None or decided.mode is not Mode.STATIC:
            return False
        return slot in self.parts.read_slots(reader)

    def _product(self, node: ir.Node, decided: NodePlan, x: _Integers, made: ProductParts) -> None:
        name = node.outputs[0].name or "product"
        inputs = [*x.inputs, made.weight, made.scale, made.zero_point]
        output = [] if decided.float_output else self._parameters(owner_of(node), name)
        match node.op_type:
            case "Conv":
                kept = {k: v for k, v in node.attributes.items() if k in _SHAPE_ONLY}
                values = self._node("QLinearConv", [*inputs, *output, made.bias], node, kept)
            case "Gemm":
                kept = {k: v for k, v in node.attributes.items() if k == "transB"}
                values = self._node(
                    "QGemm", [*inputs, made.bias, *output], node, kept, domain=MICROSOFT
                )
            case "MatMul" if decided.float_output:
                inputs = [x.values, made.weight, x.scale, made.scale, x.zero_point, made.zero_point]
                values = self._node("MatMulIntegerToFloat", inputs, node, {}, domain=MICROSOFT)
            case "MatMul":
                values = self._node("QLinearMatMul", [*inputs, *output], node, {})
            case _:
                raise _no_kernel(node)
        if decided.float_output:
            self.canvas.replace(node, values)
        else:
            self._hand_on(node, values)

    def _computed(self, node: ir.Node, read: Sequence[_Integers]) -> None:
        kernel, order, kept, added = _KERNELS[node.op_type]
        scale, zero = self._parameters(owner_of(node), node.outputs[0].name or "")
        inputs = order(node, [r.inputs for r in read], [scale, zero])
        attributes: dict[str, ir.Attr | int | float | str] = {
            k: v for k, v in node.attributes.items() if k in kept
        }
        for name, value in added.items():
            attributes.setdefault(name, value)
        if node.op_type == "Softmax":
            attributes["opset"] = self.canvas.model.opset_imports.get("", 13)
            attributes.setdefault("axis", -1)
        domain = "" if kernel == "QLinearMatMul" else MICROSOFT
        self._hand_on(node, self._node(kernel, inputs, node, attributes, domain=domain))

    def _moved(self, node: ir.Node, x: _Integers) -> None:
        """Let data movement work on the integers as they are."""
        outputs = [f"{o.name}_quantized" for o in node.outputs]
        made = self.canvas.node(
            node.op_type,
            [x.values, *node.inputs[1:]],
            before=node,
            attributes=dict(node.attributes),
            outputs=outputs,
        )
        for index, values in enumerate(made):
            if node.outputs[index].name in self.plan.activation:
                self._hand_on(node, values, index)

    def _node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        node: ir.Node,
        attributes: Mapping[str, ir.Attr | int | float | str],
        *,
        domain: str = "",
    ) -> ir.Value:
        while inputs and inputs[-1] is None:
            inputs = inputs[:-1]
        (made,) = self.canvas.node(
            op_type,
            inputs,
            before=node,
            attributes=attributes,
            domain=domain,
            outputs=[f"{node.outputs[0].name}_quantized"],
        )
        return made


def _no_kernel(node: ir.Node) -> UsageError:
    return UsageError(
        f"There is no QLinear operator for {node.op_type} '{node.name}': use the QDQ format."
    )


_Inputs = list[ir.Value | None]
_Order = Callable[[ir.Node, list[_Inputs], _Inputs], _Inputs]


def _then(_: ir.Node, read: list[_Inputs], result: _Inputs) -> _Inputs:
    return [v for each in read for v in each] + result


def _result_first(_: ir.Node, read: list[_Inputs], result: _Inputs) -> _Inputs:
    return result + [v for each in read for v in each]


def _condition_first(node: ir.Node, read: list[_Inputs], result: _Inputs) -> _Inputs:
    return [node.inputs[0]] + [v for each in read for v in each] + result


_POOL = frozenset({"auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides"})
_NONE: frozenset[str] = frozenset()
_CHANNELS: Mapping[str, int] = MappingProxyType({"channels_last": 0})
_NOTHING: Mapping[str, int] = MappingProxyType({})
# The kernel, how its inputs are ordered, the attributes that it takes over, those that it has besides.
_KERNELS: Mapping[str, tuple[str, _Order, frozenset[str], Mapping[str, int]]] = MappingProxyType(
    {
        "Add": ("QLinearAdd", _then, _NONE, _NOTHING),
        "AveragePool": ("QLinearAveragePool", _then, _POOL, _CHANNELS),
        "Concat": ("QLinearConcat", _result_first, frozenset({"axis"}), _NOTHING),
        "GlobalAveragePool": ("QLinearGlobalAveragePool", _then, _NONE, _CHANNELS),
        "LeakyRelu": ("QLinearLeakyRelu", _then, frozenset({"alpha"}), _NOTHING),
        "MatMul": ("QLinearMatMul", _then, _NONE, _NOTHING),
        "Mul": ("QLinearMul", _then, _NONE, _NOTHING),
        "Sigmoid": ("QLinearSigmoid", _then, _NONE, _NOTHING),
        "Softmax": ("QLinearSoftmax", _then, frozenset({"axis"}), _NOTHING),
        "Where": ("QLinearWhere", _condition_first, _NONE, _NOTHING),
    }
)
