"""Shape inference that does not fail on real models.

onnx's own inference, run on the structure without weights and without the shapes that the file declares
inside the graph: they may be wrong, and wrong ones would be carried on. Only the graph's inputs and the
constants count. Nodes that inference does not know are passed over.

`Known` is what passes may know of a value for certain: what was inferred from the graph's inputs, which onnxruntime
does check (it is left in `Value.meta`), and what constants are. What a file declares inside the graph nobody checks.
"""

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
from onnx import shape_inference

from quantkit.errors import ModelError
from quantkit.model.graph.edit import constant, own_name
from quantkit.model.graph.protos import proto_graphs
from quantkit.model.graph.save import skeleton, weightless

Dims = tuple[int | None, ...]
_KEY = "quantkit.known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Type and extents of a value; an extent that depends on the inputs is None, unknown rank too."""

    dtype: ir.DataType
    dims: Dims | None


def learn(value: ir.Value, known: Known) -> None:
    """Keep what was found of a value; it is not written to the file."""
    value.meta[_KEY] = known


def known(value: ir.Value) -> Known | None:
    """Return what was found of a value; None if nothing was."""
    found = value.meta.get(_KEY)
    return found if isinstance(found, Known) else None


def dims(value: ir.Value | None) -> Dims | None:
    """Return the extents that are certain; None if not even the rank is."""
    if value is None:
        return None
    tensor = constant(value)
    if tensor is not None:
        return tuple(int(n) for n in tensor.shape.numpy())
    found = known(value)
    return None if found is None else found.dims


def static(value: ir.Value | None) -> tuple[int, ...] | None:
    """Return the shape if every extent of it is certain."""
    found = dims(value)
    if found is None:
        return None
    extents = tuple(n for n in found if n is not None)
    return extents if len(extents) == len(found) else None


def dtype(value: ir.Value | None) -> ir.DataType | None:
    """Return the element type if it is certain."""
    if value is None:
        return None
    tensor = constant(value)
    if tensor is not None:
        return tensor.dtype
    found = known(value)
    return None if found is None else found.dtype


def integers(node: ir.Node, slot: int, attribute: str) -> tuple[int, ...] | None:
    """Return a list that older opsets hold in an attribute, newer ones in an input.

    None if it is absent, or computed; `slot` below zero if no opset has it as an input.

    Args:
        node: Whose list it is.
        slot: The input that holds it in newer opsets; below zero: none does.
        attribute: The attribute that holds it in older ones.
    """
    if 0 <= slot < len(node.inputs) and node.inputs[slot] is not None:
        tensor = constant(node.inputs[slot])
        if tensor is None or not tensor.dtype.is_integer():
            return None
        return tuple(int(n) for n in np.asarray(tensor.numpy()).reshape(-1))
    found = node.attributes.get(attribute)
    if found is None or found.type is not ir.AttributeType.INTS:
        return None
    return tuple(found.as_ints())


def shapes(model: ir.Model) -> int:
    """Write the shapes that can be inferred into the model; return how many values got one.

    A shape that is declared stays, also if it is less exact: for outputs it is part of the interface.

    Raises:
        ModelError: Inference failed; says why, and nothing was changed.
    """
    infer(model)
    count = 0
    for graph in model.graphs():
        for value in (out for node in graph for out in node.outputs):
            found = known(value)
            if found is None or found.dims is None or value.shape is not None:
                continue
            value.shape = ir.Shape(found.dims)
            value.type = value.type or ir.TensorType(found.dtype)
            count += 1
    return count


def infer_types(model: ir.Model) -> None:
    """Let every value know its type, in place, as far as inference tells; where it fails, nothing is known."""
    with suppress(ModelError):
        infer(model)
    for graph in model.graphs():
        for value in (out for node in graph for out in node.outputs):
            found = known(value)
            if found is not None and value.type is None:
                value.type = ir.TensorType(found.dtype)


def declared_inside(model: ir.Model) -> frozenset[str]:
    """Return the values inside of graphs of which the model says a type."""
    return frozenset(own_name(v) for v in _made_inside(model) if v.type is not None)


def declare_only(model: ir.Model, names: Collection[str]) -> None:
    """Let only these values inside of graphs say their type, so that a file has no line for each that was inferred."""
    for value in _made_inside(model):
        if value.name not in names:
            value.type, value.shape = None, None


def _made_inside(model: ir.Model) -> Iterator[ir.Value]:
    for graph in model.graphs():
        yield from (out for node in graph for out in node.outputs if not out.is_graph_output())


def infer(model: ir.Model) -> None:
    """Find types and shapes, and keep them beside the values; the model itself is not changed.

    Raises:
        ModelError: Inference failed; says why.
    """
    proto = weightless(skeleton(model)[0])
    _forget_shapes(proto)
    try:
        inferred = shape_inference.infer_shapes(proto, data_prop=True)
    except (RuntimeError, ValueError, shape_inference.InferenceError) as e:
        reason = next(iter(str(e).strip().splitlines()), type(e).__name__)
        raise ModelError(f"Shapes cannot be inferred: {reason}") from e
    _keep(model.graph, inferred.graph)


def _forget_shapes(proto: onnx.ModelProto) -> None:
    """Leave only the extents of the main graph's inputs; some exporters write 0 or -1 for a free one."""
    main, *inner = proto_graphs(proto.graph)
    for value in main.input:
        for extent in value.type.tensor_type.shape.dim:
            if extent.HasField("dim_value") and extent.dim_value <= 0:
                extent.Clear()
    unsure = [*main.output]
    for graph in inner:
        unsure += [*graph.output, *graph.input]
    for graph in (main, *inner):
        held = {tensor.name for tensor in graph.initializer}  # their own shapes are certain
        declared = [value for value in graph.value_info if value.name not in held]
        del graph.value_info[:]
        graph.value_info.extend(declared)
        unsure += graph.value_info
    for value in unsure:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")


def _keep(graph: ir.Graph, inferred: onnx.GraphProto) -> None:
    """Take over what was found, graph by graph: names are unique only within one."""
    found = {v.name: k for v in _described_values(inferred) if (k := _known(v)) is not None}
    for value in _values(graph):
        if value.name in found:
            learn(value, found[value.name])
    for node, described in zip(graph, inferred.node, strict=True):
        attributes = {a.name: a for a in described.attribute}
        for attribute in node.attributes.values():
            if attribute.type is ir.AttributeType.GRAPH:
                _keep(attribute.as_graph(), attributes[attribute.name].g)
            elif attribute.type is ir.AttributeType.GRAPHS:
                inner = attributes[attribute.name].graphs
                for body, described_body in zip(attribute.as_graphs(), inner, strict=True):
                    _keep(body, described_body)


def _described_values(graph: onnx.GraphProto) -> Iterator[onnx.ValueInfoProto]:
    yield from graph.input
    yield from graph.value_info
    yield from graph.output


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from (v for v in graph.inputs if not v.is_initializer())
    for node in graph:
        yield from node.outputs


def _known(value: onnx.ValueInfoProto) -> Known | None:
    if not value.type.HasField("tensor_type") or not value.type.tensor_type.elem_type:
        return None
    tensor = value.type.tensor_type
    extents = None
    if tensor.HasField("shape"):
        extents = tuple(d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim)
    return Known(dtype=ir.DataType(tensor.elem_type), dims=extents)
