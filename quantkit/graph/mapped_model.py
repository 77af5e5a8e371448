"""A model file as a few KB of structure that points into the file itself.

A runtime that loads this maps the weights instead of copying them; and what a runtime refuses in
the structure (an IR version that is too new) can be changed without touching the file.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import onnx

from quantkit.graph._proto import proto_graphs
from quantkit.graph._wire import MARK, split
from quantkit.graph.mapping import SMALL, MappedFile

__all__ = ["MappedModel", "mapped_model"]


@dataclass(frozen=True, slots=True)
class MappedModel:
    """Serialized structure, and the folder in which its external data is."""

    structure: bytes
    folder: Path


def mapped_model(path: Path, ir_version: Callable[[int], int]) -> MappedModel:
    """Return the structure of a model file with every large tensor pointing into a file of one folder.

    Links are followed: in a Hugging Face cache the model and its data are links to files of other names,
    and a runtime that is given the folder of one does not find the other. The folder is the deepest one
    that holds them all. `ir_version` maps the file's IR version to the one to declare.

    Of a small file the tensors stay where they are: where somebody cuts a mapped file short, the process is killed
    without a word.
    """
    mapped = MappedFile(path)
    view = mapped.view()
    proto = onnx.ModelProto.FromString(bytes(view) if len(mapped) < SMALL else split(view))
    proto.ir_version = ir_version(proto.ir_version)
    entries = list(_locations(proto.graph))
    files = {e.value: (path.parent / e.value).resolve() for e in entries} | {MARK: path.resolve()}
    folder = Path(os.path.commonpath([file.parent for file in files.values()]))
    for entry in entries:
        entry.value = files[entry.value].relative_to(folder).as_posix()
    return MappedModel(proto.SerializeToString(), folder)


def _locations(graph: onnx.GraphProto) -> Iterator[onnx.StringStringEntryProto]:
    for part in proto_graphs(graph):
        constants = (a.t for node in part.node for a in node.attribute if a.HasField("t"))
        for tensor in chain(part.initializer, constants):
            yield from (e for e in tensor.external_data if e.key == "location")
