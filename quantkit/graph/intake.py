"""A model as it comes, before onnx-ir sees it: mended where onnxruntime takes what onnx-ir does not.

Works on the protobuf message, which is quantkit's own copy; one pass each, linear.
"""

from collections.abc import Iterator

import onnx

from quantkit.graph._proto import proto_graphs

__all__ = ["Part", "mend", "parts_of"]

Part = onnx.GraphProto | onnx.FunctionProto


def mend(proto: onnx.ModelProto) -> None:
    """Bring a message into the form that all readers of it agree on, in place.

    1. A negative extent is a dynamic one, as it is for onnxruntime.
    """
    for part in parts_of(proto):
        for value in _described(part):
            _free_negative_extents(value.type)


def parts_of(proto: onnx.ModelProto) -> Iterator[Part]:
    """Yield all graphs and functions."""
    yield from proto_graphs(proto.graph)
    for function in proto.functions:
        yield function
        for attribute in (a for node in function.node for a in node.attribute):
            for graph in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                yield from proto_graphs(graph)


def _described(part: Part) -> Iterator[onnx.ValueInfoProto]:
    yield from part.value_info
    if isinstance(part, onnx.GraphProto):
        yield from part.input
        yield from part.output


def _free_negative_extents(declared: onnx.TypeProto) -> None:
    kind = declared.WhichOneof("value")
    if kind in {"sequence_type", "optional_type"}:
        _free_negative_extents(getattr(declared, kind).elem_type)
    elif kind in {"tensor_type", "sparse_tensor_type"}:
        for extent in getattr(declared, kind).shape.dim:
            if extent.dim_value < 0:
                extent.Clear()
