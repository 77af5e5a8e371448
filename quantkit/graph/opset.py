"""Opset and IR version.

The opset is raised only as far as a plan needs, with onnx's own version converter. It runs on the
model without its weights: they are handed to it as graph inputs and put back afterwards, so size
does not matter.
"""

import onnx
import onnx.version_converter
import onnx_ir as ir
from onnx import shape_inference

from quantkit.errors import ModelError
from quantkit.graph._wire import MARK
from quantkit.graph.normalize import normalize
from quantkit.graph.save import skeleton

__all__ = ["check", "opset_of", "raise_opset", "weightless"]

# The first IR version that may carry each opset (onnx's table of versions).
_IR_FOR_OPSET = ((11, 6), (12, 7), (15, 8), (19, 9), (21, 10), (23, 11), (24, 12), (25, 13))


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
    proto, weights = weightless(model)
    try:
        # Some adapters look at ranks, which only shape inference gives them.
        converted = onnx.version_converter.convert_version(
            shape_inference.infer_shapes(proto), minimum
        )
    except (RuntimeError, ValueError, onnx.shape_inference.InferenceError) as e:
        reason = str(e).strip().splitlines()[-1]
        raise ModelError(
            f"The model cannot be raised from opset {opset_of(model)} to {minimum}: {reason}"
        ) from e
    result = ir.serde.deserialize_model(converted)
    _restore(result, weights)
    for domain, version in model.opset_imports.items():
        result.opset_imports.setdefault(domain, version)
    result.metadata_props.update(model.metadata_props)
    result.ir_version = max(model.ir_version or 0, _ir_for(minimum))
    normalize(result)
    return result


def _ir_for(opset: int) -> int:
    return max((ir_version for first, ir_version in _IR_FOR_OPSET if opset >= first), default=4)


def weightless(model: ir.Model) -> tuple[onnx.ModelProto, dict[str, ir.TensorProtocol]]:
    """Serialize with every large initializer turned into an input of the main graph.

    Initializer names are unique over all graphs, so the ones of subgraphs can be captured from there.
    """
    with skeleton(model) as (proto, tensors):
        weights: dict[str, ir.TensorProtocol] = {}
        _lift_inputs(proto.graph, proto.graph, tensors, weights)
    return proto, weights


def _lift_inputs(
    graph: onnx.GraphProto,
    main: onnx.GraphProto,
    tensors: list[ir.TensorProtocol],
    weights: dict[str, ir.TensorProtocol],
) -> None:
    kept = []
    listed = {i.name for i in main.input}
    for tensor in graph.initializer:
        note = {e.key: e.value for e in tensor.external_data}
        if note.get("location") != MARK:
            kept.append(tensor)
            continue
        weights[tensor.name] = tensors[int(note["offset"])]
        if tensor.name not in listed:
            value = main.input.add(name=tensor.name)
            value.type.tensor_type.elem_type = tensor.data_type
            for dim in tensor.dims:
                value.type.tensor_type.shape.dim.add(dim_value=dim)
    if len(kept) != len(graph.initializer):
        copies = [onnx.TensorProto.FromString(t.SerializeToString()) for t in kept]
        del graph.initializer[:]
        graph.initializer.extend(copies)
    for node in graph.node:
        for attribute in node.attribute:
            for inner in ([attribute.g] if attribute.HasField("g") else []) + list(
                attribute.graphs
            ):
                _lift_inputs(inner, main, tensors, weights)


def _restore(model: ir.Model, weights: dict[str, ir.TensorProtocol]) -> None:
    inputs = list(model.graph.inputs)
    model.graph.inputs.clear()
    for value in inputs:
        tensor = weights.get(value.name or "")
        if tensor is None:
            model.graph.inputs.append(value)
        else:
            value.const_value = tensor
            model.graph.register_initializer(value)


def check(model: ir.Model) -> None:
    """Run onnx's checker on the structure.

    Raises:
        onnx.checker.ValidationError: The graph is not valid ONNX.
    """
    proto, _ = weightless(model)
    onnx.checker.check_model(proto)
