"""The static plan, executed: the same decisions as QDQ pairs or as QLinear operators.

What onnxruntime must not fuse is then kept apart by a node that does nothing, a barrier:

1. Between DequantizeLinear and QuantizeLinear (Relu and Clip may stand before it) onnxruntime quantizes the float
   weight of a Conv, ConvTranspose or Gemm by tensor, when it loads the model; it also moves both conversions across
   MaxPool and the like. A node that the plan leaves in float would lose what it was left in float for. So would an
   operator for which there is an integer kernel, and which stays float because that kernel computes something else.
2. A MatMul or Gemm from integers to float has a kernel only if no QuantizeLinear reads its result.
3. Before it looks for integer kernels, onnxruntime makes one Gemm of MatMul and Add, and one float kernel of Gemm
   and Relu; then there is no integer kernel for them. Nor is there one for MatMul and Relu where what follows is no
   QuantizeLinear.

1 and the Gemm of MatMul and Add happen whatever provider runs the rest; 2 and the float kernels of 3 are the CPU
provider's. A target that reads the file itself needs none of it, and would not fuse across (`Target.needs_barriers`).

4. It moves a DequantizeLinear behind MaxPool, Reshape, Slice, Squeeze, Transpose and Unsqueeze, to everybody who reads them.
   A node that reads through its If, Loop or Scan body has no input to be changed: onnxruntime 1.31 writes behind the end of a
   list, and the process is aborted. So nothing in a subgraph reads what comes out of a DequantizeLinear and was moved at
   most. This holds for every target: each file is loaded by onnxruntime before it is handed over.

``Max`` of one input copies its input; onnxruntime removes Identity and Cast to the same type, and keeps this.
"""

from collections.abc import Iterable

import onnx_ir as ir

from quantkit.model.graph.edit import Canvas, optional, own_name, owner_of, producer_of
from quantkit.model.ops.float_ops import BIASED, CLIPS, PASSED_BY_CONVERSIONS, activation_slots
from quantkit.quantize.emit._operands import operand
from quantkit.quantize.emit.cover import CoveredParts, CoveredWriter
from quantkit.quantize.emit.dynamic import emit_rest
from quantkit.quantize.emit.parts import Parts
from quantkit.quantize.emit.qdq import QdqWriter, write_for_kernels
from quantkit.quantize.emit.qlinear import emit_qoperator
from quantkit.quantize.emit.weights import Weights
from quantkit.quantize.plan.model import Format, Mode, Plan
from quantkit.quantize.plan.solved import SolvedIntegers
from quantkit.targets import Target
from quantkit.targets import target as target_named

__all__ = ["Format", "emit_static", "part_subgraphs", "shield"]


def shield(canvas: Canvas, plan: Plan, target: Target) -> None:
    """Insert the nodes, in place. Linear in the number of nodes.

    Args:
        canvas: The model, Q/DQ nodes already in it.
        plan: What was decided.
        target: Whose fusions are kept away.
    """
    moved = target.moves - target.bare  # across these onnxruntime moves conversions
    # Products with a bias are quantized at load; for the others there is an integer kernel.
    fused = BIASED | (target.computes - target.written_as_sums) | {"Resize"}
    for node in list(canvas.model.graph.all_nodes()):
        decided = plan.node.get(own_name(node))
        static = decided is not None and decided.mode is Mode.STATIC
        if not static and node.op_type in fused and _would_be_quantized(node, moved):
            _before(canvas, node, _slots(node)[0])
        elif static and decided is not None and decided.float_output:
            _behind(canvas, node)


def part_subgraphs(canvas: Canvas) -> None:
    """Insert a node in front of subgraphs that read what was dequantized, in place. Linear in the number of nodes."""
    restored: dict[ir.Node, bool] = {}  # nodes come after those whose results they read
    for node in list(canvas.model.graph.all_nodes()):
        source = _maker(node)
        restored[node] = node.op_type == "DequantizeLinear" or (
            node.op_type in PASSED_BY_CONVERSIONS
            and source is not None
            and restored.get(source, False)
        )
        if restored[node]:
            for value in node.outputs:
                inside = [u for u in value.uses() if owner_of(u.node) is not owner_of(node)]
                _apart(canvas, value, inside)


def _slots(node: ir.Node) -> range:
    return activation_slots(node.op_type, len(node.inputs), product=True)


def _would_be_quantized(node: ir.Node, moves: frozenset[str]) -> bool:
    for slot in _slots(node):
        source = _maker(node, slot)
        while source is not None and source.op_type in moves:
            source = _maker(source)
        if source is None or source.op_type != "DequantizeLinear" or node.domain:
            return False
    reader = _only_reader(node)
    while reader is not None and reader.op_type in CLIPS | moves:
        reader = _only_reader(reader)
    return reader is not None and reader.op_type == "QuantizeLinear"


def _maker(node: ir.Node, slot: int = 0) -> ir.Node | None:
    value = optional(node, slot)
    return producer_of(value)


def _only_reader(node: ir.Node) -> ir.Node | None:
    uses = tuple(node.outputs[0].uses())
    return uses[0].node if len(uses) == 1 and not node.outputs[0].is_graph_output() else None


