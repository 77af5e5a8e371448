"""Opset and IR version.

The opset is raised only as far as a plan needs, with onnx's own version converter. It runs on the
model without its weights: they are handed to it as graph inputs and put back afterwards, so size
does not matter.

How many axes values have is found also where shape inference gives up, behind a Reshape to a computed shape: a
Transpose tells it by its permutation, elementwise operators and matrix products by their inputs.
"""

import onnx
import onnx.version_converter
import onnx_ir as ir
from onnx import shape_inference

from quantkit.errors import ModelError
from quantkit.model.graph.edit import const_of, is_op, optional, own_name, producer_of, succeed
from quantkit.model.graph.mapping import MARK
from quantkit.model.graph.normalize import normalize
from quantkit.model.graph.protos import proto_graphs, to_ir
from quantkit.model.graph.save import skeleton, weightless
from quantkit.model.ops.float_ops import BROADCASTS, KEEPS_RANK


def ranks_of(model: ir.Model) -> dict[ir.Value, int]:
    """Return the number of axes of every value for which it is certain. One pass over the nodes."""
    found: dict[ir.Value, int] = {}
    for graph in model.graphs():
        for value in (*graph.inputs, *graph.initializers.values()):
            _note(value, found)
    for node in model.graph.all_nodes():
        for value in node.outputs:
            _note(value, found)
        rank = _rank(node, found)
        if rank is not None and node.outputs[0] not in found:
            found[node.outputs[0]] = rank
    return found


def _note(value: ir.Value, found: dict[ir.Value, int]) -> None:
    if value.const_value is not None:
        found[value] = len(value.const_value.shape)
    elif value.shape is not None:
        found[value] = value.shape.rank()


def _rank(node: ir.Node, found: dict[ir.Value, int]) -> int | None:
    # Shape inference stops at a Reshape to a computed shape, which is how attention is exported; everything behind it
    # has no rank, and the slow Softmax would stay. Only rules that hold whatever the extents are: a permutation has
    # as many entries as axes; a broadcast has the larger rank, and is known only if both are; MatMul by a vector has
    # one axis fewer than this says, but then no axis fits the Flatten, and nothing is changed. None is always safe:
    # the caller then changes nothing.
    ranks = [found.get(v) for v in node.inputs if v is not None]
    if node.domain or not node.outputs or not ranks:
        return None
    if node.op_type == "Transpose" and "perm" in node.attributes:
        return len(node.attributes["perm"].as_ints())
    if node.op_type in KEEPS_RANK:
        return ranks[0]
    if node.op_type in BROADCASTS:
        known = [rank for rank in ranks if rank is not None]
        return max(known) if len(known) == len(ranks) else None
    if node.op_type == "Unsqueeze" and ranks[0] is not None:
        return _unsqueezed(node, ranks[0])
    return None


def _unsqueezed(node: ir.Node, rank: int) -> int | None:
    if "axes" in node.attributes:
        return rank + len(node.attributes["axes"].as_ints())
    axes = optional(node, 1)
    tensor = const_of(axes)
    return None if tensor is None else rank + tensor.size


# The first IR version that may carry each opset (onnx's table of versions).
_IR_FOR_OPSET = ((11, 6), (12, 7), (15, 8), (19, 9), (21, 10), (23, 11), (24, 12), (25, 13))

_RESIZE_WITH_MODES = 11
_ONE_AXIS = 13


def opset_of(model: ir.Model) -> int:
    """Return the version of the default domain."""
    return model.opset_imports.get("", 1)


def raise_opset(model: ir.Model, minimum: int) -> ir.Model:
    """Return the model in opset `minimum`, or as it is if it is there already.

    Raises:
        ModelError: The converter does not know how to convert one of the operators.
    """
    if opset_of(model) >= minimum:
        return model
    _refuse_hardmax(model, minimum)
    proto, tensors = skeleton(model)
    weights = {
        tensor.name: tensors[int(note["offset"])]
        for graph in proto_graphs(proto.graph)
        for tensor in graph.initializer
        if (note := {e.key: e.value for e in tensor.external_data}).get("location") == MARK
    }
    try:
        # Some adapters look at ranks, which only shape inference gives them.
        converted = onnx.version_converter.convert_version(
            shape_inference.infer_shapes(weightless(proto)), minimum
        )
    except (
        RuntimeError,
        ValueError,
        onnx.shape_inference.InferenceError,
        onnx.version_converter.ConvertError,
    ) as e:
        reason = str(e).strip().splitlines()[-1]
        raise ModelError(
            f"The model cannot be raised from opset {opset_of(model)} to {minimum}: {reason}"
        ) from e
    result = to_ir(converted)
    if opset_of(model) < _RESIZE_WITH_MODES <= minimum:
        _keep_resize(result)
    if opset_of(model) < _ONE_AXIS <= minimum:
        _keep_softmax(result)
    _restore(result, weights, listed={value.name for value in proto.graph.input})
    for domain, version in model.opset_imports.items():
        result.opset_imports.setdefault(domain, version)
    result.metadata_props.update(model.metadata_props)
    result.meta.update(model.meta)
    result.ir_version = max(model.ir_version or 0, _ir_for(minimum))
    normalize(result)
    return result


