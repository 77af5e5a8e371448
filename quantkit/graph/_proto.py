"""Small readers of protobuf messages, for the few places that must look before onnx-ir does."""

from collections.abc import Iterator

import onnx

__all__ = ["location_of", "proto_graphs", "root_cause"]


def proto_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and all graphs inside it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from proto_graphs(attribute.g)
            for inner in attribute.graphs:
                yield from proto_graphs(inner)


def location_of(tensor: onnx.TensorProto) -> str:
    """Return the file that holds the tensor's contents; "" if it holds them itself."""
    return next((e.value for e in tensor.external_data if e.key == "location"), "")


def root_cause(error: BaseException) -> str:
    """Return the first line of the message at the bottom of onnx-ir's chains of errors."""
    while error.__cause__ is not None:
        error = error.__cause__
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
