"""Whether a plan that was saved, and perhaps edited, fits a model; whether target, format and types go together.

Both are said before data is opened, as far as the settings tell.

`check_operators` says whether a target has a kernel, and a format an operator, for each node of a plan.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite

from quantkit.errors import UsageError
from quantkit.model.ops import Kernel
from quantkit.model.ops.float_ops import (
    CLIPS,
    COMPARES,
    MATRIX_PRODUCTS,
    PRODUCTS,
    activation_slots,
)
from quantkit.model.ops.view import Node, View, clip_bounds
from quantkit.numerics.dtypes import IntType
from quantkit.quantize.plan.model import ActivationPlan, Format, Mode, NodePlan, Plan, WeightPlan
from quantkit.quantize.plan.ranges import clips_alike
from quantkit.quantize.plan.selection import near
from quantkit.spec import PerBlock, PerTensor
from quantkit.targets import DEFAULT, Target

_WIDE_OPSET = 21  # QuantizeLinear to 16 bits

# QLinear operators are onnxruntime's: what its CPU provider computes in integers has one. Those of matrices and a weight
# may hand on floats.
_QLINEAR = DEFAULT.products | DEFAULT.computes


def check_fits(plan: Plan, view: View, factors_id: str = "") -> None:
    """Check that a plan names what the model has, and gives each kernel what it needs.

    Args:
        plan: What was decided, perhaps by hand.
        view: The graph.
        factors_id: Which factors the model's channels were divided by; "" for none.

    Raises:
        UsageError: It does not; names the first thing that is wrong.
    """
    if plan.factors_id != factors_id:
        raise UsageError(
            "The plan's scales are for a model whose channels were equalized with other data, or not at all: apply it "
            "with the data that it was made with, or make it with --no-equalize --no-smooth."
        )
    nodes = {node.name: node for node in view.nodes}
    _known((n.node for n in plan.nodes), frozenset(nodes), "node")
    covers_all = plan.coverage == "all"
    known = frozenset(view.weights) | (frozenset(view.constants) if covers_all else frozenset())
    _known((w.tensor for w in plan.weights), known, "weight")
    _known((a.tensor for a in plan.activations), view.tensors, "tensor")
    for decided in plan.activations:
        _check_numbers(decided)
    for weight in plan.weights:
        found = view.weights.get(weight.tensor) or view.constants[weight.tensor]
        _check_weight(weight, len(found.shape), covers_all=covers_all)
    _check_opset(plan, view)
    checks = _Checks(plan, view)
    for planned in plan.nodes:
        node = nodes[planned.node]
        if node.op_type != planned.op_type:
            raise UsageError(
                f"The plan takes node '{node.name}' for {planned.op_type}; in the model it is {node.op_type}."
            )
        checks.check(node, planned)


def _known(named: Iterable[str], known: frozenset[str], kind: str) -> None:
    seen: set[str] = set()
    for name in named:
        if name in seen:
            raise UsageError(
                f"The plan decides twice about {kind} '{name}': remove one of the two."
            )
        seen.add(name)
        if name not in known:
            raise UsageError(
                f"The plan names {kind} '{name}', which the model does not have{near(name, known)}."
            )


def _check_numbers(decided: ActivationPlan) -> None:
    scale, zero, dtype = decided.scale, decided.zero_point, decided.dtype
    if not (isfinite(scale) and scale > 0):
        raise UsageError(f"The plan gives '{decided.tensor}' the scale {scale}: use one above 0.")
    if not dtype.qmin <= zero <= dtype.qmax:
        raise UsageError(
            f"The plan gives '{decided.tensor}' the zero point {zero}, which is no {dtype.name}: use "
            f"{dtype.qmin} to {dtype.qmax}."
        )


def _check_weight(weight: WeightPlan, rank: int, *, covers_all: bool) -> None:
    spec = weight.spec
    if spec.dtype.bits != 8 and not covers_all:
        raise UsageError(
            f"The plan gives weight '{weight.tensor}' the type {spec.dtype.name}: use int8 or uint8."
        )
    if isinstance(spec.granularity, PerBlock) and not covers_all:
        raise UsageError(
            f"The plan quantizes weight '{weight.tensor}' in blocks: use tensor or axis."
        )
    named = [axis for axes in spec.pair_axes for axis in axes]
    named += [] if spec.sum_axis is None else [spec.sum_axis]
    named += [] if isinstance(spec.granularity, PerTensor) else [spec.granularity.axis]
    for axis in named:
        if not -rank <= axis < rank:
            raise UsageError(
                f"The plan names axis {axis} of weight '{weight.tensor}', which has {rank} axes."
            )
    if weight.transposed and rank not in {2, 3}:  # a matrix, or one for each direction of an LSTM
        raise UsageError(f"The plan transposes weight '{weight.tensor}', which is no matrix.")


def opset_for(plan: Plan) -> int:
    """Return the lowest opset that has what a plan needs; an edit may have given a tensor 16 bits."""
    wide = not plan.qdq.contrib_ops and any(a.dtype.bits != 8 for a in plan.activations)
    return max(plan.min_opset, _WIDE_OPSET if wide else 0)


def _check_opset(plan: Plan, view: View) -> None:
    wide = next((a for a in plan.activations if a.dtype.bits != 8), None)
    if wide is not None and view.opset < _WIDE_OPSET and not plan.qdq.contrib_ops:
        raise UsageError(
            f"The plan gives '{wide.tensor}' {wide.dtype.bits} bits, which needs opset {_WIDE_OPSET}, and the model "
            f"has {view.opset}: ask for that activation type as well, or convert the model."
        )


def handed_on(node: Node, plan: Plan, view: View) -> str:
    """Return what a node hands on: its result, behind Relu and Clip that are planned with it.

    Args:
        node: Whose result.
        plan: What was decided.
        view: The graph.
    """
    result = node.outputs[0]
    while (reader := view.only_reader(result)) is not None:
        clip = view.nodes[reader]
        planned = plan.node.get(clip.name)
        if clip.op_type not in CLIPS or planned is None or planned.mode is Mode.FLOAT:
            break
        result = clip.outputs[0]
    return result


@dataclass(frozen=True, slots=True)
class _Checks:
    """Checks of one node."""

    plan: Plan
    view: View

    def check(self, node: Node, planned: NodePlan) -> None:
        if planned.mode is Mode.ABSORBED:
            self._absorbed(node)
        elif planned.mode is Mode.STATIC:
            self._static(node, planned)
        elif planned.mode is Mode.INTEGER and node.kernel in {Kernel.NONE, Kernel.CONV}:
            raise UsageError(
                f"The plan runs node '{node.name}' as \"integer\", for which {node.op_type} has no kernel: "
                'use "static", "stored" or "float".'
            )

    def _static(self, node: Node, planned: NodePlan) -> None:
        weight = node.weights.get(1, "")
        if weight and weight not in self.plan.weight:
            raise UsageError(
                f"The plan runs node '{node.name}' in integers, but not its weight '{weight}': add it under "
                '"weights", or set the node\'s mode to "float".'
            )
        if self.plan.coverage == "all" and not (weight and node.op_type in PRODUCTS):
            return  # what has a scale is quantized, and the rest is not
        clip = node.op_type in CLIPS
        slots = activation_slots(node.op_type, len(node.inputs), product=bool(weight))
        needed = [] if clip else [node.inputs[slot] for slot in slots]
        if not planned.float_output:
            needed.append(handed_on(node, self.plan, self.view))
        for name in needed:
            if name and name not in self.plan.activation:
                raise UsageError(
                    f"The plan runs node '{node.name}' in integers, but has no scale for '{name}'; add it "
                    'under "activations", or set the node\'s mode to "float".'
                )

    def _absorbed(self, node: Node) -> None:
        """What is gone must be done by the scale of an integer kernel's result."""
        maker = self.view.maker(node.inputs[0]) if node.inputs else None
        while maker is not None and maker.op_type in CLIPS:
            maker = self.view.maker(maker.inputs[0])
        made_by = None if maker is None else self.plan.node.get(maker.name)
        result = self.plan.activation.get(handed_on(node, self.plan, self.view))
        if (
            clip_bounds(node, self.view.constants) is None
            or self.view.only_reader(node.inputs[0]) is None
            or made_by is None
            or made_by.mode is not Mode.STATIC
            or made_by.float_output
            or result is None
            or not clips_alike(node, self.view, result, half_a_step=self.plan.coverage == "all")
        ):
            raise UsageError(
                f"The plan leaves out node '{node.name}' (\"absorbed\"), but no integer kernel before it clips as it "
                'does: set its mode to "float".'
            )


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
