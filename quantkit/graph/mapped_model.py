"""A model file as a few KB of structure that points into the file itself.

A runtime that loads this maps the weights instead of copying them; and what a runtime refuses in
the structure (an IR version that is too new) can be changed without touching the file.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import onnx

from quantkit.graph._proto import proto_graphs
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
    _point_into(proto.graph, path.name)
    return MappedModel(proto.SerializeToString(), path.parent)


def _point_into(graph: onnx.GraphProto, location: str) -> None:
    for part in proto_graphs(graph):
        constants = (a.t for node in part.node for a in node.attribute if a.HasField("t"))
        for tensor in chain(part.initializer, constants):
            for entry in tensor.external_data:
                if entry.value == MARK:
                    entry.value = location
