"""Small readers of protobuf messages, for the few places that must look before onnx-ir does."""

from collections.abc import Iterator

import onnx

__all__ = ["Part", "described_values", "location_of", "parts_of", "proto_graphs", "root_cause"]

Part = onnx.GraphProto | onnx.FunctionProto


def proto_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and all graphs inside it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from proto_graphs(attribute.g)
            for inner in attribute.graphs:
                yield from proto_graphs(inner)


def parts_of(proto: onnx.ModelProto) -> Iterator[Part]:
    """Yield all graphs and functions."""
    yield from proto_graphs(proto.graph)
    for function in proto.functions:
        yield function
        for attribute in (a for node in function.node for a in node.attribute):
            for graph in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                yield from proto_graphs(graph)


def described_values(proto: onnx.ModelProto) -> Iterator[onnx.ValueInfoProto]:
    """Yield every declaration of a value's type, in all graphs and functions."""
    for part in parts_of(proto):
        yield from part.value_info
        if isinstance(part, onnx.GraphProto):
            yield from part.input
            yield from part.output


def location_of(tensor: onnx.TensorProto) -> str:
    """Return the file that holds the tensor's contents; "" if it holds them itself."""
    return next((e.value for e in tensor.external_data if e.key == "location"), "")


def root_cause(error: BaseException) -> str:
    """Return the first line of the message at the bottom of onnx-ir's chains of errors."""
    while error.__cause__ is not None:
        error = error.__cause__
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