def _before(canvas: Canvas, node: ir.Node, slot: int) -> None:
    value = operand(node, slot)
    (copied,) = canvas.node("Max", [value], before=node, outputs=[f"{value.name}_apart"])
    copied.type, copied.shape = value.type, value.shape
    node.replace_input_with(slot, copied)


def _behind(canvas: Canvas, node: ir.Node) -> None:
    result = node.outputs[0]
    inside = owner_of(node) is not canvas.model.graph
    apart = [
        use
        for use in result.uses()
        if use.node.op_type == "QuantizeLinear" or _is_fused_early(node, use.node, inside=inside)
    ]
    _apart(canvas, result, apart)


def _apart(canvas: Canvas, value: ir.Value, readers: Iterable[tuple[ir.Node, int]]) -> None:
    """Let these readers, nodes and their slots, read a copy of a value; none is made for nobody."""
    uses = tuple(readers)
    if not uses:
        return
    (copied,) = canvas.node("Max", [value], after=value.producer(), outputs=[f"{value.name}_apart"])
    copied.type, copied.shape = value.type, value.shape
    for node, slot in uses:
        node.replace_input_with(slot, copied)


def _is_fused_early(node: ir.Node, reader: ir.Node, *, inside: bool) -> bool:
    """Say whether onnxruntime 1.31 makes one float node of a product and its only reader, or takes no kernel for both."""
    # Fusions that run before Q/DQ patterns are matched, and so leave a float node where an integer one was planned:
    # MatMul with Add becomes Gemm, Gemm with Relu one float kernel. MatMul with Relu is none of them: for the two
    # together there is no integer kernel unless a QuantizeLinear follows. What onnxruntime needs to know before it
    # fuses (rank, extents) is asked here as it asks it: where it would not fuse, no node is added. `inside`: they stand in a subgraph.
    if node.op_type == "MatMul" and reader.op_type in CLIPS:
        return bool(reader.outputs[0].uses())  # as a result of the model it does no harm
    if _only_reader(node) is not reader or reader.domain:
        return False
    if node.op_type == "Gemm":
        return reader.op_type in CLIPS
    shape = node.inputs[0].shape if node.inputs[0] is not None else None
    if reader.op_type != "Add":
        return False
    # Of what a Loop hands to its body onnxruntime may know more than the file says.
    if shape is None or len(shape) == 2:
        return inside or shape is not None
    # Of more axes, all must be known, and what is added be a vector.
    added = next((v for v in reader.inputs if v is not None and v is not node.outputs[0]), None)
    vector = added is not None and added.shape is not None and len(added.shape) == 1
    return vector and all(isinstance(n, int) for n in shape.dims)


def emit_static(
    model: ir.Model, plan: Plan, solved: SolvedIntegers, output_format: Format = Format.QDQ
) -> None:
    """Rewrite `model` in place as `plan` says, with the integers that `solved` holds.

    Args:
        model: The float model that was planned; it is rewritten.
        plan: What was decided.
        solved: Integers and biases; weights that it lacks are rounded to nearest.
        output_format: Q/DQ pairs around float operators, or QLinear operators.
    """
    assert plan.target is not None  # noqa: S101 - of older files it is filled in before
    target, canvas = target_named(plan.target), Canvas(model)
    _drop_absorbed(canvas, plan)
    weights = Weights(canvas, plan, solved)
    covers_all = plan.coverage == "all"
    parts = (CoveredParts if covers_all else Parts)(canvas, plan, weights, solved)
    if output_format is not Format.QDQ:
        emit_qoperator(parts, target.moves)
    elif isinstance(parts, CoveredParts):
        CoveredWriter(parts).write()
    else:
        writer = QdqWriter(parts)
        writer.write()
        write_for_kernels(writer, target)
    _drop_unread(canvas, plan)
    emit_rest(weights)
    # Of all that is covered just the graph that is asked for: no barriers, no other forms.
    if target.needs_barriers and not covers_all:
        shield(canvas, plan, target)
    part_subgraphs(canvas)
    if isinstance(parts, CoveredParts):
        parts.order_parameters()


def _drop_absorbed(canvas: Canvas, plan: Plan) -> None:
    """Remove Relu and Clip whose work the quantization of their output does."""
    for node in list(canvas.model.graph.all_nodes()):
        decided = plan.node.get(own_name(node))
        if decided is None or decided.mode is not Mode.ABSORBED or node.inputs[0] is None:
            continue
        canvas.replace(node, node.inputs[0])
        owner_of(node).remove(node, safe=True)


def _drop_unread(canvas: Canvas, plan: Plan) -> None:
    """Remove each Transpose of a float weight that only products in integers read."""
    for node in list(canvas.model.graph.all_nodes()):
        if node.op_type != "Transpose" or node.inputs[0] is None:
            continue
        source, result = node.inputs[0], node.outputs[0]
        planned = source.is_initializer() and source.name in plan.weight
        if planned and not result.uses() and not result.is_graph_output():
            owner_of(node).remove(node, safe=True)
