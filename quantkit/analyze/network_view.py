"""Reads a network off a graph, once, in time linear in its size."""

import onnx_ir as ir

from quantkit.analyze.network import Constant, Network, Step
from quantkit.analyze.view import plain_attributes

__all__ = ["constant_of", "network_of", "step_of"]

# Constants that are looked into: operands of Add and Mul, bounds of Clip. Weights are judged elsewhere.
_LOOKED_INTO = 1 << 16


def network_of(model: ir.Model) -> Network:
    """Describe `model`. Names must be unique over all graphs (`quantkit.graph.normalize`)."""
    steps: list[Step] = []
    producer: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    for node in model.graph.all_nodes():
        step = step_of(node, hidden=node.graph is not model.graph)
        index = len(steps)
        steps.append(step)
        producer.update({name: index for name in step.outputs if name})
        for name in step.inputs:
            if name:
                readers.setdefault(name, []).append(index)
    return Network(
        steps=tuple(steps),
        producer=producer,
        readers={name: tuple(found) for name, found in readers.items()},
        outputs=frozenset(v.name or "" for graph in model.graphs() for v in graph.outputs),
        constants=_constants(model),
    )


def step_of(node: ir.Node, *, hidden: bool = False) -> Step:
    """Describe one node."""
    return Step(
        name=node.name or "",
        op_type=node.op_type,
        domain=node.domain,
        attributes=plain_attributes(node),
        inputs=tuple((v.name or "") if v is not None else "" for v in node.inputs),
        outputs=tuple(v.name or "" for v in node.outputs),
        hidden=hidden,
    )


def _constants(model: ir.Model) -> dict[str, Constant]:
    found: dict[str, Constant] = {}
    for graph in model.graphs():
        for name, value in graph.initializers.items():
            if value.const_value is not None and not value.is_graph_input():
                found[name] = constant_of(value.const_value)
    for node in model.graph.all_nodes():
        attribute = node.attributes.get("value") if node.op_type == "Constant" else None
        if attribute is not None and attribute.type is ir.AttributeType.TENSOR:
            found[node.outputs[0].name or ""] = constant_of(attribute.as_tensor())
    return found


def constant_of(tensor: ir.TensorProtocol) -> Constant:
    """Describe a constant; a large one is not looked into."""
    shape = tuple(int(n) for n in tensor.shape.numpy())
    is_float = tensor.dtype is ir.DataType.FLOAT
    if not is_float or not 0 < tensor.size <= _LOOKED_INTO:
        return Constant(shape=shape, is_float=is_float)
    array = tensor.numpy()
    return Constant(shape=shape, low=float(array.min()), high=float(array.max()), is_float=True)
