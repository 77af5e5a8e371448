"""Which integer types QLinear operators take: onnxruntime loads no others."""

import onnx_ir as ir

from quantkit.emit.parts import Parts
from quantkit.errors import UsageError
from quantkit.plan.model import Mode, Plan

__all__ = ["check_moved", "check_types"]

_BYTE = 8


def check_types(parts: Parts) -> None:
    """Check the plan's types: 8 bits, the same for all that a node reads and writes, no uint8 weights with int8.

    Raises:
        UsageError: Some node has other types; QuantizeLinear and DequantizeLinear around it would load.
    """
    plan = parts.plan
    for decided in plan.activations:
        if decided.dtype.bits > _BYTE:
            raise UsageError(
                f"Tensor '{decided.tensor}' has {decided.dtype.bits} bits, for which there are no QLinear "
                "operators: use the QDQ format."
            )
    for node in parts.canvas.model.graph.all_nodes():
        found = plan.node.get(node.name or "")
        if found is not None and found.mode is Mode.STATIC:
            _check_node(parts, node)


def _check_node(parts: Parts, node: ir.Node) -> None:
    read = [node.inputs[slot] for slot in parts.read_slots(node)]
    types = {
        decided.dtype
        for value in (*read, *node.outputs)
        if value is not None and (decided := parts.plan.activation.get(value.name or ""))
    }
    if len(types) > 1:
        names = " and ".join(sorted(t.name for t in types))
        raise UsageError(
            f"{node.op_type} '{node.name}' reads and writes {names}, for which there is no QLinear operator: use "
            "one type, or the QDQ format."
        )
    source = parts.weights.behind(node.inputs[1]) if parts.is_product(node) else None
    weight = None if source is None else parts.plan.weight[source.name or ""].spec.dtype
    if weight is not None and not weight.signed and any(t.signed for t in types):
        raise UsageError(
            f"{node.op_type} '{node.name}' would multiply int8 by {weight.name} weights, for which there is no "
            "QLinear operator: use int8 weights, uint8 activations, or the QDQ format."
        )


def check_moved(plan: Plan, node: ir.Node) -> None:
    """Check that what is moved keeps its numbers; a plan can be edited.

    Raises:
        UsageError: A result has another scale, zero point or type than what is moved.
    """
    source = plan.activation[node.inputs[0].name or ""]  # type: ignore[union-attr]
    for value in node.outputs:
        found = plan.activation.get(value.name or "")
        if found is not None and (found.scale, found.zero_point, found.dtype) != (
            source.scale,
            source.zero_point,
            source.dtype,
        ):
            raise UsageError(
                f"{node.op_type} '{node.name}' moves '{source.tensor}' to '{found.tensor}', which has another "
                "scale or zero point: give both the same, or use the QDQ format."
            )
