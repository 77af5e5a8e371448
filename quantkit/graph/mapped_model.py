"""A model file as a few KB of structure that points into the file itself.

A runtime that loads this maps the weights instead of copying them; and what a runtime refuses in
the structure (an IR version that is too new) can be changed without touching the file.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx

from quantkit.graph._wire import MARK, split
from quantkit.graph.mapping import MappedFile

__all__ = ["MappedModel", "mapped_model"]


@dataclass(frozen=True, slots=True)
class MappedModel:
    """Serialized structure, and the folder in which its external data is."""

    structure: bytes
    folder: Path


def mapped_model(path: Path, ir_version: Callable[[int], int]) -> MappedModel:
    """Return the structure of a model file with every large tensor pointing into a file of its folder.

    `ir_version` maps the file's IR version to the one to declare.
    """
    path = path.resolve()
    proto = onnx.ModelProto.FromString(split(MappedFile(path).view()))
    proto.ir_version = ir_version(proto.ir_version)
    structure = proto.SerializeToString()
    if MARK.encode() in structure:
        _point_into(proto.graph, path.name)
        structure = proto.SerializeToString()
    return MappedModel(structure, path.parent)


def _point_into(graph: onnx.GraphProto, location: str) -> None:
    for tensor in graph.initializer:
        _point(tensor, location)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                _point(attribute.t, location)
            for inner in (attribute.g, *attribute.graphs):
                _point_into(inner, location)


def _point(tensor: onnx.TensorProto, location: str) -> None:
    for entry in tensor.external_data:
        if entry.value == MARK:
            entry.value = location