def _ir_for(opset: int) -> int:
    return max((ir_version for first, ir_version in _IR_FOR_OPSET if opset >= first), default=4)


def _refuse_hardmax(model: ir.Model, minimum: int) -> None:
    """Refuse Hardmax where its meaning changes; onnx's converter leaves it as it is."""
    before = opset_of(model)
    if not before < _ONE_AXIS <= minimum:
        return
    for node in model.graph.all_nodes():
        if is_op(node, "Hardmax"):
            raise ModelError(
                f"The model cannot be raised from opset {before} to {minimum}: Hardmax "
                f"'{node.name}' means something else there"
            )


def _keep_resize(model: ir.Model) -> None:
    """Make Resize mean what it meant before opset 11; onnx's converter leaves out the new modes.

    Until then a sample came from x / scale, without the half pixel, and the nearest one was the one
    below, or the one above where the image shrinks (measured on onnxruntime 1.31.1).
    """
    for node in model.graph.all_nodes():
        if not is_op(node, "Resize"):
            continue
        modes = {"coordinate_transformation_mode": "asymmetric"}
        if node.attributes.get_string("mode", "nearest") == "nearest":
            modes["nearest_mode"] = _nearest_mode(node)
        for name, mode in modes.items():
            node.attributes[name] = ir.AttrString(name, mode)


def _keep_softmax(model: ir.Model) -> None:
    """Undo what onnx's converter does to a Softmax over the last axis, which means the same in both opsets.

    ``Reshape(Softmax(Flatten(x)), Shape(x))`` is neither fused nor fast.
    """
    # Softmax meant "flatten to a matrix at axis, then over all of it" until opset 12, and means "over this axis" from
    # 13 on. The two differ unless the axis is the last one, so only where Flatten cuts in front of the last axis of a
    # known rank can all three helper nodes go. Each test below is one way in which a Flatten, Reshape or Shape could
    # be the model's own and no helper of the converter: read by others, of another tensor, cut elsewhere. Where the
    # rank is not known the slow form stays, which is right.
    ranks = ranks_of(model)
    for node in list(model.graph.all_nodes()):
        if not is_op(node, "Softmax", "LogSoftmax") or node.inputs[0] is None:
            continue
        flatten = node.inputs[0].producer()
        uses = tuple(node.outputs[0].uses())
        if flatten is None or flatten.op_type != "Flatten" or len(uses) != 1:
            continue
        source, reshape = flatten.inputs[0], uses[0].node
        if source is None or source not in ranks or reshape.op_type != "Reshape":
            continue
        if flatten.attributes.get_int("axis", 1) != ranks[source] - 1:
            continue
        extents = reshape.inputs[1]
        shape = producer_of(extents)
        if shape is None or shape.op_type != "Shape" or shape.inputs[0] is not source:
            continue
        node.replace_input_with(0, source)
        node.attributes["axis"] = ir.AttrInt64("axis", -1)
        succeed(reshape.outputs[0], node.outputs[0])
        for gone in (reshape, shape, flatten):
            if gone.graph is not None and not any(o.uses() for o in gone.outputs):
                gone.graph.remove(gone, safe=True)


def _nearest_mode(node: ir.Node) -> str:
    value = node.inputs[2]
    scales = const_of(value)
    if scales is not None and (scales.numpy() >= 1).all():
        return "floor"
    if scales is not None and (scales.numpy() <= 1).all():
        return "ceil"
    raise ModelError(
        f"Resize '{node.name}' cannot be raised to opset 11: its scales are computed, or are above 1 "
        "on one axis and below on another"
    )


def _restore(model: ir.Model, weights: dict[str, ir.TensorProtocol], *, listed: set[str]) -> None:
    """Put the weights back; `listed` names the inputs that the model had."""
    inputs = list(model.graph.inputs)
    model.graph.inputs.clear()
    for value in inputs:
        tensor = weights.get(own_name(value))
        if tensor is None or value.name in listed:
            model.graph.inputs.append(value)
        if tensor is not None:
            value.const_value = tensor
            model.graph.register_initializer(value)
