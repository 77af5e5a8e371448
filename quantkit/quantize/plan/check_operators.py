"""Whether a target has a kernel, and a format an operator, for each node of a plan."""

from quantkit.errors import UsageError
from quantkit.model.ops.float_ops import (
    CLIPS,
    COMPARES,
    MATRIX_PRODUCTS,
    PRODUCTS,
    activation_slots,
)
from quantkit.model.ops.view import Node, View
from quantkit.numerics.dtypes import IntType
from quantkit.quantize.plan.check_plan import handed_on
from quantkit.quantize.plan.model import ActivationPlan, Format, Mode, NodePlan, Plan
from quantkit.targets import DEFAULT, Target

# QLinear operators are onnxruntime's: what its CPU provider computes in integers has one. Those of matrices and a weight
# may hand on floats.
_QLINEAR = DEFAULT.products | DEFAULT.computes


def check_operators(plan: Plan, view: View, target: Target, output_format: Format) -> None:
    """Check that every node which a plan runs in calibrated integers can be written in a format.

    What the plan names and the model lacks is not looked at: that is for `quantkit.quantize.plan.check_fits`.

    Args:
        plan: What was decided.
        view: The graph.
        target: What the plan is for.
        output_format: QDQ can say everything; QLinear operators are few, and take few types.

    Raises:
        UsageError: There is no operator for some node; names it, and what to do.
    """
    if output_format is not Format.QOPERATOR:
        return
    for decided in plan.activations:
        if decided.dtype.bits > 8:
            raise UsageError(
                f"Tensor '{decided.tensor}' has {decided.dtype.bits} bits, for which there are no QLinear "
                "operators: use the QDQ format."
            )
    # A QLinear operator is chosen by what a node is, what it hands on and which types meet in it, so all three are
    # asked before any data is read: a missing operator used to show as a schema error after minutes of calibration.
    # Of a clip that the kernel before it absorbs no operator is needed. What is not in the table of QLinear operators
    # must be movement, which keeps its integers.
    for node in view.nodes:
        planned = plan.node.get(node.name)
        if planned is None or planned.mode is not Mode.STATIC:
            continue
        if node.op_type in CLIPS and node.inputs[0] not in plan.activation:
            continue  # clips the integers of the kernel before it
        if node.op_type in COMPARES:
            continue  # reads integers as they are, and makes none
        weight = node.weights.get(1, "") if node.op_type in PRODUCTS else ""
        _check_kernel(node, planned, target, weighted=bool(weight))
        slots = activation_slots(node.op_type, len(node.inputs), product=bool(weight))
        results = [handed_on(node, plan, view), *node.outputs[1:]]
        if node.op_type in _QLINEAR:
            names = [*(node.inputs[slot] for slot in slots), *results]
            found = [plan.activation[name] for name in names if name in plan.activation]
            _check_node_types(node, {a.dtype for a in found}, plan, weight)
        else:
            _check_moved(node, plan, [plan.activation[n] for n in results if n in plan.activation])


def _check_kernel(node: Node, planned: NodePlan, target: Target, *, weighted: bool) -> None:
    if node.op_type not in _QLINEAR | target.moves:
        raise UsageError(
            f"There is no QLinear operator for {node.op_type} '{node.name}': use the QDQ format."
        )
    if planned.float_output and not (weighted and node.op_type in MATRIX_PRODUCTS):
        raise UsageError(
            f"There is no QLinear operator for {node.op_type} '{node.name}' with a float result: use the QDQ format."
        )


def _check_node_types(node: Node, types: set[IntType], plan: Plan, weight: str) -> None:
    if len(types) > 1:
        names = " and ".join(sorted(t.name for t in types))
        raise UsageError(
            f"{node.op_type} '{node.name}' reads and writes {names}, for which there is no QLinear operator: use "
            "one type, or the QDQ format."
        )
    stored = plan.weight[weight].spec.dtype if weight in plan.weight else None
    if stored is not None and not stored.signed and any(t.signed for t in types):
        raise UsageError(
            f"{node.op_type} '{node.name}' would multiply int8 by {stored.name} weights, for which there is no "
            "QLinear operator: use int8 weights, uint8 activations, or the QDQ format."
        )


def _check_moved(node: Node, plan: Plan, results: list[ActivationPlan]) -> None:
    """What is moved keeps its numbers; a plan can be edited."""
    source = plan.activation.get(node.inputs[0])
    for found in results:
        if source is not None and (found.scale, found.zero_point, found.dtype) != (
            source.scale,
            source.zero_point,
            source.dtype,
        ):
            raise UsageError(
                f"{node.op_type} '{node.name}' moves '{source.tensor}' to '{found.tensor}', which has another "
                "scale or zero point: give both the same, or use the QDQ format."
            )
